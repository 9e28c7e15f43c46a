"""What whole tiles leave of a size of the call: one tile takes all of it, and nothing twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.generate import interpret_kernel, plan_for
from tilewright.isa.target import Target
from tilewright.plan.tiling.cost_model import steady_cuts
from tilewright.plan.tiling.partition import WORTH
from tilewright.plan.tiling.requests import request_at
from tilewright.plan.tiling.tiles import Grid, grids_of
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.symbolic import evaluate

OPEN = Gemm(dim("m"), dim("n"), dim("k"))
NAMES = ("avx2", "avx512", "avx512+zen4", "neon", "sve256", "rvv256", "power10", "scalar")


def present(
    spec: Gemm, target: Target, tile: tuple[int, int] | None = None, **sizes: int
) -> list[tuple[Grid, dict[str, int]]]:
    """The grids that there are for sizes of the call, with numbers in place of formulas."""
    plan = plan_for(spec, Schedule(tile=tile, vectorize="n"), target)
    found = []
    for grid in grids_of(plan.tiling.passes["whole"]):
        parts = {"m": grid.across, "n": grid.along}
        numbers = {
            f"{d}{name}": evaluate(getattr(part, name), sizes)
            for d, part in parts.items()
            for name in ("start", "size", "count")
        }
        if numbers["mcount"] and numbers["ncount"] and numbers["msize"] and numbers["nsize"]:
            found.append((grid, numbers))
    return found


def tall(found: list[tuple[Grid, dict[str, int]]], rows: int) -> list[tuple[str, int, int]]:
    """The tiles of so many rows: their vectors, how many, and columns."""
    return [
        (grid.tile.shape.vector.name, grid.tile.shape.vectors, at["nsize"])
        for grid, at in found
        if grid.tile.shape.rows == rows
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_element_of_c_is_in_one_tile(name: str) -> None:
    target = resolve(name)
    for m, n in [(1, 1), (3, 7), (5, 15), (9, 17), (4, 24), (6, 33), (8, 40), (2, 47), (13, 97)]:
        cells: Counter[tuple[int, int]] = Counter()
        for _, at in present(OPEN, target, m=m, n=n, k=8):
            for i in range(at["mcount"] * at["msize"]):
                row = at["mstart"] + i
                first, width = at["nstart"], at["ncount"] * at["nsize"]
                cells.update((row, first + j) for j in range(width))
        assert cells == Counter({(i, j): 1 for i in range(m) for j in range(n)}), (m, n)


def test_what_is_left_is_one_tile_of_the_fastest_vectors() -> None:
    """24 columns were a tile of 16 and one of 8, each of one vector that waits for broadcasts."""
    target = resolve("avx512+zen4")
    for n, one in {
        24: ("ymm", 3, 24), 30: ("zmm", 2, 30), 16: ("zmm", 1, 16), 5: ("ymm", 1, 5),
        47: ("zmm", 3, 47),
    }.items():  # fmt: skip
        assert tall(present(OPEN, target, (4, 48), m=32, n=n, k=64), 4) == [one]


def test_narrow_vectors_take_what_they_save_enough_at() -> None:
    """A core that does as much with vectors of half the length has no use for them."""
    zen4 = resolve("avx512+zen4")
    alike = replace(zen4, core=replace(zen4.core, widths=(), speeds=()))
    ((vector, count, columns),) = tall(present(OPEN, alike, (4, 48), m=32, n=24, k=64), 4)
    assert (vector, count, columns) == ("zmm", 2, 24)
    assert 0 < WORTH < 1


def test_a_known_number_of_columns_decides_the_tile_for_any_number_of_rows() -> None:
    for name, columns, widths in (("avx512+zen4", 24, [24]), ("avx2", 24, [24])):
        found = present(Gemm(dim("m"), columns, 64), resolve(name), m=240, k=64)
        rows = max(grid.tile.shape.rows for grid, _ in found)
        assert [columns for _, _, columns in tall(found, rows)] == widths


def test_cuts_of_known_columns_are_ranked_by_the_cycles_of_a_row() -> None:
    target = resolve("avx512+zen4")
    plan = plan_for(Gemm(dim("m"), 24, 64), Schedule(vectorize="n"), target)
    request = request_at(plan.staging, plan.nest, plan.problem.sizes["k"], False)
    ranked = steady_cuts(target, 24, 1, request)
    assert [each.cycles for each in ranked] == sorted(each.cycles for each in ranked)
    uneven = steady_cuts(target, 24, 8, request)
    assert 8 % uneven[0].across[0][0] == 0, "rows in eights are not cut by another number"


@pytest.mark.parametrize("types", [("f32", "f32"), ("s8", "s8")])
@pytest.mark.parametrize("name", ["avx2", "avx512+vnni+zen4", "sve256", "rvv256"])
def test_numbers_are_right_for_every_kind_of_tail(name: str, types: tuple[Any, Any]) -> None:
    spec = Gemm(dim("m"), dim("n"), dim("k"), a=types[0], b=types[1])
    rng, target = np.random.default_rng(5), resolve(name)
    whole = {"f32": np.float32, "s8": np.int8}
    for n in (17, 24, 55):
        m, k = int(rng.integers(1, 9)), int(rng.integers(1, 7))
        a = rng.integers(0, 7, (m, k)).astype(whole[types[0]])
        b = rng.integers(-3, 4, (k, n)).astype(whole[types[1]])
        c = np.full((m, n), 99, np.float32 if types[0] == "f32" else np.int32)
        interpret_kernel(spec, Schedule(vectorize="n"), target, [a, b, c], (m, n, k))
        np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))
