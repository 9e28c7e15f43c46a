"""AVX2 with FMA and F16C: 16 registers of 256 bits, masks in vector registers.

Spellings: Intel Intrinsics Guide. Latency and units: Intel's and AMD's optimisation manuals.
A multiply-add has a latency of 5 cycles on Haswell, and of 4 cycles on later cores.
"""

from __future__ import annotations

from typing import Any

from tilewright.isa.machine import CompilerHints, Core, Emulation
from tilewright.isa.target import Target
from tilewright.isa.vector import Mask, Numbers, Vector

from .detection import X86
from .processors import processors
from .stored import F4, in_memory
from .x86.features import vnni, vnni_int8, vnni_int16
from .x86.floats import cast, looked_up, partial_stores, prefix, scalar, vector
from .x86.integers import alone, factors, s32
from .x86.wide import alone as single
from .x86.wide import s64

_WIDTHS = (256, 128)
#: Widths of vectors of factors, in bits. A factor has 32 bits if the sum is a C scalar.
_GROUPS = (*_WIDTHS, 32)


def _mask(element: str, bits: int) -> Mask:
    mm = prefix(bits)
    ps, size = {"f32": ("ps", 32), "f64": ("pd", 64), "s32": ("epi32", 32), "s64": ("epi64", 64)}[
        element
    ]
    place = "(long long *)({p})" if element == "s64" else "{p}"
    lanes = list(range(bits // size))
    if size == 32:
        splat = f"{mm}_set1_epi32((int)({{count}}))"
        numbers = f"{mm}_setr_epi32({', '.join(map(str, lanes))})"
    else:
        splat = f"{mm}_set1_epi64x({{count}})"
        order = ", ".join(map(str, lanes if bits == 256 else reversed(lanes)))
        numbers = f"{mm}_setr_epi64x({order})" if bits == 256 else f"{mm}_set_epi64x({order})"
    return Mask(
        ctype=f"__m{bits}i",
        make=f"{mm}_cmpgt_epi{size}({splat}, {numbers})",
        load=f"{mm}_maskload_{ps}({place.replace('(', '(const ', 1)}, {{mask}})",
        store=f"{mm}_maskstore_{ps}({place}, {{mask}}, {{v}})",
        registers=1,
    )


def _cuts(element: str, bits: int) -> dict[str, Any]:
    mm, kind = prefix(bits), {"f32": "ps", "f64": "pd"}.get(element, "si")
    chosen = "{mask}" if kind == "si" else cast("si", kind, bits, "{mask}")
    return {
        "mask": _mask(element, bits),
        "fill": f"{mm}_blendv_{'epi8' if kind == 'si' else kind}({{other}}, {{v}}, {chosen})",
        "partial_store": partial_stores(element, bits),
    }


def _vectors(element: str) -> tuple[Vector, ...]:
    def wide(bits: int) -> Vector:
        own = {"fields": _fields(bits), "numbers": _numbers(bits)} if element == "f32" else {}
        return vector(element, bits, **own, **_cuts(element, bits))

    return (*map(wide, _WIDTHS), scalar(element))


def _fields(bits: int) -> dict[str, tuple[str, ...]]:
    """Return C that extracts numbers of f4_e2m1 from the low bytes of lanes, as f32.

    The lower three bits of a field select a magnitude from a table. The fourth bit is the sign.
    """
    mm, whole = prefix(bits), bits == 256
    magnitudes = f"_mm256_setr_ps({', '.join(map(str, F4[:8]))})"

    def number(at: str) -> str:
        top = f"{mm}_and_si{bits}({mm}_slli_epi32({at}, 28), {mm}_set1_epi32(INT32_MIN))"
        at = at if whole else f"_mm256_castsi128_si256({at})"
        found = f"_mm256_permutevar8x32_ps({magnitudes}, {at})"
        found = found if whole else f"_mm256_castps256_ps128({found})"
        return f"{mm}_xor_ps({found}, {mm}_castsi{bits}_ps({top}))"

    return {"f4_e2m1": looked_up(bits, 32, number)["u4"]}


def _numbers(bits: int) -> Numbers:
    """Return the lookup of f32 in a table of 16 numbers by the low four bits of each lane.

    The lower three bits select a number from each half of the table, the fourth bit one of them.
    """
    mm, whole = prefix(bits), bits == 256

    def found(at: str) -> str:
        wide = at if whole else f"_mm256_castsi128_si256({at})"
        halves = [
            f"_mm256_permutevar8x32_ps(_mm256_loadu_ps({{table}}{half}), {wide})"
            for half in ("", " + 8")
        ]
        if not whole:
            halves = [f"_mm256_castps256_ps128({half})" for half in halves]
        top = f"{mm}_castsi{bits}_ps({mm}_slli_epi32({at}, 28))"
        return f"{mm}_blendv_ps({', '.join(halves)}, {top})"

    return in_memory("float", looked_up(bits, 32, found))


def _integers() -> tuple[Vector, ...]:
    wide = tuple(s32(bits, **_cuts("s32", bits)) for bits in _WIDTHS)
    sums = (*wide, alone(), *(s64(bits, **_cuts("s64", bits)) for bits in _WIDTHS), single())
    return (*sums, *(factors(e, bits) for e in ("s16", "u8", "s8") for bits in _GROUPS))


TARGET = Target(
    name="avx2",
    title="AVX2, FMA, F16C",
    machine="x86_64",
    detection=X86,
    cpu_flags=("avx2", "fma", "f16c"),
    compiler_flags=("-mavx2", "-mfma", "-mf16c"),
    zig_flags=("-mcpu=x86_64_v3",),
    headers=("immintrin.h",),
    fence="_mm_sfence()",
    registers=16,
    vectors=_vectors("f32") + _vectors("f64") + _integers(),
    core=Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=4, shared=1),
    threads=2,
    # For a masked load, qemu 7.2 reads the whole vector: up to 32 bytes after the last element.
    hints=CompilerHints(constraint="x", operands=True, pointers=False, lanes=False, spare=1),
    emulation=Emulation(qemu="qemu-x86_64", cpu="max", overread=32),
    features={
        "vnni": vnni(_GROUPS, "AVX-VNNI", "avx_vnni", "avxvnni", infix="_avx"),
        "vnniint16": vnni_int16(_GROUPS),
        "vnniint8": vnni_int8(_GROUPS),
        **processors("avx2"),
    },
)
