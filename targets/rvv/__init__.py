"""RISC-V V 1.0, for vector registers of a known length: 32 registers of VLEN bits.

A vector takes 4, 2 or 1 registers, or half of one (LMUL). One factor of a multiply-add can be a C
scalar. Scalars have 32 registers of their own. Spellings: RISC-V Vector C Intrinsic Specification
1.0. Latency and units: those of an in-order core that computes one register per cycle, as in LLVM's
models of the SpacemiT X60 and of SiFive's cores.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.isa.machine import Core, Emulation, VectorLength, Width
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.targets.detection import RISCV
from tilewright.targets.processors import processors

from .features import features
from .vectors import SINGLE, held, vector
from .words import LMUL, Group, cpu


def _vectors(vlen: int) -> Iterator[Vector]:
    sums = {
        element: [int(lmul * vlen) // size for lmul in LMUL if lmul * 64 >= size]
        for element, size in (("f32", 32), ("f64", 64), ("s32", 32), ("s64", 64))
    }
    for element, lanes in sums.items():
        yield from (vector(Group(element, count, vlen)) for count in lanes)
        yield SINGLE[element]
    for element in ("s16", "u16"):
        yield from (held(Group(element, count, vlen)) for count in sums["s32"])
        yield SINGLE[element]


def _core(vlen: int) -> Core:
    """Return a core that computes one register per cycle.

    An instruction on a group of registers takes as many cycles as the group has registers.
    """
    register = vlen // 8
    one = Width(bytes=register, fma_units=1, loads=1, stores=1, shuffles=1)
    two = Width(bytes=2 * register, fma_units=1 / 2, loads=1 / 2, stores=1 / 2, shuffles=1 / 2)
    return Core(
        fma_latency=6,
        fma_units=1 / 4,
        loads=1 / 4,
        stores=1 / 4,
        shuffles=1 / 4,
        issue=2,
        widths=(one, two),
    )


def target(name: str) -> Target:
    """Return the target called ``name``, for example ``rvv256`` for registers of 256 bits."""
    vlen = int(name.removeprefix("rvv"))
    return Target(
        name=name,
        title=f"RISC-V V 1.0 with registers of {vlen} bits",
        machine="riscv64",
        detection=RISCV,
        cpu_flags=("v", f"vlen{vlen}"),
        length=VectorLength(vlen // 8, "__riscv_vlenb()"),
        compiler_flags=("-march=rv64gcv", "-mabi=lp64d"),
        zig_flags=("-mcpu=generic_rv64+m+a+f+d+c+v",),
        headers=("riscv_vector.h",),
        registers=32,
        scalars_apart=True,
        vectors=tuple(_vectors(vlen)),
        core=_core(vlen),
        features={**features(vlen), **processors(name)},
        emulation=Emulation(qemu="qemu-riscv64", cpu=cpu(vlen)),
        compilers={"gcc": "14", "clang": "18"},
    )
