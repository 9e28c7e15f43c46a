"""How many threads a parallel loop takes, and what the busiest one does."""

from __future__ import annotations

from tilewright.isa.machine import NEXT_THREAD, Core


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
