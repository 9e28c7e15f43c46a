"""The end of a register tile: ``C = alpha * acc + beta * C``, stored along or across the vectors."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr

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
    Splat,
    Store,
    Zero,
    prune,
)
from .symbolic import ONE, linear, value


def factors(tile: Tile, vector: Vector) -> Iterator[Op]:
    """alpha and beta in registers, where they are not 1 or 0."""
    spec = tile.plan.spec
    if spec.alpha != 1:
        yield Splat(Register("alpha_v", vector), spec.alpha)
    if not tile.accumulate and spec.beta not in (0, 1):
        yield Splat(Register("beta_v", vector), spec.beta)


def update(tile: Tile, acc: Register, address: Address, active: Active) -> Iterator[Op]:
    """``C = alpha * acc + beta * C`` for one register; a later partial sum adds to C as it is."""
    spec, vector = tile.plan.spec, acc.vector
    result = acc
    if spec.alpha != 1:
        yield Multiply(acc, acc, Register("alpha_v", vector))
    if tile.accumulate or spec.beta != 0:
        old = Register(f"old_{acc.name}", vector)
        yield Load(old, address, active)
        if tile.accumulate or spec.beta == 1:
            yield Add(result, result, old)
        else:
            op = vector.form("broadcast", "scalar")
            assert op is not None
            yield MultiplyAdd(op, result, old, Register("beta_v", vector))
    yield Store(address, result, active)


def store_along(tile: Tile) -> Iterator[Op]:
    """C is contiguous along the vectors."""
    plan, shape = tile.plan, tile.region.shape
    across = plan.operands["c"].strides[plan.across]
    for row in range(shape.rows):
        for column in range(shape.vectors):
            offset = linear(((row, across), (column * tile.vector.lanes, ONE)))
            acc = tile.accumulator(row, column)
            yield from update(tile, acc, Address("c", offset), tile.active(column))


def store_across(tile: Tile) -> Iterator[Op]:
    """C is contiguous across the vectors: square blocks are transposed, then stored."""
    plan, shape, lanes = tile.plan, tile.region.shape, tile.vector.lanes
    stride = plan.operands["c"].strides[plan.vectorize]
    if lanes == 1:
        yield from _store_scalars(tile, stride)
        return
    for first in range(0, shape.rows, lanes):
        rows = min(lanes, shape.rows - first)
        active, makes = _rows_active(tile, rows)
        yield from makes if first + lanes >= shape.rows else ()
        for column in range(shape.vectors):
            block = [tile.accumulator(first + row, column) for row in range(rows)]
            padding = [
                tile.register(f"pad{column}_{first + row}") for row in range(rows, lanes)
            ]
            steps, result = transpose(block + padding, f"t{column}_{first}_")
            existing = _existing(tile, column)
            yield from prune([*map(Zero, padding), *steps], result[:existing])
            for lane in range(existing):
                offset = linear(((column * lanes + lane, stride), (first, ONE)))
                yield from update(tile, result[lane], Address("c", offset), active)


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


def _store_scalars(tile: Tile, stride: Expr) -> Iterator[Op]:
    for row in range(tile.region.shape.rows):
        for column in range(tile.region.shape.vectors):
            address = Address("c", linear(((column, stride), (row, ONE))))
            yield from update(tile, tile.accumulator(row, column), address, None)


def transpose(block: list[Register], prefix: str) -> tuple[list[Op], list[Register]]:
    """Transpose a square block of registers: log2(lanes) rounds of interleaves."""
    ops: list[Op] = []
    rows, half = list(block), 1
    while half < len(block):
        for i in range(len(block)):
            if i & half:
                continue
            even = Register(f"{prefix}{half}_{i}", rows[i].vector)
            odd = Register(f"{prefix}{half}_{i + half}", rows[i].vector)
            ops.append(Interleave(even, rows[i], rows[i + half], half, odd=False))
            ops.append(Interleave(odd, rows[i], rows[i + half], half, odd=True))
            rows[i], rows[i + half] = even, odd
        half *= 2
    return ops, rows
