"""Networks with products of other types than f32: bf16, f16, integers, low-bit weights."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn
from tilewright.cli.code import spec_of_code

ROWS, T = tw.dim("rows"), tw.Tensor
Q4 = tw.Quantized("s4", scale="f16", block=16)


def of(function: Callable[..., Any], type_: Any, columns: int, w: Any) -> tw.Network:
    return tw.network(function).of(x=T(type_, (ROWS, columns)), w=w)


def rounded(x: Any, w: Any) -> Any:
    """Each rounding that the function asks for is in an epilogue."""
    h = tw.relu(nn.linear(x, w.a, w.b)).astype("bf16")
    return tw.relu(nn.linear(h, w.c, w.d, type="f32")) * (h @ w.c)


def half(x: Any, w: Any) -> Any:
    return ((x @ w.a).astype("f32") + w.b).astype("f16") @ w.c


def static(x: Any, w: Any) -> Any:
    h = tw.relu(nn.dequantize(x, 0.05, 3) @ nn.dequantize(w.a, w.sa) + w.b)
    h = nn.quantize(h, 0.1, zero=7, type="u8")
    return nn.dequantize(h, 0.1, 7) @ nn.dequantize(w.c, w.sc, -2)


def dynamic(x: Any, w: Any) -> Any:
    scale = nn.max(abs(x), keepdims=True) * (1 / 127)
    return nn.dequantize(nn.quantize(x, scale), scale) @ nn.dequantize(w.a, w.sa)


def floats(type_: Any) -> dict[str, tw.Tensor]:
    return {"a": T(type_, (13, 40)), "b": T("f32", 40), "c": T(type_, (40, 24)), "d": T("f32", 24)}


BYTES = {"a": T("s8", (13, 40)), "sa": T("f32", 40), "b": T("f32", 40),
         "c": T("s8", (40, 24)), "sc": T("f32", (1, 24))}  # fmt: skip
LOW = {"a": T(Q4, (32, 40)), "b": T("f32", 40)}
SPECS = {
    "rounded": of(rounded, "bf16", 13, floats("bf16")),
    "half": of(half, "f16", 13, {k: v for k, v in floats("f16").items() if k != "d"}),
    "static": of(static, "u8", 13, BYTES),
    "dynamic": of(dynamic, "f32", 13, {"a": BYTES["a"], "sa": BYTES["sa"]}),
    "low": of(lambda x, w: tw.relu(x @ w.a + w.b), "f32", 32, LOW),
    "f64": of(lambda x, w: x @ w.a, "f64", 13, {"a": T("f64", (13, 9))}),
    "mixed": of(lambda x, w: x @ w.a, "f32", 13, {"a": T("bf16", (13, 9))}),
}


@pytest.mark.parametrize("target", ["host", "avx2", "neon+dotprod"])
def test_networks_of_all_types_are_verified(target: str, cases: Cases) -> None:
    nets = tw.compile_many([(spec, None, target) for spec in SPECS.values()])
    for net in nets:
        assert net.verify(cases=2).cases == 2
    cases.count(target, "native" if nets[0].emulated is None else "qemu", 2 * len(nets))


def test_they_are_the_python_that_makes_them() -> None:
    for spec in SPECS.values():
        for other in (pickle.loads(pickle.dumps(spec)), spec_of_code(repr(spec))):
            assert other == spec and hash(other) == hash(spec)


def test_dequantize_product_quantize_is_one_stage() -> None:
    rng = np.random.default_rng(1)
    w: dict[str, Any] = {
         "a": rng.integers(-128, 128, (13, 40), np.int8), "b": np.float32(rng.random(40)),
         "sa": np.float32(rng.uniform(0.01, 0.02, 40)),
         "c": rng.integers(-128, 128, (40, 24), np.int8),
         "sc": np.float32(rng.uniform(0.01, 0.02, (1, 24)))}  # fmt: skip
    net = tw.compile(of(static, "u8", 13, w))
    text = net.explain(rows=8)
    assert text.count("\nstage ") == 2 and "value0: 40 * rows_ bytes" in text
    x = rng.integers(0, 256, (9, 13), np.uint8)
    sums: Any = (x.astype(np.int64) - 3) @ w["a"].astype(np.int64)
    one = np.maximum(sums.astype(np.float32) * np.float32(0.05) * w["sa"] + w["b"], 0)
    h = np.clip(np.rint(one * np.float32(10) + np.float32(7)), 0, 255).astype(np.int64)
    sums = (h - 7) @ (w["c"].astype(np.int64) + 2)
    right = sums.astype(np.float32) * np.float32(0.1) * w["sc"]
    np.testing.assert_array_equal(net(x, net.pack(w)), right)


def test_a_result_has_the_type_of_x_unless_the_function_says_otherwise() -> None:
    w = {"a": T("bf16", (4, 5)), "b": T("f32", 5)}

    def wide(x: Any, w: Any) -> Any:
        return nn.product(x, w.a, type="f32"), nn.linear(x, w.a, w.b, "f32")

    narrow = of(lambda x, w: (x @ w.a, nn.linear(x, w.a, w.b)), "bf16", 4, w)
    whole = of(lambda x, w: x @ w.a, "u8", 4, {"a": T("s8", (4, 5))})
    for spec, type_ in ((narrow, "bf16"), (of(wide, "bf16", 4, w), "f32"), (whole, "s32")):
        assert {each.tensor.type for each in spec.results if each.tensor} == {type_}


def test_low_bit_weights_are_packed_and_checked() -> None:
    rng = np.random.default_rng(2)
    plain = np.float32(rng.standard_normal((32, 40)))
    low = tw.quantize(plain, Q4)
    w = {"a": low, "b": np.ones(40, np.float32)}
    net = tw.compile(of(lambda x, w: x @ w.a + w.b, "f32", 32, w))
    x = np.float32(rng.standard_normal((3, 32)))
    right = x.astype(np.float64) @ low.dequantize() + 1
    np.testing.assert_allclose(net(x, net.pack(w)), right, rtol=1e-5, atol=1e-5)
    with pytest.raises(tw.ArgumentError, match="low-bit matrix of another format"):
        net.pack({**w, "a": plain})


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, w: nn.dequantize(x, w.k) @ nn.dequantize(w.a, 0.5), "scale of x varies"),
        (lambda x, w: nn.dequantize(x, 2) @ nn.dequantize(w.a, w.rows), "of the weight varies"),
        (lambda x, w: x.astype("bf16") @ nn.dequantize(w.a, w.n), "x is not"),
        (lambda x, w: x @ w.a + x.astype("s8") @ w.a, "packed for one type"),
        (lambda x, w: x @ w.low, "multiplied by floating point"),
        (lambda x, w: (x @ w.a, w.low + 1), "in products alone"),
    ],
)
def test_scales_and_types_that_do_not_fit_are_refused(function: Any, says: str) -> None:
    w = {"a": T("s8", (16, 5)), "k": T("f32", 16), "rows": T("f32", (16, 1)), "n": T("f32", 5),
         "low": T(Q4, (16, 40))}  # fmt: skip
    with pytest.raises(tw.SpecError, match=says):
        of(function, "u8", 16, w)
