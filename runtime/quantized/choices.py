"""Words and numbers that a caller chooses among: the one meant, or an error that lists all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.spec.sizes import whole_number

Choice = TypeVar("Choice", str, int)


def one_of(given: object, known: Iterable[Choice], problem: str) -> Choice:
    """Return the one of ``known`` that ``given`` is; ArgumentError if it is none.

    Texts may be upper or lower case; NumPy's integers are taken.
    """
    every = list(known)
    text = given.casefold() if isinstance(given, str) else None
    number = whole_number(given)
    for each in every:
        if each == number or (isinstance(each, str) and each.casefold() == text):
            return each
    wanted: Any = str if isinstance(every[0], str) else int
    right = isinstance(given, str) if wanted is str else number is not None
    raise (ArgumentValueError if right else ArgumentTypeError)(
        problem,
        got=repr(given) if right else f"{type(given).__name__}: {given!r:.60}",
        expected=f"one of {', '.join(map(str, every))}",
    )
