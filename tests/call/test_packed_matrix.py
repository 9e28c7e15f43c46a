"""Packed matrices: what they are, their files, and the files that are refused."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError
from tilewright.runtime.call.packed_matrix import PackedMatrix


def matrix(shape: tuple[int, ...] = (3, 5), nbytes: int = 200) -> PackedMatrix:
    data = np.arange(nbytes, dtype=np.uint8)
    return PackedMatrix("s8 in groups of 4", shape, data)


def test_it_says_what_it_is() -> None:
    packed = matrix()
    assert (packed.format, packed.shape, packed.nbytes) == ("s8 in groups of 4", (3, 5), 200)
    assert packed.data.dtype == np.uint8
    assert packed.data.ctypes.data % 64 == 0
    assert repr(packed) == "<PackedMatrix 3x5 in s8 in groups of 4, 200 bytes>"
    assert not isinstance(packed, np.ndarray)


def test_it_is_immutable() -> None:
    packed = matrix()
    with pytest.raises(AttributeError, match="immutable"):
        packed.format = "another"
    with pytest.raises(ValueError, match="read-only"):
        packed.data[0] = 1


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_it_is_saved_and_loaded(shape: tuple[int, ...], tmp_path: Path) -> None:
    packed = matrix(shape)
    packed.save(tmp_path / "b")
    for copy in (PackedMatrix.load(tmp_path / "b"), pickle.loads(pickle.dumps(packed))):
        assert (copy.format, copy.shape) == (packed.format, packed.shape)
        np.testing.assert_array_equal(copy.data, packed.data)
        assert copy.data.ctypes.data % 64 == 0
    start = (tmp_path / "b").read_bytes()
    assert len(start) % 64 == 200 % 64  # the data lies at a cache line of the file


def edited(data: bytes, **changes: Any) -> bytes:
    """The file with another header."""
    _, _, length = struct.unpack("<16sII", data[:24])
    header = {**json.loads(data[24 : 24 + length]), **changes}
    text = json.dumps(header).encode().ljust(length)
    return data[:24] + text + data[24 + length :]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: b"", "is no packed matrix"),
        (lambda data: b"PK\3\4" + data[4:], "is no packed matrix"),
        (lambda data: data[:20], "is no packed matrix"),
        (lambda data: data[:16] + b"\2" + data[17:], "another version.*got: 2.*expected: 1"),
        (lambda data: data[:60], "truncated or damaged: its header"),
        (lambda data: data[:-1], "is truncated.*199 bytes of data.*200"),
        (lambda data: data + b"x", "is too long.*201 bytes"),
        (lambda data: data[:-1] + b"x", "is damaged: its checksum"),
        (lambda data: edited(data, shape="3x5"), "its header cannot be read"),
        (lambda data: edited(data, shape=[3, -5]), "its header cannot be read"),
        (lambda data: edited(data, shape=[3]), r"shape \(k, n\)"),
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


def test_what_it_is_made_of() -> None:
    with pytest.raises(ArgumentError, match="1-d uint8 array"):
        PackedMatrix("f", (2, 2), np.zeros(4, np.float32))
    with pytest.raises(ArgumentError, match=r"shape \(k, n\)"):
        PackedMatrix("f", (4,), np.zeros(4, np.uint8))


# -- at the call --------------------------------------------------------------------------------

TYPES = {"f32": ("f32", "f32"), "bf16": ("bf16", "bf16"), "s8": ("u8", "s8"), "f64": ("f64", "f64")}


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
    faults: list[tuple[Any, str]] = [
        (b, r"b must be a PackedMatrix.*int8 array.*kernel\.pack_b\(b\)"),
        (other.pack_b(np.zeros((8, 7), np.int8)), "packed in another format.*8x7.*6x7"),
        (PackedMatrix(packed.format, (7, 6), packed.data), r"wrong shape.*\(7, 6\)"),
        (PackedMatrix(packed.format, (1, 6, 7), packed.data), "must be a 2-d array.*3-d"),
    ]
    for given, says in faults:
        with pytest.raises(ArgumentError, match=f"(?s){says}"):
            kernel(a, given, c)
        assert np.all(c == 9)
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
