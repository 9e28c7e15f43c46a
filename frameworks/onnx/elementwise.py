"""Operators of elements: arithmetic, comparisons, activations, casts, choices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

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
    logical_xor,
    lt,
    ne,
    where,
)
from tilewright.spec.expression.nodes import Expression, Number
from tilewright.spec.types import is_integer

from .node import Importer, Node, operator
from .values import FLOATING, WHOLE, Known, Traced, Value, type_of

Result = Sequence[Value | None]


def _unary(function: Callable[[Expression], Any]) -> Importer:
    def importer(node: Node) -> Result:
        return node.result(function(node.tensor(0)), node.floating())

    return importer


def _sinh(x: Expression) -> Expression:
    e = exponential.expm1(x)
    return (e + e / (e + 1)) * 0.5


def _asinh(x: Expression) -> Expression:
    size = abs(x)
    squared = size * size
    return arithmetic.copysign(
        logarithm.log1p(size + squared / (arithmetic.sqrt(squared + 1) + 1)), x
    )


def _sign(x: Expression) -> Expression:
    return where(eq(x, 0) | ne(x, x), x, arithmetic.copysign(x * 0 + 1, x))


_UNARY: dict[str, Callable[[Expression], Any]] = {
    "Relu": activations.relu,
    "Sigmoid": exponential.logistic,
    "Tanh": exponential.tanh,
    "Exp": exponential.exp,
    "Log": logarithm.log,
    "Sqrt": arithmetic.sqrt,
    "Floor": arithmetic.floor,
    "Ceil": arithmetic.ceil,
    "Round": arithmetic.round,
    "Erf": gaussian.erf,
    "Sin": trigonometry.sin,
    "Cos": trigonometry.cos,
    "Tan": lambda x: trigonometry.sin(x) / trigonometry.cos(x),
    "Sinh": _sinh,
    "Cosh": lambda x: (exponential.exp(x) + exponential.exp(-x)) * 0.5,
    "Asinh": _asinh,
    "Acosh": lambda x: logarithm.log1p(x - 1 + arithmetic.sqrt((x - 1) * (x + 1))),
    "Atanh": lambda x: logarithm.log1p(2 * x / (1 - x)) * 0.5,
    "Reciprocal": lambda x: 1 / x,
    "Softplus": exponential.soft_relu,
    "Softsign": lambda x: x / (1 + abs(x)),
    "Mish": exponential.mish,
    "HardSwish": activations.hardswish,
}
for _name, _function in _UNARY.items():
    operator(_name)(_unary(_function))


@operator("Abs", "Neg", "Sign")
def _exact(node: Node) -> Result:
    functions: dict[str, Callable[[Expression], Expression]] = {
        "Abs": abs, "Neg": lambda x: -x, "Sign": _sign,
    }  # fmt: skip
    if node.type in WHOLE:
        return node.result(_wrapped(functions[node.operator](node.tensor(0)), node.type), node.type)
    return node.result(functions[node.operator](node.tensor(0)), node.floating())


@operator("Identity", "Dropout")
def _same(node: Node) -> Result:
    if node.operator == "Dropout" and node.given(2) and bool(node.constant(2, "training_mode")):
        node.refuse("networks are not trained", got="training_mode", expected="false")
    return (node.inputs[0], _kept(node))


def _kept(node: Node) -> Value | None:
    """Return the mask of a Dropout: it keeps all elements."""
    if node.operator == "Identity" or len(node.proto.output) < 2:
        return None
    return node.traced(eq(node.tensor(0) * 0, 0) | 1, "bool")


@operator("Elu", "Celu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid", "Shrink", "Swish")
def _with_parameters(node: Node) -> Result:
    x, type_ = node.tensor(0), node.floating()
    alpha = float(node.attribute("alpha", _ALPHA.get(node.operator, 1.0)))
    match node.operator:
        case "Elu":
            found = exponential.elu(x, alpha)
        case "Celu":
            found = arithmetic.maximum(x, 0) + arithmetic.minimum(
                alpha * exponential.expm1(x / alpha), 0
            )
        case "Selu":
            gamma = float(node.attribute("gamma", 1.0507010221481323))
            found = gamma * exponential.elu(x, alpha)
        case "LeakyRelu":
            found = activations.relu(x, alpha)
        case "ThresholdedRelu":
            found = where(gt(x, alpha), x, 0)
        case "HardSigmoid":
            found = activations.hardsigmoid(x, alpha, float(node.attribute("beta", 0.5)))
        case "Swish":
            found = exponential.swish(x, alpha)
        case _:
            bias, edge = (float(node.attribute(*each)) for each in (("bias", 0.0), ("lambd", 0.5)))
            inner = where(gt(x, edge), x - bias, 0)
            found = where(lt(x, -edge), x + bias, inner)
    return node.result(found, type_)


#: The default of the attribute alpha, where it is not 1.
_ALPHA = {"Selu": 1.6732631921768188, "LeakyRelu": 0.01, "HardSigmoid": 0.2}


@operator("Gelu")
def _gelu(node: Node) -> Result:
    tanh = node.attribute("approximate", "none") == "tanh"
    return node.result(
        (exponential.gelu_tanh if tanh else gaussian.gelu_erf)(node.tensor(0)), node.floating()
    )


@operator("IsNaN", "IsInf")
def _is(node: Node) -> Result:
    x = node.tensor(0)
    node.floating()
    if node.operator == "IsNaN":
        return node.result(ne(x, x), "bool")
    below, above = (bool(node.attribute(f"detect_{each}", 1)) for each in ("negative", "positive"))
    size = abs(x) if below and above else -x if below else x
    found = eq(size, math.inf) if below or above else x * 0
    return node.result(found, "bool")


def _truncated(x: Expression) -> Expression:
    """Return numbers rounded towards zero."""
    return where(lt(x, 0), arithmetic.ceil(x), arithmetic.floor(x))


def _wrapped(x: Expression, type_: str) -> Expression:
    """Return whole numbers modulo the range of their type, exact below 2**24."""
    bits = WHOLE[type_]
    if bits == 32:
        return x
    low = 0.0 if type_.startswith("u") else -(2.0 ** (bits - 1))
    return x - 2.0**bits * arithmetic.floor((x - low) * 2.0**-bits)


@operator("Mod")
def _mod(node: Node) -> Result:
    # The quotient of 16-bit integers in f32 has the right whole part. That of others may not.
    x, y = node.tensor(0), node.tensor(1)
    if WHOLE.get(node.type, 32) > 16:
        node.refuse("a remainder is of short integers", got=node.type, expected="s8, u8, s16, u16")
    quotient = (_truncated if node.attribute("fmod", 0) else arithmetic.floor)(x / y)
    return node.result(x - quotient * y, node.type)


_BINARY: dict[str, Callable[[Any, Any], Expression]] = {
    "Add": lambda x, y: x + y,
    "Sub": lambda x, y: x - y,
    "Mul": lambda x, y: x * y,
    "Div": lambda x, y: x / y,
    "PRelu": activations.prelu,
}


def _binary(function: Callable[[Any, Any], Expression]) -> Importer:
    def importer(node: Node) -> Result:
        if node.operator == "Div" and node.type == "s32":
            node.refuse("a quotient is of short integers", got="s32", expected="s8, u8, s16, u16")
        if node.type in WHOLE and node.operator != "PRelu":
            found = function(node.tensor(0), node.tensor(1))
            return node.result(
                _wrapped(_truncated(found) if node.operator == "Div" else found, node.type),
                node.type,
            )
        return node.result(function(node.tensor(0), node.tensor(1)), node.floating())

    return importer


for _name, _both in _BINARY.items():
    operator(_name)(_binary(_both))


@operator("Max", "Min", "Sum", "Mean")
def _several(node: Node) -> Result:
    if not (node.type in WHOLE and node.operator in ("Max", "Min")):
        node.floating()
    parts = [node.tensor(index) for index in range(len(node.inputs))]
    functions: dict[str, Callable[[Any, Any], Expression]] = {
        "Max": arithmetic.maximum, "Min": arithmetic.minimum,
    }  # fmt: skip
    found = reduce(functions.get(node.operator, _BINARY["Add"]), parts)
    if node.operator == "Mean" and len(parts) > 1:
        found = found / len(parts)
    return node.result(found, node.type)


@operator("Pow")
def _pow(node: Node) -> Result:
    type_ = node.floating()
    exponent = node.value(1)
    if not isinstance(exponent, Known) or exponent.array.size != 1:
        node.refuse(
            "a power has one exponent for all elements",
            got=f"exponents of shape {exponent.shape}",
            expected="a constant of one element",
        )
    return node.result(_power(node.tensor(0), float(exponent.array.reshape(()))), type_)


def _power(x: Expression, exponent: float) -> Expression:
    match exponent:
        case 1.0:
            return x
        case 2.0:
            return arithmetic.square(x)
        case 0.5:
            return arithmetic.sqrt(x)
        case -1.0:
            return 1 / x
        case 3.0:
            return arithmetic.square(x) * x
    return logarithm.pow(x, 1, exponent)


@operator("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def _compared(node: Node) -> Result:
    functions = {
        "Equal": eq, "Less": lt, "LessOrEqual": le, "Greater": gt,
        "GreaterOrEqual": ge,
    }  # fmt: skip
    return node.result(functions[node.operator](node.tensor(0), node.tensor(1)), "bool")


@operator("And", "Or", "Xor", "Not")
def _logical(node: Node) -> Result:
    x = node.tensor(0)
    if node.operator == "Not":
        return node.result(logical_not(x), "bool")
    functions = {
        "And": logical_and,
        "Or": logical_or,
        "Xor": logical_xor,
    }
    return node.result(functions[node.operator](x, node.tensor(1)), "bool")


@operator("Where")
def _where(node: Node) -> Result:
    condition, x, y = (node.value(index) for index in range(3))
    type_ = y.type if isinstance(x, Known) else x.type
    found = where(*(node.expression(each) for each in (condition, x, y)))
    return node.result(found, type_)


@operator("Clip")
def _clip(node: Node) -> Result:
    x = node.tensor(0)
    type_ = node.type if node.type in WHOLE else node.floating()
    ends: list[Expression | None] = []
    for index, name in ((1, "min"), (2, "max")):
        old = node.attributes.get(name)
        ends.append(
            node.tensor(index) if node.given(index) else None if old is None else Number(old)
        )
    low, high = ends
    x = x if low is None else arithmetic.maximum(x, low)
    return node.result(x if high is None else arithmetic.minimum(x, high), type_)


@operator("Cast", "CastLike")
def _cast(node: Node) -> Result:
    if node.operator == "Cast":
        to = type_of(int(node.attribute("to")))
    else:
        like = node.value(1)
        to = like.type
    value = node.value(0)
    assert isinstance(value, Traced)
    return converted(node, value, to)


def converted(node: Node, value: Traced, to: str) -> Result:
    """Return a tensor as another type, with ONNX's rounding."""
    x, given = value.expression, value.type
    if given == to:
        return (value,)
    if to == "bool":
        return node.result(ne(x, 0), to)
    if to == "s64":
        to = "s32"
    if to not in (*FLOATING, *WHOLE, *_LARGEST):
        node.refuse("tensors are not converted to this type", got=f"{given} to {to}")
    if is_integer(to) and given in FLOATING:
        x = _truncated(x)
    if to in WHOLE and given in WHOLE:
        x = _wrapped(x, to)
    return node.result(saturated(node, x, to), to)


def saturated(node: Node, x: Expression, to: str) -> Expression:
    """Return numbers within the range of a type of 8 bits; NaN stays. Integers saturate anyway."""
    if to not in _LARGEST:
        return x
    if not node.attribute("saturate", 1):
        node.refuse("numbers beyond the type's range are saturated", got="saturate=0")
    return arithmetic.minimum(arithmetic.maximum(x, -_LARGEST[to]), _LARGEST[to])


#: The largest finite numbers of the types that saturate.
_LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
