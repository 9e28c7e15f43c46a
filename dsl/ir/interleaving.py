"""Build sequences of operations that interleave registers: to transpose them, or to sum lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.elementwise.builder import Argument
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd
from tilewright.symbolic import ONE

from .emitter import Emitter
from .ops import (
    Apply,
    Interleave,
    Op,
    ReadRows,
    TakeLanes,
    Unzip,
    WriteRow,
    Zero,
)
from .values import MatrixRegister, Register


def sum_tree(registers: list[Register], name: str) -> tuple[list[Op], Register]:
    """Return operations that sum the lanes of each register, and the register that holds the sums.

    The sum of each register becomes one lane of the result, so there may be at most as many
    registers as lanes. The registers are transposed, and each pair is added as soon as it is
    interleaved. P registers take P - 1 additions. Then the remaining groups of lanes are added up.
    """
    vector = registers[0].vector
    ops: list[Op] = []
    full = 1 << (len(registers) - 1).bit_length()
    rows = list(registers)
    for index in range(len(registers), full):
        rows.append(Register(f"{name}_pad{index}", vector))
        ops.append(Zero(rows[-1]))
    block = 1
    while block < vector.lanes:
        if len(rows) > 1:
            pairs = [(rows[i], rows[i + 1]) for i in range(0, len(rows), 2)]
        else:
            pairs = [(rows[0], rows[0])]
        rows = []
        for i, (x, y) in enumerate(pairs):
            even, odd = (Register(f"{name}_{side}{block}_{i}", vector) for side in "eo")
            total = Register(f"{name}_{block}_{i}", vector)
            ops.append(Interleave(even, x, y, block, odd=False))
            ops.append(Interleave(odd, x, y, block, odd=True))
            ops.append(Apply(total, "add", (even, odd), begins=True))
            rows.append(total)
        block *= 2
    return ops, rows[0]


def fold_lanes(
    emitter: Emitter, value: Argument, both: Callable[[Argument, Argument], Argument], name: str
) -> Register:
    """Return a scalar register ``name`` with all lanes of ``value`` combined into one by ``both``.

    The order is the same on every target, for any function of two values: lane i of the lower half
    of the lanes is combined with lane i of the upper half, until one lane is left. Partial results
    in several registers are combined likewise before: the first half of the registers with the
    second. The result then depends only on the total number of partial results.
    """
    first = emitter.lanes // 2
    while first:
        register = emitter.register(value)
        upper = emitter.fresh(f"{name}_upper{first}", register.vector.element)
        emitter.add(TakeLanes(upper, register, first))
        value = both(value, emitter.take(upper))
        first //= 2
    register = emitter.register(value)
    if emitter.lanes == 1:
        return register
    one = emitter.target.holding(register.vector.element, 1)
    single = Register(f"{emitter.prefix}{name}", one)
    emitter.add(TakeLanes(single, register))
    return single


def fold_registers(
    emitter: Emitter, values: Sequence[Argument], both: Callable[[Argument, Argument], Argument]
) -> Argument:
    """Return a vector whose lane i holds all lanes of ``values[i]``, combined into one by ``both``.

    There are at most as many values as lanes. They are transposed, and each pair is combined as
    soon as it is interleaved: first neighbouring lanes, then pairs of them, and so on. Each group
    of further lanes repeats the results, so that one value is combined into all lanes.
    """
    found, block = list(values), 1
    while block < emitter.lanes:
        if len(found) % 2:
            found.append(found[-1])
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [_interleaved(emitter, x, y, block, both) for x, y in pairs]
        block *= 2
    return found[0]


def _interleaved(
    emitter: Emitter,
    x: Argument,
    y: Argument,
    block: int,
    both: Callable[[Argument, Argument], Argument],
) -> Argument:
    """Return two registers interleaved by ``block`` lanes, and then combined."""
    of_x, of_y = emitter.register(x), emitter.register(y)
    halves = [emitter.unnamed(of_x.vector.element) for _ in range(2)]
    for odd, half in enumerate(halves):
        emitter.add(Interleave(half, of_x, of_y, block, bool(odd)))
    return both(*map(emitter.take, halves))


def transpose(
    target: Target, block: Sequence[Register], lanes: int, prefix: str, width: int = 1
) -> tuple[list[Op], list[Register]]:
    """Return operations that transpose a block of registers, and the registers of the result.

    The block has at most ``lanes`` registers, the result has ``lanes``. Lanes of missing rows hold
    any values. If a matrix unit can be written by rows and read by columns, it does the
    transposition. Otherwise there are log2(lanes) rounds of interleaving. If one row of a pair is
    missing, the other row takes its place in half of the results. With a ``width``, groups of so
    many lanes are moved; a register may then hold several blocks, which are transposed alike.
    """
    vector, unit = block[0].vector, target.matrix
    if lanes > 1 and width == 1 and unit is not None and unit.transposes(vector.element):
        square = MatrixRegister(
            f"turned_{vector.element}", unit, vector.element, lanes * ONE, lanes
        )
        turned = [Register(f"{prefix}{column}", vector) for column in range(lanes)]
        rows_in = [WriteRow(square, row, number) for number, row in enumerate(block)]
        columns = [ReadRows((r,), square, i * ONE, columns=True) for i, r in enumerate(turned)]
        return [*rows_in, *columns], turned
    ops: list[Op] = []
    rows: list[Register | None] = [*block, *[None] * (lanes - len(block))]
    half = 1
    while half < lanes:
        for i in range(lanes):
            x = rows[i]
            if i & half or x is None:
                continue
            y = rows[i + half]
            odd = Register(f"{prefix}{half}_{i + half}", x.vector)
            ops.append(Interleave(odd, x, y or x, half * width, odd=True))
            rows[i + half] = odd
            if y is not None:
                rows[i] = even = Register(f"{prefix}{half}_{i}", x.vector)
                ops.append(Interleave(even, x, y, half * width, odd=False))
        half *= 2
    return ops, [row for row in rows if row is not None]


def zip_rows(block: Sequence[Register], bits: int, prefix: str) -> tuple[list[Op], list[Register]]:
    """Return operations that transpose elements of ``bits`` bits, and the registers of the result.

    Each 128 bits of the registers are transposed alike: element j of row i becomes element i of
    result j. Elements of missing rows hold any values.
    """
    count = 128 // bits
    ops: list[Op] = []
    rows: list[Register | None] = [*block, *[None] * (count - len(block))]
    for number in range(count.bit_length() - 1):
        made: list[Register | None] = []
        for x, y in zip(rows[: count // 2], rows[count // 2 :], strict=True):
            for odd in (False, True):
                if x is None:
                    made.append(None)
                    continue
                made.append(dst := Register(f"{prefix}{number}_{len(made)}", x.vector))
                ops.append(Interleave(dst, x, y or x, 1, odd, bits))
        rows = made
    return ops, [row for row in rows if row is not None]


def row_of_blocks(by: MulAdd, dst: Register, x: Register, y: Register, *, odd: bool) -> Op:
    """Return the operation that makes a row of C from two registers that hold blocks of C.

    ``by`` is the multiply-add that summed the blocks. ``odd`` selects the second row of the blocks,
    otherwise the first is made. Each register holds one block, or one in each of its segments.
    """
    width = by.cols // by.segments
    if by.segments > 1:
        return Unzip(dst, x, y, width, odd)
    return Interleave(dst, x, y, width, odd)
