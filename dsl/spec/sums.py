"""What sums of products are held in, where a spec may choose: f32 or f16."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tilewright.errors import SpecError

from .types import TypeName, accumulator

#: A type; f16 with a number of elements of K, after which sums are added in f32; None: the default.
Sums: TypeAlias = "TypeName | tuple[Literal['f16'], int] | None"


def default_sums(a: str, b: str, c: str) -> TypeName:
    """What sums of A and B are held in with a C of type ``c``: f16 where all three are f16."""
    return "f16" if (a, b, c) == ("f16", "f16", "f16") else accumulator(a, b)


def default_c(sums: object, a: str, b: str) -> TypeName:
    """The type of C where only that of its sums may be said: the same."""
    return "f16" if isinstance(sums, str) and sums == "f16" else accumulator(a, b)


def check_sums(given: Sums, a: str, b: str, c: str) -> TypeName | tuple[Literal["f16"], int]:
    """``given``, or the default; SpecError where sums of A and B are not held so."""
    held = accumulator(a, b)
    if given is None:
        return default_sums(a, b, c)
    halves = a == b == "f16"
    if isinstance(given, str) and given in ((held, "f16") if halves else (held,)):
        return given
    if halves and isinstance(given, tuple) and len(given) == 2:
        element: object = given[0]
        steps: object = given[1]
        if isinstance(element, str) and element == "f16" and type(steps) is int and steps > 0:
            return "f16", steps
    also = ', "f16", or ("f16", 64) for sums of 64 elements of K' if halves else ""
    raise SpecError(
        f"sums of products of {a} and {b} cannot be held so",
        got=given,
        expected=f'"{held}"{also}',
        hint="leave sums out" if also else "sums in f16 take an A and a B of f16",
    )
