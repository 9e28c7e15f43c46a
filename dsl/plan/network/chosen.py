"""Choose which stages of a network run together in blocks of rows, where the user says nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

from sympy import Expr, Integer

from tilewright.errors import ScheduleError
from tilewright.ir.nest import Name
from tilewright.isa.machine import Core
from tilewright.spec.network.stages import Stage, Stages
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Dim
from tilewright.symbolic import evaluate, slots, value

from ..loops import Decision
from ..problem import NOMINAL
from .block import Block
from .blocks import for_threads, in_blocks, tile_rows, users_of
from .joined import Joined
from .step import Opening, Step

#: A function that cuts a network into stages. For each stage that computes one block of rows at a
#: time, it is given the loop over these blocks.
Cut = Callable[[Mapping[int, Opening]], Sequence[Step]]
#: Rows that a network is assumed to have if their number is known only at the call.
TYPICAL = 256
#: Blocks of rows must save at least this share of the estimated time. Otherwise stages stay apart,
#: because estimates differ from measurements by about as much.
MARGIN = 0.05
#: All groups together must save at least this share of the estimated time of the network.
_WORTH = 0.02
#: Cores that share the last cache. Where the others are idle, one core has all of it: values that
#: stages pass on then cost less, and blocks of rows save less. The model assumes this.
_CORES = 8
#: If only the call knows the number of rows, it may be one that suits blocks badly. On one thread,
#: blocks may then take this many times as long as stages one after another.
_HARMLESS = 1.01
#: Sizes of blocks that are tried, in tiles of rows.
_TILES = (1, 2, 4, 8, 16, 32)
#: A group has at most this number of stages. Fewer are tried if there are more than ``_GROUPS``
#: groups, because each is estimated several times.
_MOST, _GROUPS = 16, 256
#: How often a byte of a value that stages pass on is transferred: the stage that writes it reads
#: and writes the cache line, the next stage reads it.
_CROSSING = 3


def chosen(
    spec: Network,
    steps: Sequence[Step],
    cut: Cut,
    given: Mapping[Stage, str],
    threads: int | None,
    core: Core,
) -> tuple[Stages, tuple[Decision, ...]]:
    """Return the stages that the cost model chooses, and the reasons.

    ``steps`` are the network's stages, each with all rows. ``cut`` returns those that can compute
    some of the rows, given how each is opened. ``given`` are stages of attention, which stay, and
    why they are in blocks.
    """
    found, decision = _chosen(spec, steps, cut, [*given], threads, core)
    reasons = (Decision("attention", repr(stage), why) for stage, why in given.items())
    return Stages(*given, *found, threads=threads), (*reasons, decision)


def _chosen(
    spec: Network,
    steps: Sequence[Step],
    cut: Cut,
    given: Sequence[Stage],
    threads: int | None,
    core: Core,
) -> tuple[tuple[Stage, ...], Decision]:
    """Return the chosen stages besides ``given``, and the reason."""
    if len(steps) < 2:
        return (), Decision("stages", "one", "nothing runs before or after it")
    sizes = _typical(spec)
    shared = (threads or 1) > 1
    model = Joined(_with_the_last_cache(core, threads or 1), sizes, threads or 1)
    most = _saved_at_most(steps, model)
    if not shared and most < MARGIN:
        why = f"passing values on takes at most {most:.0%} of the time"
        return (), _apart(why)
    opened = cut(dict.fromkeys(range(len(steps)), Opening.ROWS))
    taken = {name for stage in given for name in stage.names}
    found = _Choice(steps, opened, model, users_of(opened), taken, model.of_one_thread())
    groups = found.best()
    if not groups:
        return (), _apart(found.reason)
    apart, together = (sum(pair) for pair in zip(*(each.cycles for each in groups), strict=True))
    others = {name for each in groups for name in each.stage.names}
    every = apart + sum(model.least(each) for each in steps if each.name not in others)
    if apart - together < _WORTH * every:
        return (), _apart(f"blocks of rows would save less than {_WORTH:.0%}")
    said = ", ".join(repr(each.stage) for each in groups)
    why = f"their estimated time is {1 - together / apart:.0%} less than one after another"
    return tuple(each.stage for each in groups), Decision("stages", said, why)


def ways(
    spec: Network,
    steps: Sequence[Step],
    cut: Cut,
    threads: int | None,
    core: Core,
) -> Iterator[tuple[float, Stages]]:
    """Yield stages that are worth measuring, with the estimated cycles that they save.

    Either all of the longest groups are in blocks of the same number of rows, or only two adjacent
    stages are in blocks. The arguments are those of ``chosen``.
    """
    sizes = _typical(spec)
    model = Joined(_with_the_last_cache(core, threads or 1), sizes, threads or 1)
    opened = cut(dict.fromkeys(range(len(steps)), Opening.ROWS))
    found = _Choice(steps, opened, model, users_of(opened), set(), model)
    yield 0.0, Stages(threads=threads)
    longest = [each for group in found.longest() for each in found.tried(*group)]
    for rows in sorted({each.stage.rows or 0 for each in longest}):
        these = [each for each in longest if each.stage.rows == rows]
        saved = sum(each.saved for each in these)
        yield saved, Stages(*(each.stage for each in these), threads=threads)
    for pair in found.pairs():
        best = max(found.tried(*pair), key=lambda each: each.saved, default=None)
        if best is not None:
            yield best.saved, Stages(best.stage, threads=threads)


def _with_the_last_cache(core: Core, threads: int) -> Core:
    """Return ``core`` with all of the last cache that ``threads`` leave to one of them."""
    *nearer, last = core.caches
    size = max(last.size, last.size * _CORES // threads)
    return replace(core, caches=(*nearer, replace(last, size=size)))


def _apart(why: str) -> Decision:
    return Decision("stages", "one after another", why)


def _typical(spec: Network) -> dict[str, int]:
    """Return the sizes of the call that the model assumes, by slot."""
    sizes = spec.runtime_sizes()
    return {slot: near(NOMINAL if sizes[1:] else TYPICAL, dim) for slot, dim in sizes}


def near(size: int, dim: Dim) -> int:
    """Return a size near ``size`` that ``dim`` can have."""
    most = size if dim.max is None else min(size, dim.max)
    return max(1, most // dim.multiple_of) * dim.multiple_of


def _saved_at_most(steps: Sequence[Step], model: Joined) -> float:
    """Return the share of the time that blocks of rows could save, if they made transfers free."""
    sizes = model.sizes
    passed = sum(evaluate(s.buffer.nbytes, sizes) for s in steps if s.buffer is not None)
    if not passed:
        return 0.0
    transfers = _CROSSING * passed / model.core.rate(_CROSSING * passed)
    return transfers / (transfers + sum(map(model.least, steps)))


#: Cycles of stages one after another, and together.
_Cycles = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Group:
    """Stages that run together, and their estimated cycles."""

    stage: Stage
    cycles: _Cycles

    @property
    def saved(self) -> float:
        """The cycles that running the stages together saves."""
        return self.cycles[0] - self.cycles[1]


@dataclass(slots=True)
class _Choice:
    """Finds the groups of stages that take the least time, by dynamic programming over cuts.

    ``closed`` are the stages with all rows, ``opened`` the same stages with some of the rows.
    ``users`` are the numbers of the stages that read or write each array. The stages ``taken`` are
    in no group. ``alone`` has the estimates on one thread.
    """

    closed: Sequence[Step]
    opened: Sequence[Step]
    model: Joined
    users: Mapping[Name, set[int]]
    taken: Set[str]
    alone: Joined
    _models: dict[int, Joined] = field(default_factory=dict)
    reason: str = field(default="no stage computes each row from the same row of the one before")

    def best(self) -> tuple[_Group, ...]:
        """Return the groups that save time; other stages run one after another."""
        best: list[tuple[float, tuple[_Group, ...]]] = [(0.0, ())]
        ending: dict[int, list[tuple[int, _Group]]] = {}
        for first in range(len(self.opened)):
            for numbers, private in self._from(first):
                if (group := self._group(numbers, private)) is not None:
                    ending.setdefault(numbers.stop, []).append((first, group))
        for end in range(1, len(self.opened) + 1):
            ways = [best[-1]]
            for first, group in ending.get(end, ()):
                saved, before = best[first]
                ways.append((saved + group.saved, (*before, group)))
            best.append(max(ways, key=lambda way: way[0]))
        return best[-1][1]

    def _from(self, first: int) -> Iterator[tuple[range, set[str]]]:
        """Yield the numbers of stages that can run together, the first of which is ``first``.

        The arrays that have the rows of one block only are yielded with them.
        """
        most = max(2, min(_MOST, _GROUPS // len(self.opened)))
        for end in range(first + 2, min(first + most, len(self.opened)) + 1):
            numbers = range(first, end)
            if any(not self.taken.isdisjoint(step.names) for step in self.opened[first:end]):
                return
            try:
                stage, steps = Stage(self._names(numbers), rows=1), self.opened[first:end]
                together = in_blocks(stage, numbers, steps, self.users, 1)
            except ScheduleError:
                return
            if together[0].block is None:
                return
            yield numbers, {str(name) for name in together[0].block.private}

    def longest(self) -> list[tuple[range, set[str]]]:
        """Return groups that are as long as possible, without a stage that is in two of them."""
        found: list[tuple[range, set[str]]] = []
        for first in range(len(self.opened)):
            if not found or first not in found[-1][0]:
                found += [*self._from(first)][-1:]
        return found

    def pairs(self) -> Iterator[tuple[range, set[str]]]:
        """Yield all groups of two adjacent stages that can run together."""
        for first in range(len(self.opened)):
            yield from islice(self._from(first), 1)

    def _names(self, numbers: range) -> str:
        return " ".join(self.opened[number].name for number in numbers)

    def tried(self, numbers: range, private: set[str], *, slow: bool = True) -> Iterator[_Group]:
        """Yield a group with each size of blocks that is tried. ``slow`` is as in ``_cycles``."""
        opened = [self.opened[number] for number in numbers]
        assert opened[0].rows is not None
        total = self._total(opened[0].rows.total)
        for rows in self._blocks(opened, total):
            taken = self._cycles(numbers, private, rows, total, slow=slow)
            yield _Group(Stage(self._names(numbers), rows), taken)

    def _cycles(
        self, numbers: range, private: set[str], rows: int, total: int, *, slow: bool = True
    ) -> _Cycles:
        """Return the cycles of stages apart, and of the same in blocks, for ``total`` rows.

        Without ``slow``, the cycles in blocks may be infinite if blocks save less than ``MARGIN``.
        """
        opened = [self.opened[number] for number in numbers]
        assert opened[0].rows is not None
        model = self._model(opened[0].rows.total, total)
        apart = model.apart([self.closed[number] for number in numbers])
        most = inf if slow else (1 - MARGIN) * apart
        return apart, model.in_blocks(
            opened, private, self._height(opened, rows, total), total, most
        )

    def _height(self, steps: Sequence[Step], rows: int, total: int) -> int:
        """Return the rows of a block if ``total`` rows are in blocks of at most ``rows``."""
        count = value(replace(self._block(steps, rows), total=Integer(total)).count)
        return -(-total // count) if count and self.model.threads > 1 else rows

    def _block(self, steps: Sequence[Step], rows: int) -> Block:
        assert steps[0].rows is not None
        total, stack = steps[0].rows.total, steps[0].loops
        return for_threads(Block(0, rows, total, self.model.threads, frozenset(), stack), steps)

    def _model(self, formula: Expr, total: int) -> Joined:
        """Return the estimates for sizes of the call with which a stage has ``total`` rows."""
        if not slots(formula):
            return self.model
        first, *others = sorted(slots(formula))
        sizes = {**self.model.sizes, first: 1, **dict.fromkeys(others, 1)}
        sizes[first] = max(1, total // evaluate(formula, sizes))
        if sizes[first] not in self._models:
            self._models[sizes[first]] = self.model.at(sizes)
        return self._models[sizes[first]]

    def _group(self, numbers: range, private: set[str]) -> _Group | None:
        """Return a group with the best blocks of rows; None if no blocks save time."""
        first = self.opened[numbers.start].rows
        assert first is not None
        best: _Group | None = None
        why = f"blocks of rows would save less than {MARGIN:.0%} of the estimated time"
        for group in self.tried(numbers, private, slow=False):
            (apart, together), rows = group.cycles, group.stage.rows
            assert rows is not None
            if together > (1 - MARGIN) * apart or (best and together >= best.cycles[1]):
                continue
            worst = () if value(first.total) is not None else self._worst(numbers, rows)
            for total in worst:
                ours, theirs = self._cycles(numbers, private, rows, total)
                # On several threads, blocks may lose as much with these rows as they gain with the
                # assumed number of rows.
                if theirs / ours > (_HARMLESS if self.model.threads == 1 else 2 - together / apart):
                    few = "1 row" if total == 1 else f"{total} rows"
                    why = f"a call of {few} would take {theirs / ours - 1:.0%} longer in blocks"
                    break
            else:
                if self._serves_one_thread(numbers, private, rows):
                    best = group
        self.reason = why if best is None else self.reason
        return best

    def _worst(self, numbers: range, rows: int) -> tuple[int, ...]:
        """Return the numbers of rows that are worst for blocks of at most ``rows``.

        These are one row more than one block of each thread has. For several threads they are also
        a single row, which threads cannot share, and one row more than the block's ``least``.
        """
        opened = [self.opened[number] for number in numbers]
        threads = self.model.threads
        few = (1, self._block(opened, rows).least + 1) if threads > 1 else ()
        return (*few, rows * threads + 1)

    def _serves_one_thread(self, numbers: range, private: set[str], rows: int) -> bool:
        """Return True if blocks cost little on one thread, as other threads may be busy."""
        closed, opened = ([every[n] for n in numbers] for every in (self.closed, self.opened))
        assert opened[0].rows is not None
        total = self._total(opened[0].rows.total)
        apart, height = self.alone.apart(closed), self._height(opened, rows, total)
        return self.alone.in_blocks(opened, private, height, total) <= (1 + MARGIN) * apart

    def _total(self, formula: Expr) -> int:
        """Return the rows that are assumed."""
        return TYPICAL if slots(formula) else evaluate(formula, {})

    def _blocks(self, steps: Sequence[Step], total: int) -> Iterator[int]:
        """Yield the sizes of blocks that are tried: whole tiles, and a block for each thread."""
        tile = max((tile_rows(step) for step in steps), default=1)
        wanted = {tile * count for count in _TILES}
        if self.model.threads > 1:
            share = -(-total // self.model.threads)
            wanted.add(share + share % 2)
            if steps[0].rows is not None and value(steps[0].rows.total) is not None:
                wanted = {self._height(steps, rows, total) for rows in wanted}
        yield from sorted(rows for rows in wanted if rows < total)
