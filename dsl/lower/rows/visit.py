"""One pass over the columns of a row: loops of vectors, the tail, and the folds of reductions.

Element j of a row belongs to partial result j modulo ``PARTIAL``. If the registers cannot hold all
partial results, the columns of one group of them are visited after the other. At the end, each
partial result of the first half is combined with one of the second half, until one is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import fold_lanes
from tilewright.ir.ops import Advance, Load, Loop, MakeMask, Op, Point, Prefetch, StackBuffer, Store
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.plan.rows.passes import Pass, Reduction
from tilewright.plan.rows.plan import PARTIAL, RowPasses
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ZERO, div, mod, value

from .vectors import Lanes, Vector, arrays_of, begin, both, halved, side_by_side


class Visit:
    """Writes one pass. Its reductions are added to ``known``, the registers of the row's values."""

    def __init__(
        self,
        plan: RowPasses,
        emitter: Emitter,
        known: dict[Expression, Register],
        number: int,
        each: Pass,
    ) -> None:
        self.plan, self.emitter, self.known, self.each = plan, emitter, known, each
        self.prefix = f"{emitter.prefix}p{number}"
        self.lanes, self.unroll = emitter.lanes, plan.unroll(each)
        self.step = self.lanes * self.unroll
        self.period = PARTIAL if each.reductions else self.step
        self.groups = self.period // self.step
        self.tail = mod(plan.cols, self.period)
        # If there are no columns, no trip of the loop fills the registers. The partial results are
        # then those of the buffer.
        part = self.groups > 1 or self.tail != 0 or plan.cols == 0
        self.buffered = bool(each.reductions) and part
        self.ahead = plan.far if plan.prefetching == number else ()
        self.pieces = 0

    def run(self) -> None:
        """Write the pass."""
        self.emitter.stage(self.prefix, note=self.title())
        if self.buffered:
            for reduction in self.each.reductions:
                self.emitter.add(StackBuffer(_parts(reduction), self.plan.real, PARTIAL))
        trips = div(self.plan.cols, self.period)
        starts: list[list[Register]] = []
        if self.groups > 1 and trips != 0:
            self._in_groups(trips)
        elif trips != 0:
            starts = self._all_at_once(trips)
        elif self.buffered:
            self.emitter.add(*self._cleared())
        if self.tail != 0:
            self._tail()
        for place, reduction in enumerate(self.each.reductions):
            self._fold(reduction, starts[place] if starts and not self.buffered else None)

    def title(self) -> str:
        """Return the comment in C before the pass."""
        parts = [f"{each.fn} of {_short(each.expression)}" for each in self.each.reductions]
        parts += [f"{held!r}: {_short(made)}" for held, made in self.each.holds]
        parts += [f"{name}: {_short(made)}" for name, made in self.each.stores]
        return f"Pass over the columns: {', and '.join(parts)}."

    # --- whole periods -------------------------------------------------------------------------

    def _all_at_once(self, trips: Expr) -> list[list[Register]]:
        """Visit all columns once, with all partial results in registers."""
        starts = [self._begin(reduction, self.emitter) for reduction in self.each.reductions]
        pointers = self.pointers(self.prefix, ZERO, ahead=self.ahead)
        self.emitter.add(*pointers.points)
        for times in dict.fromkeys((self.plan.periods(self.each), 1)):
            if (count := div(trips, times)) != 0:
                body = self._vectors(pointers.names, starts, times * self.unroll)
                moves = pointers.advanced(times * self.period)
                name = "period" if times == 1 else "periods"
                self.emitter.add(*repeated(name, count, body, moves))
            trips = mod(trips, times)
        if self.buffered:
            for reduction, registers in zip(self.each.reductions, starts, strict=True):
                for place, register in enumerate(registers):
                    at = Address(_parts(reduction), Integer(place * self.lanes))
                    self.emitter.add(Store(at, register))
        return starts

    def _in_groups(self, trips: Expr) -> None:
        """Visit the columns of one group of partial results after the other; buffers hold them."""
        outer = self.pointers(f"{self.prefix}g", ZERO, ahead=self.ahead)
        self.emitter.add(*outer.points)
        buffers = {
            f"{self.prefix}{_parts(r)}": Point(
                f"{self.prefix}{_parts(r)}", _parts(r), ZERO, self.plan.real, written=True
            )
            for r in self.each.reductions
        }
        self.emitter.add(*buffers.values())
        inner = self.inner("group")
        starts = [self._begin(reduction, inner) for reduction in self.each.reductions]
        pointers = self.pointers(self.prefix, ZERO, outer.names, self.ahead)
        body = self._vectors(pointers.names, starts, self.unroll)
        inner.add(*pointers.points)
        inner.add(*repeated("period", trips, body, pointers.advanced(self.period)))
        for name, registers in zip(buffers, starts, strict=True):
            for place, register in enumerate(registers):
                inner.add(Store(Address(name, Integer(place * self.lanes)), register))
        step = Integer(self.step)
        inner.add(*(Advance(name, step) for name in (*outer.names.values(), *buffers)))
        self.emitter.add(Loop("group", Integer(self.groups), tuple(inner.emit())))

    def _begin(self, reduction: Reduction, emitter: Emitter) -> list[Register]:
        """Return registers that hold the value with which a reduction begins."""
        name = f"{reduction.known.name}_acc"
        return [
            begin(emitter, reduction.fn, f"{name}{place}", self.plan.real)
            for place in range(self.unroll)
        ]

    def _cleared(self) -> Iterator[Op]:
        """Fill the buffers with the values with which reductions begin."""
        for reduction in self.each.reductions:
            emitter = self.inner(f"clear_{reduction.fn}")
            register = begin(emitter, reduction.fn, "start", self.plan.real)
            name = f"{self.prefix}{_parts(reduction)}_first"
            emitter.add(Point(name, _parts(reduction), ZERO, self.plan.real, written=True))
            ops: tuple[Op, ...] = (Store(Address(name, ZERO), register),)
            count = PARTIAL // self.lanes
            ops = (*ops, Advance(name, Integer(self.lanes)))
            emitter.add(Loop("part", Integer(count), ops))
            yield from emitter.emit()

    # --- the tail ------------------------------------------------------------------------------

    def _tail(self) -> None:
        """Visit the columns after the last whole period: single vectors, then the last elements."""
        start = self.plan.cols - self.tail
        whole, left = div(self.tail, self.lanes), mod(self.tail, self.lanes)
        pointers = self.pointers(f"{self.prefix}t", start)
        parts = {_parts(r): f"{self.prefix}t{_parts(r)}" for r in self.each.reductions}
        self.emitter.add(*pointers.points)
        self.emitter.add(
            *(Point(name, of, ZERO, self.plan.real, written=True) for of, name in parts.items())
        )
        advanced = pointers.advanced(self.lanes)
        advanced += [Advance(name, Integer(self.lanes)) for name in parts.values()]
        if whole != 0:
            body = self._single(pointers.names, parts, None)
            self.emitter.add(*repeated("single", whole, body, advanced))
        if left != 0:
            self.emitter.add(*self._single(pointers.names, parts, self.active(left)))

    def active(self, left: Expr) -> Active:
        """Return what selects the first ``left`` lanes."""
        vector, known = self.plan.vector, value(left)
        if vector.mask is None:
            return left if known is None else known
        mask = MaskRegister(f"{self.prefix}_last", vector, left)
        self.emitter.add(MakeMask(mask))
        return mask

    def _single(
        self, pointers: Mapping[str, str], parts: Mapping[str, str], active: Active
    ) -> list[Op]:
        """Visit one vector, of which ``active`` lanes exist; partial results are in memory."""
        inner = self.inner("last" if active is not None else "one")
        lanes = Lanes(self.plan, inner, self.known, pointers, 0, active)
        lanes.hold(self.each)
        for reduction in self.each.reductions:
            at = Address(parts[_parts(reduction)], ZERO)
            so_far = inner.fresh(f"{reduction.known.name}_so_far", self.plan.real)
            made = lanes.of(reduction.expression)
            inner.add(Load(so_far, at))
            inner.stage(f"{reduction.known.name}_with")
            found = both(inner.builder, reduction.fn, inner.take(so_far), made)
            inner.add(Store(at, inner.register(found), active))
        for name, expression in self.each.stores:
            lanes.store(name, expression)
        return list(inner.emit())

    # --- vectors -------------------------------------------------------------------------------

    def _vectors(
        self, pointers: Mapping[str, str], sums: Sequence[Sequence[Register]], count: int
    ) -> list[Op]:
        """Visit ``count`` vectors side by side; partial results stay in the registers ``sums``.

        If there are fewer registers than vectors, several vectors are added to each.
        """
        self.pieces += 1
        vectors = [
            Vector(self.known, [each[place % len(each)] for each in sums]) for place in range(count)
        ]
        prefix = f"{self.prefix}{self.pieces}_"
        made = side_by_side(self.plan, self.each, prefix, pointers, vectors)
        return [*made, *self._prefetched(pointers, count * self.lanes)]

    def _prefetched(self, pointers: Mapping[str, str], columns: int) -> Iterator[Op]:
        """Prefetch the ``columns`` of a trip in the rows of the next block, line by line."""
        for base in self.ahead:
            operand = self.plan.operands[base]
            line = max(1, self.plan.target.core.line // ITEMSIZE[operand.type])
            distance = self.plan.together * operand.strides["m"]
            for column in range(0, columns, line):
                yield Prefetch(Address(pointers[base], distance + column))

    def inner(self, name: str) -> Emitter:
        """Return an emitter for a part of the pass."""
        self.pieces += 1
        prefix = f"{self.prefix}{name}{self.pieces}_"
        return Emitter(self.plan.target, self.lanes, prefix, self.plan.real)

    def pointers(
        self,
        prefix: str,
        offset: Expr = ZERO,
        bases: Mapping[str, str] | None = None,
        ahead: Collection[str] = (),
    ) -> Pointers:
        """Return pointers to the arrays that the pass visits, ``offset`` elements into the row.

        Arrays of the names ``ahead`` have a pointer too, if the pass only prefetches them.
        """
        found: dict[str, Point] = {}
        arrays = arrays_of(self.plan, self.each, self.known)
        for name in ahead:
            arrays.setdefault(name, (self.plan.operands[name].type, False))
        for base, (element, written) in arrays.items():
            start = base if bases is None else bases[base]
            found[base] = Point(f"{prefix}{base}", start, offset, element, written=written)
        return Pointers(found)

    # --- the end -------------------------------------------------------------------------------

    def _fold(self, reduction: Reduction, registers: Sequence[Register] | None) -> None:
        """Combine the partial results of a reduction, and broadcast the result to all lanes."""
        emitter, fn = self.emitter, reduction.fn
        name = reduction.known.name
        emitter.stage(f"{name}_of", note=f"Fold {name}.")
        count = PARTIAL // self.lanes

        def part(place: int) -> Argument:
            if registers is not None:
                return emitter.take(registers[place])
            register = emitter.fresh(f"{name}_part{place}", self.plan.real)
            emitter.add(Load(register, Address(_parts(reduction), Integer(place * self.lanes))))
            return emitter.take(register)

        whole = halved(emitter.builder, fn, part, count)
        single = fold_lanes(emitter, whole, partial(both, emitter.builder, fn), name)
        self.known[reduction.known] = emitter.register(emitter.spread(single, f"{name}_lanes"))


class Pointers:
    """Pointers that a loop moves along a row, by the array to which they point."""

    def __init__(self, points: Mapping[str, Point]) -> None:
        self.points = tuple(points.values())
        self.names = {base: point.pointer for base, point in points.items()}

    def advanced(self, step: int) -> list[Op]:
        """Return operations that move all pointers by ``step`` elements."""
        return [Advance(name, Integer(step)) for name in self.names.values()]


def _parts(reduction: Reduction) -> str:
    """Return the name of the buffer with the partial results of a reduction."""
    return f"{reduction.known.name}_parts"


def repeated(
    counter: str, trips: Expr, body: Sequence[Op], advanced: Sequence[Op]
) -> tuple[Op, ...]:
    """Return ``body`` in a loop whose trips end with the operations ``advanced``."""
    if trips == 1:
        return (*body, *advanced)
    return (Loop(counter, trips, (*body, *advanced)),)


def _short(expression: Expression) -> str:
    text = repr(expression)
    return text if len(text) <= 50 else f"{text[:47]}..."
