"""The FMA peak of one core: a call that is timed in every round beside the kernels."""

from __future__ import annotations

from functools import cache

from .native import Call, Effort, address, library, measure

CHAINS = {"avx512": (8, 10, 12, 16, 20, 24), "avx2": (8, 10, 12, 14)}
LANES = {"avx512": 16, "avx2": 8}
NAME = "FMA peak"


@cache
def peak(isa: str) -> Call:
    """The best number of chains for f32 FMAs of this ISA, measured once."""
    import numpy as np

    memory = np.zeros(64, np.float32)
    pointers = (memory.ctypes.data, memory.ctypes.data, memory.ctypes.data + 128, 0)
    source = library("peak")
    steps = source.bench_peak_iterations()

    def call(chains: int) -> Call:
        function = address(source[f"bench_peak_{isa}_{chains}"])
        return Call(
            f"{NAME} {chains}", function, pointers, 2 * LANES[isa] * chains * steps, (memory,)
        )

    timed = measure([call(chains) for chains in CHAINS[isa]], Effort(rounds=7))
    best = max(CHAINS[isa], key=lambda chains: timed.gflops(f"{NAME} {chains}"))
    found = call(best)
    return Call(NAME, found.function, found.operands, found.flops, found.keep)
