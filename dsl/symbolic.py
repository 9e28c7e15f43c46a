"""Compute with sizes as sympy expressions: trip counts, tails, addresses, costs, and C text.

Expressions consist of run-time sizes and loop counters, all integers of 0 or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

import sympy
from sympy import Expr, Integer, Rational

from tilewright.spec.sizes import Dim, Joined, Size

from .errors import PlanError

ZERO, ONE = Integer(0), Integer(1)


@cache
def symbol(name: str) -> sympy.Symbol:
    """Return the run-time size or loop counter called ``name``: an integer, 0 or more."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


@lru_cache(maxsize=4096)
def size_expr(slot: str, size: Size) -> Expr:
    """Return a spec's size as an expression: a number, or ``multiple_of`` times an unknown."""
    if isinstance(size, Joined):
        each = (size_expr(f"{one.name}_", one) for one in size.dims)
        return sympy.expand(size.factor * math.prod(each))
    if isinstance(size, Dim):
        return size.multiple_of * _quotient(slot, size.multiple_of)
    return Integer(size)


@cache
def _quotient(slot: str, multiple: int) -> Expr:
    return symbol(slot) if multiple == 1 else symbol(f"{slot}__by_{multiple}")


def _original(quotient: sympy.Symbol) -> Expr:
    slot, _, multiple = quotient.name.partition("__by_")
    return symbol(slot) / int(multiple) if multiple else quotient


@lru_cache(maxsize=65536)
def slots(expr: Expr) -> frozenset[str]:
    """Return the names of the run-time sizes and counters that ``expr`` depends on."""
    return frozenset(s.name.partition("__by_")[0] for s in expr.free_symbols)


def value(expr: Expr) -> int | None:
    """Return the value of a constant expression, else None."""
    return int(expr) if expr.is_Integer else None


class _OfSizes:
    """Base class that tells sympy that a function of sizes gives integers of 0 or more."""

    def _eval_is_integer(self) -> bool:
        return True

    def _eval_is_nonnegative(self) -> bool:
        return True


class Remainder(_OfSizes, sympy.Function):  # type: ignore[misc]
    """The remainder of ``expr`` divided by a positive constant; ``mod`` makes such objects.

    sympy.Mod is not used: it turns ``Mod(3 * Mod(q, 8), 16)`` into ``Mod(3 * Mod(q, 8)**2, 16)``
    (sympy 1.12 to 1.14). This class evaluates only numbers.
    """

    nargs = 2

    @classmethod
    def eval(cls, expr: Expr, by: Expr) -> Expr | None:
        """Return the value if both arguments are numbers, else None."""
        return expr % by if expr.is_Integer and by.is_Integer else None


class Quotient(_OfSizes, sympy.Function):  # type: ignore[misc]
    """The quotient of two sizes, rounded down, if the divisor is known only at the call."""

    nargs = 2

    @classmethod
    def eval(cls, expr: Expr, by: Expr) -> Expr | None:
        """Return the value if both arguments are numbers, else None."""
        return expr // by if expr.is_Integer and by.is_Integer else None


class Least(_OfSizes, sympy.Function):  # type: ignore[misc]
    """The smaller of two sizes. sympy.Min is not used, because it simplifies for a long time."""

    nargs = 2

    @classmethod
    def eval(cls, one: Expr, other: Expr) -> Expr | None:
        """Return the value if both arguments are numbers, else None."""
        return min(one, other) if one.is_Integer and other.is_Integer else None


@lru_cache(maxsize=65536)
def div(expr: Expr, by: int) -> Expr:
    """Return ``expr`` divided by ``by``, rounded down. ``expr`` is 0 or more."""
    most = _most(expr)
    if most is not None and most < by:
        return ZERO
    whole: list[Expr] = []
    left: list[Expr] = []
    for coefficient, rest in _terms(expr):
        term = Rational(coefficient, by) * rest
        exact = coefficient % by == 0 or (rest.is_Mul and term.is_integer)
        (whole if exact else left).append(term)
    if whole and left and all(term.could_extract_minus_sign() for term in left):
        whole, left = [], [*whole, *left]  # C would round a number below 0 up
    parts = sympy.Add(*left)
    if parts.is_Number:
        return sympy.Add(*whole, sympy.floor(parts))
    # If it evaluated the floor, sympy would spend long on trying to prove that the sum of the parts
    # is less than 1, or less than 2.
    return sympy.Add(*whole, sympy.floor(parts, evaluate=False))


@lru_cache(maxsize=65536)
def mod(expr: Expr, by: int) -> Expr:
    """Return the remainder of ``expr`` divided by ``by``. ``expr`` is 0 or more."""
    if by == 1:
        return ZERO
    expr = _congruent(sympy.expand(expr), by)
    most = _most(expr)
    if most is not None and most < by:
        return expr
    common = math.gcd(by, *(int(c) for c, _ in _terms(expr)))
    return common * Remainder(expr / common, Integer(by // common))


def is_multiple(expr: Expr, by: int) -> bool:
    """Return True if ``expr`` is a multiple of ``by`` for all values of the sizes."""
    terms = _terms(_congruent(sympy.expand(expr), by))
    return all(coefficient % by == 0 for coefficient, _ in terms)


def missing(expr: Expr, by: int) -> Expr:
    """Return what ``expr``, which is 0 or more, lacks of a multiple of ``by``."""
    return ZERO if is_multiple(expr, by) else (by - 1) - mod(expr + (by - 1), by)


def _terms(expr: Expr) -> list[tuple[Expr, Expr]]:
    """Return the terms of a sum as pairs (integer coefficient, other factors)."""
    terms = [term.as_coeff_Mul() for term in sympy.Add.make_args(expr)]
    if all(coefficient.is_Integer for coefficient, _ in terms):
        return terms
    return [(ONE, expr)]


def _congruent(expr: Expr, by: int) -> Expr:
    """Return a shorter expression, 0 or more, that has the same remainder modulo ``by``."""
    terms = []
    for coefficient, rest in _terms(expr):
        while isinstance(rest, Remainder) and coefficient * rest.args[1] % by == 0:
            rest = rest.args[0]
        terms.append(coefficient % by * rest)
    return sympy.Add(*terms)


def _most(expr: Expr) -> int | None:
    """Return an upper bound of ``expr``; None if sizes known only at the call leave it open."""
    total = 0
    for coefficient, rest in _terms(expr):
        if rest == 1:
            total += int(coefficient)
        elif isinstance(rest, Remainder):
            total += max(int(coefficient), 0) * (int(rest.args[1]) - 1)
        elif coefficient >= 0:
            return None
    return total


@lru_cache(maxsize=4096)
def positive(count: Expr) -> Expr:
    """Return 1 if ``count``, which is 0 or more, is positive; else 0."""
    return sympy.Min(ONE, count)


@lru_cache(maxsize=65536)
def linear(terms: tuple[tuple[int, Expr], ...]) -> Expr:
    """Return the address of an element: the sum of ``count * stride`` over all pairs ``terms``."""
    return sympy.Add(*(count * stride for count, stride in terms))


@lru_cache(maxsize=65536)
def simplify(expr: Expr) -> Expr:
    """Return ``expr`` as a sum of products, with the factors that all terms share in front."""
    found = _shortened(expr)
    if found is None:
        found = _shortened(expanded := sympy.expand(expr))
    return sympy.factor_terms(expanded) if found is None else found


def without_differences(expr: Expr) -> Expr:
    """Return ``expr`` with remainders for differences of quotients, for texts that people read.

    For example, ``x / 16 - 4 * (x / 64)`` becomes ``(x / 16) % 4``.
    """
    terms = {rest: coefficient for coefficient, rest in _terms(sympy.expand(expr))}
    for rest, coefficient in [*terms.items()]:
        factors = sympy.Mul.make_args(rest)
        for whole in (f for f in factors if coefficient < 0 and isinstance(f, sympy.floor)):
            for other in [one for one in terms if one.has(sympy.floor)]:
                part = other / (rest / whole)
                times = part.args[0] / whole.args[0] if isinstance(part, sympy.floor) else ONE
                if rest in terms and times.is_Integer and times > 1 and coefficient % times == 0:
                    count = -coefficient / times
                    if count <= terms[other]:
                        del terms[rest]
                        terms[other] -= count
                        left = rest / whole * Remainder(part, times)
                        terms[left] = terms.get(left, ZERO) + count
    return sympy.Add(*(coefficient * rest for rest, coefficient in terms.items()))


def _shortened(expr: Expr) -> Expr | None:
    """Return the result of ``simplify`` if ``expr`` is a sum of products of names, else None.

    Most addresses are such sums.

    sympy's ``factor_terms`` gives the same result, but takes 2 to 5 ms, because it looks for common
    factors of any kind.
    """
    terms = sympy.Add.make_args(expr)
    products = [found for term in terms if (found := _product_of_names(term)) is not None]
    if len(products) < len(terms):
        return None
    if len(terms) == 1:
        return expr
    if all(coefficient < 0 for coefficient, _ in products):
        return None
    number = math.gcd(*(coefficient for coefficient, _ in products))
    names = frozenset.intersection(*(frozenset(names) for _, names in products))
    if number == 1 and not names:
        return expr
    rest = sympy.Add(*(term / sympy.Mul(number, *names) for term in terms))
    # If a number is the only other factor, sympy would multiply it into the sum: no evaluation.
    return sympy.Mul(number, *names, rest, evaluate=bool(names))


def _product_of_names(term: Expr) -> tuple[int, tuple[Expr, ...]] | None:
    """Return (coefficient, names) of a term in which each name occurs once; else None.

    A function of products counts as a name, for example ``floor(n/48)``.
    """
    coefficient, rest = term.as_coeff_Mul()
    names = () if rest == 1 else sympy.Mul.make_args(rest)
    if not coefficient.is_Integer or not all(n.is_Symbol or _of_products(n) for n in names):
        return None
    return int(coefficient), names


def _of_products(expr: Expr) -> bool:
    """Return True for a function whose arguments are products of numbers and run-time sizes."""
    return expr.is_Function and all(
        factor.is_Atom for arg in expr.args for factor in sympy.Mul.make_args(arg)
    )


def evaluate(expr: Expr, sizes: Mapping[str, int]) -> int:
    """Return the value of ``expr`` for given run-time sizes and counters."""
    constant = value(expr)
    if constant is not None:
        return constant
    return _compiled(expr)(sizes)


@lru_cache(maxsize=65536)
def _compiled(expr: Expr) -> Callable[[Mapping[str, int]], int]:
    """Return a function that computes ``expr`` from the sizes; it does not use ``eval``."""
    if expr.is_Integer:
        constant = int(expr)
        return lambda sizes: constant
    if expr.is_Symbol:
        slot, _, multiple = expr.name.partition("__by_")
        return lambda sizes: sizes[slot] // int(multiple or 1)
    if isinstance(expr, sympy.floor):
        numerator, bottom = _fraction(expr.args[0])
        top = _compiled(numerator)
        return lambda sizes: top(sizes) // bottom
    if expr.is_Add and not all(term.as_coeff_Mul()[0].is_Integer for term in expr.args):
        numerator, bottom = _fraction(expr)
        top = _compiled(numerator)
        return lambda sizes: top(sizes) // bottom
    parts = [_compiled(arg) for arg in expr.args]
    if expr.is_Add:
        return lambda sizes: sum(part(sizes) for part in parts)
    if expr.is_Mul and expr.args[0].is_Rational and not expr.args[0].is_Integer:
        ratio = expr.args[0]
        top = _compiled(expr / ratio)
        return lambda sizes: top(sizes) * int(ratio.p) // int(ratio.q)
    if expr.is_Mul:
        return lambda sizes: _product(part(sizes) for part in parts)
    if isinstance(expr, Remainder):
        return lambda sizes: parts[0](sizes) % parts[1](sizes)
    if isinstance(expr, Quotient):
        return lambda sizes: parts[0](sizes) // parts[1](sizes)
    if isinstance(expr, sympy.Min | Least):
        return lambda sizes: min(part(sizes) for part in parts)
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        return lambda sizes: parts[0](sizes) ** parts[1](sizes)
    raise PlanError("an expression of sizes that cannot be evaluated", got=str(expr))


def _fraction(expr: Expr) -> tuple[Expr, int]:
    """Return (numerator, denominator) of a sum or product with rational coefficients."""
    expanded = sympy.expand(expr)
    coefficients = (term.as_coeff_Mul()[0] for term in sympy.Add.make_args(expanded))
    denominator = math.lcm(*(int(coefficient.q) for coefficient in coefficients))
    return sympy.expand(expanded * denominator), denominator


def _product(factors: object) -> int:
    result = 1
    for factor in factors:  # type: ignore[attr-defined]
        result *= factor
    return result


@lru_cache(maxsize=65536)
def c_text(expr: Expr) -> str:
    """Return ``expr`` as a C expression of type int64_t.

    Divisions in it are exact, or divide numbers of 0 or more, which C rounds down.
    """
    quotients = {s: _original(s) for s in expr.free_symbols if "__by_" in s.name}
    return _print(expr.xreplace(quotients) if quotients else expr)[0]


def _print(expr: Expr) -> tuple[str, int]:
    """Return the C text of ``expr``, and its precedence: 3 for an atom, 2 a product, 1 a sum."""
    if expr.is_Integer:
        return str(int(expr)), 3 if expr >= 0 else 1
    if expr.is_Symbol:
        return expr.name, 3
    if expr.is_Add:
        return _print_sum(expr), 1
    if isinstance(expr, sympy.floor):
        numerator, denominator = _fraction(expr.args[0])
        return f"{_factor(numerator)} / {denominator}", 2
    if isinstance(expr, Remainder):
        return f"{_factor(expr.args[0])} % {_factor(expr.args[1])}", 2
    if isinstance(expr, Quotient):
        return f"{_factor(expr.args[0])} / {_factor(expr.args[1])}", 2
    if isinstance(expr, Least):
        one, other = (_factor(arg) for arg in expr.args)
        return f"({one} < {other} ? {one} : {other})", 3
    if isinstance(expr, sympy.Min):  # ``Min`` occurs in printed formulas only, not in generated C
        return f"min({', '.join(sorted(_print(arg)[0] for arg in expr.args))})", 3
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        return " * ".join([_factor(expr.base)] * int(expr.exp)), 2
    if expr.is_Mul:
        return _print_product(expr)
    raise PlanError("an expression of sizes that has no C text", got=str(expr))


def _factor(expr: Expr) -> str:
    text, strength = _print(expr)
    return text if strength == 3 else f"({text})"


@lru_cache(maxsize=65536)
def _order(expr: Expr) -> str:
    """Return the text by which terms and factors are sorted; a symbol's name is fast to get."""
    return expr.name if expr.is_Symbol else str(expr)


def _print_sum(expr: Expr) -> str:
    terms = sorted(expr.args, key=lambda term: (term.is_Integer, _order(term)))
    text = ""
    for term in terms:
        negative = term.could_extract_minus_sign()
        body, strength = _print(-term if negative else term)
        joint = (" - " if negative else " + ") if text else ("-" if negative else "")
        text += joint + (f"({body})" if strength == 1 else body)
    return text


def _print_product(expr: Expr) -> tuple[str, int]:
    coefficient, rest = expr.as_coeff_Mul()
    factors = [_factor(arg) for arg in sorted(sympy.Mul.make_args(rest), key=_order)]
    top = abs(int(Rational(coefficient).p))
    text = " * ".join(([str(top)] if top != 1 else []) + factors)
    if Rational(coefficient).q != 1:
        text = (f"({text})" if len(factors) + (top != 1) > 1 else text) + f" / {coefficient.q}"
    return (f"-({text})", 1) if coefficient < 0 else (text, 2)


def bounds(expr: Expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """Return the smallest and the largest value of ``expr`` for counters within ``ranges``.

    Both ends of a range are included. The result is None if it is not known: ``expr`` depends on a
    run-time size, or is no sum of products.
    """
    if expr.is_Integer:
        return int(expr), int(expr)
    if expr.is_Symbol:
        return ranges.get(expr.name)
    if not (expr.is_Add or expr.is_Mul):
        return None
    parts = [bounds(arg, ranges) for arg in expr.args]
    low, high = (0, 0) if expr.is_Add else (1, 1)
    for part in parts:
        if part is None:
            return None
        if expr.is_Add:
            low, high = low + part[0], high + part[1]
        else:
            corners = [one * other for one in (low, high) for other in part]
            low, high = min(corners), max(corners)
    return low, high
