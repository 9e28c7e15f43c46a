"""Operators of PyTorch that compute elements, as expressions of a network's tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

import torch
from tilewright.errors import SpecError
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
from tilewright.spec.expression.tensors import cast, extent_of
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import TypeName
from torch.utils._pytree import tree_leaves

from .packed import INPUT_TYPES


class Known(NamedTuple):
    """A parameter or buffer of the module: its values and its name.

    If it is ``fixed``, its values never change: operators of such tensors are computed once.
    """

    tensor: torch.Tensor
    name: str
    fixed: bool = False


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
        if isinstance(value, Dim):
            return extent_of(value)
        if not isinstance(value, Known):
            return value if isinstance(value, Expression) else Number(float(value))
        if value.tensor.numel() == 1 and value.tensor.dim() < 2:  # more axes are the result's too
            return Number(float(value.tensor))
        return self.weight(value, value.tensor)

    def whole(self, value: Any) -> Expression:
        """Return a value as a tensor with axes: a parameter of one element is a weight too."""
        if isinstance(value, Known):
            return self.weight(value, value.tensor if value.tensor.dim() else value.tensor[None])
        found = self.tensor(value)
        if found.tensor is None:
            self.refuse("a number has no axes", found, "a tensor")
        return found

    def weight(self, value: Known, tensor: torch.Tensor, use: str = "") -> Expression:
        """Return the weight that holds ``tensor``, for one use of a parameter.

        It has the type of the tensor, f32 for booleans, integers and f64.
        """
        held = tensor.detach() if tensor.dtype in INPUT_TYPES else tensor.detach().float()
        if not tensor.is_floating_point() and not torch.equal(held.double(), tensor.double()):
            self.refuse("f32 does not have these integers", value.name, "at most 2**24")
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


def operator(*names: str) -> Callable[[Function], Function]:
    """Return a decorator: its function computes the operators with these names."""

    def add(function: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return add


def shape_of(x: Expression) -> tuple[Size, ...]:
    """Return the shape of a tensor."""
    assert x.tensor is not None
    return x.tensor.shape


def type_of(x: Expression) -> TypeName:
    """Return the element type of a tensor."""
    assert x.tensor is not None
    return x.tensor.type


def axis_of(use: Use, axis: int, count: int) -> int:
    """Return an axis of ``count``, counted from the first."""
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
    "sign": lambda x: where(gt(x, 0), 1, where(lt(x, 0), -1, x)),
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


@operator("add", "add_")
def _add(use: Use, x: Any, y: Any, alpha: float = 1) -> Expression:
    if isinstance(x, Truth) and isinstance(y, Truth):
        use.refuse("booleans are not added", "bool + bool", "torch.logical_or")
    second = use.tensor(y)
    return use.tensor(x) + (second if alpha == 1 else second * alpha)


@operator("sub", "sub_")
def _sub(use: Use, x: Any, y: Any, alpha: float = 1) -> Expression:
    second = use.tensor(y)
    return use.tensor(x) - (second if alpha == 1 else second * alpha)


@operator("rsub")
def _rsub(use: Use, x: Any, y: Any, alpha: float = 1) -> Any:
    return _sub(use, y, x, alpha)


@operator("div", "div_")
def _div(use: Use, x: Any, y: Any, rounding_mode: str | None = None) -> Expression:
    if rounding_mode is not None:
        use.refuse("a quotient is not rounded", rounding_mode)
    return use.tensor(x) / use.tensor(y)


@operator("pow.Tensor_Scalar")
def _pow(use: Use, x: Any, exponent: float) -> Any:
    found = use.tensor(x)
    if exponent == 2:
        return arithmetic.square(found)
    return arithmetic.sqrt(found) if exponent == 0.5 else logarithm.pow(found, 1, float(exponent))


@operator("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(use: Use, condition: Any, x: Any, y: Any) -> Any:
    return where(*(use.tensor(each) for each in (condition, x, y)))


@operator("masked_fill")
def _masked_fill(use: Use, x: Any, mask: Any, value: Any) -> Any:
    return where(use.tensor(mask), use.tensor(value), use.tensor(x))


@operator("clamp", "clip", "hardtanh", "clamp_min", "clamp_max")
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


@operator("gelu")
def _gelu(use: Use, x: Any, approximate: str = "none") -> Any:
    return (exponential.gelu_tanh if approximate == "tanh" else gaussian.gelu_erf)(use.tensor(x))


@operator("leaky_relu", "leaky_relu_")
def _leaky_relu(use: Use, x: Any, slope: float = 0.01) -> Any:
    return activations.relu(use.tensor(x), slope)


@operator("elu", "elu_")
def _elu(use: Use, x: Any, alpha: float = 1.0, scale: float = 1, input_scale: float = 1) -> Any:
    found = exponential.elu(
        use.tensor(x) if input_scale == 1 else use.tensor(x) * input_scale, alpha
    )
    return found if scale == 1 else found * scale


@operator("selu", "selu_")
def _selu(use: Use, x: Any) -> Any:
    return _elu(use, x, 1.6732632423543772, 1.0507009873554805)


@operator("celu", "celu_")
def _celu(use: Use, x: Any, alpha: float = 1.0) -> Any:
    found = use.tensor(x)
    return where(gt(found, 0), found, alpha * exponential.expm1(found / alpha))


@operator("softplus")
def _softplus(use: Use, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    found = use.tensor(x)
    smooth = exponential.soft_relu(found, beta)
    # From 16 on, f32 has no number between both.
    return smooth if threshold >= 16 else where(gt(found * beta, threshold), found, smooth)


@operator("log_sigmoid")
def _log_sigmoid(use: Use, x: Any) -> Any:
    return -exponential.soft_relu(-use.tensor(x), 1)


@operator("threshold", "threshold_")
def _threshold(use: Use, x: Any, threshold: float, value: float) -> Any:
    found = use.tensor(x)
    return where(le(found, threshold), value, found)


@operator("hardshrink")
def _hardshrink(use: Use, x: Any, end: float = 0.5) -> Any:
    found = use.tensor(x)
    return where(logical_and(ge(found, -end), le(found, end)), 0, found)


@operator("softshrink")
def _softshrink(use: Use, x: Any, end: float = 0.5) -> Any:
    found = use.tensor(x)
    return where(gt(found, end), found - end, where(lt(found, -end), found + end, found * 0))


@operator("prelu")
def _prelu(use: Use, x: Any, slope: Any) -> Any:
    found, factor = use.tensor(x), use.tensor(slope)
    if factor.tensor is not None and len(shape_of(found)) > 2:  # the channels are axis 1
        factor = factor.reshape(-1, *(1,) * (len(shape_of(found)) - 2))
    return activations.prelu(found, factor)


@operator("dropout", "dropout_", "feature_dropout", "alpha_dropout")
def _dropout(use: Use, x: Any, p: float, train: bool) -> Any:
    if train and p:
        use.refuse("networks are not trained", "dropout in training mode", "module.eval()")
    return x


@operator("contiguous", "clone", "alias", "detach", "lift_fresh_copy", "lift")
def _same(use: Use, x: Any, **_: Any) -> Any:
    return x


@operator("to.dtype", "type_as", "_to_copy", "to.dtype_layout")
def _to(use: Use, x: Any, dtype: Any = None, *_: Any, **__: Any) -> Any:
    if dtype not in INPUT_TYPES:
        use.refuse("tensors are not converted to this type", dtype, _TYPES)
    if isinstance(x, Known):
        return Known(x.tensor.to(dtype), x.name)
    return use.tensor(x)
