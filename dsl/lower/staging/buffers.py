"""Buffers that are filled before the product: converted operands, and sums of rows or columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Expr, Integer

from tilewright.elementwise.reductions import OUTPUTS
from tilewright.ir.nest import Argument, BlockLoop, Name, NestNode, Selected, of_batch
from tilewright.ir.ops import TileProgram
from tilewright.lower.move import MoveNest
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import format_of_a
from tilewright.plan.operands import LINE, Operand, whole_groups, whole_vectors
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Problem, Staging
from tilewright.plan.routines.copy import filling, staged_move
from tilewright.spec.operands import Packed as PackedSpec
from tilewright.spec.signature import symbol_of
from tilewright.symbolic import ZERO, div, mod, symbol

from .block_sums import TOTALS, sum_blocks
from .convert import ConversionNest
from .line_sums import LineSums, sums_nest
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
    sizes, source = plan.problem.sizes, plan.staging.sources[name]
    nest = conversion_of(
        plan.staging, source, packed, sizes, (ZERO, _of_batch(plan.staging, packed))
    )
    nest.zero_groups, nest.shared = zero_groups(plan.staging, sizes["k"]), plan.shared
    return _filled(plan.staging, source, packed, nest, elements)


def zero_groups(staging: Staging, depth: Expr) -> Expr:
    """Return the number of K groups of zeros that complete the last step of K."""
    group = staging.product.group
    return whole_groups(depth, staging.product) - div(depth + (group - 1), group)


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
    extents = {**staging.problem.sizes, "k": tail}
    first = (staging.problem.sizes["k"] - tail) * source.strides["k"]
    nest = conversion_of(staging, source, packed, extents, (first, _of_batch(staging, packed)))
    nest.prefix = f"copy_{name}_tail_"
    elements = packed.strides["b"] * staging.problem.matrices
    return _filled(staging, source, packed, nest, elements)


def convert_lines(
    staging: Staging, name: str, lines: tuple[Expr, int], part: tuple[Expr, Expr], place: Expr
) -> tuple[tuple[NestNode, ...], tuple[TileProgram, ...]]:
    """Return nodes and tiles that convert some rows of A or columns of B.

    ``lines`` is the first row or column and their number. ``part`` is the first element of K and
    their number. The first row or column is written ``place`` elements after the buffer's start.
    """
    source, packed, line = staging.sources[name], staging.operands[name], LINE[name]
    extents = {line: Integer(lines[1]), "k": part[1]}
    first = lines[0] * source.strides[line] + part[0] * source.strides["k"]
    at = (first, place + part[0] * packed.strides["k"])
    nest = conversion_of(staging, source, packed, extents, at)
    return tuple(nest.moves()), tuple(nest.tiles.values())


def conversion_of(
    staging: Staging,
    source: Operand,
    packed: Operand,
    extents: Mapping[str, Expr],
    first: tuple[Expr, Expr],
) -> ConversionNest:
    """Return the loops that convert a matrix of size ``extents`` from ``source`` to ``packed``.

    ``first`` has its first element in both.
    """
    name, problem, product = source.name, staging.problem, staging.product
    line = LINE[name]
    rounded = "" if packed.type == source.rounded else source.rounded
    move = staged_move(
        problem.target, source, packed, line, (extents[line], extents["k"]),
        rounded=rounded, group=product.group, shift=product.shifts[name], lanes=staging.converted,
        slots=problem.spec.slots,
    )  # fmt: skip
    overlaps = product.group == 1 and not problem.dot
    return ConversionNest(move, prefix=f"convert_{name}_", first=first, overlaps=overlaps)


def _filled(
    staging: Staging, source: Operand, packed: Operand, nest: ConversionNest, elements: Expr
) -> Filled:
    """Return the conversion of all matrices of a batch."""
    nodes = _each(staging, source, tuple(nest.moves()))
    return Filled(packed, elements + margin(staging), nodes, tuple(nest.tiles.values()))


def _of_batch(staging: Staging, packed: Operand) -> Expr:
    """Return the first element of a matrix of the batch in a buffer."""
    return packed.strides["b"] * symbol("i") if staging.problem.batch else ZERO


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
        slots=staging.problem.spec.slots,
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
    out = Name(symbol_of(name))
    nest = MoveNest(filling(problem.target, out, "f32", problem.slots), prefix=f"begin_{fn}_")
    start = float(OUTPUTS[fn].start)
    nodes = tuple(nest.fill(Argument(out, ZERO), problem.sizes["m"], start))
    return nodes, tuple(nest.tiles.values())
