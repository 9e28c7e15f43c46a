"""The format of every operand that is packed ahead, whichever kind of format it is."""

from __future__ import annotations

from typing import overload

from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.value import Network
from tilewright.spec.operands import Packed
from tilewright.spec.pack import Pack, PackQuantized, weight_packing

from .packed_b import PackedFormat, packed_format, packed_format_named
from .quantized_b import QuantizedFormat, quantized_format, quantized_format_named

Format = PackedFormat | QuantizedFormat


@overload
def format_of(spec: Pack, target: Target) -> PackedFormat: ...
@overload
def format_of(spec: PackQuantized, target: Target) -> QuantizedFormat: ...
@overload
def format_of(spec: Gemm, target: Target) -> Format: ...
def format_of(spec: Gemm | Pack | PackQuantized, target: Target) -> Format:
    """The format of packed B: of target, types, that of sums among them, k, n and nb alone."""
    if isinstance(spec, Pack):
        packed = Packed(spec.type, spec.nb)
        return packed_format(target, spec.a, packed, spec.k, spec.n, spec.sums)
    if isinstance(spec, PackQuantized):
        zero = 1 if spec.a_zero else None
        spec = Gemm(1, spec.n, spec.k, a=spec.a, b=Packed(spec.type, spec.nb), a_zero=zero)
        return quantized_format(spec, target)
    return plain_format(spec, target) if spec.quantized is None else quantized_format(spec, target)


def plain_format(spec: Gemm, target: Target) -> PackedFormat:
    """That of a packed B whose elements have a type of their own."""
    assert isinstance(spec.b, Packed) and isinstance(spec.k, int) and isinstance(spec.n, int)
    b = rounded_b(spec)
    return packed_format(target, spec.rounded[0], b, spec.k, spec.n, spec.sum_type)


def rounded_b(spec: Gemm) -> Packed:
    """A packed B as the packer makes it: of bf16 where ``math`` rounds f32."""
    assert isinstance(spec.b, Packed)
    return spec.b if spec.math is None else Packed(spec.rounded[1], spec.b.nb)


def formats_of(spec: Spec, target: Target) -> dict[str, Format]:
    """The formats of packed operands by name."""
    if isinstance(spec, Pack | PackQuantized):
        return {"out": format_of(spec, target)}
    if isinstance(spec, Gemm) and isinstance(spec.b, Packed):
        names = ["b"] if spec.b2 is None else ["b", "b2"]
        return dict.fromkeys(names, format_of(spec, target))
    if isinstance(spec, Network):
        return {one.name: format_of(weight_packing(one.shape), target) for one in spec.packed}
    return {}


def format_named(text: str) -> Format | None:
    """The format whose ``text`` this is; None if it is no format's."""
    return packed_format_named(text) or quantized_format_named(text)
