"""Epilogues rewritten by sympy as if numbers were real: for ``algebra=True`` alone.

Rounding, infinities and NaN are not kept: ``acc - acc`` becomes 0.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from tilewright.spec.expression import Call, Expression, Leaf, Number, Operand, call, walk

_SAME: dict[str, Any] = {
    "exp": sympy.exp,
    "log": sympy.log,
    "tanh": sympy.tanh,
    "erf": sympy.erf,
    "erfc": sympy.erfc,
    "sqrt": sympy.sqrt,
    "abs": sympy.Abs,
    "maximum": sympy.Max,
    "minimum": sympy.Min,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "square": lambda x: x**2,
    "linear": lambda x, alpha, beta: alpha * x + beta,
    "pow": lambda x, alpha, beta: alpha * x**beta,
}
_BACK = {
    kind: fn
    for fn, kind in _SAME.items()
    if isinstance(kind, type) and issubclass(kind, sympy.Basic)
}


class _ForeignError(Exception):
    """A term that expressions do not have."""


def simplify(expression: Expression) -> Expression:
    """What sympy makes of ``expression``, or itself where that is no shorter."""
    leaves: dict[sympy.Symbol, Expression] = {}
    try:
        found = _back(sympy.simplify(_forth(expression, leaves)), leaves)
    except _ForeignError:
        return expression
    return found if _length(found) < _length(expression) else expression


def _length(expression: Expression) -> int:
    return sum(isinstance(node, Call) for node in walk(expression))


def _forth(expression: Expression, leaves: dict[sympy.Symbol, Expression]) -> Any:
    terms: dict[int, Any] = {}
    for node in walk(expression):
        match node:
            case Leaf(name) | Operand(name):
                term = sympy.Symbol(f"{type(node).__name__} {name}", real=True)
                leaves[term] = node
            case Number(value):
                if not math.isfinite(value):
                    raise _ForeignError
                term = sympy.Rational(repr(value))
            case Call(fn, args):
                function = _SAME.get(fn) or sympy.Function(fn, real=True)
                term = function(*(terms[id(arg)] for arg in args))
        terms[id(node)] = term
    return terms[id(expression)]


def _back(term: Any, leaves: dict[sympy.Symbol, Expression]) -> Expression:
    if term in leaves:
        return leaves[term]
    if term.is_Atom and term.is_finite and term.is_real:
        return Number(float(term))
    if term.is_Add:
        return reduce(_plus, [_signed(part, leaves) for part in term.as_ordered_terms()])[1]
    if term.is_Mul:
        return _product(term, leaves)
    if term.is_Pow:
        return _power(term, leaves)
    args = [_back(arg, leaves) for arg in term.args]
    if isinstance(term, (sympy.Max, sympy.Min)):
        return reduce(lambda x, y: call(_BACK[type(term)], x, y), args)
    if isinstance(term, AppliedUndef):
        return call(term.func.__name__, *args)
    if type(term) not in _BACK:
        raise _ForeignError
    return call(_BACK[type(term)], *args)


def _signed(term: Any, leaves: dict[sympy.Symbol, Expression]) -> tuple[str, Expression]:
    if term.could_extract_minus_sign():
        return "sub", _back(-term, leaves)
    return "add", _back(term, leaves)


def _plus(left: tuple[str, Expression], right: tuple[str, Expression]) -> tuple[str, Expression]:
    first = call("neg", left[1]) if left[0] == "sub" else left[1]
    return "add", call(right[0], first, right[1])


def _product(term: Any, leaves: dict[sympy.Symbol, Expression]) -> Expression:
    coefficient, rest = term.as_coeff_Mul()
    top, bottom = (_factors(part, leaves) for part in sympy.fraction(rest))
    if abs(coefficient) != 1:
        top = [*top, Number(float(coefficient))]
    found = reduce(_times, top) if top else Number(1)
    if bottom:
        found = call("div", found, reduce(_times, bottom))
    return call("neg", found) if coefficient == -1 else found


def _factors(term: Any, leaves: dict[sympy.Symbol, Expression]) -> list[Expression]:
    return [_back(factor, leaves) for factor in term.as_ordered_factors() if factor != 1]


def _times(x: Expression, y: Expression) -> Expression:
    return call("mul", x, y)


def _power(term: Any, leaves: dict[sympy.Symbol, Expression]) -> Expression:
    base, exponent = term.base, term.exp
    if not exponent.is_Rational:
        raise _ForeignError
    if exponent == sympy.Rational(1, 2):
        return call("sqrt", _back(base, leaves))
    if exponent == -1:
        return call("div", 1, _back(base, leaves))
    return call("pow", _back(base, leaves), 1, float(exponent))
