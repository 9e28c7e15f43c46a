"""Random elements for the operands, scales and zero points of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt

import numpy as np

from tilewright.plan.formats.layout import packed_format_named
from tilewright.runtime.arrays.elements import INTEGERS, encode
from tilewright.runtime.call.bound_sizes import Array, value_of
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import QUANTITIES
from tilewright.spec.quantized import Quantized
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import Size
from tilewright.spec.types import is_integer

#: Largest whole number that is drawn if results are to be exact.
_WHOLE = 4
#: Magnitude to which sums are scaled before they become an integer D. It covers most of s8's range,
#: and some sums saturate.
_REACH = 64.0
#: Typical magnitude of integer sums that wrap at 32 bits.
_WRAPPED = 2.0**31 / sqrt(3)
#: One zero point in this many is drawn from all 32-bit integers.
_RARE = 8


class Draws:
    """Draws the elements of the operands of one call.

    If ``whole``, elements are small whole numbers and powers of two, so that results are exact.
    Otherwise integers cover the range of their type, and other numbers are between -1 and 1.
    ``gain`` is the factor by which fixed scales multiply the sums.
    """

    def __init__(
        self,
        signature: Signature,
        sizes: Mapping[str, int],
        rng: np.random.Generator,
        *,
        whole: bool,
        gain: float,
    ) -> None:
        self._signature, self._sizes, self._rng, self._whole = signature, sizes, rng, whole
        names = [p.name for p in signature.arrays]
        scales = [name for name in ("d_scale", "b_scale", "a_scale") if name in names]
        #: Name of the scale that brings sums into the range of an integer D.
        self._fitted = scales[0] if scales and is_integer(signature.output.type) else None
        self._size_of_sums = gain * self._spread()

    def __call__(self, parameter: ArrayParameter, shape: tuple[int, ...]) -> Array:
        """Return random elements for one operand, as an array of the operand's type."""
        name = parameter.name
        if parameter.is_bytes:
            return self._bytes(parameter.format, shape)
        if parameter.quantized is not None:
            parts = {"q": self.stored, "scales": self.scales, "zeros": self.zeros}
            return parts[name](parameter.quantized, shape)
        if name in QUANTITIES and name.endswith("_scale"):
            numbers = self._scale(name, shape)
        elif name in QUANTITIES:
            numbers = self._zero(parameter, shape)
        elif is_integer(parameter.type):
            low, high = self._range(parameter)
            numbers = self._rng.integers(low, high + 1, shape)
        elif self._whole:
            numbers = self._rng.integers(-_WHOLE, _WHOLE + 1, shape)
        else:
            numbers = self._rng.uniform(-1, 1, shape)
            if parameter.packed and parameter.chosen:  # a layer's sums are as large as its inputs
                numbers *= sqrt(3 / shape[0])
        return encode(numbers, parameter.type)

    def stored(self, form: Quantized, shape: tuple[int, ...]) -> Array:
        """Return random elements of a low-bit format, as a ``QuantizedMatrix`` stores them."""
        if not is_integer(form.stored.unpacked):
            numbers: Array = self._rng.uniform(-1, 1, shape)
            if self._whole:
                numbers = self._rng.integers(-_WHOLE, _WHOLE + 1, shape)
            return encode(numbers, form.stored.unpacked)
        low, high = form.stored.low, form.stored.high
        if self._whole and not form.stored.values:
            low, high = max(low, form.offset - _WHOLE), min(high, form.offset + _WHOLE)
        return self._rng.integers(low, high + 1, shape).astype(DTYPES[form.stored.unpacked])

    def _bytes(self, format: str, shape: tuple[int, ...]) -> Array:
        """Return rows of bytes in a packed format, of elements that B's type can have."""
        form = packed_format_named(format)
        assert form is not None
        low, high = INTEGERS[form.type] if is_integer(form.type) else (-_WHOLE, _WHOLE)
        drawn = self._rng.integers(low, high + 1, (shape[0], shape[1] // form.itemsize))
        return encode(drawn + form.shift, form.stored).view(np.uint8)

    def scales(self, form: Quantized, shape: tuple[int, ...]) -> Array:
        """Return random scales for the blocks of a low-bit matrix, of both signs if possible."""
        if form.scale == "e8m0":
            return self._rng.integers(118, 128, shape).astype(np.uint8)
        numbers: Array = self._rng.uniform(0.5, 2, shape) * self._rng.choice([-1, 1], shape)
        numbers = np.sign(numbers) / 4 if self._whole else numbers / 64
        return encode(numbers, form.scale)

    def zeros(self, form: Quantized, shape: tuple[int, ...]) -> Array:
        """Return random zero points, or minima, for the blocks of a low-bit matrix."""
        if form.zeros == "zeros":
            return self.stored(form, shape)
        return encode(self._rng.integers(-_WHOLE, _WHOLE + 1, shape) / 8, str(form.zero))

    def factor(self, type_: str) -> float:
        """Return a random value for alpha or beta."""
        if self._whole or is_integer(type_):
            return float(self._rng.integers(-3, 4))
        return float(self._rng.uniform(-2, 2))

    def _range(self, parameter: ArrayParameter) -> tuple[int, int]:
        low, high = INTEGERS[parameter.type]
        if self._whole:
            return (-_WHOLE, _WHOLE) if low else (0, 2 * _WHOLE)
        sums = any(p.name == "b" for p in self._signature.arrays)
        if sums and parameter.type == "s32" and self._signature.output.type != "s32":
            # A 32-bit operand gets elements as large as the sums to which it is added.
            limit = int(self._spread()) + 1
            return -limit, limit
        return low, high

    def _scale(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return random positive values for the scale of A, B or D called ``name``."""
        numbers: Array = self._rng.uniform(0.5, 2, shape)
        if name == self._fitted:
            fit = self._size_of_sums / _REACH
            numbers *= fit if name == "d_scale" else 1 / fit
        return np.exp2(np.rint(np.log2(numbers))) if self._whole else numbers

    def _zero(self, parameter: ArrayParameter, shape: tuple[int, ...]) -> Array:
        """Return random zero points: in the operand's range, one time in ``_RARE`` any of s32."""
        name = parameter.name
        names = {p.name for p in self._signature.arrays}
        operand = name[0] if name[0] in names else self._signature.output.name
        low, high = INTEGERS.get(self._signature.array(operand).type, (-1000, 1000))
        if self._whole:
            low, high = (0, 6) if parameter.within == "u8" else (-3, 3)
        elif name != "d_zero" and not parameter.within and self._rng.integers(_RARE) == 0:
            low, high = INTEGERS["s32"]
        return self._rng.integers(low, high, shape, endpoint=True)

    def _spread(self) -> float:
        """Return the typical magnitude of sums of products."""
        names = {p.name for p in self._signature.arrays}
        if self._signature.places or not {"a", "b"} <= names:
            return 1.0
        a, b = (self._signature.array(name) for name in "ab")
        terms = self._size(a.shape[1]) * (1 if a.count is None else self._size(a.count))
        spread = sqrt(max(terms, 1)) * self._usual(a) * self._usual(b)
        return min(spread, _WRAPPED) if is_integer(a.type) else spread

    def _usual(self, parameter: ArrayParameter) -> float:
        """Return the root mean square of an operand's elements."""
        low, high = self._range(parameter) if is_integer(parameter.type) else (-1, 1)
        return (high - low) / sqrt(12)

    def _size(self, size: Size) -> int:
        return value_of(size, self._sizes)
