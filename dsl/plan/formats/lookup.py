"""Find the format of every operand that is packed ahead, of either kind of format."""

from __future__ import annotations

from typing import Any, Literal, overload

from tilewright.errors import SpecError
from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.value import Network
from tilewright.spec.operands import Matrix, Packed
from tilewright.spec.pack import Copy, Pack, PackQuantized, QuantizeRows, layout_type
from tilewright.spec.quantized import Quantized
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import INPUTS, TypeName, type_name

from .layout import PackedFormat, packed_format_named
from .low_bit import QuantizedFormat, QuantizedRows
from .packed_b import grouped_format, packed_a_format, packed_format
from .quantized_a import rows_format, rows_format_of
from .quantized_b import quantized_format

#: A packed format without scales. Its sizes are numbers, or None if only the call knows them.
PlainFormat = PackedFormat[Any]
Format = PlainFormat | QuantizedFormat
#: A packed format of A or B.
AnyFormat = Format | QuantizedRows


@overload
def format_of(spec: Pack, target: Target) -> PlainFormat: ...
@overload
def format_of(spec: PackQuantized, target: Target) -> QuantizedFormat: ...
@overload
def format_of(spec: Gemm, target: Target) -> Format: ...
def format_of(spec: Gemm | Pack | PackQuantized, target: Target) -> Format:
    """Return the format of packed B, which depends only on target, types, k, n and nb."""
    if isinstance(spec, Pack):
        if spec.rows:
            a = Packed(spec.type, mb=spec.nb)
            return packed_a_format(target, a, spec.a, spec.n, spec.k, spec.sums)
        packed = Packed(spec.type, spec.nb)
        return packed_format(target, spec.a, packed, spec.k, spec.n, spec.sums)
    if isinstance(spec, PackQuantized):
        zero = 1 if spec.a_zero else None
        spec = Gemm(1, spec.n, spec.k, a=spec.a, b=Packed(spec.type, spec.nb), a_zero=zero)
        return quantized_format(spec, target)
    return plain_format(spec, target) if spec.quantized is None else quantized_format(spec, target)


def plain_format(spec: Gemm, target: Target) -> PlainFormat:
    """Return the format of a packed B that is not quantized."""
    b = rounded_b(spec)
    form = packed_format(target, spec.rounded[0], b, spec.k, spec.n, spec.sum_type)
    return _agreed("B", b, form, (spec.k, spec.n), target)


def rounded_b(spec: Gemm) -> Packed:
    """Return packed B with the type to which ``math`` rounds it, for example bf16."""
    assert isinstance(spec.b, Packed)
    b = spec.b
    return b if spec.math is None or b.format else Packed(spec.rounded[1], b.nb)


def copied_format(spec: Copy, name: str, target: Target) -> PackedFormat[int] | None:
    """The packed format of ``name``, "a" or "d", of a copy; None if it is not packed."""
    layout, (k, n) = getattr(spec, name), (spec.rows, spec.cols)
    if isinstance(layout, Matrix):
        return None
    assert isinstance(k, int) and isinstance(n, int), "a packed matrix has fixed sizes"
    if isinstance(layout, str):
        found = packed_format_named(layout)
        if found is None:
            raise SpecError(
                f"{name} has an unknown packed format", got=layout, expected="PackedMatrix.format"
            )
        return found.of(k, n)
    if layout.bits is not None:
        return grouped_format(layout, k, n)
    return format_of(Pack(k, n, layout_type(layout), nb=layout.nb), target)


def formats_of(spec: Spec, target: Target) -> dict[str, AnyFormat]:
    """Return the formats of packed operands by name."""
    if isinstance(spec, Copy):
        copied = {name: copied_format(spec, name, target) for name in "ad"}
        return {name: form for name, form in copied.items() if form is not None}
    if isinstance(spec, Pack | PackQuantized):
        return {"out": format_of(spec, target)}
    if isinstance(spec, QuantizeRows):
        return {"out": rows_format_of(spec, target)}
    found: dict[str, AnyFormat] = {}
    if isinstance(spec, Gemm) and isinstance(spec.a, Packed):
        plain = spec.quantize is None
        found["a"] = format_of_a(spec, target) if plain else rows_format(spec, target)
    if isinstance(spec, Gemm) and isinstance(spec.b, Packed):
        names = ["b"] if spec.b2 is None else ["b", "b2"]
        found |= dict.fromkeys(names, format_of(spec, target))
    if isinstance(spec, Gemm) and isinstance(spec.d, Packed):
        found["d"] = format_of_d(spec, target)
    if isinstance(spec, Network):
        return {one.name: format_of(spec.packing(one), target) for one in spec.packed}
    return found


def format_of_a(spec: Gemm, target: Target) -> PlainFormat:
    """Return the format of a packed A.

    It depends only on the target, the types of A, B and the sums, and on m, k and mb.
    """
    assert isinstance(spec.a, Packed)
    a, b = spec.rounded
    packed = Packed(a, mb=spec.a.mb)
    form = packed_a_format(target, packed, b, spec.m, spec.k, spec.sum_type)
    return _agreed("A", spec.a, form, (spec.k, spec.m), target)


def format_of_d(spec: Gemm, target: Target) -> PlainFormat | QuantizedRows:
    """Return the format of a packed D, which is that of the next product's A."""
    packing = packing_of_d(spec, target)
    if isinstance(packing, QuantizeRows):
        return rows_format_of(packing, target)
    return format_of(packing, target)


def height_of_d(spec: Gemm, target: Target) -> int | None:
    """Return the rows that a packed D has in a panel, 1 if it is quantized; None for other D."""
    if not isinstance(spec.d, Packed):
        return None
    form = format_of_d(spec, target)
    return form.nb if isinstance(form, PackedFormat) else 1


def packing_of_d(spec: Gemm, target: Target) -> Pack | QuantizeRows:
    """Return the spec that packs a matrix into the format of a packed D: the next product's A.

    If D has no format, the next product has a B of the type that D gives, or of D's own. Otherwise
    the spec is that of a B for which the target has this format; SpecError if there is none.
    """
    d = spec.d
    assert isinstance(d, Packed)
    if isinstance(d.b, Quantized):
        assert d.quantize is not None and isinstance(spec.n, int)
        return QuantizeRows(spec.m, spec.n, d.quantize, d.b)
    others = () if d.format is None else INPUTS
    usual = _packing_of_d(spec, d.b or d.type)
    tried: list[Pack | None] = [usual, *(_packing_of_d(spec, type_name(b)) for b in others)]
    tried += [] if d.format is None else [_packing_of_d(spec, "f16", "f16")]
    for packing in tried:
        if packing is not None and _is_in(d.format, packing, target):
            return packing
    if usual is None:
        raise SpecError("no product has an A and a B of these types", got=d, hint="another b")
    _agreed("D", d, format_of(usual, target), (spec.n, spec.m), target)
    return usual


def _packing_of_d(spec: Gemm, b: TypeName, sums: Literal["f16"] | None = None) -> Pack | None:
    """Return the spec that packs D as an A for a B of type ``b``; None if there is no product."""
    assert isinstance(spec.d, Packed)
    type_ = spec.d.type
    if b != type_ and ("f64" in (b, type_) or (sums and type_ != "f16")):
        return None
    k, n = (Dim(slot) if isinstance(size, Dim) else size
            for slot, size in (("k", spec.n), ("n", spec.m)))  # fmt: skip
    return Pack(k, n, type_, a=b, nb=spec.d.mb, order="F", sums=sums, rows=True)


def _is_in(text: str | None, packing: Pack, target: Target) -> bool:
    """Return True if ``packing`` has the format of this text, or if none is given."""
    if text is None:
        return True
    try:
        form = format_of(packing, target)
    except SpecError:
        return False  # the target reads this A only in place: it has no packed format
    return _fits(text, form, packing.k, packing.n)


def _fits(text: str, form: PlainFormat, k: Size, n: Size) -> bool:
    """Return True if a format's text is that of ``form`` for k x n elements, as far as known."""
    given = packed_format_named(text)
    if given is None or given.family != form.family:
        return False
    pairs = ((given.k, k), (given.n, n))
    return all(one is None or isinstance(size, Dim) or one == size for one, size in pairs)


def _agreed(
    name: str, packed: Packed, form: PlainFormat, sizes: tuple[Size, Size], target: Target
) -> PlainFormat:
    """Return ``form``; SpecError if the user gives another format for the matrix ``name``.

    ``sizes`` are those of K, and of the matrix's lines.
    """
    if packed.format is not None and not _fits(packed.format, form, *sizes):
        raise SpecError(
            f"{name} is packed in another format for this product on {target.name}",
            got=packed.format,
            expected=form.text,
            hint="a text of kernel.formats for the same target, types and sizes",
        )
    return form
