"""How far formats of few bits are from the numbers they stand for, and what least squares gains.

    python examples/quantized_formats.py [K N]           (by default: 1024 256)

A matrix of normally distributed numbers is quantized by both methods. Printed is the root of the
mean square by which elements are off, in percent of that of the numbers themselves.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import tilewright as tw

#: Formats by the name of a container that holds them, "" where none of those here does.
FORMATS = (
    ("q8_0", tw.Quantized("s8", scale="f16", block=32)),
    ("q4_0", tw.Quantized("u4", scale="f16", zero=8, block=32)),
    ("q4_1", tw.Quantized("u4", scale="f16", zero="f16", block=32)),
    ("GPTQ, AWQ", tw.Quantized("u4", scale="f16", zero="u4", block=128)),
    ("mxfp4", tw.Quantized("f4_e2m1", scale="e8m0", block=32)),
    ("nvfp4", tw.Quantized("f4_e2m1", scale="f8_e4m3", block=16)),
    ("", tw.Quantized("u2", scale="f16", zero="f16", block=16)),
    ("", tw.Quantized("s2", scale="f16", block=16)),
)
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "e8m0": 8, "f8_e4m3": 8}


def bits(form: tw.Quantized, k: int) -> float:
    """Bits for a weight, with its share of what blocks have beside their elements."""
    beside = _BITS[form.scale]
    if form.zeros:
        beside += _BITS.get(str(form.zero), form.stored.bits)
    return form.stored.bits + beside / (form.block_of(k) * form.columns)


def error(w: np.ndarray[Any, Any], form: tw.Quantized, method: Any) -> float:
    """By how many percent elements are off."""
    off = tw.quantize(w, form, method=method).dequantize().astype(np.float64) - w
    return 100 * float(np.linalg.norm(off) / np.linalg.norm(w))


def main(k: int = 1024, n: int = 256) -> None:
    """Print a line for each format."""
    w = np.random.default_rng(0).standard_normal((k, n)).astype(np.float32)
    print(f"{'elements, scale, zero, block':32}{'container':11} bits  nearest  least squares")
    for container, form in FORMATS:
        said = f"{form.type} {form.scale} {form.zero} {form.block}"
        nearest, least = (error(w, form, method) for method in ("nearest", "least_squares"))
        print(f"{said:32}{container:11}{bits(form, k):5.2f}{nearest:8.2f}%{least:14.2f}%")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
