"""The tile programs of one kernel, each once, and the scratch memory that its buffers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from sympy import Expr

from .feed import Operand
from .lower import Tile
from .packing import stack_bytes
from .plan import Plan
from .program import TileProgram
from .symbolic import ZERO, div, value
from .tiles import lower_tile
from .types import ITEMSIZE

#: Bytes to which buffers in scratch memory are aligned.
ALIGNMENT = 64


@dataclass(slots=True)
class TileSet:
    """What was made so far, and the scratch memory given away."""

    plan: Plan
    programs: dict[object, TileProgram] = field(default_factory=dict)
    scratch: dict[tuple[str, Expr], Expr] = field(default_factory=dict)

    def get(self, tile: Tile) -> TileProgram:
        """The program of ``tile``."""
        region, operands = tile.region, tile.plan.operands
        strides = tuple(tuple(operands[x].strides.values()) for x in "ab")
        where = (region.active, region.overlapped, region.along.size, region.across.size)
        how = (tile.steps, tile.rest, tile.accumulate, tile.stage)
        key = (region.shape, *where, *how, strides)
        if key not in self.programs:
            name = f"tile{len(self.programs)}_{_size(tile)}"
            self.programs[key] = lower_tile(tile, name)
        return self.programs[key]

    def room(self, operand: Operand, elements: Expr) -> Expr | None:
        """Where a buffer lies in scratch memory; None for the stack.

        Blocks of one operand and one size share a place.
        """
        if stack_bytes(operand, elements) is not None:
            return None
        size = elements * ITEMSIZE[operand.type]
        place = (operand.buffer, size)
        self.scratch.setdefault(place, div(size + ALIGNMENT - 1, ALIGNMENT) * ALIGNMENT)
        before = list(self.scratch)[: list(self.scratch).index(place)]
        return sum((self.scratch[other] for other in before), ZERO)


def _size(tile: Tile) -> str:
    across, along = tile.region.across.units, tile.region.along.size
    size = str(along) if value(along) is not None else "tail"
    return f"{across}x{size}" if tile.plan.along == "n" else f"{size}x{across}"
