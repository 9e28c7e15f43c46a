"""Candidate loops around register tiles: orders, cache blocks, packing, prefetch, threads.

A nest is the set of loops around a register tile. The cost of a nest is the cycles of its tiles
plus the traffic between caches. For each cache, the traffic depends on which inner loops have
operands that fit into the cache, and on how often each operand is read into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

from tilewright.isa.machine import Core
from tilewright.plan.problem import Staging
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import ITEMSIZE

#: Steps of K in a block of K. A block size is tried if K is at least 1.5 times as long.
_KC = (256, 512)
#: Share of a cache that a packed block may take. The rest is for the other operands, which must not
#: evict the block.
_SHARE = 0.5
#: The size of a block in the direction of the vectors is a multiple of this many vectors.
_VECTORS = 12
#: Distances of prefetching that are tried, in steps of K.
_AHEAD = (4, 8)
#: Factor on the estimated cycles of tiles that prefetch operands. With it, a tile with prefetching
#: ranks just after the same tile without. The model cannot estimate the gain of prefetching;
#: only a measurement shows it.
_ASKING = 1.01
#: Minimum number of floating-point operations in a call for which threads are tried, and the cycles
#: that it takes to start the threads.
_THREADED, _REGION = 1e8, 2e4
#: Number of pages that the TLB covers, bytes in a page, and cycles of a page walk.
_PAGES, _PAGE, _WALK = 64, 4096, 7
#: Dimensions of the matrices A, B and C.
_DIMENSIONS = {"a": "mk", "b": "kn", "c": "mn"}


@dataclass(frozen=True, slots=True)
class Nest:
    """The part of a schedule that describes the loops around register tiles."""

    loops: str
    block: tuple[tuple[str, int], ...] = ()
    pack: Literal["a", "b", "ab"] | None = None
    prefetch: int | None = None
    threads: int | None = None

    @property
    def plain(self) -> bool:
        """True if the nest has only an order of loops: no blocks, packing, prefetch or threads."""
        return self == Nest(self.loops)

    def on(self, schedule: Schedule) -> Schedule:
        """Return a copy of ``schedule`` whose loops are those of this nest."""
        return replace(
            schedule, loops=self.loops, block=self.block, pack=self.pack,
            prefetch=self.prefetch, threads=self.threads,
        )  # fmt: skip


def orders(spec: Gemm) -> tuple[Nest, ...]:
    """Return a nest without blocks for each order of the loops."""
    letters = ("nmk", "mnk") if spec.batch is None else ("nmbk", "mnbk", "bnmk", "bmnk")
    return tuple(map(Nest, letters))


def blocked(staging: Staging, sizes: Mapping[str, int], cpus: int) -> Iterator[Nest]:
    """Yield nests for operands larger than L1: blocks, packing, prefetch, threads.

    Some of them may not be legal for the spec.
    """
    core, spec = staging.problem.target.core, staging.problem.spec
    if staging.problem.batch is not None or footprint(staging, sizes) <= core.caches[0].size:
        return
    if staging.product.unit is None:
        yield from (replace(nest, prefetch=k) for nest in orders(spec) for k in _AHEAD)
    along = "m" if staging.problem.dot else staging.problem.along
    other = "n" if along == "m" else "m"
    packed: Literal["a", "b"] = "a" if along == "m" else "b"
    item = ITEMSIZE[staging.input_of(along).type]
    for pack in (packed, None):
        for steps in (*(kc for kc in _KC if 3 * kc <= 2 * sizes["k"]), sizes["k"]):
            length = _length(staging, steps * item)
            blocks = {} if steps == sizes["k"] else {"k": steps}
            blocks |= {along: length} if length < sizes[along] else {}
            letters = (along if along in blocks else "") + ("k" if "k" in blocks else "")
            if blocks or pack:
                yield Nest(f"{letters}{other}{along}k", tuple(sorted(blocks.items())), pack)
    if cpus > 1 and spec.flops(sizes) >= _THREADED and not spec.outputs:
        for nest in orders(spec):
            yield replace(nest, loops=nest.loops.upper().replace("K", "k"), threads=cpus)


def _length(staging: Staging, line: int) -> int:
    """Return the size of a packed block in the direction of the vectors.

    ``line`` is the bytes of one row or column of the block. The block may fill half of L2.
    """
    caches = staging.problem.target.core.caches
    size = caches[min(1, len(caches) - 1)].size
    whole = _VECTORS * staging.lanes
    return max(whole, int(_SHARE * size / line) // whole * whole)


def footprint(staging: Staging, sizes: Mapping[str, int]) -> int:
    """Return the bytes that A, B and C have together."""
    return sum(_bytes(staging, name, sizes) for name in "abc")


def _bytes(staging: Staging, name: str, extents: Mapping[str, int]) -> int:
    operand = staging.output if name == "c" else staging.operands[name]
    return prod(extents[d] for d in _DIMENSIONS[name]) * ITEMSIZE[operand.type]


# --- costs of a nest ---------------------------------------------------------------------------


def cycles(
    staging: Staging, nest: Nest, sizes: Mapping[str, int], tile: tuple[int, int], tiles: float
) -> float:
    """Return the cycles of a whole call. ``tiles`` is the cycles of its register tiles alone."""
    core = staging.problem.target.core
    moved = [*_traffic(staging, nest, sizes, tile, core), _walks(staging, nest, sizes, tile)]
    bounds = [tiles * (1 if nest.prefetch is None else _ASKING), *moved]
    total = (
        max(bounds) + core.overlap * (sum(bounds) - max(bounds)) + _packing(staging, nest, sizes)
    )
    return threads_cycles(total, nest.threads)


def threads_cycles(total: float, threads: int | None) -> float:
    """Return the cycles of a call whose ``total`` cycles of work are divided among the threads.

    The result includes the cost of starting the threads.
    """
    return total if threads is None else total / threads + _REGION


def _traffic(
    staging: Staging, nest: Nest, sizes: Mapping[str, int], tile: tuple[int, int], core: Core
) -> Iterator[float]:
    """Yield, for each cache, the cycles to read data into it from the next cache or memory."""
    loops = list(_loops(nest, sizes, tile))
    beyond = [*(cache.rate for cache in core.caches[1:]), core.memory]
    for cache, rate in zip(core.caches, beyond, strict=True):
        extents, around = dict(sizes), []
        for loop in loops:
            if footprint(staging, extents) <= cache.size:
                break
            around.append(loop)
            extents[loop[0]] = min(extents[loop[0]], loop[1])
        stays = footprint(staging, extents) <= cache.size
        if around:
            yield sum(_passes(staging, name, extents, around, stays) for name in "abc") / rate


def _passes(
    staging: Staging,
    name: str,
    extents: Mapping[str, int],
    around: list[tuple[str, int, int]],
    stays: bool,
) -> float:
    """Return the bytes of an operand that are read into a cache while the loops ``around`` run.

    ``extents`` are the sizes of the part that one iteration of these loops computes. ``stays`` is
    True if the cache holds the operands of such a part. Then the innermost loops over other
    dimensions than the operand's add no traffic.
    """
    while stays and around and around[-1][0] not in _DIMENSIONS[name]:
        around = around[:-1]
    each = _bytes(staging, name, extents) * (2 if name == "c" else 1)
    return float(each * prod(trips for _, _, trips in around))


def _loops(
    nest: Nest, sizes: Mapping[str, int], tile: tuple[int, int]
) -> Iterator[tuple[str, int, int]]:
    """Yield (dimension, step, trips) of each loop around register tiles, outermost first."""
    left, blocks = dict(sizes), dict(nest.block)
    letters = nest.loops.lower()
    for i, letter in enumerate(letters):
        last = letter not in letters[i + 1 :]
        if letter == "b" or (letter == "k" and last):
            continue
        step = dict(zip("mn", tile, strict=True))[letter] if last else blocks[letter]
        yield letter, step, ceil(left[letter] / step)
        left[letter] = min(left[letter], step)


def _packing(staging: Staging, nest: Nest, sizes: Mapping[str, int]) -> float:
    """Return the cycles that it takes to copy each packed operand once."""
    core = staging.problem.target.core
    each = max(1 / core.loads, 1 / core.stores) / staging.lanes
    names = nest.pack or ""
    moved = sum(_bytes(staging, name, sizes) for name in names)
    held = next((c.rate for c in core.caches if footprint(staging, sizes) <= c.size), core.memory)
    return sum(prod(sizes[d] for d in _DIMENSIONS[name]) for name in names) * each + moved / held


def _walks(staging: Staging, nest: Nest, sizes: Mapping[str, int], tile: tuple[int, int]) -> float:
    """Return the cycles of page walks; 0 if the TLB covers the pages that a tile reads.

    Consecutive steps of K may be in different pages if the operand is not packed.
    """
    line = staging.input_of("m" if staging.problem.dot else staging.problem.along)
    if staging.problem.dot or (nest.pack and line.name in nest.pack) or line.packed:
        return 0.0
    apart = sizes["n" if line.name == "b" else "m"] * ITEMSIZE[line.type]
    steps = dict(nest.block).get("k", sizes["k"])
    if steps * min(apart, _PAGE) <= _PAGES * _PAGE:
        return 0.0
    tiles = ceil(sizes["m"] / tile[0]) * ceil(sizes["n"] / tile[1])
    return float(_WALK * tiles * sizes["k"] * min(1.0, apart / _PAGE))
