"""Parts of an extent: even ones cover it once, and overlapping ones cover all of it."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.plan.tiling.parts import even_parts, overlapping, pieces
from tilewright.symbolic import ZERO, c_text, evaluate, size_expr, symbol


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


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (64, [(0, 64)]), (200, [(0, 64), (64, 64), (128, 64), (184, 16)]), (40, [(0, 40)]),
        (104, [(0, 64), (40, 64)]), (100, [(0, 64), (36, 64)]), (7, [(0, 7)]), (0, []),
    ],
)  # fmt: skip
def test_a_remainder_overlaps_what_is_before(total: int, expected: list[tuple[int, int]]) -> None:
    cuts = [
        (evaluate(part.nth(ZERO + index), {}), part.units)
        for part in overlapping(ZERO + total, 64, 16, 4)
        for index in range(evaluate(part.count, {}))
    ]
    assert cuts == expected


def test_pieces_cover_all() -> None:
    for total in range(1, 150):
        cuts = list(pieces(total, (64, 32, 16)))
        assert {k for start, size in cuts for k in range(start, start + size)} == set(range(total))
        assert all(size in (16, 32, 64) for _, size in cuts) or total < 16
    assert list(pieces(40, (64, 32, 16))) == [(0, 32), (24, 16)]
    assert list(pieces(7, (64, 32, 16))) == [(0, 7)]


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
