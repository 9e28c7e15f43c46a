"""``python -m benchmarks.threads``: a product of 512 by "NMk" on one thread and on several.

Rounds alternate; the ratio is the median over them. Two processors may be one core's: then
threads that keep its multiply-add units busy gain nothing, whoever makes them.
"""

from __future__ import annotations

import os
import statistics
import sys

import numpy as np

import tilewright as tw

SIZE, ROUNDS = 512, 15


def main(most: int) -> None:
    schedules = [tw.Schedule(loops="NMk", threads=count) for count in (1, most)]
    kernels = tw.compile_many([(tw.Gemm(SIZE, SIZE, SIZE), one, "host") for one in schedules])
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE), "f4") for _ in "ab")
    if not np.array_equal(kernels[0](a, b), kernels[1](a, b)):
        raise SystemExit("the results differ")
    rounds = [[kernel.bench(seconds=0.1) for kernel in kernels] for _ in range(ROUNDS)]
    ratio = statistics.median(one.median / two.median for one, two in rounds)
    alone, together = (max(t.gflops for t in timings) for timings in zip(*rounds, strict=True))
    print(
        f"{SIZE}x{SIZE}x{SIZE} f32 on {kernels[0].target}, NMk: {alone:.0f} GFLOP/s on 1 thread, "
        f"{together:.0f} on {most} ({os.cpu_count()} CPUs): {ratio:.2f} times as fast"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
