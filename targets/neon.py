"""Neon of Armv8-A: 32 registers of 128 bits, multiply-add by a lane, partial loads and stores.

Spellings: Arm Neon Intrinsics Reference. Latency and units: Arm's software optimisation guides
(Neoverse N1 and V1: 4 cycles, two 128-bit units).
"""

from __future__ import annotations

from tilewright.isa.machine import CompilerHints, Core, Emulation
from tilewright.isa.target import Target

from .detection import ARM
from .neon_features import FEATURES
from .neon_float import PAIR, SINGLE, quad
from .neon_integer import SUMS, factors, halves
from .neon_wide import WIDE_SUMS
from .scalar import plain

TARGET = Target(
    name="neon",
    title="Neon (Armv8-A)",
    machine="aarch64",
    detection=ARM,
    cpu_flags=("asimd",),
    compiler_flags=("-march=armv8-a",),
    zig_flags=("-mcpu=generic",),
    headers=("arm_neon.h",),
    registers=32,
    vectors=(
        *(quad("f32"), PAIR, SINGLE),
        *(quad("f64"), plain("f64", "fmadd")),
        *SUMS,
        *WIDE_SUMS,
        *factors("s8"),
        *factors("u8"),
        *halves("s16"),
        *halves("u16"),
    ),
    core=Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=6, shuffles=2),
    features=FEATURES,
    hints=CompilerHints(constraint="w", operands=False, pointers=True, lanes=True, spare=4),
    emulation=Emulation(qemu="qemu-aarch64", cpu="max"),
)
