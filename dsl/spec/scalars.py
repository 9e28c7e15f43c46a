"""Check the factors, scales and zero points of a spec: literals, or values passed at the call."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

from tilewright.errors import SpecError

from .quantized import check_block
from .sizes import real_number
from .types import is_integer

Factor = float | Literal["scalar"]
#: A scale or zero point: None; a literal; or values passed at the call: "scalar" for one value, or
#: one value for each row, each column, or each block of a row.
Quantity = float | int | Literal["scalar", "row", "column"] | tuple[Literal["row"], int] | None
#: Scales and zero points in the order of the C parameters. Each may have one value for each row, or
#: for each column, as given here.
QUANTITIES: dict[str, Literal["row", "column"]] = {
    "a_scale": "row",
    "b_scale": "column",
    "d_scale": "column",
    "a_zero": "row",
    "b_zero": "column",
    "d_zero": "column",
}


def of_sums(given: object) -> bool:
    """Return True if a scale is given for sums over all of K, not for sums over blocks of K."""
    return not isinstance(given, tuple | None)


def quantity_type(name: str, sums: str) -> str:
    """Return the element type of the scale or zero point ``name`` at a call.

    ``sums`` is the type of the sums.
    """
    if name.endswith("_scale"):
        return "f64" if sums == "f64" else "f32"
    return "f64" if sums == "f64" and name == "d_zero" else "s32"


def short(factor: Factor) -> Factor:
    """Return a factor for printing: an int if it has no fraction, for example 2 for 2.0."""
    return int(factor) if isinstance(factor, float) and factor.is_integer() else factor


#: Smallest magnitude of a number that a kernel divides by, for each type. Smaller numbers have no
#: finite reciprocal: 1 / 2**-128 overflows f32.
LEAST_DIVISOR = {"f32": 2.0**-127, "f64": 2.0**-1023}
#: Largest finite number of each type in which factors and scales are computed.
_LARGEST = {"f32": 2.0**128 - 2.0**104, "f64": sys.float_info.max}


def check_factor(value: Any, name: str, sums: str) -> Factor:
    """Return alpha or beta if sums of type ``sums`` can be multiplied by it; else raise SpecError.

    With sums in s32, a factor that is not an integer is multiplied in f32.
    """
    if isinstance(value, str) and value == "scalar":
        return "scalar"
    number = real_number(value)
    if number is None:
        raise SpecError(f"{name} must be a number or 'scalar'", got=value)
    check_finite(number, value, name, sums)
    if is_integer(sums) and abs(number) >= 2**31:
        raise SpecError(f"{name} must fit 32 bits where sums are integers", got=value)
    return number


def check_quantity(value: Any, name: str, sums: str) -> Quantity:
    """Return the scale or zero point ``name`` if it fits sums of type ``sums``, else SpecError."""
    per = QUANTITIES[name]
    if value is None or (isinstance(value, str) and value in ("scalar", per)):
        return value  # type: ignore[return-value]
    if name == "a_scale" and isinstance(value, tuple) and len(value) == 2 and value[0] == "row":
        return "row", check_block(value[1])
    number = real_number(value)
    if number is None:
        raise SpecError(
            f"{name} must be a number, 'scalar' or {per!r}",
            got=value,
            expected=f"one per {per}",
            hint=f"{name}={per!r}, and the array at the call" if hasattr(value, "ndim") else None,
        )
    if name.endswith("_scale"):
        check_finite(number, value, name, sums)
        if name == "d_scale" and abs(number) < (least := LEAST_DIVISOR[quantity_type(name, sums)]):
            raise SpecError(
                "d_scale divides, and its reciprocal must be finite",
                got=value,
                expected=f"at least {least:.8g} in magnitude",
            )
        return number
    if not number.is_integer() or not -(2**31) <= number < 2**31:
        raise SpecError(f"{name} must be a whole number of 32 bits", got=value)
    return int(number)


def check_finite(number: float, value: object, name: str, sums: str) -> None:
    """Raise SpecError unless ``number`` is finite in f32, or in f64 if ``sums`` is "f64"."""
    kind = "f64" if sums == "f64" else "f32"
    if not abs(number) <= _LARGEST[kind]:
        raise SpecError(
            f"{name} must be a finite number of {kind}",
            got=value,
            expected=f"at most {_LARGEST[kind]:.8g} in magnitude",
            hint="f64 holds it: arrays of f64" if kind == "f32" and math.isfinite(number) else None,
        )
