"""Kernels as users hold them: attributes, binding, timing, pickling, emulation."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import re
import weakref
from typing import Any

import numpy as np
import pytest
from support.processes import python

import tilewright as tw
from tilewright import nn
from tilewright.errors import ArgumentError, TargetError
from tilewright.runtime.machine import host
from tilewright.spec.gemm import Gemm
from tilewright.spec.transpose import Transpose
from tilewright.targets import load

EMULATED = "neon" if host.machine() != "aarch64" else "avx2"


def runs(target: str) -> bool:
    try:
        return bool(host.means(load(target)))
    except TargetError:
        return False


emulation = pytest.mark.skipif(not runs(EMULATED), reason=f"nothing here runs {EMULATED}")


def inputs(m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.random((m, k), np.float32), rng.random((k, n), np.float32)


@pytest.fixture(scope="module")
def kernel() -> tw.Kernel:
    return tw.compile(Gemm(16, 16, 16))


# -- what a kernel says of itself ---------------------------------------------------------------


def test_attributes(kernel: tw.Kernel) -> None:
    assert kernel.spec == Gemm(16, 16, 16)
    assert kernel.requested == tw.Schedule()
    assert kernel.target == host.resolve("host").name
    assert kernel.emulated is None
    assert kernel.flops == 2 * 16**3
    assert kernel.name in kernel.source
    assert kernel.name in repr(kernel)
    target = kernel.target.replace("+", "_")
    assert re.fullmatch(rf"gemm_f32_16x16x16_ccc_{target}_[0-9a-f]{{8}}", kernel.name)


def test_flops_of_runtime_sizes() -> None:
    kernel = tw.compile(Gemm(tw.dim("m"), 3, 4, batch=tw.Strided(5)), target="scalar")
    (m,) = kernel.flops.free_symbols
    assert kernel.flops.subs(m, 10) == 2 * 10 * 3 * 4 * 5
    assert tw.compile(Transpose(4, 4), target="scalar").flops == 0


def test_flops_and_bench_count_both_products_of_a_gated_kernel() -> None:
    gated = tw.compile(Gemm(tw.dim("m"), 3, 4, b2="f32", epilogue=tw.acc * tw.acc2))
    (m,) = gated.flops.free_symbols
    assert gated.flops.subs(m, 10) == 2 * 2 * 10 * 3 * 4
    timing = gated.bench(seconds=0.01, m=10)
    assert timing.gflops == pytest.approx(2 * 2 * 10 * 3 * 4 / timing.median / 1e9)


def test_the_address_is_of_the_declared_function(kernel: tw.Kernel) -> None:
    a, b = inputs(16, 16, 16)
    c = np.empty((16, 16), np.float32)
    declared = f"void {kernel.name}(const float *a, const float *b, float *c);"
    assert kernel.c_declaration == declared
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(kernel.address)
    function(a.ctypes.data, b.ctypes.data, c.ctypes.data)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)


def test_the_declaration_has_every_parameter() -> None:
    spec = Gemm(tw.dim("m"), 4, 4, a="f64", beta="scalar", batch=tw.Addresses(tw.dim("count")))
    text = tw.compile(spec, target="scalar").c_declaration
    assert "(const double *const *a, const double *const *b, double *c, int64_t m, " in text
    assert text.endswith("int64_t count, double beta);")


def test_assembly_is_of_this_kernel(kernel: tw.Kernel) -> None:
    text = kernel.assembly()
    assert f"<{kernel.name}>:" in text
    assert f"<{kernel.name}_scratch_bytes>:" not in text


# -- binding and timing -------------------------------------------------------------------------


def test_bind(kernel: tw.Kernel) -> None:
    a, b = inputs(16, 16, 16)
    bound = kernel.bind(a, b)
    out = vars(bound)["out"]
    assert bound() == 0
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)
    a[...] = 0
    bound()
    np.testing.assert_array_equal(out, 0)
    with pytest.raises(TypeError):
        bound(a)


def test_a_bound_call_keeps_its_arrays() -> None:
    kernel = tw.compile(Gemm(2, 2, 2, batch=tw.Addresses(3), beta="scalar"), target="scalar")
    arrays = [np.ones((2, 2), np.float32) for _ in range(6)]
    c = np.ones((2, 2), np.float32)
    bound = kernel.bind(arrays[:3], arrays[3:], c, beta=1)
    watched = weakref.ref(arrays[0])
    del arrays
    gc.collect()
    bound()
    np.testing.assert_array_equal(c, 7)
    assert watched() is not None
    del bound
    gc.collect()
    assert watched() is None


#: In a process of its own, which nothing else watches.
EVENTS = """
import sys
import numpy as np, tilewright as tw
a, b = np.random.default_rng(0).random((2, 16, 16), np.float32)
c = np.empty((16, 16), np.float32)
kernel = tw.compile(tw.Gemm(16, 16, 16), target="scalar")
bound = kernel.bind(a, b, c)
calls = [lambda: kernel(a, b, c), lambda: bound(), lambda: kernel(a, b, out=c)]
for call in calls * 2:
    seen = []
    def watch(frame, event, argument):
        if event == "call":
            seen.append(frame.f_code.co_name)
        if event == "c_call":
            seen.append(argument.__name__)
    sys.setprofile(watch)
    call()
    sys.setprofile(None)
    print(*seen[1:-1])
"""


def test_a_call_runs_nothing_beside_the_check_in_c() -> None:
    """What calls cost beside numpy's is measured by ``python -m benchmarks calls``."""
    seen = python(EVENTS).splitlines()[-3:]
    checked = "__call__ call"
    assert seen == [checked, "", checked]


@pytest.mark.parametrize("cold", [False, True])
def test_bench(kernel: tw.Kernel, cold: bool) -> None:
    timing = kernel.bench(cold=cold, seconds=0.02)
    assert 0 < timing.best <= timing.median
    assert timing.spread >= 0
    assert timing.gflops == pytest.approx(kernel.flops / timing.median / 1e9)
    with pytest.raises(ArgumentError, match="seconds must be positive"):
        kernel.bench(seconds=0)


@pytest.fixture(scope="module")
def of_any_rows() -> tw.Kernel:
    """Its rows are called m in C, and rows by who wrote the spec."""
    return tw.compile(Gemm(tw.dim("rows", multiple_of=4, max=64), 16, tw.dim("k")))


def test_sizes_of_the_call_are_given_to_what_times_and_estimates(of_any_rows: tw.Kernel) -> None:
    timing = of_any_rows.bench(seconds=0.01, m=8, k=4)
    assert timing.gflops == pytest.approx(2 * 8 * 16 * 4 / timing.median / 1e9)
    said = of_any_rows.explain(measure=True, rows=8, k=4)
    assert "Estimate of one call with m = 8, k = 4" in said
    assert re.search(r"measured +\d+ cycles in cache", said)
    assert "with m = 64, k = 64" in of_any_rows.explain()
    assert not re.search(r"measured +\d+ cycles", of_any_rows.explain())


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ({"n": 16}, "'n' is no size of the call.*got: n=16.*expected: rows, k, m"),
        ({"m": 6}, "m cannot be that.*got: 6.*expected: 1 to 64, a multiple of 4"),
        ({"k": 0}, "k cannot be that.*expected: 1 to"),
        ({"k": "4"}, "k cannot be that"),
        ({"m": 8, "rows": 12}, "rows is one size.*got: 8 and 12"),
    ],
    ids=str,
)
def test_sizes_that_the_call_cannot_have(
    of_any_rows: tw.Kernel, sizes: dict[str, Any], text: str
) -> None:
    for ask in (of_any_rows.explain, of_any_rows.bench):
        with pytest.raises(tw.SpecError, match=f"(?s){text}"):
            ask(**sizes)


@pytest.mark.parametrize(
    ("spec", "title"),
    [
        (Transpose(8, 8), "Time of one call"),
        (tw.network(nn.softmax).of(x=tw.Tensor("f32", (4, 64))), "Estimate of one call"),
    ],
    ids=["transpose", "softmax"],
)
def test_what_is_no_product_is_measured_too(spec: tw.Spec, title: str) -> None:
    section = tw.compile(spec).explain(measure=True).split(f"\n\n{title}\n")[1]
    assert re.search(r"^  measured +[\d.]+ [nu]s in cache, [\d.]+ GB/s$", section, re.MULTILINE)


# -- pickling -------------------------------------------------------------------------------------


def test_kernels_pickle(kernel: tw.Kernel) -> None:
    for twin in (pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel), copy.copy(kernel)):
        assert (twin.name, twin.spec, twin.requested) == (
            kernel.name,
            kernel.spec,
            kernel.requested,
        )
        a, b = inputs(16, 16, 16)
        np.testing.assert_array_equal(twin(a, b), kernel(a, b))


# -- emulation ----------------------------------------------------------------------------------


@emulation
def test_an_emulated_kernel() -> None:
    kernel = tw.compile(
        Gemm(6, 5, 4, ldc=tw.dim("ldc"), beta=1, batch=tw.Offsets(2)), target=EMULATED
    )
    assert kernel.emulated in ("qemu", "header")
    assert kernel.emulated in repr(kernel)
    kernel.verify()
    for use in (
        lambda: kernel.address,
        kernel.bench,
        kernel.profile,
        lambda: kernel.bind(1),
    ):
        with pytest.raises(TargetError, match=r"needs a CPU with"):
            use()
    with pytest.raises(ArgumentError):
        kernel(1, 2, 3)
    twin = pickle.loads(pickle.dumps(kernel))
    assert twin.emulated == kernel.emulated


@emulation
def test_an_emulated_output_keeps_its_padding() -> None:
    kernel = tw.compile(Gemm(3, 5, 4, ldc=tw.dim("ldc")), target=EMULATED)
    whole = np.full((3, 9), np.nan, np.float32)
    a, b = inputs(3, 5, 4)
    kernel(a, b, whole[:, 2:7])
    np.testing.assert_allclose(whole[:, 2:7], a @ b, rtol=1e-5)
    assert np.isnan(whole[:, :2]).all()
    assert np.isnan(whole[:, 7:]).all()


@emulation
def test_an_emulated_transposition_in_place() -> None:
    kernel = tw.compile(Transpose(8, 8), target=EMULATED)
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    expected = x.T.copy()
    assert kernel(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


# -- what a caller in C has to know ---------------------------------------------------------------


@pytest.mark.twice
def test_scratch_memory_is_told_before_a_call() -> None:
    m, k = tw.dim("rows"), tw.dim("k")
    kernel = tw.compile(tw.Gemm(m, 300, k, a="bf16"), target="scalar")
    told = getattr(ctypes.CDLL(str(kernel.library)), f"{kernel.name}_scratch_bytes")
    told.restype = ctypes.c_int64
    right = told((ctypes.c_int64 * 2)(100, 500))
    assert right > 0 == tw.compile(tw.Gemm(8, 8, 8)).scratch_bytes()
    assert kernel.scratch_bytes(m=100, k=500) == kernel.scratch_bytes(rows=100, k=500) == right
    each = -(-right // 64) * 64
    assert kernel.scratch_bytes(4, m=100, k=500) == 3 * each + right
    with pytest.raises(ArgumentError, match="depends on the sizes of the call: k"):
        kernel.scratch_bytes(m=100)
    with pytest.raises(ArgumentError, match="how many calls"):
        kernel.scratch_bytes(0, m=100, k=500)
    with pytest.raises(tw.SpecError, match="'n' is no size of the call"):
        kernel.scratch_bytes(m=100, k=500, n=300)


@pytest.mark.twice
@emulation
def test_scratch_memory_of_an_emulated_kernel_is_that_of_its_program() -> None:
    from tilewright.generate import program_for
    from tilewright.symbolic import evaluate

    kernel = tw.compile(tw.Gemm(tw.dim("m"), 128, 128, a="bf16"), target=EMULATED)
    right = evaluate(program_for(kernel.plan).scratch, {"m": 90})
    assert kernel.scratch_bytes(m=90) == right > 0


def test_a_kernel_says_whether_b_is_packed_first() -> None:
    plain, packed = (tw.compile(tw.Gemm(4, 4, 4, b=b)) for b in ("f32", tw.Packed("f32")))
    assert not plain.packs_b and packed.packs_b
