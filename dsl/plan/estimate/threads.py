"""Estimate how many threads a parallel loop uses, and the work of the busiest thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from tilewright.isa.machine import NEXT_THREAD, Core

from .caches import Cycles, Nest, Piece, Region, Repeat, Series, work

#: In an estimate, the name of the cycles in which threads are started and joined.
REGION = "parallel regions"
#: If threads share the packing of a block, each iteration packs this number of its K steps.
COPY_LINES = 4


def price_of(core: Core) -> int:
    """Return the cost of a parallel region with two threads, in vector multiply-adds."""
    return max(NEXT_THREAD, round(core.region * core.fma_units))


def threads_of(trips: int, work: float, price: float, most: int) -> int:
    """Return the number of threads, at most ``most``, that run a parallel loop in the least time.

    The time is the work of the busiest thread plus the cost of the region. ``trips`` is the number
    of iterations, ``work`` the work of each. ``price`` is the cost of a region with two threads, in
    the unit of ``work``. The C code decides in the same way when a loop begins (``region_threads``
    in ``templates/threads/region.c.j2``).
    """
    best, least = 1, trips * work
    for threads in range(2, min(most, trips) + 1):
        time = -(-trips // threads) * work + price_with(price, threads)
        if time < least:
            best, least = threads, time
    return best


def price_with(price: float, threads: int) -> float:
    """Return the cost of a parallel region, given its cost with two threads, ``price``."""
    return price + (threads - 2) * (price // NEXT_THREAD)


def busiest(nest: Nest, core: Core, most: int) -> Nest:
    """Return the work of the busiest thread, of at most ``most``, and the cost of each region."""
    match nest:
        case Series(together=False):
            return replace(nest, parts=tuple(busiest(part, core, most) for part in nest.parts))
        case Repeat(parallel=False):
            return replace(nest, body=busiest(nest.body, core, most))
        case Piece():
            return nest
    loops = [*_loops(nest)]
    works = [_trips(loop) * work(_body(loop)).total for loop in loops]
    trips = sum(_trips(loop) * _pieces(loop) for loop in loops)
    if not trips:
        return nest
    threads = threads_of(trips, sum(works) / trips, core.region, most)
    if threads == 1:
        return _shared(nest, _share(loops, works, 1))
    price = Piece({}, Cycles({REGION: price_with(core.region, threads)}))
    shared = _shared(nest, _share(loops, works, threads))
    return Series((price, shared), frozenset(), nest.regions)


def _share(loops: Sequence[Repeat], works: Sequence[float], threads: int) -> float:
    """Return the busiest thread's part of all iterations of the loops of a region.

    ``works`` is the work of each loop. Threads share the work evenly, but one thread runs a whole
    iteration, or a whole piece of one (``templates/kernel/loops.c.j2``).
    """
    pieces = [_trips(loop) * _pieces(loop) for loop in loops]
    if len(loops) == 1 and pieces[0] == _trips(loops[0]):
        whole, others = divmod(pieces[0] - 1, threads)
        return (whole + (1 if others else loops[0].last)) / pieces[0]
    most = max(
        -(-count // threads) / count * each
        for count, each in zip(pieces, works, strict=True)
        if count
    )
    return max(1 / threads, most / sum(works) if sum(works) else 0)


def _loops(nest: Nest) -> Iterator[Repeat]:
    """Yield the parallel loops that one parallel region runs."""
    match nest:
        case Repeat(parallel=True):
            yield nest
        case Series(together=True):
            for part in nest.parts:
                yield from _loops(part)


def _trips(loop: Repeat) -> int:
    """Return the number of iterations of a parallel loop and of the parallel loops in its body."""
    return int(loop.trips) * (_trips(loop.body) if _is_parallel(loop.body) else 1)


def _pieces(loop: Repeat) -> int:
    """Return into how many pieces an iteration is cut, so that different threads can run them.

    It is cut if it begins with a parallel loop that other tiles follow.
    """
    body = _body(loop)
    cut = isinstance(body, Series) and body.together and _is_parallel(body.parts[0])
    return _trips(next(_loops(body))) if cut else 1


def _body(loop: Repeat) -> Nest:
    return _body(loop.body) if _is_parallel(loop.body) else loop.body


def _is_parallel(nest: Nest) -> TypeGuard[Repeat]:
    return isinstance(nest, Repeat) and nest.parallel


def _shared(nest: Nest, share: float) -> Nest:
    """Return the loops of a region with the given share of their iterations, a number up to 1."""
    if isinstance(nest, Series) and nest.together:
        return replace(nest, parts=tuple(_shared(part, share) for part in nest.parts))
    if not _is_parallel(nest):
        return nest
    own = _trips(nest)
    moves, inner = nest.moves, nest.body
    while _is_parallel(inner):
        moves, inner = moves | inner.moves, inner.body
    regions = {
        name: region.part(share) if name in moves else region
        for name, region in nest.regions.items()
    }
    return Repeat(own * share, moves, inner, regions)


def split(piece: Piece, trips: int) -> Nest:
    """Return a piece of work as a parallel loop of ``trips`` equal iterations, if more than one."""
    if trips < 2:
        return piece
    share = 1 / trips
    regions: dict[str, Region] = {n: region.part(share) for n, region in piece.regions.items()}
    one = Piece(regions, piece.work.times(share))
    return Repeat(trips, frozenset(regions), one, piece.regions, parallel=True)
