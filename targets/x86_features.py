"""What the x86 targets share: features that multiply groups of narrow factors.

VNNI sums four products of bytes, or two of s16, in a lane of s32, exactly modulo 2**32; BF16 two
products of bf16 in a lane of f32, denormals flushed, with a rounding each.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import Emulation
from tilewright.isa.target import Feature
from tilewright.isa.vector import Form, MulAdd

from .x86 import NAMES, prefix
from .x86_integers import ALONE_INSTRUCTIONS, ALONE_LATENCY, add_lane, factors

HEADER = Emulation(header="emulation/x86.h.j2")
#: Those of the vectors, and of AMX's tiles.
TILES_HEADER = Emulation(header="emulation/amx.h.j2")
#: The accumulators' vectors by width.
_SUMS = NAMES | {32: "scalar"}


def vnni(
    widths: tuple[int, ...], title: str, flag: str, name: str, infix: str = "", wide: bool = False
) -> Feature:
    """``flag`` is the CPU's, ``name`` the compilers'.

    ``wide``: as AVX-512 has it, a factor may be in memory, and loads are masked.
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
    """The instruction takes bytes without sign first; only its second factor can be in memory."""
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


def bf16(widths: tuple[int, ...], cpu_flag: str, name: str) -> Feature:
    """AVX-512 BF16; ``name`` is the compilers'."""
    return Feature(
        title="BF16",
        cpu_flags=(cpu_flag,),
        compiler_flags=(f"-m{name}",),
        zig=f"+{name}",
        muladd={(_SUMS[bits], "f32"): _bf16_forms(bits) for bits in widths},
        vectors=tuple(factors("bf16", bits, masked=True) for bits in widths),
        emulation=HEADER,
    )


def _bf16_forms(bits: int) -> tuple[MulAdd, ...]:
    acc = "_mm_set_ss({acc})" if bits == 32 else "{acc}"
    sums = f"{prefix(bits)}_dpbf16_ps({acc}, {{x}}, {{y}})"
    in_registers = MulAdd(
        form="broadcast",
        mnemonic="vdpbf16ps",
        spelling=f"_mm_cvtss_f32({sums})" if bits == 32 else sums,
        cols=bits // 32,
        depth=2,
        x="bf16",
        y="bf16",
        latency=6,
    )
    return (in_registers,) if bits == 32 else (in_registers, replace(in_registers, form="memory"))
