"""What a target's description is refused for as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.errors import TargetError
from tilewright.targets import load


def test_a_multiply_add_needs_vectors_that_hold_its_factors() -> None:
    power10 = load("power10")
    others = tuple(vector for vector in power10.vectors if vector.element != "s16")
    expected = "(?s)vmsumshm multiplies s16 by s16, which no vector holds.*one of s16 as well"
    with pytest.raises(TargetError, match=expected):
        replace(power10, vectors=others)


def test_vectors_get_narrower_down_to_one_lane() -> None:
    power10 = load("power10")
    others = tuple(v for v in power10.vectors if (v.element, v.lanes) != ("f32", 1))
    with pytest.raises(TargetError, match=r"vectors of f32 must get narrower down to 1 lane"):
        replace(power10, vectors=others)
