"""Functions of whole tensors for networks: softmax, norms, and sums, maxima and means of an axis.

Each returns an expression. Reductions are computed in f32, or in f64 for tensors of f64. Functions
that keep a tensor's shape also keep its type.
"""

from __future__ import annotations

from tilewright.spec.expression.arithmetic import sqrt
from tilewright.spec.expression.exponential import exp
from tilewright.spec.expression.logarithm import log
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import Extent, cast, reduction
from tilewright.spec.expression.tensors import mean as _mean
from tilewright.spec.sizes import Dim

__all__ = [
    "extent", "layer_norm", "log_softmax", "max", "mean", "min", "rms_norm", "softmax", "sum",
]  # fmt: skip


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
    """
    return reduction("sum", x, axis, keepdims)


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
    """
    return reduction("max", x, axis, keepdims)


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
    """
    return reduction("min", x, axis, keepdims)


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
    """
    return _mean(x, axis, keepdims)


def extent(dim: Dim) -> Expression:
    """Return a size of the call as a number of an expression.

    Parameters
    ----------
    dim : Dim
        A size of one of the tensors.

    Returns
    -------
    Expression
        The number.
    """
    return Extent(dim)


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
        A tensor of the shape and type of ``x``.
    """
    powers = exp(x - max(x, axis, keepdims=True))
    return _as(powers * (1 / sum(powers, axis, keepdims=True)), x)


def log_softmax(x: Expression, axis: int = -1) -> Expression:
    """Return the logarithm of ``softmax``, computed without its underflow.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis along which the exponentials of the results add up to 1.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``x``.
    """
    shifted = x - max(x, axis, keepdims=True)
    return _as(shifted - log(sum(exp(shifted), axis, keepdims=True)), x)


def layer_norm(
    x: Expression,
    weight: Expression | None = None,
    bias: Expression | None = None,
    eps: float = 1e-5,
) -> Expression:
    """Return each row less its mean, divided by its standard deviation, times weight, plus bias.

    The variance is the mean of the squared differences from the mean, in a pass of its own.

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
        A tensor of the shape and type of ``x``.
    """
    centred = x - mean(x, keepdims=True)
    found = centred * (1 / sqrt(mean(centred * centred, keepdims=True) + eps))
    if weight is not None:
        found = found * weight
    return _as(found if bias is None else found + bias, x)


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
        A tensor of the shape and type of ``x``.
    """
    found = x * (1 / sqrt(mean(x * x, keepdims=True) + eps))
    return _as(found if weight is None else found * weight, x)


def _as(found: Expression, x: Expression) -> Expression:
    """Return ``found`` as the type of ``x``."""
    assert x.tensor is not None
    return cast(found, x.tensor.type)
