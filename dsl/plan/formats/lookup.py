"""Find the format of every operand that is packed ahead, of either kind of format."""

from __future__ import annotations

from typing import Any, overload

from tilewright.errors import SpecError
from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.value import Network
from tilewright.spec.operands import Matrix, Packed
from tilewright.spec.pack import Copy, Pack, PackQuantized, layout_type

from .packed_b import (
    PackedFormat,
    grouped_format,
    packed_a_format,
    packed_format,
    packed_format_named,
)
from .quantized_b import QuantizedFormat, quantized_format, quantized_format_named

#: A packed format without scales. Its sizes are numbers, or None if only the call knows them.
PlainFormat = PackedFormat[Any]
Format = PlainFormat | QuantizedFormat


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
    return packed_format(target, spec.rounded[0], b, spec.k, spec.n, spec.sum_type)


def rounded_b(spec: Gemm) -> Packed:
    """Return packed B with the type to which ``math`` rounds it, for example bf16."""
    assert isinstance(spec.b, Packed)
    return spec.b if spec.math is None else Packed(spec.rounded[1], spec.b.nb)


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


def formats_of(spec: Spec, target: Target) -> dict[str, Format]:
    """Return the formats of packed operands by name."""
    if isinstance(spec, Copy):
        copied = {name: copied_format(spec, name, target) for name in "ad"}
        return {name: form for name, form in copied.items() if form is not None}
    if isinstance(spec, Pack | PackQuantized):
        return {"out": format_of(spec, target)}
    found: dict[str, Format] = {}
    if isinstance(spec, Gemm) and isinstance(spec.a, Packed):
        found["a"] = format_of_a(spec, target)
    if isinstance(spec, Gemm) and isinstance(spec.b, Packed):
        names = ["b"] if spec.b2 is None else ["b", "b2"]
        found |= dict.fromkeys(names, format_of(spec, target))
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
    return packed_a_format(target, packed, b, spec.m, spec.k, spec.sum_type)


def format_named(text: str) -> Format | None:
    """Return the format whose ``text`` this is, or None."""
    return packed_format_named(text) or quantized_format_named(text)
