"""One pass over the columns of a row whose reductions may have any order.

All vectors of a trip are combined first, then with the one register that has the partial results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial, reduce

from sympy import Integer

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.reductions import COMBINERS
from tilewright.ir.interleaving import fold_registers
from tilewright.ir.values import Active, Register
from tilewright.spec.expression.nodes import Expression

from .vectors import Lanes, begin, both, included
from .visit import Pointers, Visit, repeated


class AnyOrder(Visit):
    """Writes one pass over a known number of columns."""

    def run(self) -> None:
        """Write the pass: a loop, single vectors, a tail, and the vectors that pad the results."""
        self.emitter.stage(self.prefix, note=self.title())
        sums = [
            begin(self.emitter, each.fn, f"{each.known.name}_acc", self.plan.real)
            for each in self.each.reductions
        ]
        pointers = self.pointers(self.prefix)
        self.emitter.add(*pointers.points)
        whole, left = divmod(int(self.plan.cols), self.lanes)
        trips, few = divmod(whole, self.unroll)
        self._visit(pointers, sums, self.unroll, trips)
        self._visit(pointers, sums, few, 1)
        if left:
            self._visit(pointers, sums, 1, 1, self.active(Integer(left)))
        if self.plan.padded and self.each.stores:
            missing = self.plan.padded // self.lanes - whole - bool(left)
            self._visit(pointers, sums, 1, missing, known=self._filled())
        for register, each in zip(sums, self.each.reductions, strict=True):
            self.emitter.stage(f"{each.known.name}_of", note=f"Fold {each.known.name}.")
            b, how = self.emitter.builder, COMBINERS[each.fn]
            lanes = [self.emitter.take(register)]
            total = fold_registers(self.emitter, lanes, partial(both, b, each.fn))
            self.known[each.known] = self.emitter.register(how.result(b, total))

    def _filled(self) -> dict[Expression, Register]:
        """Return the known values if all elements of the row are the plan's ``fill``."""
        fill = self.emitter.register(Lanes(self.plan, self.emitter, self.known).of(self.plan.fill))
        leaves = (leaf for leaf in self.each.inputs() if self.plan.by_columns(leaf))
        return self.known | dict.fromkeys(leaves, fill)

    def _visit(
        self,
        pointers: Pointers,
        sums: Sequence[Register],
        count: int,
        trips: int,
        active: Active = None,
        known: Mapping[Expression, Register] | None = None,
    ) -> None:
        """Visit ``count`` vectors in each of ``trips`` trips. ``known`` is by default the row's."""
        if not count or not trips:
            return
        inner = self.inner("part")
        found: list[list[Register]] = [[] for _ in sums]
        for place in range(count):
            lanes = Lanes(self.plan, inner, known or self.known, pointers.names, place, active)
            for each, registers in zip(self.each.reductions, found, strict=True):
                registers.append(inner.register(lanes.reduced(each)))
            for name, expression in self.each.stores:
                lanes.store(name, expression)
        for each, register, registers in zip(self.each.reductions, sums, found, strict=True):
            inner.stage(each.known.name)
            lanes_of: list[Argument] = [*map(inner.take, registers)]
            total = inner.register(reduce(partial(both, inner.builder, each.fn), lanes_of))
            inner.add(*included(self.plan, each.fn, register, total, inner.prefix))
        advanced = pointers.advanced(count * self.lanes)
        self.emitter.add(*repeated("trip", Integer(trips), list(inner.emit()), advanced))
