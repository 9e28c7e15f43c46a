"""The plan of a copy: where the elements of both matrices are, and how the matrix is cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sympy import Expr, Integer

from tilewright.elementwise.conversions import is_upper_half
from tilewright.errors import SpecError
from tilewright.ir.nest import Argument, Name
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.operands import Matrix
from tilewright.spec.pack import Copy, Pack
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import FORMATS, ITEMSIZE, in_word, is_integer
from tilewright.symbolic import ONE, ZERO, div, mod, size_expr, symbol, value

from ..formats.layout import PackedFormat
from ..formats.lookup import copied_format
from ..loops import Decided, Decision, check_unscheduled
from ..operands import Operand
from .pack_b import PackPlan, group_by_group, plan_packing

#: If lines are contiguous in both matrices, one call copies ``ROW_VECTORS`` vectors of a line. If
#: nothing is transposed, one call moves about ``DOWN`` elements of each line.
ROW_VECTORS, DOWN = 8, 8
#: If the matrix is a block of an operand, one call copies ``BLOCK_VECTORS`` vectors of lines and
#: ``BLOCK_DEPTH`` elements of each line.
BLOCK_VECTORS, BLOCK_DEPTH = 4, 4
#: A tile that is transposed starts as a square block. It is then made deeper as long as it has at
#: most this number of vectors.
TURNED = 64
#: A tile may need this number of registers more than the target has, or twice the target's if it
#: mixes vectors. These are spilled to the stack, which costs less than narrower vectors would.
SPILLED = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a matrix. It has lines, and each line has elements along its depth.

    All numbers count elements. If ``along`` is True, each line is contiguous, and the next line
    begins ``step`` elements later. Otherwise a group of ``group`` elements of a line is contiguous.
    The same group of the next line follows it, and the next group of the same line is ``step``
    elements times ``group`` away. Lines are then in blocks of ``width`` lines, each of ``block``
    elements; a width of 0 means a single block.

    Each element in memory holds ``fields`` elements of the matrix, the first in the lowest bits, if
    this is more than 1: then ``step`` counts elements in memory. They are adjacent in a line if
    ``along`` is True, otherwise in adjacent lines.

    ``shift`` was added to each element. ``end`` is the end of what is written, with its padding.
    If ``shared`` is True, the lines of a block have the same elements, which exist once. ``first``
    is the byte at which the matrix begins in an array of bytes; None if the array has its type.
    ``across`` is the distance of lines if they are neither contiguous nor adjacent.
    """

    name: Name
    type: str
    step: Expr = field(hash=False)
    along: bool = False
    group: int = 1
    width: int = 0
    block: int = 0
    shift: int = 0
    end: int = 0
    shared: bool = False
    first: int | None = None
    across: Expr | None = field(default=None, hash=False)
    fields: int = 1

    @property
    def each(self) -> int:
        """The number of elements of a line in a 32-bit word; 1 for types of 32 or 64 bits."""
        most = in_word(self.type)
        return most if self.along or self.group == 1 else min(most, self.group)

    @property
    def line_step(self) -> Expr:
        """The number of elements from one line to the next line in its block."""
        if self.shared:
            return ZERO
        if self.across is not None:
            return self.across
        return self.step if self.along else Integer(self.group)

    @property
    def depth_step(self) -> Expr:
        """The stride along the depth. A group is ``group`` times this stride from the next one."""
        return ONE if self.along else self.step

    def at(self, line: Expr, depth: Expr) -> Expr:
        """Return where an element is; ``depth`` is a multiple of ``group``."""
        if self.fields > 1 and self.along:
            depth = div(depth, self.fields)
        elif self.fields > 1:
            line = div(line, self.fields)
        inside = depth * self.depth_step
        if self.width:
            inside += div(line, self.width) * self.block
            line = mod(line, self.width)
        return inside + line * self.line_step

    def place(self, line: Expr, depth: Expr) -> Argument:
        """Return the pointer to the element at ``line`` and ``depth``, as a call passes it."""
        at = self.at(line, depth)
        if self.first is None:
            return Argument(self.name, at)
        return Argument(self.name, self.first + ITEMSIZE[self.type] * at, cast=True)


@dataclass(frozen=True, slots=True)
class Move:
    """A matrix of ``lines`` times ``depth`` elements, to be moved from ``source`` to ``made``.

    ``value`` is the element type of the values in ``source``, ``rounded`` the type to which they
    are rounded. Both differ from the type in memory if a packed format stores a wider type.
    ``lanes`` are those of the vectors that move, ``tile`` are the lines and the depth of one call.
    Each value is multiplied by ``unit``, a power of 2. If ``spills`` is True, elements of lines
    after the last one may be overwritten.
    """

    target: Target
    source: Layout
    made: Layout
    value: str
    rounded: str
    lines: Expr
    depth: Expr
    lanes: int
    tile: tuple[int, int]
    slots: tuple[str, ...]
    unit: float = 1.0
    spills: bool = False

    @property
    def same(self) -> bool:
        """True if the bits of elements stay as they are."""
        types = {self.source.type, self.made.type, self.value, self.rounded}
        shifted = self.source.shift or self.made.shift
        return len(types) == 1 and not shifted and self.unit == 1

    @property
    def flips(self) -> bool:
        """True if elements are integers that keep their size, and at most their top bit changes."""
        source, made = self.source.type, self.made.type
        kept = source == self.value == self.rounded and ITEMSIZE[source] == ITEMSIZE[made]
        both = is_integer(source) and is_integer(made) and not self.source.shift
        half = 1 << (8 * ITEMSIZE[made] - 1)
        return kept and both and self.made.shift in (0, half, -half)

    @property
    def together(self) -> int:
        """The number of elements in a 32-bit word; 1 if they have 32 or 64 bits."""
        return in_word(self.source.type)

    @property
    def bits(self) -> bool:
        """True if elements of 8 or 16 bits are kept as bits, not as numbers."""
        return self.same and self.together > 1

    @property
    def resized(self) -> str:
        """The type of lanes whose accesses convert from or to 64 bits; "" if none do."""
        source, made = self.source.type, self.made.type
        if (ITEMSIZE[source] == 8) == (ITEMSIZE[made] == 8):
            return ""
        return "s32" if is_integer(source) or is_integer(made) else "f32"

    def reaches(self, lanes: int) -> bool:
        """Return True if vectors of ``lanes`` convert the elements of 64 bits, or none do."""
        if not self.resized:
            return True
        source, made = self.source.type, self.made.type
        held = (v for v in self.target.of(self.resized) if v.lanes == lanes)
        return any(source in v.loads if ITEMSIZE[source] == 8 else made in v.stores for v in held)

    @property
    def easy(self) -> bool:
        """True if an element can be extracted from a word by few operations."""
        source = self.source.type
        if ITEMSIZE[source] == 8 and self.resized:
            return False
        whole = is_integer(source) or ITEMSIZE[source] == 4
        return whole or is_upper_half(source) or self.same

    @property
    def words(self) -> bool:
        """True if elements are moved in whole 32-bit words, without a conversion."""
        source, made = self.source, self.made
        # If a word is not full in one of the matrices, elements are moved one by one.
        parts = source.each < self.together or made.each < self.together
        if not (self.same or self.flips) or self.copies or parts:
            return False
        if source.along or made.along:
            return self.turns or self.together == 1 or self.groups > 1
        # If the depth ends within a group, the last word would contain padding.
        whole = mod(self.depth, source.group) == 0
        return whole and source.group > 1 and made.group > 1

    @property
    def turns(self) -> bool:
        """True if the move transposes: lines are contiguous in ``made`` but not in ``source``."""
        return self.made.along and not self.source.along and self.source.group == 1

    @property
    def filling(self) -> tuple[Vector, int]:
        """The vector that stores a number everywhere, and the elements in one of its lanes."""
        each = in_word(self.made.type)
        return self.target.of("s32" if each > 1 else self.made.type)[0], each

    @property
    def turned(self) -> bool:
        """True if contiguous lines become groups, and vectors can be transposed in registers."""
        if not self.source.along or self.made.along or self.lanes == 1:
            return False
        return self.target.holding(self._turned_as, self.lanes).transposes

    @property
    def _turned_as(self) -> str:
        """The type of lanes that are transposed: words, if elements are extracted from them."""
        if self.together > 1 and self.easy:
            return "s32"
        return self.real

    @property
    def real(self) -> str:
        """The floating-point type of elements in registers."""
        return "f64" if self.source.type == "f64" and not self.resized else "f32"

    @property
    def copies(self) -> bool:
        """True if no matrix has K groups or contiguous lines, so that elements of lines are copied
        side by side.
        """
        apart = self.source.along or self.made.along or self.source.shared
        apart = apart or self.source.fields > 1
        return not apart and self.groups == 1

    @property
    def groups(self) -> int:
        """The larger number of elements in a group."""
        return max(self.source.group, self.made.group)


@dataclass(frozen=True, slots=True, repr=False)
class CopyPlan(Decided):
    """A copy with every choice made.

    ``packing`` is the plan of the packing that a format with sums of columns needs.
    """

    spec: Copy
    target: Target
    move: Move
    sizes: Mapping[str, Expr] = field(hash=False)
    packing: PackPlan | None
    decisions: tuple[Decision, ...]
    slots: tuple[str, ...]
    batch: None = None

    @property
    def element(self) -> str:
        """The type of the elements that are written."""
        return self.move.made.type


def plan_copy(spec: Copy, schedule: Schedule, target: Target) -> CopyPlan:
    """Return the plan of a copy; raise ScheduleError if the schedule is not empty."""
    check_unscheduled(schedule, "copy")
    sizes = {slot: size_expr(slot, getattr(spec, slot)) for slot in ("rows", "cols")}
    forms = {name: copied_format(spec, name, target) for name in "ad"}
    lines, depth = ("cols", "rows") if _by_columns(spec) else ("rows", "cols")
    source, made = (_layout(spec, name, forms[name], sizes, depth == "rows") for name in "ad")
    types = spec.type_of("a"), spec.type_of("d")
    slots = spec.slots
    move = Move(target, source, made, *types, sizes[lines], sizes[depth], 1, (1, 1), slots)
    form = forms["d"]
    packing = None if form is None or not form.sums else _packing(spec, form, move, target)
    if packing is not None:  # moves one part of a block at a time
        made = replace(made, name=Name("out"), width=0, shift=packing.shift)
        move = replace(move, made=made)
    _check_blocks(source, made, sizes[lines])
    move, reason = tiled(move)
    decisions = [
        Decision(name.upper(), form.text, "packed") for name, form in forms.items() if form
    ]
    if packing is None:
        decisions.append(Decision("tile", "x".join(map(str, move.tile)), reason))
    return CopyPlan(spec, target, move, sizes, packing, tuple(decisions), slots)


def _check_blocks(source: Layout, made: Layout, lines: Expr) -> None:
    """Raise SpecError if a block of lines would begin within a byte of the source."""
    if source.fields > 1 and not source.along and made.width % source.fields and lines > made.width:
        raise SpecError(
            "rows of nibbles are not packed in blocks of an odd number of columns",
            got=f"blocks of {made.width} columns",
            expected="an even nb",
        )


def _by_columns(spec: Copy) -> bool:
    """Return True if columns are lines: neighbours in a row of the input are in one vector."""
    if isinstance(spec.a, Matrix) and isinstance(spec.d, Matrix):
        return spec.a.order == "C"
    return True


def _layout(
    spec: Copy,
    name: str,
    form: PackedFormat[int] | None,
    sizes: Mapping[str, Expr],
    by_columns: bool,
) -> Layout:
    if form is not None:
        return packed_layout(form, name)
    given = getattr(spec, name)
    leading, slot = getattr(spec, f"ld{name}"), f"ld{name}"
    contiguous = sizes["cols" if given.order == "C" else "rows"]
    step = contiguous if leading is None else size_expr(slot, leading)
    along = (given.order == "C") != by_columns
    if given.nibbles:
        return Layout(Name(name), "u8", div(step + 1, 2), along, fields=2)
    return Layout(Name(name), given.type, step, along)


def packed_layout(form: PackedFormat[int], name: str) -> Layout:
    """Return the layout of a matrix in ``form``: lines are its columns, K is its depth."""
    return Layout(
        Name(name),
        form.stored,
        Integer(form.nb),
        group=form.group,
        width=form.nb,
        block=form.block_elements,
        shift=form.shift,
        end=form.sums_at // form.itemsize,
    )


def staged_move(
    target: Target,
    source: Operand,
    packed: Operand,
    line: str,
    size: tuple[Expr, Expr],
    *,
    rounded: str,
    group: int,
    shift: int,
    lanes: int,
    slots: tuple[str, ...],
) -> Move:
    """Return the move of an operand for the tiles: ``size`` lines and elements of K.

    Lines become K groups of ``group`` elements, or stay contiguous if ``packed`` is. Elements are
    rounded to type ``rounded``, unless this is empty, and ``shift`` is added to them.
    """
    along = value(packed.strides.get("k", ONE)) == 1 and value(packed.strides[line]) != 1
    made = operand_layout(packed, line, along=along)
    made = replace(made, group=1 if along else group, shift=shift)
    given = operand_layout(source, line)
    kind = rounded or source.type
    move = Move(target, given, made, source.type, kind, *size, lanes, (1, 1), slots)
    return grouped(move) if move.turned else move


def filling(target: Target, name: Name, type_: str, slots: tuple[str, ...] = ()) -> Move:
    """Return a move that only fills buffer ``name`` with a number."""
    side = Layout(name, type_, ONE)
    return Move(target, side, side, type_, type_, ZERO, ZERO, 1, (1, 1), slots)


def operand_layout(operand: Operand, line: str, *, along: bool | None = None) -> Layout:
    """Return the layout of an operand whose lines are along dimension ``line``.

    ``along`` is that of the layout, if the operand has single elements along other dimensions.
    """
    line_step, step = operand.strides[line], operand.strides.get("k", ZERO)
    if along is None:
        along = value(step) == 1 and value(line_step) != 1
    apart = not along and value(line_step) != 1
    return Layout(
        operand.buffer, operand.type, line_step if along else step, along,
        across=line_step if apart else None,
    )  # fmt: skip


def _packing(spec: Copy, form: PackedFormat[int], move: Move, target: Target) -> PackPlan:
    """Return the plan that packs and sums columns; SpecError if the source cannot be packed so."""
    if not isinstance(spec.a, Matrix):
        raise SpecError(
            "a packed matrix is not packed again with the sums of its columns",
            got=f"{spec.a!r} to {spec.d!r}",
            hint="first a copy to tw.Matrix, or tw.Packed(type, bits=32), which has no sums",
        )
    plan = next(
        filter(None, (_packed_for(a, spec, form, target) for a in ("s8", "u8", "s16", "u16"))), None
    )
    if plan is None:
        raise SpecError(
            "no packing for this target makes the format",
            got=form.text,
            hint="kernel.pack_b of the kernel that takes the format",
        )
    strides = {"n": move.source.line_step, "k": move.source.depth_step}
    given, written = Operand("b", plan.operands["b"].type, strides), plan.operands["out"]
    if form.column and strides["k"] != 1:
        given, written = group_by_group(given, written)
    return replace(plan, operands={"b": given, "out": written}, slots=move.slots)


def _packed_for(a: str, spec: Copy, form: PackedFormat[int], target: Target) -> PackPlan | None:
    """Return the plan that packs for an A of type ``a``, None if its format is not ``form``."""
    assert isinstance(spec.a, Matrix)
    nb = None if form.column else form.nb
    source = form.type if spec.a.nibbles else spec.a.type
    kept: dict[str, Any] = {"a": a, "nb": nb, "source": source, "order": spec.a.order}
    plain = Pack(form.k, form.n, form.type, **kept)  # type: ignore[arg-type]
    plan = plan_packing(plain, Schedule(), target)
    return plan if plan.format == form else None


# --- tiles ---------------------------------------------------------------------------------------


def tiled(move: Move) -> tuple[Move, str]:
    """Return ``move`` with its vectors and its tile, and the reason for these."""
    target, itemsize = move.target, ITEMSIZE[move.source.type]
    if move.source.shared:
        return replace(move, lanes=1, tile=(DOWN, 1)), "one element for several lines"
    if move.copies:
        held = "s32" if not move.same or itemsize < 4 else move.source.type
        vector = next(v for v in target.of(held) if move.reaches(v.lanes))
        step = vector.lanes * (move.together if move.same else 1)
        return replace(move, lanes=vector.lanes, tile=(ROW_VECTORS * step, 1)), "a row at a time"
    turns = move.source.along or move.made.along
    lanes = _lanes(move, turns=turns)
    if not turns:
        depth = max(move.groups, DOWN // move.groups * move.groups)
        return replace(move, lanes=lanes, tile=(4 * lanes, depth)), "vectors of lines"
    each = max(in_word(side.type) for side in (move.source, move.made))
    lines = lanes * (move.together if move.words and move.turns else 1)
    lines = max(lines, move.source.fields)
    depth = max(lanes * each * move.source.fields, move.groups)
    if move.words and move.turns:  # whole cache lines are read, and a few lines are written
        line = target.core.line // itemsize
        lines, depth = max(lines, line), max(depth, line)
        while 2 * depth * lines <= TURNED * lanes * move.together:
            depth *= 2
    return replace(move, lanes=lanes, tile=(lines, depth)), "square blocks, transposed in registers"


def grouped(move: Move) -> Move:
    """Return ``move``, of contiguous lines to groups, with its tile.

    A tile has whole cache lines of both matrices, or a vector if that is longer. For single bytes
    only half a cache line is filled, because more words would not fit in registers.
    """
    line, lanes = move.target.core.line, move.lanes
    vector = lanes * (move.together if move.easy else 1)
    if _many_instructions(move):  # one block for each tile is then enough code
        return replace(move, tile=(lanes, vector))
    written = max(move.made.group * ITEMSIZE[move.made.type], 2)
    tile = max(lanes, line // written), max(vector, line // ITEMSIZE[move.source.type])
    return replace(move, tile=tile)


def _many_instructions(move: Move) -> bool:
    """Return True if converting one element needs many instructions."""
    kind = move.rounded
    if kind not in FORMATS or is_upper_half(kind) or move.bits:
        return False
    loads = move.target.holding(move.real, move.lanes).loads
    return kind != move.source.type or kind not in loads


def block_move(
    target: Target,
    source: Layout,
    made: Layout,
    size: tuple[Expr, Expr],
    slots: tuple[str, ...],
    most: int | None,
) -> Move:
    """Return the copy of a block of lines and depth, which are contiguous along lines in both.

    The block has at most ``most`` lines, if that is known.
    """
    type_ = source.type
    move, _ = tiled(Move(target, source, made, type_, type_, *size, 1, (1, 1), slots))
    lines = BLOCK_VECTORS * move.tile[0] // ROW_VECTORS
    return replace(move, tile=(min(lines, most or lines), BLOCK_DEPTH))


def turning(
    target: Target, source: Layout, made: Layout, slots: tuple[str, ...], square: int | None = None
) -> Move:
    """Return a move whose lines become lines along the depth, for tiles within other kernels.

    Vectors are as wide as the target's, or as a ``square`` of elements.
    """
    unknown = symbol("lines")
    type_ = source.type
    move = Move(target, source, made, type_, type_, unknown, unknown, 1, (1, 1), slots)
    if square is not None:
        return replace(move, lanes=square // move.together, tile=(square, square))
    return tiled(move)[0]


def exchanged_square(target: Target, type_: str) -> int:
    """Return the extent of the largest blocks that are exchanged with their mirrors."""
    each = in_word(type_)
    lanes = (v.lanes for v in target.of("s32") if v.transposes and v.registers == 1)
    return each * next((n for n in lanes if 2 * n * each <= target.registers + SPILLED), 1)


def _lanes(move: Move, *, turns: bool) -> int:
    """Return the lanes of the widest vectors that the move can use."""
    target = move.target
    element = move.source.type if ITEMSIZE[move.source.type] == 8 and not move.resized else "s32"
    other = element if element != "s32" else "f32"
    narrow = move.together if move.words and move.turns else 1

    def fits(vector: Vector) -> bool:
        there = any(v.lanes == vector.lanes for v in target.of(other))
        there = there and move.reaches(vector.lanes)
        registers = vector.lanes * vector.registers * narrow
        most = target.registers + (target.registers if vector.mixes else SPILLED)
        return there and (not turns or (vector.transposes and registers <= most))

    return next((v.lanes for v in target.of(element) if fits(v)), 1)


def clamps(source: str, made: str) -> bool:
    """Return True if some integers of type ``source`` are not in the range of type ``made``."""
    wide, narrow = (int(type_[1:]) - (type_[0] == "s") for type_ in (source, made))
    return (source[0] == "s" and made[0] == "u") or narrow < wide
