"""The right results of a product whose D is packed: its elements, and the bytes of the format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.errors import VerificationError
from tilewright.plan.formats.packed_b import PackedFormat
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.bound_sizes import Array

from .copy import unpacked
from .gemm import Expected
from .interval import Interval
from .pack_b import packed_in


@dataclass(frozen=True, slots=True)
class PackedExpected(Expected):
    """The right bytes of a packed D, and its right ``elements`` as an m x n matrix.

    A byte may be anything if it differs between the least and the greatest right element, or if a
    higher byte of its element does.
    """

    elements: Expected
    form: PackedFormat[int]

    def unpacked(self, got: Array) -> Array:
        """Return the m x n elements of a packed D; VerificationError for wrong padding or sums."""
        found = unpacked(self.form, got.reshape(-1))
        again = packed_in(self.form, [found])
        wrong = np.flatnonzero(again.reshape(-1) != got.reshape(-1))
        if wrong.size:
            at = int(wrong[0])
            raise VerificationError(
                f"byte {at} of a packed D is wrong: it is no element",
                got=int(got.reshape(-1)[at]),
                expected=f"{int(again.reshape(-1)[at])}, as pack_a fills {self.form.text}",
            )
        return found.T


def packed_expected(elements: Expected, form: PackedFormat[int]) -> PackedExpected:
    """Return the right results for a D in a packed format, given those of its elements."""
    low, high, nan = elements.limits()
    unsure = nan | ~np.isfinite(low) | ~np.isfinite(high)
    held = [encode(np.where(unsure, 0, end), form.type) for end in (low, high)]
    bits = held[1].view(f"u{held[1].itemsize}")
    bits[unsure] = np.iinfo(bits.dtype).max
    least, most = (packed_in(form, [end.T]).reshape(-1) for end in held)
    split = form.sums_at
    parts = [(least[:split], most[:split], form.itemsize), (least[split:], most[split:], 4)]
    differs = np.concatenate([_differing(*part) for part in parts]).reshape(1, -1)
    value = least.astype(np.float64).reshape(1, -1)
    free = np.where(differs, np.nan, value)
    return PackedExpected(Interval(value, free, free, "f32"), "u8", elements, form)


def _differing(least: Array, most: Array, size: int) -> Array:
    """Return the bytes of numbers of ``size`` bytes that differ, and the bytes below these."""
    differs = (least != most).reshape(-1, size)
    below = np.logical_or.accumulate(differs[:, ::-1], axis=1)[:, ::-1]
    return below.reshape(-1)
