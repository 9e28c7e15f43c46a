"""What is decided for a spec, without a kernel."""

from __future__ import annotations

import tilewright as tw
from tilewright.plan.plan import Plan
from tilewright.plan.planner import make_plan
from tilewright.runtime.machine.host import resolve


def plan_of(spec: tw.Gemm, schedule: tw.Schedule | None, target: str) -> Plan:
    """What is decided."""
    return make_plan(spec, schedule or tw.Schedule(), resolve(target))


def main_tiles(plan: Plan, schedule: tw.Schedule) -> list[tuple[object, ...]]:
    """The tiles of the size that ``schedule`` says; what they leave over is cut as it fits."""
    return [
        (tile.shape, tile.mr, tile.nr, tile.steps, tile.phase)
        for tile in plan.tiles
        if (tile.mr, tile.nr) == schedule.tile
    ]
