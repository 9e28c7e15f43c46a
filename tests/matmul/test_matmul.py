"""``tw.matmul`` against numpy: sizes, orders, strides, types, stacks, options, bad input."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.processes import python

import tilewright as tw
from tilewright.errors import ArgumentError, ArgumentTypeError, ArgumentValueError

Array = np.ndarray[Any, Any]
SIZES = [(5, 3, 7), (1, 9, 4), (9, 1, 4), (1, 1, 1), (0, 3, 2), (3, 0, 2), (3, 2, 0), (33, 50, 65)]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(12)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = "f4") -> Array:
    """Small whole numbers, whose products every type holds exactly."""
    least = 0 if np.dtype(dtype).kind == "u" else -4
    return rng.integers(least, 5, shape).astype(dtype)


def exact(a: Array, b: Array) -> Array:
    result: Array = a.astype(np.float64) @ b.astype(np.float64)
    return result


@pytest.mark.twice
@pytest.mark.parametrize("orders", list(itertools.product("CF", repeat=3)), ids="".join)
def test_every_order_and_size(orders: tuple[str, str, str], rng: np.random.Generator) -> None:
    for m, n, k in SIZES:
        a, b = whole(rng, (m, k)), whole(rng, (k, n))
        a, b = np.array(a, order=orders[0]), np.array(b, order=orders[1])  # type: ignore[call-overload]
        out = np.full((m, n), np.nan, "f4", order=orders[2])  # type: ignore[call-overload]
        for _ in range(2):  # the second time C finds the kernel
            out[...] = np.nan
            assert tw.matmul(a, b, out) is out
            np.testing.assert_array_equal(out, exact(a, b))


@pytest.mark.twice
@pytest.mark.parametrize(
    ("a", "b", "made"),
    [
        ("f8", "f8", "f8"), ("f2", "f2", "f4"), ("f4", "f2", "f4"), ("u1", "i1", "i4"),
        ("i1", "i1", "i4"), ("i2", "u2", "i4"), (ml_dtypes.bfloat16, ml_dtypes.bfloat16, "f4"),
        (ml_dtypes.float8_e4m3fn, "f4", "f4"),
    ],
)  # fmt: skip
def test_types_and_what_is_made_of_them(
    a: Any, b: Any, made: str, rng: np.random.Generator
) -> None:
    x, y = whole(rng, (19, 37), a), whole(rng, (37, 21), b)
    result = tw.matmul(x, y)
    assert result.dtype == np.dtype(made)
    np.testing.assert_array_equal(result, exact(x, y))


@pytest.mark.twice
def test_another_type_is_written_where_it_is_given(rng: np.random.Generator) -> None:
    a, b = whole(rng, (9, 5), "f2"), whole(rng, (5, 7), "f2")
    for dtype in ("f2", "i4", "i1"):
        out = np.zeros((9, 7), dtype)
        tw.matmul(a, b, out)
        np.testing.assert_array_equal(out, np.clip(exact(a, b), -128, 127) if dtype == "i1"
                                      else exact(a, b))  # fmt: skip


@pytest.mark.twice
def test_any_strides(rng: np.random.Generator) -> None:
    x, y, z = whole(rng, (40, 60)), whole(rng, (60, 44)), np.zeros((40, 44), "f4")
    for a, b in [
        (x[::2, ::3], y[::3, ::2]), (x[::-1], y[:, ::-1]), (x[:, 5:9], y[5:9]),
        (x[3:4, ::2], y[::2, 7:8]), (np.broadcast_to(x[0], (6, 60)), y),
    ]:  # fmt: skip
        np.testing.assert_array_equal(tw.matmul(a, b), exact(a, b))
        out = z[: 2 * a.shape[0] : 2, ::-1][: a.shape[0], : b.shape[1]]
        if out.shape == (a.shape[0], b.shape[1]):
            before = z.copy()
            tw.matmul(a, b, out)
            np.testing.assert_array_equal(out, exact(a, b))
            out[...] = before[: 2 * a.shape[0] : 2, ::-1][: a.shape[0], : b.shape[1]]
            np.testing.assert_array_equal(z, before)  # nothing else was written


@pytest.mark.twice
def test_an_operand_that_no_kernel_reads_is_copied_in_parts(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr("tilewright.runtime.matmul.product.COPIED", 400)
    x, y = whole(rng, (30, 50)), whole(rng, (50, 44))
    out = np.zeros((30, 88), "f4")[::2, ::4]
    tw.matmul(x[::2, ::2], y[::2, ::2], out)
    np.testing.assert_array_equal(out, exact(x[::2, ::2], y[::2, ::2]))


@pytest.mark.twice
@pytest.mark.parametrize("options", [{}, {"alpha": 2.0, "beta": 3.0}], ids=["plain", "scaled"])
def test_addresses_that_no_element_begins_at(
    options: dict[str, float], rng: np.random.Generator
) -> None:
    """The second time C computes them, in copies; nothing beside ``out`` is written."""

    def off(shape: tuple[int, ...]) -> Array:
        bytes_ = np.zeros(4 * shape[0] * shape[1] + 2, "u1")
        return bytes_[1:-1].view("f4").reshape(shape)

    x, y = whole(rng, (9, 5)), whole(rng, (5, 7))
    a, b, out = off((9, 5)), off((5, 7)), off((7, 9)).T
    a[...], b[...] = x, y
    assert not a.flags.aligned
    expected = options.get("alpha", 1) * exact(x, y) + options.get("beta", 0)
    for arrays in ((a, b, out), (x, b, out), (a, y, np.ones((9, 7), "f4")), (a, b, out)):
        for _ in range(2):
            arrays[2][...] = 1
            assert tw.matmul(*arrays, **options) is arrays[2]  # type: ignore[call-overload]
            np.testing.assert_array_equal(arrays[2], expected)
    square = off((6, 6))
    with pytest.raises(ArgumentValueError, match="shares memory with a"):
        tw.matmul(square, np.zeros((6, 6), "f4"), square)


@pytest.mark.twice
@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 1, 5, 6), (3, 6, 2)), ((5, 6), (3, 6, 2)), ((3, 5, 6), (6, 2)), ((2, 3, 5, 6), (6,)),
        ((6,), (3, 6, 2)), ((6,), (6,)), ((5, 6), (6,)), ((0, 5, 6), (6, 2)),
        ((1, 5, 6), (7, 6, 2)), ((7, 0, 6), (7, 6, 2)), ((7, 5, 0), (7, 0, 2)),
    ],
)  # fmt: skip
def test_stacks_are_broadcast_as_in_numpy(shapes: Any, rng: np.random.Generator) -> None:
    a, b = (whole(rng, shape) for shape in shapes)
    expected = np.matmul(a.astype("f8"), b.astype("f8"))
    for _ in range(2):
        result = tw.matmul(a, b)
        assert result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)
    out = np.full(expected.shape, np.nan, "f4")
    tw.matmul(a, b, out)
    np.testing.assert_array_equal(out, expected)
    swapped = np.full(expected.shape[::-1], np.nan, "f4").T
    tw.matmul(a, b, swapped)
    np.testing.assert_array_equal(swapped, expected)


@pytest.mark.twice
def test_alpha_and_beta(rng: np.random.Generator) -> None:
    a, b = whole(rng, (9, 5)), whole(rng, (5, 7))
    for dtype in ("f4", "f2"):
        c = whole(rng, (9, 7), dtype)
        expected = 2 * exact(a, b) + 3 * c
        assert tw.matmul(a, b, c, alpha=2, beta=3) is c
        np.testing.assert_array_equal(c, expected)
    c = np.full((9, 7), np.nan, "f4")
    tw.matmul(a, b, c, alpha=0.5, beta=0)  # which does not read c
    np.testing.assert_array_equal(c, exact(a, b) / 2)
    with pytest.raises(ArgumentTypeError, match="beta is not 0, so out is read"):
        tw.matmul(a, b, beta=1)


@pytest.mark.twice
def test_an_epilogue_and_its_operands(rng: np.random.Generator) -> None:
    bias = tw.Operand("bias", "f32", per="column")
    a, b, v = whole(rng, (9, 5)), whole(rng, (5, 7)), whole(rng, (7,))
    expected = np.maximum(exact(a, b) + v, 0)
    found = tw.matmul(a, b, epilogue=tw.relu(tw.acc + bias), bias=v)
    np.testing.assert_array_equal(found, expected)
    stacked = tw.matmul(np.stack([a, a]), b, epilogue=tw.relu(tw.acc + bias), bias=v)
    np.testing.assert_array_equal(stacked, np.stack([expected] * 2))


@pytest.mark.twice
def test_rows_are_the_same_to_the_bit_whatever_else_is_computed(rng: np.random.Generator) -> None:
    a = rng.standard_normal((70, 300)).astype("f4")
    b = rng.standard_normal((300, 45)).astype("f4")
    whole_ = tw.matmul(a, b, deterministic=True)
    for rows in (1, 2, 7, 33):
        for threads in (None, 1, 2):
            part = tw.matmul(a[3 : 3 + rows], b, deterministic=True, threads=threads)
            np.testing.assert_array_equal(part, whole_[3 : 3 + rows])
    stack = tw.matmul(np.stack([a, a]), b, deterministic=True)
    np.testing.assert_array_equal(stack[1], whole_)


@pytest.mark.twice
def test_threads(rng: np.random.Generator) -> None:
    a, b = whole(rng, (250, 200)), whole(rng, (200, 240))
    for threads in (None, 1, 2, 3):
        np.testing.assert_array_equal(tw.matmul(a, b, threads=threads), exact(a, b))


@pytest.mark.twice
def test_another_target_is_emulated(rng: np.random.Generator) -> None:
    a, b = whole(rng, (9, 5)), whole(rng, (5, 7))
    np.testing.assert_array_equal(tw.matmul(a, b, target="scalar"), exact(a, b))


def test_what_does_not_fit_is_said_as_numpy_says_it() -> None:
    a, b = np.zeros((3, 4), "f4"), np.zeros((5, 6), "f4")
    with pytest.raises(ArgumentValueError, match=r"(?s)a has another number.*4 is not 5"):
        tw.matmul(a, b)
    with pytest.raises(ArgumentValueError, match="could not be broadcast"):
        tw.matmul(np.zeros((2, 3, 4), "f4"), np.zeros((3, 4, 5), "f4"))
    with pytest.raises(ArgumentValueError, match="not numbers"):
        tw.matmul(np.array(2, "f4"), a)
    with pytest.raises(ArgumentValueError, match="wrong shape"):
        tw.matmul(a, a.T, np.zeros((3, 4), "f4"))
    with pytest.raises(ArgumentTypeError, match=r"(?s)a must be a numpy array.*asarray"):
        tw.matmul([[1.0]], a)
    with pytest.raises(ArgumentTypeError, match=r"(?s)MaskedArray.*filled"):
        tw.matmul(a, np.ma.masked_array(a.T))
    with pytest.raises(ArgumentTypeError, match="a has a type"):
        tw.matmul(a.astype("i4"), a.T)
    with pytest.raises(ArgumentTypeError, match=r"(?s)integers by float64.*a of uint16.*float64"):
        tw.matmul(a.astype("u2"), a.T.astype("f8"))
    with pytest.raises(ArgumentTypeError, match="a has a type"):
        tw.matmul(a.astype(">f4"), a.T)


def test_out_is_refused_before_anything_is_written(rng: np.random.Generator) -> None:
    x = whole(rng, (8, 8))
    before = x.copy()
    with pytest.raises(ArgumentValueError, match="out shares memory with a"):
        tw.matmul(x, whole(rng, (8, 8)), x)
    with pytest.raises(ArgumentValueError, match="out shares memory with b"):
        tw.matmul(whole(rng, (8, 8)), x, x.T)
    with pytest.raises(ArgumentValueError, match="elements of out share memory"):
        tw.matmul(x, x, np.lib.stride_tricks.as_strided(x.copy(), (8, 8), (4, 4)))
    np.testing.assert_array_equal(x, before)
    frozen = np.zeros((8, 8), "f4")
    frozen.flags.writeable = False
    with pytest.raises(ArgumentValueError, match="read-only"):
        tw.matmul(x, x, frozen)
    halves = whole(rng, (8, 16))
    tw.matmul(halves[:, :8], halves[:, :8].copy(), halves[:, 8:])  # apart, though interleaved
    np.testing.assert_array_equal(halves[:, 8:], exact(halves[:, :8], halves[:, :8]))


@pytest.mark.twice
@pytest.mark.parametrize(
    ("a", "b"),
    [("f4", "f4"), ("u1", "i1"), (ml_dtypes.bfloat16, ml_dtypes.bfloat16), ("f4", "f2")],
)
def test_a_packed_b_serves_any_number_of_rows(a: Any, b: Any, rng: np.random.Generator) -> None:
    y = whole(rng, (37, 21), b)
    packed = tw.pack(y, a=None if a == b else np.dtype(a))
    assert packed.shape == (37, 21)
    for shape in ((1, 37), (19, 37), (3, 5, 37), (37,), (0, 37), (200, 37)):
        x = whole(rng, shape, a)
        expected = np.matmul(x.astype("f8"), y.astype("f8"))
        np.testing.assert_array_equal(tw.matmul(x, packed), expected)
    x = whole(rng, (40, 74), a)[::2, ::2]
    out = np.zeros((40, 21), "f4").astype(tw.matmul(x, packed).dtype)[::2]
    tw.matmul(x, packed, out)
    np.testing.assert_array_equal(out, exact(x, y))


@pytest.mark.twice
@pytest.mark.parametrize("packed", [False, True])
def test_alpha_and_beta_with_an_epilogue(rng: np.random.Generator, packed: bool) -> None:
    x, y, shift = whole(rng, (9, 5)), whole(rng, (5, 7)), whole(rng, (7,))
    epilogue = tw.relu(tw.acc + tw.Operand("bias", "f32", per="column"))
    b = tw.pack(y) if packed else y
    for alpha, beta in ((2, 0), (1, 3), (2, 3)):
        c = whole(rng, (9, 7)) if beta else np.full((9, 7), np.nan, "f4")
        expected = alpha * exact(x, y) + (beta * c if beta else 0) + shift
        found = tw.matmul(x, b, c, alpha=alpha, beta=beta, epilogue=epilogue, bias=shift)
        assert found is c
        np.testing.assert_array_equal(c, np.maximum(expected, 0))
    found = tw.matmul(x, b, alpha=2, epilogue=epilogue, bias=shift)  # into a new array
    np.testing.assert_array_equal(found, np.maximum(2 * exact(x, y) + shift, 0))


@pytest.mark.twice
def test_alpha_where_the_result_has_another_type(rng: np.random.Generator) -> None:
    x, y = whole(rng, (3, 9, 5), "i1"), whole(rng, (5, 7), "i1")
    out = np.zeros((3, 9, 7), "f4")
    tw.matmul(x, y, out, alpha=2)
    np.testing.assert_array_equal(out, 2 * exact(x, y))
    half = np.zeros((3, 9, 7), "f2")
    tw.matmul(x.astype("f4"), y.astype("f4"), half, alpha=0.5, epilogue=tw.acc + 1)
    np.testing.assert_array_equal(half, exact(x, y) / 2 + 1)


@pytest.mark.twice
def test_a_packed_b_with_options(rng: np.random.Generator) -> None:
    x, y, c = whole(rng, (9, 8)), whole(rng, (8, 7)), whole(rng, (9, 7))
    packed, expected = tw.pack(y), 2 * exact(x, y) + 3 * c
    np.testing.assert_array_equal(tw.matmul(x, packed, c, alpha=2, beta=3), expected)
    found = tw.matmul(x, packed, epilogue=tw.relu(tw.acc), threads=2)
    np.testing.assert_array_equal(found, np.maximum(exact(x, y), 0))
    rows = tw.matmul(x, packed, deterministic=True)
    np.testing.assert_array_equal(tw.matmul(x[4:5], packed, deterministic=True), rows[4:5])


def test_what_cannot_be_packed_or_multiplied_with_it_is_said(rng: np.random.Generator) -> None:
    y = whole(rng, (8, 7))
    with pytest.raises(ArgumentValueError, match=r"tw\.pack packs one matrix"):
        tw.pack(y[0])
    with pytest.raises(ArgumentTypeError, match="b must be a numpy array"):
        tw.pack([[1.0]])
    with pytest.raises(ArgumentTypeError, match="integers by float64"):
        tw.pack(y.astype("f8"), a="s8")
    packed = tw.pack(y)
    with pytest.raises(ArgumentTypeError, match=r"(?s)packed for another type.*a='f16'"):
        tw.matmul(whole(rng, (9, 8), "f2"), packed)
    with pytest.raises(ArgumentValueError, match="a has another number of columns"):
        tw.matmul(y, packed)
    with pytest.raises(ArgumentValueError, match="packed for another target"):
        tw.matmul(whole(rng, (9, 8)), packed, target="scalar")


@pytest.mark.twice
def test_operands_of_an_epilogue_are_not_cut(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr("tilewright.runtime.matmul.product.COPIED", 100)
    x, y, v = whole(rng, (30, 50)), whole(rng, (50, 44)), whole(rng, (15,))
    scale = tw.Operand("scale", "f32", per="row")
    found = tw.matmul(x[::2, ::2], y[::2, ::2], epilogue=tw.acc * scale, scale=v)
    np.testing.assert_array_equal(found, exact(x[::2, ::2], y[::2, ::2]) * v[:, None])


def test_the_first_call_of_a_process_imports_no_slow_module() -> None:
    code = (
        "import sys, numpy as np, tilewright as tw\n"
        "a = np.ones((8, 8), np.float32)\n"
        "multiply, before = tw.matmul, set(sys.modules)\n"
        "multiply(a, a)\n"
        "print(*(set(sys.modules) - before))"
    )
    python(code)  # which may compile
    seen = set(python(code).split())
    assert not {"numpy.ma", "torch", "sympy", "tilewright.runtime.call.argument_checks"} & seen


@pytest.mark.parametrize("how", [None, "bf16", tw.Quantize("f32"), tw.Quantize("f16", zero="s8")])
def test_a_quantized_b_serves_every_a(how: Any) -> None:
    """Stacks, vectors, orders and strides; sums of integers are within what rounding A costs."""
    rng = np.random.default_rng(7)
    form = tw.Quantized("u4", zero=8, block=32)
    b = tw.quantize(rng.standard_normal((70, 33), np.float32), form)
    packed = tw.pack(b, a=how)
    type_ = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[packed.a]
    a = rng.standard_normal((3, 5, 70)).astype(type_)
    bound = 0.02 if isinstance(how, tw.Quantize) else 1e-5
    for given in (a, a[0], a[0, 0], np.asfortranarray(a[1]), a[:, ::2], a[0][:0]):
        right = given.astype(np.float64) @ b.dequantize()
        got = tw.matmul(given, packed)
        assert got.shape == right.shape and got.dtype == np.float32
        assert np.abs(got - right).max(initial=0) <= bound * np.abs(right).max(initial=1)
    with pytest.raises(ArgumentError, match="for another type of a"):
        tw.matmul(a.astype(np.float64), packed)


def test_what_quantized_matrices_matmul_refuses() -> None:
    b = tw.quantize(np.ones((32, 4), np.float32), tw.Quantized("u4", block=32))
    a = np.ones((2, 32), np.float32)
    for make, said in (
        (lambda: tw.pack(b, a="s8"), "an A of floating point"),
        (lambda: tw.matmul(a, b), "or tw.pack, which takes it"),
    ):
        with pytest.raises(ArgumentError, match=said):
            make()
