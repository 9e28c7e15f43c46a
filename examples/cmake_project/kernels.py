"""The kernels of the project beside this file, as a library in C.

    tilewright build examples/cmake_project/kernels.py -o smallmm

writes the library's sources, compiles them, and runs their self-test. README.md here goes on.
"""

from __future__ import annotations

import tilewright as tw

m, n, k = tw.dim("m"), tw.dim("n"), tw.dim("k")
bias = tw.Operand("bias", "f32", per="column")

#: C = A B of a few sizes, each with a kernel of its own, and of all others.
products = [tw.Gemm(8, 8, 8), tw.Gemm(32, 32, 32), tw.Gemm(m, n, k)]
#: A layer of a network: 8-bit integers, of which the weights are packed once, to 8-bit integers.
layer = tw.Gemm(
    m, 64, 64, a="u8", b=tw.Packed("s8"), d="u8", a_zero=128, b_scale="column", d_scale=0.05,
    d_zero=3, epilogue=tw.relu(tw.acc + bias),
)  # fmt: skip
#: The sum of products of many pairs of matrices, in bf16.
batch = tw.Gemm(16, 16, 32, a="bf16", batch=tw.Strided(tw.dim("count")))

library = tw.library(
    "smallmm",
    {"sgemm": products, "layer": layer, "batch": batch},
    targets=["avx2", "avx512+vnni", "amx", "neon", "scalar"],
    version="1.2.0",
    description="Products of small matrices",
)
