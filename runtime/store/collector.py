"""Pause Python's garbage collector where many objects are made that are kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector of cycles while the ``with`` block runs.

    Modules and plans are kept, so a collection would find nothing to free. Collections take a
    seventh of the time of a process's first kernel. The collector is paused for all threads, so a
    block must not wait for other processes. Blocks of several threads may overlap: the pause ends
    with the block that began it.
    """
    active = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            _age()
            gc.enable()


def _age() -> None:
    """Make all objects old, as if they had survived collections: else the next one visits them."""
    if hasattr(gc, "freeze") and gc.get_freeze_count() == 0:  # else unfreeze undoes the caller's
        gc.freeze()
        gc.unfreeze()
