"""The ways in which kernels are called: through C with and without headers, and through Python."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, TargetError
from tilewright.runtime.bench import peak
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.call import dispatch
from tilewright.spec.gemm import Gemm
from tilewright.targets import load

M = tw.dim("m")


@pytest.fixture(params=["api", "abi", "python"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kernel made in the test is called in this way."""
    makers = {
        "api": dispatch._api_dispatcher,
        "abi": dispatch._abi_dispatcher,
        "python": dispatch._python_dispatcher,
    }
    if request.param == "api" and not dispatch.has_headers():
        pytest.skip("no Python.h here")
    found = makers[request.param]()
    monkeypatch.setattr(dispatch, "dispatcher", lambda: found)
    return str(request.param)


def test_every_way_of_calling(mode: str) -> None:
    assert dispatch.mode() == mode
    a, b = np.random.default_rng(0).random((2, 16, 16), np.float32)
    kernel = tw.compile(Gemm(16, 16, 16, alpha="scalar", beta="scalar"), target="scalar")
    c = np.ones((16, 16), np.float32)
    assert kernel(a, b, c, alpha=2, beta=0.5) is c
    np.testing.assert_allclose(c, 2 * (a @ b) + 0.5, rtol=1e-5)
    kernel.bind(a, b, c, alpha=1, beta=0)()
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
    with pytest.raises(ArgumentError):
        kernel(a, b, a, alpha=1, beta=1)
    kernel.verify()


def test_every_way_takes_everything(mode: str) -> None:
    """D, a packed B, vectors and numbers by name, types that numpy lacks."""
    spec = Gemm(3, 4, 5, a="u8", b=tw.Packed("s8"), d="bf16", beta=1, b_scale="column",
                a_zero="scalar")  # fmt: skip
    kernel = tw.compile(spec, target="scalar")
    a, b = np.full((3, 5), 3, np.uint8), np.full((5, 4), -2, np.int8)
    c, scale = np.full((3, 4), 6, np.int32), np.array([1, 2, 0.5, 4], np.float32)
    packed, d = kernel.pack_b(b), np.zeros((3, 4), np.uint16)
    for given in (d, None, d):
        got = kernel(a, packed, c, out=given, b_scale=scale, a_zero=1)
        values = got.view(np.uint16).astype(np.uint32) << 16
        np.testing.assert_array_equal(values.view(np.float32), np.tile(-14 * scale, (3, 1)))
    with pytest.raises(ArgumentError, match="b must be a PackedMatrix"):
        kernel(a, b, c, b_scale=scale, a_zero=1)


def test_only_a_loop_in_c_times(mode: str) -> None:
    kernel = tw.compile(Gemm(16, 16, 16), target="scalar")
    if mode != "python":
        assert kernel.bench(seconds=0.01).median > 0
        return
    for what, use in (
        ("bench", lambda: kernel.bench(seconds=0.01)),
        ("the peak", lambda: tw.peak("scalar", "f64")),
        ("the peak", lambda: peak.Meter(kernel.isa, "f32").seconds()),
    ):
        with pytest.raises(TargetError, match=f"^{what} needs a loop in C") as caught:
            use()
        assert "install gcc or clang" in str(caught.value)


def test_without_headers_it_is_abi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(dispatch, "has_headers", lambda: False)
    found = dispatch.dispatcher.__wrapped__()
    assert found.mode == "abi"


def test_headers_of_no_use_lead_to_abi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").write_text("#include <no/such/pyconfig.h>\n")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path / "include"))
    assert dispatch.has_headers()
    assert dispatch.dispatcher.__wrapped__().mode == "abi"


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CC", "/no/such/compiler")
    with pytest.warns(UserWarning, match="called through Python"):
        found = dispatch.dispatcher.__wrapped__()
    assert found.mode == "python"


def test_an_unknown_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = dict.fromkeys(dispatch._TYPES, lambda *_: 0)
    with pytest.raises(tw.TilewrightError, match="laid out in an unknown way"):
        dispatch._checked("abi", functions)


#: Takes a kernel's place, and says in its C whether the thread that runs it holds the lock.
HOLDER = """
#include <stdint.h>
int (*holds_the_lock)(void);
void holder(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch);
void holder(void *const *arrays, const int64_t *sizes, const double *scalars, void *scratch)
{
    (void)sizes, (void)scalars, (void)scratch;
    *(float *)arrays[2] = (float)holds_the_lock();
}
"""


def test_kernels_run_without_the_interpreters_lock(mode: str, tmp_path: Path) -> None:
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    path = compile_library(HOLDER, target, compiler, tmp_path, "holder")
    place = ctypes.c_void_p.in_dll(ctypes.CDLL(str(path)), "holds_the_lock")
    place.value = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p).value
    kernel = tw.compile(Gemm(1, 1, 1), target="scalar")
    a, b, c = np.full((3, 1, 1), 9, np.float32)
    holder = ctypes.PyDLL(str(path)).holder
    holder.argtypes = [ctypes.c_void_p] * 4
    pointers = (ctypes.c_void_p * 3)(*(dispatch.address(x) for x in (a, b, c)))
    holder(ctypes.addressof(pointers), None, None, None)
    assert c == 1, "ctypes.PyDLL keeps the lock, and the function does not see it"
    invoke = dispatch.symbol(path, "holder")
    words = kernel._keep[0]
    assert words[0] == kernel._functions[0]
    words[0], kernel._functions = invoke, (invoke, kernel._functions[1])
    for call in (lambda: kernel(a, b, c), lambda: kernel(a, b, out=c), kernel.bind(a, b, c)):
        c[...] = 9
        call()
        assert c == 0, "the lock was held while the kernel ran"


def test_threads_call_one_kernel() -> None:
    kernel = tw.compile(Gemm(8, 8, M, alpha="scalar"), target="scalar")
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            k = int(rng.integers(1, 30))
            a, b = rng.random((8, k), np.float32), rng.random((k, 8), np.float32)
            if not np.allclose(kernel(a, b, alpha=seed), seed * (a @ b), rtol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
