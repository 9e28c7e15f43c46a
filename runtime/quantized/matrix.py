"""The class ``QuantizedMatrix``: low-bit elements and the scales of their blocks, as arrays.

Functions turn such a matrix into the bytes that kernels read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.dtypes import accepts, title
from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array, is_masked, what_to_do
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import SCALES, Quantized
from tilewright.spec.types import is_integer

if TYPE_CHECKING:
    from tilewright.plan.formats.low_bit import QuantizedFormat


@spelled(ArgumentTypeError)
@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """Matrix B of low-bit numbers ``q`` that stand for ``scale * (q - zero)``.

    There is a scale for each column of each block of K. If the format has minima, the elements
    stand for ``scale * q + minimum``.

    Parameters
    ----------
    format : Quantized
        The type of the elements, the types of scales and zeros, and the length of blocks.
    q : array
        Elements, k x n, or count x k x n for several matrices. Each element is one byte, int8 or
        uint8. Types of ml_dtypes such as int4 are accepted too. Floating-point elements are given
        as their codes, or in types of ml_dtypes.
    scales : array
        Scales of the format's type or float32, ceil(k / block) x n. Scales of type e8m0 are bytes,
        or ml_dtypes' float8_e8m0fnu.
    zeros : array, optional
        Zero points or minima of the same shape, if the format has them for each block.

    Raises
    ------
    ArgumentError
        An array does not fit the format.

    Examples
    --------
    >>> form = tw.Quantized("s4", scale="f32", block=8)
    >>> b = tw.QuantizedMatrix(form, np.full((8, 2), -3, np.int8), np.float32([[2, 0.5]]))
    >>> b.dequantize()[0]
    array([-6. , -1.5], dtype=float32)
    """

    format: Quantized
    q: Array
    scales: Array
    zeros: Array | None

    def __init__(self, format: Quantized, q: Any, scales: Any, zeros: Any = None) -> None:
        if not isinstance(format, Quantized):
            raise ArgumentTypeError(
                "format must be a tw.Quantized",
                got=f"{format!r:.80}",
                hint='tw.Quantized("s4", block=32)',
            )
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "q", _elements(format, as_array(q, "q")))
        shape = (*self.shape[:-2], *format.blocks(*self.shape[-2:]))
        made = _scales(format, as_array(scales, "scales"), shape)
        object.__setattr__(self, "scales", made)
        object.__setattr__(self, "zeros", _zeros(format, zeros, shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: (k, n), or (count, k, n)."""
        shape: tuple[int, ...] = self.q.shape
        return shape

    @property
    def ndim(self) -> int:
        """The number of dimensions: 2, or 3 for several matrices."""
        return self.q.ndim

    def __iter__(self) -> Iterator[QuantizedMatrix]:
        """Yield the matrices, one by one."""
        if self.ndim == 2:
            yield self
            return
        for index in range(len(self.q)):
            zeros = None if self.zeros is None else self.zeros[index]
            yield QuantizedMatrix(self.format, self.q[index], self.scales[index], zeros)

    def numbers(self) -> Array:
        """Return the stored numbers of the elements, without subtracting zero points.

        Returns
        -------
        array
            Type int64. Elements of f4_e2m1 are given in units of 0.5, so they are integers too.
            Elements of nf4 and f8 are float64.
        """
        stored = self.format.stored
        if stored.values:
            return np.array(stored.values)[self.q]
        if stored.floating:
            return decode(self.q, stored.unpacked).astype(np.float64)
        return self.q.astype(np.int64)

    def factors(self) -> Array:
        """Return for each column the scales by which ``numbers`` must be multiplied, in float32.

        For f4_e2m1 they are half of the stored scales, because ``numbers`` counts halves. The
        result is exact.
        """
        unit = np.float32(self.format.stored.unit)
        return self.by_column(scale_values(self.scales, self.format) * unit)

    def by_column(self, blocks: Array) -> Array:
        """Return an array with a value for each column, given the value of each block."""
        if self.format.columns == 1:
            return blocks
        found: Array = np.repeat(blocks, self.format.columns, axis=-1)[..., : self.shape[-1]]
        return found

    def dequantize(self) -> Array:
        """Return the matrix in float32. Each element is rounded once."""
        scales, numbers = self._spread(self.factors()), self.numbers()
        if self.format.zeros == "minima":
            assert self.zeros is not None
            minima = self._spread(self.by_column(decode(self.zeros, str(self.format.zero))))
            whole: Array = scales.astype(np.float64) * numbers + minima
            return whole.astype(np.float32)
        zeros: Any = self.format.offset
        if self.zeros is not None:
            zeros = self._spread(self.by_column(self.zeros.astype(np.int64)))
        found: Array = scales * (numbers - zeros).astype(np.float32)
        return found

    def _spread(self, blocks: Array) -> Array:
        """Return an array with a value for each row of B, given the value of each block of K."""
        k = self.shape[-2]
        found: Array = np.repeat(blocks, self.format.block_of(k), axis=-2)[..., :k, :]
        return found

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"<QuantizedMatrix {sizes} of {self.format}>"


def magnitudes(matrix: QuantizedMatrix) -> Array:
    """Return for each element the scaled sum of |number| and |zero point|, or |minimum|.

    Error bounds need this magnitude. Elements of less than 8 bits are counted from the least
    number, as they are in packed bytes.
    """
    form, stored, zeros = matrix.format, matrix.format.stored, np.asarray(matrix.zeros)
    low = float(stored.low) if stored.bits < 8 and not stored.floating else 0.0
    scales = np.abs(matrix._spread(matrix.factors()).astype(np.float64))
    found: Array = scales * np.abs(matrix.numbers() - low)
    if form.zeros == "minima":
        apart = decode(zeros, str(form.zero)).astype(np.float64)
        found += np.abs(matrix._spread(matrix.by_column(apart)))
    else:
        found += scales * np.abs(matrix._spread(matrix.by_column(zeros - low)))
    return found


def scale_values(scales: Array, form: Quantized) -> Array:
    """Return the stored ``scales`` as float32 numbers, exactly."""
    if form.scale == "e8m0":
        exponents = scales.astype(np.int64) - 127
        wide = np.ldexp(np.float64(1), exponents)
        found: Array = np.where(scales == 255, np.nan, wide).astype(np.float32)
    else:
        found = decode(scales, form.scale).astype(np.float32)
    return found


def _elements(form: Quantized, q: Any) -> Array:
    """Return ``q`` in the stored type; ArgumentError unless all its numbers are of that type."""
    stored = form.stored
    if isinstance(q, np.ndarray):
        if q.dtype.name == FLOAT4 and stored.values:
            q = q.view(np.uint8)
        elif q.dtype.name in _FEW_BITS and not stored.values:
            q = q.astype(_FEW_BITS[q.dtype.name])
    plain = isinstance(q, np.ndarray) and not is_masked(q)
    if not plain or not accepts(stored.unpacked, q.dtype):
        raise ArgumentTypeError(
            f"the elements of {form.type} must be integers or codes, each alone",
            got=f"{q.dtype} array" if isinstance(q, np.ndarray) else type(q).__name__,
            expected=title(stored.unpacked),
            hint=what_to_do(q, "q"),
        )
    if q.ndim not in (2, 3):
        raise ArgumentValueError(
            "q has the wrong shape",
            got=q.shape,
            expected="(k, n), or (count, k, n) for several",
        )
    found: Array = q.view(DTYPES[stored.unpacked])
    _within(form, found, "elements")
    return found


#: Names of ml_dtypes' types for 4-bit floating-point elements and for e8m0 scales.
FLOAT4, EXPONENTS = "float4_e2m1fn", "float8_e8m0fnu"
#: ml_dtypes' low-bit integers, one in each byte, and the dtypes that hold their values.
_FEW_BITS = {"int2": np.int8, "int4": np.int8, "uint2": np.uint8, "uint4": np.uint8}


def _within(form: Quantized, numbers: Array, what: str) -> None:
    """Raise ArgumentError unless all numbers are in the range of the format's element type."""
    if not numbers.size:
        return
    low, high = int(numbers.min()), int(numbers.max())
    if low < form.stored.low or high > form.stored.high:
        raise ArgumentValueError(
            f"{what} are none of {form.type}",
            got=f"{low} to {high}",
            expected=f"{form.stored.low} to {form.stored.high}",
        )


def _scales(form: Quantized, scales: Any, shape: tuple[int, ...]) -> Array:
    """Return ``scales`` in the format's type.

    Raises ArgumentError unless each block and column has one.
    """
    given = SCALES[form.scale].given
    if isinstance(scales, np.ndarray) and scales.dtype.name == EXPONENTS and given == "u8":
        scales = scales.view(np.uint8)
    return _of_blocks(form, scales, given, shape, "scales")


def _zeros(form: Quantized, zeros: Any, shape: tuple[int, ...]) -> Array | None:
    """Return ``zeros``; raise ArgumentError unless their number fits the format."""
    if not form.zeros:
        if zeros is not None:
            raise ArgumentTypeError(
                "zeros are given, but the format has one zero point for all",
                got=f"zero={form.zero}",
                hint=f"tw.Quantized({form.type!r}, zero={form.type!r}, ...)",
            )
        return None
    if zeros is None:
        raise ArgumentTypeError(
            f"the format has {form.zeros} for each block, and none are given", got=form
        )
    zeros = as_array(zeros, "zeros")
    if form.zeros == "minima":
        return _of_blocks(form, zeros, str(form.zero), shape, "minima")
    found = _of_blocks(form, zeros, form.stored.unpacked, shape, "zeros")
    _within(form, found, "zeros")
    return found


def _of_blocks(form: Quantized, given: Any, type_: str, shape: tuple[int, ...], what: str) -> Array:
    """Return scales, zero points or minima in ``type_``; ArgumentError if they do not fit.

    If ``type_`` is floating point, the values may be given in float32.
    """
    if not isinstance(given, np.ndarray) or is_masked(given):
        hint = what_to_do(given, what)
        raise ArgumentTypeError(f"{what} must be an array", got=type(given).__name__, hint=hint)
    rounds = not is_integer(type_) and accepts("f32", given.dtype)
    if not accepts(type_, given.dtype) and not rounds:
        raise ArgumentTypeError(
            f"{what} must be of the format's type" + ("" if is_integer(type_) else " or float32"),
            got=f"{given.dtype} array",
            expected=title(type_),
        )
    if given.shape != shape:
        raise ArgumentValueError(
            f"{what} have the wrong shape",
            got=given.shape,
            expected=f"{shape}: one for each {_block_text(form)}",
            hint=f"{what}.T" if given.T.shape == shape else None,
        )
    found: Array = given if accepts(type_, given.dtype) else encode(given, type_)
    return found


def _block_text(form: Quantized) -> str:
    """Return a description of a block, for messages."""
    columns = "column" if form.columns == 1 else f"{form.columns} columns"
    return columns if form.along is None else f"{form.along} elements of K, and each {columns}"


def quantized_bytes(matrix: QuantizedMatrix, form: QuantizedFormat) -> Array:
    """Return the bytes of one matrix as kernels read them.

    ``QuantizedFormat`` defines the order of the bytes.
    """
    k, n = form.k_blocks * form.block, form.blocks * form.nb
    fields = np.zeros((k, n), np.uint8)
    codes = matrix.q if matrix.format.stored.floating else matrix.q.astype(np.int16) + form.shift
    fields[: form.k, : form.n] = codes.astype(np.uint8)
    groups = form.block // form.group
    parts = fields.reshape(form.k_blocks, groups, form.group, form.blocks, form.nb)
    whole = np.zeros((form.k_blocks, form.lines(groups), *parts.shape[2:]), np.uint8)
    for number, plane in enumerate(form.planes):
        mask = np.uint8((1 << plane.bits) - 1)
        for index in range(groups):
            line, field = form.place(index, number)
            whole[:, line] |= (parts[:, index] >> np.uint8(plane.up) & mask) << np.uint8(
                plane.bits * field
            )
    elements = np.ascontiguousarray(whole.transpose(3, 0, 1, 4, 2)).reshape(-1)
    data = np.zeros(form.nbytes, np.uint8)
    data[: elements.size] = elements
    _put_blocks(data[form.scales_at :], matrix.factors(), form.scale, form)
    if matrix.zeros is not None:
        integers = matrix.format.zeros == "zeros"
        zeros = matrix.zeros.astype(np.float32) + form.shift if integers else matrix.zeros
        _put_blocks(data[form.zeros_at :], matrix.by_column(zeros), form.zeros, form)
    if form.sums:
        _put_blocks(data[form.sums_at :], _sums(matrix, form), form.sums, form)
    return data


def _sums(matrix: QuantizedMatrix, form: QuantizedFormat) -> Array:
    """Return for each block and column the sum of the packed elements, less their bias.

    Rows that fill up the last block count as bytes of 0.
    """
    filling = 0 if matrix.format.stored.values else -form.shift
    numbers = np.full((form.k_blocks, form.block, form.n), filling, np.int64)
    numbers.reshape(form.k_blocks * form.block, form.n)[: form.k] = matrix.numbers()
    found: Array = (numbers + (form.shift - form.bias)).sum(axis=1).astype(np.int32)
    return found


def _put_blocks(place: Array, given: Array, type_: str, form: QuantizedFormat) -> None:
    """Write a number of ``type_`` for each block and column to the beginning of ``place``."""
    each = np.zeros((form.k_blocks, form.blocks * form.nb), DTYPES[type_])
    encoded = given if accepts(type_, given.dtype) else encode(given, type_)
    each[:, : form.n] = encoded.view(DTYPES[type_])
    panels = each.reshape(form.k_blocks, form.blocks, form.nb).transpose(1, 0, 2)
    flat = np.ascontiguousarray(panels).reshape(-1).view(np.uint8)
    place[: flat.size] = flat
