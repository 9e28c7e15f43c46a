"""What the x86 targets share: the naming scheme of immintrin.h, per width and element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.isa import MulAdd, Vector

from .scalar import plain

_SUFFIX = {"f32": "ps", "f64": "pd"}
_LETTER = {"f32": "s", "f64": "d"}
_CTYPE = {"f32": "", "f64": "d"}
_BYTES = {"f32": 4, "f64": 8}
_NAMES = {512: "zmm", 256: "ymm", 128: "xmm"}
Pair = tuple[str, str]

#: Block transpositions of 256- and 128-bit vectors, with AVX2.
DOUBLES: dict[int, dict[int, Pair]] = {
    256: {
        1: ("_mm256_unpacklo_pd({x}, {y})", "_mm256_unpackhi_pd({x}, {y})"),
        2: ("_mm256_permute2f128_pd({x}, {y}, 0x20)", "_mm256_permute2f128_pd({x}, {y}, 0x31)"),
    },
    128: {1: ("_mm_unpacklo_pd({x}, {y})", "_mm_unpackhi_pd({x}, {y})")},
}
FLOATS: dict[int, Pair] = {
    256: (
        "_mm256_blend_ps({x}, _mm256_moveldup_ps({y}), 0xaa)",
        "_mm256_blend_ps(_mm256_movehdup_ps({x}), {y}, 0xaa)",
    ),
    128: (
        "_mm_blend_ps({x}, _mm_moveldup_ps({y}), 0xa)",
        "_mm_blend_ps(_mm_movehdup_ps({x}), {y}, 0xa)",
    ),
}

#: The sum over the lanes of a 128-bit vector, in pairs.
_SUM_XMM = {
    "f32": (
        "_mm_cvtss_f32(_mm_add_ss(_mm_add_ps({v}, _mm_movehl_ps({v}, {v})), "
        "_mm_shuffle_ps(_mm_add_ps({v}, _mm_movehl_ps({v}, {v})), "
        "_mm_add_ps({v}, _mm_movehl_ps({v}, {v})), 1)))"
    ),
    "f64": "_mm_cvtsd_f64(_mm_add_sd({v}, _mm_unpackhi_pd({v}, {v})))",
}


def vector(element: str, bits: int, **more: Any) -> Vector:
    """The ``bits`` wide vector of ``element``; ``more`` are fields of Vector set by the target."""
    prefix = "_mm" if bits == 128 else f"_mm{bits}"
    ps, lanes = _SUFFIX[element], bits // (8 * _BYTES[element])

    def call(op: str, args: str) -> str:
        return f"{prefix}_{op}_{ps}({args})"

    fma = call("fmadd", "{x}, {y}, {acc}")
    forms: list[MulAdd] = [
        MulAdd(form="broadcast", mnemonic=f"vfmadd231{ps}", spelling=fma, cols=lanes)
    ]
    if more.pop("memory_operand", False):
        forms.append(MulAdd(form="memory", mnemonic=f"vfmadd231{ps}", spelling=fma, cols=lanes))
    if bits != 512:
        more["transpose"] = transposes(element, bits, DOUBLES[bits], FLOATS[bits])
    return Vector(
        name=_NAMES[bits],
        element=element,
        lanes=lanes,
        ctype=f"__m{bits}{_CTYPE[element]}",
        zero=f"{prefix}_setzero_{ps}()",
        load=call("loadu", "{p}"),
        store=call("storeu", "{p}, {v}"),
        broadcast=call("set1", "*({p})"),
        splat=call("set1", "{x}"),
        add=call("add", "{x}, {y}"),
        mul=call("mul", "{x}, {y}"),
        muladd=tuple(forms),
        sum_lanes=_sum_lanes(element, bits),
        **more,
    )


def _reinterpret(spelling: str, bits: int) -> str:
    """A spelling on doubles, applied to floats."""
    prefix = "_mm" if bits == 128 else f"_mm{bits}"
    for name in "xy":
        spelling = spelling.replace(f"{{{name}}}", f"{prefix}_castps_pd({{{name}}})")
    return f"{prefix}_castpd_ps({spelling})"


def transposes(
    element: str, bits: int, doubles: Mapping[int, Pair], floats: Pair
) -> dict[int, Pair]:
    """Block transpositions from those of doubles, by block size, and that of single floats."""
    if element == "f64":
        return dict(doubles)
    wider = {
        2 * block: (_reinterpret(even, bits), _reinterpret(odd, bits))
        for block, (even, odd) in doubles.items()
    }
    return {1: floats, **wider}


def _sum_lanes(element: str, bits: int) -> str:
    if bits == 512:
        return f"_mm512_reduce_add_{_SUFFIX[element]}({{v}})"
    if bits == 128:
        return _SUM_XMM[element]
    ps = _SUFFIX[element]
    low = f"_mm256_cast{ps}256_{ps}128({{v}})"
    half = f"_mm_add_{ps}({low}, _mm256_extractf128_{ps}({{v}}, 1))"
    return _SUM_XMM[element].replace("{v}", half)


def scalar(element: str) -> Vector:
    """One element in a C scalar; the multiply-add is the hardware's fused one."""
    return plain(element, f"vfmadd231s{_LETTER[element]}")
