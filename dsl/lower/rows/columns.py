"""The operations of a block of columns: passes over all rows, and values of the columns.

Row i belongs to partial result i modulo ``TURNS``; these are folded in halves. Each vector of the
block holds columns of its own, so that no lanes are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sympy import Expr, Integer

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.functions import lower_expression
from tilewright.ir.access import load, store
from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import Advance, Loop, MakeMask, Op, Point, Zero
from tilewright.ir.values import Active, Address, MaskRegister, Register
from tilewright.plan.rows.passes import Held, Known, Pass, Reduction
from tilewright.plan.rows.places import Place
from tilewright.plan.rows.plan import TURNS, RowsPlan
from tilewright.plan.tiling.parts import at_least_part
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Extent, Input
from tilewright.spec.network.value import slot
from tilewright.spec.signature import symbol_of
from tilewright.spec.types import is_integer
from tilewright.symbolic import ONE, ZERO, div, mod, size_expr, value

from .visit import into, real_of, reduce_fn, started, stored

#: An expression, and the index of a vector of columns. The key finds the register that has the
#: value of the expression for these columns.
Key = tuple[Expression, int]


def block_ops(plan: RowsPlan, width: int, left: Expr | None) -> Iterator[Op]:
    """Yield the operations of ``width`` vectors of columns, or of the ``left`` last columns."""
    block = _Block(plan, width, left)
    for number, each in enumerate(plan.passes):
        block.run(number, each)
        yield from block.emitter.emit()


class _Block:
    """Writes the operations of one block of columns."""

    def __init__(self, plan: RowsPlan, width: int, left: Expr | None) -> None:
        self.plan, self.width = plan, width
        self.emitter = Emitter(plan.target, plan.vector.lanes, "", plan.real)
        self.known: dict[Key, Register] = {}
        self.active: Active = None
        self.pieces = 0
        if left is not None:
            self.active = self._active(left)
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
            self._ready(each)
            self._pass(f"p{number}", each)
        for known, expression in each.values:
            self._value(known, expression)
        for name, expression in each.ends:
            self._end(name, expression)

    def _ready(self, each: Pass) -> None:
        """Read values that are the same for all rows, before the loop over rows."""
        for leaf in every_node(each.visits):
            if isinstance(leaf, Extent) or (isinstance(leaf, Input) and not self._moves(leaf)):
                for place in range(self.width):
                    self._register(leaf, place)

    def _moves(self, leaf: Input) -> bool:
        return self.plan.cut.grid.of(leaf) in (Place.FULL, Place.ROW)

    # --- passes --------------------------------------------------------------------------------

    def _pass(self, prefix: str, each: Pass) -> None:
        emitter, rows = self.emitter, self.plan.rows
        emitter.stage(prefix, note=f"Pass over the rows: {', '.join(map(repr, each.visits))[:60]}.")
        sums = {
            (reduction.known, turn, place): self._begin(reduction, turn, place)
            for reduction in each.reductions
            for turn in range(TURNS)
            for place in range(self.width)
        }
        points = {
            base: Point(f"{prefix}{base}", base, ZERO, type_, written=written)
            for base, (type_, written) in self._arrays(each).items()
        }
        emitter.add(*points.values())
        names = {base: point.pointer for base, point in points.items()}
        turns = TURNS if each.reductions else 1
        trips, tail = div(rows, turns), mod(rows, turns)
        body: list[Op] = []
        for turn in range(turns):
            body += self._row(prefix, each, names, sums, turn)
        if trips != 0:
            emitter.add(Loop("turn", trips, tuple(body)))
        for turn in range(turns - 1):
            exists = at_least_part(tail, turn + 1, turns)
            if exists != 0:
                once = tuple(self._row(prefix, each, names, sums, turn))
                emitter.add(*(once if exists == 1 else (Loop(f"row{turn}", exists, once),)))
        for reduction in each.reductions:
            for place in range(self.width):
                self._fold(reduction, place, sums)

    def _begin(self, reduction: Reduction, turn: int, place: int) -> Register:
        name = f"{reduction.known.name}_acc{turn}_{place}"
        register = self.emitter.fresh(name, self.plan.real)
        self.emitter.add(Zero(register), *started(reduction.fn, register, self.emitter))
        return register

    def _row(
        self,
        prefix: str,
        each: Pass,
        names: Mapping[str, str],
        sums: Mapping[tuple[Known, int, int], Register],
        turn: int,
    ) -> list[Op]:
        """One row of the block, then all pointers on the next one."""
        self.pieces += 1
        inner = Emitter(
            self.plan.target, self.plan.vector.lanes, f"{prefix}r{self.pieces}_", self.plan.real
        )
        for place in range(self.width):
            column = _Values(self, inner, each, names, place)
            for reduction in each.reductions:
                register = sums[reduction.known, turn, place]
                made = inner.register(column.of(reduction.expression))
                inner.add(*self._added(reduction.fn, register, made))
            for name, expression in each.stores:
                type_ = self.plan.operands[self.symbol(name)].type
                column.put(name, column.of(stored(expression, type_)))
        for base, name in names.items():
            inner.add(Advance(name, self.plan.operands[base].strides["m"]))
        return list(inner.emit())

    def _added(self, fn: str, register: Register, made: Register) -> Iterator[Op]:
        self.pieces += 1
        prefix = f"with{self.pieces}_"
        emitter = Emitter(self.plan.target, self.plan.vector.lanes, prefix, self.plan.real)
        reduce_fn(emitter.builder, fn, emitter.take(register), emitter.take(made))
        yield from into(register, emitter.emit())

    def _arrays(self, each: Pass) -> dict[str, tuple[str, bool]]:
        """Return the arrays that the pass visits row by row: their types, and if it writes them."""
        found: dict[str, tuple[str, bool]] = {}
        for node in every_node(each.visits):
            if isinstance(node, Input) and self._moves(node):
                found.setdefault(symbol_of(node.name), (node.type, False))
            elif isinstance(node, Held):
                base = self.symbol(self.plan.held[node.number])
                found.setdefault(base, (self.plan.real, False))
        for held, _ in each.holds:
            found[self.symbol(self.plan.held[held.number])] = self.plan.real, True
        for name, _ in each.stores:
            base = self.symbol(name)
            found[base] = self.plan.operands[base].type, True
        return found

    def symbol(self, name: str) -> str:
        """Return the name in C of the result ``name``."""
        return next(key for key in self.plan.operands if key.rstrip("_") == name)

    def _fold(
        self,
        reduction: Reduction,
        place: int,
        sums: Mapping[tuple[Known, int, int], Register],
    ) -> None:
        emitter = self.emitter
        emitter.stage(f"{reduction.known.name}_{place}")
        parts = [emitter.take(sums[reduction.known, turn, place]) for turn in range(TURNS)]
        found: list[Argument] = list(parts)
        while len(found) > 1:
            half = len(found) // 2
            pairs = zip(found[:half], found[half:], strict=True)
            found = [reduce_fn(emitter.builder, reduction.fn, x, y) for x, y in pairs]
        self.known[reduction.known, place] = emitter.register(found[0])

    # --- values of columns ---------------------------------------------------------------------

    def _value(self, known: Known, expression: Expression) -> None:
        for place in range(self.width):
            self.emitter.stage(f"{known!r}_{place}")
            self.known[known, place] = self.emitter.register(self._lowered(expression, place))

    def _lowered(self, expression: Expression, place: int) -> Argument:
        def leaf(node: Expression) -> Argument:
            return self.emitter.take(self._register(node, place))

        return lower_expression(expression, self.emitter.builder, leaf, self.plan.real)

    def _register(self, leaf: Expression, place: int) -> Register:
        if (leaf, place) not in self.known:
            self.known[leaf, place] = self._read(leaf, place)
        return self.known[leaf, place]

    def _read(self, leaf: Expression, place: int) -> Register:
        emitter = self.emitter
        if isinstance(leaf, Extent):
            name = f"{leaf.dim.name}_all{place}"
            made = emitter.splat(size_expr(slot(leaf.dim), leaf.dim), self.plan.real, name)
            return emitter.register(made)
        assert isinstance(leaf, Input)
        name = symbol_of(leaf.name)
        if self.plan.cut.grid.of(leaf) == Place.COLUMN:
            at = Address(name, place * emitter.lanes * ONE)
            found = load(emitter, at, self.active, leaf.type, f"{name}{place}")
            return emitter.register(
                real_of(emitter.builder, found) if is_integer(leaf.type) else found
            )
        return emitter.register(spread(self.plan, emitter, leaf, name, f"{name}{place}"))

    def _end(self, name: str, expression: Expression) -> None:
        base = self.symbol(name)
        for place in range(self.width):
            self.emitter.stage(f"{name}_{place}", note=f"Store {name}.")
            type_ = self.plan.operands[base].type
            found = self._lowered(stored(expression, type_), place)
            at = Address(base, place * self.emitter.lanes * ONE)
            store(self.emitter, found, self.plan.real, at, self.active, type_)


def spread(plan: RowsPlan, emitter: Emitter, leaf: Input, pointer: str, name: str) -> Argument:
    """Return one element at ``pointer``, in all lanes."""
    single = Emitter(plan.target, 1, f"{emitter.prefix}{name}one_", plan.real)
    found = load(single, Address(pointer, ZERO), None, leaf.type, "bits")
    if is_integer(leaf.type):
        found = real_of(single.builder, found)
    register = single.register(found)
    emitter.add(*single.emit())
    return emitter.spread(register, f"{name}all")


class _Values:
    """The values of one vector of columns in one row; each is computed once."""

    def __init__(
        self, block: _Block, emitter: Emitter, each: Pass, names: Mapping[str, str], place: int
    ) -> None:
        self.block, self.emitter, self.names, self.place = block, emitter, names, place
        self.made: dict[Expression, Argument] = {}
        for held, expression in each.holds:
            self.made[held] = self.of(expression)
            self.put(block.plan.held[held.number], self.made[held], block.plan.real)

    def of(self, expression: Expression) -> Argument:
        """Return the value of an expression."""
        real = self.block.plan.real
        return lower_expression(expression, self.emitter.builder, self._leaf, real, self._entering)

    def put(self, name: str, found: Argument, type_: str = "") -> None:
        """Store a value in the row of the result ``name``."""
        base = self.block.symbol(name)
        type_ = type_ or self.block.plan.operands[base].type
        self.emitter.stage(f"store{self.place}")
        real = self.block.plan.real
        store(self.emitter, found, real, self._at(base), self.block.active, type_)

    def _at(self, base: str) -> Address:
        return Address(self.names[base], Integer(self.place * self.emitter.lanes))

    def _entering(self, call: object) -> None:
        fn = getattr(call, "fn", "value")
        self.emitter.stage(f"{fn}{self.place}", family=fn)

    def _leaf(self, leaf: Expression) -> Argument:
        if leaf not in self.made:
            self.made[leaf] = self._read(leaf)
        return self.made[leaf]

    def _read(self, leaf: Expression) -> Argument:
        block, emitter = self.block, self.emitter
        if (leaf, self.place) in block.known:
            return emitter.take(block.known[leaf, self.place])
        if isinstance(leaf, Held):
            base, type_ = block.symbol(block.plan.held[leaf.number]), block.plan.real
        else:
            assert isinstance(leaf, Input)
            base, type_ = symbol_of(leaf.name), leaf.type
            if block.plan.cut.grid.of(leaf) == Place.ROW:
                return spread(block.plan, emitter, leaf, self.names[base], f"{base}{self.place}")
        found = load(emitter, self._at(base), block.active, type_, f"{base}{self.place}")
        return real_of(emitter.builder, found) if is_integer(type_) else found
