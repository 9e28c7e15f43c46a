"""Shared vectors of the x86 targets: sums of s32, and the factors of their products."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.isa.vector import Form, Mask, MulAdd, Numbers, Vector

from ..scalar import whole
from ..stored import fields, table
from .doubles import load_doubles, store_doubles
from .floats import (
    DOUBLES,
    FLOATS,
    NAMES,
    cast,
    integer_transposes,
    load_bits,
    lowest,
    mixes,
    predicate,
    prefix,
    register_of_bits,
    store_bits,
    transposes,
)
from .wide import store_widened

_BITS = {"s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "bf16": 16, "f16": 16}
#: Letters of floating-point types in the C names of vector types, for example ``__m512bh``.
_LETTERS = {"bf16": "bh", "f16": "h"}
#: Names of element types in intrinsics that widen, for example ``_mm256_cvtepu8_epi32``.
_WIDENED = {"s8": "epi8", "u8": "epu8", "s16": "epi16", "u16": "epu16"}
#: Number of instructions, and latency in cycles, of a multiply-add of vectors whose sum is a C
#: scalar. The result moves from a vector register to a scalar register.
ALONE_INSTRUCTIONS, ALONE_LATENCY = 4, 10
#: Shuffle indices that gather the low 16 or 8 bits of the four 32-bit lanes of each 128 bits. They
#: are written as the argument of ``set1``, which repeats them.
_LOW_BYTES = {16: "epi64x(0x0d0c090805040100)", 8: "epi32(0x0c080400)"}


def s32(bits: int, memory_operand: bool = False, **more: Any) -> Vector:
    """Return the vector type of s32 with ``bits`` bits; ``more`` are further fields.

    A field ``ops`` in ``more`` has only the operations that differ from AVX2's.
    """
    mm, lanes = prefix(bits), bits // 32
    if bits != 512:
        floats = transposes("f32", bits, DOUBLES[bits], FLOATS[bits])
        more["transpose"] = integer_transposes(bits, "ps", floats)
    more["mixes"] = mixes(bits, masked=memory_operand)
    ops = _ops(bits) | more.pop("ops", {})
    forms: tuple[Form, ...] = ("broadcast", "memory") if memory_operand else ("broadcast",)
    return Vector(
        **register_of_bits(bits),
        element="s32",
        lanes=lanes,
        broadcast=f"{mm}_set1_epi32(*({{p}}))",
        splat=f"{mm}_set1_epi32({{x}})",
        muladd=(multiply_pairs(bits), *(_multiply(form, bits) for form in forms)),
        sum_lanes=_sum_lanes(bits),
        first=f"_mm_cvtsi128_si32({lowest('s32', bits, 128)})",
        loads={name: _widened(name, 32, bits) for name in _WIDENED}
        | {"f64": load_doubles("s32", bits)},
        stores=more.pop("stores", None) or _stores(bits),
        ops=ops,
        **more,
    )


def alone() -> Vector:
    """Return the vector type with one lane of s32, which is a C scalar.

    Like the other vectors of s32, it can also sum products of pairs of s16.
    """
    plain = whole("imul")
    return replace(plain, muladd=(multiply_pairs(32), *plain.muladd))


def multiply_pairs(bits: int) -> MulAdd:
    """Return the multiply-add that sums two products of s16 per lane, exactly modulo 2**32.

    If ``bits`` is 32, the sum is a C scalar.
    """
    mm = prefix(bits)
    pairs = f"{mm}_madd_epi16({{x}}, {{y}})"
    return MulAdd(
        form="broadcast",
        mnemonic="vpmaddwd",
        spelling=add_lane(pairs) if bits == 32 else f"{mm}_add_epi32({{acc}}, {pairs})",
        cols=bits // 32,
        depth=2,
        x="s16",
        y="s16",
        instructions=ALONE_INSTRUCTIONS if bits == 32 else 2,
        product="" if bits == 32 else pairs,
        latency=ALONE_LATENCY if bits == 32 else 0,
    )


def multiply_bytes(bits: int) -> MulAdd:
    """Return the multiply-add of pairs of u8 and s8, whose sums of s16 overflow after few products.

    The instruction saturates the sum of two products. If ``bits`` is 32, the sums are in a vector
    register too, not in a C scalar.
    """
    mm = prefix(max(bits, 128))
    pairs = f"{mm}_maddubs_epi16({{x}}, {{y}})"
    return MulAdd(
        form="broadcast",
        mnemonic="vpmaddubsw",
        spelling=f"{mm}_add_epi16({{acc}}, {pairs})",
        cols=bits // 16,
        depth=2,
        x="u8",
        y="s8",
        instructions=2,
        product=pairs,
        latency=1,
    )


def add_lane(sums: str) -> str:
    """Return C that adds the first lane of the vector ``sums`` to the C scalar ``{acc}``."""
    return f"(int32_t)((uint32_t){{acc}} + (uint32_t)_mm_cvtsi128_si32({sums}))"


def _multiply(form: Form, bits: int) -> MulAdd:
    mm = prefix(bits)
    product = f"{mm}_mullo_epi32({{x}}, {{y}})"
    return MulAdd(
        form=form,
        mnemonic="vpmulld",
        spelling=f"{mm}_add_epi32({{acc}}, {product})",
        cols=bits // 32,
        instructions=2,
        product=product,
    )


def factors(element: str, bits: int, *, masked: bool = False) -> Vector:
    """Return the vector type of factors ``element``, in K groups of 32 bits.

    Loads can widen 8-bit to 16-bit integers. If ``masked`` is set, the first elements are accessed
    by AVX-512's masks.
    """
    narrow = {"s16": ("s8", "u8"), "u16": ("u8",)}.get(element, ())
    whole_bits = max(bits, 128)
    ctype = f"__m{whole_bits}{_LETTERS.get(element, 'i')}"
    seen, back = ("", "") if ctype.endswith("i") else (f"({ctype})", f"(__m{whole_bits}i)")
    group = "_mm_cvtsi32_si128" if bits == 32 else f"{prefix(bits)}_set1_epi32"
    top = {8: "0x80808080", 16: "0x80008000"}.get(_BITS[element])
    tops = f"{prefix(whole_bits)}_set1_epi32((int32_t){top})"
    return Vector(
        name=NAMES[bits],
        element=element,
        lanes=bits // _BITS[element],
        ctype=ctype,
        load=seen + load_bits(bits),
        store=store_bits(bits, f"{back}{{v}}"),
        zero=f"{seen}{prefix(bits)}_setzero_si{whole_bits}()",
        loads={name: _widened(name, 16, bits) for name in narrow},
        group=f"{seen}{group}({{x}})",
        fields=_fields(element, whole_bits) if ctype.endswith("i") else {},
        numbers=_numbers(whole_bits) if element == "s8" else None,
        join=f"{prefix(whole_bits)}_or_si{whole_bits}({{x}}, {{y}})" if ctype.endswith("i") else "",
        flip=f"{prefix(whole_bits)}_xor_si{whole_bits}({{v}}, {tops})" if top else "",
        few=multiply_bytes(bits) if element == "s16" else None,
        mask=_element_mask(element, bits, seen, back) if masked else None,
        partial_load={} if masked else _first_elements(element, bits),
    )


def _fields(element: str, bits: int) -> dict[str, tuple[str, ...]]:
    """Return ``Vector.fields``: C that extracts each bit field from the low byte of the lanes.

    A shuffle looks up the numbers of f4_e2m1 in a table.
    """
    mm = prefix(bits)
    numbers = ", ".join(f"(char){byte}" for byte in table(unsigned=element[0] == "u"))
    repeated = _repeated(numbers, bits)

    def looked_up(index: str) -> str:
        found = f"{mm}_shuffle_epi8({repeated}, {index})"
        if _BITS[element] == 8:
            return found
        return f"{mm}_srai_epi16({mm}_slli_epi16({found}, 8), 8)"

    return fields(partial(_part, bits), looked_up)


def _numbers(bits: int) -> Numbers:
    """Return the lookup of s8 in a table of 16 numbers by bit fields of bytes.

    The table is repeated in each 16 bytes of a register, because the shuffle works within 16 bytes.
    """

    def found(low: int, size: int) -> str:
        return f"{prefix(bits)}_shuffle_epi8({{table}}, {_part(bits, low, (1 << size) - 1)})"

    return Numbers(
        spelling=_repeated("{numbers}", bits),
        codes="u8",
        found={f"u{size}": tuple(found(low, size) for low in range(0, 8, size)) for size in (4, 2)},
    )


def _part(bits: int, right: int, mask: int) -> str:
    """Return C that shifts ``{v}`` by ``right`` bits, and keeps the bits in ``mask`` of each byte.

    A negative ``right`` shifts to the left.
    """
    moved = "{v}"
    if right:
        direction = "srli" if right > 0 else "slli"
        moved = f"{prefix(bits)}_{direction}_epi16({{v}}, {abs(right)})"
    return f"{prefix(bits)}_and_si{bits}({moved}, {prefix(bits)}_set1_epi8({mask}))"


def _repeated(numbers: str, bits: int) -> str:
    """Return C for a register that repeats the 16 bytes ``numbers``."""
    quad = f"_mm_setr_epi8({numbers})"
    return {
        128: quad,
        256: f"_mm256_broadcastsi128_si256({quad})",
        512: f"_mm512_broadcast_i32x4({quad})",
    }[bits]


def _element_mask(element: str, bits: int, seen: str, back: str) -> Mask:
    """Return loads and stores of the first elements by AVX-512 BW's masks for 8 and 16 bits.

    ``seen`` and ``back`` are the C casts of a vector of integers to this vector's type and back.
    """
    size = _BITS[element]
    whole_bits = max(bits, 128)
    mask = predicate(f"epi{size}", whole_bits, whole_bits // size)
    return replace(mask, load=seen + mask.load, store=mask.store.replace("{v}", f"{back}{{v}}"))


def _first_elements(element: str, bits: int) -> dict[int, str]:
    """Return AVX2's loads of the first elements, by their number.

    A masked load of AVX2 reads whole units of 4 bytes. The bytes after the last unit are read one
    by one.
    """
    size, words, mm = _BITS[element] // 8, max(bits, 128) // 32, prefix(max(bits, 128))
    found = {}
    for count in range(1, bits // _BITS[element]):
        whole, rest = divmod(count * size, 4)
        mask = ", ".join(["-1"] * whole + ["0"] * (words - whole))
        there = "(const int *)(const void *)({p})"
        parts = [f"{mm}_maskload_epi32({there}, {_word_list(bits, mask)})"] if whole else []
        if rest:
            word = " | ".join(_byte(4 * whole + place, 8 * place) for place in range(rest))
            last = ", ".join(["0"] * whole + [word] + ["0"] * (words - whole - 1))
            parts.append(_word_list(bits, last))
        si = max(bits, 128)
        found[count] = parts[0] if len(parts) == 1 else f"{mm}_or_si{si}({', '.join(parts)})"
    return found


def _word_list(bits: int, words: str) -> str:
    return f"{prefix(max(bits, 128))}_setr_epi32({words})"


def _byte(place: int, shift: int) -> str:
    byte = f"((const uint8_t *)(const void *)({{p}}))[{place}]"
    return f"{byte} << {shift}" if shift else byte


def _widened(name: str, size: int, bits: int) -> str:
    """Return C that loads integers of type ``name``, and widens them to ``size`` bits each."""
    read = load_bits(bits * _BITS[name] // size)
    return f"{prefix(bits)}_cvt{_WIDENED[name]}_epi{size}({read})"


def _stores(bits: int) -> dict[str, str]:
    """Return AVX2's stores of s32 as other integer types.

    For 8 and 16 bits, a shuffle gathers the low bits of each lane. For s64, lanes are widened.
    """
    found = {name: _narrowed(_BITS[name], bits) for name in ("s16", "u16", "s8", "u8")}
    return found | {"s64": store_widened(bits), "f64": store_doubles("s32", bits)}


def _narrowed(size: int, bits: int) -> str:
    mm = prefix(bits)
    low = f"{mm}_shuffle_epi8({{v}}, {mm}_set1_{_LOW_BYTES[size]})"
    if bits == 128:
        return store_bits(4 * size, low)
    if size == 16:
        joined = f"_mm256_permute4x64_epi64({low}, 8)"
    else:
        joined = f"_mm256_permutevar8x32_epi32({low}, _mm256_set1_epi64x(0x400000000))"
    return store_bits(8 * size, f"_mm256_castsi256_si128({joined})")


def _ops(bits: int) -> dict[str, str]:
    """Return the elementary operations on s32, by AVX2."""
    mm, si = prefix(bits), f"si{bits}"
    pairs = {"add": "add", "sub": "sub", "mul": "mullo", "min": "min", "max": "max"}
    shifts = {"shl": "slli", "shr": "srai", "ushr": "srli"}
    return {
        **{op: f"{mm}_{name}_epi32({{x}}, {{y}})" for op, name in (pairs | shifts).items()},
        **{op: f"{mm}_{op}_{si}({{x}}, {{y}})" for op in ("and", "or", "xor")},
        "lt": f"{mm}_cmpgt_epi32({{y}}, {{x}})",
        "gt": f"{mm}_cmpgt_epi32({{x}}, {{y}})",
        "eq": f"{mm}_cmpeq_epi32({{x}}, {{y}})",
        "select": f"{mm}_blendv_epi8({{z}}, {{y}}, {{x}})",
        "to_f32": f"{mm}_cvtepi32_ps({{x}})",
        "float": cast("si", "ps", bits, "{x}"),
    }


def _sum_lanes(bits: int) -> str:
    if bits == 512:
        return "_mm512_reduce_add_epi32({v})"
    half = "{v}"
    if bits == 256:
        half = "_mm_add_epi32(_mm256_castsi256_si128({v}), _mm256_extracti128_si256({v}, 1))"
    pairs = f"_mm_hadd_epi32({half}, {half})"
    return f"_mm_cvtsi128_si32(_mm_hadd_epi32({pairs}, {pairs}))"
