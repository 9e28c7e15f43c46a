"""Operands that are read where they lie: loops, what is asked for ahead, and tiles for them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.generate import Request, generate, plan_for
from tilewright.plan.plan import Plan
from tilewright.plan.tiling.tiles import grids_of
from tilewright.runtime.machine.host import resolve
from tilewright.spec.schedule import STEPS_AHEAD


def planned(spec: tw.Gemm, target: str = "avx512", **schedule: Any) -> Plan:
    plan = plan_for(spec, tw.Schedule(**schedule), resolve(target))
    assert isinstance(plan, Plan)
    return plan


def nest(plan: Plan) -> tuple[str, int | None, str]:
    return plan.nest.outer + plan.nest.inner, plan.nest.blocks.get("k"), plan.staging.packs


@pytest.mark.parametrize(("length", "block"), [(4096, 64), (256, 256)])
def test_k_is_cut_where_rows_lie_in_many_pages(length: int, block: int) -> None:
    """64 rows of 16 KiB, and as many of shorter ones as lie in 64 pages."""
    by_rows = tw.Gemm(24, length, 2048)
    by_columns = tw.Gemm(length, 24, 2048, a=tw.Matrix("f32", "F"), order="F")
    assert nest(planned(by_rows)) == ("knmk", block, "")
    assert nest(planned(by_columns)) == ("kmnk", block, "")
    assert nest(planned(tw.Gemm(16, 64, 512)))[:2] == ("nmk", None)


@pytest.mark.parametrize(("few", "block"), [(1, 8), (2, 8), (4, 8), (8, 64), (16, 64)])
def test_few_rows_stream_a_matrix(few: int, block: int) -> None:
    """1024 x 1024 is large for four rows; for more only what no cache holds is."""
    for plan in (
        planned(tw.Gemm(few, 1024, 1024)),
        planned(tw.Gemm(1024, few, 1024, a=tw.Matrix("f32", "F"), order="F")),
    ):
        assert plan.nest.blocks["k"] == block
    assert nest(planned(tw.Gemm(few, 4096, 4096))) == ("knmk", 8, "")


def test_tiles_of_a_few_lines_count_no_steps() -> None:
    """Whole blocks of 8 lines have tiles of their own; longer ones share the last one's."""
    spec = tw.Gemm(1, tw.dim("n"), tw.dim("k"), ldb=tw.dim("ldb"))
    few, many = (planned(spec, loops="knmk", block={"k": lines}) for lines in (8, 9))
    assert few.block_sizes == {}
    assert many.block_sizes == {"k": "kc"}
    assert {str(tile.steps) for tile in few.tiling.tiles} == {"8", "Remainder(k, 8)"}
    assert {str(tile.steps) for tile in many.tiling.tiles} == {"kc"}
    kernel = tw.compile(spec, tw.Schedule(loops="knmk", block={"k": 8}))
    rng = np.random.default_rng(0)
    for k in (0, 1, 7, 8, 9, 16, 23):
        a, b = rng.integers(-9, 9, (1, k)), rng.integers(-9, 9, (k, 75))
        found = kernel(a.astype(np.float32), b.astype(np.float32))
        np.testing.assert_array_equal(found, a @ b)


@pytest.mark.parametrize(
    ("rows", "length", "core", "loops"),
    [
        (49, 512, "emeraldrapids", "knmk"),
        (64, 2048, "emeraldrapids", "knmk"),
        (65, 2048, "emeraldrapids", "nkmmnk"),
        (64, 2049, "emeraldrapids", "nkmmnk"),
        (127, 512, "emeraldrapids", "knmk"),
        (128, 512, "emeraldrapids", "nkmmnk"),
        (64, 1024, "zen4", "knmk"),
        (64, 1025, "zen4", "nkmmnk"),
    ],
)
def test_few_rows_do_not_repay_packing_short_lines(
    rows: int, length: int, core: str, loops: str
) -> None:
    """However large B is, up to lines of which the second cache holds a block."""
    by_rows = tw.Gemm(rows, length, 4608)
    by_columns = tw.Gemm(length, rows, 4608, a=tw.Matrix("f32", "F"), order="F")
    assert nest(planned(by_rows, f"avx512+{core}"))[0] == loops
    turned = {"knmk": "kmnk", "nkmmnk": "mknnmk"}[loops]
    assert nest(planned(by_columns, f"avx512+{core}"))[0] == turned
    assert nest(planned(by_rows, f"avx512+{core}", threads=2))[2] == "ab"
    across = tw.Gemm(rows, length, 4608, b=tw.Matrix("f32", "F"))
    assert nest(planned(across, f"avx512+{core}"))[2] == "ab"


def test_a_column_streams_a_matrix_along_its_lines() -> None:
    """It is contiguous whatever order it is said to have."""
    for order in ("C", "F"):
        column = tw.Gemm(2048, 1, 2048, a=tw.Matrix("f32", "F"), order=order)
        assert nest(planned(column)) == ("kmnk", 8, "")


@pytest.mark.parametrize("row", [True, False])
def test_vectors_along_k_read_no_more_lines_than_a_core_asks_for(row: bool) -> None:
    spec = tw.Gemm(1, 2048, 2048, b=tw.Matrix("f32", "F")) if row else tw.Gemm(2048, 1, 2048)
    plan = planned(spec)
    shapes = [grid.tile.shape for grid in grids_of(plan.tiling.passes["whole"])]
    assert (plan.problem.vectorize, {shape.rows * shape.vectors for shape in shapes}) == ("k", {8})


def test_a_b_of_the_other_order_is_not_cut_for_its_pages() -> None:
    plan = planned(tw.Gemm(16, 4096, 1024, b=tw.Matrix("f32", "F")))
    assert plan.nest.blocks.get("k") is None and plan.problem.schedule.prefetch is None


def test_a_large_c_is_written_line_by_line() -> None:
    for m, loops, pack in ((12544, "nmnk", "b"), (300, "nmk", "")):
        assert nest(planned(tw.Gemm(m, 96, 16)))[::2] == (loops, pack)
    for m, loops in ((12544, "mnk"), (300, "nmk")):
        halves = tw.Gemm(m, 96, 16, a="bf16", b="bf16")
        assert nest(planned(halves, "amx"))[0] == loops


def test_few_columns_of_many_rows_are_passed_a_row_of_tiles_at_a_time() -> None:
    """A is read once then; where both stay in a cache, or lines are long, tiles lie as always."""
    sizes = ((8000, 64, "mnk"), (128, 64, "nmk"), (64, 8000, "nmk"), (8000, 3, "mnk"))
    for m, n, loops in sizes:
        found = planned(tw.Gemm(m, n, 64))
        assert nest(found)[0] == loops
        assert found.problem.vectorize == ("n" if n > 3 else "k")
    columns = tw.Matrix("f32", "F")
    turned = planned(tw.Gemm(64, 8000, 64, a=columns, b=columns, c=columns))
    assert (nest(turned)[0], turned.problem.vectorize) == ("nmk", "m")


def test_tiles_that_lie_side_by_side_follow_each_other() -> None:
    """All tiles of a row, of what is left over too, where the loop over rows is the outer one."""
    sizes: Any = {each: tw.dim(each) for each in ("m", "n", "k", "ldb")}
    for loops, follow in (("mnk", True), ("nmk", False)):
        request = Request("k", tw.Gemm(**sizes), tw.Schedule(loops=loops), resolve("avx512"))
        text = generate([request]).text
        rows = re.findall(r"^    for \(int64_t mt.*?^    \}", text, re.DOTALL | re.MULTILINE)
        calls = [set(re.findall(r"(tile\d+)_\d+x", row)) for row in rows]
        assert (max(map(len, calls), default=0) > 1) is follow


def test_of_a_large_product_with_few_columns_b_alone_is_packed() -> None:
    assert nest(planned(tw.Gemm(3136, 64, 576)))[::2] == ("kmnk", "b")
    assert nest(planned(tw.Gemm(1024, 512, 576)))[::2] == ("nkmmnk", "ab")


@pytest.mark.parametrize("type_", ["f16", "bf16", "s8", "f8_e4m3"])
@pytest.mark.parametrize("core", ["emeraldrapids", "graniterapids", "zen4"])
def test_of_few_columns_that_are_converted_the_default_is_legal(core: str, type_: Any) -> None:
    """Where the second cache is large B was once to be packed, which is refused."""
    plan = planned(tw.Gemm(784, 128, 1152, a=type_, b=type_), f"avx512+{core}")
    assert plan.tiling.tiles


def test_of_rows_that_lie_across_k_few_steps_are_near() -> None:
    """Each step reads another line of theirs; a large A is packed, however short lines of C are."""
    turned = tw.Matrix("f32", "F")
    assert nest(planned(tw.Gemm(1000, 64, 300, a=turned))) == ("knmk", 64, "")
    assert nest(planned(tw.Gemm(3136, 64, 576, a=turned)))[::2] == ("nkmmnk", "ab")
    by_columns = tw.Gemm(64, 1000, 300, a=turned, b=tw.Matrix("f32", "C"), order="F")
    assert nest(planned(by_columns)) == ("kmnk", 64, "")


def test_short_lines_are_converted_as_a_whole() -> None:
    for n, packs in ((128, ""), (129, "ab")):
        by_rows = tw.Gemm(784, n, 1152, a="f16", b="f16")
        turned = tw.Matrix("f16", "F")
        by_columns = tw.Gemm(n, 784, 1152, a=turned, b=turned, order="F")
        assert {planned(each).staging.packs for each in (by_rows, by_columns)} == {packs}


def test_each_line_of_a_row_is_asked_for_some_rows_ahead() -> None:
    target = resolve("avx512")
    text = generate([Request("k", tw.Gemm(49, 320, 960), tw.Schedule(), target)]).text
    (tile, *_) = re.findall(r"for \(int64_t kt.*?\n    \}", text, re.DOTALL)
    asked = re.findall(r"__builtin_prefetch\(pb \+ (\d+)\)", tile)
    loads = re.findall(r"_mm512_loadu_ps\(pb(?: \+ (\d+))?\)", tile)
    assert [int(at) for at in asked] == [STEPS_AHEAD * 320 + int(at or 0) for at in loads]


def test_rows_of_a_stride_of_the_call_are_asked_for_ahead_as_well() -> None:
    """Where pointers move from step to step the distance was once left out."""
    spec = tw.Gemm(*map(tw.dim, "mnk"), ldb=tw.dim("ldb"))
    request = Request("k", spec, tw.Schedule(loops="nmk", prefetch=8), resolve("avx512"))
    asked = re.findall(r"__builtin_prefetch\((.*)\);", generate([request]).text)
    assert asked and all("8 * ldb" in at for at in asked)


def test_nothing_is_asked_for_that_is_near_or_read_once() -> None:
    for sizes in ((64, 48, 64), (1, 64, 512), (1, 4096, 4096)):
        assert planned(tw.Gemm(*sizes)).problem.schedule.prefetch is None, sizes
    assert planned(tw.Gemm(49, 320, 960), prefetch=3).problem.schedule.prefetch == 3


def test_tiles_know_where_panels_come_from() -> None:
    """Of panels beyond the first cache narrow ones; few rows of A that share its sets."""
    core = "avx512+graniterapids"
    for sizes in ((196, 96, 576), (49, 160, 576), (49, 320, 960)):
        assert planned(tw.Gemm(*sizes), core).tiling.tiles[0].shape.vectors <= 3, sizes
    assert planned(tw.Gemm(128, 16, 1024), core).tiling.tiles[0].shape.rows <= 8
    assert planned(tw.Gemm(128, 16, 1000), core).tiling.tiles[0].shape.rows > 8


def test_of_tiles_that_are_alike_the_one_loads_least() -> None:
    """A core's other thread may be busy: 4x96 and 8x48 take as long where it is not."""
    sizes: Any = {each: tw.dim(each) for each in ("m", "n", "k", "lda", "ldb", "ldc")}
    for type_ in ("f16", "s8"):
        spec = tw.Gemm(**sizes, a=type_, b=type_, c="f32" if type_ == "f16" else "s32")
        whole = max(
            planned(spec, "avx512+emeraldrapids", loops="mnk").tiling.tiles,
            key=lambda tile: tile.shape.rows * tile.shape.vectors,
        )
        assert (whole.shape.rows, whole.shape.vectors) == (8, 3), type_


@pytest.mark.parametrize(("type_", "tile"), [("f32", (24, 16)), ("f64", (24, 8))])
def test_panels_are_for_a_core_with_a_neighbour(type_: Any, tile: tuple[int, int]) -> None:
    """It takes operations away: a multiply-add that reads its element itself needs fewest."""
    plan = planned(tw.Gemm(1024, 1024, 1024, a=type_, b=type_), "avx512+emeraldrapids")
    assert (plan.staging.packs, plan.nest.panel_tile) == ("ab", tile)
