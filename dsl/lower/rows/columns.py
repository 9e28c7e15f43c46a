"""The operations of a block of columns: passes over all rows, and values of the columns.

Row i belongs to partial result i modulo ``TURNS``. At the end the partial results are combined to
one. Each lane holds another column, so that lanes are never combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sympy import Expr

from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import Advance, Loop, MakeMask, Op, Point
from tilewright.ir.values import Active, MaskRegister, Register
from tilewright.plan.rows.passes import Known, Pass
from tilewright.plan.rows.plan import TURNS, RowsPlan
from tilewright.plan.tiling.parts import at_least_part
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Extent, Input
from tilewright.spec.network.places import Place
from tilewright.symbolic import ZERO, div, mod, value

from .vectors import Lanes, Vector, arrays_of, begin, halved, side_by_side


def block_ops(plan: RowsPlan, width: int, left: Expr | None) -> Iterator[Op]:
    """Yield the operations of ``width`` vectors of columns, or of the ``left`` last columns."""
    block = _Block(plan, width, left)
    for number, each in enumerate(plan.passes):
        block.run(number, each)
        yield from block.emitter.emit()


class _Block:
    """Writes the operations of one block of columns. ``known`` has values of each vector."""

    def __init__(self, plan: RowsPlan, width: int, left: Expr | None) -> None:
        self.plan = plan
        self.emitter = Emitter(plan.target, plan.vector.lanes, "", plan.real)
        self.known: list[dict[Expression, Register]] = [{} for _ in range(width)]
        self.active: Active = None
        self.pieces = 0
        if left is not None:
            self.active = self._active(left)
        self.lanes = [
            Lanes(plan, self.emitter, known, None, place, self.active)
            for place, known in enumerate(self.known)
        ]
        for known, expression in plan.cut.before:
            self._value(known, expression)

    def _active(self, left: Expr) -> Active:
        vector, known = self.plan.vector, value(left)
        if vector.mask is None:
            return left if known is None else known
        mask = MaskRegister("last", vector, left)
        self.emitter.add(MakeMask(mask))
        return mask

    def run(self, number: int, each: Pass) -> None:
        """Write one pass over the rows, and the values of columns that are known after it."""
        if each.visits:
            for leaf in every_node(each.visits):
                if isinstance(leaf, Extent) or (isinstance(leaf, Input) and not self._moves(leaf)):
                    self._keep(leaf)
            self._pass(f"p{number}", each)
        for known, expression in each.values:
            self._value(known, expression)
        for name, expression in each.ends:
            for place, lanes in enumerate(self.lanes):
                self.emitter.stage(f"{name}_{place}")
                lanes.store(name, expression, note=f"Store {name}.")

    def _moves(self, leaf: Input) -> bool:
        """Return True if ``leaf`` has other elements in each row, so that its pointer moves."""
        return self.plan.cut.grid.of(leaf) in (Place.FULL, Place.ROW)

    def _keep(self, leaf: Expression) -> None:
        """Read a value that is the same for all rows, if it is not in a register yet."""
        for lanes, known in zip(self.lanes, self.known, strict=True):
            if leaf not in known:
                known[leaf] = self.emitter.register(lanes.element(leaf))

    def _value(self, known: Known, expression: Expression) -> None:
        for place, lanes in enumerate(self.lanes):
            self.emitter.stage(f"{known!r}_{place}")
            self.known[place][known] = self.emitter.register(lanes.of(expression))

    # --- passes --------------------------------------------------------------------------------

    def _pass(self, prefix: str, each: Pass) -> None:
        emitter, rows = self.emitter, self.plan.rows
        emitter.stage(prefix, note=f"Pass over the rows: {', '.join(map(repr, each.visits))[:60]}.")
        turns = TURNS if each.reductions else 1
        sums = [
            [
                [self._begin(reduction.fn, f"{reduction.known.name}_acc{turn}_{place}")
                 for reduction in each.reductions]
                for place in range(len(self.known))
            ]
            for turn in range(turns)
        ]  # fmt: skip
        points = {
            base: Point(f"{prefix}{base}", base, ZERO, type_, written=written)
            for base, (type_, written) in arrays_of(self.plan, each, self.known[0]).items()
        }
        emitter.add(*points.values())
        names = {base: point.pointer for base, point in points.items()}
        trips, tail = div(rows, turns), mod(rows, turns)
        body = [op for turn in range(turns) for op in self._row(prefix, each, names, sums[turn])]
        if trips != 0:
            emitter.add(Loop("turn", trips, tuple(body)))
        for turn in range(turns - 1):
            exists = at_least_part(tail, turn + 1, turns)
            if exists != 0:
                once = tuple(self._row(prefix, each, names, sums[turn]))
                emitter.add(*(once if exists == 1 else (Loop(f"row{turn}", exists, once),)))
        for number, reduction in enumerate(each.reductions):
            for place, known in enumerate(self.known):
                emitter.stage(f"{reduction.known.name}_{place}")
                parts = [emitter.take(sums[turn][place][number]) for turn in range(turns)]
                whole = halved(emitter.builder, reduction.fn, parts.__getitem__, turns)
                known[reduction.known] = emitter.register(whole)

    def _begin(self, fn: str, name: str) -> Register:
        return begin(self.emitter, fn, name, self.plan.real)

    def _row(
        self,
        prefix: str,
        each: Pass,
        names: Mapping[str, str],
        sums: Sequence[Sequence[Register]],
    ) -> Iterator[Op]:
        """Yield one row of the block, then all pointers moved to the next one."""
        self.pieces += 1
        vectors = [Vector(*pair) for pair in zip(self.known, sums, strict=True)]
        inner = f"{prefix}r{self.pieces}_"
        yield from side_by_side(self.plan, each, inner, names, vectors, self.active)
        for base, name in names.items():
            yield Advance(name, self.plan.operands[base].strides["m"])
