"""One pass over the columns of a row: loops of vectors, the tail, and the folds of reductions.

Element j of a row belongs to partial result j modulo ``PARTIAL``. A target whose vectors have few
lanes, or that has few registers, visits the partial results in groups. At the end, partial results
are folded in halves: the first with the one half of them further on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument, Builder
from tilewright.elementwise.functions import lower_expression, lower_function
from tilewright.ir.access import load, store
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import fold_lanes
from tilewright.ir.ops import (
    Advance,
    Apply,
    Load,
    Loop,
    MakeMask,
    Op,
    Point,
    StackBuffer,
    Store,
    Zero,
)
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.plan.rows.passes import Held, Pass, Reduction
from tilewright.plan.rows.plan import PARTIAL, RowsPlan
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Cast, Input
from tilewright.spec.signature import symbol_of
from tilewright.spec.types import is_integer
from tilewright.symbolic import ONE, ZERO, div, mod, value

#: More vectors than this are stored by a loop.
_STRAIGHT = 4


def real_of(b: Builder, whole: Argument) -> Argument:
    """Return integers as numbers of floating point."""
    return float(whole) if isinstance(whole, int) else b("to_f32", whole)


def stored(expression: Expression, type_: str) -> Expression:
    """Return ``expression`` without its cast to ``type_``: the store to ``type_`` rounds it."""
    match expression:
        case Cast(type=given, args=(inner,)) if given == type_:
            return inner
    return expression


def reduce_fn(b: Builder, fn: str, x: Argument, y: Argument) -> Argument:
    """Return the sum, or the maximum or minimum, in which NaN stays NaN.

    The elementary maximum returns its second operand if one is NaN. Both orders give the same
    number otherwise, or two zeros, so that the bits of both together are NaN if an operand is.
    """
    if fn == "sum":
        return b("add", x, y)
    if b.real != "f32":
        return lower_function(b, {"max": "maximum", "min": "minimum"}[fn], x, y)
    return b("float", b("or", b("bits", b(fn, x, y)), b("bits", b(fn, y, x))))


def into(register: Register, ops: Iterable[Op]) -> Iterator[Op]:
    """Yield ``ops``, the last of which then gives ``register`` a new value."""
    *before, last = ops
    assert isinstance(last, Apply)
    yield from before
    yield replace(last, dst=register, again=register not in last.args)


class Visit:
    """Writes one pass. ``known`` has the registers of values of the row, and gets new ones."""

    def __init__(
        self,
        plan: RowsPlan,
        emitter: Emitter,
        known: dict[Expression, Register],
        number: int,
        each: Pass,
    ) -> None:
        self.plan, self.emitter, self.known, self.each = plan, emitter, known, each
        self.prefix = f"p{number}"
        self.lanes, self.unroll = emitter.lanes, plan.unroll(each)
        self.step = self.lanes * self.unroll
        self.period = PARTIAL if each.reductions else self.step
        self.groups = self.period // self.step
        self.tail = mod(plan.cols, self.period)
        self.buffered = bool(each.reductions) and (self.groups > 1 or self.tail != 0)
        self.pieces = 0

    def run(self) -> None:
        """Write the pass."""
        self.emitter.stage(self.prefix, note=self._title())
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

    def _title(self) -> str:
        parts = [f"{each.fn} of {_short(each.expression)}" for each in self.each.reductions]
        parts += [f"{held!r}: {_short(made)}" for held, made in self.each.holds]
        parts += [f"{name}: {_short(made)}" for name, made in self.each.stores]
        return f"Pass over the columns: {', and '.join(parts)}."

    # --- whole periods -------------------------------------------------------------------------

    def _all_at_once(self, trips: Expr) -> list[list[Register]]:
        """All partial results in registers, for all periods."""
        starts = [self._begin(reduction, self.emitter) for reduction in self.each.reductions]
        pointers = self._pointers(self.prefix, ZERO)
        self.emitter.add(*pointers.points)
        body = self._vectors(pointers.names, [None] * self.unroll, starts)
        self.emitter.add(*_repeated("period", trips, body, pointers.advanced(self.period)))
        if self.buffered:
            for reduction, registers in zip(self.each.reductions, starts, strict=True):
                for place, register in enumerate(registers):
                    at = Address(_parts(reduction), Integer(place * self.lanes))
                    self.emitter.add(Store(at, register))
        return starts

    def _in_groups(self, trips: Expr) -> None:
        """A group of partial results at a time, each for all periods: through buffers."""
        outer = self._pointers(f"{self.prefix}g", ZERO)
        self.emitter.add(*outer.points)
        buffers = {
            f"{self.prefix}{_parts(r)}": Point(
                f"{self.prefix}{_parts(r)}", _parts(r), ZERO, self.plan.real, written=True
            )
            for r in self.each.reductions
        }
        self.emitter.add(*buffers.values())
        inner = self._emitter("group")
        starts = [self._begin(reduction, inner) for reduction in self.each.reductions]
        pointers = self._pointers(self.prefix, ZERO, outer.names)
        body = self._vectors(pointers.names, [None] * self.unroll, starts)
        inner.add(*pointers.points)
        inner.add(*_repeated("period", trips, body, pointers.advanced(self.period)))
        for name, registers in zip(buffers, starts, strict=True):
            for place, register in enumerate(registers):
                inner.add(Store(Address(name, Integer(place * self.lanes)), register))
        step = Integer(self.step)
        inner.add(*(Advance(name, step) for name in (*outer.names.values(), *buffers)))
        self.emitter.add(Loop("group", Integer(self.groups), tuple(inner.emit())))

    def _begin(self, reduction: Reduction, emitter: Emitter) -> list[Register]:
        """Return registers that hold the value with which a reduction begins."""
        found = []
        for place in range(self.unroll):
            register = emitter.fresh(f"{reduction.known.name}_acc{place}", self.plan.real)
            emitter.add(Zero(register), *started(reduction.fn, register, emitter))
            found.append(register)
        return found

    def _cleared(self) -> Iterator[Op]:
        """Fill the buffers with the values with which reductions begin."""
        for reduction in self.each.reductions:
            emitter = self._emitter(f"clear_{reduction.fn}")
            register = emitter.fresh("start", self.plan.real)
            emitter.add(Zero(register), *started(reduction.fn, register, emitter))
            name = f"{self.prefix}{_parts(reduction)}_first"
            emitter.add(Point(name, _parts(reduction), ZERO, self.plan.real, written=True))
            ops: tuple[Op, ...] = (Store(Address(name, ZERO), register),)
            count = PARTIAL // self.lanes
            ops = (*ops, Advance(name, Integer(self.lanes)))
            emitter.add(Loop("part", Integer(count), ops))
            yield from emitter.emit()

    # --- the tail ------------------------------------------------------------------------------

    def _tail(self) -> None:
        """Vectors after the last whole period, then the last elements."""
        start = self.plan.cols - self.tail
        whole, left = div(self.tail, self.lanes), mod(self.tail, self.lanes)
        pointers = self._pointers(f"{self.prefix}t", start)
        parts = {_parts(r): f"{self.prefix}t{_parts(r)}" for r in self.each.reductions}
        self.emitter.add(*pointers.points)
        self.emitter.add(
            *(Point(name, of, ZERO, self.plan.real, written=True) for of, name in parts.items())
        )
        advanced = pointers.advanced(self.lanes)
        advanced += [Advance(name, Integer(self.lanes)) for name in parts.values()]
        if whole != 0:
            body = self._single(pointers.names, parts, None)
            self.emitter.add(*_repeated("single", whole, body, advanced))
        if left != 0:
            self.emitter.add(*self._single(pointers.names, parts, self._active(left)))

    def _active(self, left: Expr) -> Active:
        vector, known = self.plan.vector, value(left)
        if vector.mask is None:
            return left if known is None else known
        mask = MaskRegister(f"{self.prefix}_last", vector, left)
        self.emitter.add(MakeMask(mask))
        return mask

    def _single(
        self, pointers: Mapping[str, str], parts: Mapping[str, str], active: Active
    ) -> list[Op]:
        """One vector, of which ``active`` lanes exist; partial results are in memory."""
        inner = self._emitter("last" if active is not None else "one")
        column = _Column(self, inner, pointers, 0, active)
        for reduction in self.each.reductions:
            at = Address(parts[_parts(reduction)], ZERO)
            so_far = inner.fresh(f"{reduction.known.name}_so_far", self.plan.real)
            made = column.of(reduction.expression)
            inner.add(Load(so_far, at))
            inner.stage(f"{reduction.known.name}_with")
            both = reduce_fn(inner.builder, reduction.fn, inner.take(so_far), made)
            inner.add(Store(at, inner.register(both), active))
        column.store()
        return list(inner.emit())

    # --- vectors -------------------------------------------------------------------------------

    def _vectors(
        self,
        pointers: Mapping[str, str],
        actives: Sequence[Active],
        sums: Sequence[Sequence[Register]],
    ) -> list[Op]:
        """Vectors side by side, whose reductions stay in the registers ``sums``."""
        inner = self._emitter("")
        for place, active in enumerate(actives):
            column = _Column(self, inner, pointers, place, active)
            for reduction, registers in zip(self.each.reductions, sums, strict=True):
                register = registers[place]
                made = inner.register(column.of(reduction.expression))
                inner.add(*self._added(reduction.fn, register, made))
            column.store()
        return list(inner.emit())

    def _added(self, fn: str, register: Register, made: Register) -> Iterator[Op]:
        """Reduce ``made`` into ``register``."""
        self.pieces += 1
        emitter = Emitter(
            self.plan.target, self.lanes, f"{self.prefix}with{self.pieces}_", self.plan.real
        )
        reduce_fn(emitter.builder, fn, emitter.take(register), emitter.take(made))
        yield from into(register, emitter.emit())

    def _emitter(self, name: str) -> Emitter:
        self.pieces += 1
        prefix = f"{self.prefix}{name}{self.pieces}_"
        return Emitter(self.plan.target, self.lanes, prefix, self.plan.real)

    def _pointers(
        self, prefix: str, offset: Expr, bases: Mapping[str, str] | None = None
    ) -> Pointers:
        """Return pointers to the arrays that the pass visits, ``offset`` elements into the row."""
        found: dict[str, Point] = {}
        for base, written in self._arrays():
            name = f"{prefix}{base}"
            operand = self.plan.operands.get(base)
            element = self.plan.real if operand is None else operand.type
            start = base if bases is None else bases[base]
            found[base] = Point(name, start, offset, element, written=written)
        return Pointers(found)

    def _arrays(self) -> Iterator[tuple[str, bool]]:
        """Yield the arrays with an element for each column that the pass visits."""
        found: dict[str, bool] = {}
        for node in every_node(self.each.visits):
            if isinstance(node, Input) and node not in self.known:
                found.setdefault(symbol_of(node.name), False)
            elif isinstance(node, Held):
                found.setdefault(self.place_of(node), False)
        for held, _ in self.each.holds:
            found[self.place_of(held)] = True
        for name, _ in self.each.stores:
            found[self.symbol(name)] = True
        yield from found.items()

    def place_of(self, held: Held) -> str:
        """Return the array in which a held value is, by its name in C."""
        name = self.plan.held[held.number]
        return self.symbol(name) if name else f"held{held.number}"

    def symbol(self, name: str) -> str:
        """Return the name in C of the result ``name``."""
        return next(key for key in self.plan.operands if key.rstrip("_") == name)

    # --- the end -------------------------------------------------------------------------------

    def _fold(self, reduction: Reduction, registers: Sequence[Register] | None) -> None:
        """Fold the partial results in halves, so that all lanes hold the reduction."""
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

        def of(first: int, step: int) -> Argument:
            """Fold parts ``first``, ``first + step`` and so on."""
            if step == count:
                return part(first)
            one, other = of(first, 2 * step), of(first + step, 2 * step)
            return reduce_fn(emitter.builder, fn, one, other)

        single = fold_lanes(emitter, of(0, 1), partial(reduce_fn, emitter.builder, fn), name)
        self.known[reduction.known] = emitter.register(emitter.spread(single, f"{name}_lanes"))


class Pointers:
    """Pointers that a loop moves along a row, by the array to which they point."""

    def __init__(self, points: Mapping[str, Point]) -> None:
        self.points = tuple(points.values())
        self.names = {base: point.pointer for base, point in points.items()}

    def advanced(self, step: int) -> list[Op]:
        """Return operations that move all pointers by ``step`` elements."""
        return [Advance(name, Integer(step)) for name in self.names.values()]


class _Column:
    """The values of one vector of columns; each is computed once."""

    def __init__(
        self,
        visit: Visit,
        emitter: Emitter,
        pointers: Mapping[str, str],
        place: int,
        active: Active,
    ) -> None:
        self.visit, self.emitter, self.pointers = visit, emitter, pointers
        self.place, self.active = place, active
        self.made: dict[Expression, Argument] = {}
        for held, expression in visit.each.holds:
            self.made[held] = self.of(expression)
            self._put(self.made[held], visit.place_of(held), visit.plan.real)

    def of(self, expression: Expression) -> Argument:
        """Return the value of an expression."""
        entering: Callable[..., None] = self._entering
        return lower_expression(
            expression, self.emitter.builder, self._leaf, self.visit.plan.real, entering
        )

    def store(self) -> None:
        """Store the results of the pass."""
        for name, expression in self.visit.each.stores:
            symbol = self.visit.symbol(name)
            type_ = self.visit.plan.operands[symbol].type
            self._put(self.of(stored(expression, type_)), symbol, type_)

    def _put(self, found: Argument, symbol: str, type_: str) -> None:
        address = Address(self.pointers[symbol], self.place * self.emitter.lanes * ONE)
        self.emitter.stage(f"store{self.place}")
        store(self.emitter, found, self.visit.plan.real, address, self.active, type_)

    def _entering(self, call: object) -> None:
        fn = getattr(call, "fn", "value")
        self.emitter.stage(f"{fn}{self.place}", family=fn)

    def _leaf(self, leaf: Expression) -> Argument:
        if leaf not in self.made:
            self.made[leaf] = self._read(leaf)
        return self.made[leaf]

    def _read(self, leaf: Expression) -> Argument:
        emitter, plan = self.emitter, self.visit.plan
        if leaf in self.visit.known:
            return emitter.take(self.visit.known[leaf])
        if isinstance(leaf, Held):
            symbol, type_ = self.visit.place_of(leaf), plan.real
        else:
            assert isinstance(leaf, Input)
            symbol, type_ = symbol_of(leaf.name), leaf.type
        address = Address(self.pointers[symbol], self.place * emitter.lanes * ONE)
        found = load(emitter, address, self.active, type_, f"{symbol.rstrip('_')}{self.place}")
        return real_of(emitter.builder, found) if is_integer(type_) else found


def started(fn: str, register: Register, emitter: Emitter) -> Iterator[Op]:
    """Yield the operation that makes a register of zeros the start of a maximum or minimum."""
    if fn != "sum":
        infinity = emitter.register(float("inf"))
        how = {"max": "sub", "min": "add"}[fn]
        yield Apply(register, how, (register, infinity))


def _parts(reduction: Reduction) -> str:
    """Return the name of the buffer with the partial results of a reduction."""
    return f"{reduction.known.name}_parts"


def _repeated(
    counter: str, trips: Expr, body: Sequence[Op], advanced: Sequence[Op]
) -> tuple[Op, ...]:
    if trips == 1:
        return (*body, *advanced)
    return (Loop(counter, trips, (*body, *advanced)),)


def _short(expression: Expression) -> str:
    text = repr(expression)
    return text if len(text) <= 50 else f"{text[:47]}..."
