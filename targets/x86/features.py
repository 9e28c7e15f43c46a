"""Shared features of the x86 targets: products of groups of narrow factors.

VNNI sums four products of u8 and s8, or two of s16, in a lane of s32, exactly modulo 2**32.
VNNI-INT8 and VNNI-INT16 do this for all combinations of signs. BF16 sums two products of bf16 in a
lane of f32; it flushes denormals and rounds after each product. AVX10.2 sums two products of f16,
without flushing denormals.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import Emulation
from tilewright.isa.target import Feature
from tilewright.isa.vector import Form, MulAdd, Numbers, Vector

from .floats import NAMES, load_bits, looked_up, prefix
from .integers import ALONE_INSTRUCTIONS, ALONE_LATENCY, add_lane, factors

HEADER = Emulation(header="emulation/x86.h.j2")
#: Header that implements the intrinsics of vectors and of AMX's tiles.
TILES_HEADER = Emulation(header="emulation/amx.h.j2")
#: Names of the vectors of sums, by width in bits; 32 is a C scalar.
_SUMS = NAMES | {32: "scalar"}
#: Multiply-adds of a feature, by name and element of the vector of sums.
_Forms = dict[tuple[str, str], tuple[MulAdd, ...]]


def vnni(
    widths: tuple[int, ...], title: str, flag: str, name: str, infix: str = "", wide: bool = False
) -> Feature:
    """Return VNNI, or AVX-VNNI; CPUs call the feature ``flag``, compilers call it ``name``.

    With ``wide``, as in AVX-512, a factor may be in memory and loads may be masked.
    """
    return Feature(
        title=title,
        cpu_flags=(flag,),
        compiler_flags=(f"-m{name}",),
        zig=f"+{name}",
        muladd={(_SUMS[bits], "s32"): _vnni_forms(bits, infix, wide) for bits in widths},
        vectors=tuple(factors(e, bits, masked=wide) for e in ("u8", "s8") for bits in widths),
        emulation=HEADER,
    )


def _vnni_forms(bits: int, infix: str, memory: bool) -> tuple[MulAdd, ...]:
    """Return the multiply-adds: the u8 factor comes first, only the second may be in memory."""
    in_registers = (
        _vnni_form("broadcast", bits, f"dpbusd{infix}", ("u8", "s8")),
        _vnni_form("broadcast", bits, f"dpbusd{infix}", ("s8", "u8")),
        _vnni_form("broadcast", bits, f"dpwssd{infix}", ("s16", "s16")),
    )
    if not memory or bits == 32:
        return in_registers
    in_memory = (
        _vnni_form("memory", bits, f"dpbusd{infix}", ("u8", "s8")),
        _vnni_form("memory", bits, f"dpwssd{infix}", ("s16", "s16")),
    )
    return in_registers + in_memory


def _vnni_form(form: Form, bits: int, op: str, pair: tuple[str, str]) -> MulAdd:
    both = "{y}, {x}" if pair == ("s8", "u8") else "{x}, {y}"
    acc = "_mm_setzero_si128()" if bits == 32 else "{acc}"
    sums = f"{prefix(bits)}_{op}_epi32({acc}, {both})"
    return MulAdd(
        form=form,
        mnemonic=f"vp{op.removesuffix('_avx')}",
        spelling=add_lane(sums) if bits == 32 else sums,
        cols=bits // 32,
        depth=2 if pair[0] == "s16" else 4,
        x=pair[0],
        y=pair[1],
        instructions=ALONE_INSTRUCTIONS if bits == 32 else 1,
        latency=ALONE_LATENCY if bits == 32 else 0,
    )


#: Letters of integer types in intrinsics.
_SIGNS = {"s8": "s", "u8": "u", "s16": "s", "u16": "u"}


def signed(widths: tuple[int, ...], pairs: tuple[str, ...], *, wide: bool = False) -> _Forms:
    """Return the products of all combinations of the types ``pairs``, except s16 by s16.

    With ``wide``, as in AVX-512, a factor may be in memory.
    """
    both = [(x, y) for x in pairs for y in pairs if (x, y) != ("s16", "s16")]
    found: _Forms = {}
    for bits in widths:
        forms = [_signed("broadcast", bits, x, y) for x, y in both]
        if wide and bits > 32:  # only the second factor can be in memory
            forms += [_signed("memory", bits, x, y) for x, y in both if (x, y) != ("u8", "s8")]
        found[_SUMS[bits], "s32"] = tuple(forms)
    return found


def _signed(form: Form, bits: int, x: str, y: str) -> MulAdd:
    """Return one product. With mixed signs, the unsigned factor comes second.

    Products of 16-bit integers also exist with the unsigned factor first.
    """
    swapped = x == "u8" and y == "s8"
    first, second = (y, x) if swapped else (x, y)
    unit = "b" if x.endswith("8") else "w"
    op = f"dp{unit}{_SIGNS[first]}{_SIGNS[second]}d"
    acc = "_mm_setzero_si128()" if bits == 32 else "{acc}"
    sums = f"{prefix(bits)}_{op}_epi32({acc}, {'{y}, {x}' if swapped else '{x}, {y}'})"
    return MulAdd(
        form=form,
        mnemonic=f"vp{op}",
        spelling=add_lane(sums) if bits == 32 else sums,
        cols=bits // 32,
        depth=4 if unit == "b" else 2,
        x=x,
        y=y,
        instructions=ALONE_INSTRUCTIONS if bits == 32 else 1,
        latency=ALONE_LATENCY if bits == 32 else 0,
    )


def vnni_int8(widths: tuple[int, ...]) -> Feature:
    """Return AVX-VNNI-INT8: products of 8-bit integers of all signs."""
    return Feature(
        title="AVX-VNNI-INT8",
        cpu_flags=("avx_vnni_int8",),
        compiler_flags=("-mavxvnniint8",),
        zig="+avxvnniint8",
        muladd=signed(widths, ("s8", "u8")),
        vectors=tuple(factors(e, bits) for e in ("u8", "s8") for bits in widths),
        emulation=HEADER,
        compilers={"gcc": "13", "clang": "16"},
    )


def vnni_int16(widths: tuple[int, ...]) -> Feature:
    """Return AVX-VNNI-INT16: products of 16-bit integers, of which one or both are unsigned.

    VNNI itself has the product of two signed ones. Elements of A and B have 8 bits and are widened.
    """
    return Feature(
        title="AVX-VNNI-INT16",
        cpu_flags=("avx_vnni_int16",),
        compiler_flags=("-mavxvnniint16",),
        zig="+avxvnniint16",
        muladd=signed(widths, ("s16", "u16")),
        vectors=tuple(factors("u16", bits) for bits in widths),
        emulation=HEADER,
        compilers={"gcc": "14", "clang": "17"},
    )


def bf16(widths: tuple[int, ...], cpu_flag: str, name: str) -> Feature:
    """Return AVX-512 BF16, which compilers call ``name``."""
    return Feature(
        title="BF16",
        cpu_flags=(cpu_flag,),
        compiler_flags=(f"-m{name}",),
        zig=f"+{name}",
        muladd=float_pairs(widths, "bf16", "dpbf16"),
        vectors=tuple(_words(bits) for bits in widths),
        emulation=HEADER,
    )


def _words(bits: int) -> Vector:
    """Return the vector of bf16 factors; from 256 bits on, it also has lookups of numbers.

    A lookup uses the low bits of a lane, as many as address all lanes of the table's register. The
    table's numbers are repeated for all values of the bits that are not part of the field.
    """
    plain = factors("bf16", bits, masked=True)
    if bits < 256:
        return plain
    mm, ctype = prefix(bits), f"__m{bits}"
    numbers = "_mm256_setr_epi16({numbers})"
    numbers = numbers if bits == 256 else f"_mm512_broadcast_i64x4({numbers})"

    def found(at: str) -> str:
        return f"({ctype}bh){mm}_permutexvar_epi16({at}, ({ctype}i){{table}})"

    return replace(
        plain,
        numbers=Numbers(
            spelling=f"({ctype}bh){numbers}",
            codes="s16",
            found=looked_up(bits, 16, found),
        ),
        loads=_from_bytes(bits),
    )


def _from_bytes(bits: int) -> dict[str, str]:
    """Return loads of bf16 from 8-bit types, through f32; the conversion is exact."""
    mm, lanes = prefix(bits), bits // 32
    halves = load_bits(bits // 4)
    ways = {name: f"{mm}_cvtepi32_ps({mm}_cvt{name}_epi32({halves}))" for name in ("epi8", "epu8")}
    words = f"{prefix(bits // 2)}_cvtepu8_epi16({halves})"
    ways["f8"] = f"{mm}_cvtph_ps({prefix(bits // 2)}_slli_epi16({words}, 8))"

    def both(low: str) -> str:
        high = low.replace("({p})", f"({{p}} + {lanes})")
        return f"{mm}_cvtne2ps_pbh({high}, {low})"

    return {
        name: both(ways[way]) for name, way in (("s8", "epi8"), ("u8", "epu8"), ("f8_e5m2", "f8"))
    }


def float_pairs(widths: tuple[int, ...], element: str, op: str) -> _Forms:
    """Return products of pairs of ``element``, summed in f32."""
    return {(_SUMS[bits], "f32"): _pair_forms(bits, element, op) for bits in widths}


def _pair_forms(bits: int, element: str, op: str) -> tuple[MulAdd, ...]:
    acc = "_mm_set_ss({acc})" if bits == 32 else "{acc}"
    sums = f"{prefix(bits)}_{op}_ps({acc}, {{x}}, {{y}})"
    in_registers = MulAdd(
        form="broadcast",
        mnemonic=f"v{op}ps",
        spelling=f"_mm_cvtss_f32({sums})" if bits == 32 else sums,
        cols=bits // 32,
        depth=2,
        x=element,
        y=element,
        latency=6,
    )
    return (in_registers,) if bits == 32 else (in_registers, replace(in_registers, form="memory"))
