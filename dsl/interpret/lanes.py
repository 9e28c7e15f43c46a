"""Registers as numpy arrays with an element for each lane: loads, stores, products and sums.

Lanes have numpy's type of their element; bf16 and f8 are bits. Widening is exact. Narrowing rounds
floating point to nearest even and keeps the low bits of integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.elementwise.builder import Argument, Builder, Step, Value, run
from tilewright.elementwise.conversions import narrow, widen
from tilewright.elementwise.operations import NUMPY
from tilewright.errors import PlanError
from tilewright.isa.vector import MulAdd, Vector
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import FORMATS, ITEMSIZE, is_integer

Lanes: TypeAlias = NDArray[Any]
Convert = Callable[[Lanes], Lanes]
#: A function of (sums, x, y) that returns the sums with the products of x and y added. x varies
#: along the vector, y across it.
Product = Callable[[Lanes, Lanes, Lanes], Lanes]


# --- memory ------------------------------------------------------------------------------------


def reader(vector: Vector, memory: str, group: int) -> Convert:
    """Return a function that converts elements of type ``memory`` to lanes of ``vector``.

    If ``memory`` is "", elements have the vector's own type.
    """
    element = vector.element
    if group:
        bits = _unsigned(group * ITEMSIZE[memory])
        return lambda found: found.view(bits).astype(np.int32)
    if memory in ("", element):
        return np.ndarray.copy
    if memory == vector.flips:
        return flipped(vector)
    if memory not in vector.loads:
        raise PlanError(f"{vector} does not load {memory}", expected=", ".join(vector.loads))
    dtype = DTYPES[element]
    if ITEMSIZE[memory] > ITEMSIZE[element]:
        return partial(narrowed, element=element)
    if is_integer(memory) or memory == "f16":
        return lambda found: found.astype(dtype)
    return lambda found: exact(found, memory).astype(dtype, copy=False)


def anything(vector: Vector) -> float | int:
    """Return a value for lanes that may hold anything and must not be used.

    It is NaN for floating point, and an arbitrary number for integers.
    """
    if is_integer(vector.element):
        return 0x5A
    return math.nan if vector.element in ("f16", "f32", "f64") else 0x7F


def spreader(vector: Vector, memory: str) -> Convert:
    """Return a function that converts elements of type ``memory`` to lanes before a broadcast."""
    dtype = DTYPES[vector.element]
    if memory in vector.spreads:
        return lambda found: exact(found, memory).astype(dtype, copy=False)
    if memory == vector.flips:
        return flipped(vector)
    if ITEMSIZE[memory] != ITEMSIZE[vector.element]:
        raise PlanError(f"a broadcast of {memory} does not fill lanes", got=repr(vector))
    return lambda found: found.view(dtype)


def flipped(vector: Vector) -> Convert:
    """Return a function that converts integers of the other signedness to the type of ``vector``.

    For example, it converts u8 to s8 by subtracting 128, half of the range.
    """
    dtype, bits = DTYPES[vector.element], _unsigned(ITEMSIZE[vector.element])
    return lambda found: (found.view(bits) ^ bits.type(1 << 8 * bits.itemsize - 1)).view(dtype)


def writer(vector: Vector, memory: str, group: int) -> Convert:
    """Return a function that converts lanes of ``vector`` to elements of type ``memory``.

    If ``memory`` is "", elements have the vector's own type.
    """
    element = vector.element
    if group:
        bits = _unsigned(group * ITEMSIZE[memory])
        return lambda lanes: lanes.astype(bits).view(DTYPES[memory])
    if memory in ("", element):
        return lambda lanes: lanes
    if memory not in vector.stores:
        raise PlanError(f"{vector} does not store {memory}", expected=", ".join(vector.stores))
    dtype = DTYPES[memory]
    if is_integer(memory) or memory in ("f16", "f64"):
        return lambda lanes: lanes.astype(dtype)
    return lambda lanes: _converted(narrow, memory, lanes).astype(dtype)


def narrowed(found: Lanes, element: str) -> Lanes:
    """Return f64 or s64 as f32 or s32, to nearest even. Integers saturate, and NaN becomes 0."""
    if is_integer(element):
        bounds = np.iinfo(DTYPES[element])
        whole = found if found.dtype.kind == "i" else np.rint(found)
        found = np.where(np.isnan(found), 0, np.clip(whole, bounds.min, bounds.max))
    with np.errstate(over="ignore", under="ignore"):
        return found.astype(DTYPES[element])


def _unsigned(size: int) -> np.dtype[Any]:
    """Return the unsigned integer type of ``size`` bytes."""
    if size not in (1, 2, 4):
        raise PlanError("no lane holds such a group", got=f"{size} bytes", expected="1, 2 or 4")
    return np.dtype(f"u{size}")


def exact(found: Lanes, element: str) -> Lanes:
    """Return floating-point elements as f32 or f64. Elements of bf16 and f8 are given as bits."""
    if element == "bf16":
        return (found.astype(np.uint32) << 16).view(np.float32)
    if element == "f16":
        return found.astype(np.float32)
    return _converted(widen, element, found.astype(np.int32)) if element in FORMATS else found


def _converted(how: Callable[[Builder, Argument, str], Argument], type_: str, x: Lanes) -> Lanes:
    steps, given, result = _conversion(how, type_)
    found: Lanes = run(steps, {given: x})[result]
    return found


@cache
def _conversion(
    how: Callable[[Builder, Argument, str], Argument], type_: str
) -> tuple[list[Step], Value, Value]:
    builder = Builder("f32")
    given = builder.input("s32" if how is widen else "f32")
    result = how(builder, given, type_)
    assert isinstance(result, Value)
    return builder.steps, given, result


# --- sums --------------------------------------------------------------------------------------


def product(op: MulAdd, element: str) -> Product:
    """Return the function that computes multiply-add ``op`` with sums of type ``element``.

    Integers are exact modulo the range of ``element``. Floating-point products are added one by
    one, in a group the last first. If the instruction is fused, each is rounded once with the sum,
    else before it too. Instructions that flush denormals, or round to odd between additions, give
    other results.
    """
    add = _whole if is_integer(element) else _fused if op.fused else _apart
    x_element, y_element = op.x or element, op.y or element
    if op.depth == op.rows == 1 and x_element == y_element == element:
        return add
    segments = op.segments, op.rows, -1

    def grouped(acc: Lanes, x: Lanes, y: Lanes) -> Lanes:
        along = exact(x, x_element).reshape(op.segments, 1, -1, op.depth)
        across = exact(y, y_element).reshape(op.segments, op.rows, -1, op.depth)
        total = acc.reshape(segments)
        if add is _whole:
            products = np.multiply(along, across, dtype=acc.dtype)
            total = total + np.add.reduce(products, axis=-1, dtype=acc.dtype)
        else:
            for place in reversed(range(op.depth)):
                total = add(total, along[..., place], across[..., place])
        return total.reshape(-1)

    return grouped


def _whole(acc: Lanes, x: Lanes, y: Lanes) -> Lanes:
    return acc + np.multiply(x, y, dtype=acc.dtype)


def _apart(acc: Lanes, x: Lanes, y: Lanes) -> Lanes:
    return acc + np.multiply(x, y, dtype=acc.dtype)


def _fused(acc: Lanes, x: Lanes, y: Lanes) -> Lanes:
    total: Lanes = NUMPY["fma"](x, y, acc)
    return total


def summed(lanes: Lanes) -> Lanes:
    """Return the sum of all lanes as one lane: the upper half is added to the lower, repeatedly."""
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = np.concatenate((lanes[:half] + lanes[half : 2 * half], lanes[2 * half :]))
    return lanes
