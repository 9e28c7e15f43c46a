"""Factors, scales and zero points: literals, or arguments of a call."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

from tilewright.errors import SpecError

from .quantized import check_block
from .sizes import real_number
from .types import is_integer

Factor = float | Literal["scalar"]
#: A scale or zero point: absent, a literal, one value at the call, or one for each row, column, or
#: block of a row.
Quantity = float | int | Literal["scalar", "row", "column"] | tuple[Literal["row"], int] | None
#: Scales and zero points in the order of C's parameters, and the dimension that each may vary
#: along.
QUANTITIES: dict[str, Literal["row", "column"]] = {
    "a_scale": "row",
    "b_scale": "column",
    "d_scale": "column",
    "a_zero": "row",
    "b_zero": "column",
    "d_zero": "column",
}


def of_sums(given: object) -> bool:
    """Return True if a scale is given and multiplies whole sums, not the sums of blocks of K."""
    return not isinstance(given, tuple | None)


def quantity_type(name: str, sums: str) -> str:
    """Return the type of a scale or zero point that a call passes, given the type of the sums."""
    if name.endswith("_scale"):
        return "f64" if sums == "f64" else "f32"
    return "f64" if sums == "f64" and name == "d_zero" else "s32"


def short(factor: Factor) -> Factor:
    """Return 2 for 2.0."""
    return int(factor) if isinstance(factor, float) and factor.is_integer() else factor


#: Least magnitude of a divisor, by type: f32 cannot represent the reciprocal of 2**-128.
LEAST_DIVISOR = {"f32": 2.0**-127, "f64": 2.0**-1023}
#: Largest finite numbers of the types in which factors and scales act.
_LARGEST = {"f32": 2.0**128 - 2.0**104, "f64": sys.float_info.max}


def check_factor(value: Any, name: str, sums: str) -> Factor:
    """Return alpha or beta after its checks, given the type of the sums; else raise SpecError.

    A factor that is not an integer acts in f32 if the sums are s32.
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
    """Return a scale or zero point after its checks for sums of type ``sums``."""
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
    """Raise SpecError unless a number is finite in the type of the arithmetic on such sums."""
    kind = "f64" if sums == "f64" else "f32"
    if not abs(number) <= _LARGEST[kind]:
        raise SpecError(
            f"{name} must be a finite number of {kind}",
            got=value,
            expected=f"at most {_LARGEST[kind]:.8g} in magnitude",
            hint="sums in f64 hold it: a and b of f64" if abs(number) < math.inf else None,
        )
