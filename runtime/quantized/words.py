"""Elements of few bits that share bytes or words, as GPTQ, AWQ and others pack them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array, is_masked, what_to_do
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import STORED, StoredName
from tilewright.spec.sizes import whole_number

from .choices import one_of
from .groups import Groups, Names, grouped
from .matrix import QuantizedMatrix

#: Where AWQ puts the columns of eight: the first nibble of a word is that of column 0, then 2.
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
#: The bits of a word of each dtype.
_WORDS = {
    np.dtype(name): 8 * np.dtype(name).itemsize for name in ("uint8", "int8", "uint32", "int32")
}
#: What GPTQ and AWQ call the arrays of groups.
_NAMES = Names(
    "scales", "qzeros", "g_idx", hint="qweight is packed along K by GPTQ, along n by AWQ"
)
_BY_BITS: dict[int, StoredName] = {2: "u2", 4: "u4", 8: "u8"}


@spelled(ArgumentTypeError)
def unpack(
    packed: Any,
    type: StoredName,
    *,
    axis: int = 0,
    first: Literal["low", "high"] = "low",
    order: tuple[int, ...] | None = None,
) -> Array:
    """Elements of ``type`` that share bytes or words of 32 bits, each alone: uint8 or int8.

    Those of f4 and f8 are codes. ``axis`` is the one along which those of a word follow each other:
    it becomes as many times as long. The ``first`` of them stands in the low or in the high bits;
    or ``order`` says which element each field has, from the low bits on. Weights that are n x k,
    packed along k, have axis 1, and are a B when they are transposed.

    >>> tw.unpack(np.array([[0x21, 0x43]], np.uint8), "u4", axis=1)
    array([[1, 2, 3, 4]], dtype=uint8)
    >>> tw.unpack(np.array([[-2]], np.int32), "s4", axis=1)
    array([[-2, -1, -1, -1, -1, -1, -1, -1]], dtype=int8)
    """
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
    """B of GPTQ's arrays: ``scales * (q - zeros)``, groups along K.

    ``qweight`` is int32, K packed, x n; ``qzeros`` int32, groups x n packed; ``scales`` floats,
    groups x n. In ``version`` 1 of the format, "gptq", zero points are stored less 1, so that 15
    stands for 0 in 4 bits; in 2, "gptq_v2", they are as they are. With ``zero`` all of them must be
    that number, as where a model is "sym", and the format then has it for all blocks: no zero
    points are read with the weights.

    ``group_size`` is the length of a group, as in the model's configuration: -1 is all of K, and
    the last group may be shorter. Without it ``g_idx``, the group of each row, gives the length.
    Without both, the groups must be all of K, or divide it into equal ones of 32, 64 or 128.

    ``g_idx`` must be in order: what was quantized in the order of its activations ("desc_act") is
    refused, and the message says how its rows are brought in order.

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
    """B of AWQ's arrays, 4 bits: ``scales * (q - zeros)``, groups along K.

    ``qweight`` is int32, K x n packed; ``qzeros`` int32, groups x n packed; ``scales`` floats,
    groups x n. Eight columns share a word, in the order 0 2 4 6 1 3 5 7 from the low bits on.
    ``group_size`` is as in ``tw.from_gptq``. With ``zero`` all zero points must be that number, and
    the format has it for all blocks.

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
    """B of the arrays of compressed-tensors' format "pack-quantized": groups along K, or all of it.

    ``weight_packed`` is int32, n x K packed; ``weight_scale`` floats, n x groups; ``weight_shape``
    is (n, K), as the words of a row may have room for more. Numbers are stored with half of their
    range added, 8 for four bits, which is the zero point of all of them; or each group has its own
    in ``weight_zero_point``: int32, n packed x groups, or int8, n x groups and each alone.

    ``weight_g_idx``, the group of each element of a row, and ``group_size`` are as in
    ``tw.from_gptq``.

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
    """Return n and K of ``weight_shape``; ArgumentError if they are not two positive ints."""
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
    """The zero points of compressed-tensors with half of the range added, n x groups."""
    if isinstance(given, np.ndarray) and given.dtype == np.int8:
        _matrix(given, "weight_zero_point")
        return (given.astype(np.int16) + middle).astype(np.uint8)
    words = _matrix(_words(given, "weight_zero_point", 32), "weight_zero_point")
    return unpack(words, type_, axis=0)[:n]


# --- what is refused ---------------------------------------------------------------------------


def _type_of(bits: object) -> StoredName:
    """The type of numbers of so many bits, which words are whole ones of."""
    return _BY_BITS[one_of(bits, _BY_BITS, "elements of so many bits cannot be taken")]


def _axis(given: object, words: Array) -> int:
    """Return an axis of ``words``; ArgumentError if it is none."""
    axis = whole_number(given)
    if axis is None or not -words.ndim <= axis < words.ndim:
        raise (ArgumentTypeError if axis is None else ArgumentValueError)(
            "axis is none of the packed array's",
            got=repr(given),
            expected=f"{-words.ndim} to {words.ndim - 1}",
        )
    return axis


def _words(given: Any, name: str, bits: int | None = None) -> Array:
    """An array of words; ArgumentError unless it is one, of ``bits`` each where that is given."""
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
    """Which of a word's elements each field has, from the low bits on."""
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
