"""The right results of a network: float64 through its expressions, with bounds on roundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.runtime.arrays.elements import decode, epsilon, nearest
from tilewright.runtime.call.bound_sizes import Array, value_of
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.expression import Expression
from tilewright.spec.expression.products import Product, Weight
from tilewright.spec.expression.tensors import Cast, Extent, Input, Reduce
from tilewright.spec.network.value import Network
from tilewright.spec.signature import Signature
from tilewright.spec.types import is_integer

from .arguments import Sample
from .epilogue import Evaluation
from .gemm import Expected
from .interval import Interval, hull

#: Roundings on the way of an element into a sum: a share of a row or column, then folds of parts.
_OF_ROW, _OF_COLUMN = (64, 6), (4, 2)


def network_results(spec: Network, signature: Signature, held: Sample) -> dict[str, Expected]:
    """Return what a kernel must write for the arguments ``held``, by the names of the results."""
    arrays = {p.name: array for p, array in zip(signature.arrays, held.arrays, strict=True)}
    return expected_of(spec, arrays, held.sizes)


def expected_of(
    spec: Network, arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Expected]:
    """Return the right results for ``arrays``, by name. ``sizes`` are those of the dims."""
    found = {}
    evaluation = _Evaluation(spec, arrays, sizes)
    with np.errstate(all="ignore"):
        for name, result in zip(spec.names, spec.results, strict=True):
            assert result.tensor is not None
            made = result.args[0] if isinstance(result, Cast) else result
            shape = tuple(value_of(size, sizes) for size in result.tensor.shape)
            values = evaluation.of(made).spread(shape or (1,))
            found[name] = Expected(values, result.tensor.type)
    return found


class _Evaluation(Evaluation):
    """The evaluation of a network's expressions; all values are kept."""

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
        found = Interval.exactly(array.astype(self.dtype), self.element)
        return found.rounded() if is_integer(leaf.type) else found

    def _node(self, node: Expression) -> Interval:
        match node:
            case Cast(type_, (given,)):
                return _cast(self.values[id(given)], type_, self.element)
            case Product():
                return self._product(node)
            case Reduce(fn, axis, keepdims, (given,)):
                assert given.tensor is not None
                shape = tuple(value_of(size, self.sizes) for size in given.tensor.shape)
                return _reduced(fn, self.values[id(given)].spread(shape), axis, keepdims)
        return super()._node(node)

    def _product(self, node: Product) -> Interval:
        """Return the sums of a product: off by a rounding for each step, and by what x is off."""
        assert node.args[0].tensor is not None
        shape = tuple(value_of(size, self.sizes) for size in node.args[0].tensor.shape)
        x, w = self.values[id(node.args[0])].spread(shape), self.values[id(node.weight)]
        x = _less(x, node.a_zero)
        w = _less(w, node.b_zero)
        value, size = x.value @ w.value, np.abs(w.value)
        middle, radius = (x.low + x.high) / 2, (x.high - x.low) / 2
        most = np.maximum(np.abs(x.low), np.abs(x.high)) @ size
        unit = epsilon(self.element)
        whole = np.all(x.exact & (x.value == np.rint(x.value)), axis=1, keepdims=True)
        whole = whole & np.all(w.value == np.rint(w.value), axis=0) & (most * unit < 1)
        rounded = 0.0 if is_integer(node.type) else (shape[1] + 4) * unit * most
        off = np.where(whole, 0, radius @ size + rounded)
        blank = np.where(most < np.finfo(np.float32).max, 0.0, np.nan)  # sums may overflow
        of = Interval(value, blank, blank, x.element)
        found = hull(value, [middle @ w.value - off, middle @ w.value + off], of)
        if is_integer(node.type):
            return found.rounded()
        return found if node.type == node.sums else _cast(found, node.type, self.element)


def _less(x: Interval, zero: int) -> Interval:
    """Return integers less a zero point."""
    if not zero:
        return x
    value, low, high = (part - zero for part in (x.value, x.low, x.high))
    return Interval(value, low, high, x.element)


def _cast(given: Interval, type_: str, element: str) -> Interval:
    """Return numbers rounded to ``type_``, as the kernel computes on with them."""
    if type_ == element:
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
    parts, folds = _OF_COLUMN if x.value.ndim == 2 and axis == -2 else _OF_ROW
    steps = -(-x.value.shape[axis] // parts) + folds
    error = np.where(whole, 0, steps * eps * size)
    return hull(value, [low - error, high + error], of)
