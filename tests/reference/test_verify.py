"""A kernel compared with numpy: what is wrong is found, and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.errors import ArgumentError, VerificationError
from tilewright.runtime.reference.gemm import Expected
from tilewright.runtime.reference.likely import Likely
from tilewright.runtime.reference.network import expected_of
from tilewright.runtime.reference.verify import cases_of, verify
from tilewright.spec.gemm import Gemm


@pytest.fixture(scope="module")
def kernel() -> tw.Kernel:
    return tw.compile(Gemm(16, 16, 16))


class Faulty:
    """A kernel whose results are tampered with."""

    def __init__(self, kernel: tw.Kernel, fault: Any) -> None:
        self._kernel, self._fault = kernel, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, **named: Any) -> Any:
        out = self._kernel(**named)
        self._fault(out)
        return out


def verify_faulty(kernel: tw.Kernel, fault: Any) -> None:
    verify(Faulty(kernel, fault), 3, 0)


def test_verify(kernel: tw.Kernel) -> None:
    seen = kernel.verify(cases=4, seed=3)
    assert seen.cases == 4
    assert 0 <= seen.max_error <= seen.bound
    with pytest.raises(ArgumentError, match="verify needs a case"):
        kernel.verify(cases=0)


def test_verify_names_the_first_wrong_element(kernel: tw.Kernel) -> None:
    def off(out: Any) -> None:
        out[2, 5] += 1
        out[3, 0] = np.nan

    with pytest.raises(VerificationError, match=r"wrong at c\[2, 5\]") as caught:
        verify_faulty(kernel, off)
    assert "2 of 256 elements" in str(caught.value)


def test_verify_sees_the_last_bit_of_whole_numbers(kernel: tw.Kernel) -> None:
    def off(out: Any) -> None:
        out[0, 0] = np.nextafter(out[0, 0], np.float32(np.inf))

    with pytest.raises(VerificationError, match=r"c\[0, 0\]"):
        verify_faulty(kernel, off)


def test_verify_sees_what_lies_between_lines() -> None:
    kernel = tw.compile(Gemm(4, 3, 5, ldc=7), target="scalar")

    def spill(out: Any) -> None:
        np.lib.stride_tricks.as_strided(out, (4, 4), out.strides)[1, 3] = 0

    with pytest.raises(VerificationError, match="writes between the lines of c"):
        verify_faulty(kernel, spill)


@pytest.mark.parametrize("beta", [0, 1])
def test_a_case_serves_many_kernels(beta: int) -> None:
    """Its arguments are as they were after each, C among them."""
    first, second = (
        tw.compile(tw.Gemm(4, 8, 5, beta=beta), tw.Schedule(k_unroll=steps)) for steps in (1, 2)
    )
    (case,) = cases_of(first, 1, seed=0)
    before = [memory.copy() for memory in case.held.memory]
    for kernel in (first, second, first):
        error, bound = case.run(kernel)
        assert error <= bound
    for old, memory in zip(before, case.held.memory, strict=True):
        assert old.tobytes() == memory.tobytes()


class Unwritten(Faulty):
    """A kernel that leaves C as it was where an operand has no elements, or is of a given size."""

    def __init__(self, kernel: tw.Kernel, leaves: Any) -> None:
        super().__init__(kernel, None)
        self._leaves = leaves

    def __call__(self, **named: Any) -> Any:
        if not self._leaves(np.shape(named["a"]), np.shape(named["b"])):
            self._kernel(**named)


@pytest.mark.parametrize("beta", [0, "scalar"])
@pytest.mark.parametrize(
    ("spec", "leaves"),
    [
        ({"k": tw.dim("k")}, lambda a, b: a[-1] == 0),
        ({"k": tw.dim("k", multiple_of=4)}, lambda a, b: a[-1] == 4),
        ({"m": tw.dim("m")}, lambda a, b: a[0] == 1),
        ({"n": tw.dim("n", max=31)}, lambda a, b: b[-1] == 31),
        ({"batch": tw.Strided(tw.dim("count"))}, lambda a, b: a[0] == 0),
    ],
    ids=["no k", "least k", "one row", "most columns", "no batch"],
)
def test_verify_tries_the_edges_of_sizes(spec: Any, leaves: Any, beta: Any) -> None:
    kernel = tw.compile(Gemm(**{"m": 3, "n": 5, "k": 7, "beta": beta, **spec}), target="scalar")
    assert kernel.verify(cases=1).cases == 1
    with pytest.raises(VerificationError, match=r"wrong at c\[0, 0\]") as caught:
        verify(Unwritten(kernel, leaves), 1, 0)
    assert "an edge of the sizes" in str(caught.value)


def test_fixed_sizes_have_no_edges(kernel: tw.Kernel) -> None:
    assert len(list(cases_of(kernel, 2, seed=0))) == 2


def _deep(x: Any, w: Any) -> Any:
    q, k, v = nn.heads(nn.linear(x, w.qkv), 2, parts=3)
    y = nn.layer_norm(x + nn.linear(nn.merge(nn.softmax(q @ k.swapaxes(-1, -2)) @ v), w.o))
    return nn.layer_norm(y + nn.linear(tw.gelu_erf(nn.linear(y, w.up)), w.down))


def test_bounds_of_a_deep_network_exclude_wrong_results() -> None:
    """Bounds for all roundings would allow any number after the second normalization."""
    sizes = {"qkv": (24, 72), "o": (24, 24), "up": (24, 96), "down": (96, 24)}
    weights = {key: tw.Tensor("f32", size) for key, size in sizes.items()}
    spec = tw.network(_deep).of(x=tw.Tensor("f32", (tw.dim("rows"), 24)), w=weights)
    rng = np.random.default_rng(0)
    given = {w.name: rng.standard_normal(w.shape) / 5 for w in spec.weights}
    x = rng.standard_normal((9, 24))
    arrays = {name: array.astype(np.float32) for name, array in {"x": x, **given}.items()}
    (right,) = expected_of(spec, arrays, {"rows": 9}).values()
    exact = right.values.value
    assert not right.values.unsure.any()
    for off in (-3e-6, 3e-6):
        assert not right.wrong((exact + off * rng.random(exact.shape)).astype(np.float32)).any()
    assert right.wrong((exact + 0.01).astype(np.float32)).all()
    found = tw.compile(spec).verify(cases=2)
    assert found.unsure == 0
    assert 0 < found.max_error < found.bound < 0.05


def test_likely_bounds_hold_where_errors_cancel_in_the_samples() -> None:
    """The errors of a quotient and of its negation often cancel in all of a few samples."""
    spec = tw.network(lambda x: 0 - x / 13).of(x=tw.Tensor("f64", (1000, 100)))
    x = np.random.default_rng(0).integers(-50, 50, (1000, 100)).astype(np.float64)
    evaluation = Likely(spec, {"x": x}, {})
    right = Expected(evaluation.of(spec.results[0]), "f64")
    assert not right.wrong(-(x / 13)).any()
    assert right.wrong(-(x / 13) * (1 + 2**-48))[x != 0].all()
