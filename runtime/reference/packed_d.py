"""The right results of a product whose D is packed: its elements, and the bytes of the format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.errors import VerificationError
from tilewright.isa.target import Target
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import format_of_d, packing_of_d
from tilewright.plan.formats.low_bit import QuantizedRows
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.bound_sizes import Array
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import Gemm
from tilewright.spec.pack import QuantizeRows

from .copy import unpacked
from .gemm import Expected
from .interval import Interval
from .pack_b import packed_in
from .quantized import Blocks, packed_blocks, packed_rows

#: The largest error of a quantized number in scales: one half if it is only rounded, and one more
#: with zero points, which are rounded too. The product with a rounded factor adds less than 2**-14.
#: ``_NEAR`` is more than the relative rounding of a scale.
_ROUNDED, _NEAR = {False: 0.5 + 2.0**-14, True: 1.5 + 2.0**-14}, 2.0**-20


@dataclass(frozen=True, slots=True)
class PackedExpected(Expected):
    """The right bytes of a packed D, and its right ``elements`` as an m x n matrix.

    The bytes are for C programs, which compare only these. A byte may be anything if it differs
    between the least and the greatest right element, or if a higher byte of its element does.
    """

    elements: Expected
    form: PackedFormat[int] | QuantizedRows

    def shown(self, got: Array) -> tuple[Expected, Array]:
        """Return the right elements of ``got`` and those that it has, as m x n matrices.

        Raises VerificationError if a byte is wrong that follows from the elements: padding, a sum.
        """
        data = got.reshape(-1)
        if isinstance(self.form, QuantizedRows):
            blocks = _blocks(self.form, data)
            self._same(data, packed_blocks(self.form, blocks))
            return _near(self.elements, self.form, blocks)
        found = unpacked(self.form, data)
        self._same(data, packed_in(self.form, [found]))
        return self.elements, found.T

    def _same(self, got: Array, again: Array) -> None:
        wrong = np.flatnonzero(again.reshape(-1) != got)
        if wrong.size:
            at = int(wrong[0])
            raise VerificationError(
                f"byte {at} of a packed D is wrong: it is no element",
                got=int(got[at]),
                expected=f"{int(again.reshape(-1)[at])}, as pack_a fills {self.form.text}",
            )


def packed_expected(elements: Expected, spec: Gemm, target: Target) -> PackedExpected:
    """Return the right results for the packed D of ``spec``, given those of its elements."""
    m, n = elements.values.value.shape
    form = format_of_d(spec, target).of(n, m)
    low, high, nan = elements.limits()
    unsure = nan | ~np.isfinite(low) | ~np.isfinite(high)
    if isinstance(form, QuantizedRows):
        packing = packing_of_d(spec, target)
        assert isinstance(packing, QuantizeRows)
        given = encode(np.where(unsure, 0, low), packing.a.type)
        least = packed_rows(packing, target, given).reshape(-1)
        rows = (unsure | (low != high)).any(axis=1)
        differs = np.repeat(rows, form.row_bytes)
    else:
        least, differs = _packed(form, (low, high), unsure)
    value = least.astype(np.float64).reshape(1, -1)
    free = np.where(differs.reshape(1, -1), np.nan, value)
    return PackedExpected(Interval(value, free, free, "f32"), "u8", elements, form)


def _packed(
    form: PackedFormat[int], ends: tuple[Array, Array], unsure: Array
) -> tuple[Array, Array]:
    """Return the bytes of the least elements, and a mask of the bytes that may differ."""
    held = [encode(np.where(unsure, 0, end), form.type) for end in ends]
    bits = held[1].view(f"u{held[1].itemsize}")
    bits[unsure] = np.iinfo(bits.dtype).max
    least, most = (packed_in(form, [end.T]).reshape(-1) for end in held)
    split = form.sums_at
    parts = [(least[:split], most[:split], form.itemsize), (least[split:], most[split:], 4)]
    return least, np.concatenate([_differing(*part) for part in parts])


def _differing(least: Array, most: Array, size: int) -> Array:
    """Return the bytes of numbers of ``size`` bytes that differ, and the bytes below these."""
    differs = (least != most).reshape(-1, size)
    below = np.logical_or.accumulate(differs[:, ::-1], axis=1)[:, ::-1]
    return below.reshape(-1)


def _blocks(form: QuantizedRows, data: Array) -> Blocks:
    """Return the integers, scales and zero points in the bytes of quantized rows."""
    rows, parts = data.reshape(-1, form.row_bytes), {}
    for name, (type_, begin, count) in form.parts.items():
        nbytes = DTYPES[type_].itemsize * count
        parts[name] = np.ascontiguousarray(rows[:, begin : begin + nbytes]).view(DTYPES[type_])
    each = len(rows), form.blocks
    scales = np.broadcast_to(parts["a_scales"], each)
    zeros = -np.broadcast_to(parts["a_zeros"] if form.zeros else 0, each).astype(np.int64)
    return Blocks(parts["a"] - np.repeat(zeros, form.block, axis=1), scales, zeros)


def _near(right: Expected, form: QuantizedRows, blocks: Blocks) -> tuple[Expected, Array]:
    """Return the numbers that quantized rows may represent, and those that they do.

    Raises VerificationError if a scale is not that of its row's or block's elements.
    """
    n, each = form.k, form.blocks if not form.whole else 1
    low, high, nan = right.limits()
    unsure = nan | ~np.isfinite(low) | ~np.isfinite(high)
    _check_scales(form, blocks.scales[:, :each], low, high, unsure)
    scales = np.repeat(blocks.scales, form.block, axis=1)[:, :n].astype(np.float64)
    found = blocks.q[:, :n] * scales
    beside = _ROUNDED[form.zeros] * scales + 2.0**-118
    free = np.any(unsure | np.isnan(scales), axis=1, keepdims=True)
    low, high = (np.where(free, np.nan, end) for end in (low - beside, high + beside))
    values = Interval(np.where(free, 0, right.values.value), low, high, "f64")
    return Expected(values, "f64"), np.where(free, 0, found)


def _check_scales(
    form: QuantizedRows, scales: Array, low: Array, high: Array, unsure: Array
) -> None:
    width = form.block if scales.shape[1] > 1 or not form.whole else form.blocks * form.block
    sides = [np.zeros((len(low), scales.shape[1], width)) for _ in range(2)]
    for side, end in zip(sides, (low, high), strict=True):
        side.reshape(len(low), -1)[:, : form.k] = end
    lows, highs = sides
    if form.zeros:
        least = (lows.max(axis=2, initial=0) - highs.min(axis=2, initial=0)) / 2 / 127.5
        most = (highs.max(axis=2, initial=0) - lows.min(axis=2, initial=0)) / 2 / 127.5
    else:
        nearest = np.where(lows * highs < 0, 0, np.minimum(np.abs(lows), np.abs(highs)))
        least = nearest.max(axis=2, initial=0) / 127
        most = np.maximum(np.abs(lows), np.abs(highs)).max(axis=2, initial=0) / 127
    inside = (scales >= least * (1 - _NEAR) - 2.0**-118) & (scales <= most * (1 + _NEAR))
    wrong = np.argwhere(~inside & ~unsure.any(axis=1, keepdims=True))
    if wrong.size:
        at = tuple(map(int, wrong[0]))
        raise VerificationError(
            f"the scale of row {at[0]}, block {at[1]} of a packed D is wrong",
            got=float(scales[at]),
            expected=f"{least[at]:g} to {most[at]:g}",
        )
