"""Plan a product. With a quantized B it may have two nests: for few rows of C, and for many."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target, vectors_alone
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import MANY_ROWS, Schedule
from tilewright.spec.sizes import most_of
from tilewright.symbolic import value

from .contraction import check_math
from .defaults import default_schedule, is_alone
from .estimate.work import unpack_cycles
from .formats.quantized_b import quantized_product
from .loops import Decision
from .panels import unpacked_block
from .plan import ByRows, Plan
from .planner import cheapest, make_plan, product_cycles
from .problem import NOMINAL
from .tiling.blocking import with_tiles
from .vector_axis import unpacks_in_panels

#: B is unpacked once for all tiles only if this saves at least this share of the time.
PAYS = 1 / 20

#: A schedule, and the reasons for the choices that the user's schedule left open.
Explained = tuple[Schedule, dict[str, str]]


def plan_product(spec: Gemm, schedule: Schedule, target: Target) -> Plan | ByRows:
    """Return the plan; raise ScheduleError or SpecError if schedule and spec contradict
    each other.
    """
    if spec.quantized is None and schedule.unpack_rows is None:
        return make_plan(spec, schedule, target)
    check_math(spec, target)
    unpacked = None if spec.quantized is None else _unpacked_first(spec, schedule, target)
    if schedule.unpack_rows is not None and unpacked is None:
        raise ScheduleError(
            "there is no quantized B that is unpacked beforehand",
            got=f"unpack_rows={schedule.unpack_rows} for {spec!r} on {target.name}",
            expected="b=tw.Packed(tw.Quantized(...)), and A of floating point and no tw.Addresses "
            "(by dot products also no zeros of blocks, and whole blocks of K), "
            "or a matrix unit that takes the numbers of both",
            hint="leave unpack_rows out",
        )
    return _plan_quantized(spec, schedule, target, unpacked)


def _plan_quantized(
    spec: Gemm, schedule: Schedule, target: Target, unpacked: Explained | None
) -> Plan | ByRows:
    """Return the plan for a quantized B. It may have a second nest for calls with many rows.

    The second nest has the schedule ``unpacked``: it unpacks B first, into panels if A is
    floating-point, into matrices for a matrix unit. Unpacking a panel takes about as long as one
    row of tiles in the first nest. The second nest is therefore faster from the third row of tiles
    on. If all calls have many rows, the plan has only the second nest.
    """
    fixed, asked, most = isinstance(spec.m, int), schedule.unpack_rows, most_of(spec.m)
    if unpacked is not None and fixed and asked is not None and asked <= most:
        return cheapest(spec, unpacked[0], target, unpacked[1])
    vectors = vectors_alone(target)
    given, why = default_schedule(spec, schedule, vectors)
    if spec.sums_blocks and unpacked is None:
        given, more = _rows_in_blocks(spec, given)
        why |= more
    plan = _for(cheapest(spec, given, vectors, why), target)
    open_ = replace(schedule, tile=None, k_unroll=None, k_split=None, stores=None, threads=None)
    if unpacked is None or (asked is None and open_ != Schedule()) or not plan.tiling.tiles:
        return plan
    found = cheapest(spec, unpacked[0], target, unpacked[1])
    rows = asked or _fewest_rows(plan, found)
    if rows is None or most < rows:
        return plan
    return found if fixed else _from(plan, rows, found)


def _for(plan: Plan, target: Target) -> Plan:
    """Return ``plan`` for ``target``; it was made for this target without its matrix unit."""
    problem = replace(plan.problem, target=target)
    return replace(plan, staging=replace(plan.staging, problem=problem))


def _unpacked_first(spec: Gemm, given: Schedule, target: Target) -> Explained | None:
    """Return the schedule of the nest that unpacks B first; None if no such nest is possible."""
    product, threads = quantized_product(spec, target), given.threads
    if spec.sums_blocks or product.unit is not None:
        if product.unit is None:
            return None
        asked = isinstance(spec.m, int) and given.unpack_rows is not None
        tile, ahead = (given.tile, given.prefetch) if asked else (None, None)
        kept = replace(given, tile=tile, k_unroll=None, prefetch=ahead, unpack_rows=None)
        many, why = _rows_in_blocks(spec, kept)
    else:
        loops = "Mnkmnk" if spec.outputs else "mNkmnk"
        loops = loops if spec.batch is None else f"{loops[:2]}b{loops[2:]}"
        loops = loops if (threads or 1) > 1 else loops.lower()
        many = Schedule(loops=loops, pack="b", threads=threads, stores=given.stores)
        if not unpacks_in_panels(spec, many, target):
            return None
        rows, _ = unpacked_block(product)
        why = dict.fromkeys(("loops", "pack"), f"B is unpacked once for up to {rows} rows")
    many, more = default_schedule(spec, many, target)
    return many, more | why


def _rows_in_blocks(spec: Gemm, given: Schedule) -> Explained:
    """Return ``given``, with loops over blocks of rows if it leaves the loops open.

    L2 then keeps a block of A's rows while the kernel reads all of B.
    """
    few = most_of(spec.m) <= MANY_ROWS
    asked = given.loops, given.threads, given.pack
    if asked != (None, None, None) or given.block or few or not is_alone(spec):
        return given, {}
    why = {"loops": "rows of A stay in a cache while all of B passes"}
    return replace(given, loops="mnmk", block=(("m", MANY_ROWS),)), why


def _fewest_rows(plan: Plan, other: Plan) -> int | None:
    """Return the fewest rows of C for which ``other`` is faster; None if it never is.

    ``other`` unpacks B first, ``plan`` does not.
    """
    if other.staging.product.partial and other.staging.product.unit is None:
        return _fewest_of_numbers(plan, other)
    if other.staging.product.unit is None:
        return 2 * max(tile.shape.rows for tile in plan.tiling.tiles) + 1
    most, columns = 2 * other.staging.product.unit.rows, value(plan.problem.sizes["n"]) or NOMINAL
    faster = (
        rows
        for rows in range(1, most)
        if product_cycles(other, rows, columns) < product_cycles(plan, rows, columns)
    )
    return next(faster, most)


def _fewest_of_numbers(plan: Plan, other: Plan) -> int | None:
    """Return the fewest rows of C for which ``other`` is faster than ``plan``, or None.

    ``other`` unpacks B's elements once for all tiles. In ``plan``, each tile looks them up in a
    table. The result is a multiple of the tile's rows. ``other`` counts as faster only if it saves
    at least the share ``PAYS`` of the time.
    """
    columns, tile = value(plan.problem.sizes["n"]) or NOMINAL, other.nest.panel_tile
    assert tile is not None
    unpacking = unpack_cycles(other.staging) * columns * (value(plan.problem.sizes["k"]) or NOMINAL)
    most, _ = unpacked_block(other.staging.product)

    def pays(rows: int) -> bool:
        less = (1 - PAYS) * product_cycles(plan, rows, columns)
        return product_cycles(other, rows, columns) + unpacking < less

    every = range(tile[0], most + 1, tile[0])
    first = bisect_left(every, True, key=pays)
    return every[first] if first < len(every) else None


def _from(plan: Plan, rows: int, found: Plan) -> ByRows:
    """Return a plan with two nests: ``plan`` for fewer than ``rows`` rows, else ``found``."""
    found = with_tiles(found, len(plan.tiling.tiles))
    loops = next(d for d in found.decisions if d.what == "loops")
    how = f"{loops.reason}, in panels as wide as the tile, and not by each tile that loads it"
    if not found.staging.packs:
        how = f"{found.staging.product.mnemonic}, and what matrices hold of B is unpacked first"
    said = Decision("many rows", f"from {rows} on {loops.choice}", how)
    return ByRows(plan.spec, plan.target, (*plan.decisions, said), rows, (plan, found))
