"""The functions that reduce rows: their results, and what NaN means to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.elementwise.builder import Argument, Builder, Value, run
from tilewright.elementwise.reductions import COMBINERS

NUMBERS = np.array([-3.5, 2.0, -0.0, 0.25, -7.0], np.float32)
WITH_NAN = np.array([1.0, np.nan, -2.0], np.float32)
WITH_NEGATIVE_NAN = np.copysign(WITH_NAN, np.float32(-1))


def reduced(fn: str, values: Any) -> Any:
    """Return the reduction ``fn`` of numbers, as kernels compute it."""
    how, b = COMBINERS[fn], Builder()
    inputs = [b.input("s32" if values.dtype == np.int32 else "f32") for _ in values]
    total: Argument = int(how.start) if how.element == "s32" else how.start
    for x in inputs:
        total = how.both(b, total, how.of(b, x))
    result = how.result(b, total)
    assert isinstance(result, Value)
    return run(b.steps, dict(zip(inputs, values, strict=True)))[result]


@pytest.mark.parametrize(
    ("fn", "values", "expected"),
    [
        ("sum", NUMBERS, -8.25),
        ("max", NUMBERS, 2.0),
        ("min", NUMBERS, -7.0),
        ("maximum", NUMBERS, 2.0),
        ("absmax", NUMBERS, 7.0),
        ("greatest", NUMBERS, 2.0),
        ("greatest", -np.abs(NUMBERS), 0.0),
        ("least", NUMBERS, -7.0),
        ("least", np.abs(NUMBERS), 0.0),
        ("total", np.array([5, -9, 1], np.int32), -3),
        ("max", WITH_NAN, np.nan),
        ("min", WITH_NAN, np.nan),
        ("absmax", WITH_NAN, np.nan),
        ("absmax", WITH_NEGATIVE_NAN, np.nan),
        ("greatest", WITH_NAN, np.nan),
        ("least", WITH_NEGATIVE_NAN, np.nan),
    ],
)
def test_reductions_have_their_meaning(fn: str, values: Any, expected: float) -> None:
    np.testing.assert_equal(reduced(fn, values), expected)
