"""What the x86 targets share: features that multiply groups of narrow factors.

VNNI sums four products of bytes, or two of s16, in a lane of s32, exactly modulo 2**32; BF16 two
products of bf16 in a lane of f32, denormals flushed, with a rounding each.
"""

from __future__ import annotations

from tilewright.isa import Emulation, Feature, Form, MulAdd

from .x86 import NAMES, prefix
from .x86_integers import factors

HEADER = Emulation(header="x86.h.j2")
Key = tuple[str, str]


def vnni(
    widths: tuple[int, ...], title: str, flag: str, name: str, infix: str = "", memory: bool = False
) -> Feature:
    """``flag`` is the CPU's, ``name`` the compilers'; ``memory``: a factor may be in memory."""
    return Feature(
        title=title,
        cpu_flags=(flag,),
        compiler_flags=(f"-m{name}",),
        zig=f"+{name}",
        muladd={(NAMES[bits], "s32"): _vnni_forms(bits, infix, memory) for bits in widths},
        vectors=tuple(factors(element, bits) for element in ("u8", "s8") for bits in widths),
        emulation=HEADER,
    )


def _vnni_forms(bits: int, infix: str, memory: bool) -> tuple[MulAdd, ...]:
    """The instruction takes bytes without sign first; only its second factor can be in memory."""

    def form(kind: Form, op: str, depth: int, x: str, y: str, swapped: bool = False) -> MulAdd:
        pair = "{y}, {x}" if swapped else "{x}, {y}"
        return MulAdd(
            form=kind,
            mnemonic=f"vp{op}",
            spelling=f"{prefix(bits)}_{op}{infix}_epi32({{acc}}, {pair})",
            cols=bits // 32,
            depth=depth,
            x=x,
            y=y,
        )

    in_registers = (
        form("broadcast", "dpbusd", 4, "u8", "s8"),
        form("broadcast", "dpbusd", 4, "s8", "u8", swapped=True),
        form("broadcast", "dpwssd", 2, "s16", "s16"),
    )
    if not memory:
        return in_registers
    in_memory = (
        form("memory", "dpbusd", 4, "u8", "s8"),
        form("memory", "dpwssd", 2, "s16", "s16"),
    )
    return in_registers + in_memory


def bf16(widths: tuple[int, ...], cpu_flag: str, name: str) -> Feature:
    """AVX-512 BF16; ``name`` is the compilers'."""
    return Feature(
        title="BF16",
        cpu_flags=(cpu_flag,),
        compiler_flags=(f"-m{name}",),
        zig=f"+{name}",
        muladd={
            (NAMES[bits], "f32"): tuple(_bf16_form(form, bits) for form in ("broadcast", "memory"))
            for bits in widths
        },
        vectors=tuple(factors("bf16", bits) for bits in widths),
        emulation=HEADER,
    )


def _bf16_form(form: Form, bits: int) -> MulAdd:
    return MulAdd(
        form=form,
        mnemonic="vdpbf16ps",
        spelling=f"{prefix(bits)}_dpbf16_ps({{acc}}, {{x}}, {{y}})",
        cols=bits // 32,
        depth=2,
        x="bf16",
        y="bf16",
    )
