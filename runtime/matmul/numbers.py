"""Make the numbers in an epilogue arguments of the kernel: other values need no new kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError
from tilewright.runtime.arrays.dtypes import loaded
from tilewright.runtime.arrays.views import as_array
from tilewright.spec.expression import (
    Call,
    Expression,
    Number,
    Operand,
    is_integer_additions,
    operands_of,
    walk,
)
from tilewright.spec.expression.checks import has_functions
from tilewright.spec.types import TypeName

Array = np.ndarray[Any, Any]
#: Maximum number of numbers of an epilogue that become arguments. If it has more, all stay
#: constants in the kernel.
MOST = 8
#: The largest finite number of f32.
_LARGEST = 2.0**128 - 2.0**104
#: The type in which products are summed, by numpy's name of the type of A, of B or of ``out``; f32
#: for other types. With an epilogue, an ``out`` of int64 is computed in f64.
_SUMS: dict[str, TypeName] = {
    "float64": "f64", "int64": "f64", "int8": "s32", "uint8": "s32", "int16": "s32",
    "uint16": "s32",
}  # fmt: skip
#: Types of sums found so far, by the dtypes of a, b and out; and the maximum number of entries.
_known: dict[Any, TypeName] = {}
_MOST_KNOWN = 256


class Lifted(NamedTuple):
    """An epilogue in which operands replace the numbers, and the numbers by the operands' names."""

    epilogue: Expression
    numbers: dict[str, Array]


def sums_of(a: Any, b: Any, out: Any) -> TypeName:
    """Return the type in which a product is summed: f64, s32 for integers, else f32.

    It is f64 if the elements of a, b or out have 64 bits. If ``out`` is None, a new result is made.
    If ``b`` is None, it is packed; then only the type of a decides.
    """
    key: Any = None
    try:
        key = a.dtype, None if b is None else b.dtype, None if out is None else out.dtype
        found = _known.get(key)
        if found is not None:
            return found
    except (AttributeError, TypeError):  # for example an object with the buffer protocol
        key = None
    first = _sums(a, "a")
    others = () if b is None else ((b, "b"), (out, "out"))
    wide = "f64" in (first, *(_sums(x, name) for x, name in others if x is not None))
    sums: TypeName = "f64" if wide else first
    if key is not None and len(_known) < _MOST_KNOWN:
        _known[key] = sums
    return sums


def _sums(x: Any, name: str) -> TypeName:
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        dtype = getattr(as_array(x, name), "dtype", None)
    return _SUMS.get(str(dtype).rpartition(".")[2], "f32")


def lifted(epilogue: Expression, sums: TypeName) -> Lifted:
    """Return ``epilogue`` with operands in place of its numbers, and the numbers.

    A number is replaced if it is an operand of a function or an operator, for example both numbers
    of ``tw.acc * 2 + 1``. A parameter of a function stays a constant in the kernel, for example the
    bounds of ``tw.clip``. So does a number that is too large for the type of the computation; it
    raises an error when the kernel is compiled. If there are more than ``MOST`` numbers, all stay
    constants. ``sums`` is the type in which the product is summed.

    Examples
    --------
    >>> from tilewright.runtime.matmul.numbers import lifted
    >>> found = lifted(tw.clip(tw.acc * 0.5, 0, 6), "f32")
    >>> found.epilogue
    clip(acc * Operand('number_0', 'f32'), 0, 6)
    >>> found.numbers
    {'number_0': array([0.5], dtype=float32)}
    """
    whole = sums == "s32" and is_integer_additions(epilogue)
    type_: TypeName = (
        "s32" if whole else "f64" if sums == "f64" and has_functions(epilogue, "f64") else "f32"
    )
    found = {id(node): node for node in _numbers(epilogue) if _fits(node.value, type_)}
    if not found or len(found) > MOST:
        return Lifted(epilogue, {})
    taken = {operand.name for operand in operands_of(epilogue)}
    stem = "number_"
    while any(name.startswith(stem) for name in taken):
        stem += "_"
    operands = {key: Operand(f"{stem}{i}", type_) for i, key in enumerate(found)}
    numbers = {
        operand.name: np.array([found[key].value], loaded(type_))
        for key, operand in operands.items()
    }
    return Lifted(_with(epilogue, operands), numbers)


def has_numbers(epilogue: Expression) -> bool:
    """Return True if ``epilogue`` has numbers that are operands of functions or operators."""
    return any(True for _ in _numbers(epilogue))


def _numbers(epilogue: Expression) -> Iterator[Number]:
    """Yield the numbers that are operands of functions or operators.

    A number that is used twice may come twice.
    """
    for node in walk(epilogue):
        for arg in node.operands if isinstance(node, Call) else ():
            if isinstance(arg, Number):
                yield arg


def _fits(value: float, type_: str) -> bool:
    """Return True if ``value`` is not too large for a type; it may be rounded."""
    return type_ != "f32" or not _LARGEST < abs(value) < inf


def _with(epilogue: Expression, operands: dict[int, Operand]) -> Expression:
    """Return ``epilogue`` in which ``operands``, by the numbers' ids, replace the numbers."""
    made: dict[int, Expression] = {}
    for node in walk(epilogue):
        new: Expression = node
        if isinstance(node, Call):
            count = len(node.operands)
            args = tuple(
                operands.get(id(arg), made[id(arg)]) if i < count else arg
                for i, arg in enumerate(node.args)
            )
            new = Call(node.fn, args, node.own)
        made[id(node)] = new
    return made[id(epilogue)]


def is_lifted(name: str) -> bool:
    """Return True if ``lifted`` gives such names to the operands that replace numbers."""
    return re.fullmatch(r"number_+\d+", name) is not None


def joined(operands: Mapping[str, Any], numbers: Mapping[str, Array]) -> dict[str, Any]:
    """Return a call's operands together with the numbers of its epilogue.

    Raise ArgumentTypeError if the call names an operand that replaces a number.
    """
    for name in operands.keys() & numbers.keys():
        raise ArgumentTypeError(
            "an operand of the call is not in the epilogue",
            got=name,
            expected="the names of the epilogue's operands",
        )
    return {**operands, **numbers}
