"""The loops of a row program over rows or blocks of columns, and the tiles that they call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sympy import Expr, Integer

from tilewright.ir.count import Formulas, tile_formulas
from tilewright.ir.dataflow import (
    pointers_used,
    sizes_used,
    without_idle_masks,
    without_unread,
)
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, Pack, Program, When, when
from tilewright.ir.nodes import rewritten, walk
from tilewright.ir.ops import Op, Parameter, StackBuffer, TileProgram
from tilewright.plan.rows.passes import Known
from tilewright.plan.rows.plan import RowPasses, RowsPlan
from tilewright.symbolic import ONE, ZERO, div, mod, symbol, value

from .columns import block_ops
from .row import row_ops
from .vectors import knowns_in


def rows_program(plan: RowsPlan) -> Program:
    """Return the program: loops over blocks of rows or columns, which threads may share."""
    return _working(columns_program(plan) if plan.columns else _of_rows(plan))


def _working(program: Program) -> Program:
    """Return ``program`` without calls of tiles that access no memory: there are no elements."""
    idle = {tile.name for tile in program.tiles if all(p.role == "size" for p in tile.parameters)}
    if not idle:
        return program

    def works(node: NestNode) -> NestNode | None:
        if isinstance(node, Call):
            return None if node.program in idle else node
        empty = isinstance(node, BlockLoop | When | Pack) and not node.body
        return None if empty else node

    tiles = tuple(tile for tile in program.tiles if tile.name not in idle)
    return replace(program, nest=tuple(rewritten(program.nest, works)), tiles=tiles)


def _of_rows(plan: RowsPlan) -> Program:
    """Return the program of passes over rows."""
    tiles, kept = _passes(plan)
    if plan.together == 1:
        row = symbol("row")
        body: tuple[NestNode, ...] = (_row_call(plan, tiles[0], row, ZERO),)
        return Program((_shared(plan, "row", plan.rows, body, row_work(tiles)),), tiles)
    count = Integer(plan.together)
    blocks, left = div(plan.rows, count), mod(plan.rows, count)
    body = _block(plan, tiles, kept, count, count * symbol("block"))
    nest: list[NestNode] = [_shared(plan, "block", blocks, body, count * row_work(tiles))]
    if left != 0:
        nest += when(left, _block(plan, tiles, kept, left, count * blocks))
    return Program(tuple(nest), tiles)


def _passes(plan: RowsPlan) -> tuple[tuple[TileProgram, ...], list[Known]]:
    """Return the tile programs of passes over one row, and the values that pass between them."""
    tiles, kept = [], list[Known]()
    for group in plan.groups:
        inside = [plan.passes[number] for number in group]
        later = [node for each in plan.passes[group[-1] + 1 :] for node in each.expressions]
        made = [known for each in inside for known in each.results]
        used = set(knowns_in(later))
        kept += [known for known in made if known in used]
        last = len(plan.passes) - 1
        said = f"pass {group[0]} of one row" if last else "one row, in 1 pass"
        if len(group) > 1:
            said = f"one row, in {len(group)} passes"
        name = "one_row" if len(plan.groups) == 1 else f"pass_{group[0]}"
        outputs = {name for each in inside for name, _ in (*each.stores, *each.ends)}
        outputs |= {plan.array(held) for each in inside for held, _ in each.holds}
        outputs |= {plan.array(known) for known in made}
        arrays = {plan.array(known): plan.real for known in kept} | _buffers(plan)
        ops = tuple(row_ops(plan, group, kept))
        shared = any(map(plan.in_place, inside))
        tiles.append(tile_of(plan, name, ops, said, arrays, outputs, plan.slots, shared=shared))
    return tuple(tiles), kept


def _buffers(plan: RowsPlan) -> dict[str, str]:
    """Return the buffers of held values: their element types."""
    return {f"held{place}": plan.real for place, name in enumerate(plan.held) if not name}


def _block(
    plan: RowsPlan, tiles: tuple[TileProgram, ...], kept: list[Known], count: Expr, first: Expr
) -> tuple[NestNode, ...]:
    """Return the nodes for ``count`` rows from ``first`` on. Each pass visits all of these rows."""
    row = symbol("row")
    nodes: tuple[NestNode, ...] = tuple(
        BlockLoop("row", count, (_row_call(plan, tile, first + row, row),)) for tile in tiles
    )
    sizes = {plan.array(known): ONE for known in kept} | dict.fromkeys(_buffers(plan), plan.cols)
    for name, size in sizes.items():
        nodes = (Pack(Name(name), plan.real, plan.together * size, None, (), nodes),)
    return nodes


def _row_call(plan: RowsPlan, tile: TileProgram, row: Expr, inside: Expr) -> Call:
    """Return the call of a tile for ``row``, which is row ``inside`` of the block's buffers."""
    places = []
    for parameter in tile.parameters:
        if parameter.role in ("in", "out"):
            name = parameter.name
            if name in plan.operands:
                offset = row * plan.operands[name].strides["m"]
            else:
                offset = inside * (plan.cols if name in _buffers(plan) else ONE)
            places.append(Argument(Name(name), offset))
    return Call(tile.name, tuple(places))


def _shared(
    plan: RowsPlan, counter: str, trips: Expr, body: tuple[NestNode, ...], work: Expr
) -> BlockLoop:
    """Return a loop that threads share if the plan says so, and if it has several trips."""
    parallel = plan.parallel and value(trips) != 1
    return BlockLoop(counter, trips, body, parallel=parallel, work=work if parallel else None)


def row_work(tiles: Iterable[TileProgram]) -> Expr:
    """Return the work of a call of each tile in vector multiply-adds: operations and accesses."""
    done = sum(map(tile_formulas, tiles), Formulas())
    return Integer(1) + done.elementary_operations + done.loads + done.stores


def columns_program(plan: RowsPlan) -> Program:
    """Return the program of a network that reduces columns: a tile for each block of columns."""
    tiles: list[TileProgram] = []
    nest: list[NestNode] = []
    lanes, left, start = plan.vector.lanes, plan.cols, ZERO
    outputs = {name for each in plan.passes for name, _ in (*each.stores, *each.ends)}
    rest = "a block of columns", dict[str, str](), outputs, plan.slots
    shared = any(map(plan.in_place, plan.passes))
    for width in dict.fromkeys((plan.width, 1)):
        count = div(left, width * lanes)
        if count != 0:
            ops = tuple(block_ops(plan, width, None))
            tile = tile_of(plan, f"columns_{width}", ops, *rest, shared=shared)
            tiles.append(tile)
            nest.append(_blocks(plan, tile, f"block{width}", count, start, width * lanes))
        start, left = start + count * width * lanes, mod(left, width * lanes)
    if left != 0:
        ops = tuple(block_ops(plan, 1, left))
        tile = tile_of(plan, "columns_last", ops, *rest, shared=shared)
        tiles.append(tile)
        nest += when(left, (Call(tile.name, _places(plan, tile, start)),))
    return Program(tuple(nest), tuple(tiles))


def _blocks(
    plan: RowsPlan, tile: TileProgram, counter: str, count: Expr, start: Expr, step: int
) -> NestNode:
    call = Call(tile.name, _places(plan, tile, start + step * symbol(counter)))
    found = _shared(plan, counter, count, (call,), row_work([tile]))
    return replace(found, note=f"{step} columns")


def _places(plan: RowsPlan, tile: TileProgram, column: Expr) -> tuple[Argument, ...]:
    return tuple(
        Argument(Name(p.name), column * plan.operands[p.name].strides["n"])
        for p in tile.parameters
        if p.role in ("in", "out")
    )


def tile_of(
    plan: RowPasses,
    name: str,
    made: tuple[Op, ...],
    said: str,
    buffers: Mapping[str, str],
    outputs: Collection[str],
    slots: Iterable[str] = (),
    *,
    shared: bool = False,
) -> TileProgram:
    """Return a tile of operations. ``buffers`` are arrays besides the plan's, with their types.

    ``slots`` are the names of sizes of the call. If ``shared``, results may be in the memory of
    inputs, and the order of reading and writing matters.
    """
    ops = without_idle_masks(without_unread(made)[0])
    used = pointers_used(walk(ops)) - {op.name for op in walk(ops) if isinstance(op, StackBuffer)}
    arrays = {name: operand.type for name, operand in plan.operands.items()} | dict(buffers)
    parameters = [
        Parameter(name, "out", type_, shared and name in plan.operands)
        if name in outputs or name.removesuffix("_") in outputs
        else Parameter(name, "in", type_)
        for name, type_ in arrays.items()
        if name in used
    ]
    parameters += [Parameter(name, "size") for name in sizes_used(walk(ops), slots)]
    return TileProgram(
        name=name,
        element=plan.real,
        parameters=tuple(parameters),
        body=(),
        end=ops,
        summary=said,
    )
