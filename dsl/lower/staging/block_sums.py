"""Sum each block of K of A's rows; zero points and minima of a quantized B multiply these sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce

from sympy import Expr, Integer

from tilewright.ir.dataflow import sizes_used
from tilewright.ir.emitter import Emitter
from tilewright.ir.nest import Argument, BlockLoop, Call, NestNode
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Advance, Apply, Loop, Op, Parameter, TileProgram, Zero
from tilewright.ir.values import Address
from tilewright.plan.problem import Staging
from tilewright.symbolic import ONE, ZERO, symbol

from .quantize import fitting, folded, pieces, put_one

#: The name of the sums of blocks of A among the operands.
TOTALS = "a_totals"


def sum_blocks(staging: Staging, matrix: Expr) -> tuple[tuple[NestNode, ...], TileProgram]:
    """Return the nodes that sum blocks of A's rows in matrix number ``matrix``, and their tile.

    A has a floating-point type and is contiguous along K. The f32 sums are negated if zero points
    multiply them.
    """
    source, made, form = (
        staging.operands["a"],
        staging.operands[TOTALS],
        staging.quantized,
    )
    whole, tail = divmod(form.k, form.block)
    ops: tuple[Op, ...] = ()
    if whole:
        ops = (Loop("kt", Integer(whole), tuple(_block(staging, form.block)), "blocks of K"),)
    ops = (*ops, *(_block(staging, tail) if tail else ()))
    slots = tuple(slot for slot, _ in staging.problem.spec.runtime_sizes())
    program = TileProgram(
        name="sum_blocks",
        element="f32",
        parameters=(
            Parameter("x", "in", source.type),
            Parameter("totals", "out", "f32"),
            *(Parameter(slot, "size") for slot in sizes_used(walk(ops), slots)),
        ),
        body=(),
        end=ops,
        summary="the sums of blocks of K of a row",
    )
    row = symbol("lp")
    places = (
        Argument(source.buffer, row * source.strides["m"]),
        Argument(made.buffer, matrix * made.strides["b"] + row * made.strides["m"]),
    )
    call = Call(program.name, places)
    return (BlockLoop("lp", staging.problem.sizes["m"], (call,), note="sum blocks of A"),), program


def _block(staging: Staging, existing: int) -> Iterator[Op]:
    """Sum one block with ``existing`` elements."""
    source, form = staging.operands["a"], staging.quantized
    prefix = "" if existing == form.block else "last_"
    emitter = Emitter(
        staging.problem.target, fitting(staging.problem.target, form.block).lanes, prefix, "f32"
    )
    total = emitter.fresh("added", "f32")
    emitter.stage("elements", note="Elements.")
    emitter.add(Zero(total))
    for number, piece in enumerate(pieces(existing, emitter.lanes)):
        inner = Emitter(
            staging.problem.target, emitter.lanes, f"{emitter.prefix}part{number}_of_", "f32"
        )
        inner.stage("elements")
        every = piece.elements(source, inner, "x")
        sums = inner.register(reduce(partial(inner.builder, "add"), every))
        emitter.add(*piece.repeated((*inner.emit(), Apply(total, "add", (total, sums))), "x"))
    emitter.stage("sum", note="The sum of this block's elements.")
    kept = folded(emitter, total, "add")
    put_one(emitter, kept if form.minima else emitter.builder("neg", kept), Address("totals", ZERO))
    yield from emitter.emit()
    yield Advance("totals", ONE)
