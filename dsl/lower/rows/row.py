"""The operations of one row: passes over its columns, and the values of the row between them."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.functions import lower_expression
from tilewright.ir.access import load, store
from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import Op, StackBuffer
from tilewright.ir.values import Address, Register
from tilewright.plan.rows.passes import Known, Pass
from tilewright.plan.rows.places import Place
from tilewright.plan.rows.plan import RowsPlan
from tilewright.spec.expression.nodes import Call, Expression, every_node
from tilewright.spec.expression.tensors import Extent, Input
from tilewright.spec.network.value import slot
from tilewright.spec.signature import symbol_of
from tilewright.spec.types import is_integer
from tilewright.symbolic import ZERO, size_expr, value

from .visit import Visit, real_of, stored


def row_ops(plan: RowsPlan) -> Iterator[Op]:
    """Yield the operations of one row."""
    row = Row(plan)
    for number, each in enumerate(plan.passes):
        row.run(number, each)
        yield from row.emitter.emit()


class Row:
    """Writes the operations of one row.

    ``known`` has the registers of values of the row, which are the same in all lanes.
    """

    def __init__(self, plan: RowsPlan) -> None:
        self.plan = plan
        self.emitter = Emitter(plan.target, plan.vector.lanes, "", plan.real)
        self.known: dict[Expression, Register] = {}
        self._buffers()
        for known, expression in plan.cut.before:
            self._value(known, expression)

    def _buffers(self) -> None:
        for place, name in enumerate(self.plan.held):
            if not name:
                columns = value(self.plan.cols)
                assert columns is not None, "only a known number of columns is held in a buffer"
                self.emitter.add(StackBuffer(f"held{place}", self.plan.real, columns))

    def run(self, number: int, each: Pass) -> None:
        """Write one pass, and the values of the row that are known after it."""
        if each.visits:
            for leaf in _leaves(each):
                if isinstance(leaf, Extent) or self._is_of_row(leaf):
                    self.register(leaf)
            found = Visit(self.plan, self.emitter, self.known, number, each)
            found.run()
        for known, expression in each.values:
            self._value(known, expression)
        for name, expression in each.ends:
            self._end(name, expression)

    def _is_of_row(self, leaf: Expression) -> bool:
        places = self.plan.cut.grid
        return isinstance(leaf, Input) and places.of(leaf) in (Place.ROW, Place.ONE)

    def _value(self, known: Known, expression: Expression) -> None:
        self.emitter.stage(known.name, note=f"{known.name}: {_said(expression)}.")
        found = lower_expression(expression, self.emitter.builder, self._leaf, self.plan.real)
        self.known[known] = self.emitter.register(found)

    def _leaf(self, leaf: Expression) -> Argument:
        return self.emitter.take(self.register(leaf))

    def register(self, leaf: Expression) -> Register:
        """Return the register that holds a value of the row in all lanes."""
        if leaf not in self.known:
            self.known[leaf] = self._read(leaf)
        return self.known[leaf]

    def _read(self, leaf: Expression) -> Register:
        emitter = self.emitter
        if isinstance(leaf, Extent):
            name = f"{leaf.dim.name}_all"
            made = emitter.splat(size_expr(slot(leaf.dim), leaf.dim), self.plan.real, name)
            return emitter.register(made)
        assert isinstance(leaf, Input)
        name = symbol_of(leaf.name)
        single = Emitter(self.plan.target, 1, f"{name}one_", self.plan.real)
        found = load(single, Address(name, ZERO), None, leaf.type, "bits")
        if is_integer(leaf.type):
            found = real_of(single.builder, found)
        register = single.register(found)
        emitter.add(*single.emit())
        return emitter.register(emitter.spread(register, f"{name}all"))

    def _end(self, name: str, expression: Expression) -> None:
        self.emitter.stage(f"{name}_value", note=f"Store {name}, one for the row.")
        operand = next(o for key, o in self.plan.operands.items() if key.rstrip("_") == name)
        rounded = stored(expression, operand.type)
        found = lower_expression(rounded, self.emitter.builder, self._leaf, self.plan.real)
        active = None if self.emitter.lanes == 1 else 1
        address = Address(operand.name, ZERO)
        store(self.emitter, found, self.plan.real, address, active, operand.type)


def _said(expression: Expression) -> str:
    text = repr(expression)
    return text if len(text) < 60 else "computed once"


def _leaves(each: Pass) -> Iterator[Expression]:
    return (node for node in every_node(each.visits) if not isinstance(node, Call))
