"""Unpack low-bit elements that share bytes or words, as in GPTQ, AWQ and compressed-tensors.

In go arrays as these formats have them. Out comes a QuantizedMatrix.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array, is_masked, what_to_do
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import STORED, StoredName, Table
from tilewright.spec.sizes import whole_number

from .choices import one_of
from .groups import Groups, Names, grouped
from .matrix import QuantizedMatrix

#: Column of each 4-bit field of a word in AWQ's format, from the low bits on.
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
#: Number of bits of a word, for each dtype that words may have.
_WORDS = {
    np.dtype(name): 8 * np.dtype(name).itemsize for name in ("uint8", "int8", "uint32", "int32")
}
#: Names of the arrays in GPTQ and AWQ.
_NAMES = Names(
    "scales", "qzeros", "g_idx", hint="qweight is packed along K by GPTQ, along n by AWQ"
)
_BY_BITS: dict[int, StoredName] = {2: "u2", 4: "u4", 8: "u8"}


@spelled(ArgumentTypeError)
def unpack(
    packed: Any,
    type: StoredName | Table,
    *,
    axis: int = 0,
    first: Literal["low", "high"] = "low",
    order: tuple[int, ...] | None = None,
) -> Array:
    """Return elements that share bytes or words as one element per byte.

    Parameters
    ----------
    packed : array
        Bytes, or words of 32 bits: uint8, int8, uint32 or int32.
    type : str or Table
        Type of the elements, such as "u4". Elements of f4, of f8 and of tables become codes.
    axis : int
        Axis along which the elements of a word are consecutive. Its length is multiplied by the
        elements in a word. Weights n x k that are packed along k have axis 1; transpose the result
        to get B. Default: 0.
    first : {"low", "high"}
        Place of a word's first element: in the low bits, or in the high bits. Default: "low".
    order : tuple of int, optional
        In place of ``first``: for each field, from the low bits on, the index of its element.

    Returns
    -------
    array of uint8 or int8
        The elements.

    Raises
    ------
    ArgumentError
        The type is unknown, or an argument does not fit the array.

    Examples
    --------
    >>> tw.unpack(np.array([[0x21, 0x43]], np.uint8), "u4", axis=1)
    array([[1, 2, 3, 4]], dtype=uint8)
    >>> tw.unpack(np.array([[-2]], np.int32), "s4", axis=1)
    array([[-2, -1, -1, -1, -1, -1, -1, -1]], dtype=int8)
    """
    if isinstance(type, Table):
        stored = type.stored
    else:
        stored = STORED[one_of(type, STORED, "unknown type of stored elements")]
    words = _words(packed, "packed")
    axis = _axis(axis, words)
    count, left = divmod(_WORDS[words.dtype], stored.bits)
    if left:
        raise ArgumentValueError(
            f"elements of {stored.bits} bits do not fill words",
            got=type,
            expected="elements of 2, 4 or 8 bits",
        )
    fields = _fields(count, first, order)
    whole = np.moveaxis(words, axis, -1).view(f"u{words.dtype.itemsize}")[..., None]
    shifts = np.empty(count, whole.dtype)
    shifts[list(fields)] = np.arange(count) * stored.bits
    mask = whole.dtype.type((1 << stored.bits) - 1)
    found = (whole >> shifts & mask).astype(np.uint8)
    if stored.low < 0 and not stored.floating:
        top = np.uint8(1 << (stored.bits - 1))
        found = ((found ^ top) - top).view(np.int8)
    flat = found.reshape(*whole.shape[:-2], whole.shape[-2] * count)
    return np.moveaxis(flat.view(DTYPES[stored.unpacked]), -1, axis)


@spelled(ArgumentTypeError)
def from_gptq(
    qweight: Any,
    qzeros: Any,
    scales: Any,
    *,
    bits: Literal[2, 4, 8] = 4,
    version: Literal[1, 2] = 1,
    g_idx: Any = None,
    group_size: int | None = None,
    zero: int | None = None,
) -> QuantizedMatrix:
    """Return a QuantizedMatrix from the arrays of a GPTQ model.

    An element stands for ``scale * (q - zero)``. Groups of rows along K have a common scale.

    Parameters
    ----------
    qweight : array of int32
        Elements, packed along K: (K * bits / 32) x n.
    qzeros : array of int32
        Zero points, packed along n: groups x (n * bits / 32).
    scales : array
        Scales in floating point, groups x n.
    bits : {2, 4, 8}
        Bits of an element. Default: 4.
    version : {1, 2}
        Version of the format. In version 1, "gptq", stored zero points are 1 less than the real
        ones, and 15 stands for 0 with 4 bits. In version 2, "gptq_v2", they are the real ones.
        Default: 1.
    g_idx : array of int, optional
        The group of each row. It must be ascending. Models that were quantized in the order of
        activations ("desc_act") have another order. The error message then says how to sort the
        rows.
    group_size : int, optional
        Rows of a group, as in the model's configuration; -1 is all of K. The last group may be
        shorter. By default it follows from ``g_idx``. Without that, there must be one group for all
        of K, or equal groups of 32, 64 or 128 rows.
    zero : int, optional
        The value of all zero points, for a model that is "sym". The format then has one zero point,
        and kernels read no zero points from memory. ArgumentError is raised if a zero point
        differs.

    Returns
    -------
    QuantizedMatrix
        B, K x n.

    Raises
    ------
    ArgumentError
        The arrays do not fit each other, or the rows are not in the order of groups.

    Examples
    --------
    >>> words = np.full((4, 8), 0x76543210, np.int32)        # K = 32, n = 8
    >>> zeros, scales = np.full((1, 1), 0x77777777, np.int32), np.full((1, 8), 0.5, np.float16)
    >>> b = tw.from_gptq(words, zeros, scales, zero=8)
    >>> b.format, b.dequantize()[:3, 0].tolist()
    (Quantized(type='u4', scale='f16', zero=8, block=32), [-4.0, -3.5, -3.0])
    """
    type_ = _type_of(bits)
    stored_less = one_of(version, (1, 2), "unknown version of GPTQ's format") == 1
    q = unpack(_matrix(_words(qweight, "qweight", 32), "qweight"), type_, axis=0)
    zeros = unpack(_matrix(_words(qzeros, "qzeros", 32), "qzeros"), type_, axis=1)
    if stored_less:
        zeros = (zeros + np.uint8(1)) & np.uint8((1 << bits) - 1)
    given = as_array(scales, "scales"), zeros, group_size, as_array(g_idx, "g_idx")
    return grouped(type_, q, Groups(_NAMES, *given), zero)


@spelled(ArgumentTypeError)
def from_awq(
    qweight: Any,
    qzeros: Any,
    scales: Any,
    *,
    group_size: int | None = None,
    zero: int | None = None,
) -> QuantizedMatrix:
    """Return a QuantizedMatrix from the arrays of an AWQ model with 4 bits.

    An element stands for ``scale * (q - zero)``. Groups of rows along K have a common scale. A word
    has eight columns in the order 0 2 4 6 1 3 5 7, from the low bits on.

    Parameters
    ----------
    qweight : array of int32
        Elements, packed along n: K x (n / 8).
    qzeros : array of int32
        Zero points, packed along n: groups x (n / 8).
    scales : array
        Scales in floating point, groups x n.
    group_size : int, optional
        Rows of a group, as in ``tw.from_gptq``.
    zero : int, optional
        The value of all zero points, as in ``tw.from_gptq``.

    Returns
    -------
    QuantizedMatrix
        B, K x n.

    Raises
    ------
    ArgumentError
        The arrays do not fit each other.

    Examples
    --------
    >>> words = np.full((32, 1), 0x75316420, np.uint32).view(np.int32)      # K = 32, n = 8
    >>> scales = np.ones((1, 8), np.float16)
    >>> tw.from_awq(words, np.zeros((1, 1), np.int32), scales).q[0]
    array([0, 1, 2, 3, 4, 5, 6, 7], dtype=uint8)
    """
    q, zeros = (
        unpack(_matrix(_words(given, name, 32), name), "u4", axis=1, order=_AWQ)
        for given, name in ((qweight, "qweight"), (qzeros, "qzeros"))
    )
    groups = Groups(_NAMES, as_array(scales, "scales"), zeros, group_size)
    return grouped("u4", q, groups, zero)


@spelled(ArgumentTypeError)
def from_compressed_tensors(
    weight_packed: Any,
    weight_scale: Any,
    weight_shape: Any,
    weight_zero_point: Any = None,
    *,
    bits: Literal[2, 4, 8] = 4,
    weight_g_idx: Any = None,
    group_size: int | None = None,
) -> QuantizedMatrix:
    """Return a QuantizedMatrix from arrays in compressed-tensors' format "pack-quantized".

    The format stores each number plus half of its range, for example plus 8 for 4 bits. Without
    ``weight_zero_point`` this half is the zero point of all elements.

    Parameters
    ----------
    weight_packed : array of int32
        Elements, packed along K: n x ceil(K * bits / 32).
    weight_scale : array
        Scales in floating point, n x groups.
    weight_shape : tuple or array of int
        (n, K). The words of a row may have room for more elements than K.
    weight_zero_point : array, optional
        Zero points of the groups: int32, (n * bits / 32) x groups, packed; or int8, n x groups.
    bits : {2, 4, 8}
        Bits of an element. Default: 4.
    weight_g_idx : array of int, optional
        The group of each element of a row, as ``g_idx`` in ``tw.from_gptq``.
    group_size : int, optional
        Elements of a group along K, as in ``tw.from_gptq``.

    Returns
    -------
    QuantizedMatrix
        B, K x n.

    Raises
    ------
    ArgumentError
        The arrays do not fit each other, or the elements are not in the order of groups.

    Examples
    --------
    >>> words = np.full((8, 4), 0x76543210, np.int32)        # n = 8, K = 32
    >>> b = tw.from_compressed_tensors(words, np.full((8, 1), 0.5, np.float16), (8, 32))
    >>> b.format, b.dequantize()[:3, 0].tolist()
    (Quantized(type='u4', scale='f16', zero=8, block=32), [-4.0, -3.5, -3.0])
    """
    type_ = _type_of(bits)
    middle = 1 << (bits - 1)
    words = _matrix(_words(weight_packed, "weight_packed", 32), "weight_packed")
    n, k = _two_sizes(as_array(weight_shape, "weight_shape"))
    if words.shape != (n, -(-k * bits // 32)):
        raise ArgumentValueError(
            "weight_packed has another shape than weight_shape says",
            got=f"{words.shape}, and [{n}, {k}]",
            expected=f"n x K / {32 // bits} words with numbers of {bits} bits, and [n, K]",
            hint="bits= is what a number takes",
        )
    scales = as_array(weight_scale, "weight_scale")
    zeros = None
    if weight_zero_point is not None:
        zeros = _zero_points(as_array(weight_zero_point, "weight_zero_point"), type_, n, middle).T
    names = Names("weight_scale", "weight_zero_point", "weight_g_idx", transposed=True)
    turned = scales.T if isinstance(scales, np.ndarray) else scales
    groups = Groups(names, turned, zeros, group_size, as_array(weight_g_idx, "weight_g_idx"))
    q = unpack(words, type_, axis=1)[:, :k].T
    return grouped(type_, q, groups, middle if zeros is None else None)


def _two_sizes(given: Any) -> tuple[int, int]:
    """Return n and K from ``weight_shape``; ArgumentError unless it has two positive ints."""
    listed = isinstance(given, tuple | list) or (isinstance(given, np.ndarray) and given.ndim == 1)
    sizes = [whole_number(size) for size in given] if listed else []
    found = [size for size in sizes if size is not None and size > 0]
    if len(sizes) != 2 or len(found) != 2:
        raise (ArgumentValueError if listed else ArgumentTypeError)(
            "weight_shape must be two positive sizes",
            got=f"{given!r:.80}",
            expected="[n, K]: what weight_packed has of rows, and of elements in each",
        )
    return found[0], found[1]


def _zero_points(given: Any, type_: StoredName, n: int, middle: int) -> Array:
    """Return the zero points of compressed-tensors plus half of the range, n x groups."""
    if isinstance(given, np.ndarray) and given.dtype == np.int8:
        _matrix(given, "weight_zero_point")
        return (given.astype(np.int16) + middle).astype(np.uint8)
    words = _matrix(_words(given, "weight_zero_point", 32), "weight_zero_point")
    return unpack(words, type_, axis=0)[:n]


# --- what is refused ---------------------------------------------------------------------------


def _type_of(bits: object) -> StoredName:
    """Return the type of unsigned integers with this number of bits.

    Raises ArgumentError if there is none.
    """
    return _BY_BITS[one_of(bits, _BY_BITS, "elements of so many bits cannot be taken")]


def _axis(given: object, words: Array) -> int:
    """Return an axis of ``words``; raise ArgumentError if the array has no such axis."""
    axis = whole_number(given)
    if axis is None or not -words.ndim <= axis < words.ndim:
        raise (ArgumentTypeError if axis is None else ArgumentValueError)(
            "axis is none of the packed array's",
            got=repr(given),
            expected=f"{-words.ndim} to {words.ndim - 1}",
        )
    return axis


def _words(given: Any, name: str, bits: int | None = None) -> Array:
    """Return ``given`` as an array of words in which elements are packed.

    Raise ArgumentError for anything else, or if words do not have ``bits`` bits.
    """
    array = as_array(given, name)
    plain = isinstance(array, np.ndarray) and not is_masked(array)
    found = _WORDS.get(array.dtype) if plain else None
    if found is None or bits not in (None, found) or array.ndim == 0:
        raise ArgumentTypeError(
            f"{name} must be an array of words in which elements are packed",
            got=f"{array.dtype} array of shape {array.shape}"
            if isinstance(array, np.ndarray)
            else type(array).__name__,
            expected="int32" if bits else "uint8, int8, uint32 or int32",
            hint=what_to_do(array, name),
        )
    words: Array = array
    return words


def _matrix(words: Array, name: str) -> Array:
    if words.ndim != 2:
        raise ArgumentValueError(
            f"{name} has the wrong shape",
            got=words.shape,
            expected="two dimensions: of several matrices, take one after the other",
        )
    if not words.size:
        raise ArgumentValueError(f"{name} has no elements", got=f"shape {words.shape}")
    return words


def _fields(count: int, first: object, order: Any) -> tuple[int, ...]:
    """Return the index of the element in each field of a word, from the low bits on."""
    if order is None:
        low = one_of(first, ("low", "high"), "first is none of a word's ends") == "low"
        return tuple(range(count) if low else reversed(range(count)))
    listed = isinstance(order, tuple | list) or (isinstance(order, np.ndarray) and order.ndim == 1)
    found = [whole_number(place) for place in order] if listed else []
    if None in found or sorted(found, key=lambda place: place or 0) != list(range(count)):
        raise (ArgumentValueError if listed else ArgumentTypeError)(
            "order is none of a word's elements",
            got=f"{order!r:.80}",
            expected=f"0 to {count - 1}, each once",
        )
    return tuple(place for place in found if place is not None)
