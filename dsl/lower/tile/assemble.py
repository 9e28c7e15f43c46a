"""One register tile as a program: parameters, a body that sums products, an end that
stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from tilewright.ir.access import streams
from tilewright.ir.dataflow import (
    masks_once,
    pointers_used,
    sizes_used,
    stored_in_parts,
    without_idle_masks,
    without_idle_notes,
    without_unread,
)
from tilewright.ir.nodes import rewritten, walk
from tilewright.ir.ops import (
    Note,
    Op,
    Parameter,
    Prefetch,
    Splat,
    Store,
    TileProgram,
)
from tilewright.ir.values import Address
from tilewright.spec.signature import symbol_of
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import linear, mod

from .block_product import BlockProduct, begin_blocks, unfold
from .blocks import Blocks, BlockSteps, Way
from .dot_product import DotProduct, store_dots
from .k_loop import KStep, k_loop
from .matrix_product import MatrixProduct, accumulator, begin
from .outer_product import OuterProduct
from .scaled_matrices import ScaledMatrices, begin_beside
from .scaled_product import DequantizedProduct, RunsOfProducts, ScaledProduct
from .store import factors, store_across, store_along
from .store_lines import store_lines
from .store_matrix import store_matrices
from .tile import Tile, masks, sum_splits, zeros


def lower_tile(tile: Tile, name: str) -> TileProgram:
    """Return the program of one register tile."""
    body, end = tuple(_body(tile)), tuple(_end(tile))
    if tile.finishes or tile.empty:  # expressions may leave values unused
        body, end = without_unread(body, end)
    if tile.here.problem.schedule.tails != "mask":
        end = tuple(stored_in_parts(end))
    end = masks_once(without_idle_masks(end))
    end = _streamed(tile, end)
    body = without_idle_masks(body, end)
    body, end = (without_idle_notes(part) for part in (body, end))
    return TileProgram(
        name=name,
        element=tile.here.element,
        parameters=tuple(_parameters(tile, (*walk(body), *walk(end)))),
        body=body,
        end=end,
        summary=_summary(tile),
        mr=tile.chosen.mr,
        nr=tile.chosen.nr,
        accumulators=_register_map(tile),
        planned=tile.chosen.number,
    )


def _streamed(tile: Tile, end: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return ``end`` with non-temporal stores of whole vectors of C, if the plan says so.

    The tile must write whole cache lines. Overlapping vectors would write a line twice.
    """
    past, width = tile.plan.nest.streams, tile.along_size * ITEMSIZE[tile.written.type]
    whole = tile.shape.vector.nbytes % tile.plan.target.core.line == 0
    whole = whole or mod(width, tile.plan.target.core.line) == 0
    if past is None or tile.phase == "sum" or tile.chosen.overlapped or not whole:
        return end

    def stored(op: Op) -> Op:
        if not isinstance(op, Store) or op.address.pointer != tile.written.name:
            return op
        return replace(op, past=past) if streams(op) else op

    return tuple(rewritten(end, stored))


def _body(tile: Tile) -> Iterator[Op]:
    """Emit masks, the start values of accumulators, and the products of all K."""
    plan, matrices = tile.plan, tile.product.unit is not None
    if not plan.staging.transposed or not (tile.empty or matrices or tile.phase == "finish"):
        yield from masks(tile)
    if tile.phase == "finish":
        return
    if plan.nest.panel_tile is not None and tile.accumulate and not plan.staging.transposed:
        yield from _asked_for(tile)
    if matrices:
        yield from begin_beside(tile) if tile.product.block else begin(tile)
    else:
        yield from begin_blocks(tile) if tile.shape.sums is not None else zeros(tile)
    if not tile.empty:
        yield from k_loop(_step_of(tile))


def _asked_for(tile: Tile) -> Iterator[Op]:
    """Prefetch the elements of C that the sums are added to, so that they arrive during
    the K loop.
    """
    plan, shape, written = tile.plan, tile.shape, tile.written
    lanes = max(1, plan.target.core.line // ITEMSIZE[written.type])
    along, across = written.strides[plan.problem.along], written.strides[plan.problem.across]
    yield Note("What this tile adds to is asked for now.")
    for row in range(shape.rows):
        for column in range(0, shape.vectors * tile.vector.lanes, lanes):
            yield Prefetch(Address(written.name, linear(((row, across), (column, along)))))


def _step_of(tile: Tile) -> KStep:
    """Return the kind of K step that ``tile`` needs."""
    product = tile.product
    if product.block:
        way: Callable[[Blocks], Way] = ScaledProduct
        if product.unit is not None:
            way = ScaledMatrices
        elif product.few:
            way = RunsOfProducts
        elif not (tile.plan.spec.sums_blocks or product.partial):
            way = DequantizedProduct
        return BlockSteps.by(way, tile)
    if product.unit is not None:
        return MatrixProduct.of(tile)
    if tile.here.problem.dot:
        return DotProduct.of(tile)
    return BlockProduct.of(tile) if product.blocks else OuterProduct.of(tile)


def _end(tile: Tile) -> Iterator[Op]:
    """Turn accumulators into rows or columns of sums, and compute and store the result."""
    plan = tile.plan
    if tile.product.unit is not None:
        yield from factors(tile)
        yield from store_matrices(tile)
        return
    if tile.shape.sums is not None and tile.shape.sums.by_lines:
        yield from factors(tile)
        yield from store_lines(tile)
        return
    if tile.phase != "finish":
        yield from unfold(tile) if tile.product.blocks else ()
        yield from sum_splits(tile)
    yield from factors(tile)
    yield from (
        store_dots(tile)
        if plan.problem.dot
        else (store_across(tile) if plan.staging.transposed else store_along(tile))
    )


def _register_map(tile: Tile) -> tuple[tuple[str, ...], ...]:
    """Return the accumulators' names, arranged as their elements are in C."""
    shape = tile.shape
    if tile.product.unit is not None:
        bands = [[accumulator(tile, i, j).name for j in range(shape.columns)]
                 for i in range(shape.bands)]  # fmt: skip
        return tuple(
            map(tuple, bands if tile.here.problem.along == "n" else zip(*bands, strict=True))
        )
    if tile.here.problem.along == "n":
        places = [[(row, col) for col in range(shape.vectors)] for row in range(shape.rows)]
    else:
        places = [[(col, row) for col in range(shape.rows)] for row in range(shape.vectors)]
    return tuple(tuple(tile.accumulator(*place).name for place in line) for line in places)


def _parameters(tile: Tile, ops: tuple[Op, ...]) -> Iterator[Parameter]:
    plan = tile.plan
    used = pointers_used(ops)
    if not tile.empty:
        yield from _inputs(tile, used)
    written = {tile.written.name, *(symbol_of(name) for name, _ in plan.spec.outputs)}
    for operand in tile.operands.values():
        if operand.name in used and operand.name not in ("a", "b"):
            role: Literal["in", "out"] = "out" if operand.name in written else "in"
            may_be_c = operand.name == "d" and "c" in used
            yield Parameter(operand.name, role, operand.type, shared=may_be_c)
    yield from (Parameter(s, "size") for s in sizes_used(ops, plan.slots))
    numbers = {op.source for op in ops if isinstance(op, Splat) and isinstance(op.source, str)}
    yield from (
        Parameter(n, "scalar", plan.spec.factor_type) for n in ("alpha", "beta") if n in numbers
    )


def _inputs(tile: Tile, used: set[str]) -> Iterator[Parameter]:
    plan = tile.plan
    inside = plan.problem.batch is not None and "b" in plan.nest.inner
    for name in (name for name in "ab" if name in used):
        operand = tile.operands[name]
        kind = plan.staging.batch_kind(operand) if inside else None
        if kind == "addresses":
            yield Parameter(name, "table", operand.type)
            yield Parameter(f"{name}_at", "at")
        else:
            yield Parameter(name, "in", operand.type)
        if kind == "offsets":
            yield Parameter(f"{name}_offsets", "offsets")


def _summary(tile: Tile) -> str:
    shape, plan = tile.shape, tile.plan
    budget = shape.budget
    uses = [f"{budget.accumulators} accumulators"]
    uses += [f"{n} {tile_side.name.upper()}" for n, tile_side in
             ((budget.across, tile.across), (budget.along, tile.along)) if n]  # fmt: skip
    uses += [f"{budget.masks} mask"] if budget.masks else []
    split = f", K over {shape.k_split} sets" if shape.k_split > 1 else ""
    registers, kind = plan.target.registers, shape.vector.name
    if shape.unit is not None:
        registers, kind = shape.unit.registers[plan.staging.element], shape.unit.name
    if shape.sums is not None:
        most = shape.sums.registers[plan.staging.element]
        uses[0] = f"{budget.accumulators} of {most} {shape.sums.name} accumulators"
        return f"{uses[0]}, {' + '.join(uses[1:])} = {budget.beside} of {registers} {kind}{split}"
    each = f", {budget.registers} registers each," if budget.registers > 1 else ""
    return f"{' + '.join(uses)}{each} = {budget.total} of {registers} {kind}{split}"
