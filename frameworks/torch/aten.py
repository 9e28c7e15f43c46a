"""Operators of PyTorch as expressions of a network's tensors: rows, products, shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import torch
from tilewright import nn
from tilewright.errors import SpecError, TilewrightError
from tilewright.spec.expression import arithmetic, exponential, logarithm
from tilewright.spec.expression.comparisons import eq, where
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import cast
from tilewright.spec.expression.tensors import size as extent
from tilewright.spec.sizes import Dim, Size, joined_size
from torch.utils._pytree import tree_map

from .elements import FUNCTIONS, Known, Truth, Use, axis_of, operator, shape_of, type_of


def called(
    target: str, use: Use, args: Sequence[Any], options: dict[str, Any],
    types: Sequence[torch.dtype],
) -> Any:  # fmt: skip
    """Return the value of a call of ``target``, for example ``aten.linear.default``.

    ``types`` are those of the tensors that PyTorch computes. Values are rounded to them where
    PyTorch rounds; within one call, sums and arithmetic are f32.

    Raise SpecError if no function is known for it, or if the function refuses the arguments.
    """
    name = target.removeprefix("aten.")
    function = FUNCTIONS.get(name) or FUNCTIONS.get(name.partition(".")[0])
    if function is None:
        raise SpecError(
            f"node {use.place}: this operator is not imported",
            got=use.source or name,
            expected="an operator of the page docs/how-to/torch-network.md",
            hint="network_of for the layers before it and for those after it",
        )
    try:
        return use.typed(function(use, *args, **options), types)
    except TilewrightError as error:
        if error.problem.startswith("node "):
            raise
        raise SpecError(
            f"node {use.place}: {error.problem}", got=error.got, expected=error.expected,
            hint=error.hint,
        ) from error  # fmt: skip
    except TypeError as error:
        raise SpecError(f"node {use.place}: {error}", got=use.source) from error


def computed(target: Any, name: str, args: Any, options: dict[str, Any]) -> Any:
    """Return what an operator of fixed tensors and numbers alone computes, by PyTorch.

    For example ``torch.ones(3, 3)``. Return None for other operators, and for random numbers.
    """
    usual = isinstance(target, torch._ops.OpOverload)
    if not usual or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    values = _Fixed()
    given = values.read(args), values.read(options)
    if not values.fixed:
        return None
    with torch.no_grad():
        found = target(*given[0], **given[1])
    return tree_map(lambda x: Known(x, name, True) if isinstance(x, torch.Tensor) else x, found)


class _Fixed:
    """Reads arguments as PyTorch's; ``fixed`` is False if one is not known."""

    fixed = True

    def read(self, given: Any) -> Any:
        """Return an argument with tensors in place of what is known."""
        if isinstance(given, Known):
            self.fixed = self.fixed and given.fixed
            return given.tensor
        if isinstance(given, list):
            return [self.read(each) for each in given]
        if isinstance(given, dict):
            return {key: self.read(each) for key, each in given.items()}
        self.fixed = self.fixed and not isinstance(given, Expression | Truth | Dim)
        return given


# --- rows ----------------------------------------------------------------------------------------


@operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(use: Use, x: Any, axis: int, dtype: Any = None) -> Any:
    if dtype not in (None, False, torch.float32):
        use.refuse("softmax is not converted", dtype, "no dtype")
    function = nn.log_softmax if "log_softmax" in use.place else nn.softmax
    found = use.tensor(x)
    return function(cast(found, "f32") if dtype else found, axis)


@operator("layer_norm")
def _layer_norm(
    use: Use, x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5, _: bool = False,
) -> Any:  # fmt: skip
    if len(shape) != 1:
        use.refuse("a norm is along the last axis", f"the last {len(shape)} axes", "one axis")
    factor, summand = (None if each is None else use.tensor(each) for each in (weight, bias))
    return nn.layer_norm(use.tensor(x), factor, summand, eps)


@operator("rms_norm")
def _rms_norm(
    use: Use, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    if len(shape) != 1:
        use.refuse("a norm is along the last axis", f"the last {len(shape)} axes", "one axis")
    least = float(np.finfo(np.float32).eps) if eps is None else eps
    return nn.rms_norm(use.tensor(x), None if weight is None else use.tensor(weight), least)


@operator("batch_norm")
def _batch_norm(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool,
    _: float, eps: float, *__: Any,
) -> Any:  # fmt: skip
    found = use.tensor(x)
    if training:
        use.refuse("networks are not trained", "batch norm in training mode", "module.eval()")
    for each in (mean, variance, weight, bias):
        if each is not None and not isinstance(each, Known):
            use.refuse("a batch norm has parameters and buffers", type(each).__name__, "no tensor")
    factor = (variance.tensor.double() + eps).rsqrt()
    factor = factor if weight is None else factor * weight.tensor.double()
    shift = -mean.tensor.double() * factor
    shift = shift if bias is None else shift + bias.tensor.double()
    last = (1,) * (len(shape_of(found)) - 2)  # the channels are axis 1
    both = use.weight(mean, factor, "factor"), use.weight(variance, shift, "shift")
    factor, shift = (each.reshape(-1, *last) if last else each for each in both)
    return found * factor + shift


@operator("_native_batch_norm_legit_no_training")
def _native_batch_norm(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> list[Any]:
    return [_batch_norm(use, x, weight, bias, mean, variance, False, momentum, eps), None, None]


@operator(
    "mean.dim", "mean.default", "sum.dim_IntList", "sum.default", "amax", "amin", "max.default",
    "min.default",
)  # fmt: skip
def _reduced(use: Use, x: Any, axes: Any = None, keepdims: bool = False, **options: Any) -> Any:
    if any(each is not None for each in options.values()):
        use.refuse("a reduction is not converted", options)
    function = next(each for name, each in _REDUCTIONS.items() if f"aten.{name}" in use.place)
    found = use.tensor(x)
    count = len(shape_of(found))
    given = [axes] if isinstance(axes, int) else axes or range(count)
    for axis in sorted({axis_of(use, each, count) for each in given}, reverse=True):
        found = function(found, axis=axis, keepdims=keepdims)
    return found


_REDUCTIONS = {
    "mean": nn.mean, "sum": nn.sum, "amax": nn.max, "max": nn.max, "amin": nn.min, "min": nn.min,
}  # fmt: skip


@operator("max.dim", "min.dim")
def _largest(use: Use, x: Any, axis: int, keepdims: bool = False) -> list[Any]:
    return [_reduced(use, x, axis, keepdims), None]  # None in place of the indices


@operator("var.correction", "std.correction", "var.dim", "std.dim")
def _variance(
    use: Use, x: Any, axes: Any = None, unbiased: bool = True, keepdim: bool = False,
    correction: float | None = None,
) -> Any:  # fmt: skip
    found = use.tensor(x)
    count = len(shape_of(found))
    given = [axes] if isinstance(axes, int) else axes or range(count)
    if len(given) != 1:
        use.refuse("a variance is along one axis", given, "one axis")
    axis = axis_of(use, given[0], count)
    less = int(unbiased) if correction is None else correction
    centred = found - nn.mean(found, axis, keepdims=True)
    total = nn.sum(arithmetic.square(centred), axis, keepdim)
    found = total / (extent(found, axis) - less)
    return arithmetic.sqrt(found) if "aten.std" in use.place else found


@operator("logsumexp")
def _logsumexp(use: Use, x: Any, axes: Any, keepdim: bool = False) -> Any:
    found = use.tensor(x)
    (axis,) = [axes] if isinstance(axes, int) else axes
    most = nn.max(found, axis, keepdims=True)
    least = where(eq(abs(most), np.inf), 0, most)  # infinity less infinity is no number
    total = nn.sum(exponential.exp(found - least), axis, keepdims=True)
    found = logarithm.log(total) + least
    return found if keepdim else _squeeze(use, found, axis)


# --- products ------------------------------------------------------------------------------------


@operator("linear")
def _linear(use: Use, x: Any, weight: Any, bias: Any = None) -> Any:
    w = use.weight(weight, weight.tensor.T, "T") if isinstance(weight, Known) else weight.T
    return nn.linear(use.tensor(x), w, None if bias is None else use.tensor(bias))


@operator("matmul", "mm", "bmm", "mv", "dot")
def _matmul(use: Use, x: Any, y: Any) -> Any:
    right = use.weight(y, y.tensor, "B") if isinstance(y, Known) else y
    return use.whole(x) @ right


@operator("addmm", "baddbmm")
def _addmm(use: Use, bias: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1) -> Any:
    right = use.weight(y, y.tensor, "B") if isinstance(y, Known) else y
    found = nn.product(use.whole(x), right, type="f32")
    found = found if alpha == 1 else found * alpha
    summand = use.tensor(bias)
    return found + (summand if beta == 1 else summand * beta)


@operator("scaled_dot_product_attention")
def _attention(
    use: Use, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout or enable_gqa:
        use.refuse("this attention is not imported", f"dropout {dropout}, gqa {enable_gqa}")
    if is_causal:  # the first query sees the first key alone, also if there are more keys
        queries, keys = (nn.arange(shape_of(each)[-2]) for each in (q, k))
        return nn.attention(q, k, v, scale, where(keys[None, :] <= queries[:, None], 0, -np.inf))
    if mask is None:
        return nn.attention(q, k, v, scale)
    added = use.tensor(mask)
    if isinstance(mask, Truth) or (isinstance(mask, Known) and mask.tensor.dtype == torch.bool):
        added = where(added, 0, -np.inf)
    depth = shape_of(q)[-1]
    if scale is None:
        if isinstance(depth, Dim):
            use.refuse("attention needs a scale", f"heads of {depth.name} columns")
        scale = depth**-0.5
    scores = nn.product(q, k.T, type="f32") * scale + added
    powers = exponential.exp(scores - nn.max(scores, keepdims=True))
    powers = cast(where(eq(scores, -np.inf), 0, powers), type_of(v))
    total = nn.sum(powers, keepdims=True)  # 0 for a query without keys, whose result is 0
    return nn.product(powers, v, type="f32") * (1 / where(eq(total, 0), 1, total))


@operator("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size")
def _assertion(use: Use, *_: Any, **__: Any) -> None:
    return None


# --- shapes --------------------------------------------------------------------------------------


@operator("view", "reshape", "_unsafe_view")
def _view(use: Use, x: Any, shape: Sequence[Size]) -> Any:
    return use.whole(x).reshape(*shape)


@operator("flatten.using_ints")
def _flatten(use: Use, x: Any, start: int = 0, end: int = -1) -> Any:
    found = use.whole(x)
    shape = shape_of(found)
    first, last = (axis_of(use, axis, len(shape)) for axis in (start, end))
    return found.reshape(*shape[:first], -1, *shape[last + 1 :])


@operator("unflatten")
def _unflatten(use: Use, x: Any, axis: int, sizes: Sequence[Size]) -> Any:
    found = use.whole(x)
    shape = shape_of(found)
    at = axis_of(use, axis, len(shape))
    return found.reshape(*shape[:at], *sizes, *shape[at + 1 :])


@operator("unsqueeze")
def _unsqueeze(use: Use, x: Any, axis: int) -> Any:
    found = use.whole(x)
    shape = shape_of(found)
    at = axis_of(use, axis, len(shape) + 1)
    return found.reshape(*shape[:at], 1, *shape[at:])


@operator("squeeze.dim", "squeeze.dims")
def _squeeze(use: Use, x: Any, axes: Any) -> Any:
    found = use.whole(x)
    shape = shape_of(found)
    gone = {axis_of(use, axis, len(shape)) for axis in ([axes] if isinstance(axes, int) else axes)}
    kept = [size for axis, size in enumerate(shape) if axis not in gone or size != 1]
    return found.reshape(*kept)


@operator("permute")
def _permute(use: Use, x: Any, axes: Sequence[int]) -> Any:
    return use.whole(x).transpose(*axes)


@operator("transpose.int", "t", "mT")
def _transpose(use: Use, x: Any, one: int = -2, other: int = -1) -> Any:
    if isinstance(x, Known):
        return Known(x.tensor.transpose(one, other), x.name)
    return use.whole(x).swapaxes(one, other)


@operator("select.int")
def _select(use: Use, x: Any, axis: int, index: int) -> Any:
    found = use.whole(x)
    at = axis_of(use, axis, len(shape_of(found)))
    return found[(slice(None),) * at + (index,)]


@operator("unbind")
def _unbind(use: Use, x: Any, axis: int = 0) -> list[Any]:
    size = shape_of(use.whole(x))[axis_of(use, axis, len(shape_of(use.whole(x))))]
    if isinstance(size, Dim):
        use.refuse("an axis of free size is not cut", size)
    return [_select(use, x, axis, index) for index in range(size)]


@operator("numpy_T")
def _reversed(use: Use, x: Any) -> Any:
    return use.whole(x).transpose()


@operator("slice.Tensor")
def _slice(
    use: Use, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    found = use.whole(x)
    at = axis_of(use, axis, len(shape_of(found)))
    last = None if isinstance(end, int) and end > 2**60 else end
    return found[(slice(None),) * at + (slice(start, last, step),)]


@operator("split.Tensor", "split_with_sizes", "chunk")
def _split(use: Use, x: Any, sizes: Any, axis: int = 0) -> list[Any]:
    found = use.whole(x)
    shape = shape_of(found)
    at = axis_of(use, axis, len(shape))
    whole = shape[at]
    if isinstance(whole, Dim):
        use.refuse("an axis of free size is not cut", whole)
    if isinstance(sizes, int):
        each = -(-whole // sizes) if "aten.chunk" in use.place else sizes
        sizes = [min(each, whole - first) for first in range(0, whole, each)]
    ends = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    cuts = [slice(*ends[count : count + 2]) for count in range(len(sizes))]
    return [found[(slice(None),) * at + (cut,)] for cut in cuts]


FUNCTIONS["<built-in function getitem>"] = lambda use, values, index: values[index]
FUNCTIONS["<built-in function mul>"] = lambda use, x, y: joined_size((x, y))  # of sizes


@operator("cat", "concat")
def _cat(use: Use, tensors: Sequence[Any], axis: int = 0) -> Any:
    return nn.concat([use.whole(each) for each in tensors], axis)


@operator("stack")
def _stack(use: Use, tensors: Sequence[Any], axis: int = 0) -> Any:
    return nn.concat([_unsqueeze(use, each, axis) for each in tensors], axis)


@operator("narrow")
def _narrow(use: Use, x: Any, axis: int, start: int, length: int) -> Any:
    return _slice(use, x, axis, start, start + length)


@operator("glu")
def _glu(use: Use, x: Any, axis: int = -1) -> Any:
    value, gate = nn.split(use.whole(x), 2, axis)
    return value * exponential.logistic(gate)


@operator("embedding")
def _embedding(use: Use, table: Any, rows: Any, *_: Any) -> Any:
    found = use.whole(table)
    if isinstance(rows, Known):  # places of tokens, for example
        return _known_rows(use, found, rows.tensor)
    return nn.take(found, use.whole(rows))


def _known_rows(use: Use, table: Expression, rows: torch.Tensor) -> Expression:
    flat, width = rows.flatten().tolist(), shape_of(table)[1:]
    if flat and flat == [flat[0]] * len(flat):
        return nn.expand(table[flat[0]], (*rows.shape, *width))
    if flat != list(range(flat[0], flat[0] + len(flat))) if flat else True:
        use.refuse("known rows of a table follow each other, or are equal", flat[:8])
    return table[flat[0] : flat[0] + len(flat)].reshape(*rows.shape, *width)


@operator("expand")
def _expand(use: Use, x: Any, shape: Sequence[Size], **_: Any) -> Any:
    found = use.whole(x)
    old = shape_of(found)
    kept = (1,) * (len(shape) - len(old)) + old
    wide = tuple(own if size == -1 else size for size, own in zip(shape, kept, strict=True))
    return nn.expand(found, wide)


@operator("sym_size")
def _size(use: Use, x: Any, axis: int) -> Size:
    return shape_of(use.whole(x))[axis]
