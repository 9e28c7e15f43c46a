"""Parts of an extent: they cover it once, and the last two are even."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.plan.tiling.parts import even_parts
from tilewright.symbolic import c_text, evaluate, size_expr, symbol


def found(total: int, most: int) -> list[tuple[int, int]]:
    """Where the parts of ``total`` elements begin, and their sizes, in order."""
    cuts = []
    for part in even_parts(symbol("m"), most, "m"):
        sizes = {"m": total}
        for name, size in part.given:
            sizes[name] = evaluate(size, sizes)
        for index in range(evaluate(part.count, sizes)):
            start = evaluate(part.start + part.size * index, sizes)
            cuts.append((start, evaluate(part.size, sizes)))
    return sorted(cuts)


@pytest.mark.parametrize("most", [1, 2, 5, 12, 14])
def test_even_parts_cover_all(most: int) -> None:
    for total in range(5 * most + 3):
        end, cuts = 0, found(total, most)
        for start, size in cuts:
            assert (start, 0 < size <= most) == (end, True), (total, cuts)
            end += size
        assert end == total, cuts
        assert len(cuts) == -(-total // most), "as few as can be"


def test_quotients_are_of_numbers_that_are_not_negative() -> None:
    """C cuts them towards 0: no sum within one may be split into parts that are negative."""
    for total in (symbol("m"), size_expr("m", tw.dim("m", multiple_of=8))):
        for part in even_parts(total, 13, "m"):
            for _, size in part.given:
                assert "(-" not in c_text(size)


def test_the_last_two_are_even() -> None:
    assert found(16, 12) == [(0, 8), (8, 8)]
    assert found(25, 12) == [(0, 12), (12, 7), (19, 6)]
    assert found(24, 12) == [(0, 12), (12, 12)]
    assert found(7, 12) == [(0, 7)]
