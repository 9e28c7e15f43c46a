"""Check the operations of tile programs: ``RULES`` has a function for each class of operations.

A rule raises PlanError for an operation without a meaning, for one that the target has no
instruction for, and for an access outside memory. Each new operation needs a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from sympy import Expr

from tilewright.elementwise.operations import OPERATIONS
from tilewright.isa.vector import TABLE, Vector
from tilewright.spec.types import ELEMENTS, ITEMSIZE, is_integer
from tilewright.symbolic import value

from .access import reachable, streams
from .extents import Pointer, between
from .ops import (
    Advance,
    Apply,
    Broadcast,
    Copy,
    FillLanes,
    Hide,
    Interleave,
    Join,
    Keep,
    Load,
    LoadMatrix,
    LoadSeveral,
    MakeMask,
    MultiplyAdd,
    MultiplyBlock,
    MultiplyMatrices,
    Note,
    Op,
    Pick,
    Point,
    PointBatch,
    Prefetch,
    ReadRows,
    Splat,
    StackBuffer,
    Store,
    StoreMatrix,
    SumLanes,
    Table,
    TakeLanes,
    Unpack,
    Unzip,
    WriteRow,
    Zero,
    ZeroMatrix,
)
from .tile_walk import Rule, Walk, has, text
from .values import Address, MaskRegister, MatrixRegister, Register

#: Sizes in bytes of a group of elements that one C integer can hold.
GROUP_BYTES = (1, 2, 4, 8)
_SHIFTS = ("shl", "shr", "ushr")

#: For each class of operations, the function that checks such an operation. ``Walk`` checks loops.
RULES: dict[type[Any], Rule] = {}


def rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    """Make the decorated function the rule of operations of ``classes``."""

    def enter(check: Rule) -> Rule:
        RULES.update(dict.fromkeys(classes, check))
        return check

    return enter


# --- one rule for each operation ---------------------------------------------------------------


@rule(Point)
def _point(w: Walk, op: Point) -> None:
    base = w.pointers.get(op.base)
    if base is None or base.table:
        w.refuse(op, f"{op.base} is no operand", "a parameter or a stack buffer")
    if base.element != op.element:
        w.refuse(op, f"takes {base.element} of {op.base} for {op.element}", "its type")
    offset = w.size(op, op.offset)
    written = op.written and base.written
    _new_pointer(w, op, op.pointer, replace(base.moved(offset, offset), written=written))


@rule(PointBatch)
def _point_batch(w: Walk, op: PointBatch) -> None:
    base = w.pointers.get(op.operand)
    if base is None or w.roles.get(op.operand) not in ("in", "table"):
        w.refuse(op, f"{op.operand} is no operand", "a parameter that is an input or a table")
    if base.element != op.element:
        w.refuse(op, f"takes {base.element} of {op.operand} for {op.element}", "its type")
    if op.index not in w.trips:
        w.refuse(op, f"is of no loop over {op.index}", "a loop over the batch around it")
    needed = {"strided": "", "offsets": f"{op.operand[0]}_offsets", "addresses": f"{op.operand}_at"}
    role = {"strided": "", "offsets": "offsets", "addresses": "at"}.get(op.batch)
    if role is None or base.table != (op.batch == "addresses"):
        w.refuse(op, f"finds {op.operand} by {op.batch!r}", "a table by addresses, others not")
    if role and w.roles.get(needed[op.batch]) != role:
        w.refuse(op, f"{needed[op.batch]} is no parameter", "where its matrices lie")
    offset, stride, trips = w.size(op, op.offset), w.size(op, op.stride), w.trips[op.index]
    if op.batch == "strided":
        last = None if trips is None else max(trips - 1, 0)
        at = between(base, stride, last).moved(offset, offset)
    else:
        at = replace(base, each=True, table=False).moved(offset, offset)
    _new_pointer(w, op, op.pointer, replace(at, written=False))


def _new_pointer(
    w: Walk, op: Point | PointBatch | StackBuffer, name: str, pointer: Pointer
) -> None:
    if name in w.pointers or name in w.roles:
        w.refuse(op, f"defines {name} twice", "one definition of each name")
    w.pointers[name] = pointer


@rule(Advance)
def _advance(w: Walk, op: Advance) -> None:
    step = w.size(op, op.step)
    w.pointers[op.pointer] = w.pointer(op, op.pointer).moved(step, step)


@rule(MakeMask)
def _make_mask(w: Walk, op: MakeMask) -> None:
    vector = w.held(op, op.mask.vector)
    if vector.mask is None:
        w.refuse(op, f"masks {vector!r}", "a vector with masks")
    if op.mask.name in w.masks:
        w.refuse(op, f"defines {op.mask.name} twice", "one definition of each name")
    w.touched(op, op.mask, vector.lanes)
    w.masks.add(op.mask.name)


@rule(Zero)
def _zero(w: Walk, op: Zero) -> None:
    w.spelled(op, op.dst.vector.zero, op.dst.vector)


@rule(Load)
def _load(w: Walk, op: Load) -> None:
    vector = op.dst.vector
    others = {*vector.loads, vector.flips} - {""}
    count = _moved_by(w, op, vector, others, "load")
    w.access(op, op.address, op.element, count)


@rule(LoadSeveral)
def _load_several(w: Walk, op: LoadSeveral) -> None:
    w.same(op, *op.dst)
    vector, count = op.dst[0].vector, len(op.dst)
    if op.several is None:
        known = ", ".join(str(several.count) for several in vector.several) or "one alone"
        w.refuse(op, f"of {count} vectors {vector!r}", f"as many as it loads at once: {known}")
    w.access(op, op.address, vector.element, count * vector.lanes)


@rule(Store)
def _store(w: Walk, op: Store) -> None:
    count = _moved_by(w, op, op.src.vector, op.src.vector.stores.keys(), "store")
    if op.past is not None and not streams(op):
        w.refuse(op, f"of {op.src.vector!r} past the caches", "all lanes of a vector that streams")
    w.access(op, op.address, op.element, count, write=True)


def _moved_by(w: Walk, op: Load | Store, vector: Vector, others: Set[str], verb: str) -> int | None:
    """Return the number of elements that a load or store moves; PlanError if it is illegal."""
    if op.group:
        _grouped(w, op, vector, others, verb)
    elif op.memory:
        if op.memory not in others:
            own = ", ".join([vector.element, *sorted(others)])
            w.refuse(op, f"of {vector!r} as {op.memory}", f"a type that it {verb}s: {own}")
    else:
        w.spelled(op, vector.load if verb == "load" else vector.store, vector)
    if isinstance(op.active, MaskRegister):
        lanes = vector.lanes * max(op.group, 1)
        _masked(w, op, op.active.vector, vector, lanes, op.memory)
    count = w.touched(op, op.active, vector.lanes * max(op.group, 1))
    if not reachable(op):
        alone = f"lanes that it {verb}s alone; others go by way of the stack"
        w.refuse(op, f"of {text(op.active)} lanes of {vector!r}", alone)
    return count


def _masked(w: Walk, op: Op, mask: Vector, vector: Vector, lanes: int, converts: str) -> None:
    """Check that ``mask`` has ``lanes`` lanes, and the C type of the masks of ``vector``."""
    if mask.lanes != lanes or (not converts and _ctype(mask) != _ctype(vector)):
        w.refuse(op, f"of {vector!r} by a mask of {mask!r}", "a mask of the vector's")


def _ctype(vector: Vector) -> str:
    return vector.mask.ctype if vector.mask is not None else ""


def _grouped(w: Walk, op: Load | Store, vector: Vector, others: Set[str], verb: str) -> None:
    """Raise PlanError for groups of elements that lanes of s32 cannot hold.

    A group has 4 bytes, or 1 or 2 if the vector loads or stores integers of that size.
    """
    size = op.group * ITEMSIZE.get(op.memory, 0)
    least = 2 if verb == "load" and vector.lanes > 1 else 1
    narrow = size in (1, 2) and size >= least and (vector.lanes == 1 or f"u{8 * size}" in others)
    if vector.element != "s32" or not (size == 4 or narrow):
        groups = f"groups of {op.group} {op.memory}"
        w.refuse(op, f"of {vector!r} in {groups}", f"groups that lanes of s32 {verb}")


@rule(Broadcast)
def _broadcast(w: Walk, op: Broadcast) -> None:
    vector, memory = op.dst.vector, op.element
    if vector.repeating(memory, op.group) is not None:
        legal = op.existing is None
    elif op.memory in vector.spreads:
        legal = op.group == 1
    elif op.group == 1:
        legal = has(vector, vector.broadcast) and memory == vector.element
    else:
        size = op.group * ITEMSIZE.get(op.memory, 0)
        whole = op.group > 1 and vector.lanes % op.group == 0 and size in GROUP_BYTES
        legal = has(vector, vector.group) and whole and memory in (vector.element, vector.flips)
    if not legal:
        w.refuse(
            op,
            f"of {op.group} {memory} over {vector!r}",
            "one element, or what the vector spreads, repeats, or groups",
        )
    w.access(op, op.address, memory, w.touched(op, op.existing, op.group))


@rule(Pick)
def _pick(w: Walk, op: Pick) -> None:
    w.same(op, op.dst, op.src)
    repeat = op.dst.vector.repeats.get(op.memory)
    if repeat is None or not 0 <= op.lane < repeat.count:
        most = f"0 to {repeat.count - 1}" if repeat else "a type that the vector repeats"
        w.refuse(op, f"takes element {op.lane} of {op.memory}", most)


@rule(Splat)
def _splat(w: Walk, op: Splat) -> None:
    vector, source = op.dst.vector, op.source
    w.spelled(op, vector.group if op.group else vector.splat, vector)
    if op.group:
        size = op.group * ITEMSIZE[vector.element]
        whole = isinstance(source, int) and size in GROUP_BYTES and vector.lanes % op.group == 0
        if not whole:
            w.refuse(op, f"of {source!r} in groups of {op.group}", "the bits of whole groups")
    elif isinstance(source, Register):
        if source.vector.lanes != 1 or source.vector.element != vector.element:
            w.refuse(op, f"spreads {source.vector!r}", f"one lane of {vector.element}")
    elif isinstance(source, str):
        if w.roles.get(source) != "scalar":
            w.refuse(op, f"{source} is no number", "a scalar among the parameters")
        own = next(p.element for p in w.tile.parameters if p.name == source) or w.tile.element
        if own != vector.element:
            w.refuse(op, f"spreads {own} over {vector.element}", "one type")
    elif isinstance(source, Expr):
        w.size(op, source)
    elif is_integer(vector.element) and source != int(source):
        w.refuse(op, f"of {source!r} over {vector.element}", "a whole number")


@rule(MultiplyAdd)
def _multiply_add(w: Walk, op: MultiplyAdd) -> None:
    vector, by = w.held(op, op.acc.vector), op.op
    if by not in vector.products:
        w.refuse(op, f"by {by!r}", f"an instruction of {vector!r} on {w.target.name}")
    _factor(w, op, op.x.vector, by.x, by.cols * by.depth)
    if isinstance(op.y, Address):
        if by.form != "memory":
            w.refuse(op, f"by {by.form} reads memory", "a form that does")
        count = w.touched(op, None, by.depth)
        w.access(op, op.y, by.y or vector.element, count)
    elif by.form == "memory":
        w.refuse(op, "by memory reads a register", "an address")
    else:
        _second_factor(w, op, op.y)
    if (op.lane is not None) != (by.form == "lane"):
        w.refuse(op, f"by {by.form} takes lane {op.lane}", "a lane where the form has one")
    if op.product is not None:
        if not by.product:
            w.refuse(op, f"{by!r} has no products of their own", "no register for them")
        w.same(op, op.acc, op.product)


def _second_factor(w: Walk, op: MultiplyAdd, y: Register) -> None:
    by = op.op
    if by.form != "lane":
        across = by.groups if by.rows > 1 or by.form == "broadcast" else 1
        _factor(w, op, y.vector, by.y, across * by.depth)
        return
    _factor(w, op, y.vector, by.y, y.vector.lanes)
    lanes = by.lanes or y.vector.lanes // by.depth
    if op.lane is not None and not 0 <= op.lane < lanes:
        w.refuse(op, f"takes lane {op.lane} of {y.name}", f"0 to {lanes - 1}")


def _factor(w: Walk, op: MultiplyAdd, vector: Vector, element: str, lanes: int) -> None:
    wanted = element or op.acc.vector.element
    if vector.element != wanted or vector.lanes != lanes:
        w.refuse(op, f"multiplies {vector!r}", f"{lanes} lanes of {wanted} for {op.op!r}")


@rule(Interleave, Unzip)
def _interleave(w: Walk, op: Interleave | Unzip) -> None:
    vector, bits = op.dst.vector, op.bits if isinstance(op, Interleave) else 0
    wide = vector.joining(op.x.vector)
    w.same(op, op.x, op.y, *() if wide else (op.dst,))
    blocks = vector.unzip if isinstance(op, Unzip) else vector.zips if bits else vector.transpose
    if not wide and (bits or op.block) not in blocks:
        known = ", ".join(map(str, blocks)) or "none"
        w.refuse(op, f"of blocks of {bits or op.block}", f"those of {vector!r}: {known}")


@rule(Unpack)
def _unpack(w: Walk, op: Unpack) -> None:
    if op.table is not None:
        _found(w, op, op.table)
        return
    vector, lanes = op.dst.vector, op.src.vector
    if not 0 <= op.index < len(vector.fields.get(op.field, ())):
        known = ", ".join(vector.fields) or "none"
        w.refuse(op, f"of field {op.index} of {op.field}", f"those of {vector!r}: {known}")
    if is_integer(vector.element):
        w.same(op, op.dst, op.src)
    elif (lanes.element, lanes.lanes) != ("s32", vector.lanes):
        w.refuse(op, f"by lanes of {lanes!r}", f"{vector.lanes} s32")


@rule(Join)
def _join(w: Walk, op: Join) -> None:
    w.same(op, op.dst, op.x)
    w.same(op, op.dst, op.y)
    w.spelled(op, op.dst.vector.join, op.dst.vector)


@rule(Table)
def _table(w: Walk, op: Table) -> None:
    numbers = w.held(op, op.dst.vector).numbers
    w.spelled(op, numbers.spelling if numbers else "", op.dst.vector)
    if len(op.numbers) != TABLE:
        w.refuse(op, f"of {len(op.numbers)} numbers", f"{TABLE} of them")


def _found(w: Walk, op: Unpack, table: Register) -> None:
    """Check an ``Unpack`` that finds numbers in ``table``: its lanes must have the index type."""
    w.same(op, op.dst, table)
    vector, lanes, numbers = op.dst.vector, op.src.vector, op.dst.vector.numbers
    codes, found = (numbers.codes, numbers.found) if numbers else ("", {})
    if (lanes.element, lanes.lanes) != (codes, vector.lanes):
        w.refuse(op, f"by lanes of {lanes!r}", f"{vector.lanes} {codes}")
    if not 0 <= op.index < len(found.get(op.type, ())):
        known = ", ".join(found) or "none"
        w.refuse(op, f"of field {op.index} of {op.type}", f"those of {vector!r}: {known}")


@rule(FillLanes)
def _fill_lanes(w: Walk, op: FillLanes) -> None:
    vector = op.dst.vector
    w.same(op, op.dst, op.src, op.other)
    w.spelled(op, vector.fill, vector)
    if isinstance(op.active, MaskRegister):
        _masked(w, op, op.active.vector, vector, vector.lanes, "")
    w.touched(op, op.active, vector.lanes)


@rule(TakeLanes)
def _take_lanes(w: Walk, op: TakeLanes) -> None:
    vector = op.src.vector
    if op.dst.vector.lanes > 1:
        w.same(op, op.dst, op.src)
        least, most = 1, vector.lanes // 2
    else:
        least = most = 0
        _one_lane(w, op, op.dst.vector, vector)
    if not least <= op.first <= most:
        w.refuse(op, f"from lane {op.first} on", f"a lane from {least} to {most}")
    w.spelled(op, vector.taking(op.first), vector)


@rule(SumLanes)
def _sum_lanes(w: Walk, op: SumLanes) -> None:
    w.spelled(op, op.src.vector.sum_lanes, op.src.vector)
    _one_lane(w, op, op.dst.vector, op.src.vector)


def _one_lane(w: Walk, op: TakeLanes | SumLanes, single: Vector, vector: Vector) -> None:
    """Check that ``single`` has one lane, of the element type of ``vector``."""
    if single.lanes != 1 or single.element != vector.element:
        w.refuse(op, f"into {single!r}", f"one lane of {vector.element}")


@rule(Apply)
def _apply(w: Walk, op: Apply) -> None:
    vector, fn = op.vector, OPERATIONS.get(op.fn)
    spelled = has(vector, vector.ops.get(op.fn, ""))
    if fn is None or vector.element not in fn.elements or not spelled:
        w.refuse(op, f"of {op.fn!r}", f"an elementary operation of {vector!r}")
    if len(op.args) != fn.arity:
        w.refuse(op, f"{op.fn} of {len(op.args)} arguments", f"{fn.arity}")
    mask = _lane(OPERATIONS["eq"].result(vector.element))
    for place, arg in enumerate(op.args):
        if isinstance(arg, int) or (op.fn in _SHIFTS and place == 1):
            bits = 8 * ITEMSIZE[vector.element]
            if op.fn not in _SHIFTS or place != 1 or not (isinstance(arg, int) and 0 <= arg < bits):
                w.refuse(op, f"{op.fn} by {text(arg)}", f"registers; shifts by 0 to {bits - 1}")
            continue
        element = mask if op.fn == "select" and place == 0 else vector.element
        _lanes(w, op, arg.vector, element)
    _lanes(w, op, op.dst.vector, _lane(fn.result(vector.element)))


def _lane(element: str) -> str:
    """Return the element type of registers that hold ``element``: f64 for masks of f64 (m64)."""
    return "f64" if element == "m64" else element


def _lanes(w: Walk, op: Apply, vector: Vector, element: str) -> None:
    if vector.element != element or vector.lanes != op.vector.lanes:
        lanes = f"{op.vector.lanes} lanes of {element}"
        w.refuse(op, f"{op.fn} on {op.vector!r} with {vector!r}", lanes)


@rule(Copy)
def _copy(w: Walk, op: Copy) -> None:
    count = w.size(op, op.count)
    if op.element not in ELEMENTS or (count is not None and count < 0):
        w.refuse(op, f"of {text(op.count)} {op.element}", "0 or more of a type there is")
    w.access(op, op.source, op.element, count)
    w.access(op, op.address, op.element, count, write=True)


@rule(StackBuffer)
def _stack_buffer(w: Walk, op: StackBuffer) -> None:
    if op.element not in ELEMENTS or op.elements < 1:
        w.refuse(op, f"of {op.elements} {op.element}", "one element or more of a type there is")
    _new_pointer(w, op, op.name, Pointer(op.name, op.element, written=True))
    w.buffers[op.name] = op


@rule(Keep)
def _keep(w: Walk, op: Keep) -> None:
    hints = w.target.hints
    most = 0 if hints is None else 1 if hints.lanes else 3 if hints.operands else 0
    if hints is None or len(op.operands) > most:
        given = f"{len(op.operands)} operands on {w.target.name}"
        w.refuse(op, f"of {given}", f"at most {most}" if hints else "a target that holds registers")


@rule(Hide)
def _hide(w: Walk, op: Hide) -> None:
    if w.target.hints is None or not w.target.hints.pointers:
        w.refuse(op, f"on {w.target.name}", "a target that hides pointers")
    if op.pointer not in w.pointers:
        w.refuse(op, f"{op.pointer} is no pointer", "one that is known here")


@rule(Prefetch)
def _prefetch(w: Walk, op: Prefetch) -> None:
    """Check that the pointer of a prefetch exists; the address may be outside the operand."""
    w.pointer(op, op.address.pointer)
    w.size(op, op.address.offset)


@rule(Note)
def _note(w: Walk, op: Note) -> None:
    if not op.text or not op.text.isprintable() or "*/" in op.text or "/*" in op.text:
        w.refuse(op, "is no comment of one line", "printable text that ends no comment of C")


# --- matrices ----------------------------------------------------------------------------------


def _matrix(w: Walk, op: Op, register: MatrixRegister) -> int | None:
    """Check a matrix register, and return its number of rows; None if known only at the call."""
    unit = w.target.matrix
    if unit is None or register.unit is not unit:
        w.refuse(op, f"uses matrix registers on {w.target.name}", "those of the target's own unit")
    if w.shapes.setdefault(register.name, register) != register:
        w.refuse(op, f"{register.name} has two shapes", text(w.shapes[register.name]))
    rows, size = value(register.rows), register.columns * ITEMSIZE[register.element]
    tall = rows is not None and not 0 < rows <= unit.rows
    if tall or not 0 < size <= unit.row_bytes:
        most = f"{unit.rows} rows of {unit.row_bytes} bytes"
        w.refuse(op, f"{text(register)} does not fit", most)
    return rows


def _known_matrix(w: Walk, op: Op, register: MatrixRegister) -> None:
    if register.name not in w.matrices:
        w.refuse(op, f"reads {register.name} undefined", "a matrix that was written")


@rule(ZeroMatrix)
def _zero_matrix(w: Walk, op: ZeroMatrix) -> None:
    _matrix(w, op, op.dst)
    w.matrices.add(op.dst.name)


@rule(LoadMatrix)
def _load_matrix(w: Walk, op: LoadMatrix) -> None:
    _matrix_access(w, op, op.dst, write=False)
    w.matrices.add(op.dst.name)


@rule(StoreMatrix)
def _store_matrix(w: Walk, op: StoreMatrix) -> None:
    _known_matrix(w, op, op.src)
    _matrix_access(w, op, op.src, write=True)


def _matrix_access(
    w: Walk, op: LoadMatrix | StoreMatrix, register: MatrixRegister, *, write: bool
) -> None:
    rows, stride = _matrix(w, op, register), w.size(op, op.stride)
    if stride is not None and rows is not None and rows > 1 and stride < register.columns and write:
        w.refuse(op, f"rows {stride} elements apart", f"{register.columns} or more: rows of memory")
    if rows is None or stride is None:
        w.access(op, op.address, register.element, None, write=write)
        return
    for row in range(rows):
        address = replace(op.address, offset=op.address.offset + row * stride)
        w.access(op, address, register.element, register.columns, write=write)


@rule(MultiplyMatrices)
def _multiply_matrices(w: Walk, op: MultiplyMatrices) -> None:
    acc, x, y = op.acc, op.x, op.y
    for register in (acc, x, y):
        _matrix(w, op, register)
        _known_matrix(w, op, register)
    unit = w.target.matrix
    if unit is None or op.op not in unit.products.get(acc.element, ()):
        w.refuse(op, f"by {op.op!r}", f"a product into {acc.element} of the unit")
    if (x.element, y.element) != (op.op.x, op.op.y):
        w.refuse(op, f"multiplies {x.element} by {y.element}", f"{op.op.x} by {op.op.y}")
    legal = acc.rows == y.rows and x.rows * op.op.group == y.columns
    if not legal or acc.columns * op.op.group != x.columns or len({acc.name, x.name, y.name}) < 3:
        w.refuse(op, "of matrices whose shapes do not match", "acc += y x, three registers")


@rule(MultiplyBlock)
def _multiply_block(w: Walk, op: MultiplyBlock) -> None:
    _matrix(w, op, op.acc)
    _known_matrix(w, op, op.acc)
    unit, by = op.acc.unit, op.op
    if by not in unit.products.get(op.acc.element, ()) or by.form != "block":
        w.refuse(op, f"by {by!r}", f"a product of vectors into {op.acc.element} of the unit")
    if op.acc.columns != by.cols:
        w.refuse(op, f"into {op.acc.columns} columns", f"{by.cols}")
    for register, element, lines in ((op.x, by.x, by.cols), (op.y, by.y, by.rows)):
        wanted, vector = element or op.acc.element, register.vector
        if (vector.element, vector.lanes) != (wanted, lines * by.depth):
            w.refuse(op, f"multiplies {vector!r}", f"{lines * by.depth} lanes of {wanted}")


@rule(ReadRows)
def _read_rows(w: Walk, op: ReadRows) -> None:
    _matrix(w, op, op.src)
    _known_matrix(w, op, op.src)
    unit, rows = op.src.unit, value(op.first)
    if op.columns and not unit.read_column:
        w.refuse(op, f"reads a column of {unit.name}", "rows")
    if str(op.first) in w.trips:
        lines, most = w.trips[str(op.first)], op.src.columns if op.columns else value(op.src.rows)
        if None not in (lines, most) and lines > most:  # type: ignore[operator]
            w.refuse(op, f"reads line {op.first} of {lines}", f"those of {text(op.src)}")
    else:
        w.size(op, op.first)
    if len(op.dst) > unit.rows_at_once or (rows is not None and rows % unit.rows_at_once):
        w.refuse(op, f"reads {len(op.dst)} rows", f"{unit.rows_at_once} of {unit.name} at once")
    for register in op.dst:
        vector = register.vector
        lanes = value(op.src.rows) if op.columns else op.src.columns
        if (vector.element, vector.lanes) != (op.src.element, lanes):
            w.refuse(op, f"into {vector!r}", f"{lanes} lanes of {op.src.element}")


@rule(WriteRow)
def _write_row(w: Walk, op: WriteRow) -> None:
    unit, rows, vector = op.dst.unit, _matrix(w, op, op.dst), op.src.vector
    if not unit.write:
        w.refuse(op, f"writes a row of {unit.name}", "a unit whose rows can be written")
    if rows is not None and not 0 <= op.row < rows:
        w.refuse(op, f"writes row {op.row}", f"one of {rows}")
    if (vector.element, vector.lanes) != (op.dst.element, op.dst.columns):
        w.refuse(op, f"takes {vector!r}", f"{op.dst.columns} lanes of {op.dst.element}")
    w.matrices.add(op.dst.name)
