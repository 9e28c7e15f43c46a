"""Numbers in an epilogue of a product: one kernel serves all of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError
from tilewright.runtime.call import dispatch
from tilewright.runtime.matmul import constant, families, product
from tilewright.runtime.matmul.numbers import MOST, lifted, sums_of

Array = np.ndarray[Any, Any]
BIAS = tw.Operand("bias", per="column")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The specs of the kernels that calls asked for and that did not exist in this process."""
    specs: list[Any] = []

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def compile(spec: Any, *rest: Any) -> Any:
            specs.append(spec)
            return original(spec, *rest)

        return compile

    for module in (families, constant):
        monkeypatch.setattr(module, "compile", counted(module.compile))
    families.kernel_of.cache_clear()
    constant._kernel.cache_clear()
    return specs


def operands(shape: tuple[int, ...] = (9, 5), dtype: Any = "f4") -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, shape), rng.integers(-4, 5, (shape[-1], 7))
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("packed", [False, True])
def test_new_values_need_no_new_kernel(dtype: str, packed: bool, compiled: list[Any]) -> None:
    a, b = operands(dtype=dtype)
    exact, given = a.astype("f8") @ b.astype("f8"), tw.pack(b) if packed else b
    compiled.clear()
    for factor, added in ((0.5, 1), (0.75, 0), (1, -2.5), (0, 3), (-0.125, 1e6)):
        found = tw.matmul(a, given, epilogue=tw.acc * factor + added)
        np.testing.assert_array_equal(found, exact * factor + added)
        assert len(compiled) == 1


def test_a_number_is_rounded_as_a_constant_is() -> None:
    a, b = operands()
    for factor in (0.1, 1 / 3, 1e-42, float("inf"), -0.0, 3.4028234663852886e38):
        kernel = tw.compile(tw.Gemm(9, 7, 5, epilogue=tw.acc * factor + 0.3))
        found = tw.matmul(a, b, epilogue=tw.acc * factor + 0.3, deterministic=True)
        np.testing.assert_array_equal(found, kernel(a, b))
        assert (np.signbit(found) == np.signbit(kernel(a, b)))[~np.isnan(found)].all()


def test_new_values_are_decided_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands()
    bias = np.arange(7, dtype="f4")
    tw.matmul(a, b, epilogue=tw.relu((tw.acc + BIAS) / 2 - 1), bias=bias)
    if dispatch.mode() != "python":
        monkeypatch.setattr(product, "_product", None)
    exact = a.astype("f8") @ b.astype("f8") + bias
    for factor in (0.5, 4, 8):
        found = tw.matmul(a, b, epilogue=tw.relu((tw.acc + BIAS) / factor - 3), bias=bias)
        np.testing.assert_array_equal(found, np.maximum(exact / factor - 3, 0))


def test_integers_that_are_added_stay_exact(compiled: list[Any]) -> None:
    """Sums of integers stay integers where whole numbers are added, and nowhere else."""
    a, b = operands(dtype="i1")
    exact = a.astype("i8") @ b.astype("i8")
    out = np.empty((9, 7), "i4")
    for added in (3, 1 << 30, 1000 - (1 << 31), 16777217):
        found = tw.matmul(a, b, out, epilogue=tw.acc + added)
        np.testing.assert_array_equal(found, exact + added)
    assert len(compiled) == 1
    wide = np.empty((9, 7), "f4")
    for half in (0.5, 2.0**31, -1.25):
        found = tw.matmul(a, b, wide, epilogue=tw.acc + half)
        np.testing.assert_array_equal(found, (exact + np.float32(half)).astype("f4"))
    assert len(compiled) == 2


def test_equal_numbers_are_two(compiled: list[Any]) -> None:
    """The kernel does not depend on which of the numbers happen to be equal."""
    a, b = operands()
    exact = a.astype("f8") @ b.astype("f8")
    for x, y in ((2, 3), (2, 2), (1, 0)):
        found = tw.matmul(a, b, epilogue=tw.where(tw.acc > x, tw.acc * y, y))
        np.testing.assert_array_equal(found, np.where(exact > x, exact * y, y))
    assert len(compiled) == 1


def test_parameters_of_functions_are_part_of_the_kernel(compiled: list[Any]) -> None:
    a, b = operands()
    exact = a.astype("f8") @ b.astype("f8")
    for high in (3, 4):
        found = tw.matmul(a, b, epilogue=tw.clip(tw.acc, 0, high))
        np.testing.assert_array_equal(found, exact.clip(0, high))
    assert len(compiled) == 2
    assert lifted(tw.acc**2, "f32").numbers == {}


def test_too_many_numbers_stay_constants() -> None:
    expression, exact, (a, b) = tw.acc + 0.5, 0.5, operands()
    for i in range(MOST):
        assert len(lifted(expression, "f32").numbers) == i + 1
        expression, exact = expression + i, exact + i
    assert lifted(expression, "f32") == (expression, {})
    np.testing.assert_array_equal(tw.matmul(a, b, epilogue=expression), a @ b + np.float32(exact))


def test_a_number_beyond_the_type_is_refused_as_before() -> None:
    a, b = operands()
    for number in (1e300, -3.5e38):
        with pytest.raises(SpecError):
            tw.matmul(a, b, epilogue=tw.acc * number)
    exact = a.astype("f8") @ b.astype("f8")
    wide = tw.matmul(a.astype("f8"), b.astype("f8"), epilogue=tw.acc * 1e300)
    np.testing.assert_array_equal(wide, exact * 1e300)


def test_names_of_numbers_are_nobodys() -> None:
    a, b = operands()
    mine = tw.Operand("number_0", per="column")
    given = np.arange(7, dtype="f4")
    found = tw.matmul(a, b, epilogue=tw.acc * 2 + mine, number_0=given)
    np.testing.assert_array_equal(found, 2 * (a @ b) + given)
    with pytest.raises(ArgumentError, match="number_0"):
        tw.matmul(a, b, epilogue=tw.acc * 2, number_0=given)


def test_one_expression_serves_several_types() -> None:
    """Numbers have the type of the sums of each call."""
    epilogue, (a, b) = tw.acc / 3, operands()
    exact = a.astype("f8") @ b.astype("f8")
    for _ in range(2):
        np.testing.assert_array_equal(tw.matmul(a, b, epilogue=epilogue), (a @ b) / np.float32(3))
        wide = tw.matmul(a.astype("f8"), b, epilogue=epilogue)
        np.testing.assert_array_equal(wide, exact / 3)
        out = np.empty((9, 7))
        np.testing.assert_array_equal(tw.matmul(a, b, out, epilogue=epilogue), exact / 3)
        whole = a.astype("i1"), b.astype("i1"), np.empty((9, 7), "f4")
        np.testing.assert_array_equal(tw.matmul(*whole, epilogue=epilogue), wide.astype("f4"))
    buffer = memoryview(bytearray(b"\0" * 16))
    assert sums_of(buffer.cast("f"), None, buffer.cast("d")) == "f32"
    assert sums_of(buffer.cast("f"), buffer.cast("d"), None) == "f64"
    assert sums_of(buffer, buffer, buffer.cast("i")) == "s32"


def test_numbers_beside_copied_operands_and_stacks() -> None:
    a, b = operands((3, 9, 10))
    exact = a.astype("f8")[:, :, ::2] @ b[::2].astype("f8")
    for factor in (2, 3):
        found = tw.matmul(a[:, :, ::2], b[::2], epilogue=tw.acc * factor)
        np.testing.assert_array_equal(found, exact * factor)
    empty = tw.matmul(a[..., :0], b[:0], epilogue=tw.acc + 2)
    np.testing.assert_array_equal(empty, np.full((3, 9, 7), 2, "f4"))


@pytest.mark.parametrize("dtype", ["i1", "f4"])
def test_numbers_beside_an_out_of_int64_are_of_float64(dtype: str) -> None:
    a, b = operands(dtype=dtype)
    exact, out = a.astype("i8") @ b.astype("i8"), np.empty((9, 7), "i8")
    for _ in range(2):
        tw.matmul(a, b, out, epilogue=tw.acc + (2**32 + 5))
        np.testing.assert_array_equal(out, exact + (2**32 + 5))
        tw.matmul(a, b, out, epilogue=tw.acc * 1e9 * 0.1)
        np.testing.assert_array_equal(out, exact * 10**8)
