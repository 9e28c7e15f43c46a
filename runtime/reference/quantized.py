"""Compute with numpy how kernels quantize A, and the sums of its products with a low-bit B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tilewright.elementwise.operations import compute
from tilewright.isa.target import Target
from tilewright.plan.formats.low_bit import QuantizedRows
from tilewright.plan.formats.quantized_a import rows_format_of
from tilewright.runtime.arrays.elements import decode, epsilon
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import Gemm
from tilewright.spec.pack import QuantizeRows
from tilewright.spec.quantized import Quantize
from tilewright.spec.types import ITEMSIZE

from .interval import LEAST, Interval

_TOP, _HALF, _LEAST = np.float32(127), np.float32(127.5), np.float32(2.0**-119)


class Blocks(NamedTuple):
    """A matrix A with quantized rows: integers, a scale and a zero point for each block of a row.

    ``q`` is int64, with zero points subtracted.
    """

    q: Array
    scales: Array
    zeros: Array


def quantized(a: Array, how: Quantize | None, block: int) -> Blocks:
    """Quantize rows of float32 as ``tw.Quantize`` says; the last block is padded with zeros.

    If ``how`` is None, the rows are already integers and the scales are 1.
    """
    rows, k = a.shape
    count = -(-k // block)
    padded = np.zeros((rows, count * block), np.float32)
    padded[:, :k] = a
    if how is None:
        ones = np.ones((rows, count), np.float32)
        return Blocks(padded.astype(np.int64), ones, np.zeros((rows, count), np.int64))
    width = padded.shape[1] if how.block is None else block
    parts = padded.reshape(rows, 1 if how.block is None else count, width)
    with np.errstate(all="ignore"):
        q, scales, zeros = (_in_range if how.zero else _on_both_sides)(parts)
    scales = np.where(np.isfinite(parts).all(axis=2), scales, np.float32(np.nan))
    q = np.where(np.isnan(q), 0, q).astype(np.int64)
    each = (np.broadcast_to(x, (rows, count)) for x in (scales, zeros.astype(np.int64)))
    return Blocks(q.reshape(rows, count * block), *each)


def packed_rows(spec: QuantizeRows, target: Target, a: Array) -> Array:
    """Return the bytes of an A that is quantized ahead, in one row."""
    form = rows_format_of(spec, target).of(spec.k, len(a))
    rows = decode(np.asarray(a), spec.a.type).astype(np.float32)
    return packed_blocks(form, quantized(rows, spec.a, form.block))


def packed_blocks(form: QuantizedRows, found: Blocks) -> Array:
    """Return the bytes of quantized rows in their packed format, in one row."""
    count = len(found.q)
    stored = found.q + np.repeat(found.zeros, form.block, axis=1)
    sums, given = (x.reshape(count, form.blocks, form.block).sum(axis=2) for x in (found.q, stored))
    scaled = sums.astype(np.float32) * (found.scales if form.sums == "scaled" else np.float32(-1))
    values = {
        "a": stored,
        "a_scales": found.scales,
        "a_zeros": -found.zeros,
        "a_starts": -form.bias * given,
        "a_totals": scaled,
    }
    data: Array = np.zeros((count, form.row_bytes), np.uint8)
    for name, (type_, begin, size) in form.parts.items():
        part = np.ascontiguousarray(values[name][:, :size].astype(DTYPES[type_]))
        data[:, begin : begin + ITEMSIZE[type_] * size] = part.view(np.uint8)
    return data.reshape(1, -1)


def _on_both_sides(parts: Array) -> tuple[Array, Array, Array]:
    """Quantize blocks without zero points: return integers from -127 to 127, scales, and zeros."""
    top = np.abs(parts).max(axis=2, initial=0)
    # ``there`` is False for a block that holds a NaN.
    there = top >= _LEAST
    scales = np.where(there, top / _TOP, np.float32(0))
    units = np.where(there, _TOP / top, np.float32(0))
    q = np.rint(np.clip(parts * units[:, :, None], -_TOP, _TOP))
    return q, scales, np.zeros_like(scales)


def _in_range(parts: Array) -> tuple[Array, Array, Array]:
    """Quantize blocks with zero points: return integers less zero points, scales, zero points."""
    half = np.float32(0.5)
    low, high = parts.min(axis=2, initial=0), parts.max(axis=2, initial=0)
    reach = high * half - low * half
    there = reach >= _LEAST
    scales = np.where(there, reach / _HALF, np.float32(0))
    units = np.where(there, _HALF / reach, np.float32(0))
    zeros = np.clip(np.rint(np.float32(-128) - low * units), -128, 127)
    at = zeros[:, :, None]
    return np.clip(np.rint(parts * units[:, :, None]) + at, -128, 127) - at, scales, zeros


def block_count(spec: Gemm, operands: Mapping[str, Any], b: str) -> int:
    """Return how many sums of blocks of K are added into one element of C."""
    assert spec.quantized is not None
    return sum(spec.quantized.blocks(*right.shape)[0] for right in operands[b])


def block_sums(
    spec: Gemm, operands: Mapping[str, Any], b: str, zero: Array | None = None
) -> Interval:
    """Return the sums of products as kernels compute them: exact in each block of K, then in f32.

    ``zero`` is A's zero point, in a shape that broadcasts to D's.
    The sum of a block is multiplied by its scales and added with one FMA.
    A kernel that adds parts of K separately is also within the bound.
    """
    form = spec.quantized
    assert form is not None
    total: Array | None = None
    magnitude: Any = 0.0
    steps = 0
    for left, right in zip(operands["a"], operands[b], strict=True):
        assert isinstance(right, QuantizedMatrix)
        k, n = right.shape
        block = form.block_of(k)
        rows = decode(np.asarray(left), spec.a.type).astype(np.float32)
        a = quantized(rows, spec.quantize, block)
        if zero is not None:
            a.q[:, :k] -= zero
        if spec.scales_of_blocks is not None:
            a = a._replace(scales=np.asarray(operands["a_scale"]))
        whole = np.zeros((a.q.shape[1], n), np.int64)
        whole[:k] = right.numbers() - form.offset
        if form.zeros == "zeros":
            assert right.zeros is not None
            zeros = right.by_column(right.zeros.astype(np.int64))
            whole[:k] -= np.repeat(zeros, block, axis=0)[:k]
        scales = right.factors()
        total = np.zeros((len(a.q), n), np.float32) if total is None else total
        for index in range(len(scales)):
            part = slice(index * block, (index + 1) * block)
            sums = (a.q[:, part] @ whole[part]).astype(np.float32)
            with np.errstate(all="ignore"):
                each = a.scales[:, index, None] * scales[None, index]
                magnitude = magnitude + np.abs(sums.astype(np.float64) * each)
            total = compute("fma", sums, each, total)
            steps += 1
            if form.zeros == "minima" and right.zeros is not None:
                minima = right.by_column(decode(right.zeros[index], str(form.zero)))
                minima = minima.astype(np.float32)
                own = a.q[:, part].sum(axis=1).astype(np.float32) * a.scales[:, index]
                magnitude = magnitude + np.abs(own.astype(np.float64)[:, None] * minima)
                total = compute("fma", *np.broadcast_arrays(own[:, None], minima, total))
    if total is None:
        shape = operands["c" if "c" in operands else "out"].shape
        return Interval.exactly(np.zeros(shape), "f32")
    bound = (steps + 4) * (epsilon("f32") * magnitude + LEAST["f32"])
    return Interval.around(total.astype(np.float64), bound, "f32")
