"""Offsets and leading dimensions that a spec does not take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import SpecError


@pytest.mark.parametrize(
    "given",
    [[3, 0], (3, 0), np.array([3, 0]), [np.int64(3), np.uint8(0)], iter([3, 0]), range(3, 1, -1)],
)
def test_offsets_are_integers_of_python_or_numpy(given: Any) -> None:
    found = tw.Offsets(2, a=given).a
    assert found in ((3, 0), (3, 2)) and found is not None
    assert all(type(offset) is int for offset in found)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([1.9], r"must be ints(?s:.*)got: 1\.9"),
        ([1.0], "must be ints"),
        (np.array([1.0]), "must be ints"),
        ([True], "must be ints"),
        ([None], "must be ints"),
        (["1"], "must be ints"),
        ([[1]], "must be ints"),
        (np.array([[1, 2]]), "must be ints"),
        (3, r"must be a sequence of ints(?s:.*)got: 3"),
        ("3", "must be a sequence of ints"),
        (tw.dim("x"), "must be a sequence of ints"),
        ([2**70], rf"are out of range(?s:.*)got: {2**70}"),
        ([-1], "must be 0 or more"),
        ([1, 2], "fixed count equal to their number"),
    ],
)
@pytest.mark.parametrize("name", ["a", "b"])
def test_other_offsets_are_refused(name: str, given: Any, says: str) -> None:
    with pytest.raises(SpecError, match=f"offsets of {name} .*{says}|{says}") as caught:
        tw.Offsets(1, **{name: given})
    assert f"offsets of {name} " in str(caught.value)


@pytest.mark.parametrize("ldc", [10, tw.dim("ldc")])
@pytest.mark.parametrize("made", [{"d": "f32"}, {"epilogue": tw.relu(tw.acc)}, {"d_scale": 2.0}])
def test_a_leading_dimension_of_no_operand_is_refused(ldc: Any, made: dict[str, Any]) -> None:
    """It is D that is written; C's stands for nothing, and would be ignored."""
    with pytest.raises(
        SpecError, match="ldc is given, but C is neither read nor written"
    ) as caught:
        tw.Gemm(4, 4, 4, ldc=ldc, **made)
    assert f"ldd={ldc!r}" in str(caught.value) and "Offsets" not in str(caught.value)
    assert tw.Gemm(4, 4, 4, ldc=ldc, beta=1, **made).ldc == ldc
    assert tw.Gemm(4, 4, 4, ldd=ldc, **made).ldd == ldc
