"""Choose how operands reach the multiply-adds: read in place, or converted and packed first."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr

from tilewright.errors import SpecError
from tilewright.ir.nest import Name
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.gemm import SHAPES, Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import FEW_ALONG_K, FEW_BESIDE_UNIT, MANY_ROWS
from tilewright.spec.sizes import most_of
from tilewright.spec.types import ITEMSIZE, in_word, is_integer, other_sign
from tilewright.symbolic import ONE, ZERO, mod, value

from .contraction import Product, choose_product, converting_lanes, held_as, reads_as
from .formats.lookup import format_of, format_of_a, plain_format, rounded_b
from .formats.packed_b import CACHED_BYTES, packed_a_product, packed_product
from .formats.quantized_a import rows_format, rows_operands
from .formats.quantized_b import quantized_format, quantized_operands, quantized_product
from .operands import (
    Operand,
    odd_vectors,
    operand_of,
    packed_by_caller,
    vectors_of,
    whole_groups,
    whole_vectors,
)
from .problem import Problem, Staging, is_empty, same_types

#: Tiles convert operands as they load them only if C has at most this number of rows across the
#: vectors.
FEW_LINES = 12


def by_panels(staging: Staging) -> bool:
    """True if A is converted in rows, and a cache holds all of B while panels of A are read."""
    product, sizes = staging.product, staging.problem.sizes
    if product.unit is not None or product.block:
        return False
    elements = value(sizes["k"] * sizes["n"])
    stays = elements is not None and elements * ITEMSIZE[product.along] <= CACHED_BYTES
    steps = staging.operands["a"].strides
    # If not, each K group of A has elements of a single row.
    rows = value(steps["k"]) == 1 and value(steps["m"]) != 1
    return stays and "a" in staging.sources and rows


def spreads_as(target: Target, type_: str, element: str) -> bool:
    """True if vectors of ``element`` convert an element of ``type_`` as they broadcast it."""
    wide = [v for v in target.of(element) if v.lanes > 1 and v.muladd]
    return bool(wide) and all(type_ in v.spreads for v in wide)


def takes_scalars(target: Target, type_: str, product: Product) -> bool:
    """True if multiply-adds take C scalars, converted from ``type_`` by their load.

    This pays if scalars have registers and units of their own.
    """
    if not target.scalars_apart or product.op.form != "scalar":
        return False
    return type_ in (product.across, *target.of(product.across)[-1].loads)


def shifts_as(target: Target, type_: str, element: str) -> bool:
    """True if loads that broadcast elements to vectors of ``element`` flip the sign of
    ``type_``.
    """
    return any(type_ == v.flips for v in target.of(element))


def fits_across(operand: Operand, product: Product, target: Target, line: str) -> bool:
    """True if tiles can read the operand across the vectors in place.

    Its type must be the type in registers, or be converted by the broadcast. It must be contiguous
    along K if a K group is one factor or if matrices are read from it, and along ``line`` if
    vectors are read from it.
    """
    if operand.rounded:
        return False
    if product.unit is not None:
        return operand.type == product.across and value(operand.strides["k"]) == 1
    whole = product.depth == 1 or value(operand.strides["k"]) == 1
    same = operand.type == product.across
    if product.blocks:
        return product.depth == 1 and same and value(operand.strides[line]) == 1
    spreads = spreads_as if product.depth == 1 else shifts_as
    spread = spreads(target, operand.type, product.across)
    return whole and (same or spread or takes_scalars(target, operand.type, product))


def fits_along(
    operand: Operand, product: Product, target: Target, line: str, extents: Mapping[str, Expr]
) -> bool:
    """True if tiles can read the operand along the vectors in place.

    It must be contiguous along ``line``, and a multiply-add must take single elements of K. Each
    row of tiles converts it again, so for more than a few rows it is converted once before the
    loops, unless loads widen it. If ``line`` is K itself, a multiply-add may take several elements.
    """
    if operand.rounded:
        return False
    if line == "k":
        return _along_k(operand, product, target)
    element, lines = product.along, value(extents["n" if line == "m" else "m"])
    few = operand.type == element or (lines is not None and lines <= FEW_LINES)
    if operand.type == packed_type(operand, product):
        few = few or widens_tails(target, operand.type, element, extents[line])
    contiguous = product.depth == 1 and value(operand.strides[line]) == 1
    return few and contiguous and reads_as(target, operand.type, element)


def widens_tails(target: Target, type_: str, element: str, extent: Expr) -> bool:
    """True if loads widen elements of ``type_`` to ``element``, also in the tail of a row."""
    wide = [v for v in target.of(element) if v.lanes > 1]
    masked = all(v.mask is not None and type_ in v.mask.loads for v in wide)
    return masked or mod(extent, wide[0].lanes) == 0


def packed_type(operand: Operand, product: Product) -> str:
    """Return the type in which an operand along the vectors is packed.

    It is usually the type that is multiplied. If one load instruction widens elements 4 or 8 times,
    the smaller type is kept.
    """
    grows = ITEMSIZE[product.along] == 8 and is_integer(operand.type)
    return operand.type if grows else product.along


def packed_along(
    source: Operand, product: Product, line: str, extents: Mapping[str, Expr], lanes: int
) -> Operand:
    """Return the packed operand along the vectors: ``[K / group][rows, padded][group]``.

    For a matrix unit, the number of vectors in a row is odd.
    """
    group = product.group
    padded = whole_vectors if product.unit is None else odd_vectors
    leading = padded(extents[line], lanes)
    groups = whole_groups(extents["k"], product)
    strides = {line: group * ONE, "k": leading, "b": groups * group * leading}
    type_ = packed_type(source, product)
    return Operand(source.name, type_, strides, Name(f"{source.name}_packed"))


def packed_across(
    source: Operand,
    product: Product,
    target: Target,
    line: str,
    extents: Mapping[str, Expr],
    lanes: int,
) -> Operand:
    """Return the converted operand across the vectors, padded to whole vectors.

    It has rows of whole K groups if the source is contiguous along K, or for a matrix unit.
    Otherwise its layout is ``[K / group][rows][group]``.
    """
    group = product.group
    type_ = product.across
    buffer = Name(f"{source.name}_packed")
    if product.unit is not None:
        width = odd_vectors(extents["k"], product.unit.depth)
        strides = {line: width, "k": ONE, "b": width * whole_vectors(extents[line], lanes)}
        return Operand(source.name, type_, strides, buffer)
    if value(source.strides["k"]) == 1 and not product.blocks:
        unit = row_elements(target, source.type, type_, lanes)
        width = whole_vectors(extents["k"], unit)
        if product.block:
            width = odd_vectors(width, max(unit, target.core.line // ITEMSIZE[type_]))
        strides = {line: width, "k": ONE, "b": width * extents[line]}
        return Operand(source.name, type_, strides, buffer)
    leading = whole_vectors(extents[line], max(lanes, product.rows))
    groups = whole_groups(extents["k"], product)
    strides = {line: group * ONE, "k": leading, "b": groups * group * leading}
    return Operand(source.name, type_, strides, buffer)


def tail_across(
    source: Operand, product: Product, line: str, extents: Mapping[str, Expr]
) -> Operand | None:
    """Return the zero-padded copy of the last elements of K for a matrix unit.

    None if K is a multiple of the step.
    """
    if product.unit is None or mod(extents["k"], product.depth) == 0:
        return None
    width = product.unit.depth * ONE
    strides = {line: width, "b": width * extents[line]}
    return Operand(
        f"{source.name}_tail", product.across, strides, Name(f"{source.name}_tail_packed")
    )


def widening(target: Target, source: str, type_: str) -> Vector | None:
    """Return the widest vector type that loads ``source`` as ``type_`` but does not multiply, or
    None.
    """
    found = (v for v in target.of(type_) if source in v.loads and v.store and not v.muladd)
    return next(found, None)


def row_elements(target: Target, source: str, type_: str, lanes: int) -> int:
    """Return the number of elements of a row that are converted at once.

    If the two types have the same size, elements are converted in 32-bit words.
    """
    wide = widening(target, source, type_)
    if wide is not None:
        return wide.lanes
    return lanes * (in_word(type_) if ITEMSIZE[source] == ITEMSIZE[type_] else 1)


def is_plain(spec: Gemm, target: Target) -> bool:
    """True if A and B are multiplied unconverted: they have the sums' type and need no K groups."""
    return same_types(spec) and not product_of(spec, target, "b").blocks


def packs_beside_a(spec: Gemm) -> bool:
    """Return True if the caller packed A and blocks of B may be packed without conversion."""
    alike = spec.a.type == spec.b.type == spec.type and spec.math is None
    return isinstance(spec.a, Packed) and not isinstance(spec.b, Packed) and alike


def product_of(
    spec: Gemm, target: Target, along: str, *, panels: bool = False, unpacks: bool = False
) -> Product:
    """Return the multiply-add of A and B, with operand ``along``, "a" or "b", along the vectors.

    If ``along`` is "k", vectors of both operands run along K, and the lanes of a sum belong to one
    element of C.

    If an operand is shifted, the kernel also needs the sums of the other operand's rows or columns.
    Tiles can shift the operand across the vectors in place, which pays if C has many rows. With
    ``panels``, both operands are packed, and A is shifted rather than B. An operand that is used
    for a single row of C is not packed in K groups, because this would take longer than the
    product.
    """
    if spec.quantized is not None:
        return quantized_product(spec, target, unpacked=unpacks)
    if isinstance(spec.a, Packed):
        return packed_a_product(target, *spec.rounded, spec.sum_type)
    held = held_as(target, spec.a.type, spec.b.type, spec.sum_type)
    types = dict(zip("ab", spec.rounded, strict=True))
    if isinstance(spec.b, Packed):
        return packed_product(target, types["a"], rounded_b(spec), spec.n, held)
    flat, along = along == "k", "b" if along == "k" else along
    across, lines = ("b", spec.n) if along == "a" else ("a", spec.m)
    operand, other = operand_of(spec, across), other_sign(types[across])
    spreads = value(operand.strides["k"]) == 1 and shifts_as(target, operand.type, other)
    keeps = along if most_of(lines) >= MANY_ROWS else across
    keeps = keeps if spreads else ""
    lone = lines == 1 and value(operand_of(spec, along).strides["k"]) != 1
    return choose_product(
        target, types, along, packed=panels, flat=flat, keeps=keeps, held=held, shallow=lone
    )


def reads_along_k(spec: Gemm, target: Target) -> bool:
    """True if converted operands can be read by vectors along K, because A and B are contiguous
    along it.

    B is read in place, widened by the load, or its sign is flipped by the load. The signs of both
    operands cannot be flipped, because the padding of a flipped operand is not zero.
    """
    product = product_of(spec, target, "k")
    special = product.few or product.partial or all(product.shifts.values())
    if special or spec.batch is not None or spec.b2 is not None:
        return False
    a, b = (operand_of(spec, name) for name in "ab")
    return value(a.strides["k"]) == 1 and _along_k(b, product, target)


def few_along_k(spec: Gemm, target: Target) -> int:
    """Return the maximum number of rows or columns of C for which vectors run along K.

    With more of them, converting blocks is faster. The result is 0 if vectors cannot run along K.
    """
    if not reads_along_k(spec, target):
        return 0
    unit = product_of(spec, target, "b").unit
    return min(FEW_ALONG_K, target.registers) if unit is None else FEW_BESIDE_UNIT


def has_few_along_k(spec: Gemm, target: Target) -> bool:
    """True if C has so few rows or columns that vectors along K are the fastest.

    Otherwise it is faster to convert blocks of A and B, and to use vectors along C.
    """
    return min(most_of(spec.m), most_of(spec.n)) <= few_along_k(spec, target)


def _along_k(operand: Operand, product: Product, target: Target) -> bool:
    """True if vectors along K can read the operand in place."""
    if operand.rounded:
        return False
    made = product.along
    alone = all(vector.lanes == 1 for vector in target.of(made))
    widened = alone or reads_as(target, operand.type, made)
    read = operand.type == made or widened or shifts_as(target, operand.type, made)
    return value(operand.strides["k"]) == 1 and read


def stage_operands(
    problem: Problem, packs: str, *, panels: bool = False, unpacks: bool = False, blocks: str = ""
) -> Staging:
    """Choose how A and B reach the multiply-adds.

    The operands ``packs`` are packed block by block if they need no conversion. Otherwise they are
    packed as they are converted before the loops, even if tiles could convert them. With
    ``panels``, blocks of both are converted as they are packed. With ``unpacks``, blocks of a
    quantized B are converted to f32. Operands in ``blocks`` are converted inside the loops, block
    by block.
    """
    spec, target, vectorize, sizes = problem.spec, problem.target, problem.vectorize, problem.sizes
    if not target.of(spec.type):
        raise SpecError(f"{target.name} has no vectors of {spec.type}", hint="another target")
    along, across = ("a", "b") if vectorize == "m" else ("b", "a")
    vectors, lines = "k" if vectorize == "k" else along, {"a": "m", "b": "n"}
    product = product_of(spec, target, vectors, panels=panels, unpacks=unpacks)
    product = product.in_steps(value(sizes["k"]))
    lanes = max(target.of(product.accumulator)[0].lanes, converting_lanes(target, spec.type))
    operands = _given(spec, product, vectorize, sizes, lanes)
    form = format_of(spec, target) if isinstance(spec.b, Packed) else None
    plain = same_types(spec) and not product.blocks
    first = packs
    if not (is_plain(spec, target) or panels or blocks):
        packs = "b" if unpacks else ""
    if plain or panels:
        reason = "of the operands' type" if plain else _reason(product, {}, "packed")
        padded = problem.bounces or not plain
        return Staging(problem, product, operands, {}, padded, reason, packs, form)
    seen, sources, padded = dict(operands), dict[str, Operand](), True
    if spec.quantized is not None:
        format_ = quantized_format(spec, target)
        seen |= quantized_operands(format_, spec, product, sizes["m"], unpacked=unpacks)
        if isinstance(spec.a, Packed):
            # The pack has all parts; a product reads those that the kernel would have made.
            ahead = rows_operands(rows_format(spec, target), "a")
            seen |= {name: part for name, part in ahead.items() if name in seen}
    elif isinstance(spec.b, Packed):
        laid = plain_format(spec, target).of(sizes["k"], sizes["n"])
        seen["b"] = packed_by_caller(laid, spec.batch)
    elif along not in blocks:
        line = "k" if vectorize == "k" else lines[along]
        padded = not fits_along(operands[along], product, target, line, sizes)
        if padded:
            seen[along] = packed_along(operands[along], product, lines[along], sizes, lanes)
            sources[along] = operands[along]
    tail = None
    if spec.sums_blocks:
        sources |= {} if isinstance(spec.a, Packed) else {"a": operands["a"]}
    elif isinstance(spec.a, Packed):
        laid = format_of_a(spec, target).of(sizes["k"], sizes["m"])
        seen["a"] = packed_by_caller(laid, spec.batch)
    elif across not in blocks:
        source, line = operands[across], lines[across]
        if across in first or not fits_across(source, product, target, line):
            seen[across] = packed_across(source, product, target, line, sizes, lanes)
            sources[across] = source
        else:
            tail = tail_across(source, product, line, sizes)
    if is_empty(spec):
        sources, tail = {}, None
    seen |= {} if tail is None else {tail.name: tail}
    padded, reason = padded or problem.bounces, _reason(product, sources)
    return Staging(problem, product, seen, sources, padded, reason, packs, form)


def _given(
    spec: Gemm, product: Product, vectorize: str, sizes: Mapping[str, Expr], lanes: int
) -> dict[str, Operand]:
    """Return the caller's operands, and the buffers that a kernel may need for sums."""
    names = [name for name in SHAPES if getattr(spec, name) is not None]
    found = {name: operand_of(spec, name) for name in names} | vectors_of(spec)
    if isinstance(spec.d, Packed):  # tiles write rows of D into a buffer, from which D is packed
        strides = {"m": whole_vectors(sizes["n"], lanes), "n": ONE}
        found["d"] = Operand("d", spec.d.type, strides, Name("d_rows"))
    held = product.accumulator if spec.sum_steps is None else spec.type
    found |= _buffers(held, _lines_of_sums(found[spec.output], vectorize), sizes, lanes)
    if product.unit is not None:
        found |= _buffers(held, vectorize, sizes, lanes)
    return found


def _lines_of_sums(output: Operand, vectorize: str) -> str:
    """Return the dimension along which tiles store vectors: the output is contiguous along it."""
    order = "nm" if vectorize == "n" else "mn"
    return next(line for line in order if value(output.strides[line]) == 1)


def _buffers(held: str, line: str, sizes: Mapping[str, Expr], lanes: int) -> dict[str, Operand]:
    """Return buffers for all sums of C, and for the sums of A's rows and B's columns.

    Rows of the sums of C, of type ``held``, have space for whole vectors.
    """
    across = "m" if line == "n" else "n"
    steps = {line: ONE, across: whole_vectors(sizes[line], lanes)}
    sums, columns = ([Name(text, product) for product in range(2)] for text in ("sums", "b_sums"))
    found = [Operand(str(name), held, steps, name) for name in sums]
    of_lines = "s32" if is_integer(held) else "f32"
    found.append(Operand("a_sums", of_lines, {"m": ONE, "n": ZERO}))
    found += [Operand(str(name), of_lines, {"m": ZERO, "n": ONE}, name) for name in columns]
    return {buffer.name: buffer for buffer in found}


def _reason(product: Product, sources: Mapping[str, Operand], how: str = "loaded") -> str:
    each = "a lane" if product.unit is None else "an element"
    parts = [f"{product.depth} products {each}"] if product.depth > 1 else []
    parts += [f"those of {product.few} groups in s16 first"] if product.few else []
    parts += ["sums of a block of K are scaled, and added in f32"] if product.partial else []
    parts += [
        f"{name.upper()} + {s} is subtracted again" for name, s in product.shifts.items() if s
    ]
    parts += [f"{name.upper()} is converted first" for name in sorted(sources)]
    parts += [product.instead] if product.instead else []
    return ", ".join(parts) or f"operands are converted as they are {how}"
