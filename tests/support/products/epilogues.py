"""Expressions, what they are by mpmath and how close they come, and their values on numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
from mpmath import mp

from tilewright.elementwise.builder import Argument, Builder, Value, run
from tilewright.elementwise.functions import lower_expression
from tilewright.elementwise.operations import DTYPES
from tilewright.spec import postops
from tilewright.spec.expression import Expression, Operand, acc, dst

BIAS = Operand("bias", "f32", per="column")
mp.prec = 100


def lowered(one: Expression, element: str = "f32") -> tuple[Builder, dict[Any, Value], Argument]:
    b = Builder("f64" if element == "f64" else "f32")
    inputs: dict[Any, Value] = {}

    def leaf(node: Expression) -> Value:
        return inputs.setdefault(node, b.input(element))

    return b, inputs, lower_expression(one, b, leaf, element)


@np.errstate(all="ignore")
def value(one: Expression, *arrays: Any, element: str = "f32") -> Any:
    """The expression on numpy arrays: of acc, then dst, then the operand."""
    b, inputs, result = lowered(one, element)
    leaves = [leaf for leaf in (acc, dst, BIAS) if leaf in inputs]
    dtype = DTYPES[element]
    given = {
        inputs[leaf]: np.array(x).astype(dtype) for leaf, x in zip(leaves, arrays, strict=True)
    }
    if not isinstance(result, Value):
        return dtype(result)
    return run(b.steps, given, b.real)[result]


def _gelu_erf(x: Any) -> Any:
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def _gelu_tanh(x: Any) -> Any:
    inner = mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
    return x / (1 + mpmath.exp(-2 * inner))


def _mish(x: Any) -> Any:
    return x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))) if x < 200 else x


def _logistic(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def _log(x: Any) -> Any:
    return mpmath.log(x) if x > 0 else mpmath.nan


def _log1p(x: Any) -> Any:
    return mpmath.log1p(x) if x > -1 else -mpmath.inf if x == -1 else mpmath.nan


def _power(beta: float) -> Callable[[Any], Any]:
    exponent = mpmath.mpf(float(np.float32(beta)))

    def power(x: Any) -> Any:
        if x < 0 and not beta.is_integer():
            return mpmath.nan
        return mpmath.power(x, exponent)

    return power


#: Expression, reference, ulp, and an error in the smallest subnormal numbers that is let pass.
CLOSE: dict[str, tuple[Expression, Callable[[Any], Any], float, float]] = {
    "exp": (postops.exp(acc), mpmath.exp, 2, 0),
    "expm1": (postops.expm1(acc), mpmath.expm1, 2, 0),
    "log": (postops.log(acc), _log, 2, 0),
    "log1p": (postops.log1p(acc), _log1p, 2, 0),
    "sin": (postops.sin(acc), mpmath.sin, 2, 2.0**102),
    "cos": (postops.cos(acc), mpmath.cos, 2, 2.0**102),
    "tanh": (postops.tanh(acc), mpmath.tanh, 2, 0),
    "logistic": (postops.logistic(acc), _logistic, 2, 0),
    "erf": (postops.erf(acc), mpmath.erf, 2, 0),
    "erfc": (postops.erfc(acc), mpmath.erfc, 8, 0),
    "gelu_erf": (postops.gelu_erf(acc), _gelu_erf, 8, 0),
    "gelu_tanh": (postops.gelu_tanh(acc), _gelu_tanh, 250, 128),
    "swish": (postops.silu(acc), lambda x: x * _logistic(x), 4, 128),
    "swish 2": (postops.swish(acc, 2), lambda x: x * _logistic(2 * x), 4, 128),
    "swish -1": (postops.swish(acc, -1), lambda x: x * _logistic(-x), 4, 128),
    "mish": (postops.mish(acc), _mish, 8, 128),
    "elu": (postops.elu(acc), lambda x: x if x > 0 else mpmath.expm1(x), 3, 0),
    "elu 0.5": (postops.elu(acc, 0.5), lambda x: x if x > 0 else mpmath.expm1(x) / 2, 3, 0),
    "soft_relu": (postops.soft_relu(acc), lambda x: mpmath.log1p(mpmath.exp(x)), 4, 0),
    "soft_relu 2": (postops.soft_relu(acc, 2), lambda x: mpmath.log1p(mpmath.exp(2 * x)) / 2, 4, 1),
    **{
        f"pow {beta}": (acc**beta, _power(beta), 4, 0)
        for beta in (0.1, 0.5, 1.5, -0.5, -2.0, 4.0, 5.0, -7.0, 100.0, 0.001, 1e5, -1e30)
    },
}  # fmt: skip
