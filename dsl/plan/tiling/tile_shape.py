"""Describe register tiles: requests for a tile, the forms it can have, the registers it takes."""

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
from .scaled import Scaled

#: Number of registers in which a single element is converted, if no load converts it.
STEPS = 3
#: Number of operations that convert and broadcast a single element, if no load does so.
ALONE = 4


class Budget(NamedTuple):
    """The number of vectors in a K loop by use; each vector takes ``registers`` registers.

    ``along`` and ``across`` are vectors of the operands along and across the vectors of C. If
    there is a ``unit``, the accumulators are its registers.
    """

    accumulators: int
    along: int
    across: int
    masks: int
    registers: int = 1
    unit: MatrixUnit | None = None

    @property
    def total(self) -> int:
        """The number of registers; those of the unit alone if it holds the accumulators."""
        return self.accumulators if self.unit else self.accumulators * self.registers + self.beside

    @property
    def beside(self) -> int:
        """The number of vector registers that hold no sums."""
        return (self.along + self.across + self.masks) * self.registers


@dataclass(frozen=True)
class TileShape:
    """A register tile: a block of C that stays in registers while K is summed.

    Vectors of C run along the vectorised dimension. "Along" is the operand that has this dimension
    too; "across" is the other operand.

    Size:

    - ``vectors``: number of vectors in a row of the tile. ``rows``: number of rows.
    - ``k_split``: number of accumulator sets. ``masked``: True if the last vector is masked.

    How factors get into registers:

    - ``form``: how elements of the operand across reach the multiply-add. This is a form of the
      multiply-add, or ``lane_k`` (lanes of a vector along K), ``lane_s`` (lanes of a vector across
      rows), ``along_k`` (vectors of both operands along K), or ``repeat`` (a register repeats a few
      elements along K). Vectors along K serve ``group`` steps.
    - ``op``: the multiply-add of this form. ``plain``: the multiply-add for single elements, which
      are broadcast, for example if K ends within a group of steps.
    - ``hold``: the operand that stays in registers during a K step, "along" or "across".
    - ``several``: numbers of vectors that one load may read, largest first; () if only one.
    - ``converts``: single elements are converted by several operations. ``shuffles``: further
      instructions that convert an element of the operand across.
    - ``stride``: bytes from the vectors of one step to those of the next; 0 if all are aligned.
    - ``lines``: if vectors run along K, bytes from row to row of the operands along and across.
    - ``zeros``: vectors that loads of the last steps of K take, whose other lanes are 0.
    - ``scalars_apart``: True if C scalars take no vector registers, as the target says.

    The multiply-add:

    - ``instructions``: number of its instructions. ``height``: number of rows that one computes.
      ``parts``: number of them along a vector.
    - ``latency``: its latency in cycles, 0 for the core's.
    - ``unit``: the matrix unit whose registers hold accumulators and factors as matrices; a step
      then takes ``groups`` groups of K. ``sums``: the unit whose registers hold accumulators only.
    - ``scaled``: a step is a block of K, and its sums are in separate registers until scaled.

    The last fields follow from the others:

    - ``bands`` and ``columns``: rows and columns of accumulators. ``outputs``: vectors of C.
    - In a K step, ``multiply_adds``, their instructions (``arithmetic``), ``loads`` (of a matrix
      unit, rows that are loaded), and ``issued``, the instructions of both. A multiply-add that
      reads memory counts as one instruction. ``narrow_loads`` read a single element.
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
    narrow_loads: int = field(init=False, repr=False, compare=False)
    issued: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bands, columns = -(-self.rows // self.height), self.vectors * self.parts
        arithmetic, loads = bands * columns * self.instructions, float(columns + bands)
        narrow = self.form in ("memory", "broadcast") or (self.form == "scalar" and self.apart)
        if self.unit is not None:
            loads = self.rows + self.groups * columns
        elif self.form in ("lane_k", "repeat"):
            loads = self.vectors + self.rows / self.group
        elif self.form == "lane_s":
            loads = self.vectors - (-self.rows // self.lanes)
        vars(self).update(
            bands=bands,
            columns=columns,
            outputs=self.rows * self.vectors,
            multiply_adds=bands * columns,
            arithmetic=arithmetic,
            loads=loads,
            narrow_loads=bands if narrow else 0,
            issued=arithmetic + (columns if self.form == "memory" else loads),
        )

    @property
    def lanes(self) -> int:
        """The number of elements across, or of groups of them, in a register of the lane forms."""
        return self.op.lanes or self.vector.lanes

    @property
    def budget(self) -> Budget:
        """The registers that are used at the same time in the K loop."""
        accumulators = self.bands * self.columns * self.k_split
        if self.scaled is not None and self.unit is None:
            apart = self.scaled.apart
            return (self._scaled_budget if apart else self._unpacked_budget)(accumulators)
        if self.sums is not None:
            both = (self.columns, 1) if self.hold == "along" else (1, self.bands)
            both = (self.columns, self.bands) if self.several else both
            return Budget(accumulators, *both, 0, unit=self.sums)
        if self.unit is not None:
            # One operand stays in registers. The other one has two registers: one is loaded while
            # the other one is multiplied.
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
            # Scalars need no vector register, so a second vector is loaded while one is multiplied.
            # With several vectors, compilers use one more, to load early or to move sums.
            passing = min(2, self.columns) if self.hold == "across" else self.columns
            along = passing + (self.columns > 1)
            return Budget(accumulators, along, converting, masks, vector.registers)
        if self.hold == "across":
            return Budget(accumulators, 1, self.bands + converting, masks, vector.registers)
        across = 0 if self.form == "memory" else 1
        return Budget(accumulators, self.columns, across + converting, masks, vector.registers)

    def _scaled_budget(self, accumulators: int) -> Budget:
        """Return the budget for a scaled B: sums of all K and of a block, stored bytes, factors."""
        assert self.scaled is not None
        planes = self.scaled.planes if self.scaled.fields > 1 else 0
        along = self.vectors * (1 + planes) + (planes > 1)
        across = self.rows if self.form == "lane_k" else 1
        # The sums of runs are added by multiplication with a vector of ones.
        across += bool(self.scaled.runs)
        registers = self.vector.registers
        # At the end of a block, scales take the registers of the factors. Further registers hold
        # the products of A's and B's scales.
        zeros = (self.vectors + 2) * self.scaled.zeros
        ends = self.vectors + self.scaled.scaling + zeros
        most = max(along + across, ends)
        sums = self.scaled.sets * accumulators
        return Budget(sums, along, max(across, most - along), 0, registers)

    def _unpacked_budget(self, accumulators: int) -> Budget:
        """Return the budget for an unpacked B: stored bytes, scales, factors, and conversions."""
        assert self.scaled is not None
        fields, zeros = self.scaled.fields > 1, self.scaled.zeros
        along = self.vectors * (2 + fields * self.scaled.planes + zeros)
        across = self.rows + 1 if self.form in ("lane_k", "repeat") else 1
        return Budget(accumulators, along, across + self.scaled.unpacking, 0, self.vector.registers)

    @property
    def apart(self) -> bool:
        """True if factors across the vectors are in scalar registers, not in vector registers."""
        return self.scalars_apart and self.form == "scalar" and self.vector.lanes > 1

    def picked(self, rows: int) -> int:
        """Return the number of registers of which multiply-adds use one lane at a time."""
        return {"lane_k": rows, "lane_s": -(-rows // self.lanes)}.get(self.form, 0)

    def touched(self, core: Core) -> float:
        """Return the loads of a K step, with the extra cost of vectors that cross a cache line."""
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


# --- requests and forms of tiles -----------------------------------------------------------------


@dataclass(frozen=True)
class TileRequest:
    """The facts about a product on which the cost of a register tile depends.

    Instructions and registers:

    - ``product``: the multiply-add. ``unit``: the matrix unit if it multiplies matrices. ``sums``:
      the matrix unit if it multiplies vectors.
    - ``vectors``: the vector types that tiles may use. ``lane_forms``: the possible forms that use
      single lanes.
    - ``splits``: the allowed numbers of accumulator sets. ``spare``: the number of registers that
      are left to the compiler.
    - ``scalars_apart``, ``scaled``, ``several``: as in ``TileShape``.

    Loops and layout:

    - ``steps``: number of K steps in all. ``depth``: K steps of one matrix, None if known only at
      the call.
    - ``reads_c``: True if tiles read C. ``transposed``: C is contiguous across the vectors.
    - ``dot``: vectors run along K.
    - ``overlaps``: the last vector of a tile may overlap the one before. ``padded``: the last
      vector is computed and loaded as a whole, even if part of it lies outside.
    - ``stride``: bytes between the vectors of one step and the next. ``lines``: as in
      ``TileShape``. ``fixed_offsets``: True if the offsets of rows across are known.

    Conversions:

    - ``source``: type of elements of the operand across that are converted when they are
      broadcast; "" if they are not converted.
    - ``converts``: single elements of either operand are converted by several operations.
    - ``shifted``: groups of the operand across are shifted when they are broadcast.

    Caches:

    - ``row_limit``: the most rows of a tile if each row is read from another place and L1 holds
      only this many of them at once; None for no limit.
    - ``l1_rows``: the numbers of rows of the operands along and across the vectors that L1 holds at
      once, if they are read in place; infinite otherwise.
    - ``from_l2``: True if a matrix unit reads from L2 because L1 is too small.
    - ``c_row``: the bytes of a row of C if C exceeds L2, else 0.
    - ``read_once``: True if C has few rows, so that the other matrix is read once, from memory.
    - ``unprefetched``: True if vectors run along rows that are too long for a core to prefetch the
      next one.
    - ``exceeds_l1``: True if tiles read more along the vectors than L1 holds.

    The fields of "Caches" and ``steps``, ``reads_c``, ``transposed`` and ``overlaps`` change the
    cost of a tile, but not which tiles exist (``without_costs``).
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
    row_limit: int | None = None
    from_l2: bool = False
    l1_rows: tuple[float, float] = (inf, inf)
    c_row: int = 0
    shifted: bool = False
    read_once: bool = False
    unprefetched: bool = False
    exceeds_l1: bool = False
    fixed_offsets: bool = False

    @property
    def without_costs(self) -> TileRequest:
        """The request with defaults for all that does not decide which tiles exist."""
        return replace(
            self, steps=0, reads_c=False, transposed=False, overlaps=False, row_limit=None,
            from_l2=False, l1_rows=(inf, inf), c_row=0, read_once=False, unprefetched=False,
            exceeds_l1=False, fixed_offsets=False,
        )  # fmt: skip

    def free(self, target: Target) -> int:
        """Return the number of registers that accumulators can have.

        Unless a matrix unit holds the accumulators, factors must fit in the same registers.
        """
        unit = self.unit or self.sums
        return unit.registers[self.product.summed] if unit else target.registers - self.spare

    def most_rows(self, target: Target) -> int:
        """Return a number of rows that no tile reaches, as the end of a range."""
        unit = self.unit or self.sums
        most = self.free(target) * (unit.rows if unit else 1)
        return (most if self.row_limit is None else min(most, self.row_limit)) + 1

    def cuts_tail(self, vector: Vector, vectors: int) -> bool:
        """Return True if a tile's last vector is shortened and does not overlap the one before."""
        return not (self.overlaps and vector.prefers_overlap and vectors > 1)

    def ways(self, vector: Vector) -> tuple[Way, ...]:
        """Return the forms that tiles of ``vector`` can have; they are found only once."""
        if vector not in self._ways:
            self._ways[vector] = tuple(_ways(vector, self))
        return self._ways[vector]

    def __hash__(self) -> int:
        """Return the hash of the fields. It is computed once, because requests are cache keys."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, each) for each in self.__match_args__))

    @cached_property
    def _ways(self) -> dict[Vector, tuple[Way, ...]]:
        return {}

    def tallest(self, target: Target, vector: Vector, vectors: int) -> int:
        """Return the maximum number of rows for which the accumulators fit the registers."""
        one = self.ways(vector)[0].one
        taken = vectors * one.parts * min(self.splits) * vector.registers
        taken *= self.scaled.sets if self.scaled and not self.unit else 1
        bands = self.free(target) // taken
        return min(bands * one.height, self.most_rows(target) - 1)


def tile_shapes(
    vector: Vector, rows: int, vectors: int, split: int, masked: bool, request: TileRequest
) -> Iterator[TileShape]:
    """Yield the tiles of this size, one for each form in which the operand across can be read."""
    for way in request.ways(vector):
        if way.serves(rows, vectors):
            yield way.shape(rows, vectors, split, masked)


@dataclass(frozen=True, slots=True)
class Way:
    """A form in which tiles of one vector type, of any size, read the operand across.

    - ``one``: the tile of one row and one vector.
    - ``hold``: the operand that a K step keeps in registers; "" for the one that takes fewer.
    - ``sizes``: tiles that can have the form: ``wide`` with more vectors than rows, ``single`` with
      one vector, ``whole`` with a multiple of the vector's lanes as rows.
    - ``masked``: whether the last vector is masked, if this does not depend on the tile's place in
      C; else None.
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
        """Return the minimum number of registers that one set of accumulators takes."""
        one = self.one
        registers = 1 if one.unit or one.sums else one.vector.registers
        return -(-rows // one.height) * vectors * one.parts * registers

    def shape(self, rows: int, vectors: int, split: int, masked: bool) -> TileShape:
        """Return the tile of this size and form, with ``split`` sets of accumulators.

        A search makes thousands of them, for which ``replace`` is too slow.
        """
        one, made = self.one, object.__new__(TileShape)
        hold: str = self.hold
        if not hold:
            hold = "along" if vectors * one.parts <= -(-rows // one.height) else "across"
        masked = masked if self.masked is None else self.masked
        vars(made).update(
            vars(one), rows=rows, vectors=vectors, k_split=split, hold=hold, masked=masked
        )
        made.__post_init__()
        return made


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
    """Yield the form in which multiply-adds use single lanes of a vector of elements across."""
    vector = one.vector
    lane = request.product.form(vector, "lane")
    if lane and vector.lanes > 1:
        group = (lane.lanes or vector.lanes) if form == "lane_k" else 1
        shape = replace(one, form=form, group=group, op=lane, instructions=lane.instructions)
        # Elements across are loaded as whole vectors if padding follows them, or if a vector
        # repeats the same few elements.
        whole = request.padded or lane.lanes > 0
        yield Way(shape, "along", "whole" if form == "lane_s" and whole else "any")


def _repeated(one: TileShape, request: TileRequest) -> Iterator[Way]:
    """Yield the form in which a few elements of the operand across are converted together.

    They share a register. Each of them is then broadcast to another register.
    """
    few = one.vector.repeats.get(request.source)
    if few is not None and (request.depth is None or request.depth >= few.count):
        shuffles = 1 + few.shuffles / few.count
        yield Way(replace(one, form="repeat", group=few.count, shuffles=shuffles), "along")


def _spread(one: TileShape, request: TileRequest) -> Iterator[Way]:
    """Yield the forms that broadcast an element across to a register, or read it from memory."""
    shape = replace(one, scalars_apart=request.scalars_apart)
    shape = replace(shape, shuffles=1) if request.shifted else shape
    if request.source:
        spread = one.vector.spreads.get(request.source)
        shape = replace(shape, shuffles=ALONE if spread is None else spread.shuffles)
        # Also try to hold the operand along the vectors in registers. Elements are then broadcast
        # one by one, so that their conversions are distributed over the whole step.
        yield Way(shape, "along", "wide")
    yield Way(shape)
    memory = request.product.form(one.vector, "memory") if request.product.alike else None
    if not request.source and memory:
        yield Way(replace(shape, form="memory", op=memory), "along", "single")
