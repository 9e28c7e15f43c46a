"""Cut the expressions of a row program at their reductions into passes over a row.

A pass visits all columns of a row. It reduces values and stores results. It may also store a value
that a later pass needs, if computing it again is expensive. Values that are the same for the whole
row, for example a mean, are computed once between two passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.elementwise.builder import Argument, Builder, live
from tilewright.elementwise.functions import lower_expression
from tilewright.spec.expression.nodes import Composed, Expression, every_node, nodes_of, rows
from tilewright.spec.expression.shapes import Shaped
from tilewright.spec.expression.tensors import Input, Reduce
from tilewright.spec.network.doubles import real_of
from tilewright.spec.network.places import Grid, Place, grid_of, reduces_columns

#: If several passes need a value, it is held in memory only if computing it again takes more
#: elementary operations than this. A store and a load take about as long as this many operations.
_CHEAP = 4


@dataclass(frozen=True, slots=True, repr=False)
class Known(Expression):
    """A leaf of an expression: a value in a register, which is the same for the whole row.

    It is the result of a reduction, or was computed from such results.
    """

    number: int
    name: str
    tensor: Shaped | None

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Held(Expression):
    """A leaf of an expression: values that an earlier pass stored, one for each column."""

    number: int
    tensor: Shaped | None

    def __repr__(self) -> str:
        return f"held{self.number}"


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduce ``expression`` along the row by ``fn``; the result is ``known``."""

    fn: str
    expression: Expression
    known: Known


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the columns, and the values of the whole row that follow from it.

    ``holds`` are stored for later passes, ``stores`` are results, by name. ``values`` and ``ends``
    are computed after the pass: values in registers, and results of the row.
    """

    reductions: tuple[Reduction, ...] = ()
    holds: tuple[tuple[Held, Expression], ...] = ()
    stores: tuple[tuple[str, Expression], ...] = ()
    values: tuple[tuple[Known, Expression], ...] = ()
    ends: tuple[tuple[str, Expression], ...] = ()

    def inputs(self) -> Iterator[Input]:
        """Yield the inputs that the pass reads, each once."""
        return (node for node in every_node(self.visits) if isinstance(node, Input))

    @property
    def visits(self) -> tuple[Expression, ...]:
        """All expressions that the pass computes for each column."""
        return (
            *(each.expression for each in self.reductions),
            *(expression for _, expression in self.holds),
            *(expression for _, expression in self.stores),
        )

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All expressions that are computed in the pass or directly after it."""
        after = (expression for _, expression in (*self.values, *self.ends))
        return (*self.visits, *after)

    @property
    def results(self) -> tuple[Known, ...]:
        """The leaves for values of the whole row that are known after the pass."""
        return (*(each.known for each in self.reductions), *(known for known, _ in self.values))


@dataclass(frozen=True, slots=True)
class Cut:
    """A network cut into passes. ``before`` has the values of a row that need no pass.

    If ``columns`` is True, the network reduces columns. Read "row" as "column" in this module
    then, and "column" as "row".
    """

    grid: Grid
    columns: bool
    inputs: tuple[Input, ...]
    before: tuple[tuple[Known, Expression], ...]
    passes: tuple[Pass, ...]

    def whole(self, node: Expression) -> bool:
        """Return True if ``node`` may be in the memory of a result."""
        return self.grid.whole(node, columns=self.columns)


def cut(
    results: Mapping[str, Expression], can_hold: Callable[[int], bool] = lambda count: True
) -> Cut:
    """Return expressions, by the names of their results, cut into passes.

    ``can_hold(count)`` is True if there is memory to hold ``count`` rows of values between passes.
    """
    found = _Cutter(results)
    while not can_hold(len(found.held)):
        found.ban(found.held[-1])
    return found.cut()


class _Cutter:
    """The nodes of the results, their passes, and the values that are held."""

    def __init__(self, results: Mapping[str, Expression]) -> None:
        self.names, self.banned = tuple(results), set[int]()
        table = rows(*results.values())
        self.nodes = nodes_of(table)
        self.numbers = {id(node): number for number, node in enumerate(self.nodes)}
        by_value = {node: node for node in self.nodes}
        self.results = [by_value[result] for result in results.values()]
        grid = grid_of(self.nodes)
        assert grid is not None, "other networks have stages"
        self.grid, self.columns = grid, reduces_columns(self.nodes)
        self.levels: dict[int, int] = {}
        self.of_level: dict[int, list[Expression]] = {}
        for node in self.nodes:
            level = self.levels[id(node)] = self._level(node)
            self.of_level.setdefault(level, []).append(node)
        self.last = max(self.levels[id(node)] - (not self._varies(node)) for node in self.results)
        self.last = max(self.last, 0)
        self.wide = real_of(self.results) == "f64"
        self.short: dict[int, Expression] = {}
        self._need()

    def ban(self, number: int) -> None:
        """Hold the value of node ``number`` no longer: each pass that needs it computes it."""
        self.banned.add(number)
        self._need()

    def _level(self, node: Expression) -> int:
        """Return the number of the first pass in which a value is known; a reduction adds one."""
        if not isinstance(node, Composed):
            return 0
        return max(self.levels[id(arg)] for arg in node.args) + self._reduces(node)

    def _reduces(self, node: Expression) -> bool:
        """Return True for a reduction of a row with several elements."""
        if not isinstance(node, Reduce):
            return False
        return self._varies(node.args[0])

    def _varies(self, node: Expression) -> bool:
        """Return True if a value has an element for each column of a row."""
        return self.grid.of(node) in (Place.FULL, Place.ROW if self.columns else Place.COLUMN)

    def _need(self) -> None:
        """Find the passes in which each value is needed. Users come before the values they use."""
        self.needed: dict[int, set[int]] = {id(node): set() for node in self.nodes}
        self.held: list[int] = []
        for result in self.results:
            if self._varies(result):
                self.needed[id(result)].add(self.last)  # may overwrite an input
        for node in reversed(self.nodes):
            if self._reduces(node):
                assert isinstance(node, Reduce)
                self.needed[id(node.args[0])].add(self.levels[id(node)] - 1)
                continue
            if not isinstance(node, Composed) or not self._varies(node):
                continue
            passes = self.needed[id(node)]
            if len(passes) > 1 and self._worth(node):
                self.held.append(self.numbers[id(node)])
                passes = {min(passes)}
            for arg in node.args:
                self.needed[id(arg)] |= passes

    def _ends_in(self, result: Expression) -> int:
        """Return the pass after which a result with one element a row is known."""
        level = self.levels[id(result)]
        return level - 1 if level else self.last

    def _worth(self, node: Composed) -> bool:
        """Return True if ``node`` is held: it takes long to compute from inputs and reductions."""
        return self.numbers[id(node)] not in self.banned and self._short(node) is None

    def _short(self, node: Expression) -> Expression | None:
        """Return ``node`` with a leaf in place of each reduction; None if it takes long."""
        if not self.short:
            for each in self.nodes:
                if (found := self._shortened(each)) is not None:
                    self.short[id(each)] = found
        return self.short.get(id(node))

    def _shortened(self, node: Expression) -> Expression | None:
        if not isinstance(node, Composed):
            return node
        if isinstance(node, Reduce):
            return Known(self.numbers[id(node)], "reduced", node.tensor)
        args = [self.short[id(arg)] for arg in node.args if id(arg) in self.short]
        if len(args) < len(node.args):
            return None
        found = node.of(node.shell, tuple(args))
        return found if operations([found], wide=self.wide) <= _CHEAP else None

    def cut(self) -> Cut:
        """Return the passes."""
        knowns = self._knowns()
        helds = {
            number: Held(place, self.nodes[number].tensor)
            for place, number in enumerate(reversed(self.held))
        }
        passes = []
        for index in range(self.last + 1):
            inside = _Rewriting(self, knowns, helds, index)
            passes.append(self._pass(index, inside, knowns, helds))
        first = _Rewriting(self, knowns, helds, 0)
        before = tuple((known, first.inner(node)) for node, known in self._at(knowns, 0))
        inputs = tuple(node for node in self.nodes if isinstance(node, Input))
        return Cut(self.grid, self.columns, inputs, before, tuple(passes))

    def _pass(
        self, index: int, inside: _Rewriting, knowns: dict[int, Known], helds: dict[int, Held]
    ) -> Pass:
        reductions = tuple(
            Reduction(node.fn, inside.of(node.args[0]), knowns[id(node)])
            for node in self.of_level.get(index + 1, ())
            if isinstance(node, Reduce) and self._reduces(node)
        )
        holds = tuple(
            (held, inside.inner(self.nodes[number]))
            for number, held in helds.items()
            if min(self.needed[id(self.nodes[number])]) == index
        )
        stores, ends = [], []
        after = _Rewriting(self, knowns, helds, index + 1)
        for name, result in zip(self.names, self.results, strict=True):
            if self._varies(result) and index == self.last:
                stores.append((name, inside.of(result)))
            elif not self._varies(result) and self._ends_in(result) == index:
                ends.append((name, after.of(result)))
        values = tuple(
            (known, after.inner(node))
            for node, known in self._at(knowns, index + 1)
            if not self._reduces(node)
        )
        return Pass(reductions, holds, tuple(stores), values, tuple(ends))

    def _knowns(self) -> dict[int, Known]:
        """Return a leaf for each reduction, and for each value of the row that others use."""
        found: dict[int, Known] = {}
        used: set[int] = set()
        for node in self.nodes:
            if isinstance(node, Composed):
                level, many = self.levels[id(node)], self._varies(node)
                used |= {id(arg) for arg in node.args if many or 0 < self.levels[id(arg)] < level}
        for node in self.nodes:
            if not isinstance(node, Composed) or self._varies(node) or node.tensor is None:
                continue
            if self._reduces(node) or id(node) in used:
                name = node.fn if isinstance(node, Reduce) else "value"
                whose = "column" if self.columns else "row"
                found[id(node)] = Known(len(found), f"{whose}_{name}{len(found)}", node.tensor)
        return found

    def _at(self, knowns: dict[int, Known], level: int) -> Iterable[tuple[Expression, Known]]:
        for node in self.of_level.get(level, ()):
            if id(node) in knowns:
                yield node, knowns[id(node)]


class _Rewriting:
    """Rewrites nodes for one pass: values that are known or held become leaves."""

    def __init__(
        self, cutter: _Cutter, knowns: dict[int, Known], helds: dict[int, Held], index: int
    ) -> None:
        self.cutter, self.knowns, self.helds, self.index = cutter, knowns, helds, index
        self.made: dict[int, Expression] = {}

    def of(self, node: Expression) -> Expression:
        """Return ``node`` for this pass: a leaf if its value is known or held.

        Otherwise it is the expression that computes the value.
        """
        if id(node) in self.knowns:
            return self.knowns[id(node)]
        number = self.cutter.numbers[id(node)]
        if number in self.helds:
            return self.helds[number]
        return self.inner(node)

    def inner(self, node: Expression) -> Expression:
        """Return the expression that computes ``node`` from the leaves that the pass reads."""
        if id(node) not in self.made:
            made = node
            if isinstance(node, Reduce) and not self.cutter._reduces(node):
                made = self.of(node.args[0])
            elif isinstance(node, Composed):
                made = node.of(node.shell, tuple(map(self.of, node.args)))
            self.made[id(node)] = made
        return self.made[id(node)]


def operations(expressions: Iterable[Expression], *, wide: bool = False) -> int:
    """Return the number of elementary operations that compute values from their leaves.

    ``wide`` is True if the arithmetic is in f64.
    """
    builder = Builder("f64" if wide else "f32")
    leaves: dict[Expression, Argument] = {}

    def leaf(each: Expression) -> Argument:
        return leaves.setdefault(each, builder.input())

    results = [lower_expression(each, builder, leaf, builder.real) for each in expressions]
    return len(live(builder.steps, results))
