"""The operations of one row: passes over its columns, and the values of the row between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import Op, StackBuffer, Store
from tilewright.ir.values import Address, Register
from tilewright.plan.rows.passes import Known, Pass
from tilewright.plan.rows.plan import RowPasses, RowsPlan
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Extent, Input
from tilewright.symbolic import ZERO, value

from .any_order import AnyOrder
from .vectors import Lanes, knowns_in
from .visit import Visit


def row_ops(plan: RowsPlan, numbers: Sequence[int], kept: Collection[Known]) -> Iterator[Op]:
    """Yield the operations of the passes ``numbers`` over one row.

    They store the values ``kept`` for later tiles, and read values of earlier tiles from arrays of
    the same names.
    """
    row = Row(plan, kept)
    if len(numbers) == len(plan.passes) and not plan.in_scratch:
        row.buffers()
    yield from row.ops(numbers)


class Row:
    """Writes the operations of one row.

    ``known`` has the registers of values of the row, which are the same in all lanes. ``prefix``
    begins the names of all registers.
    """

    def __init__(
        self,
        plan: RowPasses,
        kept: Collection[Known] = (),
        known: Mapping[Expression, Register] | None = None,
        prefix: str = "",
    ) -> None:
        self.plan, self.kept = plan, kept
        self.emitter = Emitter(plan.target, plan.vector.lanes, prefix, plan.real)
        self.known: dict[Expression, Register] = dict(known or {})
        self.lanes = Lanes(plan, self.emitter, self.known)

    def ops(self, numbers: Sequence[int]) -> Iterator[Op]:
        """Yield the operations of the passes ``numbers``."""
        self.before([self.plan.passes[number] for number in numbers])
        for number in numbers:
            self.run(number, self.plan.passes[number])
            yield from self.emitter.emit()

    def buffers(self) -> None:
        """Define the buffers of values that are held from one pass to the next."""
        columns = value(self.plan.cols)
        for place, name in enumerate(self.plan.held):
            if not name:
                assert columns is not None, "only a known number of columns is held in a buffer"
                self.emitter.add(StackBuffer(f"held{place}", self.plan.real, columns))

    def before(self, passes: Sequence[Pass]) -> None:
        """Compute the values that these passes use and that need no pass."""
        used = {known for each in passes for known in knowns_in(each.expressions)}
        for known, expression in reversed(self.plan.cut.before):
            if known in used:
                used |= set(knowns_in([expression]))
        for known, expression in self.plan.cut.before:
            if known in used:
                self._value(known, expression)

    def run(self, number: int, each: Pass) -> None:
        """Write one pass, and the values of the row that are known after it."""
        if each.visits:
            for leaf in every_node(each.visits):
                if isinstance(leaf, Extent | Input | Known) and not self.plan.by_columns(leaf):
                    self.keep(leaf)
            visit = AnyOrder if self.plan.any_order else Visit
            visit(self.plan, self.emitter, self.known, number, each).run()
        for known, expression in each.values:
            self._value(known, expression)
        for known in self.kept:
            if known in self.known and known in each.results:
                self._put(known)
        for name, expression in each.ends:
            self.end(name, expression)

    def end(self, name: str, expression: Expression) -> None:
        """Compute and store a result of the whole row."""
        self.emitter.stage(f"{name}_value")
        note = f"Store {name}, one for the row."
        self.lanes.store(name, expression, self._single, note)

    @property
    def _single(self) -> int | None:
        return None if self.emitter.lanes == 1 else 1

    def _value(self, known: Known, expression: Expression) -> None:
        self.emitter.stage(known.name, note=f"{known.name}: {_said(expression)}.")
        self.known[known] = self.emitter.register(self.lanes.of(expression))

    def keep(self, leaf: Expression) -> None:
        """Read a value of the row into a register, if it is not in one yet."""
        if leaf not in self.known:
            self.known[leaf] = self.emitter.register(self.lanes.element(leaf))

    def _put(self, known: Known) -> None:
        at = Address(self.plan.array(known), ZERO)
        self.emitter.add(Store(at, self.known[known], self._single))


def _said(expression: Expression) -> str:
    text = repr(expression)
    return text if len(text) < 60 else "computed once"
