"""Programs of stages of a network that run together, one block of rows after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sympy import Expr, Integer

from tilewright.ir.nest import Bind, BlockLoop, Bound, NestNode, Pack, Program, operands_of
from tilewright.ir.nodes import rewritten
from tilewright.ir.stages import ALIGNMENT, Stage, in_order
from tilewright.plan.network.blocks import BLOCK, HERE
from tilewright.plan.network.step import Block, Step
from tilewright.symbolic import ZERO, Least, div, symbol, value


def trips(block: Block) -> Expr:
    """Return the number of blocks."""
    return div(block.total + (block.rows - 1), block.rows)


def whole(step: Step) -> Mapping[str, Expr]:
    """Return the sizes of a stage for all blocks together."""
    return _sized(step, None if step.block is None else step.block.total)


def one_block(step: Step) -> Mapping[str, Expr]:
    """Return the sizes of a stage for the first block, which is the largest."""
    block = step.block
    return _sized(step, None if block is None else block.most)


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
    """Return one stage that runs ``stages`` in order for each block of rows.

    Arrays that have the rows of one block are in the scratch memory of the thread if threads share
    the blocks.
    """
    inner = [
        replace(stage, fills=tuple(b for b in stage.fills if b.name in block.private))
        for stage in stages
    ]
    fills = [b for stage in stages for b in stage.fills if b.name not in block.private]
    program = in_order(inner)
    if not operands_of(program.nest):
        return Stage(replace(program, nest=()), tuple(fills))  # arrays without columns
    if block.parallel:
        program = _private(program)
    start = BLOCK * block.rows
    known = value(block.total)
    left = block.total - start
    exact = known is not None and known % block.rows == 0
    rows = Integer(block.rows) if exact else Least(Integer(block.rows), left)
    nest: tuple[NestNode, ...] = (Bind((Bound(HERE.name, rows),), program.nest),)
    note = f"blocks of {block.rows} rows"
    loop = BlockLoop(BLOCK.name, trips(block), nest, note=note, parallel=block.parallel)
    return Stage(replace(program, nest=(loop,)), tuple(fills))


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
