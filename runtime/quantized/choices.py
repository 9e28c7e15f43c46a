"""Match an argument with the allowed words or numbers, or raise an error that lists them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.spec.sizes import whole_number

Choice = TypeVar("Choice", bound=str | int)


def one_of(given: object, known: Iterable[Choice], problem: str) -> Choice:
    """Return the member of ``known`` that ``given`` names; raise ArgumentError if there is none.

    Upper and lower case are treated alike. NumPy's integers count as ints.
    """
    every = {each.casefold() if isinstance(each, str) else each: each for each in known}
    key = given.casefold() if isinstance(given, str) else whole_number(given)
    if key in every:
        return every[key]
    right = any(type(each) is type(key) for each in every)
    raise (ArgumentValueError if right else ArgumentTypeError)(
        problem,
        got=repr(given) if right else f"{type(given).__name__}: {given!r:.60}",
        expected=f"one of {', '.join(map(str, every.values()))}",
    )
