"""A C that is only read, beside a D, has any type that D may have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.runtime.machine.host import resolve

#: The types of A, C and D, alpha and beta, and the type in which these act.
CASES: list[tuple[Any, Any, Any, Any, Any, str]] = [
    ("s8", "u8", "s32", 2, 3, "s32"),
    ("s8", "s16", "u8", "scalar", "scalar", "s32"),
    ("u8", "bf16", "u8", 2, 1, "f32"),
    ("u8", "f16", "f32", "scalar", "scalar", "f32"),
    ("s8", "s32", "f16", 1, 0.5, "f32"),
    ("f32", "u8", "bf16", 1, 2, "f32"),
    ("bf16", "f8_e4m3", "s8", "scalar", "scalar", "f32"),
    ("f16", "s32", "f16", 0.5, 1, "f32"),
]


@pytest.mark.parametrize(("a", "c", "d", "alpha", "beta", "acts_in"), CASES)
@pytest.mark.parametrize("target", ["avx2", "neon"])
def test_c_of_any_type_is_added(
    target: str, a: Any, c: Any, d: Any, alpha: Any, beta: Any, acts_in: str
) -> None:
    spec = tw.Gemm(3, 11, 6, a=a, c=c, d=d, alpha=alpha, beta=beta)
    assert spec.factor_type == acts_in
    one = Interpreted(spec, tw.Schedule(), resolve(target))
    for seed, whole in enumerate((True, False)):
        one.run(one.sample(seed, whole=whole))


def test_numbers_of_the_call_are_not_whole_where_c_is_real() -> None:
    """Alpha and beta then act in f32; where beta is 0 a C of NaN is not seen."""
    a, b = np.full((2, 3), 3, np.int8), np.full((3, 4), 2, np.int8)
    spec = tw.Gemm(2, 4, 3, a="s8", c="f32", d="f32", alpha="scalar", beta="scalar")
    kernel = tw.compile(spec, target="scalar")
    c, nan = np.full((2, 4), 4, np.float32), np.full((2, 4), np.nan, np.float32)
    np.testing.assert_array_equal(kernel(a, b, c, alpha=0.5, beta=0.25), 10)
    np.testing.assert_array_equal(kernel(a, b, nan, alpha=0.5, beta=0), 9)


@pytest.mark.parametrize("written", [np.uint8, np.int16, np.float16])
def test_matmul_adds_to_an_output_of_any_type(written: Any) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 4, shape).astype(np.int8) for shape in ((5, 7), (7, 6)))
    out = rng.integers(0, 9, (5, 6)).astype(written)
    right = a.astype(int) @ b + 2 * out.astype(int)
    np.testing.assert_array_equal(tw.matmul(a, b, out, beta=2), right)


@pytest.mark.parametrize(
    "given",
    [{"a": "s8", "c": "u8"}, {"c": "s8"}, {"c": "f64", "d": "f32"}, {"c": "s64", "d": "f32"}],
)
def test_a_c_that_is_written_holds_sums(given: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="C cannot have this type"):
        tw.Gemm(4, 4, 4, **given)
