"""Factors, scales and zero points: literals, or what a call passes."""

from __future__ import annotations

from typing import Any, Literal

from tilewright.errors import SpecError

Factor = float | Literal["scalar"]
#: A scale or zero point: absent, a literal, one value at the call, or one for each row or column.
Quantity = float | int | Literal["scalar", "row", "column"] | None
#: Scales and zero points in the order of C's parameters, and what each may vary along.
QUANTITIES: dict[str, Literal["row", "column"]] = {
    "a_scale": "row",
    "b_scale": "column",
    "d_scale": "column",
    "a_zero": "row",
    "b_zero": "column",
    "d_zero": "column",
}


def quantity_type(name: str, sums: str) -> str:
    """The type of a scale or zero point that a call passes, where sums are of type ``sums``."""
    if name.endswith("_scale"):
        return "f64" if sums == "f64" else "f32"
    return "f64" if sums == "f64" and name == "d_zero" else "s32"


def short(factor: Factor) -> Factor:
    """2 rather than 2.0."""
    return int(factor) if isinstance(factor, float) and factor.is_integer() else factor


def check_factor(value: Any, name: str) -> Factor:
    """Alpha or beta; SpecError if it is none."""
    if value == "scalar":
        return "scalar"
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise SpecError(f"{name} must be a number or 'scalar'", got=value)
    return float(value)


def check_quantity(value: Any, name: str) -> Quantity:
    """A scale or zero point; SpecError if it is none."""
    per = QUANTITIES[name]
    if value is None or value in ("scalar", per):
        return value  # type: ignore[no-any-return]
    number = not isinstance(value, (bool, str)) and hasattr(value, "__float__")
    if not number:
        raise SpecError(
            f"{name} must be a number, 'scalar' or {per!r}", got=value, expected=f"one per {per}"
        )
    if name.endswith("_scale"):
        return float(value)
    if float(value) != int(value) or not -(2**31) <= int(value) < 2**31:
        raise SpecError(f"{name} must be a whole number of 32 bits", got=value)
    return int(value)
