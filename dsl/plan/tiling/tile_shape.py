"""Register tiles: what is asked of one, its possible forms, the registers it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, inf
from typing import Literal, NamedTuple

from tilewright.isa.machine import Core
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Vector

from ..contraction import Product
from .scaled import UNPACKING, Scaled

#: Registers for the steps in which elements are converted that no access converts.
STEPS = 3
#: Operations that convert an element which no vector spreads.
ALONE = 4


class Budget(NamedTuple):
    """Vectors by use, each of which takes so many ``registers``.

    The accumulators are registers of ``unit`` where there is one.
    """

    accumulators: int
    along: int
    across: int
    masks: int
    registers: int = 1
    unit: MatrixUnit | None = None

    @property
    def total(self) -> int:
        """Registers in all; where the sums are in registers of their own those."""
        return self.accumulators if self.unit else self.accumulators * self.registers + self.beside

    @property
    def beside(self) -> int:
        """Vector registers that hold no sums."""
        return (self.along + self.across + self.masks) * self.registers


@dataclass(frozen=True)
class TileShape:
    """A register tile.

    ``vectors`` registers lie along the vectorised dimension, ``rows`` across it. ``form`` says how
    the operand across arrives: a form of the multiply-add, with ``lane_k`` and ``lane_s`` for
    vectors that lie along K or across, ``along_k`` where those of both do, and ``repeat`` for a few
    elements along K that a register repeats; those along K serve ``group`` steps. ``op`` is the
    multiply-add of that form, ``plain`` the one of an element that is spread by itself, as where K
    ends within a group of steps. ``hold`` is the side kept in registers during a K step;
    ``instructions`` is how many a multiply-add takes, ``shuffles`` how many more convert an element
    of the operand across, ``height`` the rows that one computes and ``parts`` how many of them lie
    along a vector. In the registers of ``unit`` the accumulators and factors are matrices, and a
    step takes ``groups`` groups of K; in those of ``sums`` the accumulators alone. ``latency`` is
    the multiply-add's, 0 the core's; ``converts``: elements alone are converted in steps;
    ``stride`` the bytes from one step's vectors to the next's, 0 where all are aligned; ``lines``
    those from line to line along the vectors, and across, where the vectors lie along K. ``zeros``
    vectors are taken by loads of a tail of K, whose other lanes are 0. A load reads as many factors
    that are vectors as ``several`` says, most first, () one. ``scalars_apart`` is the target's.
    With ``scaled`` a step is a block of K, whose sums have registers of their own until scaled.

    The last fields follow from the others: ``bands`` and ``columns`` of accumulators; ``outputs``,
    vectors of C; and of a K step its ``multiply_adds``, ``arithmetic``, their instructions,
    ``loads``, those of matrices by rows, and ``issued``, the instructions of both, of which a
    multiply-add that reads memory is one.
    """

    vector: Vector
    rows: int
    vectors: int
    k_split: int
    form: str
    hold: str
    masked: bool
    op: MulAdd
    plain: MulAdd
    instructions: int = 1
    height: int = 1
    parts: int = 1
    unit: MatrixUnit | None = None
    sums: MatrixUnit | None = None
    groups: int = 1
    group: int = 1
    shuffles: float = 0
    latency: int = 0
    converts: bool = False
    stride: int = 0
    lines: tuple[int, int] = (0, 0)
    scalars_apart: bool = False
    scaled: Scaled | None = None
    several: tuple[int, ...] = ()
    zeros: int = 0
    bands: int = field(init=False, repr=False, compare=False)
    columns: int = field(init=False, repr=False, compare=False)
    outputs: int = field(init=False, repr=False, compare=False)
    multiply_adds: int = field(init=False, repr=False, compare=False)
    arithmetic: int = field(init=False, repr=False, compare=False)
    loads: float = field(init=False, repr=False, compare=False)
    issued: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bands, columns = -(-self.rows // self.height), self.vectors * self.parts
        loads, arithmetic = self._loads(bands, columns), bands * columns * self.instructions
        vars(self).update(
            bands=bands,
            columns=columns,
            outputs=self.rows * self.vectors,
            multiply_adds=bands * columns,
            arithmetic=arithmetic,
            loads=loads,
            issued=arithmetic + (columns if self.form == "memory" else loads),
        )

    def of_size(self, rows: int, vectors: int, k_split: int, hold: str, masked: bool) -> TileShape:
        """Return this tile with another size; faster than ``replace``: searches make thousands."""
        made = object.__new__(TileShape)
        vars(made).update(
            vars(self), rows=rows, vectors=vectors, k_split=k_split, hold=hold, masked=masked
        )
        made.__post_init__()
        return made

    def _loads(self, bands: int, columns: int) -> float:
        if self.unit is not None:
            return self.rows + self.groups * columns
        if self.form in ("lane_k", "repeat"):
            return self.vectors + self.rows / self.group
        if self.form == "lane_s":
            return self.vectors - (-self.rows // self.lanes)
        return columns + bands

    @property
    def lanes(self) -> int:
        """Elements across, or groups of them, that a register holds for the forms by lanes."""
        return self.op.lanes or self.vector.lanes

    @property
    def budget(self) -> Budget:
        """The registers alive in the K loop."""
        accumulators = self.bands * self.columns * self.k_split
        if self.scaled is not None and self.unit is None:
            apart = self.scaled.apart
            return (self._scaled_budget if apart else self._unpacked_budget)(accumulators)
        if self.sums is not None:
            both = (self.columns, 1) if self.hold == "along" else (1, self.bands)
            both = (self.columns, self.bands) if self.several else both
            return Budget(accumulators, *both, 0, unit=self.sums)
        if self.unit is not None:  # what passes has two, so that one is loaded beside the other
            if self.hold == "along":
                return Budget(accumulators, self.columns, min(2, self.bands), 0)
            return Budget(accumulators, min(2, self.columns), self.bands, 0)
        vector = self.vector
        masks = vector.mask.registers + self.zeros if self.masked and vector.mask else 0
        if self.form == "lane_s":
            return Budget(accumulators, self.vectors, -(-self.rows // self.lanes), masks)
        if self.form in ("lane_k", "repeat"):
            return Budget(accumulators, self.vectors, self.rows + (self.form == "repeat"), masks)
        converting = STEPS if self.converts and vector.lanes == 1 else 0
        if self.form == "scalar" and self.apart:
            # No scalar waits for a register: the next vector is loaded beside the one that passes,
            # and of several compilers load yet another early, or move the sums around.
            passing = min(2, self.columns) if self.hold == "across" else self.columns
            along = passing + (self.columns > 1)
            return Budget(accumulators, along, converting, masks, vector.registers)
        if self.hold == "across":
            return Budget(accumulators, 1, self.bands + converting, masks, vector.registers)
        across = 0 if self.form == "memory" else 1
        return Budget(accumulators, self.columns, across + converting, masks, vector.registers)

    def _scaled_budget(self, accumulators: int) -> Budget:
        """Sums in all and of a block; bytes beside the factors made of them."""
        assert self.scaled is not None
        planes = self.scaled.planes if self.scaled.fields > 1 else 0
        along = self.vectors * (1 + planes) + (planes > 1)
        across = self.rows if self.form == "lane_k" else 1
        across += bool(self.scaled.runs)  # the ones by which sums of runs are added up
        registers = self.vector.registers
        # Where a block ends, scales take the factors' place, and more what is computed of them.
        zeros = (self.vectors + 2) * self.scaled.zeros
        ends = self.vectors + self.scaled.scaling + zeros
        most = max(along + across, ends)
        sums = self.scaled.sets * accumulators
        return Budget(sums, along, max(across, most - along), 0, registers)

    def _unpacked_budget(self, accumulators: int) -> Budget:
        """Bytes and the scales of a block beside the factors, and what conversions take."""
        assert self.scaled is not None
        fields, zeros = self.scaled.fields > 1, self.scaled.zeros
        along = self.vectors * (2 + fields * self.scaled.planes + zeros)
        across = self.rows + 1 if self.form in ("lane_k", "repeat") else 1
        return Budget(accumulators, along, across + UNPACKING, 0, self.vector.registers)

    @property
    def apart(self) -> bool:
        """Whether the factors across lie in registers of C scalars, which vectors do not take."""
        return self.scalars_apart and self.form == "scalar" and self.vector.lanes > 1

    def picked(self, rows: int) -> int:
        """Registers of which multiply-adds take lanes, in a tile of so many rows."""
        return {"lane_k": rows, "lane_s": -(-rows // self.lanes)}.get(self.form, 0)

    def touched(self, core: Core) -> float:
        """The loads of a K step, with what a vector costs more that reaches into a second line."""
        if self.unit is not None:
            return self.loads
        size = self.vector.nbytes
        if self.form == "along_k":
            along, across = self.lines
            beyond = self.columns * (size - gcd(along, size)) + self.bands * (
                size - gcd(across, size)
            )
        else:
            beyond = self.vectors * (size - gcd(self.stride, size))
        return self.loads + beyond / core.line * core.crossing

    @property
    def narrow_loads(self) -> int:
        """The loads of a K step that read single elements, each to spread it."""
        return self.bands if self.form in ("memory", "broadcast") or self.apart else 0


# --- what is asked, and in which forms ---------------------------------------------------------


@dataclass(frozen=True)
class TileRequest:
    """What is asked of a tile, as far as its cost depends on it.

    ``product`` is the multiply-add, ``unit`` the matrix unit if it is one's of matrices, ``sums``
    if it is one's of vectors; ``vectors`` are those
    it may use; ``steps`` are K steps in all, ``depth`` those of one matrix, None when known only at
    the call. ``lane_forms`` are the forms by lanes that are possible, ``splits`` the numbers of
    accumulator sets allowed, ``spare`` the registers left to the compiler. ``dot``: vectors lie
    along K; ``transposed``: C is contiguous across them. ``overlaps``: a tile's last vector may
    overlap the one before; ``padded``: it is computed whole though part of it exists, and nothing
    is loaded but whole vectors. ``source``: what an element of the operand across is converted from
    as it is spread, "" where it is not; with ``converts`` one alone takes steps, of either operand.
    ``stride`` bytes lie between the vectors of one step and the next, ``lines`` as in
    ``TileShape``. ``several`` is that of
    ``TileShape``, ``scalars_apart`` the target's. ``places`` rows lie in the first cache at
    once. ``far``: what a matrix unit reads comes from the second cache. ``kept``: so many
    rows along the vectors, and across them, lie in the first cache at once, where they are read in
    place. ``passing``: the bytes of a line of C, if it passes to memory. ``shifted``: groups of the
    operand across are shifted as they are spread. ``streams``: few lines across meet a matrix whose
    lines are read once, from afar; ``long``: vectors lie along lines that do not follow each other;
    ``beyond``: what tiles read along the vectors is more than the first cache holds, in place, or
    packed and all of it for each row of tiles. ``offsets``: those of rows across are known.
    """

    product: Product
    vectors: tuple[Vector, ...]
    steps: int
    reads_c: bool
    lane_forms: tuple[str, ...]
    splits: tuple[int, ...]
    dot: bool = False
    transposed: bool = False
    depth: int | None = None
    spare: int = 0
    overlaps: bool = False
    padded: bool = False
    source: str = ""
    converts: bool = False
    stride: int = 0
    lines: tuple[int, int] = (0, 0)
    unit: MatrixUnit | None = None
    sums: MatrixUnit | None = None
    scalars_apart: bool = False
    scaled: Scaled | None = None
    several: tuple[int, ...] = ()
    places: int | None = None
    far: bool = False
    kept: tuple[float, float] = (inf, inf)
    passing: int = 0
    shifted: bool = False
    streams: bool = False
    long: bool = False
    beyond: bool = False
    offsets: bool = False

    def free(self, target: Target) -> int:
        """The registers that accumulators may take, and factors where they are of one kind."""
        unit = self.unit or self.sums
        return unit.registers[self.product.summed] if unit else target.registers - self.spare

    def fits(self, budget: Budget, target: Target) -> bool:
        """Whether there are as many registers."""
        accumulators, along, across, masks, registers, unit = budget
        beside = (along + across + masks) * registers
        if (accumulators if unit else accumulators * registers + beside) > self.free(target):
            return False
        taken = self.sums.aliases * accumulators + beside if self.sums else 0
        return taken <= target.registers - self.spare

    def most_rows(self, target: Target) -> int:
        """More rows than any tile has."""
        unit = self.unit or self.sums
        most = self.free(target) * (unit.rows if unit else 1)
        return (most if self.places is None else min(most, self.places)) + 1

    def cuts_tail(self, vector: Vector, vectors: int) -> bool:
        """Whether the tail of a tile of ``vectors`` is cut, not overlapped with its neighbour."""
        return not (self.overlaps and vector.prefers_overlap and vectors > 1)

    def ways(self, vector: Vector) -> tuple[Way, ...]:
        """The forms that tiles of ``vector`` may have; found once."""
        if vector not in self._ways:
            self._ways[vector] = tuple(_ways(vector, self))
        return self._ways[vector]

    def __hash__(self) -> int:
        """Return the hash of the fields, computed once: requests are keys of caches."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each) for each in self.__match_args__))

    @cached_property
    def _ways(self) -> dict[Vector, tuple[Way, ...]]:
        return {}

    def tallest(self, target: Target, vector: Vector, vectors: int) -> int:
        """Rows beyond which a tile's accumulators alone take more registers than there are."""
        one = self.ways(vector)[0].one
        taken = vectors * one.parts * min(self.splits) * vector.registers
        taken *= self.scaled.sets if self.scaled and not self.unit else 1
        bands = self.free(target) // taken
        return min(bands * one.height, self.most_rows(target) - 1)

    def with_split(self, split: int) -> TileRequest:
        """The same request with one number of accumulator sets."""
        return replace(self, splits=(split,))


def tile_shapes(
    vector: Vector, rows: int, vectors: int, split: int, masked: bool, request: TileRequest
) -> Iterator[TileShape]:
    """The tiles of that size, one for each way in which the operand across may arrive."""
    for way in request.ways(vector):
        if way.serves(rows, vectors):
            yield way.shape(rows, vectors, split, masked)


@dataclass(frozen=True, slots=True)
class Way:
    """How the operand across may arrive in tiles of any size, all of one vector.

    ``one`` is the tile of one row and one vector. ``hold`` is the side that a K step keeps in
    registers, "" for the one that takes fewer. ``sizes`` says which tiles there are: ``wide`` ones
    have more vectors than rows, ``single`` ones one vector, ``whole`` ones a multiple of the
    vector's lanes as rows. ``masked`` is said where it does not depend on the tile's place.
    """

    one: TileShape
    hold: Literal["", "along"] = ""
    sizes: Literal["any", "wide", "single", "whole"] = "any"
    masked: bool | None = None

    def serves(self, rows: int, vectors: int) -> bool:
        """Return True if a tile of ``rows`` x ``vectors`` can have this form."""
        if 0 < self.one.op.within < self.one.picked(rows):
            return False
        match self.sizes:
            case "wide":
                return vectors > rows
            case "single":
                return vectors == 1
            case "whole":
                return rows % self.one.lanes == 0
        return True

    def taken(self, rows: int, vectors: int) -> int:
        """Return the registers that one set of accumulators takes at least."""
        one = self.one
        registers = 1 if one.unit or one.sums else one.vector.registers
        return -(-rows // one.height) * vectors * one.parts * registers

    def shape(self, rows: int, vectors: int, split: int, masked: bool) -> TileShape:
        """Return the tile of that size."""
        one = self.one
        hold: str = self.hold
        if not hold:
            hold = "along" if vectors * one.parts <= -(-rows // one.height) else "across"
        return one.of_size(
            rows, vectors, split, hold, masked if self.masked is None else self.masked
        )


def _ways(vector: Vector, request: TileRequest) -> Iterator[Way]:
    product = request.product
    plain = product.form(vector, "scalar", "broadcast")
    assert plain is not None, f"{vector!r} has no multiply-add of these factors"
    one = TileShape(vector, 1, 1, 1, "broadcast", "along", False, op=plain, plain=plain)
    if request.unit is not None:
        groups = product.depth // product.group
        one = replace(one, form="matrix", unit=request.unit, groups=groups, height=plain.rows)
        one = replace(one, scaled=request.scaled)
        yield Way(one)
        return
    one = replace(
        one, instructions=plain.instructions, latency=plain.latency, converts=request.converts
    )
    if request.dot:
        zeros = vector.mask.zeros if vector.mask else 0
        op = product.form(vector, "broadcast") or plain
        one = replace(one, form="along_k", op=op, zeros=zeros, lines=request.lines)
        yield Way(one, masked=request.depth is None or request.depth % vector.lanes != 0)
        return
    blocks = replace(
        one,
        height=plain.rows,
        parts=vector.lanes // plain.cols,
        stride=request.stride,
        sums=request.sums,
        scaled=request.scaled,
    )
    if request.sums is not None:
        yield Way(replace(blocks, form="block", several=request.several))
        return
    yield from _spread(replace(blocks, form=plain.form), request)
    for form in request.lane_forms:
        yield from _repeated(blocks, request) if form == "repeat" else _laned(blocks, form, request)


def _laned(one: TileShape, form: str, request: TileRequest) -> Iterator[Way]:
    """Several elements across in the lanes of a register, from which multiply-adds take them."""
    vector = one.vector
    lane = request.product.form(vector, "lane")
    if lane and vector.lanes > 1:
        group = (lane.lanes or vector.lanes) if form == "lane_k" else 1
        shape = replace(one, form=form, group=group, op=lane, instructions=lane.instructions)
        whole = request.padded or lane.lanes > 0  # elements that repeat are loaded all
        yield Way(shape, "along", "whole" if form == "lane_s" and whole else "any")


def _repeated(one: TileShape, request: TileRequest) -> Iterator[Way]:
    """A few elements across, converted together: each is spread over another register."""
    few = one.vector.repeats.get(request.source)
    if few is not None and (request.depth is None or request.depth >= few.count):
        shuffles = 1 + few.shuffles / few.count
        yield Way(replace(one, form="repeat", group=few.count, shuffles=shuffles), "along")


def _spread(one: TileShape, request: TileRequest) -> Iterator[Way]:
    """Each element across in all lanes of a register, or in memory."""
    shape = replace(one, scalars_apart=request.scalars_apart)
    shape = replace(shape, shuffles=1) if request.shifted else shape
    if request.source:
        spread = one.vector.spreads.get(request.source)
        shape = replace(shape, shuffles=ALONE if spread is None else spread.shuffles)
        # One by one, so that conversions are apart, too.
        yield Way(shape, "along", "wide")
    yield Way(shape)
    memory = request.product.form(one.vector, "memory") if request.product.alike else None
    if not request.source and memory:
        yield Way(replace(shape, form="memory", op=memory), "along", "single")
