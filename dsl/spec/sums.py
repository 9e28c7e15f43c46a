"""Choose and check the types of arithmetic: of the sums of a product, and of its factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from tilewright.errors import SpecError

from .types import TypeName, accumulator, is_integer

#: The argument ``sums``: a type; or ("f16", count), where each ``count`` elements of K are summed
#: in f16 and these sums in f32; or None for the default type.
Sums: TypeAlias = "TypeName | tuple[Literal['f16'], int] | None"

#: The argument ``math``: the type to which f32 is rounded before it is multiplied, or None. With
#: "always" a target that multiplies the type no faster than f32 rounds too.
Math: TypeAlias = "Literal['bf16'] | tuple[Literal['bf16'], Literal['always']] | None"
#: The types of A and B that ``math`` allows.
_ROUNDED = ("f32", "bf16", "s8", "u8")

#: The types that C may have if C is the result, for each type of the sums. If there is a D, C is
#: only read, and may have any type that D may have.
SUM_OUTPUTS = {"f32": ("f32", "f16", "bf16"), "s32": ("s32", "s64"), "f64": ("f64",)}


def computed_in(a: str, b: str, c: str) -> TypeName:
    """Return the type of the arithmetic on sums, given the types of A, B and C.

    A C of s64 makes integer sums s64.
    """
    held = accumulator(a, b)
    return "s64" if held == "s32" and c == "s64" else held


def default_sums(a: str, b: str, c: str) -> TypeName:
    """Return the type that holds the sums by default: f16 if A, B and C are all f16."""
    return "f16" if (a, b, c) == ("f16", "f16", "f16") else computed_in(a, b, c)


def default_c(sums: object, a: str, b: str) -> TypeName:
    """Return the default type of C, for the argument ``sums`` and the types of A and B."""
    if isinstance(sums, str) and sums in ("f16", "s64"):
        return "f16" if sums == "f16" else computed_in(a, b, "s64")
    return accumulator(a, b)


def check_sums(given: Sums, a: str, b: str, c: str) -> TypeName | tuple[Literal["f16"], int]:
    """Return the type of the sums, ``given`` or the default; SpecError if A and B exclude it."""
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


#: Hints of an error message: the first for floating-point sums, the second for integer sums.
_HINTS = ("sums in f16 take an A and a B of f16", "sums have the type of C: c='s32' or c='s64'")
#: Arguments of ``Gemm`` that change the sums before they are stored in C. They are refused for sums
#: in s64, because no target converts s64.
_REMAKES = (
    "a_scale", "b_scale", "d_scale", "a_zero", "b_zero", "d_zero", "epilogue", "b2", "outputs",
)  # fmt: skip


def check_wide(sums: str, given: Mapping[str, object], types: Mapping[str, str]) -> None:
    """Raise SpecError if an argument changes 64-bit sums, or if D is s64 without 64-bit sums.

    ``given`` are the arguments of a product with ``sums``; ``types`` are those of A, B, C and D.
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


def check_math(given: Math, a: str, b: str, *, quantized: bool) -> Math:
    """Return the argument ``math`` of a product of types ``a`` and ``b``; SpecError if it is wrong.

    ``quantized`` is True if B is quantized in blocks.
    """
    if given is None:
        return None
    words: tuple[object, ...] = given if isinstance(given, tuple) else (given,)
    named = all(isinstance(word, str) for word in words)
    if not named or words not in (("bf16",), ("bf16", "always")):
        raise SpecError(
            "math is no type to which operands are rounded",
            got=given,
            expected='"bf16"; or ("bf16", "always"), which rounds on every target',
        )
    if quantized or "f32" not in (a, b) or not {a, b} <= set(_ROUNDED):
        raise SpecError(
            "math rounds operands of f32, and these have none, or others that bf16 does not hold",
            got=f"a={a}, b={b}{', quantized in blocks' if quantized else ''}",
            expected=f"f32 in A or B, and {', '.join(_ROUNDED)} in the other",
            hint="leave math out",
        )
    return given


def rounded_type(math: Math, type_: TypeName) -> TypeName:
    """Return the type that elements of ``type_`` are rounded to before they are multiplied."""
    return "bf16" if math is not None and type_ == "f32" else type_
