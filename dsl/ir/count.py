"""Count the operations and bytes of a program, as formulas of the sizes known only at the call.

The interpreter counts the same work while it runs a program. A test compares both counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import sympy
from sympy import Expr

from tilewright.errors import PlanError
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, Remainder, div, evaluate, positive, slots, symbol

from .nest import Bind, BlockLoop, Call, NestNode, Pack, Program, When, WhenSame
from .nodes import inside, walk
from .ops import Loop, Op, StackBuffer, TileProgram

#: Formulas with more remainders (``x % n``) than this are not rewritten, because that is slow and
#: rarely makes the formula shorter.
MOST_REMAINDERS = 4


@dataclass(frozen=True, slots=True)
class Formulas:
    """The work of a call: its operations of each kind, and the bytes that it reads and writes."""

    loads: Expr = ZERO
    broadcasts: Expr = ZERO
    multiply_adds: Expr = ZERO
    elementary_operations: Expr = ZERO
    stores: Expr = ZERO
    bytes_read: Expr = ZERO
    bytes_written: Expr = ZERO

    def __add__(self, other: Formulas) -> Formulas:
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Formulas(*(one + two for one, two in pairs))

    def times(self, trips: Expr) -> Formulas:
        """Return the work of ``trips`` repetitions of this work."""
        return Formulas(*(getattr(self, f.name) * trips for f in fields(self)))

    def given(self, count: Expr) -> Formulas:
        """Return formulas that are equal to these if ``count`` is positive, and 0 if it is not."""
        return Formulas(*(_given(getattr(self, f.name), count) for f in fields(self)))

    def summed(self, counter: str, first: int, trips: Expr) -> Formulas:
        """Return the work of a loop over ``counter``; these formulas are the work of its body."""
        steps = (symbol(counter), first, trips - 1)
        return Formulas(*(sympy.summation(getattr(self, f.name), steps) for f in fields(self)))

    def expanded(self) -> Formulas:
        """Return the same formulas in a short form, with like terms added up."""
        return Formulas(*(_shortest(getattr(self, f.name)) for f in fields(self)))

    @property
    def symbols(self) -> set[sympy.Symbol]:
        """The sympy symbols (sizes and loop counters) on which the formulas depend."""
        return set().union(*(getattr(self, f.name).free_symbols for f in fields(self)))


def is_counted(program: Program) -> bool:
    """Return True if formulas can give the work of ``program``.

    They cannot if the call computes sizes of blocks: no formula is then simpler than the loops.
    """
    return not any(isinstance(node, Bind) for node in walk(program.nest))


def formulas(program: Program, *, same: bool = False) -> Formulas:
    """Return the work of one call of ``program``; PlanError unless ``is_counted(program)``.

    With ``same``, operands that may be the same array are assumed to be the same.
    """
    _check_counted(program)
    tiles = {tile.name: tile_formulas(tile) for tile in program.tiles}
    return _nest(program.nest, tiles, same).expanded()


def _check_counted(program: Program) -> None:
    if not is_counted(program):
        raise PlanError("there are no formulas of blocks whose size the call computes")


def tile_formulas(tile: TileProgram) -> Formulas:
    """Return the work of one call of a tile program."""
    return _ops(tile.body + tile.end).expanded()


def calls(program: Program, *, same: bool = False) -> dict[str, Expr]:
    """Return how often a call of ``program`` calls each tile program, as formulas.

    PlanError unless ``is_counted(program)``.
    """
    _check_counted(program)
    found: dict[str, Expr] = {}
    for tile in program.tiles:
        one = {
            other.name: Formulas(loads=ONE if other is tile else ZERO) for other in program.tiles
        }
        found[tile.name] = sympy.expand(_nest(program.nest, one, same).loads)
    return found


@dataclass(frozen=True, slots=True)
class Counted:
    """The work of one call of known sizes, and the number of calls of each tile program."""

    formulas: Formulas
    calls: Mapping[str, int]


def counted(program: Program, sizes: Mapping[str, int]) -> Counted:
    """Return the work of a call with these ``sizes``, even if ``is_counted`` is False.

    Operands that may be the same array are assumed to be different arrays.
    """
    counter = _Counter({tile.name: tile_formulas(tile) for tile in program.tiles})
    counter.through(program.nest, sizes, 1)
    names = [f.name for f in fields(Formulas)]
    totals = dict.fromkeys(names, 0)
    for (name, _), (times, each) in counter.found.items():
        counter.calls[name] = counter.calls.get(name, 0) + times
        totals = {key: totals[key] + times * each[key] for key in names}
    return Counted(
        Formulas(**{name: sympy.Integer(total) for name, total in totals.items()}), counter.calls
    )


@dataclass(slots=True)
class _Counter:
    """Counts the work of a nest with known sizes; equal calls of one tile are counted together."""

    tiles: Mapping[str, Formulas]
    found: dict[tuple[str, tuple[int, ...]], tuple[int, dict[str, int]]] = field(
        default_factory=dict
    )
    calls: dict[str, int] = field(default_factory=dict)

    def through(self, nodes: Sequence[NestNode], sizes: Mapping[str, int], times: int) -> None:
        for node in nodes:
            match node:
                case Call():
                    self._called(node.program, sizes, times)
                case BlockLoop():
                    self._loop(node, sizes, times)
                case Bind():
                    inner = dict(sizes)
                    for bound in node.bound:
                        inner[bound.name] = evaluate(bound.value, inner)
                    self.through(node.body, inner, times)
                case When():
                    body = node.body if evaluate(node.count, sizes) > 0 else node.otherwise
                    self.through(body, sizes, times)
                case WhenSame():
                    self.through(node.otherwise, sizes, times)
                case _:
                    self.through(inside(node), sizes, times)

    def _called(self, name: str, sizes: Mapping[str, int], times: int) -> None:
        each = self.tiles[name]
        known = sorted({slot for f in fields(each) for slot in slots(getattr(each, f.name))})
        key = name, tuple(sizes[slot] for slot in known)
        before, done = self.found.get(key, (0, None))
        if done is None:
            done = {f.name: evaluate(getattr(each, f.name), sizes) for f in fields(each)}
        self.found[key] = before + times, done

    def _loop(self, loop: BlockLoop, sizes: Mapping[str, int], times: int) -> None:
        trips = evaluate(loop.trips, sizes) - loop.first
        if trips <= 0:
            return
        if not self._depends(loop.body, loop.counter):
            self.through(loop.body, {**sizes, loop.counter: loop.first}, times * trips)
            return
        for i in range(loop.first, loop.first + trips):
            self.through(loop.body, {**sizes, loop.counter: i}, times)

    def _depends(self, nodes: Sequence[NestNode], counter: str) -> bool:
        """Return True if the work of ``nodes``, a loop's body, depends on the loop's counter."""
        deciding: set[str] = set()
        for node in walk(tuple(nodes)):
            match node:
                case BlockLoop():
                    deciding |= slots(node.trips)
                case Bind():
                    deciding = deciding.union(*(slots(bound.value) for bound in node.bound))
                case When():
                    deciding |= slots(node.count)
                case Call():
                    each = self.tiles[node.program]
                    deciding = deciding.union(*(slots(getattr(each, f.name)) for f in fields(each)))
        return counter in deciding


def _shortest(expr: Expr) -> Expr:
    """Return the shorter form of ``expr``: expanded, or with ``x % n`` as ``x - x / n * n``."""
    expanded = sympy.expand(expr)
    remainders = expanded.atoms(Remainder)
    if len(remainders) > MOST_REMAINDERS:
        return expanded
    wholes = {r: r.args[0] - r.args[1] * div(r.args[0], int(r.args[1])) for r in remainders}
    return min(expanded, sympy.expand(expanded.xreplace(wholes)), key=sympy.count_ops)


def _given(expr: Expr, count: Expr) -> Expr:
    """Return ``expr`` times 1 if ``count`` is positive, else times 0.

    A term that is 0 whenever ``count`` is 0 needs no factor.
    """
    if expr == 0:
        return expr
    indicator = positive(count)
    terms = sympy.Add.make_args(sympy.expand(expr))
    zero_with_it = {count, indicator}
    return sympy.Add(
        *(t if zero_with_it & set(sympy.Mul.make_args(t)) else t * indicator for t in terms)
    )


def _nest(nodes: Sequence[NestNode], tiles: Mapping[str, Formulas], same: bool) -> Formulas:
    return sum((_node(node, tiles, same) for node in nodes), Formulas())


def _node(node: NestNode, tiles: Mapping[str, Formulas], same: bool) -> Formulas:
    match node:
        case Call():
            return tiles[node.program]
        case BlockLoop():
            return _loop(node, _nest(node.body, tiles, same))
        case When():
            then, other = (_nest(body, tiles, same) for body in (node.body, node.otherwise))
            return then.given(node.count) + other + other.given(node.count).times(-ONE)
        case WhenSame():
            return _nest(node.body if same else node.otherwise, tiles, same)
        case _:
            return _nest(inside(node), tiles, same)


def _loop(loop: BlockLoop, body: Formulas) -> Formulas:
    if symbol(loop.counter) not in body.symbols:
        return body.times(loop.trips - sympy.Min(loop.first, loop.trips))
    if loop.first:
        raise PlanError("a loop whose body depends on its counter must begin at 0", got=str(loop))
    return body.summed(loop.counter, 0, loop.trips)


def _ops(ops: Sequence[Op]) -> Formulas:
    total = Formulas()
    for op in ops:
        if isinstance(op, Loop):
            total += _ops(op.body).times(op.trips)
        else:
            total += sum(_op(op), Formulas())
    return total


def _op(op: Op) -> Iterator[Formulas]:
    """Yield the counts of an operation: its arithmetic, and the bytes that it accesses."""
    if op.counts is not None:
        yield Formulas(**{op.counts: ONE})
    for access in op.accesses():
        size = ITEMSIZE[access.element] * access.count
        written = access.counts == "stores"
        yield Formulas(**{access.counts: ONE, "bytes_written" if written else "bytes_read": size})


# --- the stack ---------------------------------------------------------------------------------

#: Bytes of stack for spilled and saved registers and for arguments, besides the C code's buffers.
_FRAMES = 8 << 10
#: Maximum number of bytes of stack that the alignment of one buffer costs.
_ALIGNED = 64


def stack_bytes(program: Program) -> int:
    """Return the maximum stack that a call of ``program`` needs, in bytes, rounded up to KiB.

    A buffer of the nest counts once for each declaration, and a buffer of a tile once for each call
    of the tile. This is the worst case: a compiler may let buffers share stack memory.
    """
    found = _FRAMES
    for node in walk(program.nest):
        if isinstance(node, Pack) and node.scratch is None:
            found += int(node.elements) * ITEMSIZE[node.element] + _ALIGNED
        elif isinstance(node, Call):
            tile = program.tile(node.program)
            for op in walk((*tile.body, *tile.end)):
                if isinstance(op, StackBuffer):
                    found += int(op.elements) * ITEMSIZE[op.element] + _ALIGNED
    return -(-found // 1024) * 1024
