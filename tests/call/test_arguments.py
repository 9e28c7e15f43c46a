"""What a wrong argument is told; and that nothing is written when one is wrong."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError
from tilewright.runtime.call.arguments import check_readable
from tilewright.runtime.kernel import Kernel
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.signature import signature
from tilewright.spec.transpose import Transpose

F32, F64 = np.float32, np.float64

SPECS: dict[str, Spec] = {
    "plain": Gemm(6, 4, 8),
    "beta": Gemm(6, 4, 8, beta=1),
    "scalars": Gemm(6, 4, 8, alpha="scalar", beta="scalar"),
    "fortran": Gemm(6, 4, 8, order="F"),
    "square": Gemm(4, 4, 4),
    "dims": Gemm(tw.dim("m"), 4, tw.dim("k", multiple_of=4, max=16)),
    "leading": Gemm(6, 4, 8, lda=10, ldb=tw.dim("ldb", multiple_of=2), ldc=tw.dim("ldc")),
    "one leading": Gemm(6, 4, 8, lda=tw.dim("ld"), ldb=tw.dim("ld"), ldc=tw.dim("ld")),
    "aligned": Gemm(tw.dim("m"), 4, 5, lda=8, ldc=tw.dim("ldc", multiple_of=16)),
    "strided": Gemm(6, 4, 8, batch=tw.Strided(3, b=0)),
    "far": Gemm(6, 4, 8, batch=tw.Strided(tw.dim("count"), a=100, b=tw.dim("sb"))),
    "one for all": Gemm(6, 4, 8, batch=tw.Strided(tw.dim("count"), a=0, b=0)),
    "offsets": Gemm(6, 4, 8, batch=tw.Offsets(2)),
    "static": Gemm(6, 4, 8, batch=tw.Offsets(2, a=[0, 60])),
    "addresses": Gemm(6, 4, 8, batch=tw.Addresses(2)),
    "free offsets": Gemm(tw.dim("m"), 4, 8, batch=tw.Offsets(tw.dim("count")), ldc=tw.dim("ld"),
                         lda=tw.dim("ld")),
    "transpose": Transpose(6, 6),
    "oblong": Transpose(6, tw.dim("cols")),
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> dict[str, Kernel]:
    built = tw.compile_many([(spec, None, "scalar") for spec in SPECS.values()])
    return dict(zip(SPECS, built, strict=True))


def ones(*shape: int, dtype: Any = F32) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype)


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def unaligned(*shape: int) -> np.ndarray[Any, Any]:
    raw = np.zeros(int(np.prod(shape)) * 4 + 1, np.uint8)
    return raw[1:].view(F32).reshape(shape)


A, B, C = ones(6, 8), ones(8, 4), ones(6, 4)
FLAT_A, FLAT_B = ones(108), ones(64)
OFFSETS = {"a_offsets": np.array([0, 60]), "b_offsets": np.array([0, 32])}
SHARED = ones(6, 12)
WINDOWS = np.lib.stride_tricks.sliding_window_view(ones(13), 8)

#: (kernel, arguments, named arguments, what the message says)
FAULTS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    # kinds and types
    ("plain", ([[1.0]], B, C), {}, r"a must be a numpy array.*got: list.*np\.asarray\(a"),
    ("plain", (np.ma.masked_array(A), B, C), {}, "a must be a numpy array"),
    ("plain", (A.astype(F64), B, C), {}, "a has the wrong dtype.*float64.*float32"),
    ("plain", (A, B, C.astype(np.int32)), {}, "c has the wrong dtype.*int32"),
    ("plain", (A.astype(">f4"), B, C), {}, "a has the wrong byte order.*>f4.*<f4"),
    ("plain", (unaligned(6, 8), B, C), {}, r"a is not aligned.*4 bytes.*a\.copy"),
    ("plain", (A, B, frozen(ones(6, 4))), {}, "c is read-only"),
    ("plain", (A, B, np.broadcast_to(F32(0), (6, 4))), {}, "c is read-only"),
    # shapes
    ("plain", (ones(5, 8), B, C), {}, r"a has the wrong shape.*\(5, 8\).*\(6, 8\): m is 6"),
    ("plain", (ones(8, 6), B, C), {}, r"\(8, 6\).*a\.T has this shape"),
    ("plain", (ones(6), B, C), {}, "a must be a 2-d array.*1-d.*axes m, k"),
    ("plain", (F32(3), B, C), {}, "a must be a numpy array"),
    ("dims", (ones(6, 8), ones(12, 4), C), {}, r"k is 8, from a\.shape\[1\]"),
    ("dims", (ones(6, 8), B, ones(5, 4)), {}, r"m is 6, from a\.shape\[0\]"),
    ("dims", (ones(6, 6), ones(6, 4), C), {}, r"k is not a multiple of 4.*6, from a\.shape\[1\]"),
    ("dims", (ones(6, 20), ones(20, 4), C), {}, "k is not at most 16.*20"),
    # strides
    ("plain", (ones(6, 9)[:, :8], B, C), {}, r'strided view.*every 9.*lda=tw\.dim\("lda"\)'),
    ("plain", (A, B, ones(12, 4)[::2]), {}, r'c is a strided view.*ldc=tw\.dim\("ldc"\)'),
    ("plain", (A[::-1], B, C), {}, "a's rows must follow each other.*every -32 bytes"),
    ("plain", (A, B[:, ::-1], C), {}, "b must have contiguous rows.*ascontiguousarray"),
    ("plain", (ones(8, 6).T, B, C), {}, r'a=tw\.Matrix\(.f32., order=.F.\) in the spec'),
    ("fortran", (ones(6, 8), ones(4, 8).T, ones(4, 6).T), {}, "a must have contiguous columns"),
    ("plain", (np.broadcast_to(A[:1], (6, 8)), B, C), {}, "a's rows must follow each other"),
    ("one leading", (WINDOWS, B, C), {}, "not overlap, also where they are only read.*every 4 bytes"
     r".*lda of at least 8 elements.*a\.copy\(\), which gives each row elements of its own"),
    ("leading", (ones(6, 12)[:, :8], B, C), {}, "wrong leading dimension.*lda == 12.*10"),
    ("leading", (ones(6, 10)[:, :8], ones(8, 7)[:, :4], C), {}, "ldb is not a multiple of 2.*7"),
    ("one leading", (ones(6, 9)[:, :8], ones(8, 10)[:, :4], ones(6, 9)[:, :4]), {},
     "wrong leading dimension.*ldb == 10.*ld == 9, from a's strides"),
    # the batch
    ("strided", (ones(6, 8), B, C), {}, "a must be a 3-d array.*axes count, m, k"),
    ("strided", (ones(2, 6, 8), B, C), {}, r"\(3, 6, 8\): count is 3"),
    ("strided", (ones(3, 7, 8)[:, :6], B, C), {}, "wrong batch stride.*56.*tight"),
    ("strided", (ones(3, 6, 8)[::-1], B, C), {}, "wrong batch stride.*-48"),
    ("strided", (ones(3, 6, 8), ones(8), C), {}, "b must be a 2-d or 3-d array"),
    ("far", (ones(3, 6, 8), ones(3, 8, 4), C), {}, "wrong batch stride.*48 elements.*100"),
    ("far", (ones(1, 6, 8), ones(2, 8, 4), C), {}, r"count is 1, from a\.shape\[0\]"),
    ("one for all", (A, B, C), {}, "count is not known.*batch axis"),
    ("offsets", (FLAT_A, FLAT_B, C), {"a_offsets": OFFSETS["a_offsets"]},
     r"b_offsets is missing.*kernel\(a, b, c, a_offsets=\.\.\., b_offsets=\.\.\.\)"),
    ("offsets", (ones(2, 6, 8), FLAT_B, C), OFFSETS, r"a must be a 1-d.*a\.reshape\(-1\)"),
    ("offsets", (FLAT_A[::2], FLAT_B, C), OFFSETS, "a must be contiguous.*8 bytes"),
    ("offsets", (FLAT_A, FLAT_B, C), {**OFFSETS, "a_offsets": np.array([0, 61])},
     "offset 1 of a lies outside.*61.*0 to 60"),
    ("offsets", (FLAT_A, FLAT_B, C), {**OFFSETS, "b_offsets": np.array([-1, 0])},
     "offset 0 of b lies outside"),
    ("offsets", (FLAT_A[:40], FLAT_B, C), OFFSETS, "of at least 48 elements; it has 40"),
    ("offsets", (FLAT_A, FLAT_B, C), {**OFFSETS, "a_offsets": np.array([0, 1, 2])},
     r"a_offsets has the wrong shape.*\(2,\): count is 2"),
    ("offsets", (FLAT_A, FLAT_B, C), {**OFFSETS, "a_offsets": [0, 60]},
     "a_offsets must be a numpy array.*np.int64"),
    ("offsets", (FLAT_A, FLAT_B, C), {**OFFSETS, "a_offsets": np.array([0, 1], np.int32)},
     "a_offsets has the wrong dtype.*int32.*int64"),
    ("offsets", (FLAT_A, FLAT_B, C), {**OFFSETS, "a_offsets": np.arange(4)[::2]},
     "a_offsets must be contiguous"),
    ("static", (FLAT_A[:-1], FLAT_B, C), {"b_offsets": OFFSETS["b_offsets"]},
     "offset 1 of a lies outside.*60.*0 to 59: a has 107"),
    ("static", (FLAT_A, FLAT_B, C), OFFSETS, "no argument 'a_offsets'"),
    ("addresses", (ones(2, 6, 8), [B, B], C), {}, "a must be a list or tuple.*tw.Strided"),
    ("addresses", ([A, A, A], [B, B], C), {}, "a has the wrong number of arrays.*3.*2"),
    ("addresses", ([A, A], [B, B.astype(F64)], C), {}, r"b\[1\] has the wrong dtype"),
    ("addresses", ([A, ones(6, 7)], [B, B], C), {}, r"a\[1\] has the wrong shape"),
    ("addresses", ([A, ones(6, 9)[:, :8]], [B, B], C), {}, r"a\[1\] is a strided view"),
    # overlap
    ("one leading", (SHARED[:, :8], ones(8, 12)[:, :4], SHARED[:, 7:11]), {},
     r"c shares elements with a.*got: c starts 28 bytes after a\n.*a\.copy\(\)"),
    # names
    ("plain", (A,), {}, r"b is missing.*kernel\(a, b, c\)"),
    ("plain", (), {}, "a and b are missing.*got: nothing"),
    ("plain", (A, B, C, C), {}, "too many arguments.*4 by position.*3: a, b, c"),
    ("plain", (A, B), {"a": A}, "a is given twice"),
    ("plain", (A, B, C), {"out": ones(6, 4)}, "c and out are two arrays"),
    ("plain", (A, B, C), {"alpha": 2}, 'no argument .alpha..*alpha="scalar"'),
    ("plain", (A, B, C), {"bias": 2}, r"no argument 'bias'.*kernel\(a, b, c\)"),
    ("beta", (A, B), {}, r"c is missing.*kernel\(a, b, c\)"),
    ("beta", (A, B), {"out": C}, "out= is for kernels that do not read c.*pass the array as c"),
    ("scalars", (A, B, C), {}, "alpha is missing.*by name"),
    ("scalars", (A, B, C), {"alpha": 1}, "beta is missing"),
    ("scalars", (A, B, C, 1, 2), {}, "too many arguments"),
    ("scalars", (A, B, C), {"alpha": "2", "beta": 0}, "alpha must be a Python number.*str"),
    ("scalars", (A, B, C), {"alpha": 1j, "beta": 0}, "alpha must be a Python number.*complex"),
    ("scalars", (A, B, C), {"alpha": ones(1), "beta": 0}, "alpha must be a Python number"),
    ("scalars", (A, B, C), {"alpha": 10**400, "beta": 0}, "alpha is too large"),
    ("transpose", (), {}, r"x is missing.*kernel\(x, out\)"),
    ("transpose", (ones(6, 5),), {}, "x has the wrong shape"),
    ("oblong", (ones(6, 5), ones(6, 5)), {}, r"out has the wrong shape.*out\.T has this shape"),
]  # fmt: skip


def outputs(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    given = [*arguments, *named.values()]
    return [array for array in given if isinstance(array, np.ndarray)]


@pytest.mark.parametrize(("name", "arguments", "named", "says"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_is_explained_and_nothing_written(
    kernels: dict[str, Kernel],
    name: str,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    says: str,
) -> None:
    before = [array.copy() for array in outputs(arguments, named)]
    with pytest.raises(ArgumentError) as caught:
        kernels[name](*arguments, **named)
    assert isinstance(caught.value, (ValueError, TypeError))
    message = str(caught.value)
    assert re.search(says, message, re.DOTALL), message
    assert "test_arguments.py" in message
    for array, old in zip(outputs(arguments, named), before, strict=True):
        np.testing.assert_array_equal(array, old)
    with pytest.raises(ArgumentError):
        kernels[name].bind(*arguments, **named)


def test_an_output_may_not_be_an_input(kernels: dict[str, Kernel]) -> None:
    a, b = ones(4, 4), ones(4, 4)
    with pytest.raises(ArgumentError, match="c shares elements with a"):
        kernels["square"](a, b, a)
    with pytest.raises(ArgumentError, match="c shares elements with b"):
        kernels["square"](a, b, out=b)
    kernels["square"](a, a, b)
    np.testing.assert_array_equal(b, 4)


def test_overlap_of_the_batch_names_the_matrix(kernels: dict[str, Kernel]) -> None:
    a, b = ones(3, 6, 8), ones(8, 4)
    c = a[1].reshape(-1)[4:28].reshape(6, 4)
    with pytest.raises(ArgumentError, match=r"shares elements with a \(matrix 1\)"):
        kernels["strided"](a, B, c)
    with pytest.raises(ArgumentError, match=r"shares elements with b \(array 1\)"):
        kernels["addresses"]([A, A], [B, b], b.reshape(-1)[8:].reshape(6, 4))


def test_offsets_of_an_unknown_leading_dimension(kernels: dict[str, Kernel]) -> None:
    """C has one row and does not tell ld; a single row of A does not need it, two would."""
    one = {name: array[:1] for name, array in OFFSETS.items()}
    kernels["free offsets"](FLAT_A, FLAT_B, ones(1, 4), **one)
    spec = Gemm(2, 4, 8, lda=tw.dim("ld"), ldc=tw.dim("ld"), order="F", batch=tw.Offsets(1))
    narrow = Gemm(2, 1, 8, lda=tw.dim("ld"), ldc=tw.dim("ld"), order="F", batch=tw.Offsets(1))
    flat = np.zeros(400, F32)
    kernel, told = (tw.compile(s, target="scalar") for s in (narrow, spec))
    with pytest.raises(ArgumentError, match="lda of the flat a is not known"):
        kernel(flat, flat, ones(1, 2).T, **one)
    told(flat, flat, ones(4, 9)[:, :2].T, **one)


def test_dims_that_nothing_tells() -> None:
    spec = Gemm(2, 4, 8, batch=tw.Offsets(1), lda=tw.dim("ld"))
    with pytest.raises(SpecError, match="no argument tells dim 'ld'"):
        check_readable(signature(spec))
    with pytest.raises(SpecError, match="no argument tells dim 'k'") as caught:
        tw.compile(Gemm(4, 4, tw.dim("k"), batch=tw.Offsets(2)), target="scalar")
    assert "flat" in str(caught.value)


# -- what is legal though unusual ---------------------------------------------------------------


def close(got: np.ndarray[Any, Any], a: Any, b: Any) -> None:
    np.testing.assert_allclose(got, np.asarray(a, F64) @ np.asarray(b, F64), rtol=1e-5)


def test_every_way_to_give_the_output(kernels: dict[str, Kernel]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((6, 8), F32), rng.random((8, 4), F32)
    kernel, c = kernels["plain"], ones(6, 4)
    assert kernel(a, b, c) is c
    close(c, a, b)
    for call in (
        lambda: kernel(a, b, out=c),
        lambda: kernel(a, b, c=c),
        lambda: kernel(a=a, b=b, c=c),
        lambda: kernel(a, b, c, out=c),
        lambda: kernel(a, b, c, out=None),
        lambda: kernel(a, b, None, out=c),
    ):
        c[...] = np.nan
        assert call() is c
        close(c, a, b)
    for made in (kernel(a, b), kernel(a, b, None), kernel(a, b, out=None), kernel(b=b, a=a)):
        close(made, a, b)
    assert kernels["fortran"](a.copy("F"), b.copy("F")).flags.f_contiguous
    assert kernels["beta"](a, b, c) is c
    close(c / 2, a, b)


def test_outputs_made_for_leading_dimensions(kernels: dict[str, Kernel]) -> None:
    a = ones(6, 10)[:, :8]
    c = kernels["leading"](a, B)
    assert c.shape == (6, 4)
    close(c, a, B)
    shared = kernels["one leading"](ones(6, 9)[:, :8], ones(8, 9)[:, :4])
    assert shared.strides == (36, 4)
    rounded = kernels["aligned"](ones(3, 8)[:, :5], ones(5, 4))
    assert rounded.strides == (64, 4)
    one = {name: array[:1] for name, array in OFFSETS.items()}
    with pytest.raises(ArgumentError, match=r"c cannot be made here.*only its own shape tells m"):
        kernels["free offsets"](FLAT_A, FLAT_B, **one)


def test_numbers_of_every_kind(kernels: dict[str, Kernel]) -> None:
    for two in (2, 2.0, F32(2), np.int8(2), F64(2)):
        c = ones(6, 4)
        kernels["scalars"](A, B, c, alpha=two, beta=two)
        np.testing.assert_array_equal(c, 18)
        kernels["scalars"](A, B, beta=0, alpha=two, c=c)
        np.testing.assert_array_equal(c, 16)


def test_subclasses_and_equal_dtypes(kernels: dict[str, Kernel]) -> None:
    class Mine(np.ndarray[Any, Any]):
        pass

    c = ones(6, 4).view(Mine)
    assert kernels["plain"](A.view(Mine), B.view(Mine), c) is c
    np.testing.assert_array_equal(c, 8)
    tagged = A.view(np.dtype(F32, metadata={"unit": "m"}))
    kernels["plain"](tagged, B, c)


def test_strides_of_short_axes_are_ignored() -> None:
    odd = np.lib.stride_tricks.as_strided(np.zeros(64, F32), (1, 8), (12, 4))
    kernel = tw.compile(Gemm(1, 1, 8), target="scalar")
    column = np.lib.stride_tricks.as_strided(np.zeros(64, F32), (8, 1), (4, -16))
    assert kernel(odd, column).shape == (1, 1)


@pytest.mark.parametrize("beta", [0, 1, 0.5])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 4, 3), (4, 0, 3), (4, 3, 0), (0, 0, 0)])
def test_zero_sizes(m: int, n: int, k: int, beta: float) -> None:
    """A legal no-op; without a K, scaling by beta."""
    for spec in (
        Gemm(m, n, k, beta=beta),
        Gemm(tw.dim("m"), tw.dim("n"), tw.dim("k"), beta=beta, lda=tw.dim("lda")),
    ):
        kernel = tw.compile(spec, target="scalar")
        c = ones(m, n)
        kernel(np.empty((m, k), F32), np.empty((k, n), F32), c)
        np.testing.assert_array_equal(c, beta)


def test_a_batch_of_none() -> None:
    for batch in (tw.Strided(tw.dim("count")), tw.Addresses(tw.dim("count"))):
        kernel = tw.compile(Gemm(2, 2, 2, batch=batch, beta=1), target="scalar")
        none: Any = [] if isinstance(batch, tw.Addresses) else np.empty((0, 2, 2), F32)
        c = ones(2, 2)
        kernel(none, none, c)
        np.testing.assert_array_equal(c, 1)
