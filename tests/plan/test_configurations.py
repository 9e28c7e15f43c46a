"""Configurations of a matrix unit: how many tiles need, and what they cost a call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.generate import plan_for, program_for
from tilewright.ir.nest import Configure
from tilewright.ir.nodes import walk
from tilewright.isa.target import Target
from tilewright.plan.estimate.kernel import estimate
from tilewright.plan.estimate.work import CONFIGURING
from tilewright.plan.tiling.configurations import configurations_of, numbered
from tilewright.plan.tiling.cost_model import configuring, ranking
from tilewright.plan.tiling.requests import request_at
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim


def amx(cycles: float | None = None) -> Target:
    """AMX, whose configurations take so many cycles."""
    target = resolve("amx")
    assert target.matrix is not None
    own = target.matrix.configuring
    matrix = replace(target.matrix, configuring=own if cycles is None else cycles)
    return replace(target, matrix=matrix)


def loaded(spec: Gemm, target: Target) -> int:
    """How many a call of fixed sizes loads."""
    program = program_for(plan_for(spec, Schedule(), target))
    changes = sum(isinstance(node, Configure) for node in walk(program.nest))
    return changes or len(program.configurations)


def test_tiles_share_a_configuration_that_their_registers_fit() -> None:
    one, other = ("16x64",) * 4, ("9x64", "16x64", "16x64")
    assert configurations_of([one, other], 8) == [0, 0]
    assert configurations_of([one, ("4x4",) * 5], 8) == [0, 1]
    assert configurations_of([one, ("4x4",) * 5, other], 8) == [0, 1, 0]
    assert numbered(other, one, 8) == [4, 0, 1]
    assert numbered(("4x4",) * 5, one, 8) is None


@pytest.mark.parametrize("type_", ["bf16", "s8"])
@pytest.mark.parametrize("size", [(64, 64, 64), (100, 100, 100), (33, 65, 128), (40, 32, 34)])
def test_an_estimate_counts_what_a_call_loads(type_: str, size: tuple[int, int, int]) -> None:
    spec, target = Gemm(*size, a=type_), amx()  # type: ignore[arg-type]
    assert target.matrix is not None
    found = estimate(plan_for(spec, Schedule(), target), {}).work[CONFIGURING]
    assert found == target.matrix.configuring * loaded(spec, target)


def test_the_more_they_cost_the_fewer_there_are() -> None:
    """100x100x100 in bf16 had four: bands of 15 and 14 rows beside 64 and 36 columns."""
    spec = Gemm(100, 100, 100, a="bf16")
    counts = [loaded(spec, amx(cycles)) for cycles in (0, 204, 5000)]
    assert counts[0] == 4
    assert counts == sorted(counts, reverse=True)
    assert counts[1] == 2


def test_a_cut_costs_its_configurations_besides() -> None:
    """With one cut for all costs, its cycles grow by what a configuration takes, or a multiple."""
    plan = plan_for(Gemm(64, 64, 64, a="bf16"), Schedule(), amx(0))
    here = plan.staging
    steps = here.counted(*here.steps(plan.problem.sizes["k"]))
    request = request_at(here, plan.nest, steps, False)
    dear = amx(204)
    cheap = ranking(plan.target, 64, 64, True, request)
    costly = ranking(dear, 64, 64, True, replace(request, unit=dear.matrix))
    free = {(each.along, each.across): each.cycles for each in cheap}
    for each in costly:
        more = each.cycles - free[each.along, each.across]
        assert more > 0
        assert more % 204 == pytest.approx(0)


def test_what_has_no_configuration_costs_none() -> None:
    for target in (resolve("avx512"), resolve("power10")):
        assert configuring([("4x4",)], target.matrix) == 0
        work = estimate(plan_for(Gemm(16, 16, 16), Schedule(), target), {}).work
        assert CONFIGURING not in work


def test_sizes_of_the_call_count_what_there_is() -> None:
    plan = plan_for(Gemm(dim("m"), 64, 64, a="s8"), Schedule(), amx())
    few, many = (estimate(plan, {"m": m}).work.get(CONFIGURING, 0.0) for m in (16, 35))
    assert 0 < few <= many
