"""Check and convert the numbers of a call: alpha and beta, and vectors of one element."""

from __future__ import annotations

from functools import cache
from math import isfinite
from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, described
from tilewright.runtime.arrays.dtypes import FOREIGN, accepts
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.signature import ArrayParameter, ScalarParameter
from tilewright.spec.types import is_integer

#: Numbers up to this magnitude are finite in all of numpy's floating-point types.
_FITS = 65504.0
#: All whole numbers up to this one are exact doubles.
_WHOLE = 1 << 53


def is_number(value: Any) -> bool:
    """Return True if ``value`` is one real number of Python, numpy or ml_dtypes, and not a bool.

    An array without axes counts as the number that it holds.
    """
    if type(value) is float or type(value) is int:
        return True
    if type(value) is np.ndarray and value.ndim == 0:
        value = value[()]
    if isinstance(value, (int, float, np.integer, np.floating)):
        return not isinstance(value, bool)
    return isinstance(value, np.generic) and type(value).__module__ == "ml_dtypes"


def check_number(name: str, value: Any) -> Any:
    """Return ``value``; ArgumentTypeError, about the argument ``name``, unless it is a number."""
    if is_number(value):
        return value
    raise ArgumentTypeError(
        f"{name} must be a Python number",
        got=described(value),
        expected="one real number, and no bool",
        hint=f"int({name})" if isinstance(value, bool | np.bool_) else None,
    )


def is_double(value: Any) -> bool:
    """Return True if ``value`` is a Python number that equals its C double."""
    return type(value) is float or (type(value) is int and abs(value) <= _WHOLE)


def _plain(value: Any) -> Any:
    """Return ``value``, as a Python float if its own type may be too small to compare with ints."""
    if type(value) is np.ndarray:
        value = value[()]
    foreign = type(value).__module__ == "ml_dtypes"
    return float(value) if foreign or isinstance(value, np.floating) else value


def factor(parameter: ScalarParameter, value: Any) -> float:
    """Return alpha or beta as a C double. It must be a 32-bit integer if the sums are integers."""
    if type(value) is float and not is_integer(parameter.type):
        return value
    value = _plain(check_number(parameter.name, value))
    if is_integer(parameter.type):
        return float(_whole(parameter.name, "s32", value))
    return _double(parameter.name, value)


def one(parameter: ArrayParameter, value: Any) -> np.ndarray[Any, Any]:
    """Return a number as an array of one element.

    An array without axes whose elements have the parameter's type, or hold its bits, is taken as it
    is.
    """
    type_, name = parameter.type, parameter.name
    if type(value) is np.ndarray and accepts(type_, value.dtype):
        return value.reshape(1)
    value = _plain(value)
    if is_integer(type_):
        return np.array([_whole(name, type_, value)], DTYPES[type_])
    number = _double(name, value)
    if abs(number) <= _FITS and type_ not in FOREIGN:
        return np.array([number], DTYPES[type_])
    from tilewright.runtime.arrays.elements import decode, encode

    array = encode([number], type_)
    if isfinite(number) and not isfinite(decode(array, type_)[0]):
        raise ArgumentValueError(f"{name} is too large for {type_}", got=value)
    return array


def _double(name: str, value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ArgumentValueError(f"{name} is too large for a double", got=value) from None


@cache
def _range(type_: str) -> tuple[int, int]:
    info = np.iinfo(DTYPES[type_])
    return int(info.min), int(info.max)


def _whole(name: str, type_: str, value: Any) -> int:
    low, high = _range(type_)
    # A NaN is refused too, because its comparisons are false.
    if not low <= value <= high or value != int(value):
        raise ArgumentValueError(
            f"{name} must be a whole number of type {type_}",
            got=value,
            expected=f"{low} to {high}",
        )
    return int(value)
