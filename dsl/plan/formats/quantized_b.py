"""The packed format of a quantized B, and the multiply-add that sums blocks of it.

Elements are fields of bytes. The fields of a byte belong to one column and to consecutive K groups,
so that one load provides the factors of several K groups.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr, Integer, Rational

from tilewright.ir.nest import Name
from tilewright.isa.target import Target, vectors_alone
from tilewright.isa.vector import TABLE, Vector
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed, Strided
from tilewright.spec.quantized import SCALES, STORED, Quantized
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ONE, ZERO, value

from ..contraction import LARGEST_S8, Product, choose_product, in_few
from ..operands import Operand, odd_vectors, operand_of
from .low_bit import ROW_UNIT, SUMS, QuantizedFormat
from .packed_b import CACHED_BYTES

#: The number of columns in a block of a large B. It is the width of a tile of several rows. Wider
#: blocks are slower for a single row of A: it reads B from memory three times as fast with these
#: blocks as with blocks of 96 columns.
COLUMNS = 32
#: Both bf16 and f16 represent all integers from 0 to this number.
_EXACT = 256
#: The type in which integer zero points are packed. It represents each of them exactly.
ZEROS = "f16"


def quantized_format(spec: Gemm, target: Target) -> QuantizedFormat:
    """Return the format of a quantized B, which depends only on target, type, k, n and nb."""
    assert isinstance(spec.b, Packed) and spec.b.quantized is not None
    assert isinstance(spec.k, int) and isinstance(spec.n, int)
    quantized = spec.b.quantized
    product = _unscaled(spec, target)
    lanes = target.of("f32")[0].lanes
    stored = quantized.stored
    cached = spec.k * spec.n * stored.bits // 8 <= CACHED_BYTES
    columns = spec.b.nb or (spec.n if cached else min(spec.n, COLUMNS))
    integers = spec.sums_blocks
    held: str = stored.unpacked if stored.bits == 8 else "u8"
    shift = -stored.low if stored.bits < 8 and not stored.values else 0
    if integers and ITEMSIZE[product.along] == 1:
        held = product.along
    if integers and (stored.bits == 8 or stored.values):
        shift = product.shifts["b"]
    return QuantizedFormat(
        type=quantized.stored_name,
        stored=held,
        scale=_packed_scale(quantized),
        zeros=_packed_zeros(quantized),
        k=spec.k,
        n=spec.n,
        nb=max(lanes, -(-columns // lanes) * lanes),
        group=product.depth,
        block=quantized.block_of(spec.k),
        shift=shift,
        offset=quantized.offset,
        minima=quantized.zeros == "minima",
        sums=SUMS if spec.offsets_blocks else "",
    )


def _packed_zeros(quantized: Quantized) -> str:
    """Return the type of packed zero points of blocks; "" if there are none."""
    if quantized.zeros == "minima":
        return str(quantized.zero)
    return ZEROS if quantized.zeros else ""


def _packed_scale(quantized: Quantized) -> str:
    """Return the type of packed scales. Each is a given scale times the unit of the elements.

    If the unit is not 1, the product may not fit the type of the given scales, so it is f32.
    """
    packed = SCALES[quantized.scale].packed
    given = SCALES[quantized.scale].given == packed
    return "f32" if given and quantized.stored.unit != 1 else packed


def quantized_product(spec: Gemm, target: Target, *, unpacked: bool = False) -> Product:
    """Return the multiply-add for a quantized B. A step of K is one block of K.

    - If A is quantized too, each block is summed in integers and the sums are added in f32. A
      matrix unit computes the sums if ``target`` has one.
    - If A is floating point and the target has dot products of its type, B's numbers are converted
      to that type, and the sum of each block is scaled.
    - Otherwise B's elements are converted to f32.

    Tiles convert B as they load it. If B is ``unpacked``, it was converted before, and the result
    is a multiply-add of vectors.
    """
    quantized = spec.quantized
    assert quantized is not None
    assert isinstance(spec.k, int)
    plain = _unscaled(spec, target)
    if unpacked and plain.along == "f32":
        return plain
    found = replace(plain, block=quantized.block_of(spec.k))
    if unpacked:
        return replace(found, partial="f32")
    if not spec.sums_blocks and plain.along == "f32":
        return found
    if spec.sums_blocks or _in_whole_blocks(spec):
        found = _in_matrices(found, spec, target) or found
    if not spec.sums_blocks:
        return replace(found, partial="f32")
    wide = [v for v in target.of("f32") if v.lanes in {s.lanes for s in found.ops}]
    return replace(
        found,
        accumulator="f32",
        partial=found.accumulator,
        ops={v: found.ops[target.holding(found.accumulator, v.lanes)] for v in wide},
        # The start values of each block's sums contain the correction of shifts.
        shifts={"a": 0, "b": 0},
    )


def _in_whole_blocks(spec: Gemm) -> bool:
    """True if a matrix unit can read A in place, block by block of K."""
    assert spec.quantized is not None and isinstance(spec.k, int)
    whole = spec.k % spec.quantized.block_of(spec.k) == 0
    return whole and value(operand_of(spec, "a").strides["k"]) == 1


def _in_matrices(product: Product, spec: Gemm, target: Target) -> Product | None:
    """Return ``product`` on the matrix unit of ``target`` for the same packed bytes, or None.

    The unit needs both factors as matrices, so parts of a block of B are unpacked into a buffer.
    All parts are equal and end with whole bytes, unless the block is one part. If a part would fill
    less than a quarter of a register, vectors are as fast, and the result is None.
    """
    if target.matrix is None or target.matrix.factors != "matrices":
        return None
    form = quantized_format(spec, target)
    along = "s8" if _are_looked_up(form, product, target) else product.along
    types = along, product.across
    ops = target.matrix.products.get(product.accumulator, ())
    op = next((op for op in ops if (op.x, op.y) == types and op.group == form.group), None)
    if op is None:
        return None
    groups = form.block // form.group
    most = op.depth // op.group
    parts = (part for part in range(min(most, groups), 0, -1) if groups % part == 0)
    part = next((part for part in parts if part == groups or part % form.fields == 0), 0)
    if not part or (4 * part < most and part < groups):
        return None
    held = [v for v in target.of(product.accumulator) if v.lanes == op.cols]
    return replace(product, op=op, depth=part * op.group, ops=dict.fromkeys(held, (op,)))


def _are_looked_up(form: QuantizedFormat, product: Product, target: Target) -> bool:
    """True if a matrix unit multiplies the values of B's numbers, not their packed codes.

    The values must fit in a byte, and the target must be able to look them up in a table. A block's
    sums then need no correction for a bias of the codes.
    """
    stored, lanes = form.numbers, target.of(product.accumulator)[0].lanes
    if not (form.bias and is_integer(product.along)) or 1 << stored.bits > TABLE:
        return False
    numbers = stored.values or (-form.bias, (1 << stored.bits) - 1 - form.bias)
    fit = min(numbers) >= -LARGEST_S8 and max(numbers) < LARGEST_S8
    return fit and target.holding("s8", lanes * form.group).numbers is not None


def meets_numbers(spec: Gemm, product: Product, form: QuantizedFormat) -> bool:
    """True if ``product`` multiplies the values of B's numbers, not their packed codes.

    This holds if A is floating point, or if a matrix unit's matrices hold other bytes than the
    packed ones.
    """
    return not spec.sums_blocks or (product.unit is not None and product.along != form.stored)


def _unscaled(spec: Gemm, target: Target) -> Product:
    """Return the multiply-add for the numbers of A and B, without scales."""
    quantized, vectors = spec.quantized, vectors_alone(target)
    assert quantized is not None
    if not spec.sums_blocks:
        types: dict[str, str] = {"a": spec.a.type, "b": "f32"}
        numbers = _of_numbers(spec, vectors, deep=_meet_in_matrices(spec, target))
        return numbers or choose_product(vectors, types, "b", flat=True, held="f32")
    stored = quantized.stored
    packed = stored.unpacked if stored.bits == 8 else "u4" if stored.bits <= 4 else "u8"
    types = {"a": "s8", "b": stored.factor or packed}
    found = choose_product(vectors, types, "b", flat=True, fixed="a")
    if stored.bits == 8:
        return found
    shift = -min(stored.integers, default=0)
    largest = shift + max(stored.integers) if stored.values else stored.high - stored.low
    runs = in_few(vectors, found, largest)
    return found if runs is None else replace(runs, shifts={"a": 0, "b": shift})


def has_table(form: QuantizedFormat) -> bool:
    """True if only a table, and no arithmetic, converts the codes of a format to numbers."""
    values = form.numbers.values
    return bool(values) and values != STORED["f4_e2m1"].values


def is_chosen(form: QuantizedFormat, vector: Vector) -> bool:
    """True if codes need a table, but ``vector`` has no instructions that look numbers up."""
    return has_table(form) and vector.numbers is None


def _meet_in_matrices(spec: Gemm, target: Target) -> bool:
    """True if a matrix unit multiplies a floating-point A by numbers of B in A's type.

    It is used if C has many rows. If C has few rows, vectors multiply, and they read the same
    packed B. For few rows, the look-up of numbers matters more than the speed of dot products.
    """
    unit = target.matrix or target.set_aside
    if unit is None or unit.factors != "matrices" or not _in_whole_blocks(spec):
        return False
    return any(op.x == op.y == spec.a.type for op in unit.products.get("f32", ()))


def _of_numbers(spec: Gemm, target: Target, *, deep: bool) -> Product | None:
    """Return the multiply-add of A and of B's numbers in A's type, whose sums of blocks are scaled.

    None if it takes single elements, or if vectors cannot convert B's bytes to such numbers. Zero
    points of blocks need sums of A's rows, which must be contiguous. ``deep`` chooses a dot product
    even if single elements are multiplied faster.
    """
    quantized, type_ = spec.quantized, spec.a.type
    assert quantized is not None
    in_rows = value(operand_of(spec, "a").strides["k"]) == 1
    exact = all(float(v).is_integer() and abs(v) <= _EXACT for v in quantized.stored.values)
    if type_ not in ("bf16", "f16") or not exact or (quantized.zeros and not in_rows):
        return None
    types = {"a": type_, "b": type_}
    product = choose_product(target, types, "b", flat=True, held="f32", deep=deep)
    if product.along != type_ or product.depth == 1:
        return None
    ops = {v: op for v, op in product.ops.items() if _looks_up(target, product, v, quantized)}
    return replace(product, ops=ops) if ops else None


def _looks_up(target: Target, product: Product, vector: Vector, quantized: Quantized) -> bool:
    """True if the vectors of factors used with ``vector`` can convert the bytes of B to numbers.

    A load converts 8-bit numbers. Numbers of at most 4 bits are looked up in a table.
    """
    factors = product.held(target, vector, "along")
    numbers = quantized.stored
    if numbers.bits == 8:
        return quantized.offset == 0 and numbers.unpacked in factors.loads
    return 1 << numbers.bits <= TABLE and factors.numbers is not None


def sums_numbers(spec: Gemm, target: Target) -> bool:
    """True if a floating-point A is multiplied by numbers of B, and the sums are scaled."""
    real = spec.quantized is not None and not spec.sums_blocks
    return real and quantized_product(spec, target).partial != ""


def unpacks_numbers(spec: Gemm, target: Target) -> bool:
    """True if B's numbers may be unpacked before vectors multiply them.

    A must be readable in place, and B must have scales only.
    """
    quantized = spec.quantized
    if quantized is None or spec.sums_blocks or quantized.zeros:
        return False
    return quantized_product(spec, target).unit is None and _in_whole_blocks(spec)


def quantized_operands(
    form: QuantizedFormat, spec: Gemm, product: Product, rows: Expr, *, unpacked: bool = False
) -> dict[str, Operand]:
    """Return the packed bytes of B and its scales as operands, and A if the kernel quantizes it.

    Rows of A's elements have space for whole blocks. Its scales and the starts of sums have one
    value for each block. ``pn`` is the stride added for the first column of a block of columns, if
    elements are not ``unpacked``; otherwise scales have it as ``bn``.
    """
    shared = isinstance(spec.batch, Strided) and spec.batch.b == 0
    several = form.blocks > 1
    lines = form.lines(form.block // form.group)
    elements = {"n": Integer(form.group), "k": Rational(lines * form.nb * form.group, form.block)}
    scales: dict[str, Expr] = {"n": ONE, "k": Rational(form.nb, form.block)}
    elements |= {"b": ZERO if shared else Integer(form.nbytes)}
    if several:
        elements["pn"] = Integer(form.block_elements // form.nb - form.group)
        scales["bn" if unpacked else "pn"] = Integer(form.k_blocks - 1)
    found = {"b": Operand("b", form.stored, elements)}
    for name, type_, begin in (
        ("b_scales", form.scale, form.scales_at),
        ("b_zeros", form.zeros, form.zeros_at),
        ("b_totals", form.sums, form.sums_at),
    ):
        if type_:
            own = scales | {"b": ZERO if shared else Integer(form.nbytes // ITEMSIZE[type_])}
            found[name] = Operand(name, type_, own, Name("b"), begin)
    if spec.sums_blocks:
        return found | _made_of_a(form, spec, product, rows)
    if not product.partial or not form.zeros or not form.k:
        return found
    totals = Operand("a_totals", "f32", _of_blocks(form, rows), Name("a_totals_made"))
    return found | {"a_totals": totals}


def _of_blocks(form: QuantizedFormat, rows: Expr) -> dict[str, Expr]:
    """Return the strides of an array with one value for each row of A and block of K.

    The stride along K is a fraction, because a value serves all elements of its block.
    """
    return {"m": Integer(form.k_blocks), "k": Rational(1, form.block), "b": form.k_blocks * rows}


def _made_of_a(
    form: QuantizedFormat, spec: Gemm, product: Product, rows: Expr
) -> dict[str, Operand]:
    """Return the operands that the kernel makes of A when it quantizes A.

    They are the elements, their scales, and the values that correct for zero points. All are in
    buffers of the kernel.
    """
    width = odd_vectors(Integer(form.k_blocks * form.block), ROW_UNIT)
    lines = {"m": width, "k": ONE, "b": width * rows}
    blocks = _of_blocks(form, rows)
    row: dict[str, Expr] = {"m": ONE, "k": ZERO, "b": rows}
    begins = form.bias and not meets_numbers(spec, product, form)
    names = {"a_starts": ("s32", blocks)} if begins else {}
    names |= {"a_totals": ("f32", blocks)} if form.zeros else {}
    own = row
    if spec.quantize is not None:
        own = row if spec.quantize.block is None else blocks
        names = {"a_scales": ("f32", own)} | names
    names |= {"a_zeros": ("s32", own)} if spec.offsets_blocks else {}
    found = {"a": Operand("a", product.across, lines, Name("a_packed"))}
    for name, (type_, strides) in names.items():
        found[name] = Operand(name, type_, strides, Name(f"{name}_made"))
    if spec.scales_of_blocks is not None:
        found["a_scales"] = Operand("a_scales", "f32", blocks | {"b": ZERO}, Name("a_scale"))
    return found
