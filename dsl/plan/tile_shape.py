"""Register tiles: the registers they take, and the bounds of a K step."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.isa.machine import Core
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.vector import MulAdd, Vector
from tilewright.spec.types import ITEMSIZE

#: Registers for the steps in which elements are converted that no access converts.
STEPS = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """Vector registers by use."""

    accumulators: int
    along: int
    across: int
    masks: int

    @property
    def total(self) -> int:
        """Registers in all."""
        return self.accumulators + self.along + self.across + self.masks


@dataclass(frozen=True, slots=True)
class TileShape:
    """A register tile.

    ``vectors`` registers lie along the vectorised dimension, ``rows`` across it. ``feed`` says how
    the operand across arrives: a form of the multiply-add, with ``lane_k`` and ``lane_s`` for
    vectors that lie along K or across, and ``repeat`` for a few elements along K that a register
    repeats; those along K serve ``group`` steps. ``op`` is the multiply-add of that feed, ``plain``
    the one of an element that is spread by itself, as where K ends within a group of steps.
    ``hold`` is the side kept in registers during a K step; ``instructions`` is how many a
    multiply-add takes, ``shuffles`` how many more convert an element of the operand across,
    ``height`` the rows that one computes and ``parts`` how many of them lie along a vector. In the
    registers of ``unit`` the accumulators are matrices, and a step takes ``groups`` groups of K.
    ``latency`` is the multiply-add's, 0 the core's; ``converts``: elements alone are converted in
    steps; ``stride`` the bytes from one step's vectors to the next's, 0 where all are aligned.
    """

    vector: Vector
    rows: int
    vectors: int
    k_split: int
    feed: str
    hold: str
    masked: bool
    op: MulAdd
    plain: MulAdd
    instructions: int = 1
    height: int = 1
    parts: int = 1
    unit: MatrixUnit | None = None
    groups: int = 1
    group: int = 1
    shuffles: float = 0
    latency: int = 0
    converts: bool = False
    stride: int = 0

    @property
    def bands(self) -> int:
        """Rows of accumulators."""
        return -(-self.rows // self.height)

    @property
    def columns(self) -> int:
        """Columns of accumulators."""
        return self.vectors * self.parts

    @property
    def budget(self) -> Budget:
        """The registers alive in the K loop."""
        accumulators = self.bands * self.columns * self.k_split
        if self.unit is not None:  # what passes has two, so that one is loaded beside the other
            if self.hold == "along":
                return Budget(accumulators, self.columns, min(2, self.bands), 0)
            return Budget(accumulators, min(2, self.columns), self.bands, 0)
        masks = self.vector.mask.registers if self.masked and self.vector.mask else 0
        if self.feed == "lane_s":
            return Budget(accumulators, self.vectors, -(-self.rows // self.vector.lanes), masks)
        if self.feed in ("lane_k", "repeat"):
            return Budget(accumulators, self.vectors, self.rows + (self.feed == "repeat"), masks)
        converting = STEPS if self.converts and self.vector.lanes == 1 else 0
        if self.hold == "across":
            return Budget(accumulators, 1, self.bands + converting, masks)
        across = 0 if self.feed == "memory" else 1
        return Budget(accumulators, self.columns, across + converting, masks)

    @property
    def loads(self) -> float:
        """Loads per K step; of matrices their rows."""
        if self.unit is not None:
            return self.rows + self.groups * self.columns
        if self.feed in ("lane_k", "repeat"):
            return self.vectors + self.rows / self.group
        if self.feed == "lane_s":
            return self.vectors - (-self.rows // self.vector.lanes)
        return self.columns + self.bands

    def touched(self, line: int) -> float:
        """Cache lines that the loads of a K step touch: a vector may reach into a second one."""
        size = self.vector.lanes * ITEMSIZE[self.vector.element]
        beyond = (size - gcd(self.stride, size)) / line
        return self.loads + (self.vectors * beyond if self.unit is None else 0)

    @property
    def outputs(self) -> int:
        """Vectors of C."""
        return self.rows * self.vectors

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds per K step."""
        return self.bands * self.columns

    @property
    def arithmetic(self) -> int:
        """Instructions of the multiply-adds of a K step."""
        return self.multiply_adds * self.instructions


def chains_wanted(shape: TileShape, core: Core) -> int:
    """How many chains of multiply-adds hide the latency of one."""
    if shape.unit is not None:
        return -(-shape.unit.latency * shape.bands // shape.rows)
    return latency(shape, core) * core.fma_units


def latency(shape: TileShape, core: Core) -> int:
    """Cycles until a multiply-add of the tile has its sum."""
    return shape.latency or core.fma_latency


def step_cycles(shape: TileShape, core: Core) -> float:
    """Cycles per K step: the tightest of units, loads, issue and latency.

    The others count a little too: bounds that lie close together are not reached together; and so
    do chains that leave no choice of what to multiply next.
    """
    each = bounds(shape, core).values()
    cycles = max(each) + (sum(each) - max(each)) * core.overlap
    chains = shape.multiply_adds * shape.k_split / chains_wanted(shape, core)
    return cycles * (1 + core.strain * min(1, max(0, 3 - 2 * chains)))


def bounds(shape: TileShape, core: Core) -> dict[str, float]:
    """Cycles per K step by what bounds them."""
    if shape.unit is not None:
        return {
            "multiply-add units": float(shape.rows * shape.columns),
            "loads": shape.loads / core.loads,
            "latency": shape.unit.latency / shape.k_split,
        }
    converting = shape.bands * shape.shuffles
    found = {
        "multiply-add units": shape.arithmetic / core.fma_units,
        "loads": shape.touched(core.line) / core.loads,
        "issue": (shape.arithmetic + shape.loads + converting) / core.issue,
        "latency": latency(shape, core) / shape.k_split,
    }
    return found | {"conversions": converting / core.shuffles} if converting else found


def tightest(each: dict[str, float]) -> str:
    """The bound that is reached first."""
    return max(each, key=lambda name: each[name])
