"""Functions of tensors for networks: layers, attention, softmax, norms, reductions, joins, views.

Each function returns an expression. Reductions are computed in f32, or in f64 for tensors of f64.
Functions that keep a tensor's shape also keep its type, but norms and softmax of integers are f32.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import numpy as np

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.expression.arithmetic import sqrt
from tilewright.spec.expression.exponential import exp
from tilewright.spec.expression.logarithm import log
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.products import product
from tilewright.spec.expression.shapes import said
from tilewright.spec.expression.tensors import cast, extent_of, reduction
from tilewright.spec.expression.tensors import mean as _mean
from tilewright.spec.network.indexed import scatter, scatter_add, take
from tilewright.spec.network.views import (
    arange,
    concat,
    expand,
    full,
    given_shape,
    index,
    pad,
    split,
)
from tilewright.spec.sizes import Dim, Size, real_number, whole_number
from tilewright.spec.types import DTypeLike, TypeName, is_integer, type_name

__all__ = [
    "arange", "attention", "concat", "dequantize", "expand", "extent", "full", "heads", "index",
    "layer_norm", "linear", "log_softmax", "max", "mean", "merge", "min", "pad", "product",
    "quantize", "rms_norm", "scatter", "scatter_add", "softmax", "split", "sum", "take",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__]


@spelled(SpecTypeError)
def sum(x: Expression, axis: int = -1, keepdims: bool = False) -> Expression:
    """Return the sum of the elements along one axis; 0 if there are none.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis.
    keepdims : bool
        True if the axis stays, with size 1.

    Returns
    -------
    Expression
        The sums.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.sum).of(x=tw.Tensor("f32", (2, 2))))
    >>> kernel(np.float32([[1, 2], [0, 3]]))
    array([3., 3.], dtype=float32)
    """
    return reduction("sum", x, axis, keepdims)


@spelled(SpecTypeError)
def max(x: Expression, axis: int = -1, keepdims: bool = False) -> Expression:
    """Return the largest element along one axis; NaN if one is NaN.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis, of at least one element.
    keepdims : bool
        True if the axis stays, with size 1.

    Returns
    -------
    Expression
        The maxima.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.max).of(x=tw.Tensor("f32", (2, 2))))
    >>> kernel(np.float32([[1, 2], [0, 3]]))
    array([2., 3.], dtype=float32)
    """
    return reduction("max", x, axis, keepdims)


@spelled(SpecTypeError)
def min(x: Expression, axis: int = -1, keepdims: bool = False) -> Expression:
    """Return the smallest element along one axis; NaN if one is NaN.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis, of at least one element.
    keepdims : bool
        True if the axis stays, with size 1.

    Returns
    -------
    Expression
        The minima.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.min).of(x=tw.Tensor("f32", (2, 2))))
    >>> kernel(np.float32([[1, 2], [0, 3]]))
    array([1., 0.], dtype=float32)
    """
    return reduction("min", x, axis, keepdims)


@spelled(SpecTypeError)
def mean(x: Expression, axis: int = -1, keepdims: bool = False) -> Expression:
    """Return the mean of the elements along one axis: their sum, divided by their number.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis.
    keepdims : bool
        True if the axis stays, with size 1.

    Returns
    -------
    Expression
        The means.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.mean).of(x=tw.Tensor("f32", (2, 2))))
    >>> kernel(np.float32([[1, 2], [0, 3]]))
    array([1.5, 1.5], dtype=float32)
    """
    return _mean(x, axis, keepdims)


@spelled(SpecTypeError)
def extent(dim: Size) -> Expression:
    """Return a size that is known only at the call, as a number to compute with.

    Parameters
    ----------
    dim : Dim
        The ``tw.dim`` of a size of one of the tensors, or a product of such dims.

    Returns
    -------
    Expression
        The number.

    Examples
    --------
    >>> cols = tw.dim("cols")
    >>> share = tw.network(lambda x: x / tw.nn.extent(cols))
    >>> tw.compile(share.of(x=tw.Tensor("f32", (1, cols))))(np.ones((1, 4), np.float32))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    if not isinstance(dim, Dim):
        raise SpecError("nn.extent is of a size of the call", got=dim, expected='tw.dim("rows")')
    return extent_of(dim)


@spelled(SpecTypeError)
def softmax(x: Expression, axis: int = -1) -> Expression:
    """Return ``exp(x - m)`` divided by its sum, where m is the maximum along the axis.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis along which the results add up to 1.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``x``, or of f32 for integers.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.softmax).of(x=tw.Tensor("f32", (1, 4))))
    >>> kernel(np.zeros((1, 4), np.float32))
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    powers = exp(x - max(x, axis, keepdims=True))
    return _as(powers * (1 / sum(powers, axis, keepdims=True)), x)


@spelled(SpecTypeError)
def log_softmax(x: Expression, axis: int = -1) -> Expression:
    """Return the logarithm of ``softmax``, also where ``softmax`` itself underflows to 0.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis along which the exponentials of the results add up to 1.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``x``, or of f32 for integers.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.log_softmax).of(x=tw.Tensor("f32", (1, 4))))
    >>> kernel(np.zeros((1, 4), np.float32))
    array([[-1.3862944, -1.3862944, -1.3862944, -1.3862944]], dtype=float32)
    """
    shifted = x - max(x, axis, keepdims=True)
    return _as(shifted - log(sum(exp(shifted), axis, keepdims=True)), x)


@spelled(SpecTypeError)
def layer_norm(
    x: Expression,
    weight: Expression | None = None,
    bias: Expression | None = None,
    eps: float = 1e-5,
) -> Expression:
    """Return each row minus its mean, divided by its standard deviation, times weight, plus bias.

    The variance is the mean of the squared differences from the mean: two passes, no cancellation.

    Parameters
    ----------
    x : Expression
        A tensor; its last axis is normalized.
    weight, bias : Expression, optional
        A factor and a summand for each column.
    eps : float
        Added to the variance.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``x``, or of f32 for integers.

    Examples
    --------
    >>> x, w = tw.Tensor("f32", (1, 2)), tw.Tensor("f32", 2)
    >>> kernel = tw.compile(tw.network(tw.nn.layer_norm).of(x=x, weight=w))
    >>> kernel(np.float32([[300, 100]]), np.float32([5, 10]))
    array([[  5., -10.]], dtype=float32)
    """
    centred = x - mean(x, keepdims=True)
    found = centred * (1 / sqrt(mean(centred * centred, keepdims=True) + eps))
    if weight is not None:
        found = found * weight
    return _as(found if bias is None else found + bias, x)


@spelled(SpecTypeError)
def rms_norm(x: Expression, weight: Expression | None = None, eps: float = 1e-6) -> Expression:
    """Return each row divided by the root of the mean of its squares, times weight.

    Parameters
    ----------
    x : Expression
        A tensor; its last axis is normalized.
    weight : Expression, optional
        A factor for each column.
    eps : float
        Added to the mean of the squares.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``x``, or of f32 for integers.

    Examples
    --------
    >>> kernel = tw.compile(tw.network(tw.nn.rms_norm).of(x=tw.Tensor("f32", (1, 2))))
    >>> kernel(np.float32([[3, 4]]))
    array([[0.8485..., 1.1313...]], dtype=float32)
    """
    found = x * (1 / sqrt(mean(x * x, keepdims=True) + eps))
    return _as(found if weight is None else found * weight, x)


@spelled(SpecTypeError)
def linear(
    x: Expression,
    weight: Expression,
    bias: Expression | None = None,
    type: DTypeLike | None = None,
) -> Expression:
    """Return the product of ``x`` and a weight, plus bias.

    Parameters
    ----------
    x : Expression
        A tensor (..., k).
    weight : Expression
        A weight (k, n). The weight of ``torch.nn.Linear`` is (n, k): pass ``weight.T``.
    bias : Expression, optional
        A summand for each column, for example a weight (n,). It is added to the unrounded sums.
    type : str or numpy type, optional
        Type of the result. By default the type of ``x``, and f32 for integers.

    Returns
    -------
    Expression
        A tensor (..., n).

    Examples
    --------
    >>> weights = {"up": np.eye(2, 3, dtype=np.float32), "bias": np.ones(3, np.float32)}
    >>> layer = tw.network(lambda x, w: tw.nn.linear(x, w.up, w.bias))
    >>> net = tw.compile(layer.of(x=tw.Tensor("f32", (1, 2)), w=weights))
    >>> net(np.float32([[3, 4]]), net.pack(weights))
    array([[4., 5., 1.]], dtype=float32)
    """
    given_shape(x, "nn.linear")
    found = product(x, weight, type="f32" if _is_low(x) else None)
    found = found if bias is None else found + bias
    if type is not None:
        return cast(found, type)
    return _as(found, x) if _is_low(x) else found


@spelled(SpecTypeError)
def quantize(
    x: Expression, scale: Expression | float, zero: int = 0, type: DTypeLike = "s8"
) -> Expression:
    """Return ``x / scale + zero`` rounded to integers, to nearest even; they saturate.

    The division is a product with the reciprocal of the scale.

    Parameters
    ----------
    x : Expression
        A tensor.
    scale : float or Expression
        A number, or a tensor that broadcasts: (rows, 1) has a scale for each row.
    zero : int
        The integer that represents 0.
    type : str or numpy type
        Type of the integers.

    Returns
    -------
    Expression
        A tensor of integers.

    Examples
    --------
    >>> q = tw.network(lambda x: tw.nn.quantize(x, 0.5, zero=3, type="u8"))
    >>> tw.compile(q.of(x=tw.Tensor("f32", (1, 3))))(np.float32([[1, -2, 999]]))
    array([[  5,   0, 255]], dtype=uint8)
    """
    steps, start, held = _steps("nn.quantize", scale, zero, type)
    found = x * (1 / steps)
    return cast(found + start if start else found, held)


@spelled(SpecTypeError)
def dequantize(x: Expression, scale: Expression | float, zero: int = 0) -> Expression:
    """Return ``(x - zero) * scale``: the numbers that quantized integers represent.

    A product of two dequantized tensors is computed with the integers: it scales the sums.

    Parameters
    ----------
    x : Expression
        A tensor of integers.
    scale : float or Expression
        A number, or a tensor that broadcasts. In a product, it must not vary along K: a number or
        (rows, 1) for x, a number or (n,) for the weight.
    zero : int
        The integer that represents 0.

    Returns
    -------
    Expression
        A tensor of f32.

    Examples
    --------
    >>> w = {"up": np.eye(2, dtype=np.int8), "scale": np.float32([2, 3])}
    >>> layer = lambda x, w: tw.nn.dequantize(x, 0.5, 3) @ tw.nn.dequantize(w.up, w.scale)
    >>> net = tw.compile(tw.network(layer).of(x=tw.Tensor("u8", (1, 2)), w=w))
    >>> net(np.uint8([[3, 5]]), net.pack(w))
    array([[0., 3.]], dtype=float32)
    """
    given_shape(x, "nn.dequantize")
    steps, start, _ = _steps("nn.dequantize", scale, zero, "s32")
    return (x - start if start else x) * steps


def _steps(
    fn: str, scale: Expression | float, zero: int, type: DTypeLike
) -> tuple[Expression | float, int, TypeName]:
    """Return the scale, the zero point and the type of quantized integers.

    SpecError if the scale is 0 or not finite, or if the type does not have the zero point.
    """
    held, start = type_name(type), whole_number(zero)
    if not is_integer(held):
        raise SpecError(f"{fn} rounds to integers", got=held, expected='for example "s8" or "u8"')
    least, most = np.iinfo(DTYPES[held]).min, np.iinfo(DTYPES[held]).max
    if start is None or not least <= start <= most:
        raise SpecError(f"the zero point of {fn} is an integer of the type", got=zero,
                        expected=f"{least} to {most}, for {held}")  # fmt: skip
    if not isinstance(scale, Expression):
        number = real_number(scale)
        if not number or not math.isfinite(number):
            raise SpecError(f"the scale of {fn} is a tensor, or a number that is not 0", got=scale)
    return scale, start, held


@overload
def heads(  # type: ignore[overload-overlap]
    x: Expression, count: int, parts: Literal[1] = 1
) -> Expression: ...


@overload
def heads(x: Expression, count: int, parts: int) -> tuple[Expression, ...]: ...


@spelled(SpecTypeError)
def heads(x: Expression, count: int, parts: int = 1) -> Expression | tuple[Expression, ...]:
    """Return the columns of ``x`` cut into heads of attention. These are views: no element moves.

    Parameters
    ----------
    x : Expression
        A tensor (..., rows, parts * count * d).
    count : int
        The number of heads.
    parts : int
        The number of tensors that ``x`` has side by side, for example 3: queries, keys, values.

    Returns
    -------
    Expression or tuple of Expression
        A tensor (..., count, rows, d), or a tuple of ``parts`` tensors.

    Examples
    --------
    >>> @tw.network
    ... def second(x):
    ...     q, k, v = tw.nn.heads(x, 2, parts=3)
    ...     return k + 0
    >>> kernel = tw.compile(second.of(x=tw.Tensor("f32", (1, 6))))
    >>> kernel(np.float32([[0, 1, 2, 3, 4, 5]]))
    array([[[2.]], [[3.]]], dtype=float32)
    """
    *lead, rows, width = given_shape(x, "nn.heads")
    each, number = whole_number(count), whole_number(parts)
    if isinstance(width, Dim) or not each or not number or width % (each * number):
        raise SpecError(
            "nn.heads cuts the columns into equal heads",
            got=f"{parts!r} parts of {count!r} heads, of {width} columns",
            expected="a number of columns that is a multiple of parts * count",
        )
    cut = x.reshape((*lead, rows, number, each, width // (each * number)))
    axes = len(lead)
    order = (axes + 1, *range(axes), axes + 2, axes, axes + 3)
    turned = cut.transpose(order)
    found = tuple(turned[part] for part in range(number))
    return found if number > 1 else found[0]


@spelled(SpecTypeError)
def merge(x: Expression) -> Expression:
    """Return heads of attention side by side in columns: the inverse of ``heads``.

    Parameters
    ----------
    x : Expression
        A tensor (..., count, rows, d).

    Returns
    -------
    Expression
        A tensor (..., rows, count * d).

    Examples
    --------
    >>> both = tw.network(lambda x: tw.nn.merge(tw.nn.heads(x, 2)) + 0)
    >>> tw.compile(both.of(x=tw.Tensor("f32", (1, 4))))(np.float32([[0, 1, 2, 3]]))
    array([[0., 1., 2., 3.]], dtype=float32)
    """
    shape = given_shape(x, "nn.merge")
    count, depth = (shape[-3], shape[-1]) if len(shape) > 2 else (None, None)
    if not isinstance(count, int) or not isinstance(depth, int):
        raise SpecError(
            "nn.merge takes heads of fixed number and width",
            got=f"a tensor {said(shape)}",
            expected="a tensor (..., count, rows, d) whose count and d are ints",
        )
    return x.swapaxes(-3, -2).reshape((*shape[:-3], shape[-2], count * depth))


@spelled(SpecTypeError)
def attention(
    q: Expression,
    k: Expression,
    v: Expression,
    scale: float | None = None,
    mask: Expression | None = None,
) -> Expression:
    """Return ``softmax(q @ k.T * scale + mask) @ v``.

    The scores are f32, or f64 for tensors of f64. If the tensors are bf16 or f16, the exponentials
    of the scores, of which the largest is 1, are rounded to the type of ``v`` and multiplied by
    ``v``. These sums are divided by that of the rounded exponentials.

    Parameters
    ----------
    q, k, v : Expression
        Tensors (..., queries, d), (..., keys, d) and (..., keys, dv).
    scale : float, optional
        By default one over the root of d.
    mask : Expression, optional
        A summand that broadcasts to (..., queries, keys). Minus infinity hides a key. If all keys
        of a query are hidden, its result is NaN. For causal attention, see the second example.

    Returns
    -------
    Expression
        A tensor (..., queries, dv).

    Examples
    --------
    >>> one = tw.Tensor("f32", (1, 2))
    >>> net = tw.compile(tw.network(tw.nn.attention).of(q=one, k=one, v=one))
    >>> net(np.ones((1, 2), np.float32), np.ones((1, 2), np.float32), np.float32([[3, 4]]))
    array([[3., 4.]], dtype=float32)
    >>> tokens = tw.dim("tokens")
    >>> @tw.network
    ... def causal(x):
    ...     place = tw.nn.arange(tokens)
    ...     visible = place[None, :] <= place[:, None]
    ...     return tw.nn.attention(x, x, x, mask=tw.where(visible, 0, -np.inf))
    >>> tw.compile(causal.of(x=tw.Tensor("f32", (tokens, 1))))(np.float32([[0], [9]]))
    array([[0.], [9.]], dtype=float32)
    """
    depth = given_shape(q, "nn.attention")[-1]
    if scale is None:
        if isinstance(depth, Dim):
            raise SpecError("nn.attention needs a scale", got=f"heads of {depth.name} columns")
        scale = float(depth**-0.5)
    scores = product(q, k.T, type="f32" if _is_low(q) else None) * scale
    scores = scores if mask is None else scores + mask
    if not _is_low(v):
        return softmax(scores) @ v
    powers = _as(exp(scores - max(scores, keepdims=True)), v)
    return _as(product(powers, v, type="f32") * (1 / sum(powers, keepdims=True)), v)


def _is_low(x: Expression) -> bool:
    """Return True if ``x`` has a floating-point type whose sums are f32."""
    return x.tensor is not None and x.tensor.type in ("f16", "bf16", "f8_e4m3", "f8_e5m2")


def _as(found: Expression, x: Expression) -> Expression:
    """Return ``found`` rounded to the type of ``x``. It stays f32 if ``x`` has integers."""
    assert x.tensor is not None
    return found if is_integer(x.tensor.type) else cast(found, x.tensor.type)
