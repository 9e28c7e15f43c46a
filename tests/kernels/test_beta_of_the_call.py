"""A beta of 0 that is given at the call: C is not part of the results, whatever it holds."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import sampled
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import TilewrightError, VerificationError
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.arguments import samples
from tilewright.runtime.reference.verify import verify
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule

M, N, K = 5, 13, 6
DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "bf16": ml_dtypes.bfloat16,
                          "f16": np.float16}  # fmt: skip
ACC = tw.acc

#: Every way in which C is added: by the update, in an epilogue, before partial sums.
CASES: dict[str, tuple[dict[str, Any], Schedule]] = {
    "plain": ({}, Schedule()),
    "alpha": ({"alpha": "scalar"}, Schedule()),
    "f64": ({"a": "f64", "b": "f64"}, Schedule()),
    "columns": ({"order": "F"}, Schedule()),
    "bounced": ({}, Schedule(tails="bounce")),
    "bounced across": ({"c": tw.Matrix("f32", "F")}, Schedule(tails="bounce")),
    "partial sums": ({}, Schedule(loops="knmk", block={"k": 4})),
    "batch": ({"batch": tw.Strided(1)}, Schedule(loops="bnmk")),
    "d": ({"d": "f32"}, Schedule()),
    "small c": ({"c": "bf16"}, Schedule()),
    "smaller c": ({"c": "f16", "d": "f32"}, Schedule()),
    "epilogue": ({"epilogue": tw.relu(ACC)}, Schedule()),
    "scaled": ({"a": "bf16", "b": "bf16", "d": "f32", "a_scale": 1.0}, Schedule()),
}


def spec_of(name: str) -> Gemm:
    return Gemm(M, N, K, beta="scalar", **CASES[name][0])


@pytest.mark.parametrize("target", ["scalar", "avx2", "avx512", "neon", "amx"])
def test_nan_and_infinity_are_not_spread(target: str) -> None:
    names = sampled(target, CASES)
    try:
        kernels = tw.compile_many([(spec_of(name), CASES[name][1], target) for name in names])
    except TilewrightError as error:  # nothing that compiles for it, or runs it, is here
        pytest.skip(str(error))
    for name, kernel in zip(names, kernels, strict=True):
        spec = kernel.spec
        assert isinstance(spec, Gemm)
        stack = (1,) if spec.batch is not None else ()
        a = np.ones((*stack, M, K), DTYPES[spec.a.type])
        b = np.ones((*stack, K, N), DTYPES[spec.b.type])
        if spec.a.order == "F":
            a, b = np.asfortranarray(a), np.asfortranarray(b)
        factors = {"alpha": 1} if spec.alpha == "scalar" else {}
        for held in (np.nan, np.inf, -np.inf):
            for beta in (0, 0.0, -0.0, 1e-60 if spec.type == "f32" else 0):  # as f32 it is 0
                c = np.full((M, N), held, DTYPES[spec.c.type], order=spec.c.order)
                got = kernel(a, b, c=c, beta=beta, **factors)
                np.testing.assert_array_equal(np.asarray(got, np.float64), K, err_msg=name)
            c = np.full((M, N), held, DTYPES[spec.c.type], order=spec.c.order)
            got = kernel(a, b, c=c, beta=0.5, **factors)
            want = 0 if name == "epilogue" and held == -np.inf else held
            np.testing.assert_array_equal(np.asarray(got, np.float64), want, err_msg=name)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["scalar", "avx2", "avx512", "neon"])
def test_the_interpreter_leaves_c_out(name: str, target: str) -> None:
    one = Interpreted(spec_of(name), CASES[name][1], resolve(target))
    *_, held = samples(one.spec, one.signature, 3, 0)
    c = held.arrays[one.signature.arrays.index(one.signature.array("c"))]
    assert held.scalars["beta"] == 0 and np.all(np.isnan(c))
    one.run(held)


class Reading:
    """A kernel that adds C a little where it must not be read."""

    def __init__(self, kernel: tw.Kernel) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, **named: Any) -> Any:
        return self._kernel(**{**named, "beta": named["beta"] or 1e-30})


def test_verify_sees_a_c_that_is_read() -> None:
    kernel = tw.compile(Gemm(M, N, K, beta="scalar"), target="scalar")
    kernel.verify(cases=6)
    verify(Reading(kernel), 2, 0)
    with pytest.raises(VerificationError, match=r"is wrong at c\[0, 0\]") as caught:
        verify(Reading(kernel), 3, 0)
    assert "nan) (case 2" in str(caught.value)


def test_c_is_not_compared_where_it_is_never_read() -> None:
    """A literal beta costs nothing: no comparison, and no C to read."""
    texts = {
        beta: tw.compile(Gemm(M, N, K, beta=beta), target="scalar").source
        for beta in (0, 1, 0.5, "scalar")
    }
    assert [beta for beta, text in texts.items() if "no_c" in text] == ["scalar"]
