"""What is decided for a spec, without a kernel."""

from __future__ import annotations

import tilewright as tw
from tilewright.plan.by_rows import plan_product
from tilewright.plan.plan import Plan
from tilewright.runtime.machine.host import resolve


def plan_of(spec: tw.Gemm, schedule: tw.Schedule | None, target: str) -> Plan:
    """What is decided; for few rows where the rows of the call choose a nest."""
    return nests_of(spec, schedule, target)[0]


def nests_of(spec: tw.Gemm, schedule: tw.Schedule | None, target: str) -> tuple[Plan, ...]:
    """One plan, or two: for few rows and for many."""
    return plan_product(spec, schedule or tw.Schedule(), resolve(target)).nests


def unpack_rows_of(spec: tw.Gemm, schedule: tw.Schedule | None, target: str) -> int:
    """From how many rows on B is unpacked first."""
    found = plan_product(spec, schedule or tw.Schedule(), resolve(target))
    assert len(found.nests) > 1 and found.unpack_rows is not None
    return found.unpack_rows


def main_tiles(plan: Plan, schedule: tw.Schedule) -> list[tuple[object, ...]]:
    """The tiles of the size that ``schedule`` says; what they leave over is cut as it fits."""
    return [
        (tile.shape, tile.mr, tile.nr, tile.steps, tile.phase)
        for tile in plan.tiling.tiles
        if (tile.mr, tile.nr) == schedule.tile
    ]
