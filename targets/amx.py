"""AMX: eight tiles of 16 rows of 64 bytes, besides AVX-512 with VNNI and BF16.

Spellings: Intel Intrinsics Guide. A multiply-add of tiles takes one cycle for each row of its first
factor. A tile load takes one cycle for two rows (Intel 64 and IA-32 Architectures Optimization
Reference Manual, chapter on AMX). Latencies, and the time of ``ldtilecfg``, are those of Sapphire
Rapids.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import Cache
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Feature
from tilewright.isa.vector import MulAdd
from tilewright.spec.types import ITEMSIZE

from . import avx512
from .processors import processors
from .x86.features import TILES_HEADER


def _product(name: str, x: str, y: str) -> MulAdd:
    """Return the multiply-add ``tdp<name>`` of tiles with elements of types ``x`` and ``y``.

    The tile ``y`` is the instruction's first factor. Its row i is added to row i of the sums.
    """
    group = 4 // ITEMSIZE[x]
    return MulAdd(
        form="matrix",
        mnemonic=f"tdp{name}",
        spelling=f"_tile_dp{name}({{acc}}, {{y}}, {{x}})",
        rows=16,
        cols=16,
        depth=16 * group,
        group=group,
        x=x,
        y=y,
    )


_SIGNS = {"s8": "s", "u8": "u"}
_INTEGERS = tuple(
    _product(f"b{_SIGNS[y]}{_SIGNS[x]}d", x, y) for y in ("s8", "u8") for x in ("s8", "u8")
)
_TILES = MatrixUnit(
    name="tmm",
    registers={"s32": 8, "f32": 8},
    factors="matrices",
    rows=16,
    row_bytes=64,
    products={"s32": _INTEGERS, "f32": (_product("bf16ps", "bf16", "bf16"),)},
    zero="_tile_zero({dst})",
    load="TILE_LOAD({dst}, {p}, {stride})",
    store="_tile_stored({src}, {p}, {stride})",
    consent=(158, 0x1023, 18),  # arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    headers=("errno.h", "stddef.h", "unistd.h"),
    template="matrix/amx_state.c.j2",
    latency=52,
    configuring=204,
)
_FP16 = Feature(
    title="FP16",
    cpu_flags=("amx_fp16",),
    compiler_flags=("-mamx-fp16",),
    zig="+amx_fp16",
    muladd={},
    products={"f32": (_product("fp16ps", "f16", "f16"),)},
    emulation=TILES_HEADER,
)
#: Names of the 8-bit floating-point types in AMX's mnemonics.
_BYTES = {"f8_e5m2": "bf8", "f8_e4m3": "hf8"}
_FP8 = Feature(
    title="FP8",
    cpu_flags=("amx_fp8",),
    compiler_flags=("-mamx-fp8",),
    zig="+amx_fp8",
    products={
        "f32": tuple(
            _product(f"{'' if x == y else _BYTES[y][0]}{_BYTES[x]}ps", x, y)
            for y in _BYTES
            for x in _BYTES
        )
    },
    emulation=TILES_HEADER,
    compilers={"gcc": "15", "clang": "20", "zig": "0.16"},
)
_VECTORS = avx512.TARGET.having(("vnni", "bf16"))
#: Caches of all present cores with AMX. Vector loads read 48 bytes per cycle from L2, tile loads 28
#: bytes (measured with a product of 64x64x512 in bf16 on Granite Rapids).
_CACHES = Cache(48 << 10, 128), Cache(2 << 20, 28), Cache(2 << 20, 8)

TARGET = replace(
    _VECTORS,
    name="amx",
    title="AMX with INT8 and BF16, AVX-512 with VNNI and BF16",
    cpu_flags=(*_VECTORS.cpu_flags, "amx_tile", "amx_int8", "amx_bf16"),
    compiler_flags=(*_VECTORS.compiler_flags, "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    zig_flags=("-mcpu=x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",),
    emulation=TILES_HEADER,
    core=replace(_VECTORS.core, caches=_CACHES),
    matrix=_TILES,
    features={"fp16": _FP16, "fp8": _FP8, **processors("amx")},
)
