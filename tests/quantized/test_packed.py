"""Packed bytes of quantized matrices: back to numbers, and refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.plan.formats.low_bit import QuantizedFormat
from tilewright.plan.formats.named import format_named
from tilewright.plan.formats.quantized_b import quantized_format
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.quantized.matrix import quantized_bytes

Array = np.ndarray[Any, Any]
FORMATS = (
    tw.Quantized("u4", scale="f16", zero=8, block=32),
    tw.Quantized("s4", scale="f16", zero=-3, block=24),
    tw.Quantized("s8", scale="bf16", block=40),
    tw.Quantized("u8", scale="f32", zero=131, block=16),
    tw.Quantized("s8", scale="f16", zero="s8", block=24),
    tw.Quantized("u4", scale="f16", zero="u4", block=32),
    tw.Quantized("s2", scale="f32", zero="bf16", block=16),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("f4_e2m1", scale="f16", zero="f32", block=40),
    tw.Quantized("u8", scale="f32", zero=128),
    tw.Quantized("s4", scale="bf16", zero="f16", block=(48, 7)),
)


def packed(b: tw.QuantizedMatrix, target: str, integers: bool = True) -> tw.PackedMatrix:
    """``b`` as a kernel for ``target`` takes it, with or without an A that it quantizes."""
    k, n = b.shape
    a: Any = tw.Quantize(per=b.format.per) if integers else "f32"
    form = quantized_format(tw.Gemm(2, n, k, a=a, b=tw.Packed(b.format)), resolve(target))
    return tw.PackedMatrix(form.text, b.shape, quantized_bytes(b, form))


@pytest.mark.parametrize("type_", ["f8_e4m3", "f8_e5m2"])
def test_numbers_of_eight_bits_come_back(type_: Any) -> None:
    w = np.random.default_rng(2).normal(size=(75, 33))
    b = tw.quantize(w, tw.Quantized(type_, scale="f32", block=(16, 8)))
    right = b.dequantize()
    digits = {"f8_e4m3": 3, "f8_e5m2": 2}[type_]
    small = np.abs(w) < np.abs(w).max() / 64  # some of which f8 has fewer digits
    assert (np.abs(right - w) <= np.abs(w) * 2.0**-digits / 2)[~small].all()
    assert (packed(b, "scalar", integers=False).dequantize() == right).all()


@pytest.mark.parametrize("target", ["avx512+vnni", "avx2", "neon", "scalar"])
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_numbers_come_back(form: tw.Quantized, target: str) -> None:
    k, n = 3 * (form.along or 70) - 5, 37
    w = np.random.default_rng(0).normal(size=(k, n)) + 0.5
    b = tw.quantize(w, form)
    right = b.dequantize()
    for integers in (True, False):
        assert (packed(b, target, integers).dequantize() == right).all()


def test_several_matrices_come_back() -> None:
    form = FORMATS[0]
    spec = tw.Gemm(
        2, 20, 64, a=tw.Quantize(per=("row", 32)), b=tw.Packed(form), batch=tw.Strided(3)
    )
    b = tw.quantize(np.random.default_rng(1).normal(size=(3, 64, 20)), form)
    got = tw.compile(spec, target="scalar").pack_b(b).dequantize()
    assert got.shape == (3, 64, 20) and (got == b.dequantize()).all()


def test_formats_that_stand_for_other_numbers_are_not_one() -> None:
    """The bytes are as many, and alike; a kernel for one must refuse those of another."""
    zeros: Any = (0, 8, "u4", "f16", "bf16")
    a = tw.Quantize(per=("row", 32))
    forms = [tw.Quantized("u4", scale="f16", zero=zero, block=32) for zero in zeros]
    specs = [tw.Gemm(2, 8, 32, a=a, b=tw.Packed(form)) for form in forms]
    made = [quantized_format(spec, resolve("host")) for spec in specs]
    assert len({form.text for form in made}) == len(made)
    assert [format_named(form.text) for form in made] == made
    kernel = tw.compile(specs[0], target="scalar")
    other = packed(tw.quantize(np.ones((32, 8)), forms[1]), "scalar")
    with pytest.raises(ArgumentError, match="less 8"):
        kernel(np.ones((2, 32), np.float32), other)


def test_a_file_that_lies_about_its_sizes_is_refused(tmp_path: Path) -> None:
    matrix = packed(tw.quantize(np.ones((64, 20)), FORMATS[0]), "scalar")
    path = tmp_path / "b"
    matrix.save(path)
    assert (tw.PackedMatrix.load(path).dequantize() == matrix.dequantize()).all()
    whole = path.read_bytes()
    end = 24 + int.from_bytes(whole[20:24], "little")
    header = json.loads(whole[24:end])
    form = format_named(matrix.format)
    assert isinstance(form, QuantizedFormat)
    for change, said in (
        ({"shape": [64, 21]}, "shape that is not its format's"),
        ({"shape": [2, 64, 20]}, "another number of bytes"),
        ({"format": form.text.replace("for 32", "for 16")}, "another number of bytes"),
        ({"format": form.text.replace("f16 scales", "f32 scales")}, "another number of bytes"),
        ({"format": form.text.replace("64x20", "128x20"), "shape": [128, 20]}, "number of bytes"),
        ({"format": form.text.replace("for 32", "for 0")}, "unknown format"),
        ({"format": form.text.replace("u4", "u7")}, "unknown format"),
        ({"format": form.text.replace("less 8", "less 08")}, "unknown format"),
        ({"nbytes": form.nbytes - 1}, "too long"),
    ):
        text = json.dumps(header | change).encode()
        start = whole[:20] + len(text).to_bytes(4, "little")
        path.write_bytes(start + text + whole[end:])
        with pytest.raises(ArgumentError, match=said):
            tw.PackedMatrix.load(path)


def test_what_is_not_quantized_has_no_such_numbers() -> None:
    kernel = tw.compile(tw.Gemm(2, 8, 8, b=tw.Packed("f32")), target="scalar")
    with pytest.raises(ArgumentError, match="not quantized in blocks"):
        kernel.pack_b(np.ones((8, 8), np.float32)).dequantize()
