"""How many threads a parallel loop takes, and what the busiest one does."""

from __future__ import annotations

from dataclasses import replace

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
    """What the busiest of at most ``most`` threads does of a nest, and the prices of its regions."""
    match nest:
        case Piece():
            return nest
        case Series():
            return replace(nest, parts=tuple(busiest(part, core, most) for part in nest.parts))
        case Repeat(parallel=False):
            return replace(nest, body=busiest(nest.body, core, most))
        case Repeat():
            return _share(nest, core, most)


def _share(nest: Repeat, core: Core, most: int) -> Nest:
    """The trips of a thread of parallel loops that are one, and the price of the region."""
    trips, body, moves = int(nest.trips), nest.body, nest.moves
    while isinstance(body, Repeat) and body.parallel:
        trips, moves, body = trips * int(body.trips), moves | body.moves, body.body
    threads = threads_of(trips, work(body).total, core.region, most)
    if threads == 1:
        return replace(nest, trips=nest.trips - 1 + nest.last)
    whole, others = divmod(trips - 1, threads)
    own = whole + 1 if others else whole + nest.last
    regions = {
        name: region.part(own / trips) if name in moves else region
        for name, region in nest.regions.items()
    }
    price = Piece({}, Cycles({REGION: price_with(core.region, threads)}))
    return Series((price, Repeat(own, moves, body, regions)), frozenset(), regions)


def split(piece: Piece, trips: int) -> Nest:
    """A piece of work in so many trips that threads share."""
    share = 1 / trips
    regions: dict[str, Region] = {n: region.part(share) for n, region in piece.regions.items()}
    one = Piece(regions, piece.work.times(share))
    return Repeat(trips, frozenset(regions), one, piece.regions, parallel=True)
