"""AMX's tile intrinsics in small C programs: on the CPU, or through the header in plain C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets import load
from tilewright.targets.x86.features import TILES_HEADER

Array = NDArray[Any]
Shape = tuple[int, int]

#: A target that has tiles and nothing else of x86.
TILES = replace(
    load("scalar"),
    name="tiles",
    machine="x86_64",
    cpu_flags=("amx_tile", "amx_int8", "amx_bf16"),
    compiler_flags=("-mamx-tile", "-mamx-int8", "-mamx-bf16"),
    headers=("immintrin.h",),
    emulation=TILES_HEADER,
)
#: And products of f16, which gcc knows from 13 on and clang from 16 on.
TILES_F16 = replace(
    TILES,
    cpu_flags=(*TILES.cpu_flags, "amx_fp16"),
    compiler_flags=(*TILES.compiler_flags, "-mamx-fp16"),
)

#: The header has tile_permission; gcc takes the instructions for readers of less than they read.
PRELUDE = """
#ifndef TILEWRIGHT_INTRINSICS
long syscall(long, ...);
_Noreturn void abort(void);
INLINE void tile_permission(void)
{
    if (syscall(158, 0x1023, 18))
        abort();
}
#endif
#define FENCE __asm__ volatile("" ::: "memory")
#define CONFIGURE(p) do { FENCE; _tile_loadconfig(p); } while (0)
#define LOAD(tile, p, stride) do { FENCE; _tile_loadd(tile, p, stride); } while (0)
"""


def configuration(
    shapes: Mapping[int, Shape], *, palette: int = 1, start_row: int = 0
) -> NDArray[np.uint8]:
    """What LDTILECFG reads, of tiles' rows and bytes per row."""
    found = np.zeros(64, np.uint8)
    found[:2] = palette, start_row
    for tile, (rows, colsb) in shapes.items():
        found[16 + 2 * tile : 18 + 2 * tile] = colsb & 255, colsb >> 8
        found[48 + tile] = rows
    return found
