"""Simplify epilogues by sympy as if all numbers were real, for specs with ``algebra=True``.

Rounding, infinities and NaN are not kept. For example, ``acc - acc`` becomes 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from tilewright.errors import PlanError
from tilewright.spec.expression import (
    REGISTRY,
    Call,
    Expression,
    Leaf,
    Number,
    Operand,
    PostOp,
    apply,
    call,
    walk,
)

#: The name of the post-op for each sympy class, for example "exp" for ``sympy.exp``.
_BACK = {
    kind: entry.name
    for entry in REGISTRY.values()
    if isinstance(entry.sympy, str) and isinstance(kind := getattr(sympy, entry.sympy), type)
}


@dataclass(frozen=True, slots=True)
class _Known:
    """The expression for each sympy symbol, and the post-op for each sympy function."""

    leaves: dict[sympy.Symbol, Expression] = field(default_factory=dict)
    entries: dict[str, PostOp] = field(default_factory=dict)


class _ForeignError(Exception):
    """Raised for a sympy term that expressions cannot represent."""


#: Maximum number of functions in an expression that sympy simplifies, and of functions inside each
#: other. More take too long: 10 functions inside each other take 4 s, 20 take many minutes.
MOST, DEEPEST = 64, 16


def simplify(expression: Expression) -> Expression:
    """Return sympy's simplification of ``expression``, or ``expression`` if that is not shorter.

    PlanError if it has too many functions for sympy.
    """
    _check_size(expression)
    known = _Known()
    try:
        found = _back(sympy.simplify(_forth(expression, known)), known)
    except _ForeignError:
        return expression
    return found if _length(found) < _length(expression) else expression


def _check_size(expression: Expression) -> None:
    """Raise PlanError if ``expression`` is so large that sympy would take too long."""
    depths: dict[int, int] = {}
    for node in walk(expression):
        args = node.args if isinstance(node, Call) else ()
        depths[id(node)] = bool(args) + max((depths[id(arg)] for arg in args), default=0)
    if (count := _length(expression)) > MOST or depths[id(expression)] > DEEPEST:
        raise PlanError(
            "algebra=True rewrites short expressions only",
            got=f"{count} functions, {depths[id(expression)]} of them within each other",
            expected=f"at most {MOST}, and {DEEPEST} within each other",
            hint="algebra=False",
        )


def _length(expression: Expression) -> int:
    return sum(isinstance(node, Call) for node in walk(expression))


def _forth(expression: Expression, known: _Known) -> Any:
    terms: dict[int, Any] = {}
    for node in walk(expression):
        match node:
            case Leaf(name) | Operand(name):
                term = sympy.Symbol(f"{type(node).__name__} {name}", real=True)
                known.leaves[term] = node
            case Number(value):
                if not math.isfinite(value):
                    raise _ForeignError
                term = sympy.Rational(repr(value))
            case Call(_, args):
                known.entries[node.fn] = node.entry
                term = _function(node.entry)(*(terms[id(arg)] for arg in args))
        terms[id(node)] = term
    return terms[id(expression)]


def _function(entry: PostOp) -> Any:
    """Return the function that makes the sympy term for a post-op.

    A post-op that sympy does not know becomes an unknown function.
    """
    if isinstance(entry.sympy, str):
        return getattr(sympy, entry.sympy)
    unknown: Any = entry.sympy or sympy.Function(entry.name, real=True)
    return unknown


def _back(term: Any, known: _Known) -> Expression:
    if term in known.leaves:
        return known.leaves[term]
    if term.is_Atom and term.is_finite and term.is_real:
        return Number(float(term))
    if term.is_Add:
        return reduce(_plus, [_signed(part, known) for part in term.as_ordered_terms()])[1]
    if term.is_Mul:
        return _product(term, known)
    if term.is_Pow:
        return _power(term, known)
    args = [_back(arg, known) for arg in term.args]
    if isinstance(term, (sympy.Max, sympy.Min)):
        return reduce(lambda x, y: call(_BACK[type(term)], x, y), args)
    if isinstance(term, AppliedUndef):
        return apply(known.entries[term.func.__name__], args)
    if type(term) not in _BACK:
        raise _ForeignError
    return call(_BACK[type(term)], *args)


def _signed(term: Any, known: _Known) -> tuple[str, Expression]:
    if term.could_extract_minus_sign():
        return "sub", _back(-term, known)
    return "add", _back(term, known)


def _plus(left: tuple[str, Expression], right: tuple[str, Expression]) -> tuple[str, Expression]:
    first = call("neg", left[1]) if left[0] == "sub" else left[1]
    return "add", call(right[0], first, right[1])


def _product(term: Any, known: _Known) -> Expression:
    coefficient, rest = term.as_coeff_Mul()
    top, bottom = (_factors(part, known) for part in sympy.fraction(rest))
    if abs(coefficient) != 1:
        top = [*top, Number(float(coefficient))]
    found = reduce(_times, top) if top else Number(1)
    if bottom:
        found = call("div", found, reduce(_times, bottom))
    return call("neg", found) if coefficient == -1 else found


def _factors(term: Any, known: _Known) -> list[Expression]:
    return [_back(factor, known) for factor in term.as_ordered_factors() if factor != 1]


def _times(x: Expression, y: Expression) -> Expression:
    return call("mul", x, y)


def _power(term: Any, known: _Known) -> Expression:
    base, exponent = term.base, term.exp
    if not exponent.is_Rational:
        raise _ForeignError
    if exponent == sympy.Rational(1, 2):
        return call("sqrt", _back(base, known))
    if exponent == -1:
        return call("div", 1, _back(base, known))
    return call("pow", _back(base, known), 1, float(exponent))
