"""The program of a row program: a loop over rows, which calls the tile of one row."""

from __future__ import annotations

from sympy import Expr, Integer

from tilewright.ir.count import tile_formulas
from tilewright.ir.dataflow import pointers_used, sizes_used, without_idle_masks
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, Program
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Parameter, TileProgram
from tilewright.plan.rows.plan import RowsPlan
from tilewright.symbolic import symbol

from .row import row_ops


def rows_program(plan: RowsPlan) -> Program:
    """Return the program: rows one by one, or shared by threads."""
    tile = _tile(plan)
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


def _tile(plan: RowsPlan) -> TileProgram:
    ops = without_idle_masks(tuple(row_ops(plan)))
    used = pointers_used(walk(ops))
    slots = tuple(name for name, _ in plan.spec.runtime_sizes())
    outputs = {name for each in plan.passes for name, _ in (*each.stores, *each.ends)}
    parameters = [
        Parameter(name, "out" if name.rstrip("_") in outputs else "in", operand.type)
        for name, operand in plan.operands.items()
        if name in used
    ]
    parameters += [Parameter(name, "size") for name in sizes_used(walk(ops), slots)]
    passes = len(plan.passes)
    return TileProgram(
        name="one_row",
        element=plan.real,
        parameters=tuple(parameters),
        body=(),
        end=ops,
        summary=f"one row, in {passes} {'pass' if passes == 1 else 'passes'}",
    )
