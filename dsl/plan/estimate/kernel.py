"""Estimate the cycles of a whole kernel: its tiles, packing, and transfers from the caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd, prod

from sympy import Expr, floor

from tilewright.isa.machine import Core
from tilewright.plan.operands import Operand
from tilewright.plan.plan import ByRows, Plan
from tilewright.plan.problem import NOMINAL, Staging
from tilewright.plan.tiling.configurations import Shape, configurations_of, register_shapes
from tilewright.plan.tiling.parts import Part
from tilewright.plan.tiling.tile_shape import TileRequest
from tilewright.plan.tiling.tiles import (
    Either,
    FirstOrLater,
    Grid,
    Grids,
    InOrder,
    OneBlock,
    OverBatch,
    OverBlocks,
    OverEqual,
    PackedBlock,
    PackedRows,
    RegisterTile,
    Step,
    SummedBlock,
)
from tilewright.spec.gemm import SHAPES
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ZERO, evaluate

from ..tiling.requests import request_at
from .caches import (
    PAGE,
    PAGES,
    Cycles,
    Lines,
    Nest,
    Pages,
    Piece,
    Region,
    Repeat,
    Series,
    coming,
    scattered,
    work,
)
from .threads import COPY_LINES, busiest, split
from .work import CONFIGURING, CONVERTING, PACKING, convert_cycles, move_cycles, peak, tile_work

#: The dimensions of each operand. A buffer of sums has the dimensions of C.
_DIMENSIONS = {name: SHAPES[name] for name in "abc"}
#: A byte of C is transferred twice: it is read and written.
_MOVED: Mapping[str, float] = {"c": 2}
#: The number of cycles in which a core looks up a page that is not in the TLB.
_LOOK_UP = 7
#: A cache line from L3 or memory takes this many times as long if it was not prefetched.
_LATE = 2.5
#: Work hides the transfer of cache lines that were not prefetched, except this share of its time.
_EXPOSED = 0.3
#: A core can use only this share of its part of the last cache. Other cores use the rest.
_SHARED = 0.5


@dataclass(frozen=True, slots=True)
class Arrival:
    """The number of bytes that come from one cache or from memory, and the cycles that this takes.

    ``late`` is the share of these cycles in which cache lines arrive that were not prefetched.
    """

    bytes: float
    cycles: float
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated time of one call of a kernel.

    - ``cycles``: the time of the call.
    - ``least``: the cycles if every multiply-add ran at the peak.
    - ``work``: cycles with all data in L1, by what limits them. These times follow each other.
    - ``arrivals``: transfers from the other caches and from memory, by name, nearest first. They
      happen while the kernel works.
    - ``pages``: lookups of pages that are not in the TLB.
    - ``operands``: the size of all operands in bytes.
    """

    cycles: float
    least: float
    work: Mapping[str, float]
    arrivals: Mapping[str, Arrival]
    pages: Arrival
    operands: float

    @property
    def bound(self) -> str:
        """The name of what limits the speed; "nothing" if there is no work and no transfer.

        It is the longest transfer if this takes longer than all work, else the longest part of the
        work.
        """
        waits = {name: each.cycles for name, each in self.arrivals.items()}
        waits["page lookups"] = self.pages.cycles
        total = sum(self.work.values())
        longest = max(waits, key=lambda name: waits[name])
        if waits[longest] > total:
            return longest
        return max(self.work, key=lambda name: self.work[name]) if total else "nothing"


def estimate(
    plan: Plan | ByRows, sizes: Mapping[str, int], *, cold: bool = False, threads: int = 1
) -> Estimate:
    """Return the estimated time of a call on the plan's core.

    ``sizes`` are the sizes of the call by name, for example "m"; a missing one is taken as
    ``NOMINAL``. Operands are in memory before the call if ``cold``, else in the nearest cache that
    is large enough for all. With several ``threads``, it is the time of the busiest thread: its
    iterations of each parallel loop, and the cost of each parallel region.
    """
    core = plan.target.core
    nest, least = nest_of(plan, sizes, parallel=threads > 1)
    if threads > 1:
        nest, least = busiest(nest, core, threads), least / threads
    return estimate_of(core, nest, least, cold=cold)


def nest_of(
    product: Plan | ByRows, sizes: Mapping[str, int], *, parallel: bool = False
) -> tuple[Nest, float]:
    """Return a kernel's loops and work as a nest, and the cycles of its multiply-adds at the peak.

    If ``parallel``, loops whose iterations threads may share are marked as such.
    """
    return _nest_at(product, tuple(sizes.items()), parallel)


@lru_cache(maxsize=1024)
def _nest_at(
    product: Plan | ByRows, given: tuple[tuple[str, int], ...], parallel: bool
) -> tuple[Nest, float]:
    sizes = dict(given)
    plan, *later = product.nests
    slots = dict.fromkeys(plan.slots, NOMINAL) | sizes
    for count, other in zip(product.conditions, later, strict=True):
        plan = other if evaluate(count, slots) else plan
    slots = dict.fromkeys(plan.slots, NOMINAL) | sizes
    extents = {d: evaluate(plan.problem.sizes[d], slots) for d in "mnk"}
    slots |= _leading(plan, extents, sizes)
    walk = _Walk(
        plan, plan.staging, slots, extents, configured=_configured(plan), parallel=parallel
    )
    multiply_adds = plan.spec.flops({**extents, "count": walk.count}) / 2
    return walk.whole(), multiply_adds / peak(plan)


def _configured(plan: Plan) -> dict[int, int]:
    """Map the number of each tile to the configuration of the matrix unit that it uses."""
    unit, used = plan.target.matrix, dict[int, tuple[Shape, ...]]()
    for tile in plan.tiling.tiles:
        across = tile.extent(plan.problem.across)
        last = tile.shape.vector.lanes if tile.active is None else tile.active
        if shapes := register_shapes(tile.shape, across, last):
            used[tile.number] = shapes
    if unit is None or not unit.configuring:
        return {}
    return dict(zip(used, configurations_of(used.values(), unit.most), strict=True))


def _leading(plan: Plan, extents: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes with missing leading dimensions: the length of a row (or column)."""
    found: dict[str, int] = {}
    for name, along in (*_DIMENSIONS.items(), ("d", "mn")):
        operand = plan.staging.operands.get(name)
        if operand is not None and f"ld{name}" in plan.slots:
            line = next((d for d in along if operand.strides[d] == 1), along[-1])
            found[f"ld{name}"] = extents[line]
    return found | dict(sizes)


def estimate_of(
    core: Core, nest: Nest, least: float, *, cold: bool, moved: Mapping[str, float] = _MOVED
) -> Estimate:
    """Return the estimate of a nest on ``core``; at the core's peak it takes ``least`` cycles.

    ``moved`` has how often a byte of an operand is transferred, if this is not once.
    """
    done, apart = work(nest), scattered(nest)
    arrivals = dict(_arrivals(core, nest, done.crowded, apart, cold, moved))
    looked_up = sum(coming(nest, Pages(PAGES), cold=cold).values())
    pages = Arrival(looked_up * PAGE, looked_up * _LOOK_UP)
    late = max(each.late for each in arrivals.values())
    parts = [(done.total, late), (pages.cycles, late)]
    parts += [(each.cycles, each.late) for each in arrivals.values()]
    (cycles, _), *others = sorted(parts, reverse=True)
    cycles += sum(other * max(core.overlap, _EXPOSED * share) for other, share in others)
    operands = sum(region.units(core.line) for region in nest.regions.values()) * core.line
    return Estimate(cycles, least, done.bounds, arrivals, pages, operands)


def _arrivals(
    core: Core,
    nest: Nest,
    crowded: float,
    apart: Mapping[str, float],
    cold: bool,
    often: Mapping[str, float],
) -> Iterator[tuple[str, Arrival]]:
    """Yield the transfers from each cache except L1, and from memory.

    ``crowded`` further bytes come from L2. The share ``apart`` of an operand is not prefetched.
    """
    names = [*(f"L{i + 2}" for i in range(len(core.caches) - 1)), "memory"]
    rates = [*(cache.rate for cache in core.caches[1:]), core.memory]
    for i, (cache, name, rate) in enumerate(zip(core.caches, names, rates, strict=True)):
        last = name == "memory"
        held = Lines(int(cache.size * (_SHARED if last else 1)), core.line, places=not last)
        total, cycles = (0.0, 0.0) if i else (crowded, crowded / rate)
        behind = cycles
        for operand, moved in coming(nest, held, cold=cold).items():
            both = moved * often.get(operand, 1)
            late = 1 + apart[operand] * (_LATE - 1) if i else 1.0
            total, cycles = total + both, cycles + both / rate * late
            behind += both / rate * late * apart[operand]
        yield name, Arrival(total, cycles, behind / cycles if cycles else 0.0)


@dataclass(frozen=True, slots=True)
class _Walk:
    """A walk through a plan's loops, which turns its steps into a nest.

    - ``plan``: the plan whose loops are followed.
    - ``here``: the operands as tiles read them in the current block.
    - ``sizes``: values of the call's sizes, and of the sizes and counters of loops around.
    - ``extents``: number of rows, columns and K steps of the current block.
    - ``packed``: names of the operands that tiles read from packed buffers.
    - ``configured``: the configuration of the matrix unit for each tile, by the tile's number.
    - ``parallel``: True if threads may share the loops inside, because no parallel loop is around.
    """

    plan: Plan
    here: Staging
    sizes: Mapping[str, int]
    extents: Mapping[str, int]
    packed: str = ""
    configured: Mapping[int, int] = field(default_factory=dict)
    parallel: bool = False
    requests: dict[int, TileRequest] = field(default_factory=dict)

    def number(self, expr: Expr) -> int:
        """Return the value of ``expr``, rounded down: a stride may be a fraction of an element."""
        return evaluate(floor(expr) if expr.is_Rational else expr, self.sizes)

    @property
    def count(self) -> int:
        """The number of matrices in the batch; 1 without a batch."""
        return self.number(self.plan.problem.matrices)

    def whole(self) -> Nest:
        """Return the nest of the kernel: conversions of whole operands, then each pass over C."""
        converted = [self._converted(name) for name in self.plan.staging.sources]
        ways = map(self.step, self.plan.tiling.passes.values())
        once = [self._configuring()] if self._count_of_configurations == 1 else []
        return self.series([*once, *converted, *ways], frozenset())

    @property
    def _count_of_configurations(self) -> int:
        return len(set(self.configured.values()))

    def _configuring(self) -> Piece:
        """Return the work of loading one configuration of the matrix unit."""
        unit = self.plan.target.matrix
        assert unit is not None
        return Piece({}, Cycles({CONFIGURING: unit.configuring}))

    def _converted(self, name: str) -> Piece:
        """Return the work of converting a whole operand."""
        plan = self.plan
        elements = prod(self.extents[d] for d in _DIMENSIONS[name]) * self.count
        source = self._region_of(name, plan.staging.sources[name], self.extents)
        regions = {f"{name} source": source, name: self.region(name, self.extents)}
        return Piece(regions, Cycles({CONVERTING: elements * convert_cycles(plan)}))

    def inside(self, letter: str, extent: int, **sizes: int) -> _Walk:
        extents = {**self.extents, letter: extent}
        return replace(self, extents=extents, sizes={**self.sizes, **sizes})

    def moves(self, letter: str) -> frozenset[str]:
        """Return the operands of which each iteration of a ``letter`` loop uses another part."""
        names = [name for name, along in _DIMENSIONS.items() if letter in along]
        return frozenset((*names, *(f"{n} packed" for n in names if n in self.packed)))

    def called(self, name: str) -> str:
        """Return the name of the region that tiles read: the operand or its packed buffer."""
        return f"{name} packed" if name in self.packed else name

    # --- regions of memory -----------------------------------------------------------------------

    def region(self, name: str, extents: Mapping[str, int]) -> Region:
        """Return the region of an operand that a block with ``extents`` uses."""
        operand = self.plan.staging.output if name == "c" else self.here.operands[name]
        return self._region_of(name, operand, extents)

    def _region_of(self, name: str, operand: Operand, extents: Mapping[str, int]) -> Region:
        item, along = ITEMSIZE[operand.type], _DIMENSIONS[name]
        count = self.count if name != "c" and "b" in self.plan.nest.inner else 1
        if "pn" in operand.strides or "pm" in operand.strides:
            size = float(prod(extents[d] for d in along) * item * count)
            return Region(1, size, size)
        inner, outer = sorted(along, key=lambda d: self.number(operand.strides[d]))
        run, stride = (
            float(x * item) for x in (extents[inner], self.number(operand.strides[outer]))
        )
        if run >= stride or extents[outer] == 1:
            return Region(count, run * extents[outer], run * extents[outer])
        return Region(extents[outer] * count, run, stride)

    def regions(self, parts: Sequence[Nest], extents: Mapping[str, int]) -> dict[str, Region]:
        """Return the regions that nests use together, for a block with ``extents``."""
        found: dict[str, Region] = {}
        for part in parts:
            for name, region in part.regions.items():
                if name.partition(" ")[0] in _DIMENSIONS and name == self.called(name[0]):
                    found[name] = self.region(name[0], extents)
                elif name not in found or found[name].span < region.span:
                    found[name] = region
        return found

    def series(self, parts: Sequence[Nest], moves: frozenset[str]) -> Nest:
        """Return the given nests as one nest. They run in order and together cover the block."""
        if len(parts) == 1:
            return parts[0]
        return Series(tuple(parts), moves, self.regions(parts, self.extents))

    def repeat(
        self, d: str, trips: int, body: Nest, extents: Mapping[str, int], *, parallel: bool = False
    ) -> Nest:
        """Return a loop over dimension ``d``, whose iterations cover a block with ``extents``."""
        if trips == 1:
            return body
        return Repeat(trips, self.moves(d), body, self.regions([body], extents), parallel)

    def shares(self, d: str) -> bool:
        """Return True if threads share the loop over tiles along a dimension."""
        letters = self.plan.nest.outer
        return self.parallel and letters[letters.lower().rfind(d) :][:1].isupper()

    # --- loops -----------------------------------------------------------------------------------

    def step(self, step: Step) -> Nest:
        """Return the nest of a step of the plan."""
        match step:
            case Grids():
                return self._cells(step)
            case PackedBlock():
                return self._packed(step)
            case SummedBlock():
                parts = *[self.step(step.fill)] * len(step.sums), self.step(step.finish)
                return Series(parts, frozenset(), self.regions(parts, self.extents))
            case PackedRows():
                elements = self.extents["m"] * self.extents["n"]
                once = Piece({}, Cycles({PACKING: elements * move_cycles(self.plan.staging, "d")}))
                return self.series([self.step(step.body), once], frozenset())
            case FirstOrLater():
                return self.step(step.later if self.sizes[step.counter] else step.first)
            case InOrder():
                running = [each for part in step.parts if (each := self._running(part))]
                return self.series([*map(self.step, running)], self.moves(step.letter))
            case Either():
                return self.step(InOrder("", (step,)))
            case OneBlock():
                return self.inside(step.letter, self.number(step.extent)).step(step.body)
            case OverBatch():
                return self._over_batch(step)
            case OverBlocks():
                return self._over_blocks(step)
            case OverEqual():
                return self._over_equal(step)

    def _over_batch(self, step: OverBatch) -> Nest:
        moves = frozenset((*"ab", *(f"{name} packed" for name in self.packed)))
        later = self.count - 1
        parts = [self.step(step.first)]
        if step.later is not None and later > 0:
            body = self.step(step.later)
            parts.append(Repeat(later, moves, body, self._of_batch(body, later)))
        return Series(tuple(parts), moves, self._of_batch(parts[0], self.count))

    def _of_batch(self, body: Nest, count: int) -> dict[str, Region]:
        """Return the memory that ``count`` batch elements use; ``body`` is the nest of one."""
        return {
            name: region if name == "c" else Region(count, region.span, region.span)
            for name, region in body.regions.items()
        }

    def _running(self, step: Step | None) -> Step | None:
        """Return the step that runs in place of ``step`` at these sizes; None if none does."""
        match step:
            case Either():
                return self._running(step.body if self.number(step.count) else step.otherwise)
            case OverBlocks() if self.number(step.trips) <= step.first:
                return None
        return step

    def _over_blocks(self, step: OverBlocks) -> Nest:
        shared, trips = self.parallel and step.parallel, self.number(step.trips) - step.first
        around = replace(self, parallel=self.parallel and not shared)
        body = around.inside(step.letter, step.size).step(step.body)
        extents = {**self.extents, step.letter: trips * step.size}
        return self.repeat(step.letter, trips, body, extents, parallel=shared)

    def _over_equal(self, step: OverEqual) -> Nest:
        letter = step.letter
        trips = self.number(step.trips)
        sizes, parallel = {**self.sizes, step.count: trips}, self.parallel and step.parallel
        size = evaluate(step.size, sizes)
        sizes = {**sizes, step.step: size}
        around = replace(self, sizes=sizes, parallel=self.parallel and not parallel)

        def at(i: int) -> Nest:
            elements = evaluate(step.elements, {**sizes, step.counter: i})
            named = {step.here: elements, step.counter: i}
            return around.inside(letter, elements, **named).step(step.body)

        parts = [at(0)]
        if parallel and trips > 1:
            moves, regions = self.moves(letter), self.regions(parts, self.extents)
            last = evaluate(step.elements, {**sizes, step.counter: trips - 1}) / size
            return Repeat(trips, moves, parts[0], regions, parallel=True, last=last)
        if trips > 2:
            extents = {**self.extents, letter: (trips - 2) * size}
            parts.append(self.repeat(letter, trips - 2, at(1), extents))
        if trips > 1:
            parts.append(at(trips - 1))
        return self.series(parts, self.moves(letter))

    def _packed(self, step: PackedBlock) -> Nest:
        """Return the packing of a block, followed by the nest that reads it."""
        name = step.operand.name
        elements = prod(self.extents[d] for d in _DIMENSIONS[name])
        held = replace(self, here=self.here.holding(step.operand), packed=self.packed + name)
        regions = {
            name: self.region(name, self.extents),
            f"{name} packed": held.region(name, self.extents),
        }
        same = self.plan.staging.unpacks or self.here.operands[name].type == step.operand.type
        each = move_cycles(self.plan.staging, name) if same else convert_cycles(self.plan)
        once = Piece(regions, Cycles({PACKING if same else CONVERTING: elements * each}))
        fill = split(once, self.extents["k"] // COPY_LINES) if self.parallel else once
        body = held.step(step.body)
        return Series((fill, body), frozenset(), self.regions((fill, body), self.extents))

    # --- grids -----------------------------------------------------------------------------------

    def _cells(self, step: Grids) -> Nest:
        parts: list[Nest] = []
        for cell in step.cells:
            at = {d: part for d, part in (("m", cell.m), ("n", cell.n)) if part is not None}
            sizes = {d: self.number(part.size) for d, part in at.items()}
            counts = {d: self.number(part.count) for d, part in at.items()}
            if 0 in (*counts.values(), *sizes.values()):
                continue
            inside = replace(self, extents={**self.extents, **sizes})
            for name, size in cell.given:
                known = {**inside.sizes, name: inside.number(size)}
                inside = replace(inside, sizes=known)
            nest = inside._grids(cell.grids)
            if nest is not None:
                parts.append(self._looped(nest, counts, inside.extents))
        return self._side_by_side(parts)

    def _looped(self, nest: Nest, counts: Mapping[str, int], extents: Mapping[str, int]) -> Nest:
        """Return ``nest``, a block with ``extents``, in loops over m and n in the plan's order."""
        for d in reversed(self._order()):
            extents = {**extents, d: extents[d] * counts.get(d, 1)}
            nest = self.repeat(d, counts.get(d, 1), nest, extents, parallel=self.shares(d))
        return nest

    def _order(self) -> list[str]:
        """Return "m" and "n", the dimension of the outer loop over tiles first."""
        return sorted("mn", key=self.plan.nest.outer.lower().rfind)

    def _side_by_side(self, parts: Sequence[Nest]) -> Nest:
        """Return nests that together cover a block as one nest, or as one parallel region."""
        every = frozenset().union(*(self.moves(d) for d in "mn"))
        nest = self.series(parts, every)
        if self.parallel and isinstance(nest, Series) and len(parts) > 1:
            return replace(nest, together=True)
        return nest

    def _grids(self, grids: Sequence[Grid]) -> Nest | None:
        parts = [*self._each(grids)]
        return self._side_by_side(parts) if parts else None

    def _each(self, grids: Sequence[Grid]) -> Iterator[Nest]:
        loaded, several = None, self._count_of_configurations > 1
        for group in self.plan.side_by_side(grids):
            beside: list[Nest] = []
            for grid in group:
                nest = self._grid(grid, alone=len(group) == 1)
                needed = self.configured.get(grid.tile.number)
                if nest is not None and several and needed not in (None, loaded):
                    yield self._configuring()
                    loaded = needed
                beside += [] if nest is None else [nest]
            yield from beside if len(group) == 1 else self._rows(group[0].across, beside)

    def _grid(self, grid: Grid, *, alone: bool) -> Nest | None:
        """Return a grid of tiles, or one row of it if not ``alone``; None if it has no tile."""
        parts: dict[str, Part] = {
            self.plan.problem.along: grid.along,
            self.plan.problem.across: grid.across,
        }
        counts = {d: self.number(part.count) for d, part in parts.items()}
        sizes = {d: self.number(part.size) for d, part in parts.items()}
        if 0 in (*counts.values(), *sizes.values()):
            return None
        if not alone:
            del counts[self.plan.problem.across]
        extents = {**self.extents, **sizes}
        return self._looped(self._tile(grid.tile, extents), counts, extents)

    def _rows(self, across: Part, beside: Sequence[Nest]) -> Iterator[Nest]:
        """Yield the loop over rows of tiles; the nests ``beside`` compute one row of tiles."""
        d, rows = self.plan.problem.across, self.number(across.count)
        if beside:
            row = self.series(beside, self.moves(self.plan.problem.along))
            extents = {**self.extents, d: rows * self.number(across.size)}
            yield self.repeat(d, rows, row, extents, parallel=self.shares(d))

    def _tile(self, tile: RegisterTile, extents: Mapping[str, int]) -> Piece:
        """Return the work of one register tile for all K steps of the block."""
        names = "c" if tile.phase == "finish" else "abc"
        regions = {self.called(name): self.region(name, extents) for name in names}
        return Piece(regions, self._work(tile, extents))

    def _work(self, tile: RegisterTile, extents: Mapping[str, int]) -> Cycles:
        plan = self.plan
        count = self.count if "b" in plan.nest.inner else 1
        steps = self.number(plan.staging.counted(tile.steps, tile.k_tail))
        if tile.number not in self.requests:
            self.requests[tile.number] = request_at(self.here, plan.nest, ZERO, tile.accumulate)
        request = replace(self.requests[tile.number], steps=steps * count, depth=steps)
        c = plan.staging.output
        line = max(self.number(c.strides[d]) for d in "mn") * ITEMSIZE[c.type]
        waits = request.reads_c and line < tile.shape.vector.nbytes
        across = self.region(self.here.across.name, {**extents, "k": 1})
        return tile_work(plan.staging, tile, request, self._begins(tile, extents), across, waits)

    def _begins(self, tile: RegisterTile, extents: Mapping[str, int]) -> int:
        """Return the greatest known divisor of the addresses of a tile's vectors.

        The result is 0 if all vectors are aligned.
        """
        plan, d = self.plan, self.plan.problem.along
        along = self.here.along
        beside = extents[d] < self.extents[d] and not (plan.problem.dot or along.packed)
        return (
            gcd(tile.shape.stride, extents[d] * ITEMSIZE[along.type])
            if beside
            else tile.shape.stride
        )
