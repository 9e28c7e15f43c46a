"""The functions that epilogues are written with, beside Python's operators."""

from __future__ import annotations

from tilewright.errors import SpecError

from .expression import Call, Expression, Number, Term, call, parameter, walk

__all__ = [
    "abs",
    "clip",
    "elu",
    "eq",
    "erf",
    "erfc",
    "exp",
    "ge",
    "gelu_erf",
    "gelu_tanh",
    "gt",
    "hardsigmoid",
    "hardswish",
    "le",
    "linear",
    "log",
    "logistic",
    "lt",
    "maximum",
    "minimum",
    "mish",
    "ne",
    "pow",
    "prelu",
    "relu",
    "round",
    "silu",
    "soft_relu",
    "sqrt",
    "square",
    "swish",
    "tanh",
    "where",
]


def eq(x: Term, y: Term) -> Expression:
    """1.0 where ``x == y``, else 0.0."""
    return call("eq", x, y)


def ne(x: Term, y: Term) -> Expression:
    """1.0 where ``x != y``, NaN included, else 0.0."""
    return call("ne", x, y)


def lt(x: Term, y: Term) -> Expression:
    """1.0 where ``x < y``, else 0.0."""
    return call("lt", x, y)


def le(x: Term, y: Term) -> Expression:
    """1.0 where ``x <= y``, else 0.0."""
    return call("le", x, y)


def gt(x: Term, y: Term) -> Expression:
    """1.0 where ``x > y``, else 0.0."""
    return call("gt", x, y)


def ge(x: Term, y: Term) -> Expression:
    """1.0 where ``x >= y``, else 0.0."""
    return call("ge", x, y)


def where(condition: Term, x: Term, y: Term) -> Expression:
    """``x`` where the condition is not 0, else ``y``; NaN is not 0."""
    return call("where", condition, x, y)


def maximum(x: Term, y: Term) -> Expression:
    """The larger of both; NaN if either is."""
    return call("maximum", x, y)


def minimum(x: Term, y: Term) -> Expression:
    """The smaller of both; NaN if either is."""
    return call("minimum", x, y)


def abs(x: Term) -> Expression:
    """``x`` without its sign."""
    return call("abs", x)


def square(x: Term) -> Expression:
    """``x * x``."""
    return call("square", x)


def sqrt(x: Term) -> Expression:
    """The square root, rounded once; NaN below 0."""
    return call("sqrt", x)


def round(x: Term) -> Expression:
    """The nearest integer, the even one of two."""
    return call("round", x)


def linear(x: Term, alpha: float, beta: float) -> Expression:
    """``alpha * x + beta``, rounded twice."""
    return call("linear", x, parameter("linear", "alpha", alpha), parameter("linear", "beta", beta))


def clip(x: Term, low: float, high: float) -> Expression:
    """``x``, but not below ``low`` and not above ``high``; NaN stays."""
    bounds = [parameter("clip", *one, finite=False) for one in (("low", low), ("high", high))]
    if low > high:
        raise SpecError("clip has no value between its bounds", got=f"low={low}, high={high}")
    return call("clip", x, *bounds)


def relu(x: Term, alpha: float = 0) -> Expression:
    """``x`` where it is positive, else ``alpha * x``; 0 for alpha 0, at -Inf too. NaN stays."""
    return call("relu", x, parameter("relu", "alpha", alpha))


def prelu(x: Term, slope: Term) -> Expression:
    """``x`` where it is positive, else ``slope * x``."""
    return call("prelu", x, slope)


def elu(x: Term, alpha: float = 1) -> Expression:
    """``x`` where it is positive, else ``alpha * (exp(x) - 1)``."""
    return call("elu", x, parameter("elu", "alpha", alpha))


def exp(x: Term) -> Expression:
    """``e**x``."""
    return call("exp", x)


def log(x: Term) -> Expression:
    """The natural logarithm: -Inf at 0, NaN below."""
    return call("log", x)


def pow(x: Term, alpha: float, beta: float) -> Expression:
    """``alpha * x**beta``; ``x ** beta`` is ``pow(x, 1, beta)``."""
    return call("pow", x, parameter("pow", "alpha", alpha), parameter("pow", "beta", beta))


def tanh(x: Term) -> Expression:
    """The hyperbolic tangent."""
    return call("tanh", x)


def erf(x: Term) -> Expression:
    """The error function."""
    return call("erf", x)


def erfc(x: Term) -> Expression:
    """``1 - erf(x)``, accurate where it is small."""
    return call("erfc", x)


def logistic(x: Term) -> Expression:
    """``1 / (1 + exp(-x))``."""
    return call("logistic", x)


def soft_relu(x: Term, alpha: float = 1) -> Expression:
    """``log(1 + exp(alpha * x)) / alpha``, without overflow."""
    factor = parameter("soft_relu", "alpha", alpha)
    if factor.value == 0:
        raise SpecError("soft_relu divides by alpha", got="alpha=0")
    return call("soft_relu", x, factor)


def hardsigmoid(x: Term, alpha: float = 1 / 6, beta: float = 0.5) -> Expression:
    """``alpha * x + beta`` clipped to 0 and 1."""
    numbers = parameter("hardsigmoid", "alpha", alpha), parameter("hardsigmoid", "beta", beta)
    return call("hardsigmoid", x, *numbers)


def hardswish(x: Term, alpha: float = 1 / 6, beta: float = 0.5) -> Expression:
    """``x * hardsigmoid(x, alpha, beta)``."""
    numbers = parameter("hardswish", "alpha", alpha), parameter("hardswish", "beta", beta)
    return call("hardswish", x, *numbers)


def swish(x: Term, alpha: float = 1) -> Expression:
    """``x * logistic(alpha * x)``."""
    return call("swish", x, parameter("swish", "alpha", alpha))


def silu(x: Term) -> Expression:
    """``swish(x)``."""
    return swish(x)


def mish(x: Term) -> Expression:
    """``x * tanh(soft_relu(x))``."""
    return call("mish", x)


def gelu_erf(x: Term) -> Expression:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    return call("gelu_erf", x)


def gelu_tanh(x: Term) -> Expression:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``."""
    return call("gelu_tanh", x)


_F32_ONLY = frozenset(
    {
        "elu", "erf", "erfc", "exp", "gelu_erf", "gelu_tanh", "log", "logistic", "mish",
        "soft_relu", "swish", "tanh",
    }
)  # fmt: skip
_POWERS = tuple(map(Number, (-2, -1, 0, 0.5, 1, 2, 3, 4)))


def check_functions(expression: Expression, element: str) -> None:
    """SpecError if ``expression`` has a function that is not computed in lanes of ``element``."""
    for node in walk(expression):
        if not isinstance(node, Call):
            continue
        if element == "s32" and node.fn not in ("add", "sub", "neg"):
            raise SpecError(f"{node.fn} is not computed in s32", got=node, expected="+ and - alone")
        if element != "f64":
            continue
        if node.fn in _F32_ONLY or (node.fn == "pow" and node.args[2] not in _POWERS):
            raise SpecError(
                f"{node.fn} is not computed in f64",
                got=node,
                expected="arithmetic, comparisons, sqrt, and the powers -2, -1, 0.5, 1 to 4",
                hint="with f32 operands it is computed in f32",
            )
