"""Kernels as users hold them: attributes, binding, pickling, libraries of many, warm starts."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import re
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import CompilerWatch

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError, TargetError, VerificationError
from tilewright.runtime import cache, driver, host
from tilewright.spec import Gemm, Transpose
from tilewright.targets import load

EMULATED = "neon" if host.machine() != "aarch64" else "avx2"


def runs(target: str) -> bool:
    try:
        return bool(host.means(load(target)))
    except TargetError:
        return False


emulation = pytest.mark.skipif(not runs(EMULATED), reason=f"nothing here runs {EMULATED}")


def python(code: str) -> str:
    """What ``code`` prints in a new process, which may keep compiled modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def inputs(m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.random((m, k), np.float32), rng.random((k, n), np.float32)


@pytest.fixture(scope="module")
def kernel() -> tw.Kernel:
    return tw.compile(Gemm(16, 16, 16))


# -- what a kernel says of itself ---------------------------------------------------------------


def test_attributes(kernel: tw.Kernel) -> None:
    assert kernel.spec == Gemm(16, 16, 16)
    assert kernel.schedule == tw.Schedule()
    assert kernel.target == host.resolve("host").name
    assert kernel.emulated is None
    assert kernel.flops == 2 * 16**3
    assert kernel.name in kernel.source
    assert kernel.name in repr(kernel)
    assert re.fullmatch(rf"gemm_f32_16x16x16_ccc_{kernel.target}_[0-9a-f]{{8}}", kernel.name)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Gemm(64, tw.dim("n"), 3, a="f64", order="F", beta=1), "gemm_f64_64xNx3_fff_beta1_scalar"),
        (Gemm(4, 4, 4, b=tw.Matrix("f32", "F"), beta="scalar"), "gemm_f32_4x4x4_cfc_beta_scalar"),
        (Gemm(4, 4, 4, batch=tw.Strided(3)), "gemm_f32_4x4x4_ccc_s3_scalar"),
        (Gemm(4, 4, 4, batch=tw.Offsets(tw.dim("i"))), "gemm_f32_4x4x4_ccc_oN_scalar"),
        (Gemm(4, 4, 4, batch=tw.Addresses(3)), "gemm_f32_4x4x4_ccc_p3_scalar"),
        (Transpose(8, tw.dim("cols"), "f64"), "transpose_f64_8xC_scalar"),
    ],
)
def test_names_say_what_kernels_are(spec: Any, name: str) -> None:
    made = driver.kernel_name(spec, load("scalar"), "0123456789abcdef")
    assert made == f"{name}_01234567"


def test_flops_of_runtime_sizes() -> None:
    kernel = tw.compile(Gemm(tw.dim("m"), 3, 4, batch=tw.Strided(5)), target="scalar")
    (m,) = kernel.flops.free_symbols
    assert kernel.flops.subs(m, 10) == 2 * 10 * 3 * 4 * 5
    assert tw.compile(Transpose(4, 4), target="scalar").flops == 0


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


#: In a process of its own: the tests' audit hook is called for every id().
RATIOS = """
import timeit
import numpy as np, tilewright as tw
a, b = np.random.default_rng(0).random((2, 16, 16), np.float32)
c = np.empty((16, 16), np.float32)
kernel = tw.compile(tw.Gemm(16, 16, 16))
bound = kernel.bind(a, b, c)
codes = ("kernel(a, b, c)", "bound()", "np.matmul(a, b, out=c)")
best = dict.fromkeys(codes, 1e9)
for _ in range(100):
    for code in codes:
        best[code] = min(best[code], timeit.timeit(code, number=300, globals=globals()))
print(*(best[code] / best[codes[2]] for code in codes[:2]))
"""


def test_calls_cost_less_than_half_of_numpys() -> None:
    checked, bound = map(float, python(RATIOS).split())
    assert checked <= 0.45
    assert bound <= 0.2


@pytest.mark.parametrize("cold", [False, True])
def test_bench(kernel: tw.Kernel, cold: bool) -> None:
    timing = kernel.bench(cold=cold, seconds=0.02)
    assert 0 < timing.best <= timing.median < 1e-3
    assert timing.spread >= 0
    assert timing.gflops == pytest.approx(kernel.flops / timing.median / 1e9)
    with pytest.raises(ArgumentError, match="seconds must be positive"):
        kernel.bench(seconds=0)


# -- verification -------------------------------------------------------------------------------


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
    from tilewright.runtime.verification import verify

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


# -- pickling, threads --------------------------------------------------------------------------


def test_kernels_pickle(kernel: tw.Kernel) -> None:
    for twin in (pickle.loads(pickle.dumps(kernel)), copy.deepcopy(kernel), copy.copy(kernel)):
        assert (twin.name, twin.spec, twin.schedule) == (kernel.name, kernel.spec, kernel.schedule)
        a, b = inputs(16, 16, 16)
        np.testing.assert_array_equal(twin(a, b), kernel(a, b))


def test_threads_compile_the_same_kernel() -> None:
    found: list[tw.Kernel] = []
    spec = Gemm(3, 5, 7, alpha=0.25)
    threads = [
        threading.Thread(target=lambda: found.append(tw.compile(spec, target="scalar")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one.name for one in found}) == 1
    assert len(found) == 4


# -- many at once -------------------------------------------------------------------------------


def test_many_in_one_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    specs = [Gemm(m, 4, 3) for m in range(1, 10)]
    kernels = tw.compile_many([*((s, None, "scalar") for s in specs), (specs[0], None, "scalar")])
    assert [one.spec for one in kernels] == [*specs, specs[0]]
    assert len({one.library for one in kernels}) == 1
    for one in kernels:
        one.verify(cases=1)
        assert one.name in one.source
    watch = CompilerWatch()
    sys.addaudithook(watch.audit)
    again = tw.compile(specs[3], target="scalar")
    assert again.library == kernels[3].library
    mixed = tw.compile_many([(specs[5], None, "scalar"), (Gemm(2, 4, 3), None, "scalar")])
    assert mixed[0].library == kernels[5].library
    assert not watch.started
    (new, old) = tw.compile_many([(Gemm(20, 4, 3), None, "scalar"), (specs[0], None, "scalar")])
    assert new.library != old.library == kernels[0].library
    assert cache.lookup(new._entry.key) is not None


def test_requests_may_be_short() -> None:
    one, two = tw.compile_many([Gemm(2, 2, 2), (Gemm(2, 2, 2), tw.Schedule())])
    assert one.name == two.name
    assert tw.compile_many([]) == []


@pytest.mark.parametrize("request_", [3, (Gemm(2, 2, 2), None, "host", 1), ("gemm", None)])
def test_requests_that_are_none(request_: Any) -> None:
    with pytest.raises(SpecError):
        tw.compile_many([request_])


def test_schedules_are_schedules() -> None:
    with pytest.raises(tw.ScheduleError, match=r"a schedule is a tw\.Schedule"):
        tw.compile(Gemm(2, 2, 2), "nmk")  # type: ignore[arg-type]


def test_unknown_targets() -> None:
    with pytest.raises(TargetError, match="unknown target"):
        tw.compile(Gemm(2, 2, 2), target="avx1024")


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


# -- a warm start -------------------------------------------------------------------------------

MODULE = """
import sys, time
import numpy
before = set(sys.modules)
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in
                 ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork") else None)
begin = time.process_time()
import tilewright as tw
KERNELS = [tw.compile(tw.Gemm(8 + i, 4, 4)) for i in range(20)]
spent = time.process_time() - begin
print(spent, *started, *(set(sys.modules) - before))
"""
HEAVY = {
    "sympy", "jinja2", "cffi", "pycparser", "filelock", "archspec", "platformdirs", "subprocess",
    "tilewright.plan", "tilewright.generate", "tilewright.runtime.toolchain",
}  # fmt: skip


def run_module() -> tuple[float, set[str]]:
    spent, *names = python(MODULE).split()
    return float(spent), set(names)


def test_a_warm_start_is_light() -> None:
    run_module()
    runs = [run_module() for _ in range(5)]
    seen = runs[-1][1]
    assert not seen & (HEAVY | {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"})
    assert min(spent for spent, _ in runs) <= 0.060


def test_importing_the_package_loads_nothing() -> None:
    seen = python("import sys, tilewright; print(*sys.modules)").split()
    assert "numpy" not in seen
    assert not [name for name in seen if name.startswith("tilewright.")]


def test_public_names() -> None:
    for name in tw.__all__:
        assert getattr(tw, name) is not None
    assert set(tw.__all__) <= set(dir(tw))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tw.nothing
