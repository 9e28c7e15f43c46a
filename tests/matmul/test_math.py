"""``tw.matmul(math="bf16")``: float32 is rounded to bf16 on request only; B is packed or not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError, TargetError
from tilewright.generate import plan_for
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.matmul.asked import routes_of
from tilewright.runtime.matmul.families import Family, Options, class_of, schedule_of, spec_of

ALWAYS: Any = ("bf16", "always")
F32 = ("f32", "f32", "f32")
#: Orders of A, B and C: the contiguous axis of each.
AXES: Any = ((1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 0, 0))


def rounded(x: Any) -> Any:
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


@pytest.mark.twice
@pytest.mark.parametrize("deterministic", [False, True])
def test_operands_are_rounded_and_sums_are_not(deterministic: bool) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in ((33, 48, 64), (1, 70, 200))[: 1 if deterministic else 2]:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        right, exact = rounded(a) @ rounded(b), a.astype(np.float64) @ b.astype(np.float64)
        scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        packed = tw.pack(b, math=ALWAYS)
        for given in (b, packed):
            got = tw.matmul(a, given, math=ALWAYS, deterministic=deterministic, threads=1)
            assert (np.abs(got - right) <= (k + 4) * 2**-23 * scale).all()
            assert (np.abs(got - exact) <= (2**-7 + 2**-16 + (k + 4) * 2**-23) * scale).all()
            assert (np.abs(got - exact) > 2**-13 * scale).any()
    stack = rng.standard_normal((4, 3, 3)).astype(np.float32)
    got = tw.matmul(stack, stack, math=ALWAYS, threads=1)
    assert np.allclose(got, rounded(stack) @ rounded(stack), rtol=0, atol=1e-5)


def test_a_second_call_is_decided_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((9, 9)).astype(np.float32) for _ in range(2))
    first = tw.matmul(a, b, math=ALWAYS)
    monkeypatch.setattr("tilewright.runtime.matmul.product._general", None)
    assert (tw.matmul(a, b, math=ALWAYS) == first).all()
    assert routes_of(Options(math=ALWAYS)) is not routes_of(Options())


@pytest.mark.parametrize("target", ["avx512+vnni+bf16", "amx", "neon+bf16", "sme"])
def test_every_class_has_a_kernel_that_rounds(target: str) -> None:
    """No class reads operands of f32 as they are, and each spec says so."""
    for axes in AXES:
        for sizes in ((1, 64, 64), (64, 1, 64), (8, 300, 300), (300, 8, 300), (400, 400, 400)):
            options = Options(threads=1, target=target, math="bf16")
            found = class_of(*sizes, F32, options, axes)
            assert "along k" not in found.shape
            family = Family(F32, axes, found, options)
            spec = spec_of(family)
            assert spec.math == "bf16" and spec.rounded == ("bf16", "bf16")
            plan = plan_for(spec, schedule_of(family), resolve(target))
            if 1 not in sizes:  # one row is rounded, then multiplied in f32
                assert "bf16" in (plan.staging.product.along, plan.staging.product.across)


def test_what_cannot_be_rounded_is_refused() -> None:
    a = np.ones((3, 3), np.float32)
    with pytest.raises(ArgumentError, match="math must be a type"):
        tw.matmul(a, a, math="f16")  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="math must be a type"):
        tw.matmul(a, a, math=["bf16"])  # type: ignore[call-overload]
    with pytest.raises(SpecError, match="math rounds operands of f32"):
        tw.matmul(a.astype(np.float64), a.astype(np.float64), math="bf16")
    with pytest.raises(SpecError, match="math rounds operands of f32"):
        tw.matmul(a, a, np.empty((3, 3)), math="bf16")
    with pytest.raises(TargetError, match="does not pay on avx2"):
        tw.matmul(a, a, math="bf16", target="avx2")
    with pytest.raises(ArgumentError, match="packed for another math"):
        tw.matmul(a, tw.pack(a), math=ALWAYS)
    with pytest.raises(ArgumentError, match="packed for another math"):
        tw.matmul(a, tw.pack(a, math=ALWAYS))
    low = tw.quantize(np.ones((32, 4), np.float32), tw.Quantized("s8", block=32))
    with pytest.raises(ArgumentError, match="a low-bit matrix has none"):
        tw.pack(low, math="bf16")
