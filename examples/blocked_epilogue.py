"""A product cut along K into blocks, with a fused epilogue on the last: three kernels of a family.

    python examples/blocked_epilogue.py [TARGET]           (by default: host)

A caller that cuts K needs kernels that differ in their ends alone. Here M=8, N=48, K=64 in blocks
of 32, A in u8 and B in s8, packed ahead:

    first    C = A0 B0                        sums in s32
    middle   C = C + Ai Bi                    for every block but the first and the last
    last     D = relu(scale[n] * (C + A1 B1)) + residual[m, n]      in f32

The last reads C, and writes D alone. All three take B packed the same way: its format depends on
the target, the types, k and n.

The second part is the classic integer GEMM with offsets, C = (A - ao)(B - bo) + co, exact in s32.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright as tw

Array = NDArray[Any]

M, N, K, BLOCK = 8, 48, 64, 32
TYPES: dict[str, Any] = {"a": "u8", "b": tw.Packed("s8"), "lda": K}


def family(target: str = "host") -> tuple[tw.Kernel, tw.Kernel, tw.Kernel]:
    """The kernels of the first, a middle and the last block of K, compiled as one library."""
    residual = tw.Operand("residual", "f32", per="full")
    epilogue = tw.relu(tw.acc) + residual
    first = tw.Gemm(M, N, BLOCK, **TYPES)
    middle = tw.Gemm(M, N, BLOCK, **TYPES, beta=1)
    last = tw.Gemm(M, N, BLOCK, **TYPES, beta=1, d="f32", b_scale="column", epilogue=epilogue)
    made = tw.compile_many([(spec, None, target) for spec in (first, middle, last)])
    return made[0], made[1], made[2]


def product(
    kernels: tuple[tw.Kernel, ...], a: Array, b: Array, scale: Array, residual: Array
) -> Array:
    """D, block after block of K."""
    first, middle, last = kernels
    blocks = range(0, a.shape[1], BLOCK)
    packed = [first.pack_b(b[k : k + BLOCK]) for k in blocks]
    c = np.empty((M, N), np.int32)
    first(a[:, :BLOCK], packed[0], c)
    for k, each in zip(blocks[1:-1], packed[1:-1], strict=True):
        middle(a[:, k : k + BLOCK], each, c)
    d: Array = last(a[:, blocks[-1] :], packed[-1], c=c, b_scale=scale, residual=residual)
    return d


def offsets(target: str = "host") -> tw.Kernel:
    """C = (A - ao)(B - bo) + co with one ao, a bo for each column and a co for each row."""
    co = tw.Operand("co", "s32", per="row")
    spec = tw.Gemm(
        M, N, K, a="u8", b="u8", d="s32", a_zero="scalar", b_zero="column", epilogue=tw.acc + co
    )
    return tw.compile(spec, target=target)


def check_family(rng: np.random.Generator, target: str) -> float:
    """The largest error of D, in units of the last place of its largest element."""
    a = rng.integers(0, 256, (M, K), np.uint8)
    b = rng.integers(-128, 128, (K, N)).astype(np.int8)
    scale = rng.uniform(1e-5, 1e-4, N).astype(np.float32)
    residual = rng.standard_normal((M, N)).astype(np.float32)
    d = product(family(target), a, b, scale, residual)
    exact = np.maximum(a.astype(np.int64) @ b * scale.astype(np.float64), 0) + residual
    return float(abs(d - exact).max() / np.spacing(abs(d).max()))


def check_offsets(rng: np.random.Generator, target: str) -> int:
    """How many elements are wrong."""
    a, b = (rng.integers(0, 256, shape, np.uint8) for shape in ((M, K), (K, N)))
    bo = rng.integers(0, 256, N).astype(np.int32)
    co = rng.integers(-(2**20), 2**20, M).astype(np.int32)
    c = offsets(target)(a, b, a_zero=128, b_zero=bo, co=co)
    exact = (a.astype(np.int64) - 128) @ (b.astype(np.int64) - bo) + co[:, None]
    return int(np.count_nonzero(c != exact))


def main(target: str = "host") -> int:
    """Run both and compare with numpy in float64 and int64."""
    rng = np.random.default_rng(0)
    error, wrong = check_family(rng, target), check_offsets(rng, target)
    print(f"{M}x{N}x{K} in blocks of {BLOCK}, relu and add on the last: error {error:.2f} ulp")
    print(f"integer GEMM with offsets: {wrong} of {M * N} elements differ from int64")
    return int(error > 4 or wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
