"""Estimate the cycles of several stages of a network: one after another, or in blocks of rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from tilewright.isa.machine import Core
from tilewright.symbolic import evaluate, value

from ..estimate.caches import Nest, Piece, Region, Repeat, Series, work
from ..estimate.kernel import estimate_of, nest_of
from ..estimate.rows import nest_of_rows, planned_work
from ..estimate.threads import busiest
from ..estimate.work import peak
from .step import Step

#: A core reads what another core wrote at this share of the rate of main memory. Measured on Zen 5:
#: 3 to 4 bytes per cycle.
_FROM_OTHERS = 1 / 4
#: How often a byte of an array is transferred if these stages write it. An array that they also
#: read has one transfer more, to the stage that reads it.
_WRITTEN, _PASSED = 2.0, 1.5


class _First(dict[str, int]):
    """Sizes of the call; the counter of a loop has the value of its first iteration."""

    def __missing__(self, _name: str) -> int:
        return 0


class Joined:
    """Estimates the cycles of stages for given sizes of a call, on at most ``threads`` threads.

    The arrays of all stages are operands of one nest of loops. An array that one stage writes and
    the next one reads is then in a cache or not, as the cost model finds.
    """

    def __init__(self, core: Core, sizes: Mapping[str, int], threads: int) -> None:
        self.core, self.sizes, self.threads = core, _First(sizes), threads
        self._nests: dict[tuple[int, int | None, bool], Nest] = {}
        self._apart: dict[tuple[int, int], float] = {}

    def at(self, sizes: Mapping[str, int]) -> Joined:
        """Return the estimates for other sizes of the call."""
        return Joined(self.core, sizes, self.threads)

    def of_one_thread(self) -> Joined:
        """Return the estimates on one thread."""
        return Joined(self.core, self.sizes, 1)

    def number(self, step: Step, name: str) -> int:
        """Return the value of a size of a stage."""
        return evaluate(step.sizes[name], self.sizes)

    def apart(self, steps: Sequence[Step]) -> float:
        """Return the cycles of stages that compute all rows one after another."""
        key = id(steps[0]), len(steps)
        if key not in self._apart:
            nest = _series([self._nest(step, None, self.threads > 1) for step in steps])
            self._apart[key] = self._cycles(steps, nest) + self._crossing(steps)
        return self._apart[key]

    def _crossing(self, steps: Sequence[Step]) -> float:
        """Return the cycles in which a thread reads what other threads wrote in earlier stages."""
        read = {array for step in steps for array in _read(step).values()}
        passed = [s.buffer for s in steps if s.buffer is not None and s.written in read]
        nbytes = sum(evaluate(buffer.nbytes, self.sizes) for buffer in passed)
        return nbytes * (1 - 1 / self.threads) / (_FROM_OTHERS * self.core.memory)

    def in_blocks(
        self,
        steps: Sequence[Step],
        private: Collection[str],
        rows: int,
        total: int,
        most: float = inf,
    ) -> float:
        """Return the cycles of stages that run together for each block of ``rows``.

        ``private`` are the arrays that have the rows of one block only. The result is infinite if
        the work alone takes more than ``most`` cycles.
        """
        trips, left = divmod(total, rows)
        moves = frozenset(_moving(steps) - {*private})
        parts: list[Nest] = []
        if self.threads > 1:
            count, last = trips + (left > 0), left / rows if left else 1.0
            # If there is only one block, threads share the loops of its stages.
            body = _series([self._nest(step, rows, count == 1) for step in steps])
            parts.append(_repeated(body, count, moves, parallel=True, last=last))
        else:
            if trips:
                body = _series([self._nest(step, rows, False) for step in steps])
                parts.append(_repeated(body, trips, moves))
            if left:
                parts.append(_series([self._nest(step, left, False) for step in steps]))
        return self._cycles(steps, _series(parts, moves), most)

    def _cycles(self, steps: Sequence[Step], nest: Nest, most: float = inf) -> float:
        if self.threads > 1:
            nest = busiest(nest, self.core, self.threads)
        if work(nest).total > most:
            return inf
        read = {str(array) for step in steps for array in _read(step).values()}
        written = {str(step.written) for step in steps}
        moved = {name: _PASSED if name in read else _WRITTEN for name in written}
        return estimate_of(self.core, nest, 0.0, cold=False, moved=moved).cycles

    def _nest(self, step: Step, rows: int | None, parallel: bool) -> Nest:
        key = id(step), rows, parallel
        if key not in self._nests:
            self._nests[key] = self._made(step, rows, parallel)
        return self._nests[key]

    def _made(self, step: Step, rows: int | None, parallel: bool) -> Nest:
        sizes = {name: self.number(step, name) for name in step.sizes}
        if rows is not None and step.rows is not None and step.rows.slot is not None:
            sizes[step.rows.slot] = rows
        if step.product is not None:
            nest, _ = nest_of(step.product, sizes, parallel=parallel)
        else:
            plan = step.row_program
            assert plan is not None, "copies are in no group"
            nest = nest_of_rows(plan, sizes, planned_work(plan, sizes), parallel=parallel)
        nest = _named(nest, step)
        for loop in reversed(step.loops):
            nest = _repeated(nest, evaluate(loop.trips, self.sizes), frozenset(nest.regions))
        return nest

    def least(self, step: Step) -> float:
        """Return the cycles of a stage, all rows, if no transfer limits them; 0 for a copy."""
        once = _work(step, {name: self.number(step, name) for name in step.sizes})
        for loop in step.loops:
            once *= evaluate(loop.trips, self.sizes)
        return once


def least(step: Step) -> float | None:
    """Return the cycles of a row of a stage if no transfer limits them.

    None if they depend on sizes that only the call knows.
    """
    sizes = {name: value(size) for name, size in step.sizes.items()}
    if step.rows is not None and step.rows.slot is not None:
        sizes[step.rows.slot] = 1
    known = {name: size for name, size in sizes.items() if size is not None}
    return _work(step, known) if len(known) == len(sizes) else None


def _work(step: Step, sizes: Mapping[str, int]) -> float:
    """Return the cycles of a stage with these sizes, without loops around it."""
    if (nest := step.nest) is not None:
        known = {d: evaluate(nest.problem.sizes[d], sizes) for d in "mnk"}
        return float(nest.spec.flops({**known, "count": 1}) / 2 / peak(nest))
    return 0.0 if step.row_program is None else planned_work(step.row_program, sizes).total


def _read(step: Step) -> Mapping[str, object]:
    """Return the arrays that a stage reads, by its own names."""
    return {name: array for name, array in step.operands.items() if array != step.written}


def _moving(steps: Sequence[Step]) -> set[str]:
    """Return the arrays of which each block of rows uses its own part, so not the weights."""
    found: set[str] = set()
    for step in steps:
        assert step.rows is not None
        for name, array in step.operands.items():
            if step.rows.steps[name] != 0:
                found |= {str(array), f"{array} source"}
    return found


# --- nests ---------------------------------------------------------------------------------------


def _named(nest: Nest, step: Step) -> Nest:
    """Return the nest of a stage with the network's names of arrays."""

    def name(own: str) -> str:
        base, _, rest = own.partition(" ")
        array = step.written if base == "c" else step.operands.get(base, base)
        return f"{array} {rest}".strip()

    def regions(of: Nest) -> dict[str, Region]:
        return {name(own): region for own, region in of.regions.items()}

    match nest:
        case Piece():
            return replace(nest, regions=regions(nest))
        case Repeat():
            moves = frozenset(map(name, nest.moves))
            return replace(nest, regions=regions(nest), moves=moves, body=_named(nest.body, step))
        case Series():
            moves, parts = frozenset(map(name, nest.moves)), (_named(p, step) for p in nest.parts)
            return replace(nest, regions=regions(nest), moves=moves, parts=tuple(parts))


def _series(parts: Sequence[Nest], moves: frozenset[str] = frozenset()) -> Nest:
    """Return nests that run in order; ``moves`` are arrays of which each uses another part."""
    if len(parts) == 1:
        return parts[0]
    found: dict[str, Region] = {}
    for name, region in _regions(parts):
        if name in found and name in moves:
            region = _longer(found[name], 1 + region.span / max(1.0, found[name].span))
        elif name in found and found[name].span >= region.span:
            continue
        found[name] = region
    return Series(tuple(parts), moves, found)


def _regions(parts: Sequence[Nest]) -> Iterator[tuple[str, Region]]:
    for part in parts:
        yield from part.regions.items()


def _repeated(
    body: Nest, trips: int, moves: frozenset[str], *, parallel: bool = False, last: float = 1.0
) -> Nest:
    """Return a loop; each iteration uses other memory of the arrays in ``moves``."""
    if trips == 1:
        return body
    whole = {n: _longer(r, trips) if n in moves else r for n, r in body.regions.items()}
    return Repeat(trips, moves, body, whole, parallel=parallel, last=last)


def _longer(region: Region, times: float) -> Region:
    if region.rows > 1:
        return Region(region.rows * times, region.run, region.stride)
    return Region(1, region.run * times, region.stride * times)
