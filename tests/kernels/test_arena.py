"""A packed stack as an arena: offsets count its matrices, in any order and as often as wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.driver import build_many
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm

COUNT = tw.dim("count")
FEW = tw.Quantized("u4", scale="f16", zero="u4", block=16)
SPECS: dict[str, Gemm] = {
    "f32": Gemm(5, 18, 7, b=tw.Packed("f32"), batch=tw.Offsets(COUNT)),
    "bf16": Gemm(5, 18, 7, a="bf16", b=tw.Packed("bf16"), batch=tw.Offsets(3, a=(9, 0, 4))),
    "static": Gemm(5, 18, 7, a="u8", b=tw.Packed("s8"), batch=tw.Offsets(3, b=(4, 0, 4))),
    "few": Gemm(3, 18, 32, b=tw.Packed(FEW), batch=tw.Offsets(COUNT)),
    "gated": Gemm(
        3, 18, 7, b=tw.Packed("f32"), b2=tw.Packed("f32"), batch=tw.Offsets(COUNT),
        epilogue=tw.acc * tw.acc2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("loops", [None, "bnmk"])
@pytest.mark.parametrize("target", [*TARGETS, "avx512+vnni+bf16", "neon+dotprod+i8mm+bf16"])
def test_offsets_count_packed_matrices_on_every_target(
    target: str, loops: str | None, cases: Cases
) -> None:
    """Within the loops of a tile, and outside of those over C."""
    names = [name for name in SPECS if loops is None or name in ("f32", "static")]
    for name in names:
        one = Interpreted(SPECS[name], tw.Schedule(loops=loops), resolve(target))
        one.run(one.sample(0, whole=True))
    cases.count(target, "interpreted", len(names))


@pytest.mark.twice
def test_a_kernel_takes_matrices_of_an_arena() -> None:
    rng = np.random.default_rng(0)
    weights = rng.integers(-4, 5, (4, 7, 18)).astype(np.float32)
    a = rng.integers(-4, 5, 3 * 35).astype(np.float32)
    kernels = build_many([(SPECS[name], None, "host") for name in SPECS], ("-O0",))
    for kernel in kernels:
        kernel.verify(cases=2)
    arena = kernels[0].pack_b(weights)
    assert arena.shape == (4, 7, 18)
    at, chosen = np.array([0, 35, 70]), np.array([3, 0, 3])
    wide = a.astype(np.float64).reshape(3, 5, 7)
    right = sum(wide[i] @ weights[chosen[i]] for i in range(3))
    got = kernels[0](a, arena, a_offsets=at, b_offsets=chosen)
    assert (got == right).all()
    joined = np.concatenate([kernels[0].pack_b(one[None]).data for one in weights])
    again = tw.PackedMatrix(arena.format, (4, 7, 18), joined)
    assert (kernels[0](a, again, a_offsets=at, b_offsets=chosen) == right).all()


@pytest.mark.twice
def test_offsets_beyond_the_arena_are_refused() -> None:
    """Also of a stack without matrices, and of one that is no stack: it has the matrix 0."""
    kernel = build_many([(SPECS["f32"], None, "scalar")], ("-O0",))[0]
    a = np.ones(35, np.float32)
    arena = kernel.pack_b(np.ones((2, 7, 18), np.float32))
    one = tw.PackedMatrix(arena.format, (7, 18), arena.data[: arena.nbytes // 2].copy())
    none = kernel.pack_b(np.ones((0, 7, 18), np.float32))

    def call(b: Any, offset: int) -> Callable[[], Any]:
        first = np.zeros(1, np.int64)
        return lambda: kernel(a, b, a_offsets=first, b_offsets=np.array([offset]))

    for b, offset in ((arena, 0), (arena, 1), (one, 0)):
        assert (call(b, offset)() == 7).all()
    empty = np.zeros(0, np.int64)
    assert not kernel(a, none, a_offsets=empty, b_offsets=empty).any()
    for b, offset, most in ((arena, 2, 1), (arena, -1, 1), (one, 1, 0), (arena, 2**62, 1)):
        with pytest.raises(ArgumentError, match=rf"offset 0 of b [^~]*{offset}[^~]*0 to {most}"):
            call(b, offset)()
    with pytest.raises(ArgumentError, match="b has no matrix"):
        call(none, 0)()
