"""Sum each block of K of A's rows; zero points and minima of a quantized B multiply these sums."""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr, Integer

from tilewright.ir.dataflow import sizes_used, without_idle_masks
from tilewright.ir.nest import Argument, BlockLoop, Call, NestNode
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Advance, Loop, Op, Parameter, TileProgram
from tilewright.lower.rows.row import Row
from tilewright.plan.formats.quantized_b import QuantizedFormat
from tilewright.plan.problem import Staging
from tilewright.plan.rows.passes import cut
from tilewright.plan.rows.plan import RowPasses
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.tensors import Input
from tilewright.symbolic import ONE, ZERO, symbol

from .quantize import SHAPE, VECTORS, Results, fitting, reduction

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
    vector = fitting(staging.problem.target, form.block)
    passes = RowPasses(
        target=staging.problem.target,
        cut=cut(_results(form, source.type)),
        real="f32",
        cols=Integer(form.block),
        operands={"x_": source, "totals": made},
        vector=vector,
        tile=(1, VECTORS * vector.lanes),
        any_order=True,
    )
    whole, tail = divmod(form.k, form.block)
    ops: tuple[Op, ...] = ()
    if whole:
        moved = Advance("x_", Integer(form.block)), Advance("totals", ONE)
        ops = (Loop("kt", Integer(whole), (*Row(passes).ops([0]), *moved), "blocks of K"),)
    if tail:
        ops = (*ops, *Row(replace(passes, cols=Integer(tail)), prefix="last_").ops([0]))
    ops = without_idle_masks(ops)
    slots = tuple(slot for slot, _ in staging.problem.spec.runtime_sizes())
    program = TileProgram(
        name="sum_blocks",
        element="f32",
        parameters=(
            Parameter("x_", "in", source.type),
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


def _results(form: QuantizedFormat, type_: str) -> Results:
    total: Expression = reduction("sum", Input("x", type_, SHAPE))
    return Results(("totals",), (total if form.minima else -total,))
