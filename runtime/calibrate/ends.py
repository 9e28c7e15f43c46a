"""Fit numbers of the cost model that no simple loop can measure, to the times of whole kernels.

Each kernel computes a product in register tiles of one size; each product has kernels with many
tile sizes. Some numbers of a core cannot be measured in a simple loop: ``overlap`` and ``strain``
of the K loop, the share of loads that remain possible beside multiply-adds, and ``idle``,
``hidden`` and ``late`` of a tile's end. All combinations of a few values are tried. The combination
whose estimates are nearest to the measured times is taken; among equals, the combination nearest to
the old numbers.

After that, ``crossing`` and ``contention`` are fitted to kernels whose vectors of B begin anywhere
in a cache line. Such a load may take longer beside multiply-adds than alone. It may also delay
multiply-adds if loads and multiply-adds take about the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.plan.routine import routine_of
from tilewright.plan.tiling.requests import request_at
from tilewright.plan.tiling.tile_costs import tile_cycles
from tilewright.plan.tiling.tile_shape import TileRequest, TileShape
from tilewright.plan.tiling.tiles import grids_of
from tilewright.runtime.call import dispatch
from tilewright.runtime.driver import compile_many
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import value

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel

#: Sizes of the timed kernels: rows of C, columns of C in vectors, and K.
SIZES = (
    (24, 4, 64), (24, 3, 24), (48, 2, 32), (24, 4, 3), (12, 4, 8), (12, 2, 4), (16, 1, 16),
    (6, 1, 64), (1, 4, 64),
)  # fmt: skip
#: Sizes of timed kernels with vectors of half the width, which tails often use.
HALVES = ((24, 1, 64), (24, 1, 8))
#: Register tiles of the timed kernels: rows, and columns in vectors.
TILES = (
    (1, 4), (2, 2), (4, 1), (8, 1), (3, 2), (4, 2), (6, 2), (12, 2), (2, 4), (4, 4), (6, 4),
    (4, 3), (8, 3), (24, 1), (12, 1), (6, 1), (16, 1), (2, 1),
)  # fmt: skip
#: Sizes and tiles of timed kernels in which vectors of B cross into a second cache line.
SKEWED_SIZES = ((24, 6, 32), (24, 4, 32))
SKEWED_TILES = ((4, 6), (6, 4), (3, 4), (2, 4), (8, 3), (3, 3), (12, 2), (4, 2))
#: Number of unused elements after each row of B in kernels whose vectors of B shall cross cache
#: lines. They shift each row against the cache lines.
SKEW = 1
#: The arrays of a kernel begin 0, 1 and 2 times this many bytes after the start of a page. If the
#: distances were equal, loads from one array could wait for stores to another.
_SKIP = 17 * 64
#: Factors that are tried on ``Core.loads``: multiply-adds may reduce the loads of a cycle.
LOADS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
#: Values to try for each parameter of a core's model that describes a K loop.
K_LOOP: Mapping[str, Sequence[float]] = {
    # None of them may be 0. Without ``overlap``, a tile with many loads would seem as fast as one
    # with few loads. Without ``strain``, few accumulators would seem as fast as many.
    "overlap": (1 / 48, 1 / 24, 1 / 16, 1 / 12, 1 / 6, 1 / 3),
    "strain": (1 / 48, 1 / 24, 1 / 12, 1 / 6, 1 / 3),
}
#: Values to try for each parameter of a core's model that describes the end of a tile.
ENDS: Mapping[str, Sequence[float]] = {
    "idle": (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0),
    "hidden": (0, 4, 8, 12, 16, 24),
    "late": (0.5, 1.0, 1.5, 2.0, 3.0),
}
#: Factors that are tried on ``Core.crossing``, the extra loads that a load across two lines costs.
CROSSING = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
CONTENTION = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)
Array = np.ndarray[Any, Any]
#: Errors of the cost model are rounded to this many decimal digits before they are compared.
_DIGITS = 3


@dataclass(frozen=True)
class Sample:
    """A kernel to be timed, with its tiles and how often each tile is called."""

    kernel: Kernel
    tiles: tuple[tuple[TileShape, TileRequest, int], ...]

    @property
    def skewed(self) -> bool:
        """True if vectors of B cross into a second cache line."""
        return any(shape.stride % shape.vector.nbytes for shape, _, _ in self.tiles)

    def estimate(self, core: Core) -> float:
        """Return the cycles that the cost model estimates with the numbers of ``core``."""
        return sum(count * tile_cycles(shape, core, asked) for shape, asked, count in self.tiles)


def samples(target: Target) -> list[Sample]:
    """Return the kernels to be timed, compiled into one library."""
    asked = list(_requests(target.of("f32")[0].lanes, target.registers))
    kernels = compile_many([(spec, schedule, target.name) for spec, schedule in asked])
    return [_sample(kernel) for kernel in kernels]


def _requests(lanes: int, registers: int) -> Iterator[tuple[Gemm, Schedule]]:
    """Yield specs with schedules: each size with each tile that divides it and fits registers."""
    asked = (
        (SIZES, TILES, lanes, 0),
        (HALVES, TILES, lanes // 2, 0),
        (SKEWED_SIZES, SKEWED_TILES, lanes, SKEW),
    )
    for sizes, tiles, each, skew in asked:
        for (m, vectors, k), (mr, along) in product(sizes, tiles):
            if m % mr == 0 and vectors % along == 0 and mr * along + along + 1 < registers:
                spec = Gemm(m, vectors * each, k, ldb=vectors * each + skew if skew else None)
                yield spec, Schedule(tile=(mr, along * each), vectorize="n")


def _sample(kernel: Kernel) -> Sample:
    (plan,) = routine_of(kernel.plan).nests(kernel.plan)
    request = request_at(plan.staging, plan.nest, plan.problem.sizes["k"], False)
    grids = grids_of(plan.tiling.passes["whole"])
    tiles = (
        (g.tile.shape, request, (value(g.along.count) or 1) * (value(g.across.count) or 1))
        for g in grids
    )
    return Sample(kernel, tuple(tiles))


class Call:
    """A call of a kernel on arrays of its sizes, which can be timed in a C loop."""

    def __init__(self, kernel: Kernel) -> None:
        spec = kernel.spec
        assert isinstance(spec, Gemm) and isinstance(spec.n, int)
        skew = 0 if spec.ldb is None else SKEW
        shapes = (spec.m, spec.k), (spec.k, spec.n + skew), (spec.m, spec.n)
        arrays = [_ones(shape, number * _SKIP) for number, shape in enumerate(shapes)]
        arrays[1] = arrays[1][:, : spec.n]
        self._frame = kernel.frame(*arrays)

    def seconds(self, calls: int) -> float:
        """Return the seconds of a call, averaged over ``calls``."""
        words = dispatch.address(self._frame.words)
        return dispatch.timer("a calibration")(words, 1, calls) / calls


def _ones(shape: tuple[Any, Any], skip: int) -> Any:
    """Return an array of ones that begins ``skip`` bytes after the start of a page."""
    page, count = 4096, int(shape[0] * shape[1])
    memory = np.full(count + (page + skip) // 4, 1.0, np.float32)
    begin = (-memory.ctypes.data % page + skip) // 4
    return memory[begin : begin + count].reshape(shape)


def fitted(core: Core, found: list[Sample], cycles: list[float], call: float) -> Core:
    """Return ``core`` with the numbers whose estimates come nearest to the measured ``cycles``.

    ``call`` is the part of ``cycles`` that an empty call takes.
    """
    measured = [max(1.0, each - call) for each in cycles]
    pairs = list(zip(found, measured, strict=True))
    whole = [(sample, taken) for sample, taken in pairs if not sample.skewed]
    best = _fitted(core, [sample for sample, _ in whole], np.array([taken for _, taken in whole]))
    skewed = [(sample, taken) for sample, taken in pairs if sample.skewed]
    loads = dict.fromkeys(float(f"{core.crossing * times:.2g}") for times in CROSSING)
    tried = [replace(best, crossing=n, contention=c) for c, n in product(CONTENTION, loads)]
    samples, taken = [sample for sample, _ in skewed], [taken for _, taken in skewed]
    return min(tried, key=lambda each: error(each, samples, taken))


def _fitted(core: Core, found: list[Sample], measured: Array) -> Core:
    """Return ``core`` with those numbers of K loops and tile ends that fit the times best.

    The cost of a tile's end is added to the cost of the K loop, so pairs of both are compared by
    their sums.
    """
    bare = replace(core, idle=0, hidden=0, late=0)
    loops = [
        _with_loads(replace(bare, **numbers), share)
        for share, numbers in product(LOADS, _combined(K_LOOP))
    ]
    tails = [replace(bare, **numbers) for numbers in _combined(ENDS)]
    in_loops = np.array([[sample.estimate(each) for sample in found] for each in loops])
    whole = np.array([[sample.estimate(each) for sample in found] for each in tails])
    ends = whole - np.array([sample.estimate(bare) for sample in found])
    best: tuple[float, float, Core] | None = None
    for loop, row in zip(loops, in_loops, strict=True):
        strays = np.abs(np.log((row + ends) / measured)).mean(axis=1).round(_DIGITS)
        at = min(range(len(tails)), key=lambda i: (strays[i], _moved(tails[i], core, ENDS)))
        moved = (
            _moved(loop, core, K_LOOP) + _moved(tails[at], core, ENDS) + 1 - loop.loads / core.loads
        )
        if best is None or (strays[at], moved) < best[:2]:
            numbers = {name: getattr(tails[at], name) for name in ENDS}
            best = float(strays[at]), moved, replace(loop, **numbers)
    assert best is not None
    return best[2]


def _combined(values: Mapping[str, Sequence[float]]) -> Iterator[dict[str, Any]]:
    """Yield all combinations of the values that are tried, each as a dict by name."""
    return (dict(zip(values, each, strict=True)) for each in product(*values.values()))


def _with_loads(core: Core, share: float) -> Core:
    """Return ``core`` with its loads per cycle times ``share``, for narrower vectors too."""
    widths = (replace(width, loads=width.loads * share) for width in core.widths)
    return replace(core, loads=core.loads * share, widths=tuple(widths))


def _moved(core: Core, before: Core, values: Mapping[str, Sequence[float]]) -> float:
    """Return how far numbers are from those of ``before``, relative to the largest values tried."""
    each = (abs(getattr(core, n) - getattr(before, n)) / max(values[n]) for n in values)
    return float(sum(each))


def error(core: Core, found: list[Sample], measured: list[float]) -> float:
    """Return the mean distance between the logarithms of estimates and of measured cycles.

    The result is rounded to ``_DIGITS``, since smaller differences are noise.
    """
    strays = (
        abs(log(sample.estimate(core) / cycles))
        for sample, cycles in zip(found, measured, strict=True)
    )
    return round(float(sum(strays)) / len(measured), _DIGITS)
