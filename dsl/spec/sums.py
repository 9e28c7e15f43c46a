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


def check_sums(given: Sums, a: str, b: str, c: str) -> TypeName | tuple[Literal["f16"], int]:
    """``given``, or the default; SpecError where sums of A and B are not held so."""
    held = accumulator(a, b)
    if given is None:
        return default_sums(a, b, c)
    legal: tuple[object, ...] = (held, "f16") if (a, b) == ("f16", "f16") else (held,)
    if given in legal:
        return given
    if isinstance(given, tuple) and "f16" in legal and given[:-1] == ("f16",):
        steps: object = given[-1]
        if type(steps) is int and steps > 0:
            return "f16", steps
    also = ', "f16", or ("f16", 64) for sums of 64 elements of K' if "f16" in legal else ""
    raise SpecError(
        f"sums of products of {a} and {b} cannot be held so",
        got=given,
        expected=f'"{held}"{also}',
        hint="leave sums out" if also else "sums in f16 take an A and a B of f16",
    )
