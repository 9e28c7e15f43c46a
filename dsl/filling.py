"""Buffers that are filled before the product: operands converted, lines of A and B summed."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from .feed import Operand, whole_vectors
from .linesums import LineSums, sums_nest
from .operands import Packed
from .packed_format import format_of
from .plan import Plan
from .prepack import Conversion, conversion_nest
from .program import BlockLoop, NestNode, SelectBatch, Selected, TileProgram
from .symbolic import ONE, ZERO, symbol

_LINE = {"a": "m", "b": "n"}


@dataclass(frozen=True, slots=True)
class Filled:
    """A buffer of ``elements`` as ``operand``, and the nodes and tiles that fill it."""

    operand: Operand
    elements: Expr
    nodes: tuple[NestNode, ...]
    tiles: tuple[TileProgram, ...]


def select(plan: Plan, operand: Operand) -> Selected:
    """How the batch of an operand is found."""
    kind, stride = plan.batch_kind(operand), plan.batch_stride(operand)
    return Selected(operand.name, operand.type, kind, stride)


def convert(plan: Plan, name: str) -> Filled:
    """Operand ``name`` converted: every matrix of the batch."""
    source, packed = plan.sources[name], plan.operands[name]
    lanes = plan.target.of(plan.element)[0].lanes
    conversion = Conversion(
        target=plan.target,
        source=source,
        packed=packed,
        line=_LINE[name],
        depth=plan.product.depth,
        shift=plan.product.shifts[name],
        lanes=lanes,
        slots=tuple(slot for slot, _ in plan.spec.runtime_sizes()),
        prefix=f"convert_{name}_",
    )
    count = plan.batch.count if plan.batch else ONE
    step = packed.strides["b"]
    at = (ZERO, step * symbol("i") if plan.batch else ZERO)
    nodes, tiles = conversion_nest(conversion, dict(plan.sizes), at)
    return Filled(packed, step * count, _each(plan, source, nodes), tuple(tiles.values()))


def _each(plan: Plan, source: Operand, nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """``nodes`` for every element of the batch."""
    if plan.batch is None:
        return nodes
    index = symbol("i")
    body = (SelectBatch(index, (select(plan, source),), nodes),)
    return (BlockLoop("i", plan.batch.count, body, note="batch"),)


def needed_sums(plan: Plan) -> tuple[str, ...]:
    """Of which operands the lines are summed: zero points multiply the other one's."""
    zeros = {"a": plan.spec.a_zero, "b": plan.spec.b_zero}
    effective = {name: zero or plan.product.shifts[name] for name, zero in zeros.items()}
    return tuple(name for name, other in (("a", "b"), ("b", "a")) if effective[other])


def sum_lines(plan: Plan, name: str) -> Filled:
    """The sums of A's rows or B's columns over K and the batch, as s32."""
    source = plan.sources.get(name, plan.operands[name])
    operand = plan.operands[f"{name}_sums"]
    extent = plan.sizes[_LINE[name]]
    lanes = plan.target.of(plan.element)[0].lanes
    stored = None
    if name == "b" and isinstance(plan.spec.b, Packed):
        format_ = format_of(plan.spec, plan.target)
        stored = format_.sums_at // format_.itemsize
    sums = LineSums(
        target=plan.target,
        source=source,
        line=_LINE[name],
        buffer=operand.buffer,
        lanes=lanes,
        slots=tuple(slot for slot, _ in plan.spec.runtime_sizes()),
        prefix=f"sum_{name}_",
        stored=stored,
    )
    zero, add, tiles = sums_nest(sums, extent, plan.sizes["k"])
    return Filled(
        operand,
        whole_vectors(extent, lanes),
        (*zero, *_each(plan, source, add)),
        tuple(tiles.values()),
    )
