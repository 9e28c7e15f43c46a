"""Shared features of the x86 targets: products of groups of narrow factors.

VNNI sums four products of u8 and s8, or two of s16, in a lane of s32, exactly modulo 2**32.
VNNI-INT8 and VNNI-INT16 do this for all combinations of signed and unsigned factors. BF16 sums two
products of bf16 in a lane of f32. It flushes denormals, and rounds after each product. AVX10.2 sums
two products of f16 in a lane of f32. It does not flush denormals.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import Emulation
from tilewright.isa.target import Feature
from tilewright.isa.vector import Form, MulAdd, Numbers, Vector

from .floats import NAMES, load_bits, looked_up, prefix
from .integers import ALONE_INSTRUCTIONS, ALONE_LATENCY, add_lane, factors

HEADER = Emulation(header="emulation/x86.h.j2")
#: Emulation by a header that implements the intrinsics of vectors and of AMX's tiles in plain C.
TILES_HEADER = Emulation(header="emulation/amx.h.j2")
#: Names of the vector types of sums, by width in bits. A width of 32 means a C scalar.
_SUMS = NAMES | {32: "scalar"}
#: Multiply-adds of a feature, by the name and the element type of the vector of sums.
_Forms = dict[tuple[str, str], tuple[MulAdd, ...]]


def vnni(
    widths: tuple[int, ...], title: str, flag: str, name: str, infix: str = "", wide: bool = False
) -> Feature:
    """Return the feature VNNI of AVX-512, or AVX-VNNI.

    ``flag`` is its name in ``/proc/cpuinfo``, ``name`` its name in compiler options. ``infix`` is
    part of the intrinsics' names. ``wide`` is set for AVX-512: a factor may be in memory, and loads
    may be masked.
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
    """Return VNNI's multiply-adds. The instruction takes u8 as its first factor, s8 as its second.

    Only the second factor may be in memory.
    """
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


#: Letters of integer types in the names of intrinsics, for example ``dpbsud`` for s8 and u8.
_SIGNS = {"s8": "s", "u8": "u", "s16": "s", "u16": "u"}


def signed(widths: tuple[int, ...], pairs: tuple[str, ...], *, wide: bool = False) -> _Forms:
    """Return the multiply-adds of all combinations of the two types ``pairs``.

    The combination of s16 and s16 is left out, because VNNI has it. ``wide`` is set for AVX-512:
    a factor may be in memory.
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
    """Return the multiply-add of factors of types ``x`` and ``y``.

    If one factor is s8 and the other u8, the instruction takes u8 as its second factor. For 16-bit
    integers, there are instructions for both orders.
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
    """Return AVX-VNNI-INT8: multiply-adds of 8-bit integers, each factor signed or unsigned."""
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
    """Return AVX-VNNI-INT16: multiply-adds of 16-bit integers, of which one or both are unsigned.

    VNNI itself has the multiply-add of two signed factors. Elements of A and B with 8 bits are
    widened to 16 bits.
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
    """Return the feature AVX-512 BF16, which is called ``name`` in compiler options."""
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
    """Return the vector type of bf16 factors with ``bits`` bits.

    With 256 or 512 bits, it also has lookups in a table of 16 numbers. The lookup instruction takes
    4 index bits from each lane, or 5 with 512 bits. The numbers are repeated in the table, so that
    index bits that are not part of the field do not change the result.
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
    """Return C that loads an 8-bit type, converts it to f32, and then exactly to bf16."""
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
    """Return the multiply-adds of pairs of f16 or bf16, summed in f32."""
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
