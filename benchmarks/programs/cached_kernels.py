"""Prints the seconds, beyond ``import numpy``, to get 20 kernels of one family."""

import sys
from time import perf_counter

import numpy as np

start = perf_counter()

import tilewright as tw  # noqa: E402

for m in range(1, 21):
    tw.compile(tw.Gemm(m, 48, 64, beta=1), target=sys.argv[1])

assert np.float32(0) == 0
print(perf_counter() - start)
