"""Programs of stages of a network that run together, one block of rows after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

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
    names_used,
    operands_of,
    renamed,
)
from tilewright.ir.nodes import mapped, rewritten, walk
from tilewright.ir.stages import ALIGNMENT, Stage, binding, in_order
from tilewright.plan.network.block import BLOCK, COUNT, HERE, START, Block
from tilewright.plan.network.step import Step
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ZERO, Least, div, slots, symbol, value

#: In formulas: the number of a part of the rows of a matrix, and that of a block in it.
PART, OF_PART = symbol("part"), symbol("block_of_part")
#: Sizes that differ from block to block.
OF_BLOCK = {each.name for each in (BLOCK, COUNT, START, HERE)}
#: Parts of matrices for each thread, at least: the last thread then waits for a small share.
TASKS = 4


def times(block: Block) -> Expr:
    """Return the number of blocks of all matrices."""
    return prod((loop.trips for loop in block.stack), start=block.trips)


def whole(step: Step) -> Mapping[str, Expr]:
    """Return the sizes of a stage for all blocks together."""
    return _sized(step, None if step.block is None else step.block.total)


def one_block(step: Step) -> Mapping[str, Expr]:
    """Return the sizes of a stage for one block."""
    block = step.block
    return _sized(step, None if block is None else block.usual)


def at_most(nbytes: Expr, steps: Sequence[Step]) -> Expr:
    """Return a size in bytes if each block has all its rows."""
    blocks = {step.block for step in steps if step.block is not None}
    return nbytes.xreplace({block.most: Integer(block.rows) for block in blocks})


def _sized(step: Step, rows: Expr | None) -> Mapping[str, Expr]:
    if rows is None:
        return step.sizes
    return {name: size.xreplace({HERE: rows}) for name, size in step.sizes.items()}


def with_space(program: Program, step: Step) -> Program:
    """Return the program of ``step`` with buffers that have space for a whole block of rows.

    The last block has fewer rows.
    """
    assert step.block is not None and step.rows is not None
    names = [HERE] if step.rows.slot is None else [HERE, symbol(step.rows.slot)]
    most = dict.fromkeys(names, step.block.most)

    def wide(node: NestNode) -> NestNode:
        if not isinstance(node, Pack):
            return node
        scratch = None if node.scratch is None else node.scratch.xreplace(most)
        return replace(node, elements=node.elements.xreplace(most), scratch=scratch)

    scratch, worker = (x.xreplace(most) for x in (program.scratch, program.worker_scratch))
    nest = tuple(rewritten(program.nest, wide))
    return replace(program, nest=nest, scratch=scratch, worker_scratch=worker)


def in_blocks(block: Block, stages: Sequence[Stage]) -> Stage:
    """Return one stage that runs ``stages`` in order for each block of rows of each matrix.

    Arrays that have the rows of one block are in the scratch memory of the thread if threads share
    the blocks.
    """
    lifted = [_lifted(stage.program, block, number) for number, stage in enumerate(stages)]
    inner = [
        Stage(program, tuple(b for b in stage.fills if b.name in block.private))
        for stage, (program, _) in zip(stages, lifted, strict=True)
    ]
    fills = [b for stage in stages for b in stage.fills if b.name not in block.private]
    program = in_order(inner)
    if not operands_of(program.nest):
        return Stage(replace(program, nest=()), tuple(fills))  # arrays without columns
    packs = [pack for _, pack in lifted if pack is not None]
    program = replace(program, nest=_loops(block, program.nest, bool(packs)))
    for pack in reversed(packs):
        program = _around(pack, program)
    if block.parallel:
        program = _private(program)
    nest = program.nest
    if packs and _parts(block) != 1:
        nest = (BlockLoop(PART.name, Integer(_parts(block)), nest, parallel=True),)
    for each in reversed(block.stack):
        nest = (BlockLoop(each.counter, each.trips, nest, parallel=block.parallel),)
    if block.around:
        nest = (Bind(block.around, nest),)
    return Stage(replace(program, nest=nest), tuple(fills))


def _loops(block: Block, nest: tuple[NestNode, ...], lifted: bool) -> tuple[NestNode, ...]:
    """Return the loop over the blocks of one matrix; over those of a part if packs are lifted."""
    if block.total == 1:
        return mapped(nest, Expr, lambda formula: formula.xreplace({BLOCK: ZERO}))
    body = (Bind(block.bound, nest),)
    counter, count = BLOCK.name, block.trips
    if lifted and (parts := _parts(block)) != 1:
        each = div(count + (parts - 1), parts)
        counter, count = OF_PART.name, Least(each, count - PART * each)
        number = {BLOCK: PART * each + OF_PART}
        body = mapped(body, Expr, lambda formula: formula.xreplace(number))
    parallel = block.parallel and not lifted
    work = None if block.work is None or not parallel else block.work * block.usual
    note = f"blocks of {block.said}"
    return (BlockLoop(counter, count, body, note=note, parallel=parallel, work=work),)


def _parts(block: Block) -> int:
    """Return the number of parts of the rows of a matrix. Each begins with the lifted packs."""
    if not block.parallel:
        return 1
    count = prod(value(loop.trips) or 1 for loop in block.stack)
    parts = -(-TASKS * block.threads // count)
    most = value(block.count)
    return parts if most is None else max(1, min(parts, most))


# --- packs of a whole matrix -------------------------------------------------------------------


def _lifted(program: Program, block: Block, number: int) -> tuple[Program, Pack | None]:
    """Return the program of a stage without the packing of what all blocks share, and that packing.

    For example, all blocks of queries are multiplied by the same keys, so these are packed once.
    """
    bound: tuple[Bound, ...] = ()
    nest = program.nest
    if len(nest) == 1 and isinstance(nest[0], Bind):
        bound, nest = nest[0].bound, nest[0].body
    if len(nest) != 1 or not isinstance(nest[0], Pack) or not block.stack:
        return program, None
    own = nest[0]
    if own.of_worker or _depends(program, own, bound, block):
        return program, None
    name = Name(f"stage{number}_{own.buffer}")
    (pack,) = renamed((own,), lambda each: name if each == own.buffer else each)
    assert isinstance(pack, Pack)
    known = {symbol(each.name): each.value for each in bound}
    outside = tuple(each for each in bound if not slots(each.value) & OF_BLOCK)
    fill = binding(outside, pack.fill, program.tiles)
    found = replace(pack, elements=pack.elements.xreplace(known), fill=fill, body=())
    body = binding(bound, pack.body, program.tiles)
    alone = not any(isinstance(node, Pack) and node.scratch is not None for node in walk(body))
    scratch = ZERO if alone else program.scratch
    return replace(program, nest=body, scratch=scratch), found


def _depends(program: Program, pack: Pack, bound: Sequence[Bound], block: Block) -> bool:
    """Return True if the filling of a buffer, or its size, uses something of one block."""
    of_block = OF_BLOCK | {str(name) for name in block.private}
    of_block |= {each.name for each in bound if slots(each.value) & OF_BLOCK}
    used = slots(pack.elements).union(*map(names_used, walk(pack.fill)))
    called = {node.program for node in walk(pack.fill) if isinstance(node, Call)}
    parameters = (p for tile in program.tiles if tile.name in called for p in tile.parameters)
    return not of_block.isdisjoint({*used, *(p.name for p in parameters if p.role == "size")})


def _around(pack: Pack, program: Program) -> Program:
    """Return ``program`` with a lifted pack around it, in scratch memory of its own."""
    scratch, end = pack.scratch, program.scratch
    if scratch is not None:
        scratch = div(end + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT
        end = scratch + pack.elements * ITEMSIZE[pack.element]
    return replace(program, nest=(replace(pack, scratch=scratch, body=program.nest),), scratch=end)


def _private(program: Program) -> Program:
    """Return ``program`` with all buffers in the scratch memory of the thread that runs it."""
    start = div(program.worker_scratch + (ALIGNMENT - 1), ALIGNMENT) * ALIGNMENT

    def moved(node: NestNode) -> NestNode:
        if not isinstance(node, Pack) or node.scratch is None or node.of_worker:
            return node
        return replace(node, scratch=start + node.scratch, of_worker=True)

    nest = tuple(rewritten(program.nest, moved))
    worker = start + program.scratch
    return replace(program, nest=nest, scratch=ZERO, worker_scratch=worker)
