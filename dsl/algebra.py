"""Expressions rewritten by sympy as if numbers were exact, where ``algebra=True`` allows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, reduce
from typing import Any

import sympy

from .builder import Argument, Builder
from .expression import Call, Expression, Number, call, walk
from .functions import lower_expression

_FROM: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "abs": sympy.Abs,
    "sqrt": sympy.sqrt,
    "square": lambda x: x**2,
    "pow": lambda x, alpha, beta: alpha * x**beta,
    "linear": lambda x, alpha, beta: alpha * x + beta,
    "relu": lambda x, alpha: sympy.Max(x, 0) if alpha == 0 else _opaque("relu", x, alpha),
    "maximum": sympy.Max,
    "minimum": sympy.Min,
    "clip": lambda x, low, high: sympy.Min(sympy.Max(x, low), high),
    "exp": sympy.exp,
    "log": sympy.log,
    "tanh": sympy.tanh,
    "erf": sympy.erf,
    "erfc": sympy.erfc,
}
_SAME = {"Abs": "abs", **{name: name for name in ("exp", "log", "tanh", "erf", "erfc")}}
_WEIGHTS = {"div": 5, "sqrt": 5}
_PAIRWISE = {"Max": "maximum", "Min": "minimum"}
Back = Callable[[Any], Expression]


class _NoExpressionError(Exception):
    """Sympy's form has no counterpart: it is no real number, or takes other functions."""


@cache
def simplified(expression: Expression, real: str = "f32") -> Expression:
    """The cheapest form of ``expression`` that sympy finds, itself among them."""
    names: dict[Any, Expression] = {}
    found = [expression, *_forms(_to_sympy(expression, names), names)]
    return min(found, key=lambda form: _cost(form, real))


def _forms(given: Any, names: dict[Any, Expression]) -> Iterator[Expression]:
    for rewrite in (lambda x: x, sympy.simplify, sympy.factor, sympy.expand):
        try:
            yield _from_sympy(rewrite(given), names)
        except _NoExpressionError:
            continue


def _cost(expression: Expression, real: str) -> int:
    """The elementary operations of an expression, those weighted that take longer."""
    builder = Builder(real)
    leaves: dict[Expression, Argument] = {}
    lower_expression(
        expression, builder, lambda leaf: leaves.setdefault(leaf, builder.input()), real
    )
    return sum(_WEIGHTS.get(step.fn, 1) for step in builder.steps)


# --- there -------------------------------------------------------------------------------------


def _opaque(fn: str, *args: Any) -> Any:
    """A function that sympy is not told the meaning of."""
    return sympy.Function(fn, real=True)(*args)


def _to_sympy(expression: Expression, names: dict[Any, Expression]) -> Any:
    """``names`` is given what each symbol stands for."""
    values: dict[int, Any] = {}
    for node in walk(expression):
        match node:
            case Number(number):
                finite = number - number == 0
                found = sympy.Rational(*number.as_integer_ratio()) if finite else sympy.S(number)
            case Call(fn, args):
                given = [values[id(arg)] for arg in args]
                found = _FROM[fn](*given) if fn in _FROM else _opaque(fn, *given)
            case _:
                found = sympy.Symbol(repr(node), real=True)
                names[found] = node
        values[id(node)] = found
    return values[id(expression)]


# --- and back ----------------------------------------------------------------------------------


def _from_sympy(given: Any, names: dict[Any, Expression]) -> Expression:
    """The expression that a form of sympy's stands for."""

    def back(inner: Any) -> Expression:
        return _from_sympy(inner, names)

    name = given.func.__name__
    if given in names:
        return names[given]
    if given.is_number:
        return _number(given)
    if given.is_Add:
        return _sum(given, back)
    if given.is_Mul:
        return _product(given, back)
    if given.is_Pow:
        base, exponent = given.as_base_exp()
        return _power(base, exponent, back)
    if name in _PAIRWISE:
        return reduce(lambda x, y: call(_PAIRWISE[name], x, y), map(back, given.args))
    if name in _SAME or isinstance(given, sympy.core.function.AppliedUndef):
        return call(_SAME.get(name, name), *map(back, given.args))
    raise _NoExpressionError


def _number(given: Any) -> Expression:
    if given.is_real or given in (sympy.oo, -sympy.oo):
        return Number(float(given))
    raise _NoExpressionError


def _sum(given: Any, back: Back) -> Expression:
    terms = given.as_ordered_terms()
    negative = [term for term in terms if term.could_extract_minus_sign()]
    positive = [back(term) for term in terms if term not in negative]
    start = reduce(lambda x, y: call("add", x, y), positive) if positive else Number(-0.0)
    return reduce(lambda x, term: call("sub", x, back(-term)), negative, start)


def _product(given: Any, back: Back) -> Expression:
    coefficient, rest = given.as_coeff_Mul()
    factors = sympy.Mul.make_args(rest)
    under = [f for f in factors if f.is_Pow and f.exp.is_Rational and f.exp < 0]
    over = [back(f) for f in factors if f not in under]
    over += [Number(float(coefficient))] if coefficient != 1 or not over else []
    result = reduce(lambda x, y: call("mul", x, y), over)
    return reduce(lambda x, f: call("div", x, back(1 / f)), under, result)


def _power(base: Any, exponent: Any, back: Back) -> Expression:
    if not exponent.is_Rational:
        if not (base.is_number and base.is_positive):
            raise _NoExpressionError
        return call("exp", call("mul", back(exponent), _number(sympy.log(base))))
    if exponent in (2, sympy.Rational(1, 2)):
        return call("square" if exponent == 2 else "sqrt", back(base))
    if exponent < 0:
        return call("div", 1, back(base**-exponent))
    return call("pow", back(base), 1, float(exponent))
