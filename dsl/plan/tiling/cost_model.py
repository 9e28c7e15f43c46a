"""The cost model: choose register tiles from the target's data alone.

A tile has ``rows`` x ``vectors`` accumulators, times ``k_split`` sets. In a K step it does
rows * vectors multiply-adds, and loads their factors. A step takes at least the time that the
multiply-add units, the loads, or the issue of instructions need, and at least the latency of one
chain divided by the number of sets. Around the K loop, a tile also takes time for adding the sets
and for reading and writing C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import takewhile
from math import ceil, inf
from typing import NamedTuple

from tilewright.errors import ScheduleError
from tilewright.isa.machine import Core
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.schedule import LINES

from .bounds import step_cycles
from .configurations import Shape, configurations_of, register_shapes
from .tile_costs import need, shape_of, tile_cycles, tile_table
from .tile_shape import TileRequest, TileShape

#: C mostly has a multiple of ``OFTEN`` rows. If the rows of a tile are no such multiple, its cycles
#: are multiplied by ``ODD``, because remainders are cut into tiles of powers of 2. For example, 16
#: rows are two tiles of 8 rows, but four tiles of 9, 4, 2 and 1 rows.
OFTEN, ODD = 4, 1.03


def does_not_fit(
    target: Target,
    vector: Vector,
    rows: int,
    vectors: int,
    masked: bool,
    request: TileRequest,
    tile: tuple[int, int],
    along: str,
) -> ScheduleError:
    """Return the error for a tile that needs too many registers; it names tiles that fit.

    ``tile`` has the tile's rows or columns across and along the vectors, which run along the
    dimension ``along``, m or n.
    """
    budget = need(vector, rows, vectors, masked, request)
    smaller = max(
        (r for r in range(1, rows) if shape_of(target, vector, r, vectors, masked, request)),
        default=0,
    )
    fewer = max(
        (v for v in range(1, vectors) if shape_of(target, vector, rows, v, masked, request)),
        default=0,
    )
    legal = [(smaller, tile[1])] if smaller else []
    lanes = 1 if request.dot else vector.lanes
    legal += [(tile[0], fewer * lanes)] if fewer else []
    # Turn pairs (across, along) into (mr, nr).
    turn = 1 if along == "n" else -1
    (height, width), (a, b) = tile[::turn], (budget.across, budget.along)[::turn]
    kind = "vector" if request.unit is request.sums else "matrix"
    return ScheduleError(
        f"tile {height}x{width} needs {budget.total} {kind} registers on {target.name} "
        f"({budget.accumulators} accumulators, {a} A, {b} B"
        f"{f', {budget.masks} mask' if budget.masks else ''}); "
        f"it has {request.free(target) + request.spare}",
        got=f"mr={height} rows by nr={width} columns of C",
        hint=" or ".join(f"tile={one[::turn]}" for one in legal) or "a smaller tile or k_split",
    )


@lru_cache(maxsize=4096)
def equal_parts(total: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Return how ``total`` is cut into ``parts`` parts whose sizes differ by at most 1.

    The result has pairs (size, number of parts), the larger size first.
    """
    base, extra = divmod(total, parts)
    split = ((base + 1, extra), (base, parts - extra))
    return tuple((size, count) for size, count in split if size and count)


class Choice(NamedTuple):
    """A cut of a region of C into tiles, and its cost in cycles.

    ``along`` and ``across`` are pairs (size, number) of parts: ``along`` in vectors, ``across`` in
    rows. ``masked`` is True if the last vector along is masked.
    """

    vector: Vector
    along: tuple[tuple[int, int], ...]
    across: tuple[tuple[int, int], ...]
    cycles: float
    masked: bool = False


def choose(target: Target, across: int, along: int, cuts: bool, request: TileRequest) -> Choice:
    """Return the cheapest cut of a region of ``across`` x ``along`` elements into register tiles.

    ``along`` counts elements of the vectorised dimension. If partial vectors are not allowed (not
    ``cuts``), a vector type computes only whole vectors, and narrower types the rest.
    """
    return ranking(target, across, along, cuts, request)[0]


@lru_cache(maxsize=4096)
def ranking(
    target: Target, across: int, along: int, cuts: bool, request: TileRequest
) -> tuple[Choice, ...]:
    """Return all cuts that ``choose`` compares. The first one is its result."""
    compared = [
        choice
        # The narrowest type comes first, so that it is chosen among equally good ones.
        for vector in reversed(request.vectors)
        for choice in _cuts(target, vector, across, along, cuts, request)
        if choice.cycles != inf
    ]
    if not compared:
        raise ScheduleError(
            f"no register tile with k_split {request.splits} fits {target.name}'s "
            f"{request.free(target) + request.spare} registers",
            hint="a smaller k_split",
        )
    return _ranked(target, request, compared)


def _ranked(target: Target, request: TileRequest, found: Iterable[Choice]) -> tuple[Choice, ...]:
    """Return the cuts sorted by cycles; one cut may come first although it is not the cheapest.

    That cut's multiply-adds read elements from memory. Such tiles have the fewest operations, which
    helps if another thread keeps the core busy. The cut comes first if its cycles are close to the
    fewest (``CLOSE``) and its mean over the target's ``states`` is better by ``GAIN``.
    """
    quickest, *others = ranked = sorted(found, key=_cycles)
    if target.threads == 1 or not request.fixed_offsets or request.source:
        return tuple(ranked)

    def mean(choice: Choice) -> float:
        return choice.cycles * _slowed(target, request, choice, target.states)

    near = takewhile(lambda each: each.cycles <= CLOSE * quickest.cycles, others)
    fits = [each for each in near if _form(target, request, each) == "memory"]
    if fits and mean(first := min(fits, key=mean)) < GAIN * mean(quickest):
        return (first, *(each for each in ranked if each is not first))
    return tuple(ranked)


def _form(target: Target, request: TileRequest, choice: Choice) -> str:
    """Return the form (``TileShape.form``) of the first tiles of a cut."""
    rows, width = choice.across[0][0], choice.along[0][0]
    shape = shape_of(target, choice.vector, rows, width, choice.masked, request)
    return "" if shape is None else shape.form


def _cycles(choice: Choice) -> float:
    return choice.cycles


def _slowed(
    target: Target, request: TileRequest, choice: Choice, states: Sequence[tuple[float, Core]]
) -> float:
    """Return how many times longer a cut's tiles take if other threads use the core, on average.

    It is the mean time over ``states``, divided by the time on an otherwise idle core. The result
    is 1 if the tiles take no time, for example because K has no steps.
    """
    tiles = [
        (columns * count, shape)
        for width, columns in choice.along
        for rows, count in choice.across
        if (shape := shape_of(target, choice.vector, rows, width, choice.masked, request))
    ]

    def taken(core: Core) -> float:
        return sum(count * tile_cycles(shape, core, request) for count, shape in tiles)

    alone = taken(target.core)
    return sum(share * taken(core) for share, core in states) / alone if alone else 1.0


def _cuts(
    target: Target, vector: Vector, across: int, along: int, cuts: bool, request: TileRequest
) -> Iterator[Choice]:
    """Yield cuts into tiles of one vector type, with the cheapest cut of the remaining columns."""
    lanes = 1 if request.dot else vector.lanes
    tail = along % lanes
    ragged = bool(tail) and not (cuts and (request.padded or vector.cuts(tail)))
    vectors = along // lanes if ragged else -(-along // lanes)
    if not vectors:
        return
    tail_cycles = choose(target, across, tail, cuts, request).cycles if ragged else 0.0
    for choice in _whole_cuts(target, vector, across, vectors, bool(tail) and not ragged, request):
        yield choice._replace(cycles=choice.cycles + tail_cycles) if ragged else choice


def _whole_cuts(
    target: Target, vector: Vector, across: int, vectors: int, masked: bool, request: TileRequest
) -> Iterator[Choice]:
    table = tile_table(target, request)
    for parts_along in _part_counts(vectors, target.registers):
        along = equal_parts(vectors, parts_along)
        widest = along[0][0]
        masks = masked and request.cuts_tail(vector, along[-1][0])
        rows = range(min(across, request.tallest(target, vector, widest)), 0, -1)
        most = next((r for r in rows if table.fits(vector, r, widest, masks)), 0)
        if not most:
            continue
        streams = LINES // widest if request.read_once else LINES if request.unprefetched else inf
        lower = target.core.hidden // widest, request.l1_rows[1], streams
        for parts in _heights(across, most, lower):
            cut = equal_parts(across, parts)
            cycles = _cut_cycles(target, vector, along, cut, masks, request)
            yield Choice(vector, along, cut, cycles, masks)


def _heights(across: int, most: int, lower: Sequence[float]) -> Iterator[int]:
    """Yield the numbers of parts across the vectors that are compared.

    These are the fewest parts and a few more, and the numbers that make tiles of at most the rows
    in ``lower``. With these rows, stores are hidden, the rows fit in L1, or they are prefetched.
    """
    fewest = -(-across // most)
    yield from range(fewest, min(across, fewest + 3) + 1)
    for rows in lower:
        if 0 < rows < inf and (parts := ceil(across / rows)) > fewest + 3:
            yield parts


def _part_counts(vectors: int, registers: int) -> Iterator[int]:
    """Yield the numbers of parts into which a row of vectors is cut.

    A part has at most ``registers`` vectors. Each number comes once.
    """
    seen = {-(-vectors // width) for width in range(1, min(vectors, registers) + 1)}
    return iter(sorted(seen))


def _cut_cycles(
    target: Target,
    vector: Vector,
    along: tuple[tuple[int, int], ...],
    across: tuple[tuple[int, int], ...],
    masked: bool,
    request: TileRequest,
) -> float:
    total, used = 0.0, list[tuple[Shape, ...]]()
    tiles, configures = tile_table(target, request), request.unit is not None
    for width, columns in along:
        for rows, count in across:
            found = tiles.best(vector, rows, width, masked)
            if found is None:
                return inf
            total += columns * count * found.cycles
            if configures:
                used += _registers(found.shape, columns, masked and width == along[-1][0])
    return total + configuring(used, request.unit)


def _registers(shape: TileShape, columns: int, cut: bool) -> Iterator[tuple[Shape, ...]]:
    """Yield the register shapes of a row of equal tiles of a matrix unit.

    The last tile of the row may be narrower.
    """
    whole = shape.vector.lanes
    if not cut or columns > 1:
        yield register_shapes(shape, shape.rows, whole)
    if cut:
        yield register_shapes(shape, shape.rows, 0)


def configuring(tiles: Sequence[Sequence[Shape]], unit: MatrixUnit | None) -> float:
    """Return the cycles of loading the matrix unit's configurations for all tiles."""
    if unit is None or not unit.configuring:
        return 0.0
    return unit.configuring * (1 + max(configurations_of(tiles, unit.most), default=-1))


class FewLines(NamedTuple):
    """The rows of a C that has at most ``most`` rows, if only the call knows how many.

    C is cut into whole tiles and a remainder. The remainder is cut into tiles of powers of 2. If
    ``even`` is True, it is instead joined with the last whole tile, and both are cut into two
    nearly equal tiles.
    """

    most: int
    even: bool


@lru_cache(maxsize=1024)
def steady(
    target: Target, request: TileRequest, multiples: tuple[int, int], few: FewLines | None = None
) -> tuple[Choice, ...]:
    """Return tiles for a large region, by cycles for each element of C; the cheapest comes first.

    If several tiles are nearly as cheap (``ALIKE``), the first one is the tile that loses least if
    another thread of the core loads data.

    ``multiples`` are known divisors of the region's sizes (across, along). If a divisor is no
    multiple of the tile's size, a quarter is added to the cost, because the region may have tails;
    the registers must also suffice for tiles of the tails. A divisor of 1 means that nothing is
    known; then tiles whose rows are no multiple of ``OFTEN`` cost a little more. A divisor of 0
    means that no tail is left. If C has ``few`` rows, the cost is the mean over their numbers.
    """
    found: list[Choice] = []
    table = tile_table(target, request)
    for vector in request.vectors:
        lanes = 1 if request.dot else vector.lanes
        most = request.most_rows(target) - 1
        if multiples[1] % lanes:
            fitting = (_tails_fit(target, vector, rows, request) for rows in range(1, most + 1))
            most = sum(takewhile(bool, fitting))
        for vectors in range(1, target.registers):
            shared = None if few is None else _FewRows(few)
            for rows in range(1, most + 1):
                tile = table.best(vector, rows, vectors, False)
                if tile is None:
                    break
                row = tile.cycles / rows if shared is None else shared.with_tile(tile.cycles)
                cost = row / (vectors * lanes)
                for multiple, size in zip(multiples, (rows, vectors * lanes), strict=True):
                    cost *= 1.25 if multiple > 1 and multiple % size else 1.0
                cost *= ODD if multiples[0] == 1 and rows % OFTEN else 1.0
                found.append(Choice(vector, ((vectors, 1),), ((rows, 1),), cost))
    if not found:
        raise ScheduleError(
            f"k_split {request.splits} does not fit {target.name}'s "
            f"{request.free(target) + request.spare} registers",
            hint="a smaller k_split",
        )
    found.sort(key=_cycles)
    alike = [*takewhile(lambda each: each.cycles <= ALIKE * found[0].cycles, found)]
    if not alike[1:]:
        return tuple(found)
    loads = target.states[-1:]
    first = min(alike, key=lambda each: each.cycles * _slowed(target, request, each, loads))
    return (first, *(each for each in found if each is not first))


class _FewRows:
    """Finds the mean cycles of a row if C has any number of rows from 1 to ``few.most``.

    Tiles of 1, 2 and more rows are added one by one with ``with_tile``. C is cut into tiles as tall
    as the last one added, and a rest. If ``few.even``, the last whole tile and the rest become two
    tiles of nearly equal heights; otherwise the rest is cut into tiles of powers of 2.
    """

    def __init__(self, few: FewLines) -> None:
        self.few = few
        self._tiles: list[float] = []
        #: At index i: the cycles of i rows in tiles of powers of 2.
        self._powers: list[float] = [0.0]
        #: Each list has sums of cycles over all numbers of rows up to a limit. ``_ones[i]`` is the
        #: sum over C with 1, 2, ... i rows, computed in one tile. ``_twos[i]`` is the sum over 2 to
        #: i rows in two tiles of nearly equal heights. ``_below[i]`` is the sum over 0 to i - 1
        #: rows in tiles of powers of 2.
        self._ones, self._twos, self._below = [0.0], [0.0, 0.0], [0.0]

    def with_tile(self, cycles: float) -> float:
        """Add a tile that is taller by one row, and return the mean cycles of a row."""
        tiles = self._tiles
        tiles.append(cycles)
        tallest, most = len(tiles), self.few.most
        self._ones.append(self._ones[-1] + cycles)
        # Two tiles of nearly equal heights compute 2 * tallest - 1 rows, or 2 * tallest rows. Add
        # the cycles of both cases.
        for low in (tallest - 1, tallest):
            if low:
                self._twos.append(self._twos[-1] + (cycles + tiles[low - 1]))
        self._below.append(self._below[-1] + self._powers[-1])
        high = 1 << tallest.bit_length() - 1
        self._powers.append(self._powers[tallest - high] + tiles[high - 1])
        total = self._even(tallest, most) if self.few.even else self._cut(tallest, most)
        return total / (most * (most + 1) // 2)

    def _even(self, tallest: int, most: int) -> float:
        """Return the sum of the cycles of 1 to ``most`` rows if the last two tiles are equal."""
        if most <= tallest:
            return self._ones[most]
        twos, first = self._twos, self._twos[tallest]
        rounds, last = divmod(most - tallest, tallest)
        total = self._ones[tallest] + rounds * (twos[2 * tallest] - first)
        total += twos[tallest + last] - first
        whole = tallest * (rounds * (rounds - 1) // 2) + last * rounds
        return total + whole * self._tiles[-1]

    def _cut(self, tallest: int, most: int) -> float:
        """Return the sum of the cycles of 1 to ``most`` rows if the rest is cut in powers of 2."""
        rounds, last = divmod(most + 1, tallest)
        total = rounds * self._below[tallest] + self._below[last]
        whole = tallest * (rounds * (rounds - 1) // 2) + last * rounds
        return total + whole * self._tiles[-1]


@lru_cache(maxsize=1024)
def steady_cuts(
    target: Target, along: int, multiple: int, request: TileRequest
) -> tuple[Choice, ...]:
    """Return the cuts of ``along`` elements into tiles for many rows, the cheapest first.

    ``cycles`` of a result is the time of one row of C. A vector type is left out if its last vector
    cannot be cut to the tail. ``multiple`` is a known divisor of the number of rows.
    """
    found: list[Choice] = []
    for vector in request.vectors:
        lanes = 1 if request.dot else vector.lanes
        tail, vectors = along % lanes, -(-along // lanes)
        if tail and not (request.padded or vector.cuts(tail)):
            continue
        for parts in _part_counts(vectors, target.registers):
            cut = equal_parts(vectors, parts)
            masked = bool(tail) and request.cuts_tail(vector, cut[-1][0])
            for rows in range(1, request.tallest(target, vector, cut[0][0]) + 1):
                cycles = _cut_cycles(target, vector, cut, ((rows, 1),), masked, request) / rows
                cycles *= 1.25 if multiple > 1 and multiple % rows else 1.0
                if cycles != inf:
                    found.append(Choice(vector, cut, ((rows, 1),), cycles, masked))
    return tuple(sorted(found, key=_cycles))


def _tails_fit(target: Target, vector: Vector, rows: int, request: TileRequest) -> bool:
    """True if a tile of ``rows`` rows fits the registers in all forms that tails can have.

    These are a masked vector, and a vector of each narrower type.
    """
    narrower = (v for v in request.vectors if v.lanes < vector.lanes)
    table = tile_table(target, request)
    return table.fits(vector, rows, 1, True) and all(
        table.fits(v, rows, 1, False) for v in narrower
    )


#: Two estimates count as equal if the larger is at most this many times the smaller.
ALIKE = 1.003
#: A core is idle otherwise, or another thread keeps it busy too. These are the target's states. A
#: tile may suffer less from the other thread than the fastest tile does. It is preferred if it
#: takes at most ``CLOSE`` times the cycles of the fastest tile on an idle core. Its mean over all
#: states must also be at most ``GAIN`` times that of the fastest tile.
CLOSE, GAIN = 1.05, 0.97
#: In each trip, the K loop itself has this number of instructions. These are two pointer updates
#: and a comparison with a branch.
LOOP_OVERHEAD = 3
#: K is unrolled completely only if all of its instructions issue in at most ``SHORT`` cycles. A
#: trip of multiply-adds that read memory is also limited to ``SHORT`` cycles, and to
#: ``MOST_STEPS`` steps.
SHORT, MOST_STEPS = 32, 4


def unroll(shape: TileShape, target: Target, steps: int | None, group: int) -> int:
    """Return the K steps in a trip, a multiple of ``group``: the fewest that hide the loop's
    overhead.

    More steps would make loads jump further in each trip, which defeats prefetchers if the operand
    is not in L1. A short K is unrolled completely if it has few operations, and its loads would fit
    the registers even if the compiler moved them to the top. If a load reads several factors, a
    trip has at least as many steps, because the overhead weighs more. Short steps whose
    multiply-adds read memory are unrolled further for the same reason: on Granite Rapids, four
    steps in a trip make 16x6x64 1.09 times as fast, and 6x15x64 1.07 times.
    """
    if shape.unit is not None:
        return group
    core, issued = target.core, shape.issued
    if steps is not None and steps * issued <= SHORT * core.issue:
        held = target.hints is not None and target.hints.operands
        loads = shape.vectors if held or shape.form == "memory" else shape.vectors + shape.rows
        lifted = shape.budget.accumulators + steps * loads + shape.budget.masks
        if lifted < target.registers or steps == 1:
            return max(steps, 1)
    count = -(-max((1, *shape.several)) // group) * group
    while count * step_cycles(shape, core) < (count * issued + LOOP_OVERHEAD) / core.issue:
        count += group
    if shape.form == "memory" and steps is not None:
        trip = ceil(SHORT / step_cycles(shape, core) / group) * group
        count = max(count, min(trip, MOST_STEPS * group))
    return count if steps is None else min(count, max(group, steps))
