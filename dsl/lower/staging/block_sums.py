"""Sum each block of K of A's rows; zero points and minima of a quantized B multiply these sums."""

from __future__ import annotations

from sympy import Expr, Integer

from tilewright.ir.nest import Argument, NestNode
from tilewright.ir.ops import TileProgram
from tilewright.lower.rows.program import tile_of
from tilewright.plan.problem import Staging
from tilewright.plan.rows.passes import cut
from tilewright.symbolic import ONE, symbol

from .quantize import X, elements, in_blocks, over_rows, passes_over, reduction

#: The name of the sums of blocks of A among the operands.
TOTALS = "a_totals"


def sum_blocks(staging: Staging, matrix: Expr) -> tuple[tuple[NestNode, ...], TileProgram]:
    """Return the nodes that sum blocks of A's rows in matrix number ``matrix``, and their tile.

    A has a floating-point type and is contiguous along K. The f32 sums are negated if zero points
    multiply them.
    """
    source, made, form = staging.operands["a"], staging.operands[TOTALS], staging.quantized
    total = reduction("sum", elements(source))
    results = {"totals": total if form.minima else -total}
    operands = {X: source, "totals": made}
    passes = passes_over(cut(results), staging.problem.target, form.block, operands)
    ops = in_blocks(passes, form.k, {X: Integer(form.block), "totals": ONE})
    said = "the sums of blocks of K of a row"
    tile = tile_of(passes, "sum_blocks", tuple(ops), said, {}, {"totals"})
    row = symbol("lp")
    places = {
        X: Argument(source.buffer, row * source.strides["m"]),
        "totals": Argument(made.buffer, matrix * made.strides["b"] + row * made.strides["m"]),
    }
    return (over_rows(tile, staging.problem.sizes["m"], places, "sum blocks of A"),), tile
