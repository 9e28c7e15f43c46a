"""Profiles of networks: one time for each stage, and numbers that do not depend on the clock."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright import nn, targets
from tilewright.errors import PlanError
from tilewright.generate import Request, explain_plan, generate, plan_for, program_for, verified
from tilewright.ir.nest import Stamp
from tilewright.ir.nodes import rewritten
from tilewright.spec.network.value import Network

ROWS, KIB = 32, 1024


@tw.network
def perceptron(x, w):
    return nn.softmax(tw.relu(x @ w.up) @ w.down)


WEIGHTS = {"up": tw.Tensor("f32", (64, 128)), "down": tw.Tensor("f32", (128, 64))}
SPEC: Network = perceptron.of(x=tw.Tensor("f32", (tw.dim("rows"), 64)), w=WEIGHTS)
#: Two stages in a loop over blocks of rows, and one after them.
JOINED = tw.Stages(tw.Stage("up down", rows=16))


def table(text: str, title: str) -> dict[str, list[str]]:
    """The rows of a table in an explanation, by their first cell: the cells after it."""
    lines = text.split(f"\n{title}")[1].split("\n\n", maxsplit=1)[0].splitlines()[1:]
    cells = [[cell.strip() for cell in line.strip().split("  ") if cell] for line in lines]
    return {row[0]: row[1:] for row in cells}


# -- times ----------------------------------------------------------------------------------------


@pytest.mark.twice
@pytest.mark.parametrize(
    ("stages", "names", "read", "written"),
    [
        # Inputs of 8 and 16 KiB, weights of 32 KiB each.
        (tw.Stages(), [("up",), ("down",), ("softmax0",)], [40, 48, 8], [16, 8, 8]),
        (JOINED, [("up", "down"), ("softmax0",)], [72, 8], [8, 8]),
    ],
    ids=["one after another", "joined"],
)
def test_a_profile_has_the_time_of_each_stage(
    stages: tw.Stages, names: list[tuple[str, ...]], read: list[int], written: list[int]
) -> None:
    found = tw.compile(SPEC, stages).profile(seconds=0.01, rows=ROWS)
    assert [stage.names for stage in found] == names
    assert len(found) == len(names) and found[0] is found.stages[0] and found[-1:] == (found[-1],)
    assert [stage.read for stage in found] == [KIB * each for each in read]
    assert [stage.written for stage in found] == [KIB * each for each in written]
    assert sum(stage.share for stage in found) == pytest.approx(1)
    assert found.seconds == pytest.approx(sum(stage.seconds for stage in found))
    assert found.calls >= 5
    flops = sum(stage.gflops * 1e9 * stage.seconds for stage in found)
    assert flops == pytest.approx(2 * 2 * ROWS * 64 * 128)
    for stage in found:
        assert stage.estimate is not None and stage.estimate > 0
        assert stage.gbs * 1e9 * stage.seconds == pytest.approx(stage.read + stage.written)
    lines = repr(found).splitlines()
    assert [line.split("  ")[0] for line in lines[1:-1]] == [" ".join(each) for each in names]


@pytest.mark.twice
def test_an_explanation_shows_the_measured_times() -> None:
    net = tw.compile(SPEC, JOINED)
    rows = table(net.explain(measure=True, rows=ROWS), "Time of each stage with rows_ = 32")
    assert list(rows) == ["stage", "0 up", "1 down", "2 softmax0", "all"]
    assert rows["stage"] == ["bound by", "cycles", "share", "measured", "share"]
    assert len(rows["0 up"]) == 5 and rows["1 down"][-1] == "with up"
    without = table(net.explain(rows=ROWS), "Time of each stage with rows_ = 32")
    assert without["0 up"] == rows["0 up"][:3]


@pytest.mark.twice
def test_what_has_no_profile_says_so() -> None:
    net = tw.compile(SPEC)
    with pytest.raises(tw.ArgumentError, match="seconds must be positive"):
        net.profile(seconds=0)
    with pytest.raises(tw.SpecError, match="'m' is no size of the call"):
        net.profile(m=4)
    for spec in (tw.Gemm(4, 4, 4), tw.network(nn.softmax).of(x=tw.Tensor("f32", (4, 4)))):
        with pytest.raises(tw.SpecError, match="only networks that are cut into stages"):
            tw.compile(spec).profile()


# -- bytes ----------------------------------------------------------------------------------------


def test_an_explanation_counts_bytes_of_stages_and_of_operators_alone() -> None:
    title = "Bytes of each stage with rows_ = 32"
    avx2 = targets.load("avx2")
    apart, joined = (
        table(explain_plan(plan_for(SPEC, stages, avx2), {"rows_": ROWS}), title)
        for stages in (tw.Stages(), JOINED)
    )
    # A relu alone reads and writes 16 KiB. A softmax is one operator.
    assert apart["0 up"] == ["16 KiB L1", "56 KiB L2", "56 KiB", "88 KiB"]
    assert apart["1 down"] == ["8192 bytes L1", "56 KiB L2", "56 KiB", "56 KiB"]
    assert apart["2 softmax0"] == ["8192 bytes L1", "16 KiB L1", "16 KiB", "16 KiB"]
    assert apart["all"] == ["128 KiB", "160 KiB"]
    # Half of the rows at a time; the tensor between the stages stays in a cache.
    assert joined["0 up, 2 runs"] == ["8192 bytes L1", "44 KiB L2", "40 KiB", "88 KiB"]
    assert joined["1 down, 2 runs"] == ["4096 bytes L1", "44 KiB L2", "40 KiB", "56 KiB"]
    assert joined["all"] == ["96 KiB", "160 KiB"]


# -- generated C ----------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [tw.Stages(threads=2), JOINED], ids=["threads", "joined"])
@pytest.mark.parametrize("target", ["avx512", "amx", "sve256"])
def test_only_lines_that_note_times_are_added(schedule: tw.Stages, target: str) -> None:
    normal, timed = (
        generate([Request("net", SPEC, schedule, targets.load(target), stamped)]).text.splitlines()
        for stamped in (False, True)
    )
    added = [line for line in timed if "net_stamps" in line]
    programs = 2 if schedule is JOINED else 3
    assert added == [f"int64_t net_stamps[{programs + 1}];", *added[1:]]
    assert [line.split() for line in added[1:]] == [
        [f"net_stamps[{number}]", "=", "nanoseconds();"] for number in range(programs + 1)
    ]
    assert not any("stamps" in line or "nanoseconds" in line for line in normal)
    first = normal.index('#define BARRIER __asm__ volatile("" ::: "memory")')
    kept = [line for line in timed[timed.index(normal[first]) :] if "net_stamps" not in line]
    rest = iter(kept)
    assert all(line in rest for line in normal[first:]), "the same lines in the same order"
    assert len(kept) - len(normal[first:]) < 20


def test_a_time_that_is_out_of_order_is_refused() -> None:
    avx2 = targets.load("avx2")
    program = program_for(plan_for(SPEC, tw.Stages(), avx2), stamped=True)
    wrong = tuple(
        rewritten(program.nest, lambda node: Stamp(0) if isinstance(node, Stamp) else node)
    )
    with pytest.raises(PlanError, match="stamp notes time 0"):
        verified(type(program)(wrong, program.tiles, program.scratch), SPEC, avx2)
