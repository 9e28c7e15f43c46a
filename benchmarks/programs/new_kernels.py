"""Prints the seconds to compile 20 new kernels of one family into one library."""

import sys
from time import perf_counter

import tilewright as tw

start = perf_counter()
tw.compile_many([(tw.Gemm(m, 48, 64, beta=1), None, sys.argv[1]) for m in range(1, 21)])
print(perf_counter() - start)
