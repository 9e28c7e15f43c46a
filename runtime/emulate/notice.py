"""Warn once in a process that the kernels of a target are emulated."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.errors import EmulationWarning, caller

#: Targets for which this process has given the warning.
_told: set[str] = set()
_expected: ContextVar[bool] = ContextVar("expected", default=False)


@contextmanager
def expected() -> Iterator[None]:
    """Give no warning for emulated calls in the ``with`` block: their speed does not matter."""
    before = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(before)


def notice(target: str, means: str) -> None:
    """Warn that kernels for ``target`` run through ``means``, once in a process."""
    if target in _told or _expected.get():
        return
    _told.add(target)
    place = caller()
    warnings.warn(
        f"kernels for {target} are emulated here, through {means}: calls take some hundred times "
        "as long as on a CPU that has it; leave target out for kernels of this CPU",
        EmulationWarning,
        stacklevel=1 if place is None else place[2],
    )
