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
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import format_of_a
from tilewright.plan.operands import LINE, Operand, whole_groups, whole_vectors
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Problem, Staging
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


def select(staging: Staging, operand: Operand) -> Selected:
    """Return how the matrix of one batch element is found in an operand."""
    kind, stride = staging.batch_kind(operand), staging.batch_stride(operand)
    return Selected(Name(operand.name), operand.type, kind, stride)


def convert(plan: Plan, name: str) -> Filled:
    """Return the conversion of operand ``name`` before the loops, for all matrices of the batch."""
    packed = plan.staging.operands[name]
    count = plan.problem.matrices
    elements = packed.strides["b"] * count
    conversion = conversion_of(plan.staging, name, plan.staging.sources[name], packed)
    conversion = whole_steps(plan.staging, conversion, plan.problem.sizes["k"])
    conversion = replace(conversion, shared=plan.shared)
    return _filled(plan.staging, conversion, dict(plan.problem.sizes), ZERO, elements)


def whole_steps(staging: Staging, conversion: Conversion, depth: Expr) -> Conversion:
    """Return ``conversion``, extended by K groups of zeros that complete the last step of K."""
    group = staging.product.group
    groups = div(depth + (group - 1), group)
    return replace(conversion, zero_groups=whole_groups(depth, staging.product) - groups)


def quantize(staging: Staging) -> tuple[Filled, ...]:
    """Return the quantization of A before the loops, for all matrices of the batch.

    All buffers are declared first: the first one's nodes also fill the scales, zero points and
    sums.
    """
    how = quantization_of(staging)
    index, count = (symbol("i") if staging.problem.batch else ZERO), staging.problem.matrices
    nodes, tile = quantize_rows(how, staging.problem.sizes["m"], index)
    rooms = {name: made.strides["b"] * count for name, made in how.made.items()}
    first, *others = how.made
    filled = Filled(how.made[first], rooms[first], _each(staging, how.source, nodes), (tile,))
    return filled, *(Filled(how.made[name], rooms[name], (), ()) for name in others)


def sums_of_blocks(staging: Staging) -> Filled:
    """Return the sums of blocks of A's rows before the loops, for all matrices of the batch."""
    source, made = staging.operands["a"], staging.operands[TOTALS]
    index, count = (symbol("i") if staging.problem.batch else ZERO), staging.problem.matrices
    nodes, tile = sum_blocks(staging, index)
    return Filled(made, made.strides["b"] * count, _each(staging, source, nodes), (tile,))


def copy_tail(staging: Staging, name: str) -> Filled:
    """Return a zero-padded copy of operand ``name``'s tail along K, for all matrices of
    the batch.
    """
    source, packed = staging.operands[name], staging.operands[f"{name}_tail"]
    tail = mod(staging.problem.sizes["k"], staging.product.depth)
    extents = dict(staging.problem.sizes) | {"k": tail}
    conversion = replace(conversion_of(staging, name, source, packed), prefix=f"copy_{name}_tail_")
    first = (staging.problem.sizes["k"] - tail) * source.strides["k"]
    count = staging.problem.matrices
    return _filled(staging, conversion, extents, first, packed.strides["b"] * count)


def convert_lines(
    staging: Staging, name: str, lines: tuple[Expr, int], part: tuple[Expr, Expr], place: Expr
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return nodes and tiles that convert some rows of A or columns of B.

    ``lines`` is the first row or column and their number. ``part`` is the first element of K and
    their number. The first row or column is written ``place`` elements after the buffer's start.
    """
    source, packed, line = staging.sources[name], staging.operands[name], LINE[name]
    extents = dict(staging.problem.sizes) | {line: Integer(lines[1]), "k": part[1]}
    first = lines[0] * source.strides[line] + part[0] * source.strides["k"]
    at = (first, place + part[0] * packed.strides["k"])
    nodes, tiles = conversion_nest(conversion_of(staging, name, source, packed), extents, at)
    return nodes, tuple(tiles.values())


def conversion_of(staging: Staging, name: str, source: Operand, packed: Operand) -> Conversion:
    """Return how operand ``name`` is converted from ``source`` to ``packed``."""
    return Conversion(
        target=staging.problem.target,
        source=source,
        packed=packed,
        line=LINE[name],
        k_group=staging.product.group,
        shift=staging.product.shifts[name],
        lanes=staging.converted,
        slots=tuple(slot for slot, _ in staging.problem.spec.runtime_sizes()),
        prefix=f"convert_{name}_",
        zero_row_tails=staging.problem.dot,
        type="" if packed.type == source.rounded else source.rounded,
    )


def _filled(
    staging: Staging, conversion: Conversion, extents: dict[str, Expr], first: Expr, elements: Expr
) -> Filled:
    """Return the conversion of all matrices of a batch, each from element ``first`` on."""
    source, packed = conversion.source, conversion.packed
    at = (first, packed.strides["b"] * symbol("i") if staging.problem.batch else ZERO)
    nodes, tiles = conversion_nest(conversion, extents, at)
    every = _each(staging, source, nodes)
    return Filled(packed, elements + margin(staging), every, tuple(tiles.values()))


def margin(staging: Staging) -> int:
    """Return the elements by which a buffer is padded, because a vector load may begin at its last
    row.
    """
    return staging.lanes * staging.product.group


def _each(staging: Staging, source: Operand, nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """Return ``nodes`` in a loop over the elements of the batch."""
    if staging.problem.batch is None:
        return nodes
    index = symbol("i")
    body = (of_batch(index, (select(staging, source),), nodes),)
    return (BlockLoop("i", staging.problem.batch.count, body, note="batch"),)


def needed_sums(staging: Staging) -> tuple[str, ...]:
    """Return the inputs whose rows or columns are summed: the other input has a zero point."""
    zeros = {"a": staging.problem.spec.a_zero, "b": staging.problem.spec.b_zero}
    if not staging.corrects:
        return ()
    effective = {name: zero or staging.product.shifts[name] for name, zero in zeros.items()}
    return tuple(name for name, other in (("a", "b"), ("b", "a")) if effective[other])


def sum_lines(staging: Staging, name: str) -> Filled:
    """Return the sums of A's rows or B's columns over K and the batch, as s32 or f32."""
    source = staging.sources.get(name, staging.operands[name])
    operand = staging.operands[f"{name}_sums"]
    extent = staging.problem.sizes[LINE[name]]
    lanes = staging.lanes
    stored, form = None, staging.form if name == "b" else None
    if name == "a" and isinstance(staging.problem.spec.a, PackedSpec):
        form = format_of_a(staging.problem.spec, staging.problem.target)
    if isinstance(form, PackedFormat):
        laid = form.of(staging.problem.sizes["k"], extent)
        stored, room = div(laid.sums_at, form.itemsize), div(laid.nbytes - laid.sums_at, 4)
        lanes = next(v.lanes for v in staging.problem.target.of("s32") if mod(room, v.lanes) == 0)
    sums = LineSums(
        target=staging.problem.target,
        source=source,
        line=LINE[name],
        buffer=operand.buffer,
        lanes=lanes,
        slots=tuple(slot for slot, _ in staging.problem.spec.runtime_sizes()),
        prefix=f"sum_{name}_",
        stored=stored,
    )
    zero, add, tiles = sums_nest(sums, extent, staging.problem.sizes["k"])
    return Filled(
        operand,
        whole_vectors(extent, lanes),
        (*zero, *_each(staging, source, add)),
        tuple(tiles.values()),
    )


def begin(problem: Problem, name: str) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return nodes and tiles that set output ``name`` to the start value of its reduction."""
    fn = dict(problem.spec.outputs)[name].fn
    vector = problem.target.of("f32")[0]
    tiles: list[TileProgram] = []

    def called(at: Expr, vectors: int, tail: Expr | None) -> Call:
        tiles.append(_begin_tile(problem, vector, fn, vectors, tail))
        return Call(tiles[-1].name, (Argument(Name(symbol_of(name)), at),))

    nodes = tuple(over_vectors(problem.sizes["m"], vector.lanes, VECTORS, called))
    return nodes, tuple(tiles)


def _begin_tile(
    problem: Problem, vector: Vector, fn: str, vectors: int, tail: Expr | None
) -> TileProgram:
    start = Splat(Register("start", vector), START[fn])
    ops = filled(start, (index * vector.lanes * ONE for index in range(vectors)), known(tail))
    slots = [slot for slot, _ in problem.spec.runtime_sizes()]
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
