"""The schedules worth trying for a spec: legal by construction, best expected first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tilewright.errors import SpecError
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.plan.cost_model import shape_of, tile_cycles
from tilewright.plan.plan import Plan
from tilewright.plan.planner import make_plan
from tilewright.plan.tile_shape import TileRequest, TileShape, chains_wanted
from tilewright.plan.vector_axis import legal_dimensions
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import value

#: A size known only at the call is ranked as if it were this.
TYPICAL = 256


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule worth trying, and the cycles that the cost model expects of it."""

    cycles: float
    schedule: Schedule


def variants(spec: Gemm, target: str = "host") -> Iterator[Schedule]:
    """Legal schedules for ``spec``: tiles that fit the registers, K over 1, 2 or 4 accumulator
    sets, two K unrolls, each order of the loops, each dimension the vectors may lie along.

    They come in the order of the cost model's estimate, cheapest first.
    """
    yield from (candidate.schedule for candidate in candidates(spec, target))


def candidates(spec: Gemm, target: str = "host") -> list[Candidate]:
    """What ``variants`` yields, with the estimates."""
    if not isinstance(spec, Gemm):
        raise SpecError("variants are of a Gemm", got=spec)
    resolved = resolve(target)
    ranked = [
        candidate
        for plan in _plans(spec, resolved)
        for candidate in _candidates(spec, plan, resolved)
    ]
    return sorted(ranked, key=lambda candidate: candidate.cycles)


def _plans(spec: Gemm, target: Target) -> Iterator[Plan]:
    """One plan for each dimension the vectors may lie along."""
    for dimension in legal_dimensions(spec, target):
        yield make_plan(spec, Schedule(vectorize=dimension), target)


def _candidates(spec: Gemm, plan: Plan, target: Target) -> Iterator[Candidate]:
    request = _request(plan)
    for loops, shape in product(_loops(spec), _shapes(plan, target)):
        cycles = _cycles(plan, shape, target, request)
        tile = _tile(plan, shape)
        for factor in (1, 2):
            unroll = factor * max(2, shape.k_split)
            if factor > 1 and request.depth is not None and unroll > request.depth:
                continue
            yield Candidate(
                cycles,
                Schedule(
                    tile=tile,
                    loops=loops,
                    k_unroll=unroll,
                    k_split=shape.k_split,
                    vectorize=plan.vectorize,  # type: ignore[arg-type]
                ),
            )


def _request(plan: Plan) -> TileRequest:
    """What a tile does where K is not cut."""
    return plan.tile_request(
        plan.counted(*plan.steps(plan.sizes["k"], finish=False)), accumulate=False
    )


def _loops(spec: Gemm) -> tuple[str, ...]:
    if spec.batch is None:
        return ("nmk", "mnk")
    return ("nmbk", "mnbk", "bnmk", "bmnk")


def _shapes(plan: Plan, target: Target) -> Iterator[TileShape]:
    """Every register tile that fits and is no larger than C needs."""
    across = value(plan.sizes[plan.across]) or TYPICAL
    along = value(plan.sizes[plan.along]) or TYPICAL
    for vector in plan.vectors:
        lanes = 1 if plan.dot else vector.lanes
        if along < lanes and not vector.cuts(along):
            continue
        for vectors in range(1, min(target.registers, -(-along // lanes)) + 1):
            for rows in range(1, min(target.registers, across) + 1):
                masked = vectors * lanes > along
                yield from _split(plan, target, (vector, rows, vectors, masked))


def _split(plan: Plan, target: Target, size: tuple[Vector, int, int, bool]) -> Iterator[TileShape]:
    """The accumulator sets that fit, as long as more of them can hide more latency."""
    whole = _request(plan)
    vector, rows, vectors, masked = size
    for split in whole.splits:
        shape = shape_of(target, vector, rows, vectors, masked, whole.with_split(split))
        if shape is None:
            return
        yield shape
        if shape.multiply_adds * split >= chains_wanted(shape, target.core):
            return


def _cycles(plan: Plan, shape: TileShape, target: Target, request: TileRequest) -> float:
    across = value(plan.sizes[plan.across]) or TYPICAL
    along = value(plan.sizes[plan.along]) or TYPICAL
    width = shape.vectors * (1 if plan.dot else shape.vector.lanes)
    tiles = -(-across // shape.rows) * -(-along // width)
    return tiles * tile_cycles(shape, target.core, request)


def _tile(plan: Plan, shape: TileShape) -> tuple[int, int]:
    width = shape.vectors * (1 if plan.dot else shape.vector.lanes)
    return (shape.rows, width) if plan.along == "n" else (width, shape.rows)
