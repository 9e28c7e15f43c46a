"""Floating point times integers, and f32 rounded to bf16: float64 says what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases, sampled
from support.compilers import TARGETS
from support.products.fused import Kernels, Trial
from support.products.packed import DTYPES, convert

import tilewright as tw
from tilewright.cli.code import spec_of_code
from tilewright.errors import ArgumentError, SpecError, TargetError
from tilewright.generate import plan_for
from tilewright.plan.formats.lookup import format_of
from tilewright.runtime.machine.host import resolve

Array = np.ndarray[Any, Any]
M = tw.dim("m")
ALWAYS: Any = ("bf16", "always")
#: Types of A and B, and the zero point of the one that is an integer.
TYPES: Any = (
    ("bf16", "s8", "column"), ("u8", "f32", 128), ("f32", "s8", None), ("s16", "f16", "row"),
    ("f16", "u8", -3), ("s8", "bf16", "scalar"), ("f8_e4m3", "u8", None), ("f32", "u16", "column"),
)  # fmt: skip
#: Those of products whose f32 is rounded.
ROUNDED: Any = (
    ("f32", "f32", None), ("f32", "s8", "column"), ("u8", "f32", 128), ("f32", "f32", None),
    ("bf16", "f32", None), ("f32", "u8", -3), ("s8", "f32", "row"),
)  # fmt: skip
#: Rows, columns and K: tails of vectors, of groups along K, and a row alone.
SIZES = ((17, 33, 41), (5, 7, 9), (1, 64, 100), (20, 20, 33))


def trials(math: Any) -> list[Trial]:
    """Every pair of types with some sizes and orders; every other integer B is packed ahead."""
    found = []
    for index, (a, b, zero) in enumerate(TYPES if math is None else ROUNDED):
        m, n, k = SIZES[index % len(SIZES)]
        orders: Any = "CF"[index % 2], "CF"[index // 2 % 2]
        zeros: Any = {"a_zero" if a[0] in "su" else "b_zero": zero}
        ahead = a[0] not in "su" and index % 2 == 0
        of_b: Any = tw.Packed(b) if ahead else tw.Matrix(b, orders[1])
        spec = tw.Gemm(M, n, k, a=tw.Matrix(a, orders[0]), b=of_b, math=math, **zeros)
        found.append(Trial(spec, tw.Schedule(), {"m": m}))
    return found


def drawn(type_: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Integers of the whole range of their type, others between -1 and 1."""
    if DTYPES[type_].kind not in "iu":
        return convert(rng.uniform(-1, 1, shape).astype(np.float32), type_)
    limits = np.iinfo(DTYPES[type_])
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(DTYPES[type_])


@pytest.mark.parametrize("math", [None, ALWAYS], ids=["as given", "rounded"])
@pytest.mark.parametrize("target", TARGETS)
def test_products_are_within_the_bound_of_float64(
    target: str, math: Any, tmp_path: Path, cases: Cases
) -> None:
    """That of f32: integers are exact as factors, and so is what ``math`` has rounded."""
    every = sampled(target, trials(math), 4)
    kernels = Kernels(target, every, tmp_path)
    for i, trial in enumerate(every):
        spec, m, rng = trial.spec, trial.sizes["m"], np.random.default_rng(i)
        assert isinstance(spec.k, int) and isinstance(spec.n, int)
        a, b = drawn(spec.a.type, (m, spec.k), rng), drawn(spec.b.type, (spec.k, spec.n), rng)
        ahead = isinstance(spec.b, tw.Packed)
        given: dict[str, Any] = {"a": a, "b": convert(b, spec.rounded[1]) if ahead else b}
        zeros = {"a": np.zeros((1, 1)), "b": np.zeros((1, 1))}
        for name, lines in (("a", m), ("b", spec.n)):
            zero: Any = getattr(spec, f"{name}_zero")
            if isinstance(zero, str):
                count = 1 if zero == "scalar" else lines
                zero = given[f"{name}_zero"] = rng.integers(-100, 200, count).astype(np.int32)
            if zero is not None:
                zeros[name] = np.atleast_1d(zero).astype(float)
        wide = [x.astype(np.float64) for x in (a, b)]
        if math is not None:
            wide = [x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(float) for x in wide]
        za, zb = zeros["a"].reshape(-1, 1), zeros["b"].reshape(1, -1)
        right = (wide[0] - za) @ (wide[1] - zb)
        size = (np.abs(wide[0]) + np.abs(za)) @ (np.abs(wide[1]) + np.abs(zb))
        got = kernels(i, given, "rear" if i % 2 else "front")["out"]
        assert (np.abs(got - right) <= (spec.k + 4) * 2.0**-23 * size).all(), trial
    cases.count(target, kernels.lab.means, len(every))


def test_a_pack_of_integers_for_an_a_of_floating_point() -> None:
    """In cache as the type that is multiplied; a large B keeps its bytes where loads convert it."""
    for target, type_, k, stored in (
        ("avx512+bf16", "bf16", 64, "bf16"),
        ("avx512+bf16", "bf16", 4096, "bf16"),
        ("avx2", "f32", 64, "f32"),
        ("avx2", "f32", 4096, "s8"),
    ):
        spec = tw.Gemm(M, 96, k, a=type_, b=tw.Packed("s8"))  # type: ignore[arg-type]
        text = format_of(spec, resolve(target)).text
        assert text.startswith(f"s8 as {stored}, {k}x96"), text
    packer = tw.compile(tw.Pack(40, 33, "s8", a="bf16", source="f32"))
    packer.verify(cases=2)


def test_matmul_takes_a_float_and_integers() -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(-1, 1, (9, 40)).astype(np.float32)
    b = rng.integers(-128, 128, (40, 21)).astype(np.int8)
    right, size = a.astype(float) @ b, np.abs(a.astype(float)) @ np.abs(b.astype(float))
    for given in (b, np.asfortranarray(b), tw.pack(b, a="f32")):
        assert (np.abs(tw.matmul(a, given) - right) <= 44 * 2.0**-23 * size).all()
    assert (np.abs(tw.matmul(b.T, a.T) - right.T) <= 44 * 2.0**-23 * size.T).all()
    with pytest.raises(ArgumentError, match="no integers by float64"):
        tw.matmul(a.astype(np.float64), b)


# --- f32 rounded to bf16 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "instruction"),
    [
        ("avx512+bf16", "vdpbf16ps"), ("amx", "tdpbf16ps"), ("neon+bf16", "bfmmla"),
        ("sve256+bf16", "bfmmla"), ("sme", "bfmopa"),
    ],
)  # fmt: skip
def test_rounding_is_for_targets_that_multiply_bf16_faster(target: str, instruction: str) -> None:
    plan = plan_for(tw.Gemm(64, 96, 128, math="bf16"), tw.Schedule(), resolve(target))
    assert plan.staging.product.mnemonic == instruction


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon", "rvv256", "sme+m4", "scalar"])
def test_others_refuse_it_and_say_how_to_have_it(target: str) -> None:
    with pytest.raises(TargetError, match="does not pay on") as raised:
        plan_for(tw.Gemm(64, 96, 128, math="bf16"), tw.Schedule(), resolve(target))
    assert "'always'" in str(raised.value)
    plan_for(tw.Gemm(64, 96, 128, math=ALWAYS), tw.Schedule(), resolve(target))


def test_the_error_is_what_the_docstring_says() -> None:
    """More than that of f32, and no more than two roundings to 8 bits."""
    rng, k = np.random.default_rng(1), 96
    a, b = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in ((20, k), (k, 30)))
    kernel = tw.compile(tw.Gemm(20, 30, k, math=ALWAYS))
    error = np.abs(kernel(a, b) - a.astype(float) @ b)
    size = a.astype(float) @ b
    sums = (k + 4) * 2.0**-23
    assert (error <= (2.0**-7 + 2.0**-16 + sums) * size).all()
    assert error.max() > sums * size.max()
    assert kernel.verify().bound > 2.0**-9


def test_a_packed_b_of_f32_is_that_of_bf16() -> None:
    """Kernels of both read one packed matrix."""
    b = np.random.default_rng(2).normal(size=(64, 40)).astype(np.float32)
    rounded = tw.compile(tw.Gemm(M, 40, 64, b=tw.Packed("f32"), math=ALWAYS))
    halves = tw.compile(tw.Gemm(M, 40, 64, a="bf16", b=tw.Packed("bf16")))
    one, other = rounded.pack_b(b), halves.pack_b(b)
    assert one.format == other.format and (one.data == other.data).all()
    a = b[:, :64].T.copy()
    got = rounded(a, one), halves(a.astype(ml_dtypes.bfloat16), one)
    assert (got[0] == got[1]).all()


_ANY: Any = tw


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: _ANY.Gemm(2, 2, 2, math="f16"), "no type to which operands are rounded"),
        (lambda: _ANY.Gemm(2, 2, 2, a="bf16", math="bf16"), "rounds operands of f32"),
        (lambda: _ANY.Gemm(2, 2, 2, a="f64", math="bf16"), "rounds operands of f32"),
        (lambda: _ANY.Gemm(2, 2, 2, b="s16", math="bf16"), "rounds operands of f32"),
        (lambda: _ANY.Gemm(2, 2, 2, a="f64", b="s8"), "no product of these types"),
        (lambda: _ANY.Gemm(2, 2, 2, a="u8", b=tw.Packed("f32"), a_zero=1), "sums of B, which"),
        (lambda: _ANY.Gemm(2, 2, 2, a="f32", b="s8", a_zero=1), "needs integers in A"),
    ],
)  # fmt: skip
def test_specs_that_mean_nothing(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_a_spec_prints_as_code() -> None:
    for spec in (tw.Gemm(2, 3, 4, math="bf16"), tw.Gemm(2, 3, 4, a="bf16", b="s8", math=None)):
        assert spec_of_code(repr(spec)) == spec
