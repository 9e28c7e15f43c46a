"""Shared vectors of the x86 targets: sums of s64, with factors of 8 and 16 bits.

``vpmuldq`` multiplies the lower halves of 64-bit lanes. Loads therefore widen elements to 64-bit
lanes. ``vpmaddwd`` is not used. It sums two products in 32 bits first, and the sum of two squares
of -32768 overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.isa.vector import Form, Mask, MulAdd, Vector

from ..scalar import wide
from .floats import (
    DOUBLES,
    integer_transposes,
    load_bits,
    lowest,
    prefix,
    register_of_bits,
    store_bits,
)

#: For each element type in memory: its bits, and its name in intrinsics that widen.
_WIDENED = {"s8": (8, "epi8"), "u8": (8, "epu8"), "s16": (16, "epi16"), "u16": (16, "epu16")}


def s64(bits: int, memory_operand: bool = False, **more: Any) -> Vector:
    """Return the vector type of s64 with ``bits`` bits; ``more`` are further fields.

    A field ``ops`` in ``more`` has only the operations that differ from AVX2's.
    """
    mm, lanes = prefix(bits), bits // 64
    one = "set1_epi64" if bits == 512 else "set1_epi64x"
    if bits != 512:
        more["transpose"] = integer_transposes(bits, "pd", DOUBLES[bits])
    ops = _ops(bits) | more.pop("ops", {})
    forms: tuple[Form, ...] = ("broadcast", "memory") if memory_operand else ("broadcast",)
    return Vector(
        **register_of_bits(bits),
        element="s64",
        lanes=lanes,
        broadcast=f"{mm}_{one}(*({{p}}))",
        splat=f"{mm}_{one}({{x}})",
        muladd=(*(_multiply(form, bits) for form in forms), _multiply_whole(ops, bits)),
        sum_lanes=_sum_lanes(bits),
        first=f"_mm_cvtsi128_si64({lowest('s64', bits, 128)})",
        loads={name: _load(name, bits) for name in _WIDENED},
        ops=ops,
        **more,
    )


def alone() -> Vector:
    """Return the vector type with one lane of s64, which is a C scalar."""
    return wide("imul, add", ("s64",))


def masked_loads(bits: int, mask: Mask) -> dict[str, str]:
    """Return AVX-512's masked loads that widen 8-bit and 16-bit integers to s64, by their type."""
    found = {}
    for name, (size, widened) in _WIDENED.items():
        first = mask.load.replace(f"{prefix(bits)}_maskz_loadu_epi64", f"_mm_maskz_loadu_epi{size}")
        found[name] = f"{prefix(bits)}_cvt{widened}_epi64({first})"
    return found


def store_widened(bits: int) -> str:
    """Return C that widens a vector of s32 to s64, and stores it as two vectors."""
    mm = prefix(bits)
    low, high = {
        512: ("_mm512_castsi512_si256({v})", "_mm512_extracti64x4_epi64({v}, 1)"),
        256: ("_mm256_castsi256_si128({v})", "_mm256_extracti128_si256({v}, 1)"),
        128: ("{v}", "_mm_srli_si128({v}, 8)"),
    }[bits]
    first, second = (store_bits(bits, f"{mm}_cvtepi32_epi64({half})") for half in (low, high))
    return f"{first}, {second.replace('{p}', f'({{p}}) + {bits // 64}')}"


def _multiply(form: Form, bits: int) -> MulAdd:
    mm = prefix(bits)
    product = f"{mm}_mul_epi32({{x}}, {{y}})"
    return MulAdd(
        form=form,
        mnemonic="vpmuldq, vpaddq",
        spelling=f"{mm}_add_epi64({{acc}}, {product})",
        cols=bits // 64,
        x="s64",
        y="s64",
        instructions=2,
        product=product,
    )


def _multiply_whole(ops: Mapping[str, str], bits: int) -> MulAdd:
    """Return the multiply-add of full 64-bit factors.

    The compiler chooses its instructions, which may differ from the mnemonic.
    """
    spelling = ops["add"].replace("{x}", "{acc}").replace("{y}", ops["mul"])
    return MulAdd(
        form="broadcast",
        mnemonic="vpmuludq, vpaddq",
        spelling=spelling,
        cols=bits // 64,
        instructions=8,
    )


def _load(name: str, bits: int) -> str:
    size, widened = _WIDENED[name]
    return f"{prefix(bits)}_cvt{widened}_epi64({load_bits(bits * size // 64)})"


def _ops(bits: int) -> dict[str, str]:
    """Return AVX2's operations on s64; a 64-bit product is computed from 32-bit products."""
    mm = prefix(bits)
    high = {name: f"{mm}_srli_epi64({{{name}}}, 32)" for name in "xy"}
    crossing = (
        f"{mm}_add_epi64({mm}_mul_epu32({high['x']}, {{y}}), {mm}_mul_epu32({{x}}, {high['y']}))"
    )
    low = f"{mm}_mul_epu32({{x}}, {{y}})"
    return {
        "add": f"{mm}_add_epi64({{x}}, {{y}})",
        "mul": f"{mm}_add_epi64({low}, {mm}_slli_epi64({crossing}, 32))",
    }


def _sum_lanes(bits: int) -> str:
    if bits == 512:
        return "_mm512_reduce_add_epi64({v})"
    half = "{v}"
    if bits == 256:
        half = "_mm_add_epi64(_mm256_castsi256_si128({v}), _mm256_extracti128_si256({v}, 1))"
    return f"_mm_cvtsi128_si64(_mm_add_epi64({half}, _mm_unpackhi_epi64({half}, {half})))"
