"""Plan one stage: a product of two values, and the element-wise functions after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sympy import Expr

from tilewright.isa.target import Target
from tilewright.spec.expression.leaves import Operand, Per, acc
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Cast
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.stages import OPEN
from tilewright.spec.operands import Matrix, Order, Packed
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import symbol_of
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import is_integer
from tilewright.symbolic import ZERO, value

from ..by_rows import plan_product
from ..plan import ByRows, Plan
from ..routines.stack import has_buffers
from .placed import Axis, Placed, axes_of, exprs_of, merged, same
from .rebuilt import rebuilt
from .step import Opening, Planned, Rows, outer_loops

#: The schedule of each product. Every element of C is one chain of sums, in the order of K. The
#: bits of a row then depend only on that row and the weights, not on the number of rows.
_PRODUCT = Schedule(vectorize="n", k_split=1, stores="cached")


def matrix_order(value: Placed) -> tuple[Order, Expr | None] | None:
    """Return order and leading dimension of the last two axes; None if they are no matrix.

    The leading dimension is None if there are no gaps.
    """
    (rows, cols), (down, right) = exprs_of(value.shape[-2:]), value.strides[-2:]
    return _order(rows, cols, down, right)


def _at_least(step: Expr, line: Expr) -> bool:
    """Return True if ``step`` >= ``line`` for all sizes of 1 or more, as far as this is known."""
    if line == 0:
        return True
    quotient = (step / line).expand()
    return bool(quotient.is_number and quotient >= 1) or _whole(quotient)


def _whole(quotient: Expr) -> bool:
    """Return True if a quotient is a sum of products of sizes, with coefficients of 1 or more."""
    if quotient.as_numer_denom()[1] != 1 or quotient == 0:
        return False
    return all(factor >= 1 for factor in quotient.as_coefficients_dict().values())


def per_of(down: Expr, right: Expr, cols: Expr) -> Per | str | None:
    """Return ``per`` of a ``tw.Operand`` with these strides; "no" if an epilogue cannot read it.

    ``down`` is the stride from row to row, ``right`` that from column to column. ``cols`` is the
    number of columns.
    """
    if (down, right) == (0, 0):
        return None
    if (down, right) == (0, 1):
        return "column"
    if (down, right) == (1, 0):
        return "row"
    return "full" if right == 1 and same(down, cols) else "no"


def fits_epilogue(leaf: Placed, shape: tuple[Size, ...]) -> bool:
    """Return True if the epilogue of a product of this shape can read a value."""
    down, right = leaf.spread(shape)[-2:]
    rows, cols = exprs_of(shape[-2:])
    down, right = ZERO if rows == 1 else down, ZERO if cols == 1 else right
    return per_of(down, right, cols) != "no"


class _Multiplied(NamedTuple):
    """The spec of a product, and the formulas of its sizes.

    If ``opened``, it can compute some of its rows; their number is the size ``slot``.
    """

    spec: Gemm
    bound: Mapping[str, Expr]
    opened: bool
    slot: str | None


def _read(
    product: Product, end: Expression, leaf: Callable[[Expression], Placed | None]
) -> dict[int, Placed]:
    """Return where the values are that ``end`` reads besides the product, by ``id``."""
    known: dict[int, Placed] = {}

    def noted(node: Expression) -> Expression | None:
        found = None if node is product or node is end else leaf(node)
        if found is not None:
            known[id(node)] = found
        return acc if node is product or found is not None else None

    rebuilt(end, noted)
    return known


def _epilogue(
    product: Product,
    end: Expression,
    known: Mapping[int, Placed],
    operands: Mapping[Placed | None, Operand],
) -> Expression | None:
    """Return the epilogue that computes ``end`` from the sums; None if it is the sums.

    It leaves out the last rounding, because the product's output is rounded when it is stored.
    """
    if end is product:
        return None
    sums: Expression = acc
    if product.type != product.sums or is_integer(product.type):
        sums = Cast("f32" if is_integer(product.type) else product.type, (acc,))

    def replaced(node: Expression) -> Expression | None:
        return sums if node is product else operands.get(known.get(id(node)))

    found = rebuilt(end.args[0] if isinstance(end, Cast) else end, replaced)
    return None if found is acc else found


class Products:
    """Makes the stage of one product: ``a`` times ``b`` is written to ``target``.

    ``plans`` has the plans made so far, so that equal products share one. ``chosen`` is what the
    user chose. By ``opening``, the stage can compute some of the rows, as far as each needs no
    other row.
    """

    def __init__(
        self,
        a: Placed,
        b: Placed,
        target: Placed,
        plans: dict[Any, Plan | ByRows],
        schedule: Schedule,
        chosen: Schedule,
        *,
        opening: Opening = Opening.WHOLE,
    ) -> None:
        self.values, self.plans, self.opening = [target, a, b], plans, opening
        own = {name: getattr(chosen, name) for name in OPEN}
        if opening is not Opening.WHOLE and chosen.loops is not None:
            own["loops"] = chosen.loops.lower()
        self.alone = replace(_PRODUCT, **own)
        # Threads share loops that the planner chose; in a block they need not.
        nested = opening is not Opening.WHOLE and (chosen.loops or chosen.block or chosen.pack)
        self.schedule = self.alone if nested else replace(self.alone, threads=schedule.threads)
        self.leaves: list[Placed] = []

    def stage(
        self,
        product: Product,
        end: Expression,
        leaf: Callable[[Expression], Placed | None],
        machine: Target,
    ) -> Planned:
        """Return the stage that computes ``end``: the product, then element-wise functions of it.

        ``leaf`` returns where a node is in memory, or None.
        """
        known = _read(product, end, leaf)
        self.leaves = list(dict.fromkeys(known.values()))
        outer, rows = self._axes()
        operands = self._operands(rows)
        epilogue = _epilogue(product, end, known, operands)
        gemm = self._gemm(product, epilogue, outer, rows)
        output = "c" if gemm.spec.d is None else "d"
        names = (output, "a", "b", *(symbol_of(one.name) for one in operands.values()))
        return self._planned(gemm, names, outer, rows, machine)

    def _gemm(
        self, product: Product, epilogue: Expression | None, outer: Sequence[Axis], rows: Axis
    ) -> _Multiplied:
        """Return the spec of the product, with loops over the axes ``outer`` around it."""
        target, a, b = self.values
        weight = product.weight
        n, k = exprs_of((target.shape[-1], a.shape[-1]))
        left = _order(rows.size, k, rows.steps[1], a.strides[-1])
        right = ("C", None) if weight is not None else matrix_order(b)
        over = _order(rows.size, n, rows.steps[0], target.strides[-1])
        assert left is not None and right is not None and over is not None
        bound: dict[str, Expr] = {}

        def size(name: str, formula: Expr) -> Size:
            number = value(formula)
            if number is None:
                bound[name] = formula
            return Dim(name) if number is None else number

        finished = epilogue is not None or target.type != product.sums
        leading = [
            None if step is None else size(f"ld{name}", step)
            for name, (_, step) in zip(
                "abd" if finished else "abc", (left, right, over), strict=True
            )
        ]
        stacked = self.opening is Opening.STACK
        opened = self.opening is not Opening.WHOLE and (stacked or not outer)
        opened = opened and left[0] == over[0] == "C"
        several = opened and rows.size != 1
        if several:
            bound["m"] = rows.size
        spec = Gemm(
            m=Dim("m") if several else size("m", rows.size), n=size("n", n), k=size("k", k),
            a=Matrix(a.type, order=left[0]),
            b=Packed(weight.declared) if weight is not None else Matrix(b.type, order=right[0]),
            d=target.type if finished else None, lda=leading[0], ldb=leading[1],
            a_zero=product.a_zero or None, b_zero=product.b_zero or None, epilogue=epilogue,
            ldc=None if finished else leading[2], ldd=leading[2] if finished else None,
        )  # fmt: skip
        return _Multiplied(spec, bound, opened, "m" if several else None)

    def _planned(
        self,
        gemm: _Multiplied,
        names: tuple[str, ...],
        outer: list[Axis],
        rows: Axis,
        machine: Target,
    ) -> Planned:
        """Return the stage of a product. ``names`` are its own names of the output and operands."""
        values = [*self.values, *self.leaves]
        loops, shifts = outer_loops(outer, names, tuple(each.offset for each in values))
        places = dict(zip(names, (each.name for each in values), strict=True))
        plan, parallel = self._plan(gemm.spec, machine, threads=not loops), False
        if loops and self.schedule.threads is not None:
            parallel = not any(map(has_buffers, plan.nests))
            plan = plan if parallel else self._plan(gemm.spec, machine, threads=True)
        steps = dict(zip(names, rows.steps, strict=True))
        found = Rows(gemm.slot, rows.size, steps) if gemm.opened else None
        return Planned(plan, places, gemm.bound, loops, shifts, parallel, found)

    def _plan(self, spec: Gemm, machine: Target, *, threads: bool) -> Plan | ByRows:
        """Return the plan of a product; equal products share a plan."""
        schedule = self.schedule if threads else self.alone
        if self.opening is Opening.STACK and schedule.tile is None and _is_turned(spec):
            schedule = replace(schedule, tile=self._tile(spec, schedule, machine))
        if (spec, schedule) not in self.plans:
            self.plans[spec, schedule] = plan_product(spec, schedule, machine)
        return self.plans[spec, schedule]

    def _tile(self, spec: Gemm, schedule: Schedule, machine: Target) -> tuple[int, int] | None:
        """Return the tile for B as its buffer has it, with long rows that tiles read in part."""
        changes: dict[str, Any] = {"b": Matrix(spec.b.type), "ldb": None, "outputs": None}
        straight = replace(spec, **changes)
        plan = plan_product(straight, schedule, machine).nests[0]
        problem, tiles = plan.problem, plan.tiling.tiles
        shape = tiles[0].shape if tiles else None
        if shape is None or plan.staging.packs or problem.dot or problem.across != "m":
            return None
        return shape.rows, shape.vectors * shape.vector.lanes

    def _operands(self, rows: Axis) -> dict[Placed | None, Operand]:
        """Return the ``tw.Operand`` for each value that the epilogue reads."""
        pers = self._pers(rows)
        assert "no" not in pers
        return {
            leaf: Operand(f"in{number}", leaf.type, per)  # type: ignore[arg-type]
            for number, (leaf, per) in enumerate(zip(self.leaves, pers, strict=True))
        }

    def _pers(self, rows: Axis) -> list[Per | str | None]:
        """Return ``per`` of the operands of the epilogue, if C has these ``rows``."""
        shape = self.values[0].shape
        (cols,) = exprs_of(shape[-1:])
        found: list[Per | str | None] = []
        for leaf, down in zip(self.leaves, rows.steps[3:], strict=True):
            right = ZERO if cols == 1 else leaf.spread(shape)[-1]
            found.append(per_of(ZERO if rows.size == 1 else down, right, cols))
        return found

    def _axes(self) -> tuple[list[Axis], Axis]:
        """Return the loops around the product, and its rows, with leading axes if possible."""
        target, a, b = self.values
        lead = target.shape[:-2]
        steps = [
            target.strides[:-1],
            (*_lead(a, lead), a.strides[-2]),
            (*_lead(b, lead), ZERO),
            *(leaf.spread(target.shape)[:-1] for leaf in self.leaves),
        ]
        *outer, rows = axes_of(exprs_of(target.shape[:-1]), steps)
        if self.opening is Opening.STACK:
            return [axis for axis in outer if axis.size != 1], rows
        found = merged(outer)
        while found:
            both = merged([found[-1], rows])
            _, left, right, *_ = found[-1].steps
            if len(both) > 1 or right != 0 or left == 0 or "no" in self._pers(both[0]):
                break
            found.pop()
            rows = both[0]
        return found, rows


def _is_turned(spec: Gemm) -> bool:
    """Return True if a buffer has the rows of B one after another because B has columns."""
    b = spec.b
    return isinstance(b, Matrix) and b.order == "F" and spec.a.type == b.type == spec.type


def _order(rows: Expr, cols: Expr, down: Expr, right: Expr) -> tuple[Order, Expr | None] | None:
    """Return order and leading dimension of a matrix with these sizes and strides."""
    for order, line, lines, unit, step in _both_orders(rows, cols, down, right):
        if unit == 1 or line == 1:
            if lines == 1 or same(step, line):
                return order, None
            if _at_least(step, line):
                return order, step
    return None


def _both_orders(
    rows: Expr, cols: Expr, down: Expr, right: Expr
) -> tuple[tuple[Order, Expr, Expr, Expr, Expr], ...]:
    """Return for each order: its name, length and number of lines, strides in and between lines."""
    return ("C", cols, rows, right, down), ("F", rows, cols, down, right)


def _lead(value: Placed, lead: tuple[Size, ...]) -> tuple[Expr, ...]:
    """Return the strides of the leading axes of an operand, broadcast to ``lead``."""
    own = Placed(value.name, value.type, value.shape[:-2], value.strides[:-2])
    return own.spread(lead)
