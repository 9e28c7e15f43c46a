"""Vectors of f16, with the multiply-adds of AVX-512-FP16, which sum in f16.

Spellings: Intel Intrinsics Guide. A broadcast of 16 bits, even from memory, needs a shuffle, which
runs on the port of the second multiply unit. A multiply-add that itself broadcasts its factor from
memory needs no shuffle. On an Emerald Rapids, tiles of 8x96 with separate broadcasts reach 73 % of
the peak. Tiles of 24x32 with factors from memory reach 100 %. Compilers do not merge a broadcast
into a multiply-add. The merged form is therefore inline assembly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.isa.target import Feature
from tilewright.isa.vector import Form, Mask, MulAdd, Vector

from .features import HEADER
from .floats import NAMES, predicate, prefix

#: Latency of a multiply-add in cycles, measured on an Emerald Rapids.
_LATENCY = 5
_SUPPORT = "kernel/halves.h.j2"


def fp16(words: Mapping[int, Mapping[int, tuple[str, str]]]) -> Feature:
    """Return the feature AVX-512-FP16: f16 is summed in f16, at twice the rate of f32.

    ``words`` are the transpositions of s32 vectors, by the width of the vector in bits.
    """
    return Feature(
        title="FP16",
        cpu_flags=("avx512_fp16",),
        compiler_flags=("-mavx512fp16",),
        zig="+avx512fp16",
        vectors=(*(_vector(bits, words[bits]) for bits in words), _single()),
        emulation=HEADER,
        compilers={"gcc": "12", "clang": "14"},
    )


def _bits(bits: int, v: str = "{v}") -> str:
    """Return C that reinterprets ``v``, a vector of f16, as a vector of integers."""
    return f"{prefix(bits)}_castph_si{bits}({v})"


def _halves(bits: int, v: str) -> str:
    """Return C that reinterprets ``v``, a vector of integers, as a vector of f16."""
    return f"{prefix(bits)}_castsi{bits}_ph({v})"


def _vector(bits: int, words: Mapping[int, tuple[str, str]]) -> Vector:
    mm, lanes = prefix(bits), bits // 16
    return Vector(
        name=NAMES[bits],
        element="f16",
        lanes=lanes,
        ctype=f"__m{bits}h",
        zero=f"{mm}_setzero_ph()",
        load=f"{mm}_loadu_ph({{p}})",
        store=f"{mm}_storeu_ph({{p}}, {{v}})",
        broadcast=_halves(bits, f"{mm}_set1_epi16((int16_t)*({{p}}))"),
        broadcast_shuffles=1,
        group=_halves(bits, f"{mm}_set1_epi32({{x}})"),
        ops={op: f"{mm}_{op}_ph({{x}}, {{y}})" for op in ("add", "mul")},
        muladd=tuple(_multiply(form, bits) for form in ("broadcast", "memory")),
        sum_lanes=f"_mm_set_sh({mm}_reduce_add_ph({{v}}))",
        mask=_mask(bits),
        transpose=_transposes(bits, words),
        support=_SUPPORT,
    )


def _multiply(form: Form, bits: int) -> MulAdd:
    sums = f"{prefix(bits)}_fmadd_ph({{x}}, {{y}}, {{acc}})"
    return MulAdd(
        form=form,
        mnemonic="vfmadd231ph",
        spelling=f"fmadd_half_{bits}({{acc}}, {{x}}, {{p}})" if form == "memory" else sums,
        cols=bits // 16,
        latency=_LATENCY,
    )


def _mask(bits: int) -> Mask:
    found = predicate("epi16", bits, bits // 16)
    store = found.store.replace("{v}", _bits(bits))
    return replace(found, load=_halves(bits, found.load), store=store)


def _single() -> Vector:
    """Return the vector type with one f16, in the lowest lane of a register.

    It is not a C scalar, because the results of C arithmetic on f16 depend on the compiler.
    """
    return Vector(
        name="half",
        element="f16",
        lanes=1,
        ctype="__m128h",
        zero="_mm_setzero_ph()",
        load="_mm_load_sh({p})",
        store="_mm_store_sh({p}, {v})",
        broadcast="_mm_load_sh({p})",
        ops={op: f"_mm_{op}_sh({{x}}, {{y}})" for op in ("add", "mul")},
        sum_lanes="{v}",
        muladd=(
            MulAdd(
                form="scalar",
                mnemonic="vfmadd231sh",
                spelling="_mm_fmadd_sh({x}, {y}, {acc})",
                cols=1,
                latency=_LATENCY,
            ),
        ),
    )


def _transposes(bits: int, words: Mapping[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """Return transpositions of two vectors, by the block size in elements of f16.

    Single elements are exchanged by shifts. Larger blocks are exchanged as the 32-bit lanes of
    ``words``.
    """
    mm, x, y = prefix(bits), _bits(bits, "{x}"), _bits(bits, "{y}")
    kind = predicate("epi16", bits, bits // 16).ctype
    blend = f"{mm}_mask_blend_epi16(({kind})0xaaaaaaaau, "
    pairs = (f"{blend}{x}, {mm}_slli_epi32({y}, 16))", f"{blend}{mm}_srli_epi32({x}, 16), {y})")
    found = {1: (_halves(bits, pairs[0]), _halves(bits, pairs[1]))}
    for block, (even, odd) in words.items():
        even, odd = (
            _halves(bits, each.replace("{x}", x).replace("{y}", y)) for each in (even, odd)
        )
        found[2 * block] = even, odd
    return found
