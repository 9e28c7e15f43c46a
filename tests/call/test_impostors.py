"""Kernels that compute something a little else than they say: verify finds each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import VerificationError
from tilewright.runtime.reference.verify import verify
from tilewright.spec.expression import Operand, acc, acc2
from tilewright.spec.gemm import Gemm
from tilewright.spec.postops import gelu_erf, gelu_tanh, relu
from tilewright.spec.reductions import row_absmax, row_max, row_sum
from tilewright.spec.signature import signature

BIAS = Operand("bias", "f32", "column")
QUANTISED: dict[str, Any] = {"a": "u8", "b": "s8", "d": "s8", "b_scale": "column"}


class Impostor:
    """A kernel that says it computes ``spec``."""

    def __init__(self, kernel: tw.Kernel, spec: Gemm) -> None:
        self._kernel, self.spec = kernel, spec
        self.signature = signature(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, **named: Any) -> Any:
        return self._kernel(**named)


def said(**changes: Any) -> Any:
    return {"m": 6, "n": 5, "k": 40, **changes}


#: What a kernel computes, and what it says.
PAIRS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (said(a="u8", b="s8", a_zero=3), said(a="u8", b="s8", a_zero=2)),
    (said(a="u8", b="s8", b_zero=-3), said(a="u8", b="s8")),
    (said(a="u8", b="s8", d="s8", d_zero=1), said(a="u8", b="s8", d="s8", d_zero=0)),
    (said(**QUANTISED, d_scale=500.0), said(**QUANTISED, d_scale=501.0)),
    (said(**QUANTISED, d_scale=500.0, d_zero=1), said(**QUANTISED, d_scale=500.0)),
    (said(a="u8", b="s8", d="f32", a_scale=1.0), said(a="u8", b="s8", d="f32", a_scale=1.00001)),
    (said(a="s8", alpha=2), said(a="s8", alpha=3)),
    (said(a="s8", beta=1), said(a="s8", beta=2)),
    (said(alpha=1.0), said(alpha=1.001)),
    (said(a="bf16", d="bf16", a_scale=1.0), said(a="bf16", d="bf16", a_scale=1.01)),
    (said(d="f8_e5m2", a_scale=1.0), said(d="f8_e5m2", a_scale=1.2)),
    (said(epilogue=acc + BIAS), said(epilogue=acc - BIAS)),
    (said(epilogue=relu(acc) + BIAS), said(epilogue=relu(acc + BIAS))),
    (said(epilogue=relu(acc)), said(epilogue=relu(acc, alpha=0.001))),
    (said(epilogue=gelu_erf(acc)), said(epilogue=gelu_tanh(acc))),
    (said(a="u8", b="s8", d="s8", d_scale=500.0, epilogue=acc + BIAS),
     said(a="u8", b="s8", d="s8", d_scale=500.0, epilogue=acc - 500 * BIAS)),
    (said(b2="f32", epilogue=acc + acc2), said(b2="f32", epilogue=acc2 + acc2)),
    (said(a="u8", b="s8", b2="s8", d="s32", epilogue=acc - acc2, beta=1),
     said(a="u8", b="s8", b2="s8", d="s32", epilogue=acc - acc2, beta=2)),
    (said(outputs={"most": row_max(acc)}), said(outputs={"most": row_absmax(acc)})),
    (said(outputs={"most": row_sum(acc)}), said(outputs={"most": row_sum(relu(acc))})),
    (said(a="s8", outputs={"sum": row_sum(acc)}), said(a="s8", outputs={"sum": row_sum(acc + 1)})),
]  # fmt: skip


@pytest.mark.parametrize(("is_", "says"), PAIRS, ids=range(len(PAIRS)))
def test_an_impostor_is_found(is_: dict[str, Any], says: dict[str, Any]) -> None:
    real, claimed = Gemm(**is_), Gemm(**says)
    kernel = tw.compile(real, target="scalar")
    kernel.verify(4)
    with pytest.raises(VerificationError, match="is wrong at"):
        verify(Impostor(kernel, claimed), 4, 0)


def test_an_input_that_is_written_is_found() -> None:
    spec = Gemm(4, 3, 5, beta=1, d="f32")
    kernel = tw.compile(spec, target="scalar")

    class Writes(Impostor):
        def __call__(self, **named: Any) -> Any:
            out = super().__call__(**named)
            named["c"][...] = out
            return out

    with pytest.raises(VerificationError, match="writes c, an input"):
        verify(Writes(kernel, spec), 1, 0)


def test_what_a_verification_says() -> None:
    kernel = tw.compile(Gemm(6, 5, 40, a="u8", b="s8"), target="scalar")
    seen = kernel.verify()
    assert (seen.max_error, seen.bound) == (0, 0)
    kernel = tw.compile(Gemm(6, 5, 40, **QUANTISED, d_scale="scalar"), target="scalar")
    seen = kernel.verify()
    assert 0 < seen.max_error <= seen.bound <= 1
    assert np.isfinite(tw.compile(Gemm(4, 4, 4, d="f8_e4m3"), target="scalar").verify().bound)
