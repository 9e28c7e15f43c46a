"""What sums of products are held in, where a spec may choose: f32 or f16, s32 or s64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from tilewright.errors import SpecError

from .types import TypeName, accumulator, is_integer

if TYPE_CHECKING:
    from .gemm import Gemm

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
        expected=f'"{held}"{also}' + (f", with c={c}" if is_integer(held) else ""),
        hint="leave sums out" if also else _HINTS[is_integer(held)],
    )


#: Of sums of floating point, and of integers.
_HINTS = ("sums in f16 take an A and a B of f16", "sums have the type of C: c='s32' or c='s64'")
#: What makes something else of sums than C. Sums in s64 are C as they are: no target converts them.
_REMAKES = (
    "a_scale", "b_scale", "d_scale", "a_zero", "b_zero", "d_zero", "epilogue", "b2", "outputs",
)  # fmt: skip


def check_wide(spec: Gemm) -> None:
    """SpecError where sums of 64 bits would become something else, or D is s64 without them."""
    d = spec.d
    if spec.type != "s64":
        if d is not None and d.type == "s64":
            raise SpecError(
                "a D of s64 holds sums of 64 bits",
                got=f"d=s64, c={spec.c.type} with a={spec.a.type}, b={spec.b.type}",
                expected="integers in A and B, and c='s64'",
                hint="c='s64', and no d: C then is the result",
            )
        return
    given = [(name, getattr(spec, name)) for name in _REMAKES]
    found = next((each for each in given if each[1] is not None and each[1] != ()), None)
    factors = [(name, getattr(spec, name)) for name in ("alpha", "beta")]
    fractions = (each for each in factors if each[1] != "scalar" and each[1] % 1 != 0)
    other = None if d is None or d.type == "s64" else ("d", d.type)
    wrong = found or next(fractions, other)
    if wrong is not None:
        raise SpecError(
            f"{wrong[0]} cannot be had with sums of 64 bits",
            got=f"{wrong[0]}={wrong[1]!r}, c=s64",
            expected="exact sums as they are: alpha * acc + beta * C, with whole alpha and beta",
            hint="c='s32' for scales, zero points, post-ops and a D of another type",
        )
