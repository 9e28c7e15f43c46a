"""Evaluate expressions of tensors in float64, with bounds on all roundings of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.runtime.arrays.elements import decode, epsilon, nearest
from tilewright.runtime.call.bound_sizes import Array, value_of
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.expression import Expression
from tilewright.spec.expression.products import Product, Weight
from tilewright.spec.expression.tensors import (
    Cast,
    Count,
    Extent,
    Full,
    Input,
    Join,
    Reduce,
    Scatter,
    Take,
    View,
)
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Size
from tilewright.spec.types import is_integer

from .epilogue import Evaluation
from .interval import Interval, add, hull

#: Roundings on the way of an element into a sum: a share of a row or column, then folds of parts.
_OF_ROW, _OF_COLUMN = (64, 6), (4, 2)


class Tensors(Evaluation):
    """The evaluation of a network's expressions for the arrays and sizes of a call."""

    def __init__(
        self, spec: Network, arrays: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        dtype = np.longdouble if spec.real == "f64" else np.float64
        super().__init__(spec.real, dtype, self._input)
        self.arrays, self.sizes = arrays, sizes

    def _input(self, leaf: Expression) -> Interval:
        if isinstance(leaf, Extent):
            count = np.array(self.sizes[leaf.dim.name], self.dtype)
            return Interval.exactly(count, self.element).rounded()
        assert isinstance(leaf, Input | Weight)
        given = self.arrays[leaf.name]
        if isinstance(given, QuantizedMatrix):
            given = given.dequantize()
        array = decode(np.asarray(given), leaf.type).reshape(
            tuple(value_of(size, self.sizes) for size in leaf.shape)
        )
        return Interval.exactly(array.astype(self.dtype), self.element)

    def number(self, node: Expression) -> Interval:
        """Return the value of a node as arithmetic reads it: integers become floating point."""
        found = super().number(node)
        whole = node.tensor is not None and is_integer(node.tensor.type)
        return found.rounded() if whole else found

    def _node(self, node: Expression) -> Interval:
        match node:
            case Cast(type_, (given,)):
                wide = given.tensor is not None and given.tensor.type == "f64"
                return _cast(self.number(given), type_, self.element, always=wide)
            case Product():
                return self._product(node)
            case View(args=(given,)):
                return _viewed(node, self._whole(given), self._shape_of(node))
            case Join(axis, args):
                return _joined([self._whole(each) for each in args], axis)
            case Take(args=(table, rows)):
                return _taken(self._whole(table), self._whole(rows).value)
            case Scatter(args=(base, index, rows)):
                new = self._added(node) if node.fn == "scatter_add" else self._replacing(rows)
                return _scattered(self._whole(base), self._whole(index).value, new)
            case Full(value, shape):
                return self._constant(value).spread(self._shape(shape))
            case Count(size):
                numbers = np.arange(value_of(size, self.sizes)).astype(self.dtype)
                return Interval.exactly(numbers, self.element)
            case Reduce(fn, axis, keepdims, (given,)):
                whole = self.number(given).spread(self._shape_of(given))
                return _reduced(fn, whole, axis, keepdims)
        return super()._node(node)

    def _replacing(self, rows: Expression) -> Callable[[Interval, tuple[int, ...]], Interval]:
        """Return the function that returns a row of ``rows`` in place of an old one."""
        whole = self._whole(rows)
        return lambda _, at: whole.row(at)

    def _added(self, node: Scatter) -> Callable[[Interval, tuple[int, ...]], Interval]:
        """Return the function that adds a row to an old one, and rounds the sum."""
        type_, rows = node.tensor.type, node.args[2]
        added = self.number(rows).spread(self._shape_of(rows))

        def total(old: Interval, at: tuple[int, ...]) -> Interval:
            whole = old.rounded() if is_integer(type_) else old
            return _cast(add(whole, added.row(at)), type_, old.element)

        return total

    def _product(self, node: Product) -> Interval:
        """Return a product's sums. Bounds have a rounding per step and the errors of operands."""
        x, w = map(self._whole, node.args)
        x, w = _less(x, node.a_zero), _less(w, node.b_zero)
        value = x.value @ w.value
        middles, radii, sizes = zip(*map(_around, (x, w)), strict=True)
        most = sizes[0] @ sizes[1]
        unit = epsilon(self.element)
        whole = np.all(_whole_numbers(x), axis=-1, keepdims=True)
        whole = whole & np.all(_whole_numbers(w), axis=-2, keepdims=True) & (most * unit < 1)
        unsure = radii[0] @ sizes[1] + np.abs(middles[0]) @ radii[1]
        rounded = 0.0 if is_integer(node.type) else (x.value.shape[-1] + 4) * unit * most
        off = np.where(whole, 0, unsure + rounded)
        blank = np.where(most < np.finfo(np.float32).max, 0.0, np.nan)  # sums may overflow
        middle = middles[0] @ middles[1]
        of = Interval(value, blank, blank, x.element)
        found = hull(value, [middle - off, middle + off], of)
        if is_integer(node.type):
            return _wrapped(found)
        return found if node.type == node.sums else _cast(found, node.type, self.element)

    def _whole(self, node: Expression) -> Interval:
        """Return the value of a node in its own shape."""
        return self.values[id(node)].spread(self._shape_of(node))

    def _shape_of(self, node: Expression) -> tuple[int, ...]:
        assert node.tensor is not None
        return self._shape(node.tensor.shape)

    def _shape(self, shape: tuple[Size, ...]) -> tuple[int, ...]:
        return tuple(value_of(size, self.sizes) for size in shape)


def _around(x: Interval) -> tuple[Array, Array, Array]:
    """Return the middle, the radius and the largest size of each number."""
    most = np.maximum(np.abs(x.low), np.abs(x.high))
    return (x.low + x.high) / 2, (x.high - x.low) / 2, most


def _whole_numbers(x: Interval) -> Array:
    """Return a mask of the numbers that are exact and whole."""
    whole: Array = x.exact & (x.value == np.rint(x.value))
    return whole


def _viewed(view: View, given: Interval, shape: tuple[int, ...]) -> Interval:
    """Return a view of a tensor."""
    parts = (viewed(view, part, shape) for part in (given.value, given.low, given.high))
    value, low, high = parts
    return Interval(value, low, high, given.element)


def viewed(view: View, array: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of an array."""
    match view.fn:
        case "reshape":
            return array.reshape(shape)
        case "transpose":
            return array.transpose(view.how)
        case "expand":
            return np.broadcast_to(array, shape)
    parts = zip(view.how, shape, strict=True)
    return array[tuple(slice(f, f + n * step, step) for (f, _, step), n in parts)]


def _taken(table: Interval, rows: Array) -> Interval:
    """Return rows of a table, by numbers that are limited to those of its rows."""
    at = _places(table, rows)
    value, low, high = (part[at] for part in (table.value, table.low, table.high))
    return Interval(value, low, high, table.element)


def _places(table: Interval, rows: Array) -> Array:
    """Return numbers of rows, limited to those of a table; negative ones count from its end."""
    count = table.value.shape[0]
    counted = np.where(rows < 0, rows + count, rows)
    return np.clip(counted, 0, count - 1).astype(np.int64)


def _scattered(
    base: Interval, index: Array, new: Callable[[Interval, tuple[int, ...]], Interval]
) -> Interval:
    """Return a tensor with rows written one after another.

    ``new`` returns a row, given the row that it replaces and the place of its number in ``index``.
    """
    value, low, high = base.value.copy(), base.low.copy(), base.high.copy()
    found = Interval(value, low, high, base.element)
    places = _places(base, index)
    for at in np.ndindex(index.shape):
        place = (int(places[at]),)
        row = new(found.row(place), at)
        value[place], low[place], high[place] = row.value, row.low, row.high
    return found


def _joined(parts: list[Interval], axis: int) -> Interval:
    """Return tensors one after another along an axis."""
    value, low, high = (
        np.concatenate([getattr(part, name) for part in parts], axis)
        for name in ("value", "low", "high")
    )
    return Interval(value, low, high, parts[0].element)


def _less(x: Interval, zero: int) -> Interval:
    """Return integers minus a zero point."""
    if not zero:
        return x
    value, low, high = (part - zero for part in (x.value, x.low, x.high))
    return Interval(value, low, high, x.element)


def _wrapped(x: Interval) -> Interval:
    """Return sums of integers as s32 holds them, modulo 2**32."""
    beyond = np.floor((x.value + 2.0**31) / 2.0**32) * 2.0**32
    value, low, high = (part - beyond for part in (x.value, x.low, x.high))
    return Interval(value, low, high, x.element)


def _cast(given: Interval, type_: str, element: str, *, always: bool = False) -> Interval:
    """Return numbers rounded to ``type_``, as the kernel computes on with them.

    They already have the type ``element`` unless this happens ``always``.
    """
    if type_ == element and not always:
        return given
    unsure = given.unsure
    parts = [np.asarray(nearest(part, type_)) for part in (given.value, given.low, given.high)]
    value, low, high = (part.astype(given.value.dtype) for part in parts)
    low, high = (np.where(unsure, np.nan, end) for end in (low, high))
    return Interval(value, low, high, element)


def _reduced(fn: str, x: Interval, axis: int, keepdims: bool) -> Interval:
    options: dict[str, Any] = {"axis": axis, "keepdims": keepdims}
    unsure = np.any(x.unsure, **options)
    blank = np.where(unsure, np.nan, 0.0)
    of = Interval(np.zeros(unsure.shape), blank, blank, x.element)
    if fn != "sum":
        reduce = np.max if fn == "max" else np.min
        return hull(reduce(x.value, **options), [reduce(e, **options) for e in (x.low, x.high)], of)
    value, low, high = (part.sum(**options) for part in (x.value, x.low, x.high))
    size = np.maximum(np.abs(x.low), np.abs(x.high)).sum(**options)
    eps = epsilon(x.element)
    whole = np.all(x.exact & (x.value == np.rint(x.value)), **options) & (size * eps < 1)
    parts, folds = _OF_COLUMN if axis % x.value.ndim != x.value.ndim - 1 else _OF_ROW
    steps = -(-x.value.shape[axis] // parts) + folds
    error = np.where(whole, 0, steps * eps * size)
    return hull(value, [low - error, high + error], of)
