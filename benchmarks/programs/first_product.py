"""Prints the seconds that a process's first ``tw.matmul`` takes beyond one like it that follows."""

from time import perf_counter

import numpy as np

import tilewright as tw

a, b, out = (np.ones((32, 32), np.float32) for _ in range(3))
matmul = tw.matmul  # finding it imports what is behind it
start = perf_counter()
matmul(a, b, out=out)
between = perf_counter()
matmul(a, b, out=out)
print(2 * between - start - perf_counter())
