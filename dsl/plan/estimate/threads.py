"""How many threads a parallel loop takes, and what the busiest one does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from tilewright.isa.machine import NEXT_THREAD, Core

from .caches import Cycles, Nest, Piece, Region, Repeat, Series, work

#: What a region costs that several threads run.
REGION = "parallel regions"
#: Steps of K of a block that a thread packs at a time.
COPY_LINES = 4


def price_of(core: Core) -> int:
    """The price of a parallel region of two threads, in vector multiply-adds of one thread."""
    return max(NEXT_THREAD, round(core.region * core.fma_units))


def threads_of(trips: int, work: float, price: float, most: int) -> int:
    """How many of ``most`` threads take the least time for ``trips`` of so much ``work`` each.

    The busiest thread's trips and the ``price`` of the region count. C decides in the same way when
    a loop begins (``pool_pays`` in ``templates/kernel/parallel_run.c.j2``).
    """
    best, least = 1, trips * work
    for threads in range(2, min(most, trips) + 1):
        time = -(-trips // threads) * work + price_with(price, threads)
        if time < least:
            best, least = threads, time
    return best


def price_with(price: float, threads: int) -> float:
    """What a region of so many threads costs; ``price`` is that of two."""
    return price + (threads - 2) * (price // NEXT_THREAD)


def busiest(nest: Nest, core: Core, most: int) -> Nest:
    """What the busiest of at most ``most`` threads does, and the prices of all regions."""
    match nest:
        case Series(together=False):
            return replace(nest, parts=tuple(busiest(part, core, most) for part in nest.parts))
        case Repeat(parallel=False):
            return replace(nest, body=busiest(nest.body, core, most))
        case Piece():
            return nest
    loops = [*_loops(nest)]
    trips = sum(_trips(loop) for loop in loops)
    if not trips:
        return nest
    each = sum(_trips(loop) * work(_body(loop)).total for loop in loops) / trips
    threads = threads_of(trips, each, core.region, most)
    if threads == 1:
        return _shared(nest, trips, 1)
    price = Piece({}, Cycles({REGION: price_with(core.region, threads)}))
    return Series((price, _shared(nest, trips, threads)), frozenset(), nest.regions)


def _loops(nest: Nest) -> Iterator[Repeat]:
    """The parallel loops of one region."""
    match nest:
        case Repeat(parallel=True):
            yield nest
        case Series(together=True):
            for part in nest.parts:
                yield from _loops(part)


def _trips(loop: Repeat) -> int:
    """The trips of parallel loops that are one."""
    return int(loop.trips) * (_trips(loop.body) if _is_parallel(loop.body) else 1)


def _body(loop: Repeat) -> Nest:
    return _body(loop.body) if _is_parallel(loop.body) else loop.body


def _is_parallel(nest: Nest) -> TypeGuard[Repeat]:
    return isinstance(nest, Repeat) and nest.parallel


def _shared(nest: Nest, trips: int, threads: int) -> Nest:
    """A region's loops with the trips of the busiest of ``threads``; there are ``trips`` in all."""
    if isinstance(nest, Series) and nest.together:
        return replace(nest, parts=tuple(_shared(part, trips, threads) for part in nest.parts))
    if not _is_parallel(nest):
        return nest
    own, every = _trips(nest), trips == _trips(nest)
    whole, others = divmod(trips - 1, threads)
    share = (whole + (1 if others or not every else nest.last)) / trips
    moves, inner = nest.moves, nest.body
    while _is_parallel(inner):
        moves, inner = moves | inner.moves, inner.body
    regions = {
        name: region.part(share) if name in moves else region
        for name, region in nest.regions.items()
    }
    return Repeat(own * share, moves, inner, regions)


def split(piece: Piece, trips: int) -> Nest:
    """A piece of work in so many trips that threads share; as it is if there is one at most."""
    if trips < 2:
        return piece
    share = 1 / trips
    regions: dict[str, Region] = {n: region.part(share) for n, region in piece.regions.items()}
    one = Piece(regions, piece.work.times(share))
    return Repeat(trips, frozenset(regions), one, piece.regions, parallel=True)
