"""The end of a register tile: ``C = alpha * acc + beta * C``, along or across the vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .dataflow import prune
from .finish import Output, finished
from .isa import Vector
from .lower import Tile
from .program import (
    Active,
    Add,
    Address,
    Interleave,
    Load,
    MakeMask,
    MaskRegister,
    Multiply,
    MultiplyAdd,
    Op,
    Register,
    Room,
    Splat,
    Store,
)
from .symbolic import ONE, value


def factors(tile: Tile) -> Iterator[Op]:
    """Alpha and beta in registers, where they are not 1 or 0."""
    spec = tile.plan.spec
    if tile.plan.finishes:
        return
    alpha = "alpha" if spec.alpha == "scalar" else spec.alpha
    beta = "beta" if spec.beta == "scalar" else spec.beta
    for vector in _updated(tile):
        if alpha != 1:
            yield Splat(_factor(tile, "alpha", vector), alpha)
        if not tile.accumulate and beta not in (0, 1):
            yield Splat(_factor(tile, "beta", vector), beta)


def _updated(tile: Tile) -> Iterator[Vector]:
    """The vectors in which C is updated: those that are whole, and single elements."""
    plan, shape = tile.plan, tile.region.shape
    single = plan.target.of(plan.element)[-1]
    if plan.dot:
        yield single if plan.sum_along is None else tile.vector
        return
    if not plan.bounces:
        yield tile.vector
        return
    if plan.transposed:
        whole, cut = divmod(shape.rows, tile.vector.lanes)
    else:
        cut = int(tile.region.active is not None)
        whole = shape.vectors - cut
    yield from (tile.vector,) if whole else ()
    yield from (single,) if cut else ()


def _factor(tile: Tile, name: str, vector: Vector) -> Register:
    single = tile.plan.bounces and vector.lanes < tile.vector.lanes
    return Register(f"{name}_s" if single else f"{name}_v", vector)


def write(tile: Tile, outputs: Sequence[Output]) -> Iterator[Op]:
    """``C = alpha * acc + beta * C``: C is read whole before any of it is written.

    A masked store cannot be forwarded to a load that overlaps its full width, and rows of a
    narrow C overlap so: read row by row, each would wait for the one before.
    """
    if tile.stage == "sum":
        yield from _add_to_sums(tile, outputs)
        return
    if tile.plan.finishes:
        yield from finished(tile, outputs)
        return
    stores = []
    if tile.plan.bounces:
        bounce, outputs = _bounced(tile, outputs)
        yield from bounce
    for output in outputs:
        yield from _update(tile, output)
        stores.append(Store(output.at(tile.written), output.acc, output.active))
    yield from stores


def _add_to_sums(tile: Tile, outputs: Sequence[Output]) -> Iterator[Op]:
    """Add to the partial sums, or begin these."""
    for output in outputs:
        acc, address = output.acc, output.at(tile.written)
        if tile.accumulate:
            old = Register(f"old_{acc.name}", acc.vector)
            yield Load(old, address, output.active)
            yield Add(acc, acc, old)
        yield Store(address, acc, output.active)


def from_sums(tile: Tile, output: Output) -> Iterator[Op]:
    """An output whose sums are all there: what exists of it, as the last line may end with it."""
    if tile.stage == "finish":
        yield Load(output.acc, output.at(tile.plan.operands["sums"]), output.active)


def _bounced(tile: Tile, outputs: Sequence[Output]) -> tuple[list[Op], list[Output]]:
    """Vectors of which a part exists, as its elements: read from a buffer that holds them whole."""
    cut = [output for output in outputs if output.active is not None]
    if not cut:
        return [], [*outputs]
    single, lanes = tile.plan.target.of(tile.plan.element)[-1], tile.vector.lanes
    room = Room(f"bounce_{cut[0].acc.name}", tile.plan.element, len(cut) * lanes)
    result = [output for output in outputs if output.active is None]
    stores: list[Op] = []
    loads: list[Op] = []
    for first, output in zip(range(0, room.elements, lanes), cut, strict=True):
        assert isinstance(output.active, int)
        stores.append(Store(Address(room.name, first * ONE), output.acc))
        for lane in range(output.active):
            element = Register(f"{output.acc.name}_lane{lane}", single)
            loads.append(Load(element, Address(room.name, (first + lane) * ONE)))
            result.append(output.lane(lane, element))
    return [room, *stores, *loads], result


def _update(tile: Tile, output: Output) -> Iterator[Op]:
    """One register of the result; a later partial sum adds to C as it is."""
    spec, acc, vector = tile.plan.spec, output.acc, output.acc.vector
    if spec.alpha != 1:
        yield Multiply(acc, acc, _factor(tile, "alpha", vector))
    if not tile.accumulate and spec.beta == 0:
        return
    old = Register(f"old_{acc.name}", vector)
    yield Load(old, output.at(tile.written), output.active)
    if tile.accumulate or spec.beta == 1:
        yield Add(acc, acc, old)
        return
    op = vector.form("broadcast", "scalar")
    assert op is not None
    yield MultiplyAdd(op, acc, old, _factor(tile, "beta", vector))


def store_along(tile: Tile) -> Iterator[Op]:
    """C is contiguous along the vectors."""
    shape, line = tile.region.shape, tile.plan.along
    outputs = []
    for row in range(shape.rows):
        for column in range(shape.vectors):
            acc, active = tile.accumulator(row, column), tile.active(column)
            outputs.append(Output.of(acc, line, tile.position(column), row, active))
            yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)


def store_across(tile: Tile) -> Iterator[Op]:
    """C is contiguous across the vectors: square blocks are transposed, then stored."""
    plan, shape, lanes = tile.plan, tile.region.shape, tile.vector.lanes
    if lanes == 1:
        yield from _store_scalars(tile)
        return
    for first in range(0, shape.rows, lanes):
        rows = min(lanes, shape.rows - first)
        active, makes = _rows_active(tile, rows)
        yield from makes if first + lanes >= shape.rows else ()
        for column in range(shape.vectors):
            block = [tile.accumulator(first + row, column) for row in range(rows)]
            steps, result = transpose(block, lanes, f"t{column}_{first}_")
            result = result[: _existing(tile, column)]
            if tile.stage == "finish":
                result = [replace(r, name=f"sum_{r.name}_{i}") for i, r in enumerate(result)]
            else:
                yield from prune(steps, result)
            outputs = []
            for lane, register in enumerate(result):
                place = tile.position(column) + lane
                outputs.append(Output.of(register, plan.across, first, place, active))
                yield from from_sums(tile, outputs[-1])
            yield from write(tile, outputs)


def _existing(tile: Tile, column: int) -> int:
    """How many lanes of vector ``column`` are elements of C."""
    if tile.region.active is None or column < tile.region.shape.vectors - 1:
        return tile.vector.lanes
    known = value(tile.region.active)
    assert known is not None, "a run-time tail along the vectors is cut narrower before"
    return known


def _rows_active(tile: Tile, rows: int) -> tuple[Active, list[Op]]:
    if rows == tile.vector.lanes:
        return None, []
    if tile.vector.mask is None:
        return rows, []
    mask = MaskRegister("mask_across", tile.vector, rows * ONE)
    return mask, [MakeMask(mask)]


def _store_scalars(tile: Tile) -> Iterator[Op]:
    outputs = []
    for row in range(tile.region.shape.rows):
        for column in range(tile.region.shape.vectors):
            acc = tile.accumulator(row, column)
            outputs.append(Output.of(acc, tile.plan.across, row, column, None))
            yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)


def transpose(
    block: Sequence[Register], lanes: int, prefix: str
) -> tuple[list[Op], list[Register]]:
    """Transpose a block of ``lanes`` registers or fewer: log2(lanes) rounds of interleaves.

    Of the ``lanes`` results, the lanes of rows that ``block`` lacks hold anything: where one of
    two rows is missing, half of their interleaving is the other row as it is.
    """
    ops: list[Op] = []
    rows: list[Register | None] = [*block, *[None] * (lanes - len(block))]
    half = 1
    while half < lanes:
        for i in range(lanes):
            x = rows[i]
            if i & half or x is None:
                continue
            y = rows[i + half]
            odd = Register(f"{prefix}{half}_{i + half}", x.vector)
            ops.append(Interleave(odd, x, y or x, half, odd=True))
            rows[i + half] = odd
            if y is not None:
                rows[i] = even = Register(f"{prefix}{half}_{i}", x.vector)
                ops.append(Interleave(even, x, y, half, odd=False))
        half *= 2
    return ops, [row for row in rows if row is not None]
