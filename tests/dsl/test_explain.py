"""What ``explain`` tells: every decision with its reason, tiles, bounds, loops and formulas."""

from __future__ import annotations

import re

import pytest

from tilewright import targets
from tilewright.count import formulas
from tilewright.explain import WIDTH, explain
from tilewright.generate import explain_plan, plan_for, program_for
from tilewright.operands import Addresses, Matrix, Offsets
from tilewright.schedule import Schedule
from tilewright.sizes import dim
from tilewright.spec import Gemm, Spec, Transpose

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
    return whole.removeprefix(start).strip()


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
    assert line(text, "unroll") == "2 K steps a trip: asked for"
    assert line(text, "mt from") == "0 below 8   (m by 8)"


def test_a_bound_by_loads_and_one_by_latency() -> None:
    text = told(Gemm(1, 64, 64), "avx2", Schedule(tile=(1, 64), k_split=1, vectorize="n"))
    assert re.match(r"loads: \d\d% of peak", line(text, "bound"))
    text = told(Gemm(1, 8, 64), "avx2", Schedule(k_split=1))
    assert line(text, "K sets").startswith("1, asked for")
    assert re.match(r"latency: \d+% of peak", line(text, "bound"))


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
