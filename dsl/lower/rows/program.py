"""The program of a row program: a loop over rows, which calls the tile of one row."""

from __future__ import annotations

from sympy import Expr, Integer

from tilewright.ir.count import tile_formulas
from tilewright.ir.dataflow import pointers_used, sizes_used, without_idle_masks
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, Program, When
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Op, Parameter, TileProgram
from tilewright.plan.rows.plan import RowsPlan
from tilewright.symbolic import ZERO, div, mod, symbol

from .columns import block_ops
from .row import row_ops


def rows_program(plan: RowsPlan) -> Program:
    """Return the program: rows one by one, or blocks of columns; threads may share them."""
    if plan.columns:
        return columns_program(plan)
    passes = len(plan.passes)
    said = f"one row, in {passes} {'pass' if passes == 1 else 'passes'}"
    tile = _tile(plan, "one_row", tuple(row_ops(plan)), said)
    row = symbol("row")
    places = [
        Argument(Name(p.name), row * plan.operands[p.name].strides["m"])
        for p in tile.parameters
        if p.role in ("in", "out")
    ]
    nest: tuple[NestNode, ...] = (Call(tile.name, tuple(places)),)
    work = _work(tile) if plan.parallel else None
    nest = (BlockLoop("row", plan.rows, nest, parallel=plan.parallel, work=work),)
    return Program(nest, (tile,))


def _work(tile: TileProgram) -> Expr:
    """Return the work of a row in vector multiply-adds: its elementary operations and accesses."""
    done = tile_formulas(tile)
    return Integer(1) + done.elementary_operations + done.loads + done.stores


def columns_program(plan: RowsPlan) -> Program:
    """Return the program of a network that reduces columns: a tile for each block of columns."""
    tiles: list[TileProgram] = []
    nest: list[NestNode] = []
    lanes, left, start = plan.vector.lanes, plan.cols, ZERO
    for width in dict.fromkeys((plan.width, 1)):
        count = div(left, width * lanes)
        if count != 0:
            tile = _tile(plan, f"columns_{width}", tuple(block_ops(plan, width, None)))
            tiles.append(tile)
            nest.append(_blocks(plan, tile, f"block{width}", count, start, width * lanes))
        start, left = start + count * width * lanes, mod(left, width * lanes)
    if left != 0:
        tile = _tile(plan, "columns_last", tuple(block_ops(plan, 1, left)))
        tiles.append(tile)
        nest.append(When(left, (Call(tile.name, _places(plan, tile, start)),)))
    return Program(tuple(nest), tuple(tiles))


def _blocks(
    plan: RowsPlan, tile: TileProgram, counter: str, count: Expr, start: Expr, step: int
) -> NestNode:
    call = Call(tile.name, _places(plan, tile, start + step * symbol(counter)))
    work = _work(tile) if plan.parallel else None
    return BlockLoop(
        counter, count, (call,), note=f"{step} columns", parallel=plan.parallel, work=work
    )


def _places(plan: RowsPlan, tile: TileProgram, column: Expr) -> tuple[Argument, ...]:
    return tuple(
        Argument(Name(p.name), column * plan.operands[p.name].strides["n"])
        for p in tile.parameters
        if p.role in ("in", "out")
    )


def _tile(
    plan: RowsPlan, name: str, made: tuple[Op, ...], said: str = "a block of columns"
) -> TileProgram:
    ops = without_idle_masks(made)
    used = pointers_used(walk(ops))
    outputs = {name for each in plan.passes for name, _ in (*each.stores, *each.ends)}
    parameters = [
        Parameter(name, "out" if name.rstrip("_") in outputs else "in", operand.type)
        for name, operand in plan.operands.items()
        if name in used
    ]
    parameters += [Parameter(name, "size") for name in sizes_used(walk(ops), plan.slots)]
    return TileProgram(
        name=name,
        element=plan.real,
        parameters=tuple(parameters),
        body=(),
        end=ops,
        summary=said,
    )
