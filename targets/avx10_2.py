"""AVX10.2: AVX-512 with VNNI and BF16, integer products of all signs, and products of f16 pairs.

Spellings: Intel Intrinsics Guide. Products of f16 pairs are summed in f32. The multiply-adds that
sum in f16 are no faster, so they are not used.
"""

from __future__ import annotations

from dataclasses import replace

from . import avx512
from .processors import processors
from .x86.features import float_pairs, signed
from .x86.integers import factors

_GROUPS = (512, 256, 128, 32)
_VECTORS = avx512.TARGET.having(("vnni", "bf16"))
_MORE = [signed(_GROUPS, ("s8", "u8"), wide=True), signed(_GROUPS, ("s16", "u16"), wide=True)]
_MORE.append(float_pairs(_GROUPS, "f16", "dpph"))


TARGET = replace(
    _VECTORS,
    name="avx10.2",
    title="AVX10.2, and AVX-512 with VNNI and BF16",
    cpu_flags=(*_VECTORS.cpu_flags, "avx10_2"),
    compiler_flags=(*_VECTORS.compiler_flags, "-mavx10.2"),
    zig_flags=("-mcpu=x86_64_v4+avx512vnni+avx512bf16+avx10_2",),
    vectors=(
        *(
            replace(
                v,
                muladd=(
                    *(op for more in _MORE for op in more.get((v.name, v.element), ())),
                    *v.muladd,
                ),
            )
            for v in _VECTORS.vectors
        ),
        *(factors(e, bits, masked=True) for e in ("u16", "f16") for bits in _GROUPS),
    ),
    compilers={"gcc": "15", "clang": "20", "zig": "0.16"},
    features=processors("avx10.2"),
)
