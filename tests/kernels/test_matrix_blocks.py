"""Operands of a matrix unit copied and converted block by block: every element is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

ACROSS, ALONG, BOTH = (
    tw.Schedule(loops="mnmk", block={"m": 32}, pack="a"),
    tw.Schedule(loops="nmnk", block={"n": 32}, pack="ab"),
    tw.Schedule(loops="mnmnk", block={"m": 32, "n": 48}, pack="ab"),
)
IN_K = tw.Schedule(loops="kmnmk", block={"k": 64, "m": 32}, pack="a")
M, N, K = (tw.dim(name) for name in "mnk")
BIAS = tw.relu(tw.acc + tw.Operand("bias", "f32", per="column"))


def matrices(a: str, b: str, orders: str) -> dict[str, Any]:
    return {"a": tw.Matrix(a, orders[0]), "b": tw.Matrix(b, orders[1])}  # type: ignore[arg-type]


@pytest.mark.twice
@pytest.mark.parametrize("schedule", [ACROSS, ALONG, BOTH, IN_K])
@pytest.mark.parametrize(
    "spec",
    [
        tw.Gemm(70, 50, 83, a="bf16", b="bf16"),
        tw.Gemm(70, 50, 130, a="u8", b="s8", beta=1),
        tw.Gemm(33, 70, 65, a="s8", a_zero=3, b_zero=-2),
        tw.Gemm(40, 50, 70, a="bf16", b="bf16", d="bf16", epilogue=BIAS),
        tw.Gemm(70, 40, 33, **matrices("bf16", "bf16", "FC")),
        tw.Gemm(70, 40, 33, **matrices("bf16", "bf16", "CF")),
        tw.Gemm(M, N, K, a="bf16", b="bf16", ldc=tw.dim("ldc")),
        tw.Gemm(M, N, K, a="u8", b="s8"),
    ],
    ids=str,
)
def test_blocks(spec: tw.Gemm, schedule: tw.Schedule) -> None:
    assert tw.compile(spec, schedule, "amx").verify().cases == 3


def test_rows_of_a_packed_b() -> None:
    spec = tw.Gemm(70, 48, 100, a="bf16", b=tw.Packed("bf16"))
    assert tw.compile(spec, ACROSS, "amx").verify().cases == 3


def test_products_of_any_size() -> None:
    rng = np.random.default_rng(5)
    for m, n, k in ((130, 300, 70), (5, 400, 90), (1100, 270, 33)):
        a = rng.integers(0, 9, (m, k), np.uint8)
        b = rng.integers(-9, 9, (k, n), np.int8)
        found = tw.matmul(a, b, threads=1, target="amx")
        np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32))
