"""One expression has the same bits on every target, and they are those of the numpy table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS, VECTORS
from support.products.epilogues import CLOSE, value
from support.spellings.floats import between, everywhere, same

import tilewright as tw
from tilewright.errors import ToolchainError
from tilewright.runtime.driver import compile_many
from tilewright.spec.expression import Expression, acc
from tilewright.spec.gemm import Gemm
from tilewright.spec.postops import clip, where
from tilewright.spec.schedule import Schedule

INF, NAN = float("inf"), float("nan")
EXPRESSIONS: dict[str, Expression] = {
    **{name: close[0] for name, close in CLOSE.items()},
    "clip above": clip(acc, -INF, 3),
    "nan below": where(acc < 0, NAN, -INF) / acc,
    "thirds": (acc / 3 + 1e8) - 1e8,
}
LANES = 16
SAMPLE = np.concatenate([everywhere(8), between(-110, 90, 1500), between(-3, 3, 1500)])
SAMPLE = np.where(np.isnan(SAMPLE), np.float32(NAN), SAMPLE)  # none of them signalling
ROWS = SAMPLE[: SAMPLE.size // LANES * LANES].reshape(-1, LANES)


@pytest.mark.twice
@pytest.mark.parametrize("target", TARGETS)
def test_expressions_have_the_same_bits_on_every_target(target: str, cases: Cases) -> None:
    schedule = Schedule(tile=(1, LANES if target in VECTORS else 1))
    specs = [
        Gemm(len(ROWS), LANES, 1, beta=1, d="f32", epilogue=one) for one in EXPRESSIONS.values()
    ]
    try:
        kernels = compile_many([(spec, schedule, target) for spec in specs])
    except ToolchainError as error:
        pytest.skip(str(error))
    zeros = np.zeros((len(ROWS), 1), np.float32), np.ones((1, LANES), np.float32)
    differ = []
    for (name, one), kernel in zip(EXPRESSIONS.items(), kernels, strict=True):
        found: Any = kernel(*zeros, c=ROWS, out=np.zeros_like(ROWS))
        want = value(one, ROWS + np.float32(0))  # the product is +0
        wrong = np.flatnonzero(~same(found, want))
        differ += [
            f"{name} of {ROWS.flat[i]!r}: {found.flat[i]!r}, {want.flat[i]!r} by numpy"
            for i in wrong[:3]
        ]
        cases.count(target, str(kernel.emulated or "native"), 1)
    assert not differ, "\n".join(differ)


@pytest.mark.twice
@pytest.mark.parametrize("type_", ["float32", "float64"])
def test_conditions_are_combined_as_numpy_combines_them(type_: Any) -> None:
    """A value that is not 0 holds, NaN too; comparisons, and what chooses by them."""
    x = np.array([[-2, -1, -0.0, 0, 0.5, 1, 3, np.nan, np.inf]], np.float32).astype(type_)
    low, high, y = tw.acc > -1.5, tw.acc <= 1, tw.Operand("y", type_, per="column")
    numbers = np.array([0, 1, 0, np.nan, -0.0, 2, 0, 0, 1]).astype(type_)
    made = ((low & high) | tw.eq(tw.acc, 3)) * 1 + (~y * 2) + ((tw.acc ^ y) * 4)
    made = made + tw.where(low & ~high, 8, 0)
    found = tw.matmul(np.ones((1, 1), x.dtype), x, epilogue=made, y=numbers)
    is_low, is_high, a, b = x > -1.5, x <= 1, x != 0, numbers != 0
    right = 1 * (is_low & is_high | (x == 3)) + 2 * ~b + 4 * (a ^ b) + 8 * (is_low & ~is_high)
    np.testing.assert_array_equal(found, right)
