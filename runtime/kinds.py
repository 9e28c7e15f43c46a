"""What an argument is, before its shape: an array of the right type, or a packed matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.dtypes import DTYPES
from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.signature import ArrayParameter
from tilewright.types import ELEMENTS

from .abi import address
from .dtypes import FOREIGN, accepts, title
from .packed import PackedMatrix


def check_kind(parameter: ArrayParameter, given: Any, name: str) -> None:
    """ArgumentError unless ``given`` is what ``parameter`` takes, whatever its shape."""
    if parameter.packed:
        _packed(given, name, parameter.format)
    else:
        _array(parameter, given, name)


def describe(value: Any) -> str:
    """An argument in words, for a message."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}, strides {value.strides} bytes"
    return f"{type(value).__name__}: {value!r:.60}"


def _array(parameter: ArrayParameter, array: Any, name: str) -> None:
    want = DTYPES[parameter.type]
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        number = " or a number" if parameter.kind == "vector" and parameter.shape == (1,) else ""
        raise ArgumentTypeError(
            f"{name} must be a numpy array{number}",
            got=describe(array),
            expected=f"array of {title(parameter.type)}",
            hint=f"{parameter.name}=tw.Packed({parameter.type!r}) in the spec"
            if isinstance(array, PackedMatrix)
            else f"np.asarray({name}, {_astype(parameter.type)})",
        )
    if not accepts(parameter.type, array.dtype):
        swapped = accepts(parameter.type, array.dtype.newbyteorder())
        raise ArgumentTypeError(
            f"{name} has the wrong {'byte order' if swapped else 'dtype'}",
            got=f"{array.dtype.str if swapped else array.dtype}",
            expected=want.str if swapped else title(parameter.type),
            hint=f"{name}.astype({_astype(parameter.type)}), or another type in the spec",
        )
    if not array.flags.aligned:
        raise ArgumentValueError(
            f"{name} is not aligned to its elements of {want.itemsize} bytes",
            got=f"data at {address(array):#x}, strides {array.strides} bytes",
            hint=f"{name}.copy()",
        )
    if parameter.role != "in" and not array.flags.writeable:
        raise ArgumentValueError(
            f"{name} is read-only and would be written",
            got=describe(array),
            hint=f"{name}.copy()",
        )


def _astype(type_: str) -> str:
    module = "ml_dtypes" if type_ in FOREIGN else "np"
    return f"{module}.{ELEMENTS[type_].numpy}"


def _packed(given: Any, name: str, expected: str) -> None:
    if not isinstance(given, PackedMatrix):
        raise ArgumentTypeError(
            f"{name} must be a PackedMatrix",
            got=describe(given),
            expected=f"a matrix packed as {expected}",
            hint=f"kernel.pack_b({name})",
        )
    if given.format != expected:
        raise ArgumentValueError(
            f"{name} is packed in another format",
            got=given.format,
            expected=expected,
            hint="kernel.pack_b of this kernel, or of one of its family: formats depend on "
            "target, types, k, n and nb",
        )
