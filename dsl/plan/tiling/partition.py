"""Cut a block of C into regions, each a grid of equal register tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sympy import Expr, Integer

from tilewright.errors import ScheduleError
from tilewright.isa.vector import Vector
from tilewright.symbolic import ONE, ZERO, div, mod, value

from ..plan import Plan
from ..problem import Problem, Staging
from .bounds import bounds, tightest
from .cost_model import Choice, does_not_fit, ranking, steady, steady_cuts
from .parts import (
    Part,
    across_parts,
    at_least_part,
    cut,
    equals_part,
    even_parts,
    exact_parts,
    perhaps,
    positive_part,
)
from .requests import request_at
from .tile_costs import Fitting, fitting, shape_of, tile_table
from .tile_shape import TileRequest
from .tiles import Search

#: A tail gets a tile of its own, with narrower vectors, only if it saves this share of the cycles.
WORTH = 1 / 5


@dataclass(frozen=True, slots=True)
class Region:
    """A grid of equal tiles. ``active`` are the lanes of the last vector, None for all.

    If ``overlapped``, the last vector is whole and ends at the tile's end. It shares lanes with the
    previous vector; both compute the same values, because C is read before it is written.
    ``search`` is None if the schedule gave the tile.
    """

    fitting: Fitting
    along: Part
    across: Part
    active: Expr | None
    overlapped: bool
    search: Search | None


@dataclass(frozen=True, slots=True)
class Axis:
    """A vector type and the parts of C along it."""

    vector: Vector
    parts: tuple[Part, ...]


def partition(plan: Plan, across: Expr, along: Expr, request: TileRequest) -> list[Region]:
    """Return the regions of a block of C with ``across`` x ``along`` elements."""
    regions = list(_regions(plan, across, along, request))
    return [r for r in regions if r.along.count != 0 and r.across.count != 0 and r.along.size != 0]


def _regions(plan: Plan, across: Expr, along: Expr, request: TileRequest) -> Iterator[Region]:
    rows, columns = value(across), value(along)
    problem, staging = plan.problem, plan.staging
    if rows == 0 or columns == 0:
        return
    tile = plan.asked_tile
    if rows is not None and columns is not None:
        if tile is None:
            yield from _free(staging, (0, rows), (0, columns), request)
        else:
            yield from _tiled(plan, rows, columns, tile, request)
        return
    _refuse_overlap(problem)
    if tile is not None and columns is not None:
        for vector, part in _tiles_along(plan, columns, tile[1]):
            _check_fits(problem, vector, tile[0], part.units, request, tile)
            for other in _parts_across(plan, across, tile[0]):
                yield _region(problem, vector, part, other, request)
        return
    if tile is None and columns is not None and not (staging.product.unit or request.sums):
        ranked = steady_cuts(plan.target, columns, problem.multiple(problem.across), request)
        if ranked:
            yield from _many_rows(plan, across, columns, ranked, request)
            return
    search = None
    if tile is None:
        multiples = problem.multiple(problem.across), problem.multiple(problem.along)
        ranked = steady(plan.target, request, multiples, staging.few_across)
        if request.read_once and request.dot:  # C has one row or column: leave out taller tiles
            ranked = tuple(one for one in ranked if _within(one, rows, columns))
        search = _search(problem, ranked, {}, request)
        vector, r, v = ranked[0].vector, ranked[0].across[0][0], ranked[0].along[0][0]
    else:
        vector = _vector_for(plan, tile[1])
        r, v = tile[0], -(-tile[1] // problem.lanes_of(vector))
        if tile[1] % problem.lanes_of(vector):
            raise ScheduleError(
                f"the tile along {problem.along} must be whole vectors when its size is not fixed",
                got=tile[1],
                expected=f"a multiple of {problem.lanes_of(vector)}",
            )
        _check_fits(problem, vector, r, v, request, tile)
    r = r if rows is None else min(r, rows)
    others = tuple(_parts_across(plan, across, r))
    if tails := _wide_tails(plan, along, vector, v, r, request):
        whole = tuple(other for other in others if other.units == r)
        for axis in _in_one_tile(along, vector, v, tails):
            yield from _side_by_side(problem, axis, whole, request, search)
        others = others[len(whole) :]
    for axis in _along_axes(staging, along, vector, v):
        yield from _side_by_side(problem, axis, others, request, search)


def _within(choice: Choice, rows: int | None, columns: int | None) -> bool:
    """True if a tile of vectors along K has no more rows and columns than C, as far as known."""
    across, along = choice.across[0][0], choice.along[0][0]
    return across <= (rows or across) and along <= (columns or along)


def _side_by_side(
    problem: Problem,
    axis: Axis,
    across: Sequence[Part],
    request: TileRequest,
    search: Search | None,
) -> Iterator[Region]:
    """Yield a region for each pair of a part along the vectors and a part across them."""
    for part in axis.parts:
        for other in across:
            yield _region(problem, axis.vector, part, other, request, search)


def _parts_across(plan: Plan, across: Expr, most: int) -> Iterator[Part]:
    """Yield tiles of ``most`` rows, and parts for the remaining rows.

    If each tile unpacks B, or reads it in place for few rows, the remainder is one tile, so that it
    does this only once. It shares rows with the last whole tile, because few rows have too few
    chains of multiply-adds. Otherwise it is cut by powers of 2, or of 4 with panels and many rows.
    """
    unit, panels = plan.staging.product.unit, plan.nest.panel_tile is not None
    unpacking = plan.spec.quantized is not None and unit is None and not plan.staging.unpacks
    if unpacking or plan.staging.even_across:
        if value(across) is None:
            yield from even_parts(across, most, plan.problem.across)
        else:
            yield from exact_parts(across, most)
    else:
        by = 4 if panels and not plan.staging.few_across else 2
        yield from across_parts(unit, across, most, by)


# --- why -----------------------------------------------------------------------------------------


def _search(
    problem: Problem, ranked: Sequence[Choice], extents: Mapping[str, int], request: TileRequest
) -> Search:
    """Return the texts for the best of ``ranked``, and for the next one that cuts C differently.

    ``extents`` are those of the block, by dimension. They are empty if a size is known only at the
    call; cycles for each element of a large block are then compared.
    """
    best, *others = ranked
    own = _cut_text(problem, best, extents)
    cut = f"{own}: " if extents else ""
    each = "" if extents else " per element of a large C"
    depth = "" if request.depth is not None else f", for K of {request.steps}"
    estimate = f"{cut}estimated at {_cycles(best)} cycles{each}{depth}"
    named = ((_cut_text(problem, other, extents), other) for other in others)
    for text, other in named:
        if text != own:
            bound = _bound(problem, other, request)
            return Search(estimate, f"next best {text}: {_cycles(other)}{bound}")
    return Search(estimate, "no other cut fits")


def _cut_text(problem: Problem, choice: Choice, extents: Mapping[str, int]) -> str:
    """Return how a block is cut, for example ``32 tiles of 3 rows and 2 of 2, 3 of 24 columns``."""
    lanes = problem.lanes_of(choice.vector)
    along = tuple((units * lanes, count) for units, count in choice.along)
    parts = {problem.across: choice.across, problem.along: along}
    if not extents:
        return "x".join(str(parts[d][0][0]) for d in "mn")
    tiles = "tile of" if parts["m"][0][1] == 1 else "tiles of"
    rows = _sum(parts["m"], extents["m"], "row").replace("of", tiles, 1)
    return f"{rows}, {_sum(parts['n'], extents['n'], 'column')}"


def _sum(parts: Sequence[tuple[int, int]], total: int, unit: str) -> str:
    (size, count), *others = parts
    text = f"{count} of {size} {unit}{'' if size == 1 else 's'}"
    text += "".join(f" and {count} of {size}" for size, count in others)
    missing = total - sum(size * count for size, count in parts)
    if missing > 0:
        return f"{text} and {missing} left"
    return f"{text} ({-missing} too many)" if missing else text


def _cycles(choice: Choice) -> str:
    return f"{choice.cycles:.0f}" if choice.cycles >= 100 else f"{choice.cycles:.3g}"


def _bound(problem: Problem, choice: Choice, request: TileRequest) -> str:
    """Return text for what bounds the largest tile of a cut."""
    target, largest = problem.target, (choice.across[0][0], choice.along[0][0])
    found = shape_of(target, choice.vector, *largest, False, request)
    return f", bound by {tightest(bounds(found, target.core))}" if found else ""


# --- regions -------------------------------------------------------------------------------------


def _may_cut(staging: Staging, request: TileRequest) -> bool:
    """True if the last vector of a tile may be partial; a matrix unit knows the number of lanes."""
    if staging.product.unit is not None:
        return True
    return staging.problem.schedule.tails != "narrow" or bool(request.vectors[0].partial_load)


def _refuse_overlap(problem: Problem) -> None:
    if problem.schedule.tails == "overlap":
        raise ScheduleError(
            "tails='overlap' needs sizes known to be a tile or more",
            got="a size known only at the call",
            hint="tails='auto'",
        )


def _vector_for(plan: Plan, columns: int) -> Vector:
    """Return the narrowest vector type that covers ``columns`` with the fewest registers.

    If two types take equally many registers, it is the one with fewer vectors.
    """
    if plan.problem.dot:
        return _dot_vector(plan)
    here, along = plan.staging, plan.problem.along
    tails = ((v, columns % v.lanes) for v in here.vectors)
    able = [v for v, left in tails if not left or _maskable(here, v, left)]
    if not able:
        what = f"no vector of {plan.target.name} ends after {columns} lanes along {along}"
        got = plan.problem.schedule.tails
        raise ScheduleError(what, got=got, expected="tails='auto', or a wider tile")

    def taken(vector: Vector) -> tuple[int, int, int]:
        count = -(-columns // vector.lanes)
        return count * vector.registers, count, vector.lanes

    return min(able, key=taken)


def _dot_vector(plan: Plan) -> Vector:
    """Return the widest vector type along K with which the asked tile fits, or the widest of all.

    A type with fewer lanes is used only if it has fewer registers.
    """
    assert plan.asked_tile is not None
    request = request_at(plan.staging, plan.nest, plan.problem.sizes["k"], False)
    vectors = plan.staging.vectors
    widest = {v.registers: v for v in reversed(vectors)}.values()
    fits = (v for v in vectors if shape_of(plan.target, v, *plan.asked_tile, False, request))
    return next((v for v in fits if v in widest), vectors[0])


def _maskable(staging: Staging, vector: Vector, tail: int) -> bool:
    """True if the schedule lets one vector of this type compute a tail of ``tail`` lanes."""
    tails = staging.problem.schedule.tails
    if tails == "bounce" or staging.product.unit is not None:
        return True
    if tails == "mask":
        return vector.mask is not None
    if tails == "narrow":
        return tail in vector.partial_load
    return vector.cuts(tail)


def _check_fits(
    problem: Problem,
    vector: Vector,
    rows: int,
    vectors: int,
    request: TileRequest,
    tile: tuple[int, int],
) -> None:
    if shape_of(problem.target, vector, rows, vectors, False, request) is None:
        raise does_not_fit(
            problem.target, vector, rows, vectors, False, request, tile, problem.along
        )


def _tiled(
    plan: Plan, rows: int, columns: int, tile: tuple[int, int], request: TileRequest
) -> Iterator[Region]:
    """Yield the asked tile where it is whole, and separate regions for the tails."""
    height, width = min(tile[0], rows), min(tile[1], columns)
    whole_rows, whole_columns = rows // height * height, columns // width * width
    overlap = plan.problem.schedule.tails == "overlap"
    if overlap:
        _check_overlap(plan, request, (rows, columns), tile)
    for start, columns_of_one, count in _cuts(columns, width, overlap):
        for vector, part in _whole_parts(plan, start, columns_of_one, count):
            _check_fits(plan.problem, vector, height, part.units, request, tile)
            for first, rows_of_one, times in _cuts(rows, height, overlap):
                across = Part(Integer(first), Integer(rows_of_one), rows_of_one, Integer(times))
                yield _region(plan.problem, vector, part, across, request)
    if overlap:
        return
    if whole_columns < columns:
        yield from _free(plan.staging, (0, rows), (whole_columns, columns), request)
    if whole_rows < rows:
        yield from _free(plan.staging, (whole_rows, rows), (0, whole_columns), request)


def _cuts(total: int, size: int, overlap: bool) -> Iterator[tuple[int, int, int]]:
    yield 0, size, total // size
    if overlap and total % size:
        yield total - size, size, 1


def _check_overlap(
    plan: Plan, request: TileRequest, sizes: tuple[int, int], tile: tuple[int, int]
) -> None:
    spec = plan.spec
    if request.reads_c or set(plan.nest.outer) & {"b", "k"}:
        raise ScheduleError(
            "tails='overlap' computes elements twice, which is wrong when C is read",
            got=f"beta={spec.beta}, loops={plan.nest.outer + plan.nest.inner!r}",
            expected="beta=0 and no b or k left of the last m or n",
            hint="tails='auto'",
        )
    if spec.reads_output or spec.outputs:
        what = "dst is read" if spec.reads_output else "a row is summed"
        raise ScheduleError(
            f"tails='overlap' computes elements twice, which is wrong when {what}",
            got=", ".join(map(repr, spec.expressions)),
            hint="tails='auto'",
        )
    if sizes[0] < tile[0] or sizes[1] < tile[1]:
        raise ScheduleError(
            "tails='overlap' needs every dimension of C to be a tile or more",
            got=f"{sizes} across and along, tile {tile}",
            hint="a smaller tile, or tails='auto'",
        )


def _whole_parts(plan: Plan, start: int, width: int, count: int) -> Iterator[tuple[Vector, Part]]:
    """Yield a tile's width in one vector type, or in adjacent parts of narrower types."""
    vector = _vector_for(plan, width)
    lanes = plan.problem.lanes_of(vector)
    wide = plan.staging.vectors
    if width % lanes == 0 and vector.lanes < wide[0].lanes and width > vector.lanes:
        whole = next(v for v in wide if v.lanes <= width)
        head = width // whole.lanes * whole.lanes
        for index in range(count):
            at = start + index * width
            yield whole, Part(Integer(at), Integer(head), head // whole.lanes, ONE)
            if head < width:
                yield from _whole_parts(plan, at + head, width - head, 1)
        return
    yield vector, Part(Integer(start), Integer(width), -(-width // lanes), Integer(count))


def _tiles_along(plan: Plan, columns: int, width: int) -> Iterator[tuple[Vector, Part]]:
    """Yield parts of the asked width, then the tail."""
    whole, tail = divmod(columns, width)
    if whole:
        yield from _whole_parts(plan, 0, width, whole)
    if tail:
        yield from _whole_parts(plan, columns - tail, tail, 1)


def _free(
    staging: Staging, rows: tuple[int, int], columns: tuple[int, int], request: TileRequest
) -> Iterator[Region]:
    """Yield the cost model's cut of a block of fixed size into nearly equal parts."""
    problem = staging.problem
    height, width = rows[1] - rows[0], columns[1] - columns[0]
    ranked = ranking(problem.target, height, width, _may_cut(staging, request), request)
    choice = ranked[0]
    search = _search(problem, ranked, {problem.across: height, problem.along: width}, request)
    covered = columns[0]
    for part, end in _along_parts(problem, choice, columns):
        covered = end
        first = rows[0]
        for size, count in choice.across:
            across = Part(Integer(first), Integer(size), size, Integer(count))
            first += size * count
            yield _region(problem, choice.vector, part, across, request, search)
    if covered < columns[1]:
        yield from _free(staging, rows, (covered, columns[1]), request)


def _many_rows(
    plan: Plan, across: Expr, columns: int, ranked: Sequence[Choice], request: TileRequest
) -> Iterator[Region]:
    """Yield the cost model's cut of ``columns`` elements along, for any number of rows."""
    search, best = _search(plan.problem, ranked, {}, request), ranked[0]
    for other in _parts_across(plan, across, best.across[0][0]):
        own = _for_rows(best, ranked, other.units)
        parts = _along_parts(plan.problem, own, (0, columns))
        axis = Axis(own.vector, tuple(part for part, _ in parts))
        yield from _side_by_side(plan.problem, axis, (other,), request, search)


def _for_rows(best: Choice, ranked: Sequence[Choice], rows: int) -> Choice:
    """Return the cut for the remaining ``rows`` rows, with the columns of ``best``.

    Other columns are used if they save the share ``WORTH``, because few rows have few chains.
    """
    of_rows = [choice for choice in ranked if choice.across[0][0] == rows]
    same = next((choice for choice in of_rows if _alike(choice, best)), None)
    if same is None or of_rows[0].cycles < (1 - WORTH) * same.cycles:
        return of_rows[0] if of_rows else best
    return same


def _alike(choice: Choice, other: Choice) -> bool:
    """True if both cut the elements along in the same way."""
    return choice.vector == other.vector and choice.along == other.along


def _along_parts(
    problem: Problem, choice: Choice, columns: tuple[int, int]
) -> Iterator[tuple[Part, int]]:
    """Yield whole parts; the last one ends where the elements end."""
    lanes = problem.lanes_of(choice.vector)
    start = columns[0]
    for vectors, count in choice.along:
        size = vectors * lanes
        fit = min(count, (columns[1] - start) // size)
        if fit:
            end = start + fit * size
            yield Part(Integer(start), Integer(size), vectors, Integer(fit)), end
            start = end
        if fit < count and start < columns[1]:
            yield Part(Integer(start), Integer(columns[1] - start), vectors, ONE), columns[1]
            return


def _along_axes(staging: Staging, total: Expr, vector: Vector, vectors: int) -> Iterator[Axis]:
    """Yield parts along a size known only at the call: whole tiles, smaller ones, then a tail.

    If there is a tile for each number of rows, fewer sizes are used to limit the code.
    """
    lanes = staging.problem.lanes_of(vector)
    fixed = value(total)
    if fixed is not None:
        vectors = max(1, min(vectors, fixed // lanes))
    tail = mod(total, lanes)
    parts = list(cut(total, vectors, lanes, tail=False, by=4 if staging.even_across else 2))
    start = total - tail
    if tail == 0:
        yield Axis(vector, tuple(parts))
        return
    tail_value = value(tail)
    able = tail_value is not None and _maskable(staging, vector, tail_value)
    if _masks(staging, vector) or able:
        exists = ONE if tail_value else positive_part(tail, lanes)
        parts.append(perhaps(start, tail, 1, exists))
        yield Axis(vector, tuple(parts))
        return
    yield Axis(vector, tuple(parts))
    least, last = lanes, vector
    for size, narrow in _narrow_sizes(staging, vector):
        count = div(tail, size)
        if count != 0:
            yield Axis(narrow, (Part(start, Integer(size), 1, count),))
        start, tail = start + count * size, mod(tail, size)
        least, last = size, narrow
    for size in range(1, least):
        yield Axis(last, (perhaps(start, Integer(size), 1, equals_part(tail, size, least)),))


def _masks(staging: Staging, vector: Vector) -> bool:
    """True if one vector of this type can compute any number of lanes of C, by a mask."""
    if staging.product.unit is not None:
        return True
    tails = staging.problem.schedule.tails in ("auto", "mask")
    cuts = tails and not staging.transposed and not staging.problem.dot
    return vector.mask is not None and cuts


@dataclass(frozen=True, slots=True)
class _Tail:
    """A tile for a remainder of ``least`` to ``most`` elements after whole tiles.

    It has ``units`` vectors of type ``vector``; the last may be partial.
    """

    vector: Vector
    units: int
    least: int
    most: int
    cycles: float


def _wide_tails(
    plan: Plan, total: Expr, vector: Vector, vectors: int, rows: int, request: TileRequest
) -> tuple[_Tail, ...]:
    """Return tiles of ``rows`` rows for each remainder of ``total``; none if it is cut instead.

    It is cut if it is known, if a tile does not fit, or if panels make it unimportant. If it fills
    at most half of its last vector, a tile of narrower vectors is used if that saves the share
    ``WORTH``.
    """
    cut = plan.nest.panel_tile is not None or value(total) is not None
    if cut or not _masks(plan.staging, vector):
        return ()
    half = next((v for v in request.vectors if 2 * v.lanes == vector.lanes), None)
    table, found = tile_table(plan.target, request), list[_Tail]()

    def tail(vector: Vector, units: int, least: int, most: int) -> _Tail | None:
        tile = table.best(vector, rows, units, True)
        return tile and _Tail(vector, units, least, most, tile.cycles)

    for units in range(1, vectors + 1):
        first, end = (units - 1) * vector.lanes, units * vector.lanes
        wide = tail(vector, units, first + 1, end - 1)
        if wide is None:
            return ()
        narrow = None
        if half is not None and _masks(plan.staging, half):
            narrow = tail(half, 2 * units - 1, first + 1, first + half.lanes)
        if narrow is not None and narrow.cycles < (1 - WORTH) * wide.cycles:
            found.append(narrow)
            wide = replace(wide, least=narrow.most + 1)
        found.append(wide)
        if units < vectors:
            found.append(replace(wide, least=end, most=end))
    return tuple(found)


def _in_one_tile(
    total: Expr, vector: Vector, vectors: int, tails: Sequence[_Tail]
) -> Iterator[Axis]:
    """Yield whole tiles, then each of ``tails``; the call runs the one that fits the remainder."""
    width = vectors * vector.lanes
    whole, left = div(total, width), mod(total, width)
    start = total - left
    if whole != 0:
        yield Axis(vector, (Part(ZERO, Integer(width), vectors, whole),))
    for tail in reversed(tails):
        exists = at_least_part(left, tail.least, width) - at_least_part(left, tail.most + 1, width)
        size = Integer(tail.most) if tail.least == tail.most else left
        yield Axis(tail.vector, (perhaps(start, size, tail.units, exists),))


def _narrow_sizes(staging: Staging, vector: Vector) -> Iterator[tuple[int, Vector]]:
    """Yield the sizes that parts of a tail can have, the largest first, and their vectors.

    A part is a narrower vector, or a partial access of ``vector``.
    """
    sizes = {v.lanes: v for v in staging.vectors if v.lanes < vector.lanes}
    if staging.problem.schedule.tails != "mask" and not staging.padded:
        sizes |= {s: vector for s in vector.partial_load if not s & (s - 1)}
    yield from sorted(sizes.items(), key=lambda item: -item[0])


def _region(
    problem: Problem,
    vector: Vector,
    along: Part,
    across: Part,
    request: TileRequest,
    search: Search | None = None,
) -> Region:
    lanes = problem.lanes_of(vector)
    active = None if along.size == along.units * lanes else along.size - (along.units - 1) * lanes
    overlapped = (
        active is not None
        and value(along.size) is not None
        and not request.cuts_tail(vector, along.units)
    )
    masked = active is not None and vector.mask is not None and not overlapped
    found = fitting(problem.target, vector, across.units, along.units, masked, request)
    if found is None:
        tile = (across.units, along.units * lanes)
        raise does_not_fit(
            problem.target,
            vector,
            across.units,
            along.units,
            masked,
            request,
            tile,
            problem.along,
        )
    return Region(found, along, across, None if overlapped else active, overlapped, search)
