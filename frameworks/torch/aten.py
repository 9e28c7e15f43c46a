"""Operators of PyTorch as expressions of a network's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

import torch
from tilewright import nn
from tilewright.errors import SpecError, TilewrightError
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.imported import Constants
from tilewright.spec.expression import (
    activations,
    arithmetic,
    exponential,
    gaussian,
    logarithm,
    trigonometry,
)
from tilewright.spec.expression.comparisons import (
    eq,
    ge,
    gt,
    le,
    logical_and,
    logical_not,
    logical_or,
    lt,
    ne,
    where,
)
from tilewright.spec.expression.nodes import Expression, Number
from tilewright.spec.expression.tensors import cast
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import TypeName
from torch.utils._pytree import tree_leaves

from .packed import INPUT_TYPES


class Known(NamedTuple):
    """A parameter or buffer of the module: its values and its name."""

    tensor: torch.Tensor
    name: str


class Truth(NamedTuple):
    """A tensor of booleans, as a tensor of ones and zeros."""

    value: Expression


@dataclass(frozen=True)
class Use:
    """One call of an operator: its place in words, its line of code, and the constants so far."""

    place: str
    source: str
    constants: Constants

    def refuse(self, problem: str, got: object, expected: object = None) -> NoReturn:
        """Raise SpecError about this call."""
        raise SpecError(
            f"node {self.place}: {problem}",
            got=f"{got}, in {self.source}" if self.source else str(got),
            expected=None if expected is None else str(expected),
        )

    def tensor(self, value: Any) -> Expression:
        """Return a value as an expression: a parameter becomes a weight, or a number."""
        if isinstance(value, Truth):
            return value.value
        if not isinstance(value, Known):
            return value if isinstance(value, Expression) else Number(float(value))
        if value.tensor.numel() == 1:
            return Number(float(value.tensor))
        return self.weight(value, value.tensor)

    def weight(self, value: Known, tensor: torch.Tensor, use: str = "") -> Expression:
        """Return the weight that holds ``tensor``, for one use of a parameter.

        It has the type of the tensor, f32 for booleans and f64.
        """
        if not tensor.is_floating_point() and tensor.dtype != torch.bool:
            self.refuse("a parameter is no floating point", f"{value.name}: {tensor.dtype}", "f32")
        held = tensor.detach() if tensor.dtype in INPUT_TYPES else tensor.detach().float()
        array = np.array(as_array(held, value.name), order="C")
        return self.constants.weight(value.tensor, value.name, use, array, INPUT_TYPES[held.dtype])

    def typed(self, value: Any, types: Sequence[torch.dtype]) -> Any:
        """Return the value of this call rounded to the types that PyTorch has for its tensors."""
        if isinstance(value, list):
            return [self.typed(*pair) for pair in zip(value, zip(types), strict=True)]
        if not isinstance(value, Expression) or value.tensor is None or not types:
            return value
        if types[0] == torch.bool:
            return Truth(value)
        if types[0] not in INPUT_TYPES:
            self.refuse("tensors of this type are not computed", types[0], _TYPES)
        return cast(value, INPUT_TYPES[types[0]])


#: The types that tensors are computed in, for messages.
_TYPES = ", ".join(map(str, INPUT_TYPES))
Function = Callable[..., Any]
#: The functions by operator: with its overload, for example ``add.Tensor``, or without.
FUNCTIONS: dict[str, Function] = {}


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in the value of a call, in order."""
    return [each for each in tree_leaves(value) if isinstance(each, torch.Tensor)]


def _operator(*names: str) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return add


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


def _shape(x: Expression) -> tuple[Size, ...]:
    assert x.tensor is not None
    return x.tensor.shape


def _type(x: Expression) -> TypeName:
    assert x.tensor is not None
    return x.tensor.type


def _axis(use: Use, axis: int, count: int) -> int:
    if not -count <= axis < count:
        use.refuse("there is no such axis", axis, f"{-count} to {count - 1}")
    return axis % count


# --- elements ------------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[Any], Any]] = {
    "relu": activations.relu,
    "sigmoid": exponential.logistic,
    "tanh": exponential.tanh,
    "exp": exponential.exp,
    "log": logarithm.log,
    "sqrt": arithmetic.sqrt,
    "abs": abs,
    "neg": lambda x: -x,
    "erf": gaussian.erf,
    "sin": trigonometry.sin,
    "cos": trigonometry.cos,
    "silu": exponential.silu,
    "mish": exponential.mish,
    "hardswish": activations.hardswish,
    "square": arithmetic.square,
    "hardsigmoid": activations.hardsigmoid,
    "floor": arithmetic.floor,
    "ceil": arithmetic.ceil,
    "round": arithmetic.round,
    "rsqrt": lambda x: 1 / arithmetic.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "expm1": exponential.expm1,
    "log1p": logarithm.log1p,
    "relu6": lambda x: arithmetic.clip(x, 0, 6),
    "logical_not": logical_not,
    "softsign": lambda x: x / (1 + abs(x)),
}
for _name, _function in _UNARY.items():
    FUNCTIONS[_name] = FUNCTIONS[f"{_name}_"] = lambda use, x, function=_function: function(
        use.tensor(x)
    )

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda x, y: x * y,
    "maximum": arithmetic.maximum,
    "minimum": arithmetic.minimum,
    "eq": eq,
    "ne": ne,
    "lt": lt,
    "le": le,
    "gt": gt,
    "ge": ge,
    "logical_and": logical_and,
    "logical_or": logical_or,
}
for _name in ("and", "or"):  # of booleans alone: other types of PyTorch's have results of integers
    for _other in (f"bitwise_{_name}", f"__{_name}__"):
        _BINARY[_other] = _BINARY[f"logical_{_name}"]
for _name, _both in _BINARY.items():
    FUNCTIONS[_name] = FUNCTIONS[f"{_name}_"] = lambda use, x, y, function=_both: function(
        use.tensor(x), use.tensor(y)
    )


@_operator("add", "add_")
def _add(use: Use, x: Any, y: Any, alpha: float = 1) -> Expression:
    if isinstance(x, Truth) and isinstance(y, Truth):
        use.refuse("booleans are not added", "bool + bool", "torch.logical_or")
    second = use.tensor(y)
    return use.tensor(x) + (second if alpha == 1 else second * alpha)


@_operator("sub", "sub_")
def _sub(use: Use, x: Any, y: Any, alpha: float = 1) -> Expression:
    second = use.tensor(y)
    return use.tensor(x) - (second if alpha == 1 else second * alpha)


@_operator("rsub")
def _rsub(use: Use, x: Any, y: Any, alpha: float = 1) -> Any:
    return _sub(use, y, x, alpha)


@_operator("div", "div_")
def _div(use: Use, x: Any, y: Any, rounding_mode: str | None = None) -> Expression:
    if rounding_mode is not None:
        use.refuse("a quotient is not rounded", rounding_mode)
    return use.tensor(x) / use.tensor(y)


@_operator("pow.Tensor_Scalar")
def _pow(use: Use, x: Any, exponent: float) -> Any:
    found = use.tensor(x)
    if exponent == 2:
        return arithmetic.square(found)
    return arithmetic.sqrt(found) if exponent == 0.5 else logarithm.pow(found, 1, float(exponent))


@_operator("where.self", "where.ScalarOther", "where.ScalarSelf")
def _where(use: Use, condition: Any, x: Any, y: Any) -> Any:
    return where(*(use.tensor(each) for each in (condition, x, y)))


@_operator("masked_fill")
def _masked_fill(use: Use, x: Any, mask: Any, value: Any) -> Any:
    return where(use.tensor(mask), use.tensor(value), use.tensor(x))


@_operator("clamp", "hardtanh", "clamp_min", "clamp_max")
def _clamp(use: Use, x: Any, low: Any = None, high: Any = None, **ends: Any) -> Any:
    name = use.place.partition("aten.")[2]
    if name.startswith("hardtanh"):
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    elif name.startswith("clamp_max"):
        low, high = None, low
    low, high = ends.get("min", low), ends.get("max", high)
    found = use.tensor(x)
    found = found if low is None else arithmetic.maximum(found, use.tensor(low))
    return found if high is None else arithmetic.minimum(found, use.tensor(high))


@_operator("gelu")
def _gelu(use: Use, x: Any, approximate: str = "none") -> Any:
    return (exponential.gelu_tanh if approximate == "tanh" else gaussian.gelu_erf)(use.tensor(x))


@_operator("leaky_relu", "leaky_relu_")
def _leaky_relu(use: Use, x: Any, slope: float = 0.01) -> Any:
    return activations.relu(use.tensor(x), slope)


@_operator("elu", "elu_")
def _elu(use: Use, x: Any, alpha: float = 1.0, scale: float = 1, input_scale: float = 1) -> Any:
    found = exponential.elu(
        use.tensor(x) if input_scale == 1 else use.tensor(x) * input_scale, alpha
    )
    return found if scale == 1 else found * scale


@_operator("softplus")
def _softplus(use: Use, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return exponential.soft_relu(use.tensor(x), beta)


@_operator("prelu")
def _prelu(use: Use, x: Any, slope: Any) -> Any:
    return activations.prelu(use.tensor(x), use.tensor(slope))


@_operator("dropout", "dropout_", "feature_dropout", "alpha_dropout")
def _dropout(use: Use, x: Any, p: float, train: bool) -> Any:
    if train and p:
        use.refuse("networks are not trained", "dropout in training mode", "module.eval()")
    return x


@_operator("contiguous", "clone", "alias", "detach", "lift_fresh_copy")
def _same(use: Use, x: Any, **_: Any) -> Any:
    return x


@_operator("to.dtype", "type_as", "_to_copy", "to.dtype_layout")
def _to(use: Use, x: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    if dtype not in INPUT_TYPES:
        use.refuse("tensors are not converted to this type", dtype, _TYPES)
    if isinstance(x, Known):
        return Known(x.tensor.to(dtype), x.name)
    return use.tensor(x)


# --- rows ----------------------------------------------------------------------------------------


@_operator("softmax", "_softmax", "log_softmax", "_log_softmax")
def _softmax(use: Use, x: Any, axis: int, dtype: Any = None) -> Any:
    if dtype not in (None, False, torch.float32):
        use.refuse("softmax is not converted", dtype, "no dtype")
    function = nn.log_softmax if "log_softmax" in use.place else nn.softmax
    found = use.tensor(x)
    return function(cast(found, "f32") if dtype else found, axis)


@_operator("layer_norm")
def _layer_norm(
    use: Use, x: Any, shape: Sequence[int], weight: Any = None, bias: Any = None,
    eps: float = 1e-5, _: bool = False,
) -> Any:  # fmt: skip
    if len(shape) != 1:
        use.refuse("a norm is along the last axis", f"the last {len(shape)} axes", "one axis")
    factor, summand = (None if each is None else use.tensor(each) for each in (weight, bias))
    return nn.layer_norm(use.tensor(x), factor, summand, eps)


@_operator("rms_norm")
def _rms_norm(
    use: Use, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    if len(shape) != 1:
        use.refuse("a norm is along the last axis", f"the last {len(shape)} axes", "one axis")
    least = float(np.finfo(np.float32).eps) if eps is None else eps
    return nn.rms_norm(use.tensor(x), None if weight is None else use.tensor(weight), least)


@_operator("batch_norm")
def _batch_norm(
    use: Use, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool,
    _: float, eps: float, *__: Any,
) -> Any:  # fmt: skip
    found = use.tensor(x)
    if training:
        use.refuse("networks are not trained", "batch norm in training mode", "module.eval()")
    if len(_shape(found)) != 2:
        use.refuse("a batch norm is of a matrix", _shape(found), "(rows, n)")
    factor = (variance.tensor.double() + eps).rsqrt()
    factor = factor if weight is None else factor * weight.tensor.double()
    shift = -mean.tensor.double() * factor
    shift = shift if bias is None else shift + bias.tensor.double()
    return found * use.weight(mean, factor, "factor") + use.weight(variance, shift, "shift")


@_operator("mean.dim", "sum.dim_IntList", "amax", "amin")
def _reduced(use: Use, x: Any, axes: Any = None, keepdims: bool = False, **options: Any) -> Any:
    if any(each is not None for each in options.values()):
        use.refuse("a reduction is not converted", options)
    function = next(
        each
        for name, each in (("mean", nn.mean), ("sum", nn.sum), ("amax", nn.max), ("amin", nn.min))
        if f"aten.{name}" in use.place
    )
    found = use.tensor(x)
    count = len(_shape(found))
    given = [axes] if isinstance(axes, int) else axes or range(count)
    for axis in sorted({_axis(use, each, count) for each in given}, reverse=True):
        found = function(found, axis=axis, keepdims=keepdims)
    return found


# --- products ------------------------------------------------------------------------------------


@_operator("linear")
def _linear(use: Use, x: Any, weight: Any, bias: Any = None) -> Any:
    w = use.weight(weight, weight.tensor.T, "T") if isinstance(weight, Known) else weight.T
    return nn.linear(use.tensor(x), w, None if bias is None else use.tensor(bias))


@_operator("matmul", "mm", "bmm")
def _matmul(use: Use, x: Any, y: Any) -> Any:
    right = use.weight(y, y.tensor, "B") if isinstance(y, Known) else y
    return use.tensor(x) @ right


@_operator("addmm")
def _addmm(use: Use, bias: Any, x: Any, y: Any, beta: float = 1, alpha: float = 1) -> Any:
    right = use.weight(y, y.tensor, "B") if isinstance(y, Known) else y
    found = nn.product(use.tensor(x), right, type="f32")
    found = found if alpha == 1 else found * alpha
    return _add(use, found, bias, beta)


@_operator("scaled_dot_product_attention")
def _attention(
    use: Use, q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout or enable_gqa:
        use.refuse("this attention is not imported", f"dropout {dropout}, gqa {enable_gqa}")
    if is_causal:  # the first query sees the first key alone, also if there are more keys
        queries, keys = (nn.arange(_shape(each)[-2]) for each in (q, k))
        return nn.attention(q, k, v, scale, where(keys[None, :] <= queries[:, None], 0, -np.inf))
    if mask is None:
        return nn.attention(q, k, v, scale)
    added = use.tensor(mask)
    if isinstance(mask, Truth) or (isinstance(mask, Known) and mask.tensor.dtype == torch.bool):
        added = where(added, 0, -np.inf)
    depth = _shape(q)[-1]
    if scale is None:
        if isinstance(depth, Dim):
            use.refuse("attention needs a scale", f"heads of {depth.name} columns")
        scale = depth**-0.5
    scores = nn.product(q, k.T, type="f32") * scale + added
    powers = exponential.exp(scores - nn.max(scores, keepdims=True))
    powers = cast(where(eq(scores, -np.inf), 0, powers), _type(v))
    total = nn.sum(powers, keepdims=True)  # 0 for a query without keys, whose result is 0
    return nn.product(powers, v, type="f32") * (1 / where(eq(total, 0), 1, total))


# --- shapes --------------------------------------------------------------------------------------


@_operator("view", "reshape", "_unsafe_view")
def _view(use: Use, x: Any, shape: Sequence[Size]) -> Any:
    return use.tensor(x).reshape(*shape)


@_operator("flatten.using_ints")
def _flatten(use: Use, x: Any, start: int = 0, end: int = -1) -> Any:
    found = use.tensor(x)
    shape = _shape(found)
    first, last = (_axis(use, axis, len(shape)) for axis in (start, end))
    return found.reshape(*shape[:first], -1, *shape[last + 1 :])


@_operator("unflatten")
def _unflatten(use: Use, x: Any, axis: int, sizes: Sequence[Size]) -> Any:
    found = use.tensor(x)
    shape = _shape(found)
    at = _axis(use, axis, len(shape))
    return found.reshape(*shape[:at], *sizes, *shape[at + 1 :])


@_operator("unsqueeze")
def _unsqueeze(use: Use, x: Any, axis: int) -> Any:
    found = use.tensor(x)
    shape = _shape(found)
    at = _axis(use, axis, len(shape) + 1)
    return found.reshape(*shape[:at], 1, *shape[at:])


@_operator("squeeze.dim", "squeeze.dims")
def _squeeze(use: Use, x: Any, axes: Any) -> Any:
    found = use.tensor(x)
    shape = _shape(found)
    gone = {_axis(use, axis, len(shape)) for axis in ([axes] if isinstance(axes, int) else axes)}
    kept = [size for axis, size in enumerate(shape) if axis not in gone or size != 1]
    return found.reshape(*kept)


@_operator("permute")
def _permute(use: Use, x: Any, axes: Sequence[int]) -> Any:
    return use.tensor(x).transpose(*axes)


@_operator("transpose.int", "t", "mT")
def _transpose(use: Use, x: Any, one: int = -2, other: int = -1) -> Any:
    if isinstance(x, Known):
        return Known(x.tensor.transpose(one, other), x.name)
    return use.tensor(x).swapaxes(one, other)


@_operator("select.int")
def _select(use: Use, x: Any, axis: int, index: int) -> Any:
    found = use.tensor(x)
    at = _axis(use, axis, len(_shape(found)))
    return found[(slice(None),) * at + (index,)]


@_operator("unbind")
def _unbind(use: Use, x: Any, axis: int = 0) -> list[Any]:
    size = _shape(use.tensor(x))[_axis(use, axis, len(_shape(use.tensor(x))))]
    if isinstance(size, Dim):
        use.refuse("an axis of free size is not cut", size)
    return [_select(use, x, axis, index) for index in range(size)]


@_operator("numpy_T")
def _reversed(use: Use, x: Any) -> Any:
    return use.tensor(x).transpose()


@_operator("slice.Tensor")
def _slice(
    use: Use, x: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    found = use.tensor(x)
    at = _axis(use, axis, len(_shape(found)))
    last = None if isinstance(end, int) and end > 2**60 else end
    return found[(slice(None),) * at + (slice(start, last, step),)]


@_operator("split.Tensor", "split_with_sizes", "chunk")
def _split(use: Use, x: Any, sizes: Any, axis: int = 0) -> list[Any]:
    found = use.tensor(x)
    shape = _shape(found)
    at = _axis(use, axis, len(shape))
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


@_operator("cat", "concat")
def _cat(use: Use, tensors: Sequence[Any], axis: int = 0) -> Any:
    return nn.concat([use.tensor(each) for each in tensors], axis)


@_operator("expand")
def _expand(use: Use, x: Any, shape: Sequence[Size], **_: Any) -> Any:
    found = use.tensor(x)
    old = _shape(found)
    kept = (1,) * (len(shape) - len(old)) + old
    wide = tuple(own if size == -1 else size for size, own in zip(shape, kept, strict=True))
    return nn.expand(found, wide)


@_operator("sym_size")
def _size(use: Use, x: Any, axis: int) -> Size:
    return _shape(use.tensor(x))[axis]
