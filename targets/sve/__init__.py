"""SVE, with one target for each length of its vectors.

There are 32 vector registers, and predicates. A multiply-add by lane selects a lane in each 128-bit
segment. Intrinsics work for any vector length, but a kernel is planned for one length. Spellings:
Arm C Language Extensions for SVE. Latency and units: Arm's software optimisation guide of Neoverse
V1 (4 cycles, two units).
"""

from __future__ import annotations

from tilewright.isa.machine import CompilerHints, Core, Emulation, VectorLength
from tilewright.isa.target import Target

from ..detection import ARM
from ..processors import processors
from .features import features
from .floats import floats
from .integers import factors, narrow, sums
from .wide import wide_sums

#: Length of a vector in bits, by the target's name. CPUs or emulators exist for each length.
LENGTHS = {f"sve{bits}": bits for bits in (2048, 1024, 512, 256, 128)}


def target(name: str) -> Target:
    """Return the target called ``name``, for example ``sve256`` for vectors of 256 bits."""
    nbytes = LENGTHS[name] // 8
    return Target(
        name=name,
        title=f"SVE with vectors of {LENGTHS[name]} bits",
        machine="aarch64",
        detection=ARM,
        cpu_flags=("asimd", "sve", name),
        length=VectorLength(nbytes, "svcntb()"),
        compiler_flags=("-march=armv8.2-a+sve",),
        zig_flags=("-mcpu=generic+sve",),
        headers=("arm_sve.h",),
        compilers={"gcc": "10", "clang": "11"},
        registers=32,
        vectors=(
            *floats("f32", nbytes),
            *floats("f64", nbytes),
            *sums(nbytes),
            *wide_sums(nbytes),
            *factors("s8", nbytes),
            *factors("u8", nbytes),
            *factors("s16", nbytes),
            *narrow("u16", nbytes),
        ),
        core=Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=8, shuffles=2),
        features=features(nbytes) | processors(name),
        hints=CompilerHints(
            constraint="w", operands=False, pointers=True, lanes=True, spare=3, picked="y"
        ),
        emulation=Emulation(qemu="qemu-aarch64", cpu=_emulated(name)),
    )


def _emulated(name: str) -> str:
    """Return qemu's ``-cpu`` option for the vector length of the target ``name``.

    The first setting makes this the longest length of the emulated CPU. The second makes it the
    length in each new thread.
    """
    bits = LENGTHS[name]
    return f"max,sve{bits}=on,sve-default-vector-length={bits // 8}"
