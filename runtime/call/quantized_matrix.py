"""A matrix of few bits as arrays: its integers, and the scales of its blocks; and packed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.dtypes import accepts, title
from tilewright.runtime.arrays.views import as_array, what_to_do
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import Quantized

from .bound_sizes import Array
from .formats import decode, encode

if TYPE_CHECKING:
    from tilewright.plan.quantized_b import QuantizedFormat


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """B, k x n, as ``scale * (q - zero)``: ``q`` integers, one scale for each block and column.

    ``q`` is of int8 or uint8, k x n, or count x k x n for several; ``scales`` of the format's type
    or float32, ceil(k / block) x n. ArgumentError where they do not fit the format.

    >>> form = tw.Quantized("s4", scale="f32", block=8)
    >>> b = tw.QuantizedMatrix(form, np.full((8, 2), -3, np.int8), np.float32([[2, 0.5]]))
    >>> b.dequantize()[0]
    array([-6. , -1.5], dtype=float32)
    """

    format: Quantized
    q: Array
    scales: Array

    def __init__(self, format: Quantized, q: Any, scales: Any) -> None:
        if not isinstance(format, Quantized):
            raise ArgumentTypeError("the format is no tw.Quantized", got=format)
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "q", _integers(format, as_array(q, "q")))
        object.__setattr__(self, "scales", _scales(format, as_array(scales, "scales"), self.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, n), or (count, k, n)."""
        shape: tuple[int, ...] = self.q.shape
        return shape

    @property
    def ndim(self) -> int:
        """2, or 3 for several matrices."""
        return self.q.ndim

    def __iter__(self) -> Iterator[QuantizedMatrix]:
        """The matrices, one by one."""
        if self.ndim == 2:
            yield self
            return
        for q, scales in zip(self.q, self.scales, strict=True):
            yield QuantizedMatrix(self.format, q, scales)

    def dequantize(self) -> Array:
        """``scale * (q - zero)`` in float32, each rounded once."""
        k = self.shape[-2]
        scales = decode(self.scales, self.format.scale).astype(np.float32)
        rows = np.repeat(scales, self.format.block, axis=-2)[..., :k, :]
        numbers = (self.q.astype(np.int32) - self.format.zero).astype(np.float32)
        found: Array = rows * numbers
        return found

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"<QuantizedMatrix {sizes} of {self.format}>"


def _integers(form: Quantized, q: Any) -> Array:
    """``q``, once its numbers are ones of the stored type."""
    stored = form.stored
    if not isinstance(q, np.ndarray) or not accepts(stored.unpacked, q.dtype):
        raise ArgumentTypeError(
            f"the elements of {form.type} must be integers, each alone",
            got=f"{q.dtype} array" if isinstance(q, np.ndarray) else type(q).__name__,
            expected=title(stored.unpacked),
            hint=what_to_do(q, "q"),
        )
    if q.ndim not in (2, 3):
        raise ArgumentValueError(
            "quantized elements have the wrong shape", got=q.shape, expected="(k, n)"
        )
    found: Array = q.view(DTYPES[stored.unpacked])
    if found.size and stored.bits < 8:
        low, high = int(found.min()), int(found.max())
        if low < stored.low or high > stored.high:
            raise ArgumentValueError(
                f"elements are none of {form.type}",
                got=f"{low} to {high}",
                expected=f"{stored.low} to {stored.high}",
            )
    return found


def _scales(form: Quantized, scales: Any, shape: tuple[int, ...]) -> Array:
    """``scales`` in the format's type, once there is one for each block and column."""
    if not isinstance(scales, np.ndarray):
        raise ArgumentTypeError("scales must be an array", got=type(scales).__name__)
    if not accepts(form.scale, scales.dtype) and not accepts("f32", scales.dtype):
        raise ArgumentTypeError(
            "scales must be of the format's type, or of float32",
            got=f"{scales.dtype} array",
            expected=title(form.scale),
        )
    wanted = (*shape[:-2], form.blocks(shape[-2]), shape[-1])
    if scales.shape != wanted:
        raise ArgumentValueError(
            "scales have the wrong shape",
            got=scales.shape,
            expected=f"{wanted}: one for each {form.block} elements of K, and each column",
            hint="scales.T" if scales.T.shape == wanted else None,
        )
    found: Array = scales if accepts(form.scale, scales.dtype) else encode(scales, form.scale)
    return found


def quantized_bytes(matrix: QuantizedMatrix, form: QuantizedFormat) -> Array:
    """The bytes of one matrix as kernels take them; see ``QuantizedFormat`` for their order."""
    k, n = form.k_blocks * form.block, form.blocks * form.nb
    fields = np.zeros((k, n), np.uint8)
    fields[: form.k, : form.n] = (matrix.q.astype(np.int16) + form.shift).astype(np.uint8)
    parts = fields.reshape(-1, form.fields, form.group, form.blocks, form.nb)
    width = 8 // form.fields
    whole = np.zeros((parts.shape[0], *parts.shape[2:]), np.uint8)
    for index in range(form.fields):
        whole |= parts[:, index] << np.uint8(width * index)
    elements = np.ascontiguousarray(whole.transpose(2, 0, 3, 1)).reshape(-1)
    scales = np.zeros((form.k_blocks, n), DTYPES[form.scale])
    scales[:, : form.n] = matrix.scales.view(DTYPES[form.scale])
    behind = np.ascontiguousarray(
        scales.reshape(form.k_blocks, form.blocks, form.nb).transpose(1, 0, 2)
    )
    data = np.zeros(form.nbytes, np.uint8)
    data[: elements.size] = elements
    data[form.scales_at : form.scales_at + behind.nbytes] = behind.reshape(-1).view(np.uint8)
    return data
