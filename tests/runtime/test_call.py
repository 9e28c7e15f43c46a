"""The dispatcher in C and the checks in Python decide alike, and hand over the same."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.recorder import Recorder

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime import dispatch
from tilewright.runtime.layout import check
from tilewright.runtime.overlap import Region, overlap
from tilewright.runtime.samples import sample
from tilewright.signature import Signature
from tilewright.spec import Gemm, Spec, Transpose

M, N, K = tw.dim("m"), tw.dim("n"), tw.dim("k")
LD = tw.dim("ld")
LDS: dict[str, Any] = {name: tw.dim(name) for name in ("lda", "ldb", "ldc")}

SPECS: list[Spec] = [
    Gemm(4, 3, 5),
    Gemm(4, 3, 5, a="f64", order="F", beta=1),
    Gemm(4, 3, 5, a=tw.Matrix("f32", "F"), c=tw.Matrix("f32", "F")),
    Gemm(M, N, K),
    Gemm(M, M, M, order="F"),
    Gemm(M, 3, tw.dim("k", multiple_of=4, max=12), **LDS),
    Gemm(M, N, K, lda=LD, ldb=LD, ldc=LD),
    Gemm(4, 3, 5, lda=7, ldb=6, ldc=4, order="F"),
    Gemm(1, N, K, lda=tw.dim("lda", multiple_of=16)),
    Gemm(4, 3, 5, batch=tw.Strided(3)),
    Gemm(1, 3, 5, lda=LD, batch=tw.Strided(tw.dim("count"))),
    Gemm(M, 3, K, lda=LD, batch=tw.Strided(tw.dim("count"), a=tw.dim("sa"), b=0)),
    Gemm(4, 3, 5, batch=tw.Strided(2, a=8, b=tw.dim("sb")), order="F"),
    Gemm(4, 3, 5, batch=tw.Offsets(3)),
    Gemm(M, 3, 5, ldc=LD, batch=tw.Offsets(tw.dim("count"), b=None)),
    Gemm(4, 3, 5, lda=8, batch=tw.Offsets(3, a=[0, 7, 2])),
    Gemm(4, 3, 5, batch=tw.Addresses(2)),
    Gemm(M, N, K, lda=LD, batch=tw.Addresses(tw.dim("count"))),
    Transpose(4, 5),
    Transpose(M, M, "f64", ldx=LD, ldout=LD),
    Transpose(M, N, ldout=tw.dim("ldout")),
]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("recorder"))


def accepted(signature: Signature, arrays: tuple[Any, ...]) -> Any:
    """What the checks in Python make of ``arrays``; None when they refuse."""
    try:
        return check(signature, arrays)
    except ArgumentError:
        return None


def agree(recorder: Recorder, spec: Spec, arrays: tuple[Any, ...]) -> bool:
    """Whether both accept; fails when they differ in that or in what they hand over."""
    signature = recorder.take(spec)
    checked = accepted(signature, arrays)
    done = recorder.call(*arrays)
    assert done == (checked is not None)
    if checked is not None:
        assert recorder.sizes == checked.sizes
        for parameter, pointer, array in zip(
            signature.arrays, recorder.pointers, arrays, strict=True
        ):
            if parameter.kind != "sequence":
                assert pointer == dispatch.address(array)
    return done


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: type(s).__name__)
def test_both_accept_what_fits(recorder: Recorder, spec: Spec) -> None:
    for seed in range(20):
        held = sample(recorder.take(spec), np.random.default_rng(seed), varied=True)
        arrays = tuple(tuple(a) if isinstance(a, list) else a for a in held.arrays)
        assert agree(recorder, spec, arrays)


def perturbations(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Arrays that fit where ``array`` does, or do not."""
    frozen = array.view()
    frozen.flags.writeable = False
    bytes_ = np.zeros(array.nbytes + 8, np.uint8)[1 : 1 + array.nbytes]
    return {
        "copy": array.copy(),
        "fortran": array.copy(order="F"),
        "transposed": array.T,
        "reversed": array[::-1],
        "reversed lines": array[..., ::-1],
        "every other": array[::2],
        "every other column": array[..., ::2],
        "shorter": array[:-1],
        "narrower": array[..., :-1],
        "empty": array[:0],
        "no columns": array[..., :0],
        "wider memory": np.zeros((*array.shape[:-1], array.shape[-1] + 3), array.dtype)[..., :-3],
        "broadcast": np.broadcast_to(array[:1], array.shape),
        "one more axis": array[None],
        "flat": array.reshape(-1),
        "other type": np.zeros(array.shape, np.int32),
        "own dtype": pickle.loads(pickle.dumps(array)),
        "swapped": array.astype(array.dtype.newbyteorder()),
        "read-only": frozen,
        "unaligned": bytes_.view(array.dtype).reshape(array.shape) if array.size else array,
        "scalar": array.dtype.type(1),
        "nothing": None,
        "tuple": (array,),
        "number": 3,
    }


@settings(max_examples=400)
@given(st.sampled_from(SPECS), st.integers(0, 99), st.data())
def test_both_decide_alike(recorder: Recorder, spec: Spec, seed: int, data: st.DataObject) -> None:
    held = sample(recorder.take(spec), np.random.default_rng(seed), varied=True)
    arrays = [tuple(a) if isinstance(a, list) else a for a in held.arrays]
    for _ in range(data.draw(st.integers(1, 2))):
        i = data.draw(st.integers(0, len(arrays) - 1))
        chosen = arrays[i]
        if isinstance(chosen, tuple) and chosen and isinstance(chosen[0], np.ndarray):
            j = data.draw(st.integers(0, len(chosen) - 1))
            changed = perturbations(chosen[j])
            what = data.draw(st.sampled_from(sorted(changed)))
            arrays[i] = (*chosen[:j], changed[what], *chosen[j + 1 :])
        elif isinstance(chosen, np.ndarray) and chosen.ndim:
            changed = perturbations(chosen)
            arrays[i] = changed[data.draw(st.sampled_from(sorted(changed)))]
    agree(recorder, spec, tuple(arrays))


@settings(max_examples=300)
@given(st.data())
def test_views_of_one_array_are_decided_exactly(recorder: Recorder, data: st.DataObject) -> None:
    """Offsets, leading dimensions and sizes at will in one buffer, against numpy's exact answer."""
    spec = Gemm(M, N, K, **LDS)
    buffer = np.zeros(400, np.float32)

    def view(rows: int, cols: int) -> np.ndarray[Any, Any]:
        leading = data.draw(st.integers(cols, cols + 12))
        start = data.draw(st.integers(0, buffer.size - rows * leading))
        steps = (leading * 4, 4)
        return np.lib.stride_tricks.as_strided(buffer[start:], (rows, cols), steps)

    m, n, k = (data.draw(st.integers(1, 6)) for _ in range(3))
    a, b, c = view(m, k), view(k, n), view(m, n)
    shared = any(np.shares_memory(c, x) for x in (a, b))
    assert agree(recorder, spec, (a, b, c)) == (not shared)


@given(st.data())
def test_overlap_is_exact(data: st.DataObject) -> None:
    def region() -> tuple[Region, set[int]]:
        size = data.draw(st.integers(0, 9))
        step = size + data.draw(st.integers(0, 12))
        lines, start = data.draw(st.integers(0, 7)), data.draw(st.integers(0, 60))
        held = {start + i * step + j for i in range(lines) for j in range(size)}
        return Region(start, lines, max(step, 1), size), held

    (a, in_a), (b, in_b) = region(), region()
    assert overlap(a, b) == overlap(b, a) == bool(in_a & in_b)


def test_the_trailing_update_of_an_lu_is_legal(recorder: Recorder) -> None:
    spec = Gemm(M, N, K, lda=LD, ldb=LD, ldc=LD, alpha=-1, beta=1)
    whole = np.zeros((64, 64), np.float32)
    for i in (16, 32, 48):
        panel, row, rest = whole[i:, i - 16 : i], whole[i - 16 : i, i:], whole[i:, i:]
        assert agree(recorder, spec, (panel, row, rest))
        assert not agree(recorder, spec, (panel, row, whole[i - 16 : -16, i:]))


def test_only_what_is_read_may_not_overlap(recorder: Recorder) -> None:
    """The matrices that offsets name count, not the rest of the flat array."""
    spec = Gemm(4, 4, 4, batch=tw.Offsets(2), beta=1)
    flat = np.zeros(64, np.float32)
    c = flat[16:32].reshape(4, 4)
    b, offsets = np.zeros(32, np.float32), np.array([0, 16])
    assert agree(recorder, spec, (flat, b, c, np.array([0, 32]), offsets))
    assert not agree(recorder, spec, (flat, b, c, np.array([0, 31]), offsets))
    assert not agree(recorder, spec, (flat, b, c, np.array([0, 49]), offsets))
    assert not agree(recorder, spec, (flat, b, c, np.array([0, -1]), offsets))


def test_in_place_transposition(recorder: Recorder) -> None:
    x = np.zeros((4, 4), np.float32)
    assert agree(recorder, Transpose(4, 4), (x, x))
    wide = np.zeros((4, 9), np.float32)
    square = Transpose(M, M, ldx=tw.dim("ldx"), ldout=tw.dim("ldout"))
    assert agree(recorder, square, (wide[:, :4], wide[:, :4]))
    assert not agree(recorder, square, (wide[:, :4], wide[:, 1:5]))
    assert agree(recorder, square, (wide[:, :4], wide[:, 4:8]))


def test_sizes_beyond_int32(recorder: Recorder) -> None:
    """Strides and offsets of more than 2**31 bytes; the memory is never touched."""
    a = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 2), (2**33, 4))
    spec = Gemm(3, 2, 2, lda=tw.dim("lda"))
    assert agree(recorder, spec, (a, np.ones((2, 2), np.float32), np.ones((3, 2), np.float32)))
    assert recorder.sizes == (2**31,)
    wide = Gemm(2, 2, 2, lda=2**61, batch=tw.Offsets(1))
    flat, one = np.zeros(64, np.float32), np.array([2**62])
    assert not agree(recorder, wide, (flat, flat.copy(), np.zeros((2, 2), np.float32), one, one))


def test_scalars_arrive(recorder: Recorder) -> None:
    recorder.take(Gemm(2, 2, 2, alpha="scalar", beta="scalar"))
    arrays = tuple(np.zeros((2, 2), np.float32) for _ in range(3))
    call = dispatch.dispatcher().call_scalars
    assert call(dispatch.address(recorder.words), id(arrays), 0.25, -3.0) == dispatch.DONE
    assert recorder.scalars == (0.25, -3.0)


@pytest.mark.parametrize("size", [1, 100_000])
def test_scratch_is_supplied(recorder: Recorder, size: int) -> None:
    recorder.take(Gemm(2, 2, 2))
    recorder.scratch = size
    assert recorder.call(*(np.zeros((2, 2), np.float32) for _ in range(3)))
    assert recorder.scratch != 0
    assert recorder.scratch % 64 == 0
    recorder.scratch = 0
    assert recorder.call(*(np.zeros((2, 2), np.float32) for _ in range(3)))
    assert recorder.scratch == 0


def test_no_memory_for_scratch(recorder: Recorder) -> None:
    recorder.take(Gemm(2, 2, 2))
    recorder.scratch = 1 << 62
    arrays = tuple(np.zeros((2, 2), np.float32) for _ in range(3))
    found, before = dispatch.dispatcher(), recorder.calls
    try:
        assert found.call(dispatch.address(recorder.words), id(arrays)) == dispatch.NO_MEMORY
    finally:
        recorder.scratch = 0
    assert recorder.calls == before


# -- the ways to call ---------------------------------------------------------------------------


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
    assert kernel.bench(seconds=0.01).median > 0


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


def test_the_interpreter_runs_on_during_a_kernel() -> None:
    """The lock is released: this thread counts while another is in a kernel."""
    k = 1 << 22
    kernel = tw.compile(Gemm(4, 4, tw.dim("k")), target="scalar")
    a, b = np.ones((4, k), np.float32), np.ones((k, 4), np.float32)
    c = np.empty((4, 4), np.float32)
    kernel(a, b, c)
    started = threading.Event()

    def work() -> None:
        started.set()
        kernel(a, b, c)

    thread = threading.Thread(target=work)
    begin = time.perf_counter()
    kernel(a, b, c)
    alone = time.perf_counter() - begin
    thread.start()
    started.wait()
    ticks = 0
    begin = time.perf_counter()
    while thread.is_alive():
        ticks += 1
    waited = time.perf_counter() - begin
    thread.join()
    assert waited < 0.5 * alone or ticks > 500


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
