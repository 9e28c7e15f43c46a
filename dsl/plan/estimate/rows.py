"""Estimate the cycles of a row program: its operations, and the transfers of its arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.ir.count import counted
from tilewright.ir.nest import Program
from tilewright.ir.ops import Apply, Loop, Op
from tilewright.spec.signature import signature
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import evaluate

from ..problem import NOMINAL
from ..rows.plan import RowsPlan
from .caches import Cycles, Nest, Piece, Region, Repeat
from .kernel import Estimate, estimate_of

#: Elementary operations that only the multiplying units of a core compute.
MULTIPLIED = frozenset(("mul", "fma", "div", "sqrt", "scale"))
#: Divisions and roots, and the time of one in multiply-adds.
_DIVIDED, _DIVISION = frozenset(("div", "sqrt")), 5
#: Operations that reinterpret bits, and cost nothing.
FREE = frozenset(("bits", "float"))
#: The cycles of the call of a tile program that computes a row.
_CALL = 10
#: For each multiplying unit, a core has this number of units for other operations.
OTHERS = 2


def estimate_rows(
    plan: RowsPlan, program: Program, sizes: Mapping[str, int], *, cold: bool = False
) -> Estimate:
    """Return the estimated time of a call on the plan's core, like ``estimate`` for a product.

    The times of multiplications, other operations, and loads and stores are added. A core cannot
    overlap them, because each pass needs the previous pass, and each operation on a vector needs
    the operation before it.
    """
    slots = {slot: NOMINAL for slot, _ in plan.spec.runtime_sizes()} | dict(sizes)
    core, wide = plan.target.core, plan.vector.registers
    done = counted(program, slots)

    def count(functions: Collection[str]) -> int:
        every = ((done.calls.get(tile.name, 0), tile.end) for tile in program.tiles)
        return wide * sum(calls * applied(ops, functions, slots) for calls, ops in every)

    multiplied = count(MULTIPLIED) + (_DIVISION - 1) * count(_DIVIDED)
    every = int(done.formulas.elementary_operations) * wide
    others = every - count(MULTIPLIED) - count(FREE)
    loads, stores = (int(n) * wide for n in (done.formulas.loads, done.formulas.stores))
    least = multiplied / core.fma_units
    bounds = {
        "multiplications": least,
        "other operations": others / (OTHERS * core.fma_units),
        "loads and stores": loads / core.loads + stores / core.stores,
    }
    return estimate_of(core, nest_of_rows(plan, slots, Cycles(bounds)), least, cold=cold)


def planned_work(plan: RowsPlan, sizes: Mapping[str, int]) -> Cycles:
    """Return the time of the operations of a row program that has no program yet."""
    slots = dict.fromkeys(plan.slots, NOMINAL) | dict(sizes)
    rows, cols = evaluate(plan.rows, slots), evaluate(plan.cols, slots)
    vectors = -(-cols // plan.vector.lanes) * plan.vector.registers
    each = vectors * max(1, sum(plan.work)) / plan.target.core.fma_units
    return Cycles({"operations": rows * each, "calls": float(rows * _CALL)})


def applied(ops: Sequence[Op], functions: Collection[str], sizes: Mapping[str, int]) -> int:
    """Return the number of elementary operations in ``ops`` that are one of ``functions``."""
    total = 0
    for op in ops:
        if isinstance(op, Loop):
            total += evaluate(op.trips, sizes) * applied(op.body, functions, sizes)
        total += isinstance(op, Apply) and op.fn in functions
    return total


def nest_of_rows(
    plan: RowsPlan, sizes: Mapping[str, int], work: Cycles, *, parallel: bool = False
) -> Nest:
    """Return the loop over rows: the arrays that a row uses, and those of all rows.

    All results together are the operand "c", whose transfers count twice: read and written. Threads
    may share the rows if ``parallel``.
    """
    slots = dict.fromkeys(plan.slots, NOMINAL) | dict(sizes)
    rows, cols = evaluate(plan.rows, slots), evaluate(plan.cols, slots)
    roles = {each.symbol: each.role for each in signature(plan.spec).arrays}
    each_row: dict[str, Region] = {}
    whole: dict[str, Region] = {}
    moves = set()
    for symbol, operand in plan.operands.items():
        name = "c" if roles[symbol] == "out" else symbol
        item, step = ITEMSIZE[operand.type], evaluate(operand.strides["m"], slots)
        run = float(item * (cols if operand.strides["n"] != 0 else 1))
        before = each_row.get(name, Region(1, 0.0, 0.0)).run
        each_row[name] = Region(1, before + run, before + run)
        whole[name] = Region(rows if step else 1, before + run, before + max(step * item, run))
        moves |= {name} if step else set()
    if rows <= 1:
        return Piece(whole, work)
    body = Piece(each_row, work.times(1 / rows))
    return Repeat(rows, frozenset(moves), body, whole, parallel=parallel and plan.parallel)
