"""Build the loops over blocks around the register tiles, as the plan describes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from sympy import Expr, Integer

from tilewright.ir.nest import (
    Bind,
    BlockLoop,
    Bound,
    Call,
    Name,
    NestNode,
    Pack,
    Program,
    When,
    of_batch,
    operands_of,
    renamed,
)
from tilewright.ir.ops import TileProgram
from tilewright.lower.pack_b import pack_ends, pack_rows
from tilewright.lower.staging.block_sums import TOTALS
from tilewright.lower.staging.buffers import (
    Filled,
    begin,
    convert,
    copy_tail,
    needed_sums,
    quantize,
    select,
    sum_lines,
    sums_of_blocks,
)
from tilewright.lower.staging.pack import in_panels, pack, stack_bytes
from tilewright.lower.staging.quantize import packed_rows
from tilewright.lower.staging.unpack import unpack
from tilewright.plan.operands import Operand
from tilewright.plan.plan import ByRows, Plan
from tilewright.plan.problem import Staging
from tilewright.plan.routines.pack_b import PackPlan, plan_of_d
from tilewright.plan.tiling.tiles import (
    Either,
    FirstOrLater,
    Grid,
    Grids,
    InOrder,
    OneBlock,
    OverBatch,
    OverBlocks,
    OverEqual,
    PackedBlock,
    PackedRows,
    Phase,
    Step,
    SummedBlock,
)
from tilewright.spec.operands import Packed as PackedSpec
from tilewright.symbolic import ONE, ZERO, Least, div, symbol

from .calls import Block, TileSet, called, looped, offset_of
from .panels import panels

#: Buffers that the second product (A B2) has separately: B, what is made from it, and the sums.
_OF_ITS_OWN = ("b", "b_packed", "b_tail_packed", "b_sums", "sums")


def make_program(plan: Plan | ByRows) -> Program:
    """Return the program of the whole kernel. If it has two nests, it chooses at the call."""
    first, *later = plan.nests
    tiles = TileSet(first)
    start = tuple(node for name, _ in plan.spec.outputs for node in _begun(tiles, name))
    packing = plan_of_d(first) if isinstance(plan.spec.d, PackedSpec) else None
    if isinstance(packing, PackPlan):
        nodes, made = pack_ends(packing)
        start += nodes
        tiles.programs |= {("store", program.name): program for program in made}
    if ZERO in (first.problem.sizes["m"], first.problem.sizes["n"]):
        return Program(start, tuple(tiles.programs.values()))
    nest, programs = _whole(tiles), list(tiles.programs.values())
    scratch, worker = tiles.scratch, tiles.worker_scratch
    for count, other in zip(plan.conditions, later, strict=True):
        # Only one of the nests runs, so equal buffers share a place in scratch memory.
        others = TileSet(other, "many_", scratch=scratch, worker_scratch=worker)
        nest = (When(count, _whole(others), nest),)
        programs += (each for each in others.programs.values() if each not in programs)
    shared, own = (sum(x.values(), ZERO) for x in (tiles.scratch, tiles.worker_scratch))
    return Program(start + nest, tuple(programs), shared, worker_scratch=own)


def _whole(tiles: TileSet) -> tuple[NestNode, ...]:
    """Return the nest of the product: operands are converted or summed first, then blocks of tiles
    run.
    """
    plan = tiles.plan
    block = Block(
        plan, plan.staging, dict(plan.problem.sizes), dict.fromkeys((*"mnkb", "pm", "pn"), ZERO)
    )
    nest = _converted(tiles, "b", _product(tiles, block))
    if plan.spec.b2 is not None and plan.nest.summed is None:
        nest = (_gated(tiles, block, nest),)
    if not plan.by_panels:
        nest = _converted(tiles, "a", nest)
    for name in needed_sums(plan.staging):
        nest = (_filled(tiles, sum_lines(plan.staging, name), nest),)
        if name == "b" and plan.spec.b2 is not None:
            nest = (_filled(tiles, _second(sum_lines(plan.staging, name)), nest),)
    return nest


def _begun(tiles: TileSet, name: str) -> tuple[NestNode, ...]:
    nodes, programs = begin(tiles.plan.problem, name)
    tiles.programs |= {("begin", program.name): program for program in programs}
    return nodes


def _converted(tiles: TileSet, name: str, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """Return ``body``, preceded by the conversion of operand ``name`` or the copy of its tail."""
    plan = tiles.plan
    if name == "a" and TOTALS in plan.staging.operands and not plan.spec.sums_blocks:
        body = (_filled(tiles, sums_of_blocks(plan.staging), body),)
    if name in plan.staging.sources and plan.spec.sums_blocks:
        for filled in quantize(plan.staging):
            body = (_filled(tiles, filled, body),)
        return body
    if f"{name}_tail" in plan.staging.operands:
        return (_filled(tiles, copy_tail(plan.staging, name), body),)
    return (_filled(tiles, convert(plan, name), body),) if name in plan.staging.sources else body


def _gated(tiles: TileSet, block: Block, body: tuple[NestNode, ...]) -> Pack:
    """Return ``body``, preceded by the sums of A B2 in a buffer, computed like those of A B."""
    plan = tiles.plan
    fill = _converted(tiles, "b", _pass(tiles, "sum", block))
    sums = plan.staging.operands["sums2"]
    elements = _sum_elements(plan.staging)
    (scratch, _), second = tiles.place(sums, elements), renamed(fill, _of_second)
    return Pack(sums.buffer, sums.type, elements, scratch, second, body)


def _of_second(name: Name) -> Name:
    """Return the second product's name for ``name`` of the first product."""
    return replace(name, product=1) if name.text in _OF_ITS_OWN else name


def _second(filled: Filled) -> Filled:
    """Return the fill of the first product's buffer, changed to that of the second."""
    buffer = _of_second(filled.operand.buffer)
    operand = replace(filled.operand, name=str(buffer), buffer=buffer)
    return replace(filled, operand=operand, nodes=renamed(filled.nodes, _of_second))


def _filled(tiles: TileSet, filled: Filled, body: tuple[NestNode, ...]) -> Pack:
    """Return ``body`` with a buffer that is filled before it."""
    tiles.programs |= {("fill", tile.name): tile for tile in filled.tiles}
    buffer, size = filled.operand, filled.elements
    scratch, _ = tiles.place(buffer, size)
    return Pack(buffer.buffer, buffer.type, size, scratch, filled.nodes, body)


def _product(tiles: TileSet, block: Block) -> tuple[NestNode, ...]:
    plan = tiles.plan
    if not plan.partial or plan.nest.summed is not None:
        return _pass(tiles, "whole", block)
    sums = plan.staging.operands["sums"]
    elements = _sum_elements(plan.staging)
    fill, finish = _pass(tiles, "sum", block), _pass(tiles, "finish", block)
    scratch, _ = tiles.place(sums, elements)
    return (Pack(sums.buffer, sums.type, elements, scratch, fill, finish),)


def _sum_elements(staging: Staging) -> Expr:
    """Return the number of elements in a buffer for all sums."""
    steps = staging.operands["sums"].strides
    line, other = "nm" if steps["n"] == 1 else "mn"
    return staging.problem.sizes[other] * (
        staging.problem.sizes[line] if steps[other] == 1 else steps[other]
    )


def _pass(tiles: TileSet, phase: Phase, block: Block) -> tuple[NestNode, ...]:
    """Return the nodes of one pass through all of C."""
    return tuple(_nest(tiles, tiles.plan.tiling.passes[phase], block))


def _nest(tiles: TileSet, step: Step, block: Block) -> Iterator[NestNode]:
    """Yield the nodes for one step of the plan at ``block``."""
    match step:
        case PackedBlock():
            yield _packed(tiles, step, block)
        case SummedBlock():
            yield from _summed(tiles, step, block)
        case PackedRows():
            yield _packed_rows(tiles, step, block)
        case InOrder():
            for part in step.parts:
                yield from _nest(tiles, part, block)
        case Either():
            body, otherwise = (
                () if each is None else tuple(_nest(tiles, each, block))
                for each in (step.body, step.otherwise)
            )
            yield When(step.count, body, otherwise)
        case OneBlock():
            yield from _nest(tiles, step.body, block.inside(step.letter, step.extent, step.start))
        case OverBatch():
            yield from _over_batch(tiles, step, block)
        case OverBlocks():
            yield _over_blocks(tiles, step, block)
        case OverEqual():
            yield _over_equal(tiles, step, block)
        case FirstOrLater():
            first, later = (tuple(_nest(tiles, s, block)) for s in (step.first, step.later))
            yield When(symbol(step.counter), later, first)
        case Grids():
            yield from _cells(tiles, step, block)


def _packed(tiles: TileSet, step: PackedBlock, block: Block) -> Pack:
    plan, name = block.plan, step.operand.name
    packed = _pack(tiles, step.operand, block)
    operand, elements = packed.operand, _room(plan, packed.operand, packed.elements)
    scratch, own = tiles.place(operand, elements, parallel=block.parallel)
    tiles.programs |= {("pack", tile.name): tile for tile in packed.tiles}
    bases = block.bases | {name: block.origin}
    inside = replace(block, here=block.here.holding(operand), bases=bases)
    body = tuple(_nest(tiles, step.body, inside))
    return Pack(operand.buffer, operand.type, elements, scratch, packed.nodes, body, own)


def _pack(tiles: TileSet, buffer: Operand, block: Block) -> Filled:
    """Return the nodes that pack or unpack a block into ``buffer``."""
    plan, name = block.plan, buffer.name
    if plan.staging.unpacks:
        return unpack(plan, buffer, block.extents, block.origin)
    at = offset_of(block.here.operands[name], block.origin)
    prefix = f"pack{len(tiles.programs)}_{name}_"
    return pack(plan, buffer, block.extents, at, prefix, alone=block.parallel)


def _summed(tiles: TileSet, step: SummedBlock, block: Block) -> tuple[NestNode, ...]:
    """Return nodes that sum a block of C into buffers, one for each product, and then finish it."""
    plan, names = block.plan, (sums.name for sums in step.sums)
    bases = block.bases | dict.fromkeys(names, block.origin)
    inside = replace(block, here=block.here.holding(*step.sums), bases=bases)
    fill, nodes = (tuple(_nest(tiles, each, inside)) for each in (step.fill, step.finish))
    for number, sums in enumerate(step.sums):
        filled = renamed(fill, _of_second) if number else fill
        line = next(d for d in "mn" if sums.strides[d] == 1)
        other = "n" if line == "m" else "m"
        elements = _room(plan, sums, block.extents[other] * sums.strides[other])
        scratch, own = tiles.place(sums, elements, parallel=block.parallel)
        nodes = (Pack(sums.buffer, sums.type, elements, scratch, filled, nodes, own),)
    return nodes


def _packed_rows(tiles: TileSet, step: PackedRows, block: Block) -> Pack:
    """Return nodes that write rows of D to a buffer, and pack them into D."""
    plan, rows = block.plan, block.plan.staging.operands["d"]
    inside = replace(block, bases=block.bases | {"d": block.origin})
    fill = tuple(_nest(tiles, step.body, inside))
    most = block.extents["m"]
    if most != plan.problem.sizes["m"] and "m" not in plan.block_sizes:
        most = Integer(plan.nest.blocks["m"])  # the last block uses the buffer of whole ones
    elements = _room(plan, rows, most * rows.strides["m"])
    scratch, own = tiles.place(rows, elements, parallel=block.parallel)
    shared = plan.shared and not block.parallel
    place = block.origin["m"], block.extents["m"]
    nodes, programs = _stored_rows(plan, *place, parallel=shared)
    tiles.programs |= {("store", program.name): program for program in programs}
    return Pack(rows.buffer, rows.type, elements, scratch, fill, nodes, own)


def _stored_rows(
    plan: Plan, first: Expr, rows: Expr, *, parallel: bool
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return the nodes and tiles that pack, or quantize, ``rows`` rows of D from row ``first``."""
    packing = plan_of_d(plan)
    if isinstance(packing, PackPlan):
        return pack_rows(packing, first, rows, parallel=parallel)
    (loop,), tile = packed_rows(packing, rows, first, "d_")
    return (replace(loop, parallel=parallel, note="quantize D"),), (tile,)


def _room(plan: Plan, operand: Operand, elements: Expr) -> Expr:
    """Return the number of elements to allocate for a block's buffer.

    The buffer is declared before the block's size is computed. If the largest block fits on the
    stack, its size is used. Otherwise the size follows from the call's sizes.
    """
    named = ((plan.block_sizes, plan.nest.blocks), (plan.nest.sum_sizes, plan.nest.summed or {}))
    most = {symbol(name): (d, size[d]) for names, size in named for d, name in names.items()}
    whole = elements.xreplace({name: Integer(size) for name, (_, size) in most.items()})
    if stack_bytes(operand, whole) is not None:
        return whole
    return elements.xreplace(
        {name: Least(plan.problem.sizes[d], s) for name, (d, s) in most.items()}
    )


def _over_batch(tiles: TileSet, step: OverBatch, block: Block) -> Iterator[NestNode]:
    plan = tiles.plan
    assert plan.problem.batch is not None
    yield from _selected(plan.staging, ZERO, tuple(_nest(tiles, step.first, block)))
    if step.later is not None:
        index = symbol("i")
        later = replace(block, origin=block.origin | {"b": index})
        body = _selected(plan.staging, index, tuple(_nest(tiles, step.later, later)))
        yield BlockLoop("i", plan.problem.batch.count, body, first=1, note="batch")


def _selected(staging: Staging, index: Expr, body: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """Return ``body`` with operands of one batch element selected, except those in buffers."""
    taken = operands_of(body)
    given = (staging.operands[x] for x in "ab" if Name(x) in taken)
    chosen = tuple(select(staging, operand) for operand in given if not operand.packed)
    return (of_batch(index, chosen, body),) if chosen else body


def _over_blocks(tiles: TileSet, step: OverBlocks, block: Block) -> BlockLoop:
    """Return a loop over whole blocks."""
    there = replace(block, parallel=block.parallel or step.parallel)
    there = there.inside(step.letter, Integer(step.size), step.size * symbol(step.counter))
    body = tuple(_nest(tiles, step.body, there))
    work = _work(there) if step.parallel else None
    counter, parallel = step.counter, step.parallel
    return BlockLoop(counter, step.trips, body, step.first, parallel=parallel, work=work)


def _over_equal(tiles: TileSet, step: OverEqual, block: Block) -> Bind:
    """Return a loop over blocks of nearly equal size; number and size are computed before it."""
    letter, counter = step.letter, step.counter
    count, size, here = step.count, step.step, step.here
    inside = block.inside(letter, symbol(here), symbol(counter) * symbol(size))
    inside = replace(inside, parallel=block.parallel or step.parallel)
    body = Bind((Bound(here, step.elements),), tuple(_nest(tiles, step.body, inside)))
    note = f"{letter} in equal blocks, each at most {step.most}"
    work = None
    if step.parallel:
        work = _work(block.inside(letter, symbol(size), ZERO))
    loop = BlockLoop(counter, symbol(count), (body,), 0, note, step.parallel, work)
    return Bind((Bound(count, step.trips), Bound(size, step.size)), (loop,))


def _work(block: Block) -> Expr | None:
    """Return the number of vector multiply-adds of a block; None for a matrix unit.

    One instruction of a matrix unit computes more than a vector multiply-add.
    """
    plan = block.plan
    if plan.staging.product.unit is not None:
        return None
    count = plan.problem.matrices if "b" in plan.nest.inner else ONE
    lanes = plan.target.of(plan.staging.element)[0].lanes * plan.staging.product.step
    extents = block.extents
    return div(extents["m"] * extents["n"] * extents["k"] * count, lanes)


def _cells(tiles: TileSet, step: Grids, block: Block) -> Iterator[NestNode]:
    """Yield the tile grids of each kind of panels, panel after panel."""
    letters = tiles.plan.nest.outer
    order = sorted("mn", key=letters.lower().rfind)
    number = tiles.next_group()
    for cell in step.cells:
        inside, parts = block, {"m": cell.m, "n": cell.n}
        for d, part in parts.items():
            if part is not None:
                each = step.height if d == "m" else step.width
                before = each * div(block.origin[d], each) if each else ZERO
                first = part.at(f"p{d}")
                inside = inside.inside(d, part.size, first).inside(f"p{d}", ZERO, before + first)
        nodes = tuple(_beside(node, number) for node in _grids(tiles, cell.grids, inside))
        if cell.given:
            nodes = (Bind(tuple(Bound(*each) for each in cell.given), nodes),)
        for d in reversed(order):
            part = parts[d]
            if part is not None:
                parallel = letters[letters.lower().rfind(d) :][:1].isupper()
                split = parallel and number > 0 and _may_split(nodes)
                nodes = in_panels(f"p{d}", part, nodes, parallel=parallel)
                if parallel and part.count != 1:
                    assert isinstance(nodes[0], BlockLoop)
                    nodes = (replace(nodes[0], work=_work(inside), split=split),)
        yield from (_beside(node, number) for node in nodes)


def _may_split(nodes: Sequence[NestNode]) -> bool:
    """Return True if a panel is a parallel loop that threads may share, then only other tiles."""
    match nodes:
        case (BlockLoop(parallel=True), _, *_):
            return all(isinstance(node, Call | When | BlockLoop) for node in nodes)
    return False


def _beside(node: NestNode, number: int) -> NestNode:
    """Return ``node``. If it is a parallel loop, put it into group ``number``.

    Threads run all loops of a group as one parallel region.
    """
    match node:
        case BlockLoop(parallel=True):
            return replace(node, beside=number)
        case When(body=(inner,), otherwise=()):
            return replace(node, body=(_beside(inner, number),))
    return node


def _grids(tiles: TileSet, grids: Sequence[Grid], block: Block) -> Iterator[NestNode]:
    """Yield every grid of tiles, with loops in the order of the plan's last m and n.

    A grid may exist only for some sizes of the call. This is tested once, outside all loops.
    """
    plan, letters = block.plan, tiles.plan.nest.outer
    along, across = plan.problem.along, plan.problem.across
    parallel = {dim for dim in "mn" if letters[letters.lower().rfind(dim) :][:1].isupper()}
    if plan.by_panels:
        yield panels(tiles, block, grids)
        return
    for group in plan.side_by_side(grids):
        calls = [called(tiles, block, each.tile, each.along, each.across) for each in group]
        grid = group[0]
        if len(group) > 1:
            pairs = zip(group, calls, strict=True)
            row = (looped(along, each.along, (call,), parallel) for each, call in pairs)
            yield from looped(across, grid.across, tuple(chain(*row)), parallel)
            continue
        parts = {along: grid.along, across: grid.across}
        node: NestNode = calls[0]
        order = sorted("mn", key=lambda dim: (not parts[dim].once, letters.lower().rfind(dim)))
        for dim in reversed(order):
            node = looped(dim, parts[dim], (node,), parallel)[0]
        if any(part.given for part in parts.values()):
            node = When(grid.across.count, (node,))
        yield node
