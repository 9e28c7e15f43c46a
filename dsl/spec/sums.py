"""What sums of products are held in, where a spec may choose: f32 or f16, s32 or s64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from tilewright.errors import SpecError

from .types import TypeName, accumulator, is_integer

#: A type; f16 with a number of elements of K, after which sums are added in f32; None: the default.
Sums: TypeAlias = "TypeName | tuple[Literal['f16'], int] | None"


def computed_in(a: str, b: str, c: str) -> TypeName:
    """The type of what is done with sums of A and B: that of exact sums, s64, where C is."""
    held = accumulator(a, b)
    return "s64" if held == "s32" and c == "s64" else held


def default_sums(a: str, b: str, c: str) -> TypeName:
    """What sums of A and B are held in with a C of type ``c``: f16 where all three are f16."""
    return "f16" if (a, b, c) == ("f16", "f16", "f16") else computed_in(a, b, c)


def default_c(sums: object, a: str, b: str) -> TypeName:
    """The type of C where only that of its sums may be said: the same."""
    if isinstance(sums, str) and sums in ("f16", "s64"):
        return "f16" if sums == "f16" else computed_in(a, b, "s64")
    return accumulator(a, b)


def check_sums(given: Sums, a: str, b: str, c: str) -> TypeName | tuple[Literal["f16"], int]:
    """``given``, or the default; SpecError where sums of A and B are not held so."""
    held = computed_in(a, b, c)
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
        expected=f'"{held}"{also}' + (f", with c={c}" if is_integer(c) else ""),
        hint="leave sums out" if also else _HINTS[is_integer(held)],
    )


#: Of sums of floating point, and of integers.
_HINTS = ("sums in f16 take an A and a B of f16", "sums have the type of C: c='s32' or c='s64'")
#: What makes something else of sums than C. Sums in s64 are C as they are: no target converts them.
_REMAKES = (
    "a_scale", "b_scale", "d_scale", "a_zero", "b_zero", "d_zero", "epilogue", "b2", "outputs",
)  # fmt: skip


def check_wide(sums: str, given: Mapping[str, object], types: Mapping[str, str]) -> None:
    """SpecError where sums of 64 bits would become something else, or D is s64 without them.

    ``given`` are the arguments of a product with sums of type ``sums``, ``types`` those of its A,
    B and C, and of D if there is one.
    """
    d = types.get("d", sums)
    if sums != "s64":
        if d == "s64":
            raise SpecError(
                "a D of s64 holds sums of 64 bits",
                got=", ".join(f"{name}={type_}" for name, type_ in types.items()),
                expected="integers in A and B, and c='s64'",
                hint="c='s64', and no d: C then is the result",
            )
        return
    found = [(name, given[name]) for name in _REMAKES if given[name] not in (None, ())]
    for name in ("alpha", "beta"):
        factor = given[name]
        found += [(name, factor)] if isinstance(factor, float) and factor % 1 else []
    found += [("d", d)] if d != "s64" else []
    if found:
        name, value = found[0]
        raise SpecError(
            f"{name} cannot be had with sums of 64 bits",
            got=f"{name}={value!r}, c=s64",
            expected="exact sums as they are: alpha * acc + beta * C, with whole alpha and beta",
            hint="c='s32' for scales, zero points, post-ops and a D of another type",
        )
