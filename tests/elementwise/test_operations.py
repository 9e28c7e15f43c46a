"""Elementary operations on numpy, in C, and the builder that writes programs of them."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.spellings.floats import SPECIAL, everywhere, same
from support.spellings.scalar_c import compiled

from tilewright.elementwise.builder import Argument, Builder, Value, live, run
from tilewright.elementwise.operations import DTYPES, NUMPY, OPERATIONS, OPTIONAL, compute
from tilewright.errors import PlanError

LIBM = ctypes.util.find_library("m")


@np.errstate(over="ignore")
def triples(dtype: Any, count: int, seed: int) -> list[Any]:
    """Sums that cancel, that lie near the middle of two numbers, or near the ends of the range."""
    rng, info = np.random.default_rng(seed), np.finfo(dtype)
    scales = 2.0 ** rng.integers(-40, 40, (2, count))
    x, y = (rng.standard_normal((2, count)) * scales).astype(dtype)
    bits = info.nmant + 1
    places = 2.0 ** rng.choice([0, 0, 1, -bits, bits, -2 * bits, 2 * bits], count)
    z = (-x * y * places).astype(dtype) * rng.choice([1, -1, 1 + info.eps], count).astype(dtype)
    ends = 2.0 ** rng.choice([0, info.minexp // 2, info.maxexp // 2 - 2], count)
    moved = (z * (ends * ends)).astype(dtype)
    lanes = (x * ends).astype(dtype), (y * ends).astype(dtype), np.nan_to_num(moved)
    special = np.array(list(itertools.product(SPECIAL, repeat=3)), dtype).T
    return [np.concatenate(pair) for pair in zip(lanes, special, strict=True)]


@pytest.mark.skipif(LIBM is None, reason="no C library of mathematics")
@pytest.mark.parametrize(("element", "name"), [("f32", "fmaf"), ("f64", "fma")])
def test_fma_is_rounded_once(element: str, name: str) -> None:
    function = getattr(ctypes.CDLL(LIBM), name)
    kind = ctypes.c_float if element == "f32" else ctypes.c_double
    function.restype, function.argtypes = kind, [kind] * 3
    with np.errstate(all="ignore"):
        x, y, z = triples(DTYPES[element], 30000, seed=1)
        want = np.array([function(*one) for one in zip(x, y, z, strict=True)], DTYPES[element])
        twice = x * y + z
    found = compute("fma", x, y, z)
    assert same(found, want).all()
    assert (~same(twice, want)).sum() > 1000, "the sample tells one rounding from two"


def test_a_product_that_f64_rounds_is_fused_exactly() -> None:
    x = np.float32(1 + 2.0**-23)
    half = np.float32(2.0**-24)
    exact = 1 + 2.0**-22 + 2.0**-46 + 2.0**-24
    assert compute("fma", x, x, half) == np.float32(exact)
    tie = np.float32(1 + 2.0**-12), np.float32(1 + 2.0**-12), np.float32(2.0**-80)
    assert compute("fma", *tie) == np.float32(1 + 2.0**-11 + 2.0**-23)  # above the middle


def test_min_and_max_give_the_second_of_equals_and_of_what_has_no_order() -> None:
    x, y = (
        np.array(v, np.float32) for v in zip(*itertools.product(SPECIAL, repeat=2), strict=True)
    )
    for p, q, least, most in zip(x, y, compute("min", x, y), compute("max", x, y), strict=True):
        assert same(least, p if p < q else q), (p, q)  # noqa: FURB136
        assert same(most, p if p > q else q), (p, q)  # noqa: FURB136


def test_comparisons_are_lanes_of_ones_and_false_on_nan() -> None:
    x, y = np.array([1, 2, np.nan, 1], np.float32), np.array([2, 2, 1, np.nan], np.float32)
    assert compute("lt", x, y).tolist() == [-1, 0, 0, 0]
    assert compute("le", x, y).tolist() == [-1, -1, 0, 0]
    assert compute("eq", x, y).tolist() == [0, -1, 0, 0]
    assert compute("lt", x, y).dtype == np.int32
    assert compute("lt", x.astype(np.float64), y.astype(np.float64)).dtype == np.int64


def test_integers_wrap_and_shift() -> None:
    x = np.array([2**31 - 1, -1, -(2**31)], np.int32)
    assert compute("add", x, np.int32(1)).tolist() == [-(2**31), 0, -(2**31) + 1]
    assert compute("shl", x, np.int32(4)).tolist() == [-16, -16, 0]
    assert compute("shr", x, np.int32(4)).tolist() == [2**27 - 1, -1, -(2**27)]
    assert compute("ushr", x, np.int32(4)).tolist() == [2**27 - 1, 2**28 - 1, 2**27]


def test_rounding_is_half_to_even() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 8388607.5], np.float32)
    assert same(compute("round", x), np.array([0, 2, 2, -0.0, -2, 8388608], np.float32)).all()
    assert compute("to_s32", x).tolist() == [0, 2, 2, 0, -2, 8388608]


def test_every_operation_has_a_meaning() -> None:
    assert set(OPERATIONS) == set(NUMPY)


#: C's functions on numbers have no f16: only vectors add and multiply it (``test_half_sums.py``).
CASES = [
    (fn, element) for fn, op in OPERATIONS.items() for element in op.elements if element != "f16"
]


@pytest.mark.parametrize(("fn", "element"), CASES)
def test_c_computes_the_same_bits(fn: str, element: str, tmp_path: Path) -> None:
    b = Builder("f64" if element == "f64" else "f32", extra=OPTIONAL)
    rng = np.random.default_rng(2)
    if element in ("s32", "s64"):
        low, high = np.iinfo(DTYPES[element]).min, np.iinfo(DTYPES[element]).max
        lanes = rng.integers(low, high, (3, 4000), DTYPES[element], endpoint=True)
        arrays = [np.append(lane, [0, 1, -1, high, low]) for lane in lanes]
        arrays = [a.astype(DTYPES[element]) for a in arrays]
    else:
        arrays = triples(DTYPES[element], 4000, seed=3)
    if fn == "to_s32":
        arrays = [np.clip(np.nan_to_num(a), -(2.0**31), 2**31 - 128) for a in arrays]
    if fn == "scale":
        arrays = [np.where(np.isfinite(a), a, np.float32(1)) for a in arrays]
    given = [b.input(element) for _ in range(OPERATIONS[fn].arity)]
    args: list[Argument] = list(given)
    if fn in ("shl", "shr", "ushr"):
        given, args = given[:1], [given[0], 13]
    if fn == "select":
        args[0] = b("lt", given[0], given[2])
    result = b(fn, *args)
    assert isinstance(result, Value)
    known = dict(zip(given, arrays, strict=False))
    want = run(b.steps, known, b.real)[result]
    found = compiled(b, given, result, tmp_path)(*known.values())
    assert same(found, want).all()


# -- the builder --------------------------------------------------------------------------------


def steps(b: Builder) -> list[str]:
    return [step.fn for step in b.steps]


def test_equal_steps_are_made_once() -> None:
    b = Builder()
    x, y = b.input(), b.input()
    assert b("add", x, y) is b("add", x, y)
    assert b("add", x, 0.1) is b("add", x, float(np.float32(0.1)))
    assert b("add", x, 0.0) != b("mul", x, 0.0) != b("mul", x, -0.0)
    assert steps(b) == ["add", "add", "add", "mul", "mul"]


def test_literals_are_folded_in_their_type() -> None:
    b = Builder()
    assert b("add", b("add", 1e8, 1.0), -1e8) == 0
    assert b("div", 1.0, 3.0) == float(np.float32(1) / np.float32(3))
    assert b("mul", 1e30, 1e30) == math.inf
    assert b("add", 2**31 - 1, 1) == -(2**31)
    assert Builder("f64")("add", 1e8, 1.0) == 1e8 + 1
    assert Builder(whole="s64")("mul", 2**31 - 1, 3) == 3 * (2**31 - 1)
    assert not b.steps


def test_identities_hold_bit_for_bit() -> None:
    x = everywhere(40)
    written = {
        "mul 1": lambda b, x: b("mul", x, 1.0),
        "1 mul": lambda b, x: b("mul", 1.0, x),
        "mul -1": lambda b, x: b("mul", x, -1.0),
        "div": lambda b, x: b("div", x, 8.0),
        "div small": lambda b, x: b("div", x, -(2.0**-126)),
        "add -0": lambda b, x: b("add", -0.0, x),
        "sub 0": lambda b, x: b("sub", x, 0.0),
        "-0 sub": lambda b, x: b("sub", -0.0, x),
        "add neg": lambda b, x: b("add", 3.0, b("neg", x)),
        "sub neg": lambda b, x: b("sub", 3.0, b("neg", x)),
        "neg neg": lambda b, x: b("neg", b("neg", x)),
        "abs neg": lambda b, x: b("abs", b("neg", x)),
        "abs abs": lambda b, x: b("abs", b("abs", x)),
        "fma 1": lambda b, x: b("fma", x, 1.0, 3.0),
        "fma -1": lambda b, x: b("fma", x, -1.0, 3.0),
        "max": lambda b, x: b("max", x, x),
    }
    for name, write in written.items():
        b = Builder()
        value = b.input()
        result = write(b, value)
        found = run(b.steps, {value: x})[result]
        plain = _as_written(write, x)
        assert same(found, plain).all(), name
        assert len(b.steps) <= 2, name


def _as_written(write: Any, x: Any) -> Any:
    """The same on numpy, nothing rewritten."""

    def apply(fn: str, *args: Any) -> Any:
        return compute(fn, *(np.float32(a) if isinstance(a, float) else a for a in args))

    return write(apply, x)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        ("add", (0.0,)), ("sub", (-0.0,)), ("mul", (0.0,)), ("div", (3.0,)), ("div", (2.0**-127,)),
        ("fma", (2.0, -0.0)),
    ],
)  # fmt: skip
def test_what_is_no_identity_stays(fn: str, args: tuple[float, ...]) -> None:
    b = Builder()
    b(fn, b.input(), *args)
    assert steps(b) == [fn]


@pytest.mark.parametrize(
    ("write", "kept"),
    [
        (lambda b, x: b("min", 0.0, b("neg", b("abs", x))), ["abs", "neg"]),
        (lambda b, x: b("max", 0.0, b("mul", b("mul", x, x), 3.0)), ["mul", "mul"]),
        (lambda b, x: b("max", -3.0, b("sub", b("max", -1.0, b("min", 9.0, x)), 2.0)),
         ["min", "max", "sub"]),
        (lambda b, x: b("min", 2.0, b("select", b("lt", x, 0.0), 1.0, b("min", 2.0, x))),
         ["lt", "min", "select"]),
        (lambda b, x: b("zero_below", -1.0, b("abs", x), b("scale", x, 3.0)), ["scale"]),
        # These limits change a result: of a NaN, of a number beyond them, and of -3.
        (lambda b, x: b("min", 5.0, b("min", x, 7.0)), ["min", "min"]),
        (lambda b, x: b("max", 0.0, b("add", b("abs", x), -1.0)), ["abs", "add", "max"]),
        (lambda b, x: b("min", 3.0, b("mul", b("max", -2.0, x), -2.0)), ["max", "mul", "min"]),
    ],
)  # fmt: skip
def test_limits_that_no_value_exceeds_are_left_out(write: Any, kept: list[str]) -> None:
    b, x = Builder(extra=OPTIONAL), everywhere(40)
    value = b.input()
    result = write(b, value)
    taken = live(b.steps, [result])
    assert [step.fn for step in taken] == kept
    assert same(run(taken, {value: x})[result], _as_written(write, x)).all()


def test_dead_steps_are_left_out() -> None:
    b = Builder()
    x = b.input()
    used = b("mul", x, 2.0)
    b("add", used, x)
    result = b("sub", used, 1.0)
    assert [step.fn for step in live(b.steps, [result])] == ["mul", "sub"]


@pytest.mark.parametrize(
    ("fn", "types"),
    [
        ("round", ("f64",)), ("shl", ("f32", "s32")), ("add", ("f32", "s32")), ("add", ("f32",)),
        ("select", ("f32", "f32", "f32")), ("gt", ("f32", "f32")), ("le", ("s32", "s32")),
    ],
)  # fmt: skip
def test_operations_that_lanes_do_not_have_are_refused(fn: str, types: tuple[str, ...]) -> None:
    b = Builder()
    with pytest.raises(PlanError, match=fn):
        b(fn, *(b.input(element) for element in types))
