"""Threads share blocks of rows. The blocks have equal heights, whatever the number of rows."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from sympy import Expr, Integer

import tilewright as tw
from tilewright.generate import plan_for, program_for
from tilewright.ir.nest import Bind, NestNode, Program
from tilewright.ir.nodes import rewritten
from tilewright.ir.verify import verify_program
from tilewright.plan.network.block import BLOCK, COUNT, HERE, START, Block, Outer
from tilewright.runtime.machine.host import resolve
from tilewright.spec.signature import signature
from tilewright.symbolic import evaluate, symbol, value

ROWS = symbol("rows_")


def split(block: Block, total: int) -> list[tuple[int, int]]:
    """Return the first row and the rows of each block."""
    known = {ROWS.name: total}
    for bound in block.around:
        known[bound.name] = evaluate(bound.value, known)
    found: list[tuple[int, int]] = []
    for number in range(evaluate(block.trips, known)):
        here = {**known, BLOCK.name: number}
        for bound in block.bound:
            here[bound.name] = evaluate(bound.value, here)
        found.append((evaluate(block.start, here), here[HERE.name]))
    return found


def drawn(random: Random, total: Expr) -> Block:
    unit = random.choice((1, 2, 16))
    rows = unit * random.randint(1, 9)
    stack = random.choice(((), (Outer("outer0", Integer(4) * symbol("batch_")),)))
    threads = random.choice((2, 3, 8))
    least, inner = random.choice((1, 8, 50)), random.random() < 0.5
    return Block(0, rows, total, threads, frozenset(), stack, unit, least, inner)


def test_blocks_are_equal_and_cover_all_rows() -> None:
    random = Random(1)
    for _ in range(300):
        total = random.choice((0, 1, 2, 3, 7, 17, 31, 64, 97, 128, 509, 1000))
        known, of_call = (drawn(random, size) for size in (Integer(total), ROWS))
        for block in (of_call, replace(of_call, total=Integer(total)), known):
            found = split(block, total)
            firsts, heights = [first for first, _ in found], [rows for _, rows in found]
            assert firsts == [sum(heights[:n]) for n in range(len(heights))]
            assert sum(heights) == total
            assert all(0 < rows <= evaluate(block.most, {ROWS.name: total}) for rows in heights)
            units = [-(-rows // block.unit) for rows in heights]
            assert not units or max(units) - min(units) <= 1
            inner = block.inner and block.sharing <= block.rows // block.unit
            least = max(block.least, block.unit * (block.sharing if inner else 1))
            few = total <= least if inner else len(found) * least >= total
            assert few or len(found) % block.sharing == 0 or len(found) == -(-total // block.unit)


@pytest.mark.parametrize(
    ("rows", "total", "heights"),
    [
        (72, 96, [48, 48]),
        (72, 145, [36, 36, 36, 37]),
        (72, 9, [4, 5]),
        (72, 8, [8]),
        (72, 512, [64] * 8),
        (4, 3, [2, 1]),
    ],
)
def test_threads_get_equal_shares(rows: int, total: int, heights: list[int]) -> None:
    block = Block(0, rows, ROWS, 2, frozenset(), unit=2, least=8)
    assert [height for _, height in split(block, total)] == heights


def test_a_known_number_of_rows_needs_no_formula() -> None:
    block = Block(0, 64, Integer(128), 2, frozenset(), unit=2)
    assert block.height == 64 and value(block.trips) == 2 and not block.around
    assert replace(block, total=Integer(97), rows=30).height is None


def staged() -> tuple[Any, Any, Program]:
    weights = {"a": tw.Tensor("f32", (16, 32)), "b": tw.Tensor("f32", (32, 16))}
    spec = tw.network(lambda x, w: tw.relu(x @ w.a) @ w.b).of(
        x=tw.Tensor("f32", (tw.dim("rows"), 16)), w=weights
    )
    isa = resolve("avx2")
    stages = tw.Stages(tw.Stage("a b", rows=16), threads=2)
    return spec, isa, program_for(plan_for(spec, stages, isa))


@pytest.mark.parametrize(
    ("first", "says"),
    [(Integer(0), "all trips .* write the same place"), (BLOCK, "trips 0 and 1 .* same elements")],
)
def test_blocks_that_overlap_are_refused(first: Expr, says: str) -> None:
    spec, isa, program = staged()

    def changed(node: NestNode) -> NestNode:
        if not isinstance(node, Bind):
            return node
        bound = (replace(b, value=first) if b.name == START.name else b for b in node.bound)
        return replace(node, bound=tuple(bound))

    assert COUNT.name in {b.name for node in program.nest for b in getattr(node, "bound", ())}
    wrong = replace(program, nest=tuple(rewritten(program.nest, changed)))
    verify_program(program, isa, signature(spec), {})
    with pytest.raises(tw.PlanError, match=says):
        verify_program(wrong, isa, signature(spec), {})
