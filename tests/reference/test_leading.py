"""Lines and their leading dimensions: of the arguments that are made up, and at a call."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.reference.arguments import sample
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.signature import signature
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.transpose import Transpose

K, N, M = tw.dim("k"), tw.dim("n"), tw.dim("m")

#: Each with leading dimensions that are fixed or have a maximum, and what they must hold.
BOUNDED: dict[str, Spec] = {
    "lda": Gemm(69, 8, K, lda=4),
    "lda of columns": Gemm(M, 8, 3, a=tw.Matrix("f32", order="F"), lda=5),
    "ldb": Gemm(3, N, 4, ldb=6),
    "ldc": Gemm(3, N, 4, ldc=6),
    "ldd": Gemm(3, N, 4, d="f32", ldd=6),
    "all of n": Gemm(3, N, 4, ldb=9, ldc=6),
    "maximum": Gemm(7, 8, K, lda=tw.dim("lda", max=10, multiple_of=4)),
    "multiple": Gemm(7, 8, tw.dim("k", multiple_of=3), lda=8),
    "none but empty": Gemm(7, 8, tw.dim("k", multiple_of=8), lda=5),
    "chain": Gemm(7, 8, K, lda=tw.dim("x"), b=tw.Matrix("f32", order="F"), ldb=tw.dim("y", max=9)),
    "circle": Gemm(M, N, K, lda=N, ldb=K),
    "batch": Gemm(5, 4, K, lda=6, batch=tw.Strided(3)),
    "offsets": Gemm(5, 4, 3, lda=7, batch=tw.Offsets(tw.dim("count"))),
    "flat lines": Gemm(5, N, 3, ldb=7, batch=tw.Offsets(2)),
    "transpose": Transpose(tw.dim("rows"), 5, ldout=9),
}  # fmt: skip


def value(size: Size, sizes: Mapping[str, int]) -> int:
    return sizes[size.name] if isinstance(size, Dim) else size


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("varied", [True, False])
def test_sizes_are_drawn_that_leading_dimensions_hold(name: str, varied: bool) -> None:
    parameters = signature(BOUNDED[name])
    rng = np.random.default_rng(5)
    for _ in range(30):
        held = sample(parameters, rng, varied=varied)
        for dim in {p.dim for p in parameters.sizes}:
            assert held.sizes[dim.name] % dim.multiple_of == 0
            assert dim.max is None or held.sizes[dim.name] <= dim.max
        for array in parameters.arrays:
            if array.leading is not None:
                line = array.shape[1 if array.order == "C" else 0]
                assert value(line, held.sizes) <= value(array.leading, held.sizes)


def test_sizes_are_still_varied() -> None:
    rng = np.random.default_rng(0)
    parameters = signature(Gemm(69, 8, K, lda=4))
    seen = {sample(parameters, rng, varied=True).sizes["k"] for _ in range(60)}
    assert seen == {1, 2, 3, 4}


def test_they_are_verified_and_timed() -> None:
    """Each writes and reads within its memory: they were compared with the memory around."""
    specs = [spec for name, spec in BOUNDED.items() if name != "circle"]
    for kernel in tw.compile_many([(spec, None, "scalar") for spec in specs]):
        assert kernel.verify(cases=4).cases == 4
    kernel = tw.compile(Gemm(69, 8, K, lda=4), target="scalar")
    assert kernel.bench(seconds=0.001).median > 0


@pytest.mark.parametrize(
    ("spec", "slot"),
    [
        (Gemm(1, 8, K, lda=4), "k"),
        (Gemm(1, 8, K, lda=tw.dim("lda", max=4)), "k"),
        (Gemm(8, 1, K, b=tw.Matrix("f32", order="F"), ldb=4), "k"),
    ],
)
def test_a_single_line_is_held_too(spec: Gemm, slot: str) -> None:
    """Its stride is not looked at, so it does not tell that it is too long."""
    kernel = tw.compile(spec, target="scalar")
    (m, n), f32 = (spec.m, spec.n), np.float32
    assert isinstance(m, int) and isinstance(n, int)
    for k in (0, 3, 4):
        got = kernel(np.ones((m, k), f32), np.ones((k, n), f32, spec.b.order))
        np.testing.assert_array_equal(got, k)
    for c in (None, np.full((m, n), 7, f32)):
        with pytest.raises(ArgumentError, match=rf"too small.*(?s:.*)got: {slot} == 5") as caught:
            kernel(np.ones((m, 5), f32), np.ones((5, n), f32, spec.b.order), c)
        assert "at most 4" in str(caught.value)
        assert c is None or np.all(c == 7)


def test_an_output_that_is_made_is_held() -> None:
    kernel = tw.compile(Gemm(4, N, 2, ldc=6), target="scalar")
    a = np.ones((4, 2), np.float32)
    assert kernel(a, np.ones((2, 6), np.float32)).shape == (4, 6)
    with pytest.raises(ArgumentError, match=r"c's leading dimension is too small(?s:.*)n == 7"):
        kernel(a, np.ones((2, 7), np.float32))


def test_lines_of_flat_operands_are_held() -> None:
    kernel = tw.compile(Gemm(2, N, 3, ldb=7, batch=tw.Offsets(1, [0], [0])), target="scalar")
    flat = np.ones(60, np.float32)
    np.testing.assert_array_equal(kernel(flat, flat, np.ones((2, 7), np.float32)), 3)
    with pytest.raises(ArgumentError, match=r"b's leading dimension is too small(?s:.*)n == 8"):
        kernel(flat, flat, np.ones((2, 8), np.float32))
