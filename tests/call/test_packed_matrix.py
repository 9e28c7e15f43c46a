"""Packed matrices: what they are, their files, and the files that are refused."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.products.packed import forged

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import format_of
from tilewright.plan.formats.named import format_named
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.machine.host import resolve

FORM = PackedFormat("s8", "s8", itemsize=1, k=3, n=5, nb=8, group=4, sums=True)
NBYTES = 64 + 64  # of one matrix: its bytes, and the sums of its columns


def matrix(shape: tuple[int, ...] = (3, 5)) -> PackedMatrix:
    count = shape[0] if len(shape) == 3 else 1
    return PackedMatrix(FORM.text, shape, np.arange(count * NBYTES, dtype=np.uint8))


def test_it_says_what_it_is() -> None:
    packed = matrix()
    assert (packed.format, packed.shape, packed.nbytes) == (FORM.text, (3, 5), NBYTES)
    assert packed.data.dtype == np.uint8
    assert packed.data.ctypes.data % 64 == 0
    assert repr(packed) == f"<PackedMatrix 3x5 in {FORM.text}, 128 bytes>"
    assert not isinstance(packed, np.ndarray)


def test_it_is_immutable() -> None:
    packed = matrix()
    with pytest.raises(AttributeError, match="immutable"):
        packed.format = "another"
    with pytest.raises(AttributeError, match="immutable: data cannot be deleted"):
        del packed.data
    with pytest.raises(AttributeError, match="made once"):
        packed.__init__(FORM.text, (3, 5), np.zeros(NBYTES, np.uint8))  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        packed.data[0] = 1
    for array in (packed.data, packed._record):
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True


def test_its_bytes_are_its_own() -> None:
    """Not even where those given lie at a cache line, and are all there is."""
    block = np.zeros(NBYTES + 64, np.uint8)
    data = block[-block.ctypes.data % 64 :][:NBYTES]
    packed = PackedMatrix(FORM.text, (3, 5), data)
    data[:] = 7
    assert not packed.data.any()
    strided = np.arange(2 * NBYTES, dtype=np.uint8)[::2]
    np.testing.assert_array_equal(PackedMatrix(FORM.text, (3, 5), strided).data, strided)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_it_is_saved_and_loaded(shape: tuple[int, ...], tmp_path: Path) -> None:
    packed = matrix(shape)
    packed.save(tmp_path / "b")
    for copy in (PackedMatrix.load(tmp_path / "b"), pickle.loads(pickle.dumps(packed))):
        assert (copy.format, copy.shape) == (packed.format, packed.shape)
        np.testing.assert_array_equal(copy.data, packed.data)
        assert copy.data.ctypes.data % 64 == 0
    start = (tmp_path / "b").read_bytes()
    assert len(start) % 64 == packed.nbytes % 64  # the data lies at a cache line of the file


def edited(data: bytes, **changes: Any) -> bytes:
    """The file with another header."""
    _, _, length = struct.unpack("<16sII", data[:24])
    header = {**json.loads(data[24 : 24 + length]), **changes}
    return with_header(data, json.dumps(header).encode())


def with_header(data: bytes, text: bytes) -> bytes:
    """The file with any bytes for a header."""
    _, _, length = struct.unpack("<16sII", data[:24])
    return data[:20] + struct.pack("<I", len(text)) + text + data[24 + length :]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: b"", "is no packed matrix"),
        (lambda data: b"PK\3\4" + data[4:], "is no packed matrix"),
        (lambda data: data[:20], "is no packed matrix"),
        (lambda data: data[:16] + b"\2" + data[17:], "another version.*got: 2.*expected: 1"),
        (lambda data: data[:60], "truncated or damaged: its header"),
        (lambda data: data[:-1], "is truncated.*127 bytes of data.*128"),
        (lambda data: data + b"x", "is too long.*129 bytes"),
        (lambda data: data[:-1] + b"x", "is damaged: its checksum"),
        (lambda data: edited(data, shape="3x5"), "its header cannot be read"),
        (lambda data: edited(data, shape=[3, -5]), "its header cannot be read"),
        (lambda data: edited(data, shape=[3]), r"shape \(k, n\)"),
        (lambda data: edited(data, shape=[5, 3]), r"shape that is not its format's.*\(5, 3\)"),
        (lambda data: edited(data, shape=[2, 3, 5]), "another number of bytes.*128 .*256: 128 "),
        (lambda data: edited(data, shape=[0, 3, 5]), "another number of bytes.*128 .*0: 128 "),
        (lambda data: edited(data, shape=[10**30, 3, 5]), r"has no shape \(k, n\)"),
        (lambda data: edited(data, shape=[3, 10**30]), r"has no shape \(k, n\)"),
        (lambda data: edited(data, shape=[3.0, 5]), "its header cannot be read"),
        (lambda data: edited(data, format=data[:0].decode()), "an unknown format"),
        (lambda data: edited(data, format=FORM.text.replace("3x5", "33x5")), "not its format's"),
        (lambda data: edited(data, format=FORM.text.replace("of 8", "of 800")), "number of bytes"),
        (lambda data: edited(data, format=FORM.text.replace("of 8", f"of {10**30}")), "unknown"),
        (lambda data: edited(data, nbytes=10**30), r"is truncated.*1e\+30 bytes"),
        (lambda data: edited(data, nbytes=2**40), "is truncated"),
        (lambda data: edited(data, crc32=10**30), "checksum"),
        (lambda data: with_header(data, b"[" * 60_000), "its header cannot be read"),
        (lambda data: with_header(data, b"9" * 60_000), "its header cannot be read"),
        (lambda data: with_header(data, b" " * (1 << 17) + b"{}"), "its header cannot be read"),
        (lambda data: data[:20] + b"\xff" * 4 + data[24:], "its header cannot be read"),
        (lambda data: edited(data, nbytes=-1), "its header cannot be read"),
        (lambda data: data[:30] + b"\xff" + data[31:], "its header cannot be read"),
    ],
)
def test_another_file_is_refused(change: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "b"
    matrix().save(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArgumentError, match=f"(?s){says}"):
        PackedMatrix.load(path)


def test_a_terabyte_of_zeros_is_not_read(tmp_path: Path) -> None:
    """Neither of a format that has fewer bytes, nor of one that has as many."""
    path = tmp_path / "b"
    matrix().save(path)
    large = PackedFormat("u8", "u8", itemsize=1, k=1 << 10, n=1 << 40, nb=1 << 40, group=1,
                         sums=False)  # fmt: skip
    for changes, says in (
        ({"nbytes": 1 << 40}, "another number of bytes than its format says"),
        ({"nbytes": large.nbytes, "format": large.text, "shape": [1 << 10, 1 << 40]},
         "more than this machine's memory"),
    ):  # fmt: skip
        text = edited(path.read_bytes(), **changes)[:-NBYTES]
        sparse = tmp_path / "sparse"
        sparse.write_bytes(text)
        try:
            os.truncate(sparse, len(text) + int(f"{changes['nbytes']}"))
        except OSError:
            continue  # no file is so long here
        with pytest.raises(ArgumentError, match=says):
            PackedMatrix.load(sparse)


def test_what_it_is_made_of() -> None:
    with pytest.raises(ArgumentError, match="1-d uint8 array"):
        PackedMatrix(FORM.text, (3, 5), np.zeros(NBYTES, np.float32))
    with pytest.raises(ArgumentError, match=r"(?s)1-d uint8 array.*got: bytes"):
        PackedMatrix(FORM.text, (3, 5), b"0" * NBYTES)
    for shape in ((4,), (1, 1, 3, 5), (-1, 3, 5), 3, ("3", "5")):
        with pytest.raises(ArgumentError, match=r"shape \(k, n\)"):
            PackedMatrix(FORM.text, shape, np.zeros(NBYTES, np.uint8))  # type: ignore[arg-type]
    changes = (("s8 as", "s9 as"), ("of 8", "of 0"), ("of 8", "of 08"), ("columns", "columns "))
    for text in ("f", "", *(FORM.text.replace(old, new) for old, new in changes)):
        with pytest.raises(ArgumentError, match="unknown format"):
            PackedMatrix(text, (3, 5), np.zeros(NBYTES, np.uint8))


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [((3, 5), NBYTES - 1), ((3, 5), 0), ((3, 5), 2 * NBYTES), ((2, 3, 5), NBYTES),
     ((2**61, 3, 5), NBYTES), ((3, 3, 5), 4 * NBYTES)],
)  # fmt: skip
def test_bytes_that_are_not_the_formats_are_refused(shape: tuple[int, ...], nbytes: int) -> None:
    """Made by hand, and unpickled: what was written by another version, or by nobody's."""
    with pytest.raises(ArgumentError, match="another number of bytes"):
        PackedMatrix(FORM.text, shape, np.zeros(nbytes, np.uint8))
    make, given = matrix().__reduce__()
    with pytest.raises(ArgumentError, match="another number of bytes"):
        make(given[0], shape, np.zeros(nbytes, np.uint8))


@pytest.mark.parametrize("n", [1, 5, 40])
@pytest.mark.parametrize(
    ("a", "b"), [("f32", "f32"), ("u8", "s8"), ("bf16", "bf16"), ("f32", "f8_e4m3")]
)
@pytest.mark.parametrize("target", ["scalar", "avx512+vnni+bf16", "neon", "amx"])
def test_a_formats_text_says_all_of_it(target: str, a: Any, b: Any, n: int) -> None:
    for nb in (None, 16):
        form = format_of(tw.Gemm(4, n, 70, a=a, b=tw.Packed(b, nb)), resolve(target))
        assert format_named(form.text) == form


# -- at the call --------------------------------------------------------------------------------

TYPES: Any = {
    "f32": ("f32", "f32"),
    "bf16": ("bf16", "bf16"),
    "s8": ("u8", "s8"),
    "f64": ("f64", "f64"),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("batch", [None, tw.Strided(3), tw.Strided(3, b=0), tw.Addresses(2)])
def test_a_packed_b(name: str, batch: Any) -> None:
    a, b = TYPES[name]
    kernel = tw.compile(tw.Gemm(5, 7, 6, a=a, b=tw.Packed(b), batch=batch), target="scalar")
    assert kernel.verify().cases == 3


def test_one_for_a_family(tmp_path: Path) -> None:
    """The format depends neither on m nor on the batch, beta or D."""
    b = np.random.default_rng(0).integers(-128, 128, (6, 7)).astype(np.int8)
    some = [
        tw.Gemm(5, 7, 6, a="u8", b=tw.Packed("s8")),
        tw.Gemm(2, 7, 6, a="u8", b=tw.Packed("s8"), d="f32", beta=1),
        tw.Gemm(tw.dim("m"), 7, 6, a="u8", b=tw.Packed("s8"), d="u8", b_scale="column"),
    ]
    first, second, third = (tw.compile(spec, target="scalar") for spec in some)
    first.pack_b(b).save(tmp_path / "b")
    packed = tw.PackedMatrix.load(tmp_path / "b")
    a = np.random.default_rng(1).integers(0, 256, (5, 6)).astype(np.uint8)
    want = a.astype(np.int32) @ b.astype(np.int32)
    np.testing.assert_array_equal(first(a, packed), want)
    np.testing.assert_array_equal(second(a[:2], packed, np.ones((2, 7), np.int32)), want[:2] + 1)
    scale = np.full(7, 2.0**-9, np.float32)
    got = third(a, packed, b_scale=scale)
    np.testing.assert_array_equal(got, np.clip(np.rint(want / 512), 0, 255))


def test_it_is_refused_where_it_does_not_fit() -> None:
    spec = tw.Gemm(5, 7, 6, a="u8", b=tw.Packed("s8"))
    kernel = tw.compile(spec, target="scalar")
    a, b = np.zeros((5, 6), np.uint8), np.zeros((6, 7), np.int8)
    packed = kernel.pack_b(b)
    c = np.full((5, 7), 9, np.int32)
    other = tw.compile(tw.Gemm(5, 7, 8, a="u8", b=tw.Packed("s8")), target="scalar")
    unmade = PackedMatrix.__new__(PackedMatrix)
    robbed, cut = (PackedMatrix(packed.format, packed.shape, packed.data) for _ in range(2))
    object.__delattr__(robbed, "_record")
    object.__setattr__(cut, "data", cut.data[:64])
    object.__delattr__(cut, "_record")
    faults: list[tuple[Any, str]] = [
        (unmade, r"without its data.*<PackedMatrix without its data>.*kernel\.pack_b"),
        (robbed, "without its data"),
        (cut, "without its data"),
        (b, r"b must be a PackedMatrix.*int8 array.*kernel\.pack_b\(b\)"),
        (other.pack_b(np.zeros((8, 7), np.int8)), "packed in another format.*8x7.*6x7"),
        (forged(packed.format, (7, 6), packed.data), r"wrong shape.*\(7, 6\)"),
        (PackedMatrix(packed.format, (1, 6, 7), packed.data), "must be a 2-d array.*3-d"),
    ]
    for given, says in faults:
        with pytest.raises(ArgumentError, match=f"(?s){says}"):
            kernel(a, given, c)
        assert np.all(c == 9)
    each = tw.compile(
        tw.Gemm(5, 7, 6, a="u8", b=tw.Packed("s8"), batch=tw.Addresses(2)), target="scalar"
    )
    with pytest.raises(ArgumentError, match=r"b\[1\] is a PackedMatrix without its data"):
        each((a, a), (packed, unmade), c)
    plain = tw.compile(tw.Gemm(5, 7, 6, a="u8", b="s8"), target="scalar")
    with pytest.raises(ArgumentError, match=r"(?s)a numpy array.*PackedMatrix.*b=tw\.Packed\("):
        plain(a, packed, c)
    with pytest.raises(SpecError, match="takes no packed B"):
        plain.pack_b(b)


def test_what_is_packed() -> None:
    kernel = tw.compile(tw.Gemm(5, 7, 6, a="f32", b=tw.Packed("bf16")), target="scalar")
    b = np.random.default_rng(0).random((6, 7), np.float32)
    packed = kernel.pack_b(b)
    np.testing.assert_array_equal(kernel.pack_b(b.copy("F")).data, packed.data)
    bits = (b.view(np.uint32) + 0x7FFF + ((b.view(np.uint32) >> 16) & 1) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(kernel.pack_b(bits).data, packed.data)
    for given, says in (
        (b.T, "wrong shape.*expected: (6, 7)"),
        (b.astype(np.float64), "B's type, or of float32.*float64.*bfloat16"),
        (b.tolist(), "got: list"),
    ):
        with pytest.raises(ArgumentError, match=f"(?s){says}".replace("(6, 7)", r"\(6, 7\)")):
            kernel.pack_b(given)


def test_a_batch_of_one_is_packed_of_one_matrix() -> None:
    batches = tw.Strided(1), tw.Strided(2), tw.Strided(tw.dim("count"))
    one, two, any_ = tw.compile_many(
        [(tw.Gemm(5, 7, 6, b=tw.Packed("f32"), batch=batch), None, "scalar") for batch in batches]
    )
    a, b = np.random.default_rng(3).integers(-8, 8, (2, 7, 7)).astype(np.float32)
    a, b = a[:5, :6], b[:6]
    packed = one.pack_b(b)
    assert packed.shape == (1, 6, 7)
    np.testing.assert_array_equal(packed.data, one.pack_b(b[np.newaxis]).data)
    for kernel in (one, any_):
        np.testing.assert_array_equal(kernel(a[np.newaxis].copy(), packed), a @ b)
    for kernel, says in ((two, r"\(2, 6, 7\)"), (any_, r"\(count, 6, 7\)")):
        with pytest.raises(ArgumentError, match=rf"(?s)wrong shape.*expected: {says}"):
            kernel.pack_b(b)
    with pytest.raises(ArgumentError, match=r"(?s)wrong shape.*expected: \(1, 6, 7\)"):
        one.pack_b(b.T)
