"""The algebra of sizes: quotients and remainders, their values and their C text."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy import Expr, Integer

from tilewright.errors import PlanError
from tilewright.spec.sizes import dim
from tilewright.symbolic import (
    ONE,
    ZERO,
    Remainder,
    c_text,
    div,
    evaluate,
    mod,
    positive,
    simplify,
    size_expr,
    slots,
    symbol,
    value,
    without_differences,
)

SIZES = {"m": dim("m"), "n": dim("n", 6), "k": dim("k", 16)}
OPERATIONS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def in_c(text: str, sizes: Mapping[str, int]) -> int:
    """What C makes of an expression of numbers that are 0 or more."""

    def at(node: ast.AST) -> int:
        match node:
            case ast.Expression(body):
                return at(body)
            case ast.Constant(number):
                assert isinstance(number, int)
                return number
            case ast.Name(name):
                return sizes[name]
            case ast.BinOp(left, how, right):
                assert at(left) >= 0 or not isinstance(how, (ast.Div, ast.Mod)), text
                return OPERATIONS[type(how)](at(left), at(right))
            case ast.UnaryOp(ast.USub(), operand):
                return -at(operand)
        raise AssertionError(ast.dump(node))

    return at(ast.parse(text, mode="eval"))


#: An expression as the compiler makes them, and its value for given sizes.
Made = tuple[Expr, Callable[[Mapping[str, int]], int]]


def sized(slot: str) -> Made:
    return size_expr(slot, SIZES[slot]), lambda sizes: sizes[slot]


def grown(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
    by = st.integers(1, 20)
    return st.one_of(
        st.builds(lambda e, n: (div(e[0], n), lambda s: e[1](s) // n), inner, by),
        st.builds(lambda e, n: (mod(e[0], n), lambda s: e[1](s) % n), inner, by),
        st.builds(lambda e, n: (n * e[0], lambda s: n * e[1](s)), inner, by),
        st.builds(lambda e, n: (e[0] + n, lambda s: e[1](s) + n), inner, by),
        st.builds(lambda e, f: (e[0] + f[0], lambda s: e[1](s) + f[1](s)), inner, inner),
        st.builds(lambda e, f: (e[0] * f[0], lambda s: e[1](s) * f[1](s)), inner, inner),
        st.builds(lambda e, n: (n * div(e[0], n) + mod(e[0], n), e[1]), inner, by),
    )


made = st.recursive(st.sampled_from("mnk").map(sized), grown, max_leaves=6)
sizes = st.builds(
    lambda m, n, k: {"m": m, "n": 6 * n, "k": 16 * k},
    st.integers(0, 200),
    st.integers(0, 30),
    st.integers(0, 12),
)


@given(made, sizes)
def test_values_and_c_text_are_those_of_integers(expr: Made, at: dict[str, int]) -> None:
    formula, expected = expr
    assert evaluate(formula, at) == expected(at)
    assert in_c(c_text(formula), at) == expected(at)


#: Sums of products, as addresses are; a name may stand in a product twice.
NAMES = [symbol(name) for name in ("m", "n", "mt", "kt", "n__by_4")]
NAMES += [mod(symbol("n"), 48), div(symbol("n"), 48), div(symbol("m") + 15, 16)]
TERMS = st.tuples(
    st.sampled_from([1, 2, 3, 8, 48, -4]), st.lists(st.sampled_from(NAMES), max_size=3)
)


@given(st.lists(TERMS, max_size=5), st.sampled_from([ONE, *NAMES]))
def test_simplifying_is_sympys(terms: list[tuple[int, list[Expr]]], factor: Expr) -> None:
    expr = factor * sum((number * sympy.Mul(*names) for number, names in terms), ZERO)
    expected = sympy.factor_terms(sympy.expand(expr))
    assert sympy.srepr(simplify(expr)) == sympy.srepr(expected)


@given(made, sizes)
def test_simplifying_keeps_the_value(expr: Made, at: dict[str, int]) -> None:
    assert evaluate(simplify(expr[0]), at) == expr[1](at)
    assert evaluate(sympy.expand(expr[0]), at) == expr[1](at)
    assert evaluate(positive(expr[0]), at) == (expr[1](at) > 0)


@pytest.mark.parametrize(("counts", "text"), [
    ((-8, 5), "2 * ((q / 16) % 4) + 3 * (q / 16) + 13"),
    ((-4, 1), "(q / 16) % 4 + 13"),
    ((-8, 1), "-8 * (q / 64) + q / 16 + 13"),
])  # fmt: skip
def test_differences_of_quotients_are_shown_as_remainders(
    counts: tuple[int, int], text: str
) -> None:
    q = symbol("q")
    expr = counts[0] * div(q, 64) + counts[1] * div(q, 16) + 13
    found = without_differences(expr)
    assert c_text(simplify(found)) == text
    for size in (0, 15, 16, 63, 64, 250):
        assert evaluate(found, {"q": size}) == evaluate(expr, {"q": size})


@given(made, sizes)
def test_a_text_without_differences_keeps_the_value(expr: Made, at: dict[str, int]) -> None:
    assert evaluate(without_differences(expr[0]), at) == expr[1](at)


def test_a_remainder_times_a_number() -> None:
    """sympy.Mod takes 3 * (q % 8) % 16 for 3 * (q % 8)**2 % 16."""
    q = symbol("q")
    assert evaluate(mod(3 * mod(q, 8), 16), {"q": 6}) == 3 * 6 % 16


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (mod(size_expr("n", dim("n", 16)), 8), "0"),
        (div(size_expr("n", dim("n", 16)), 16), "n / 16"),
        (mod(mod(symbol("m"), 12), 4), "m % 4"),
        (mod(mod(symbol("m"), 4), 12), "m % 4"),
        (div(mod(symbol("m"), 8), 8), "0"),
        (div(mod(symbol("m"), 48) - 32, 16), "0"),
        (mod(6 * symbol("m"), 4), "2 * (m % 2)"),
        (mod(symbol("m") + 8, 8), "m % 8"),
        (mod(Integer(13), 8), "5"),
    ],
)
def test_what_is_known_is_not_computed(expr: Expr, text: str) -> None:
    assert c_text(expr) == text


def test_slots_are_the_sizes_that_matter() -> None:
    assert slots(size_expr("n", dim("n", 16)) + symbol("lda")) == {"n", "lda"}
    assert value(symbol("m") - symbol("m")) == 0 and value(symbol("m")) is None


def test_a_sum_with_fractions_is_exact() -> None:
    i = symbol("i")
    total = sympy.summation(i, (i, 0, symbol("m") - 1))
    assert [evaluate(total, {"m": m}) for m in range(6)] == [0, 0, 1, 3, 6, 10]


def test_what_has_no_value_and_no_text() -> None:
    for use in (lambda e: evaluate(e, {"m": 1}), c_text):
        with pytest.raises(PlanError, match="an expression of sizes"):
            use(sympy.sin(symbol("m")))


def test_remainders_of_numbers_are_numbers() -> None:
    assert Remainder(Integer(7), Integer(4)) == 3
    assert mod(symbol("m"), 1) == ZERO
