"""What ``explain`` tells: every decision with its reason, tiles, bounds, loops and formulas."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tilewright import targets
from tilewright.explain.estimates import Measured
from tilewright.explain.text import WIDTH, explain
from tilewright.generate import explain_plan, lowered, plan_for, program_for
from tilewright.ir.count import formulas
from tilewright.plan import contraction
from tilewright.plan.tiling import bounds, cost_model, partition, tile_costs, tile_shape
from tilewright.plan.tiling.cost_model import ranking
from tilewright.plan.tiling.requests import request_at
from tilewright.plan.tiling.tile_costs import shape_of, tile_cycles
from tilewright.runtime.machine.host import resolve
from tilewright.spec.expression import acc
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Addresses, Matrix, Offsets, Packed
from tilewright.spec.postops import gelu_erf, relu
from tilewright.spec.quantized import Quantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.transpose import Transpose

every_target = pytest.mark.parametrize("name", targets.NAMES)
RUN_TIME = Gemm(dim("m"), dim("n"), dim("k"), beta="scalar", batch=Addresses(dim("count")))
SPECS = {
    "fixed": Gemm(64, 48, 64),
    "tails": Gemm(13, 7, 5, order="F", beta=1, alpha=2),
    "row": Gemm(1, 8, 64, b=Matrix("f32", "F")),
    "run time": RUN_TIME,
    "empty": Gemm(4, 4, 0),
    "offsets": Gemm(8, 8, 8, batch=Offsets(2, (0, 8), (8, 0))),
    "transposition": Transpose(dim("rows"), 8),
    "in place": Transpose(8, 8),
}


def told(spec: Spec, name: str, schedule: Schedule | None = None) -> str:
    plan = plan_for(spec, schedule or Schedule(), targets.load(name))
    return explain_plan(plan)


def line(text: str, start: str) -> str:
    """The rest of the first line that begins with ``start``, and of those that continue it."""
    lines = text.splitlines()
    at = next(i for i, each in enumerate(lines) if each.strip().startswith(start))
    indent = len(lines[at]) - len(lines[at].lstrip())
    whole = lines[at].strip()
    for each in lines[at + 1 :]:
        if len(each) - len(each.lstrip()) < indent + 10:
            break
        whole += " " + each.strip()
    return re.sub(r" {4,}", "  ", whole.removeprefix(start).strip())


@every_target
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_everything_is_told_in_a_terminal_of_a_hundred_columns(spec: Spec, name: str) -> None:
    plan = plan_for(spec, Schedule(), targets.load(name))
    program = program_for(plan)
    text = explain(plan, program)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "__by_" not in text, "a quotient's inner name"
    for decision in plan.decisions:
        assert decision.reason
        assert f"{decision.choice}" in line(text, decision.what)
    for tile in program.tiles:
        assert len(re.findall(rf"\b{tile.name}\b", text)) >= 2, "the tile, and where it is called"


def test_a_fixed_kernel_has_values() -> None:
    text = told(Gemm(64, 48, 64), "avx512", Schedule(tile=(8, 48), k_unroll=2))
    assert line(text, "flops") == str(2 * 64 * 48 * 64)
    assert line(text, "multiply adds") == str(64 * 48 * 64 // 16)
    assert line(text, "stores") == "192"
    assert "24 accumulators + 1 A + 3 B = 28 of 32 zmm" in text
    assert line(text, "bound").startswith("multiply-add units: 100% of peak")
    assert line(text, "unroll") == "2 K steps per iteration: asked for"
    assert line(text, "mt from") == "0 below 8   (m by 8)"


def test_a_bound_by_loads_and_one_by_latency() -> None:
    text = told(Gemm(1, 64, 64), "avx2", Schedule(tile=(1, 64), k_split=1, vectorize="n"))
    assert re.match(r"loads: \d\d% of peak", line(text, "bound"))
    text = told(Gemm(1, 8, 64), "avx2", Schedule(k_split=1))
    assert line(text, "K sets").startswith("1: asked for")
    assert re.match(r"latency: \d+% of peak", line(text, "bound"))


# -- what the cost model decided ----------------------------------------------------------------


@every_target
@pytest.mark.parametrize("spec", [SPECS[x] for x in ("fixed", "tails", "row", "run time")])
def test_each_number_stands_beside_its_reason(spec: Spec, name: str) -> None:
    text = told(spec, name)
    size, number = r"[\w()%]+x[\w()%]+", r"(\d+|all)(, (\d+|all))*"
    said = line(text, "tile ")
    assert re.match(rf"{size} .*estimated at [\d.]+ cycles.*, bound by \w", said), said
    said = line(text, "k_split")
    assert re.match(rf"{number} .*\d+ chains? of .* hide the latency.*; \d+ cycles a tile", said), (
        said
    )
    said = line(text, "k_unroll")
    reason = "cycles; issuing|operations|multiply-adds take|share the loop's own work"
    assert re.match(rf"{number} .*({reason})", said), said


def test_the_runner_up_is_the_next_that_the_model_compared() -> None:
    plan = plan_for(Gemm(64, 48, 64), Schedule(), targets.load("avx512"))
    request = request_at(plan.staging, plan.nest, plan.problem.sizes["k"], accumulate=False)
    best, second = ranking(plan.target, 64, 48, True, request)[:2]
    assert best.cycles < second.cycles
    said = line(explain_plan(plan), "tile ")
    cut = "8 tiles of 8 rows, 1 of 48 columns"
    assert said.startswith(f"8x48  {cut}: estimated at {best.cycles:.0f} cycles, ")
    (rows, count), (fewer, others) = second.across
    cut = f"{count} tile of {rows} rows and {others} of {fewer}, 1 of 48 columns"
    assert f"next best {cut}: {second.cycles:.0f}, bound by" in said


def test_equal_estimates_without_sizes_are_named_as_equal() -> None:
    said = line(told(Gemm(dim("m"), dim("n"), dim("k")), "avx2"), "vectorize ")
    assert said.startswith("n  estimated as fast as m with A packed")


def test_another_number_of_sets_is_estimated_too() -> None:
    plan = plan_for(Gemm(1, 8, 64), Schedule(), targets.load("avx512"))
    (tile,) = plan.tiling.tiles
    request, core = (
        request_at(plan.staging, plan.nest, tile.steps, accumulate=False),
        plan.target.core,
    )
    found = shape_of(plan.target, tile.shape.vector, 1, 1, False, replace(request, splits=(2,)))
    assert found is not None
    own, other = (tile_cycles(shape, core, request) for shape in (tile.shape, found))
    said = line(explain_plan(plan), "k_split")
    assert said.startswith("4 ")
    assert said.endswith(f"; {own:.0f} cycles a tile, {other:.0f} with 2")
    said = line(told(Gemm(64, 48, 64), "avx512"), "k_split")
    assert said.endswith("; 2 sets need 52 of 31 registers")


#: What searches for tiles.
SEARCHES = (
    cost_model.choose, cost_model.ranking, cost_model.steady, cost_model.unroll,
    tile_costs.tile_table, tile_costs.shape_of, tile_costs.fitting, tile_costs.need,
    tile_shape.tile_shapes, partition.partition, contraction.choose_product,
)  # fmt: skip
#: What asks what a tile costs, as the estimate of a plan does.
COSTS = (
    tile_costs.tile_cycles, bounds.bounds, bounds.step_cycles, bounds.chains_wanted,
)  # fmt: skip


def refuse(monkeypatch: pytest.MonkeyPatch, searches: Sequence[object]) -> None:
    """Whoever calls one of ``searches`` from now on, by whatever name, fails."""

    def refused(*_given: object, **_named: object) -> None:
        pytest.fail("a search after the plan was made")

    for module in [m for name, m in sys.modules.items() if name.startswith("tilewright.")]:
        for name, found in list(vars(module).items()):
            if any(found is search for search in searches):
                monkeypatch.setattr(module, name, refused)


SEARCHED = {
    **{name: (SPECS[name], "avx512") for name in ("fixed", "tails", "row", "run time")},
    "packed": (Gemm(8, 64, 32, a="u8", b=Packed("s8", nb=16), d="u8", a_zero=3), "avx512+vnni"),
    "converted": (Gemm(16, 16, 8, a="bf16", beta=1), "neon+bf16"),
    "spread": (Gemm(20, 32, 8, a="f16", b="f16"), "avx2"),
    "matrices": (Gemm(32, 20, 70, a="bf16", b=Packed("bf16")), "amx"),
}


@pytest.mark.parametrize(("spec", "target"), SEARCHED.values(), ids=SEARCHED)
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(tile=(2, 4))], ids=["free", "asked"])
def test_explain_and_the_lowering_search_nothing(
    spec: Gemm, target: str, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_for(spec, schedule, resolve(target))
    before = explain_plan(plan)
    refuse(monkeypatch, SEARCHES)
    assert explain(plan, lowered(plan)) == before
    refuse(monkeypatch, COSTS)
    assert lowered(plan).tiles
    with pytest.raises(pytest.fail.Exception, match="a search after the plan was made"):
        plan_for(spec, schedule, resolve(target))


def test_what_is_told_is_what_the_plan_recorded() -> None:
    plan = plan_for(Gemm(64, 48, 64), Schedule(), targets.load("avx512"))
    (tile,) = plan.tiling.tiles
    assert tile.search is not None
    search = replace(tile.search, estimate="because", runner_up="nothing else")
    unroll = replace(tile.unroll, reason="it is enough")
    told_of = replace(tile, search=search, unroll=unroll, bound="nothing", why_split="one is")
    text = explain(replace(plan, tiling=replace(plan.tiling, tiles=(told_of,))), program_for(plan))
    assert line(text, "tile ") == "8x48  because, bound by nothing; nothing else"
    assert line(text, "k_split").endswith("one is")
    assert line(text, "k_unroll").endswith("it is enough")


def test_a_trip_is_told_beside_what_it_hides() -> None:
    text = told(Gemm(1, 8, 64), "neon", Schedule(k_split=2))
    steps = int(line(text, "k_unroll").split()[0])
    assert steps > 2
    told_of = re.search(r"takes ([\d.]+) cycles; .* takes ([\d.]+)", line(text, "k_unroll"))
    assert told_of is not None
    assert float(told_of[1]) >= float(told_of[2])
    said = line(told(Gemm(16, 6, 1, order="F"), "neon"), "k_unroll")
    assert re.fullmatch("all +K is short, 16 operations of at most 192", said)


def test_tiles_with_other_numbers_are_named() -> None:
    text = told(Gemm(100, 70, 64), "avx2")
    assert line(text, "tile ").startswith(
        "3x24  32 tiles of 3 rows and 2 of 2, 3 of 24 columns (2 too many): "
    )
    assert line(text, "k_split").startswith(
        "1, 2  1 for 3x24, 3x22; 2 for 2x24, 2x22. 3x24: 9 chains"
    )


def test_the_block_that_is_cut_is_told() -> None:
    text = told(Gemm(40, 40, 64), "avx2", Schedule(loops="nmnk", block={"n": 24}))
    assert line(text, "tile ").startswith("3x24  12 tiles of 3 rows and 2 of 2, 1 of 24 columns: ")


def test_sizes_of_the_call_stand_in_the_formulas() -> None:
    text = told(RUN_TIME, "scalar")
    assert line(text, "flops") == "2 * count * k * m * n"
    assert line(text, "batch").startswith("addresses, count pairs")
    assert "where count is positive" not in text, "the default order keeps the batch inside"
    text = told(RUN_TIME, "scalar", Schedule(loops="bnmk"))
    assert "where count is positive" in text
    assert "adds to the sum that C holds" in text


def test_a_long_formula_is_left_to_the_tiles() -> None:
    spec = Gemm(dim("m"), dim("n"), dim("k"))
    text = told(spec, "scalar", Schedule(loops="mnmnk", block={"m": 24, "n": 24}))
    assert "the sum over the tiles above" in text
    program = program_for(plan_for(spec, Schedule(), targets.load("scalar")))
    assert formulas(program).loads != 0


def test_what_the_asked_tile_leaves_over_says_so() -> None:
    text = told(Gemm(13, 16, 8), "avx2", Schedule(tile=(6, 16), vectorize="n"))
    assert "6 x 16 of C: asked for" in text
    assert "1 x 16 of C: what tiles of 6x16 leave over" in text


def test_an_exchange_in_place_is_told() -> None:
    text = told(Transpose(8, 8), "neon")
    assert "called once in place" in text and "where out is x" in text


def test_an_end_that_is_a_loop_is_told() -> None:
    def words(spec: Spec, name: str) -> str:
        return " ".join(told(spec, name).split())

    long = Gemm(64, 64, 64, epilogue=gelu_erf(acc))
    assert re.search(r"end a loop over \d+ lines.*more than 512 would", words(long, "avx2"))
    types = Gemm(64, 64, 64, a="bf16", b=Packed("bf16"), epilogue=relu(acc))
    assert re.search(r"end a loop over 32 lines.*a matrix unit from memory", words(types, "amx"))
    assert "lines of sums" not in words(Gemm(64, 64, 64, epilogue=relu(acc)), "avx2")


# -- estimates ----------------------------------------------------------------------------------


def estimate_of(text: str) -> str:
    return text[text.index("Estimate of one call") :]


def test_a_call_is_estimated_on_data_in_cache_and_in_memory() -> None:
    text = estimate_of(told(Gemm(64, 48, 64), "avx512"))
    assert re.match(
        r"\d+ cycles, \d+% of peak, bound by multiply-add units", line(text, "in cache")
    )
    assert "cycles of computing: multiply-add units" in text
    assert re.search(r"\d+ KiB from memory in \d+ cycles", " ".join(text.split()))
    assert "measured" not in text


def test_the_true_bound_of_a_thin_product_is_memory() -> None:
    text = estimate_of(told(Gemm(1, 4096, 2048), "avx512"))
    assert "bound by memory" in line(text, "in memory")


def test_a_measurement_stands_beside_the_estimate() -> None:
    plan = plan_for(Gemm(64, 48, 64), Schedule(), targets.load("avx512"))
    text = estimate_of(explain(plan, program_for(plan), measured=Measured(2e-6, 0.5)))
    found = re.match(
        r"(\d+) cycles in cache, 50% of peak, 2 us; the estimate is (\d+) % too low",
        line(text, "measured"),
    )
    assert found is not None
    own = int(line(text, "in cache").split()[0])
    assert 1 - own / int(found[1]) == pytest.approx(int(found[2]) / 100, abs=0.01)


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_blocks_whose_size_the_call_computes_are_counted(name: str) -> None:
    schedule = Schedule(loops="nkmmnk", pack="ab")
    plan = plan_for(Gemm(dim("m"), dim("n"), dim("k")), schedule, targets.load(name))
    usual, given = (explain(plan, program_for(plan), sizes) for sizes in (None, {"m": 500}))
    assert "Operations and bytes of one call with m = 64, n = 64, k = 64" in usual
    assert line(usual, "flops") == str(2 * 64**3)
    assert "Estimate of one call with m = 500, n = 64, k = 64" in given
    assert line(given, "flops") == str(2 * 500 * 64 * 64)
    lanes = {"avx2": 8, "avx512": 16}[name]
    assert int(line(given, "multiply adds")) >= 500 * 64 * 64 // lanes
    assert re.search(r"called \d+ times: ", given)


def test_what_is_no_product_has_no_estimate() -> None:
    assert "Estimate" not in told(Transpose(8, 8), "avx2")
    assert "Estimate" not in told(Gemm(0, 4, 4), "avx2")


def test_a_packed_matrix_whose_rows_are_parts_of_elements_is_explained() -> None:
    """In 5 bits and blocks of 40, a step of K is 168/5 bytes long."""
    form = Quantized("u5", "f16", zero=16, block=40)
    spec = Gemm(1, 1, 65, a="s8", b=Packed(form, nb=48), c="bf16", b_scale="scalar")
    assert "estimate" in explain_plan(plan_for(spec, Schedule(), resolve("avx10.2")))
