"""The end of a register tile: its sums as C has them, along or across the vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .dataflow import prune
from .finish import Output
from .lines import Lines, Stack
from .lower import Tile
from .program import Active, Interleave, MakeMask, MaskRegister, Op, Register
from .symbolic import ONE, value
from .update import from_sums, write


def store_along(tile: Tile) -> Iterator[Op]:
    """C is contiguous along the vectors."""
    shape, line = tile.region.shape, tile.plan.along
    vectors = tuple((tile.position(i), tile.active(i)) for i in range(shape.vectors))
    places = [(row, column) for row in range(shape.rows) for column in range(shape.vectors)]
    stack, lines = _lines(tile, line, shape.rows, vectors)
    if lines.long:
        if stack is not None:
            yield stack.room()
            yield from (stack.put(*place, tile.accumulator(*place)) for place in places)
            yield stack.begin()
        yield lines.loop()
        return
    outputs = []
    for row, column in places:
        place, active = vectors[column]
        outputs.append(Output.of(tile.accumulator(row, column), line, place, row, active))
        yield from from_sums(tile, outputs[-1])
    yield from write(tile, outputs)


def store_across(tile: Tile) -> Iterator[Op]:
    """C is contiguous across the vectors: square blocks are transposed, then stored."""
    plan, shape, lanes = tile.plan, tile.region.shape, tile.vector.lanes
    if lanes == 1:
        yield from _store_scalars(tile)
        return
    starts = range(0, shape.rows, lanes)
    actives = [_rows_active(tile, min(lanes, shape.rows - start)) for start in starts]
    yield from actives[-1][1]
    vectors = tuple((start, active) for start, (active, _) in zip(starts, actives, strict=True))
    count = tile.position(shape.vectors - 1) + _existing(tile, shape.vectors - 1)
    stack, lines = _lines(tile, plan.across, count, vectors)
    if lines.long:
        if stack is not None:
            yield stack.room()
            for band, place, steps, result in _blocks(tile):
                yield from steps
                yield from (stack.put(place + i, band, r) for i, r in enumerate(result))
            yield stack.begin()
        yield lines.loop()
        return
    for band, place, steps, result in _blocks(tile):
        start, active = vectors[band]
        yield from steps
        outputs = [Output.of(r, plan.across, start, place + i, active)
                   for i, r in enumerate(result)]  # fmt: skip
        for output in outputs:
            yield from from_sums(tile, output)
        yield from write(tile, outputs)


def _lines(
    tile: Tile, line: str, count: int, vectors: tuple[tuple[int, Active], ...]
) -> tuple[Stack | None, Lines]:
    """A tile's sums line by line: on the stack first, unless they stand in memory already."""
    if tile.stage == "finish":
        return None, Lines(tile, line, vectors, count * ONE)
    stack = Stack(tile, count, len(vectors))
    return stack, Lines(tile, line, vectors, count * ONE, stack.sums)


def _blocks(tile: Tile) -> Iterator[tuple[int, int, list[Op], list[Register]]]:
    """Square blocks transposed: the band of rows, the first line, operations and results.

    Where sums stand in memory these are the registers that lines are read to.
    """
    shape, lanes = tile.region.shape, tile.vector.lanes
    for band, start in enumerate(range(0, shape.rows, lanes)):
        for column in range(shape.vectors):
            rows = range(start, min(start + lanes, shape.rows))
            block = [tile.accumulator(row, column) for row in rows]
            steps, result = transpose(block, lanes, f"t{column}_{start}_")
            result = result[: _existing(tile, column)]
            if tile.stage == "finish":
                steps = []
                result = [replace(r, name=f"sum_{r.name}_{i}") for i, r in enumerate(result)]
            yield band, tile.position(column), prune(steps, result), result


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
