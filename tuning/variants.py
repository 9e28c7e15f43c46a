"""The schedules worth trying for a spec: legal by construction, best expected first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

from tilewright.errors import ArgumentTypeError, SpecError, TilewrightError
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.keywords import spelled
from tilewright.plan.by_rows import plan_product
from tilewright.plan.estimate.kernel import estimate
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Problem, Staging
from tilewright.plan.routines.network import stages_to_try
from tilewright.plan.routines.stack import side_by_side
from tilewright.plan.rows.plan import tile_widths, widest
from tilewright.plan.tiling.bounds import chains_wanted
from tilewright.plan.tiling.requests import request_at
from tilewright.plan.tiling.tile_costs import shape_of, tile_cycles
from tilewright.plan.tiling.tile_shape import TileRequest, TileShape
from tilewright.plan.vector_axis import legal_dimensions
from tilewright.runtime.machine.host import resolve, usable_cpus
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import ONE, value

from .nests import Nest, blocked, cycles, orders, threads_cycles

#: Value that the ranking assumes for a size known only at the call.
TYPICAL = 256
#: Number of variants for which the cost model estimates the whole kernel. These estimates take half
#: a second together.
LOOKED_AT = 200
#: Number of tiles that are tried in each nest with blocks. They are the tiles with the fewest
#: cycles when the loops around them are ignored.
_BEST = 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule worth trying, and the cycles that the cost model estimates for it."""

    cycles: float
    schedule: Schedule


@spelled(ArgumentTypeError)
def variants(
    spec: Gemm | Network, target: str = "host", *, threads: int | None = None
) -> Iterator[Schedule]:
    """Yield legal schedules for a spec, in the order of the cost model's estimate, cheapest first.

    The schedules combine tiles that fit the registers, 1, 2 or 4 accumulator sets, two K unrolls,
    each order of the loops, and each dimension that vectors may run along. If the operands are
    larger than L1, cache blocks, packing and prefetching are tried too. If a call has at least 1e8
    floating-point operations, threads are tried too.

    Parameters
    ----------
    spec : Gemm or Network
        The product, or the network. Schedules of a network with products are ``tw.Stages``.
    target : str
        The target's name.
    threads : int, optional
        Maximum number of threads; by default one for each CPU that the process may use.

    Yields
    ------
    Schedule
        The next schedule.

    Raises
    ------
    SpecError
        ``spec`` is no Gemm and no Network.

    Examples
    --------
    >>> first, *others = tw.variants(tw.Gemm(64, 48, 64), target="avx2")
    >>> first.tile is not None and len(others) > 30
    True
    """
    yield from (candidate.schedule for candidate in candidates(spec, target, threads=threads))


def candidates(
    spec: Gemm | Network, target: str = "host", *, threads: int | None = None
) -> list[Candidate]:
    """Return the schedules that ``variants`` yields, with their estimated cycles."""
    if isinstance(spec, Network):
        cpus = usable_cpus() if threads is None else threads
        return (_of_stages if spec.staged else _of_rows)(spec, resolve(target), cpus)
    if not isinstance(spec, Gemm):
        raise SpecError("variants are of a Gemm or a Network", got=spec)
    if spec.stacked:
        return _of_stack(spec, target)
    resolved = resolve(target)
    cpus = usable_cpus() if threads is None else threads
    ranked = [
        candidate
        for plan in _plans(spec, resolved)
        for candidate in (
            *_plain(spec, plan, resolved),
            *_blocked(spec, plan.staging, resolved, cpus),
        )
    ]
    ranked.sort(key=lambda candidate: candidate.cycles)
    best: dict[Schedule, Candidate] = {}
    for candidate in ranked:  # tiles of different vector widths may have the same schedule
        best.setdefault(candidate.schedule, candidate)
    found = list(best.values())
    return [*_looked_at(spec, resolved, found[:LOOKED_AT]), *found[LOOKED_AT:]]


def _of_rows(spec: Network, target: Target, threads: int) -> list[Candidate]:
    """Return a candidate for each number of columns that a row program may compute together.

    Wider ones come first. Schedules with all threads follow those with one.
    """
    widths = tile_widths(target, widest(target, spec.real))[::-1]
    shared = (None,) if threads < 2 else (None, threads)
    schedules = [Schedule(tile=(1, width), threads=some) for some in shared for width in widths]
    return [Candidate(float(place), schedule) for place, schedule in enumerate(schedules)]


def _of_stages(spec: Network, target: Target, threads: int) -> list[Candidate]:
    """Return a candidate for each way to run stages together, with one thread or with all."""
    shared = (None,) if threads < 2 else (None, threads)
    found = [way for some in shared for way in stages_to_try(spec, target, some)]
    found.sort(key=lambda way: -way[0])
    return [Candidate(-saved, stages) for saved, stages in found]


def _looked_at(spec: Gemm, target: Target, first: list[Candidate]) -> list[Candidate]:
    """Return the candidates in ``first``, ordered by estimates of their whole kernels.

    Candidates that cannot be planned are left out. The cycles of a schedule with threads are
    divided by the number of threads.
    """
    sizes = {d: TYPICAL for d, _ in spec.runtime_sizes() if d in "mnk"}
    found = []
    for candidate in first:
        schedule = candidate.schedule
        try:
            whole = estimate(plan_product(spec, schedule, target), sizes).cycles
        except TilewrightError:
            continue
        shared = threads_cycles(whole, schedule.threads)
        found.append(Candidate(shared, schedule))
    return sorted(found, key=lambda candidate: candidate.cycles)


def _of_stack(spec: Gemm, target: str) -> list[Candidate]:
    """Return candidates for a stack of products.

    A candidate loops over the products, or each lane of its vectors computes another product.
    """
    single = candidates(spec.alone(), target, threads=1)
    found = [
        Candidate(one.cycles, replace(one.schedule, loops=f"b{one.schedule.loops or 'nmk'}"))
        for one in single
    ]
    cost = side_by_side(spec, resolve(target))
    if cost is not None:
        found.append(Candidate(cost, Schedule(vectorize="b")))
    return sorted(found, key=lambda candidate: candidate.cycles)


def _plans(spec: Gemm, target: Target) -> Iterator[Plan]:
    """Yield one plan for each dimension that the vectors may run along."""
    for dimension in legal_dimensions(spec, target):
        yield plan_product(spec, Schedule(vectorize=dimension), target).nests[0]


def _plain(spec: Gemm, plan: Plan, target: Target) -> Iterator[Candidate]:
    """Yield a candidate for each tile in each order of the loops, without blocks."""
    found = list(_sized(plan, target))
    for nest in orders(spec):
        yield from _in(plan, nest, found)


def _blocked(spec: Gemm, staging: Staging, target: Target, cpus: int) -> Iterator[Candidate]:
    """Yield candidates with blocks: the best tiles in each nest that is legal for the spec."""
    for nest in blocked(staging, _sizes(staging.problem), cpus):
        axis: Any = staging.problem.vectorize
        try:
            around = plan_product(spec, nest.on(Schedule(vectorize=axis)), target).nests[0]
        except TilewrightError:
            continue
        yield from _in(around, nest, sorted(_sized(around, target), key=itemgetter(1))[:_BEST])


def _sized(plan: Plan, target: Target) -> Iterator[tuple[TileShape, float]]:
    """Yield each possible tile, and the cycles to compute all of C with tiles of this shape."""
    request, blocks = _request(plan), 1
    if "k" in plan.nest.blocks:
        blocks = -(-_sizes(plan.problem)["k"] // plan.nest.blocks["k"])
    across, along = _extents(plan.problem)
    for shape in _shapes(target, request, across, along):
        width = shape.vectors * (1 if plan.problem.dot else shape.vector.lanes)
        tiles = -(-across // shape.rows) * -(-along // width)
        yield shape, blocks * tiles * tile_cycles(shape, target.core, request)


def _in(plan: Plan, nest: Nest, sized: Iterable[tuple[TileShape, float]]) -> Iterator[Candidate]:
    """Yield the candidates for tiles inside the loops of ``nest``."""
    sizes, depth, axis = (
        _sizes(plan.problem),
        _request(plan).depth,
        cast("Any", plan.problem.vectorize),
    )
    for shape, tiles in sized:
        tile = _tile(plan.problem, shape)
        costs = cycles(plan.staging, nest, sizes, tile, tiles)
        for factor in (1, 2):
            unroll = factor * max(2, shape.k_split)
            if factor > 1 and depth is not None and unroll > depth:
                continue
            schedule = Schedule(tile=tile, k_unroll=unroll, k_split=shape.k_split, vectorize=axis)
            yield Candidate(costs, nest.on(schedule))


def _sizes(problem: Problem) -> dict[str, int]:
    return {d: value(problem.sizes[d]) or TYPICAL for d in "mnk"}


def _request(plan: Plan) -> TileRequest:
    """Return the description of the register tiles that the plan needs.

    A tile sums over all of K, or over one block if K is cut into blocks.
    """
    cut = "k" in plan.nest.blocks
    extent = plan.nest.blocks["k"] * ONE if cut else plan.problem.sizes["k"]
    here = plan.staging
    return request_at(here, plan.nest, here.counted(*here.steps(extent)), accumulate=cut)


@lru_cache(maxsize=32)
def _shapes(target: Target, request: TileRequest, across: int, along: int) -> tuple[TileShape, ...]:
    """Return each tile shape that fits the registers and is not larger than C."""
    found: list[TileShape] = []
    for vector in request.vectors:
        lanes = 1 if request.dot else vector.lanes
        if along < lanes and not vector.cuts(along):
            continue
        for vectors in range(1, min(target.registers, -(-along // lanes)) + 1):
            for rows in range(1, min(target.registers, across) + 1):
                size = vector, rows, vectors, vectors * lanes > along
                found += _split(target, request, size)
    return tuple(found)


def _split(
    target: Target, request: TileRequest, size: tuple[Vector, int, int, bool]
) -> Iterator[TileShape]:
    """Yield a tile with 1, 2 or more accumulator sets.

    More sets are tried until they do not fit the registers, or until the multiply-adds hide their
    latency.
    """
    for split in request.splits:
        shape = shape_of(target, *size, replace(request, splits=(split,)))
        if shape is None:
            return
        yield shape
        if shape.multiply_adds * split >= chains_wanted(shape, target.core):
            return


def _extents(problem: Problem) -> tuple[int, int]:
    """Return two sizes of C: across the vectors, and along them."""
    return _sizes(problem)[problem.across], _sizes(problem)[problem.along]


def _tile(problem: Problem, shape: TileShape) -> tuple[int, int]:
    width = shape.vectors * (1 if problem.dot else shape.vector.lanes)
    return (shape.rows, width) if problem.along == "n" else (width, shape.rows)
