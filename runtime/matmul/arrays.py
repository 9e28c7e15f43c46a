"""Facts about an array: its element type, and the axis along which its matrices are contiguous."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.views import OF_ANY, is_masked, what_to_do
from tilewright.runtime.call.overlap import disjoint
from tilewright.spec.operands import Order
from tilewright.spec.types import INPUTS, TYPES, TypeName, is_integer, mixes, type_name

Array = np.ndarray[Any, Any]
#: numpy's names of orders, indexed by the result of ``contiguous_axis``.
ORDERS: tuple[Order, Order] = ("F", "C")


def contiguous_axis(array: np.ndarray[Any, Any]) -> int | None:
    """Return 1 if each matrix of ``array`` has contiguous rows, 0 if contiguous columns, else None.

    The last two axes are the matrix; a line is a row or a column of it. The lines are in order, do
    not overlap, and are a whole number of elements apart. If both axes qualify, the result is 1,
    except for a column with contiguous elements. ``tw_lines`` of templates/matmul/matrix.h.j2
    decides in the same way.
    """
    (rows, columns), (across, along) = array.shape[-2:], array.strides[-2:]
    item = array.itemsize
    if columns == 1 and rows > 1 and across == item:
        return 0
    if _lines(rows, columns, across, along, item):
        return 1
    return 0 if _lines(columns, rows, along, across, item) else None


def _lines(lines: int, length: int, between: int, within: int, item: int) -> bool:
    whole = lines < 2 or (between % item == 0 and between // item >= length)
    return whole and (length < 2 or within == item)


def type_of(array: Any, name: str) -> str:
    """Return the element type of an array, for example f32; ArgumentTypeError if it is not
    supported.
    """
    if not isinstance(array, np.ndarray) or is_masked(array):
        raise ArgumentTypeError(
            f"{name} must be a numpy array",
            got=type(array).__name__,
            expected=OF_ANY,
            hint=what_to_do(array, name) or f"np.asarray({name})",
        )
    return _named(array.dtype, name)


@cache
def _named(dtype: np.dtype[Any], name: str) -> str:
    known = TYPES if name == "out" else INPUTS
    if dtype.isnative:
        found = next((t for t in known if TYPES[t].numpy == dtype.name), None)
        if found is not None:
            return found
    does = "write" if name == "out" else "multiply"
    raise ArgumentTypeError(
        f"{name} has a type that tw.matmul does not {does}",
        got=dtype.str if not dtype.isnative else dtype.name,
        expected=", ".join(TYPES[t].numpy for t in known),
        hint=_cure(dtype, name),
    )


def _cure(dtype: np.dtype[Any], name: str) -> str | None:
    """Return code for a lossless conversion to a supported type; None if there is none."""
    if name == "out":
        return "an out of one of these types; convert what is returned"
    if not dtype.isnative and dtype.newbyteorder("=").name in {TYPES[t].numpy for t in INPUTS}:
        return (
            f"{name}.astype({dtype.newbyteorder('<' if sys.byteorder == 'little' else '>').str!r})"
        )
    if dtype.kind == "c":
        return f"products of {name}.real and {name}.imag, or np.matmul"
    if dtype.kind == "b":
        return f"{name}.astype(np.uint8), or to(torch.uint8) of a tensor: sums are int32"
    if dtype.name in ("int64", "uint64", "longdouble", "float128"):
        return f"np.matmul(a, b), or {name}.astype(np.float64), which is exact up to 2**53"
    if dtype.name in ("int32", "uint32"):
        return (
            f"{name}.astype(np.float64), or to(torch.float64) of a tensor: float64 represents "
            f"every {dtype.name} exactly"
        )
    # These are the small types of ml_dtypes, for example float8_e5m2.
    if dtype.name.startswith(("float", "int", "uint")):
        return f"{name}.astype(np.float32), or to(torch.float32) of a tensor"
    return None


def factors(a: str, b: str) -> tuple[TypeName, TypeName]:
    """Return the types of A and B, both f64 if one of them is f64.

    Raise ArgumentTypeError if one is f64 and the other is an integer type.
    """
    if "f64" in (a, b) and mixes(a, b):
        raise ArgumentTypeError(
            "matmul multiplies no integers by float64",
            got=f"a of {TYPES[a].numpy}, b of {TYPES[b].numpy}",
            expected="two of float64, or two of smaller types",
            hint=f"{'a' if is_integer(a) else 'b'}.astype(np.float64), which is exact",
        )
    if "f64" in (a, b):
        return "f64", "f64"
    return type_name(a), type_name(b)


def checked_out(out: Any, shape: tuple[int, ...]) -> Array:
    """Return ``out`` if a product of this shape can be written to it; ArgumentError otherwise."""
    type_of(out, "out")
    if out.shape != shape:
        raise ArgumentValueError("matmul: out has the wrong shape", got=out.shape, expected=shape)
    if not out.flags.writeable:
        raise ArgumentValueError("matmul: out is read-only", hint="a writable out")
    if not disjoint(out):
        raise ArgumentValueError(
            "matmul: elements of out share memory",
            got=f"shape {out.shape}, strides {out.strides}",
            hint="an array of its own",
        )
    result: Array = out
    return result


def refuse_overlap(name: str, given: Array, out: Array) -> NoReturn:
    """Raise the error for an ``out`` that shares memory with ``given``, called ``name``."""
    raise ArgumentValueError(
        f"matmul: out shares memory with {name}",
        got=f"{name} {given.shape} and out {out.shape} have elements in common",
        hint=f"{name}.copy(), or a new out",
    )
