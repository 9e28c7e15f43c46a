"""Find the nearest stored number for each element of a block, and the error.

In go elements in float64 with the steps and zeros of their blocks. Out come stored numbers, errors,
and rounded steps and zeros. An element stands for ``step * number + minimum``. Arrays are g x block
x n: g blocks along K, n columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.arrays.elements import decode, encode, encode_towards
from tilewright.runtime.arrays.memory import Array
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import Quantized

from .matrix import scale_values

#: Bias of the exponent in an e8m0 byte, and the largest byte that is not NaN.
_BIAS, _MOST = 127, 254


class Blocks(NamedTuple):
    """Quantization steps and zeros of blocks, g x 1 x n each, rounded to storable values.

    ``zeros`` are zero points or minima, whichever the format has.
    """

    steps: Array
    zeros: Array


@dataclass(frozen=True)
class Grid:
    """The numbers that a format can store as elements, and as scales and zero points."""

    form: Quantized

    @cached_property
    def numbers(self) -> Array:
        """All numbers that an element can be, ascending."""
        stored = self.form.stored
        if stored.values:
            return np.array(sorted(set(stored.values)), np.float64)
        if not stored.floating:
            return np.arange(stored.low, stored.high + 1, dtype=np.float64)
        every = decode(np.arange(1 << stored.bits, dtype=np.uint8), stored.unpacked)
        return np.unique(every[np.isfinite(every)])

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest number that an element can be."""
        return float(self.numbers[0]), float(self.numbers[-1])

    def minima(self, blocks: Blocks) -> Array:
        """Return for each block the value of an element whose stored number is 0."""
        if self.form.zeros == "minima":
            return blocks.zeros
        found: Array = -blocks.steps * blocks.zeros
        return found

    def nearest(self, w: Array, blocks: Blocks) -> Array:
        """Return the storable number nearest to each element of ``w``, g x block x n.

        An element halfway between two numbers gets the even one; of a table's numbers the greater
        one if its code is even, else the smaller one. If the step of a block is 0, all its elements
        get the number nearest to 0.
        """
        steps = np.where(blocks.steps == 0, np.inf, blocks.steps)
        exact = (w - self.minima(blocks)) / steps
        exact = np.clip(exact, *self.ends, out=exact)
        if not self.form.stored.values:
            return self._rounded(exact)
        return self.numbers[np.searchsorted(self._highest, exact)]

    def _rounded(self, exact: Array) -> Array:
        """Return the values rounded to integers, or to f8."""
        type_ = self.form.stored.unpacked
        if not self.form.stored.floating:
            found: Array = np.rint(exact, out=exact)
            return found
        return decode(encode(exact, type_), type_).astype(np.float64)

    @cached_property
    def _highest(self) -> Array:
        """For each number but the greatest, the highest value to which it is the nearest.

        It is half way to the next number, or just below that if the next number has an even code.
        """
        middles, codes = (self.numbers[:-1] + self.numbers[1:]) / 2, self.codes_of(self.numbers[1:])
        return np.where(codes % 2 == 0, np.nextafter(middles, -np.inf), middles)

    def beyond(self, least: Array, most: Array, blocks: Blocks) -> Array:
        """Return True for blocks with an element more than half a step out of range.

        ``least`` and ``most`` are the extremes of the elements; steps are not negative. A step at
        either end is the distance of the last two numbers there.
        """
        numbers, minima = self.numbers, self.minima(blocks)
        low = numbers[0] - (numbers[1] - numbers[0]) / 2
        high = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
        found: Array = (least - minima < blocks.steps * low) | (most - minima > blocks.steps * high)
        return found

    def vanish(self, least: Array, most: Array, blocks: Blocks) -> Array:
        """Return True for blocks whose elements are not all 0 but all become 0."""
        if self.form.zeros == "minima":
            return np.zeros(least.shape, bool)
        greatest = np.maximum(np.abs(least), np.abs(most))
        smallest = np.abs(self.numbers[self.numbers != 0]).min()
        found: Array = (greatest > 0) & (greatest <= blocks.steps * smallest / 2)
        return found

    def errors(self, w: Array, numbers: Array, blocks: Blocks) -> Array:
        """Return the sum of squared errors of each block: g x 1 x n."""
        off = blocks.steps * numbers
        off += self.minima(blocks)
        off -= w
        found: Array = np.square(off, out=off).sum(axis=1, keepdims=True)
        return found

    def codes_of(self, numbers: Array) -> Array:
        """Return numbers as ``QuantizedMatrix`` stores them: as integers or codes."""
        stored = self.form.stored
        if not stored.floating:
            return numbers.astype(DTYPES[stored.unpacked])
        if not stored.values:
            return encode(numbers, stored.unpacked).view(DTYPES[stored.unpacked])
        # If a number has two codes, the smaller one is taken.
        codes = np.array([stored.values.index(x) for x in self.numbers], DTYPES[stored.unpacked])
        return codes[np.searchsorted(self.numbers, numbers)]

    # --- what is stored beside them -------------------------------------------------------------

    @property
    def scales_have_signs(self) -> bool:
        """True if scales may be negative. Scales of type e8m0 and f8 may not."""
        return self.form.scale in ("f32", "f16", "bf16")

    def rounded_steps(self, steps: Array, *, up: bool = False) -> Array:
        """Return steps rounded to the nearest number of the scales' type, or upward if ``up``.

        Steps for e8m0 are always rounded up.
        """
        return self._steps_of(self.scales_of(steps, up=up))

    def scales_of(self, steps: Array, *, up: bool = False) -> Array:
        """Return the scales to be stored for ``steps``, in the scales' type.

        A scale is infinite or NaN if the step is too large for the type.
        """
        scales = steps / self.form.stored.unit
        if self.form.scale != "e8m0":
            type_ = self.form.scale
            return encode_towards(scales, type_, up=True) if up else encode(scales, type_)
        # ``fraction`` is at least 0.5 and less than 1.
        fraction, exponent = np.frexp(scales)
        power = exponent - (fraction == 0.5) + _BIAS
        return np.where(scales > 0, np.clip(power, 0, _MOST), 0).astype(np.uint8)

    def _steps_of(self, scales: Array) -> Array:
        found: Array = scale_values(scales, self.form).astype(np.float64) * self.form.stored.unit
        return found

    def rounded_zeros(self, zeros: Array, *, down: bool = False) -> Array:
        """Return zero points or minima rounded to their type.

        If ``down``, minima are never rounded up.
        """
        kind = self.form.zeros
        if kind == "minima":
            type_ = str(self.form.zero)
            stored = encode_towards(zeros, type_, up=False) if down else encode(zeros, type_)
            return decode(stored, type_)
        if kind == "zeros":
            found: Array = np.clip(np.rint(zeros), *self.ends)
            return found
        return np.full(zeros.shape, float(self.form.offset))

    def zeros_of(self, zeros: Array) -> Any:
        """Return rounded zero points or minima in the type in which they are stored.

        It is None if the format has one zero point for all.
        """
        kind = self.form.zeros
        if kind == "minima":
            return encode(zeros, str(self.form.zero))
        return zeros.astype(DTYPES[self.form.stored.unpacked]) if kind else None
