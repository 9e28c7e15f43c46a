"""The dispatcher in C and the checks in Python decide alike, and hand over the same."""

from __future__ import annotations

import ctypes
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.products.packed import forged
from support.recorder import FORMAT, Recorder

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.argument_checks import check
from tilewright.runtime.call.overlap import Region, overlap
from tilewright.runtime.call.packed_matrix import PackedMatrix, memory
from tilewright.runtime.reference.arguments import sample
from tilewright.spec.expression import Operand, acc, dst
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.signature import Signature
from tilewright.spec.transpose import Transpose

M, N, K = tw.dim("m"), tw.dim("n"), tw.dim("k")
LD = tw.dim("ld")
LDS: dict[str, Any] = {name: tw.dim(name) for name in ("lda", "ldb", "ldc")}
SLOPE = Operand("slope", "f32")
BIAS, FULL = Operand("bias", "s8", per="column"), Operand("full", "f16", per="full")

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
    Gemm(4, 3, 5, a="u8", b="s8", d="u8", a_zero="row", b_scale="column", d_scale="scalar"),
    Gemm(M, N, K, a="s8", d="s8", beta=1, b_zero="column", d_zero="scalar", ldd=LD, order="F"),
    Gemm(M, N, 5, d="f32", beta=1, alpha=2, ldc=LD, ldd=tw.dim("ldd")),
    Gemm(4, 3, 5, beta=1, a_scale="row", c="bf16", d="bf16"),
    Gemm(4, 3, 5, a="bf16", b="f8_e4m3", d="f16", batch=tw.Strided(2)),
    Gemm(4, 3, 5, epilogue=acc + SLOPE * dst),
    Gemm(4, N, 5, d_scale="column", b_scale="column"),
    Gemm(4, 3, 5, a="f64", d_scale="scalar"),
    Gemm(M, N, 5, a="s8", d="bf16", epilogue=acc * BIAS + FULL),
    Gemm(4, 3, 5, b=tw.Packed("f32")),
    Gemm(M, 3, 5, a="u8", b=tw.Packed("s8", nb=16), batch=tw.Strided(tw.dim("count"))),
    Gemm(4, 3, 5, b=tw.Packed("bf16"), batch=tw.Strided(3, b=0)),
    Gemm(4, 3, 5, b=tw.Packed("f32"), batch=tw.Addresses(2)),
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
    return agree_on(recorder, recorder.take(spec), arrays)


def agree_on(recorder: Recorder, signature: Signature, arrays: tuple[Any, ...]) -> bool:
    checked = accepted(signature, arrays)
    done = recorder.call(*arrays)
    assert done == (checked is not None)
    if checked is not None:
        assert recorder.sizes == checked.sizes
        for parameter, pointer, array in zip(
            signature.arrays, recorder.pointers, arrays, strict=True
        ):
            if parameter.kind != "sequence":
                assert pointer == dispatch.address(memory(array))
    return done


def arguments(signature: Signature, seed: int) -> list[Any]:
    """Random arguments that fit, sequences as tuples."""
    held = sample(signature, np.random.default_rng(seed), varied=True)
    arrays = [tuple(a) if isinstance(a, list) else a for a in held.arrays]
    for i, parameter in enumerate(signature.arrays):
        if parameter.packed:
            given = arrays[i]
            arrays[i] = tuple(map(packed, given)) if isinstance(given, tuple) else packed(given)
    return arrays


def packed(array: np.ndarray[Any, Any], form: str = FORMAT) -> PackedMatrix:
    return forged(form, array.shape, np.zeros(array.nbytes, np.uint8))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: type(s).__name__)
def test_both_accept_what_fits(recorder: Recorder, spec: Spec) -> None:
    for seed in range(20):
        assert agree(recorder, spec, tuple(arguments(recorder.take(spec), seed)))


def perturbations(array: Any) -> dict[str, Any]:
    """Arguments that fit where ``array`` does, or do not."""
    if isinstance(array, PackedMatrix):
        return {
            "same": forged(array.format, array.shape, array.data),
            "other format": forged(f"not {FORMAT}", array.shape, array.data),
            "other shape": forged(array.format, array.shape[::-1], array.data),
            "one more axis": forged(array.format, (2, *array.shape)[-3:], array.data),
            "one axis less": forged(array.format, array.shape[-2:], array.data),
            "unmade": PackedMatrix.__new__(PackedMatrix),
            "plain": np.zeros(array.shape, np.float32),
            "nothing": None,
        }
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
        "other type": np.zeros(array.shape, np.int64),
        "bits": array.view(f"u{array.itemsize}"),
        "own dtype": pickle.loads(pickle.dumps(array)),
        "swapped": array.astype(array.dtype.newbyteorder()),
        "read-only": frozen,
        "zeros": np.zeros_like(array),
        "no number": np.full_like(array, np.nan if array.dtype.kind == "f" else 0),
        "unaligned": bytes_.view(array.dtype).reshape(array.shape) if array.size else array,
        "scalar": array.dtype.type(1),
        "nothing": None,
        "tuple": (array,),
        "number": 3,
    }


@settings(max_examples=400)
@given(st.sampled_from(SPECS), st.integers(0, 99), st.data())
def test_both_decide_alike(recorder: Recorder, spec: Spec, seed: int, data: st.DataObject) -> None:
    arrays = arguments(recorder.take(spec), seed)
    for _ in range(data.draw(st.integers(1, 2))):
        i = data.draw(st.integers(0, len(arrays) - 1))
        chosen = arrays[i]
        if isinstance(chosen, tuple) and chosen:
            j = data.draw(st.integers(0, len(chosen) - 1))
            changed = perturbations(chosen[j])
            what = data.draw(st.sampled_from(sorted(changed)))
            arrays[i] = (*chosen[:j], changed[what], *chosen[j + 1 :])
        elif isinstance(chosen, PackedMatrix) or np.ndim(chosen):
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


def test_d_may_be_c(recorder: Recorder) -> None:
    a, b = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    wide = np.zeros((4, 12), np.float32)
    spec = Gemm(4, 4, 4, beta=1, d="f32", ldc=tw.dim("ldc"), ldd=tw.dim("ldd"))
    assert agree(recorder, spec, (a, b, wide[:, :4], wide[:, :4]))
    assert agree(recorder, spec, (a, b, wide[:, :4], wide[:, 4:8]))
    assert not agree(recorder, spec, (a, b, wide[:, :4], wide[:, 3:7]))
    assert not agree(recorder, spec, (a, b, wide[:, :4], wide.reshape(8, 6)[:4, :4]))
    assert not agree(recorder, spec, (a, b, wide[:, :4], a))
    other = Gemm(4, 4, 4, beta=1, c="f16", d="bf16")
    c = np.zeros((4, 4), np.float16)
    assert not agree(recorder, other, (a, b, c, c.view(np.uint16)))
    turned = Gemm(4, 4, 4, beta=1, d=tw.Matrix("f32", "F"))
    assert not agree(recorder, turned, (a, b, wide.reshape(12, 4)[:4], wide.reshape(12, 4)[:4].T))


def test_outputs_share_nothing_with_anything(recorder: Recorder) -> None:
    """A second output, a vector passed by name, against inputs and the first."""
    plain = recorder.take(Gemm(4, 3, 5, a_scale="row"))
    most = replace(plain.array("a_scale"), name="most", role="out")
    both = replace(plain, arrays=(*plain.arrays, most))
    a, b = np.ones((4, 5), np.float32), np.ones((5, 3), np.float32)
    d, scale, new = np.zeros((4, 3), np.float32), np.ones(4, np.float32), np.zeros(4, np.float32)
    recorder.stand_for(both)
    assert agree_on(recorder, both, (a, b, d, scale, new))
    for clash in (scale, a.reshape(-1)[3:7], d.reshape(-1)[8:]):
        assert not agree_on(recorder, both, (a, b, d, scale, clash))
    assert not agree_on(recorder, both, (a, b, d, d.reshape(-1)[:4], new))
    new.flags.writeable = False
    assert not agree_on(recorder, both, (a, b, d, scale, new))


def test_a_packed_matrix_may_not_be_written(recorder: Recorder) -> None:
    held = forged(FORMAT, (4, 4), np.zeros(64, np.uint8))
    data = (ctypes.c_float * 16).from_address(dispatch.address(held.data))
    a, d = np.ones((4, 4), np.float32), np.ctypeslib.as_array(data).reshape(4, 4)
    assert d.flags.writeable
    assert dispatch.address(d) == dispatch.address(held.data)
    for batch, b in ((None, held), (tw.Addresses(2), (packed(a), held))):
        spec = Gemm(4, 4, 4, b=tw.Packed("f32"), batch=batch)
        first: Any = a if batch is None else (a, a)
        assert agree(recorder, spec, (first, b, np.zeros_like(a)))
        assert not agree(recorder, spec, (first, b, d))


def test_sizes_beyond_int32(recorder: Recorder) -> None:
    """Strides and offsets of more than 2**31 bytes; the memory is never touched."""
    a = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 2), (2**33, 4))
    spec = Gemm(3, 2, 2, lda=tw.dim("lda"))
    assert agree(recorder, spec, (a, np.ones((2, 2), np.float32), np.ones((3, 2), np.float32)))
    assert recorder.sizes == (2**31,)
    wide = Gemm(2, 2, 2, lda=2**44, batch=tw.Offsets(1))
    flat, one = np.zeros(64, np.float32), np.array([2**62])
    assert not agree(recorder, wide, (flat, flat.copy(), np.zeros((2, 2), np.float32), one, one))


def test_scalars_arrive(recorder: Recorder) -> None:
    recorder.take(Gemm(2, 2, 2, alpha="scalar", beta="scalar"))
    arrays = tuple(np.zeros((2, 2), np.float32) for _ in range(3))
    call = dispatch.dispatcher().call_scalars(recorder.words)
    assert call(arrays, 0.25, -3.0) == dispatch.DONE
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
        assert found.call(recorder.words)(arrays) == dispatch.NO_MEMORY
    finally:
        recorder.scratch = 0
    assert recorder.calls == before
