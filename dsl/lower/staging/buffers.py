"""Buffers that are filled before the product: converted operands, and sums of rows or columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer

from tilewright.ir.dataflow import sizes_used
from tilewright.ir.nest import Argument, BlockLoop, Call, Name, NestNode, Selected, of_batch
from tilewright.ir.ops import (
    Parameter,
    Splat,
    TileProgram,
)
from tilewright.ir.values import Register
from tilewright.isa.vector import Vector
from tilewright.lower.tile.row_reductions import START
from tilewright.lower.vectors import filled, known, over_vectors
from tilewright.plan.formats.lookup import format_of_a
from tilewright.plan.formats.packed_b import PackedFormat
from tilewright.plan.operands import LINE, Operand, whole_groups, whole_vectors
from tilewright.plan.plan import Plan
from tilewright.spec.operands import Packed as PackedSpec
from tilewright.spec.signature import symbol_of
from tilewright.symbolic import ONE, ZERO, div, mod, symbol

from .block_sums import TOTALS, sum_blocks
from .conversion import Conversion
from .convert_groups import conversion_nest
from .line_sums import VECTORS, LineSums, sums_nest
from .quantize import quantization_of, quantize_rows


@dataclass(frozen=True, slots=True)
class Filled:
    """A buffer of ``elements`` elements for ``operand``, and the nodes and tiles that fill it."""

    operand: Operand
    elements: Expr
    nodes: tuple[NestNode, ...]
    tiles: tuple[TileProgram, ...]


def select(plan: Plan, operand: Operand) -> Selected:
    """Return how the matrix of one batch element is found in an operand."""
    kind, stride = plan.staging.batch_kind(operand), plan.staging.batch_stride(operand)
    return Selected(Name(operand.name), operand.type, kind, stride)


def convert(plan: Plan, name: str) -> Filled:
    """Return the conversion of operand ``name`` before the loops, for all matrices of the batch."""
    packed = plan.staging.operands[name]
    count = plan.problem.matrices
    elements = packed.strides["b"] * count
    conversion = conversion_of(plan, name, plan.staging.sources[name], packed)
    conversion = whole_steps(plan, conversion, plan.problem.sizes["k"])
    conversion = replace(conversion, shared=plan.shared)
    return _filled(plan, conversion, dict(plan.problem.sizes), ZERO, elements)


def whole_steps(plan: Plan, conversion: Conversion, depth: Expr) -> Conversion:
    """Return ``conversion``, extended by K groups of zeros that complete the last step of K."""
    group = plan.staging.product.group
    groups = div(depth + (group - 1), group)
    return replace(conversion, zero_groups=whole_groups(depth, plan.staging.product) - groups)


def quantize(plan: Plan) -> tuple[Filled, ...]:
    """Return the quantization of A before the loops, for all matrices of the batch.

    All buffers are declared first: the first one's nodes also fill the scales, zero points and
    sums.
    """
    how = quantization_of(plan)
    index, count = (symbol("i") if plan.problem.batch else ZERO), plan.problem.matrices
    nodes, tile = quantize_rows(how, plan.problem.sizes["m"], index)
    rooms = {name: made.strides["b"] * count for name, made in how.made.items()}
    first, *others = how.made
    filled = Filled(how.made[first], rooms[first], _each(plan, how.source, nodes), (tile,))
    return filled, *(Filled(how.made[name], rooms[name], (), ()) for name in others)


def sums_of_blocks(plan: Plan) -> Filled:
    """Return the sums of blocks of A's rows before the loops, for all matrices of the batch."""
    source, made = plan.staging.operands["a"], plan.staging.operands[TOTALS]
    index, count = (symbol("i") if plan.problem.batch else ZERO), plan.problem.matrices
    nodes, tile = sum_blocks(plan, index)
    return Filled(made, made.strides["b"] * count, _each(plan, source, nodes), (tile,))


def copy_tail(plan: Plan, name: str) -> Filled:
    """Return a zero-padded copy of operand ``name``'s tail along K, for all matrices of
    the batch.
    """
    source, packed = plan.staging.operands[name], plan.staging.operands[f"{name}_tail"]
    tail = mod(plan.problem.sizes["k"], plan.staging.product.depth)
    extents = dict(plan.problem.sizes) | {"k": tail}
    conversion = replace(conversion_of(plan, name, source, packed), prefix=f"copy_{name}_tail_")
    first = (plan.problem.sizes["k"] - tail) * source.strides["k"]
    count = plan.problem.matrices
    return _filled(plan, conversion, extents, first, packed.strides["b"] * count)


def convert_lines(
    plan: Plan, name: str, lines: tuple[Expr, int], part: tuple[Expr, Expr], place: Expr
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return nodes and tiles that convert some rows of A or columns of B.

    ``lines`` is the first row or column and their number. ``part`` is the first element of K and
    their number. The first row or column is written ``place`` elements after the buffer's start.
    """
    source, packed, line = plan.staging.sources[name], plan.staging.operands[name], LINE[name]
    extents = dict(plan.problem.sizes) | {line: Integer(lines[1]), "k": part[1]}
    first = lines[0] * source.strides[line] + part[0] * source.strides["k"]
    at = (first, place + part[0] * packed.strides["k"])
    nodes, tiles = conversion_nest(conversion_of(plan, name, source, packed), extents, at)
    return nodes, tuple(tiles.values())


def conversion_of(plan: Plan, name: str, source: Operand, packed: Operand) -> Conversion:
    """Return how operand ``name`` is converted from ``source`` to ``packed``."""
    return Conversion(
        target=plan.target,
        source=source,
        packed=packed,
        line=LINE[name],
        k_group=plan.staging.product.group,
        shift=plan.staging.product.shifts[name],
        lanes=plan.staging.converted,
        slots=tuple(slot for slot, _ in plan.spec.runtime_sizes()),
        prefix=f"convert_{name}_",
        zero_row_tails=plan.problem.dot,
        type="" if packed.type == source.rounded else source.rounded,
    )


def _filled(
    plan: Plan, conversion: Conversion, extents: dict[str, Expr], first: Expr, elements: Expr
) -> Filled:
    """Return the conversion of all matrices of a batch, each from element ``first`` on."""
    source, packed = conversion.source, conversion.packed
    at = (first, packed.strides["b"] * symbol("i") if plan.problem.batch else ZERO)
    nodes, tiles = conversion_nest(conversion, extents, at)
    every = _each(plan, source, nodes)
    return Filled(packed, elements + margin(plan), every, tuple(tiles.values()))


def margin(plan: Plan) -> int:
    """Return the elements by which a buffer is padded, because a vector load may begin at its last
    row.
    """
    return plan.staging.lanes * plan.staging.product.group


def _each(plan: Plan, source: Operand, nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """Return ``nodes`` in a loop over the elements of the batch."""
    if plan.problem.batch is None:
        return nodes
    index = symbol("i")
    body = (of_batch(index, (select(plan, source),), nodes),)
    return (BlockLoop("i", plan.problem.batch.count, body, note="batch"),)


def needed_sums(plan: Plan) -> tuple[str, ...]:
    """Return the inputs whose rows or columns are summed: the other input has a zero point."""
    zeros = {"a": plan.spec.a_zero, "b": plan.spec.b_zero}
    if not plan.staging.corrects:
        return ()
    effective = {name: zero or plan.staging.product.shifts[name] for name, zero in zeros.items()}
    return tuple(name for name, other in (("a", "b"), ("b", "a")) if effective[other])


def sum_lines(plan: Plan, name: str) -> Filled:
    """Return the sums of A's rows or B's columns over K and the batch, as s32 or f32."""
    source = plan.staging.sources.get(name, plan.staging.operands[name])
    operand = plan.staging.operands[f"{name}_sums"]
    extent = plan.problem.sizes[LINE[name]]
    lanes = plan.staging.lanes
    stored, form = None, plan.staging.form if name == "b" else None
    if name == "a" and isinstance(plan.spec.a, PackedSpec):
        form = format_of_a(plan.spec, plan.target)
    if isinstance(form, PackedFormat):
        laid = form.of(plan.problem.sizes["k"], extent)
        stored, room = div(laid.sums_at, form.itemsize), div(laid.nbytes - laid.sums_at, 4)
        lanes = next(v.lanes for v in plan.target.of("s32") if mod(room, v.lanes) == 0)
    sums = LineSums(
        target=plan.target,
        source=source,
        line=LINE[name],
        buffer=operand.buffer,
        lanes=lanes,
        slots=tuple(slot for slot, _ in plan.spec.runtime_sizes()),
        prefix=f"sum_{name}_",
        stored=stored,
    )
    zero, add, tiles = sums_nest(sums, extent, plan.problem.sizes["k"])
    return Filled(
        operand,
        whole_vectors(extent, lanes),
        (*zero, *_each(plan, source, add)),
        tuple(tiles.values()),
    )


def begin(plan: Plan, name: str) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return nodes and tiles that set output ``name`` to the start value of its reduction."""
    fn = dict(plan.spec.outputs)[name].fn
    vector = plan.target.of("f32")[0]
    tiles: list[TileProgram] = []

    def called(at: Expr, vectors: int, tail: Expr | None) -> Call:
        tiles.append(_begin_tile(plan, vector, fn, vectors, tail))
        return Call(tiles[-1].name, (Argument(Name(symbol_of(name)), at),))

    nodes = tuple(over_vectors(plan.problem.sizes["m"], vector.lanes, VECTORS, called))
    return nodes, tuple(tiles)


def _begin_tile(
    plan: Plan, vector: Vector, fn: str, vectors: int, tail: Expr | None
) -> TileProgram:
    start = Splat(Register("start", vector), START[fn])
    ops = filled(start, (index * vector.lanes * ONE for index in range(vectors)), known(tail))
    slots = [slot for slot, _ in plan.spec.runtime_sizes()]
    return TileProgram(
        name=f"begin_{fn}_{'tail' if tail is not None else vectors}",
        element="f32",
        parameters=(
            Parameter("out", "out"),
            *(Parameter(slot, "size") for slot in sizes_used(ops, slots)),
        ),
        body=ops,
        end=(),
        summary=f"{fn} of nothing",
    )
