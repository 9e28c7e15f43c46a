"""One expression has the same bits on every target, and they are those of the numpy table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS, VECTORS
from support.products.epilogues import CLOSE, value
from support.spellings.floats import between, everywhere, same

from tilewright.errors import ToolchainError
from tilewright.runtime.driver import compile_many
from tilewright.spec.expression import Expression, acc
from tilewright.spec.gemm import Gemm
from tilewright.spec.postops import clip, where
from tilewright.spec.schedule import Schedule

INF, NAN = float("inf"), float("nan")
EXPRESSIONS: dict[str, Expression] = {
    **{name: close[0] for name, close in CLOSE.items()},
    "clip above": clip(acc, -INF, 3),
    "nan below": where(acc < 0, NAN, -INF) / acc,
    "thirds": (acc / 3 + 1e8) - 1e8,
}
LANES = 16
SAMPLE = np.concatenate([everywhere(8), between(-110, 90, 1500), between(-3, 3, 1500)])
SAMPLE = np.where(np.isnan(SAMPLE), np.float32(NAN), SAMPLE)  # none of them signalling
ROWS = SAMPLE[: SAMPLE.size // LANES * LANES].reshape(-1, LANES)


@pytest.mark.twice
@pytest.mark.parametrize("target", TARGETS)
def test_expressions_have_the_same_bits_on_every_target(target: str, cases: Cases) -> None:
    schedule = Schedule(tile=(1, LANES if target in VECTORS else 1))
    specs = [
        Gemm(len(ROWS), LANES, 1, beta=1, d="f32", epilogue=one) for one in EXPRESSIONS.values()
    ]
    try:
        kernels = compile_many([(spec, schedule, target) for spec in specs])
    except ToolchainError as error:
        pytest.skip(str(error))
    zeros = np.zeros((len(ROWS), 1), np.float32), np.ones((1, LANES), np.float32)
    differ = []
    for (name, one), kernel in zip(EXPRESSIONS.items(), kernels, strict=True):
        found: Any = kernel(*zeros, c=ROWS, out=np.zeros_like(ROWS))
        want = value(one, ROWS + np.float32(0))  # the product is +0
        wrong = np.flatnonzero(~same(found, want))
        differ += [
            f"{name} of {ROWS.flat[i]!r}: {found.flat[i]!r}, {want.flat[i]!r} by numpy"
            for i in wrong[:3]
        ]
        cases.count(target, str(kernel.emulated or "native"), 1)
    assert not differ, "\n".join(differ)
