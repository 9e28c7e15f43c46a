"""The cases of a sweep: random products, and among them random row programs and networks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from tilewright.errors import SpecError

from . import cases
from .axes import AXES, title
from .networks import NETWORK_AXES, NetworkCase, draw_network
from .rows import ROW_AXES, RowCase, draw_rows

#: One in so many cases is a row program, and another one is a network.
SHARE = 8
#: A search for cases with given values of axes ends after this many cases in a row without them.
PATIENCE = 20_000
#: The axes of all cases.
EVERY = AXES | ROW_AXES | NETWORK_AXES

AnyCase = cases.Case | RowCase | NetworkCase


def draw(seed: int, index: int) -> AnyCase:
    """Return the random case number ``index`` of a seed."""
    match index % SHARE:
        case 3:
            return draw_network(seed, index)
        case 7:
            return draw_rows(seed, index)
    return cases.draw(seed, index)


def numbers(seed: int, first: int, having: Mapping[str, str]) -> Iterator[int]:
    """Yield the numbers of the cases whose axes have the values ``having``, from ``first`` on.

    Raise SpecError for an unknown axis or value, and if no case has all these values.
    """
    for axis, level in having.items():
        _check_level(axis, level)
    last = first
    for index in itertools.count(first):
        if not having or having.items() <= draw(seed, index).levels.items():
            last = index
            yield index
        elif index - last > PATIENCE:
            raise SpecError(
                f"none of {PATIENCE} cases has these levels together",
                got=", ".join(f"{axis} {level}" for axis, level in having.items()),
                hint="ask for fewer; an axis is left out of cases in which it means nothing",
            )


def _check_level(axis: str, level: str) -> None:
    if axis not in EVERY:
        raise SpecError("no axis of the sweep", got=axis, expected=", ".join(EVERY))
    levels = dict.fromkeys(map(title, EVERY[axis]))
    if level not in levels:
        raise SpecError(f"no level of {axis!r}", got=level, expected=", ".join(levels))
