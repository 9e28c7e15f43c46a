"""Elements of few bits that share bytes or words, as GPTQ, AWQ and others pack them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array, what_to_do
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.quantized import STORED, WHOLE_UNIT, Quantized, StoredName, longest_block

from .matrix import QuantizedMatrix

#: Where AWQ puts the columns of eight: the first nibble of a word is that of column 0, then 2.
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)
#: The bits of a word of each dtype.
_WORDS = {
    np.dtype(name): 8 * np.dtype(name).itemsize for name in ("uint8", "int8", "uint32", "int32")
}
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
    stored = STORED.get(type)
    if stored is None:
        raise ArgumentValueError(
            "unknown type of stored elements", got=type, expected=f"one of {', '.join(STORED)}"
        )
    words = _words(packed, "packed")
    if not -words.ndim <= axis < words.ndim:
        raise ArgumentValueError(
            "the axis is none of the packed array's", got=axis, expected=f"0 to {words.ndim - 1}"
        )
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
    flat = found.reshape(*whole.shape[:-2], -1).view(DTYPES[stored.unpacked])
    return np.moveaxis(flat, -1, axis)


@spelled(ArgumentTypeError)
def from_gptq(
    qweight: Any,
    qzeros: Any,
    scales: Any,
    *,
    bits: Literal[2, 4, 8] = 4,
    version: Literal[1, 2] = 1,
    g_idx: Any = None,
    zero: int | None = None,
) -> QuantizedMatrix:
    """B of GPTQ's arrays: ``scales * (q - zeros)``, groups along K.

    ``qweight`` is int32, K packed, x n; ``qzeros`` int32, groups x n packed; ``scales`` floats,
    groups x n. In ``version`` 1 of the format, "gptq", zero points are stored less 1, so that 15
    stands for 0 in 4 bits; in 2, "gptq_v2", they are as they are. With ``zero`` all of them must be
    that number, as where a model is "sym", and the format then has it for all blocks: no zero
    points are read with the weights.

    ``g_idx``, the group of each row, must be in order: what was quantized in the order of its
    activations ("desc_act") is refused, and the message says how its rows are brought in order.

    >>> words = np.full((4, 8), 0x76543210, np.int32)        # K = 32, n = 8
    >>> zeros, scales = np.full((1, 1), 0x77777777, np.int32), np.full((1, 8), 0.5, np.float16)
    >>> b = tw.from_gptq(words, zeros, scales, zero=8)
    >>> b.format, b.dequantize()[:3, 0].tolist()
    (Quantized(type='u4', scale='f16', zero=8, block=32), [-4.0, -3.5, -3.0])
    """
    type_ = _type_of(bits)
    if version not in (1, 2):
        raise ArgumentValueError("unknown version of GPTQ's format", got=version, expected="1 or 2")
    q = unpack(_matrix(_words(qweight, "qweight", 32), "qweight"), type_, axis=0)
    zeros = unpack(_matrix(_words(qzeros, "qzeros", 32), "qzeros"), type_, axis=1)
    if version == 1:
        zeros = (zeros + np.uint8(1)) & np.uint8((1 << bits) - 1)
    if g_idx is not None:
        _check_order(as_array(g_idx, "g_idx"), len(q), len(zeros))
    return _grouped(type_, q, zeros, as_array(scales, "scales"), zero)


@spelled(ArgumentTypeError)
def from_awq(qweight: Any, qzeros: Any, scales: Any, *, zero: int | None = None) -> QuantizedMatrix:
    """B of AWQ's arrays, 4 bits: ``scales * (q - zeros)``, groups along K.

    ``qweight`` is int32, K x n packed; ``qzeros`` int32, groups x n packed; ``scales`` floats,
    groups x n. Eight columns share a word, in the order 0 2 4 6 1 3 5 7 from the low bits on.
    With ``zero`` all zero points must be that number, and the format has it for all blocks.

    >>> words = np.full((32, 1), 0x75316420, np.uint32).view(np.int32)      # K = 32, n = 8
    >>> scales = np.ones((1, 8), np.float16)
    >>> tw.from_awq(words, np.zeros((1, 1), np.int32), scales).q[0]
    array([0, 1, 2, 3, 4, 5, 6, 7], dtype=uint8)
    """
    q, zeros = (
        unpack(_matrix(_words(given, name, 32), name), "u4", axis=1, order=_AWQ)
        for given, name in ((qweight, "qweight"), (qzeros, "qzeros"))
    )
    return _grouped("u4", q, zeros, as_array(scales, "scales"), zero)


@spelled(ArgumentTypeError)
def from_compressed_tensors(
    weight_packed: Any,
    weight_scale: Any,
    weight_shape: Any,
    weight_zero_point: Any = None,
    *,
    bits: Literal[2, 4, 8] = 4,
    weight_g_idx: Any = None,
) -> QuantizedMatrix:
    """B of the arrays of compressed-tensors' format "pack-quantized": groups along K, or all of it.

    ``weight_packed`` is int32, n x K packed; ``weight_scale`` floats, n x groups; ``weight_shape``
    is (n, K), as the words of a row may have room for more. Numbers are stored with half of their
    range added, 8 for four bits, which is the zero point of all of them; or each group has its own
    in ``weight_zero_point``: int32, n packed x groups, or int8, n x groups and each alone.

    ``weight_g_idx``, the group of each element of a row, must be in order, as for ``tw.from_gptq``.

    >>> words = np.full((8, 4), 0x76543210, np.int32)        # n = 8, K = 32
    >>> b = tw.from_compressed_tensors(words, np.full((8, 1), 0.5, np.float16), (8, 32))
    >>> b.format, b.dequantize()[:3, 0].tolist()
    (Quantized(type='u4', scale='f16', zero=8, block=32), [-4.0, -3.5, -3.0])
    """
    type_ = _type_of(bits)
    shape, middle = np.asarray(as_array(weight_shape, "weight_shape")), 1 << (bits - 1)
    words = _matrix(_words(weight_packed, "weight_packed", 32), "weight_packed")
    if shape.shape != (2,) or words.shape != (shape[0], -(-int(shape[1]) * bits // 32)):
        raise ArgumentValueError(
            "weight_packed has another shape than weight_shape says",
            got=f"{words.shape}, and {shape.tolist()}",
            expected=f"n x K / {32 // bits} words with numbers of {bits} bits, and [n, K]",
            hint="bits= is what a number takes",
        )
    n, k = map(int, shape)
    scales = as_array(weight_scale, "weight_scale")
    groups = scales.shape[1] if isinstance(scales, np.ndarray) and scales.ndim == 2 else 0
    zeros = np.full((groups, n), middle, np.uint8)
    if weight_zero_point is not None:
        zeros = _zero_points(as_array(weight_zero_point, "weight_zero_point"), type_, n, middle).T
    if weight_g_idx is not None:
        _check_order(as_array(weight_g_idx, "weight_g_idx"), k, len(zeros))
    q = unpack(words, type_, axis=1)[:, :k]
    if isinstance(scales, np.ndarray):
        scales = scales.T
    return _grouped(type_, q.T, zeros, scales, middle if weight_zero_point is None else None)


def _zero_points(given: Any, type_: StoredName, n: int, middle: int) -> Array:
    """The zero points of compressed-tensors with half of the range added, n x groups."""
    if isinstance(given, np.ndarray) and given.dtype == np.int8:
        return (given.astype(np.int16) + middle).astype(np.uint8)
    words = _matrix(_words(given, "weight_zero_point", 32), "weight_zero_point")
    return unpack(words, type_, axis=0)[:n]


def _grouped(
    type_: StoredName, q: Array, zeros: Array, scales: Any, zero: int | None
) -> QuantizedMatrix:
    """The matrix of these parts, in blocks as long as its groups, or in parts of them."""
    if not isinstance(scales, np.ndarray) or scales.dtype.name not in _SCALES:
        raise ArgumentTypeError(
            "scales must be floating point",
            got=f"{scales.dtype} array" if isinstance(scales, np.ndarray) else scales,
            expected=f"one of {', '.join(_SCALES)}",
        )
    (k, n), groups = q.shape, len(zeros)
    for what, shape in (("zeros", zeros.shape), ("scales", scales.shape)):
        if shape != (groups, n):
            raise ArgumentValueError(
                f"{what} have the wrong shape",
                got=shape,
                expected=f"{groups, n}: one for each group of rows of B, {k} x {n}",
                hint="qweight is packed along K by GPTQ, along n by AWQ"
                if what == "zeros"
                else None,
            )
    if groups == 0 or k % groups:
        raise ArgumentValueError(
            "groups do not divide K", got=f"{groups} groups", expected=f"a divisor of {k}"
        )
    group = k // groups
    parts = 1
    longest = longest_block(STORED[type_].bits, own=True)
    while group // parts > longest and group % (16 * parts) == 0:
        parts *= 2
    scales, zeros = (np.repeat(each, parts, axis=0) for each in (scales, zeros))
    own = type_ if zero is None else zero
    block = None if groups == parts == 1 and k % WHOLE_UNIT else group // parts
    form = Quantized(type_, scale=_SCALES[scales.dtype.name], zero=own, block=block)
    if zero is None:
        return QuantizedMatrix(form, q, scales, zeros)
    if (zeros != zero).any():
        at = tuple(map(int, np.argwhere(zeros != zero)[0]))
        raise ArgumentValueError(
            "a zero point is another one than is said of all",
            got=f"{zeros[at]} of block {at[0]}, column {at[1]}",
            expected=zero,
            hint="without zero=: each block then has its own",
        )
    return QuantizedMatrix(form, q, scales)


#: Types of scales by their dtypes.
_SCALES: Any = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}


# --- what is refused ---------------------------------------------------------------------------


def _type_of(bits: int) -> StoredName:
    """The type of numbers of so many bits, which words are whole ones of."""
    type_ = _BY_BITS.get(bits)
    if type_ is None:
        raise ArgumentValueError(
            "elements of so many bits cannot be taken", got=bits, expected="2, 4 or 8"
        )
    return type_


def _words(given: Any, name: str, bits: int | None = None) -> Array:
    """An array of words; ArgumentError unless it is one, of ``bits`` each where that is given."""
    array = as_array(given, name)
    found = _WORDS.get(array.dtype) if isinstance(array, np.ndarray) else None
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
    return words


def _fields(count: int, first: str, order: tuple[int, ...] | None) -> tuple[int, ...]:
    """Which of a word's elements each field has, from the low bits on."""
    if order is not None:
        if sorted(order) != list(range(count)):
            raise ArgumentValueError(
                "the order is none of a word's elements",
                got=order,
                expected=f"0 to {count - 1}, each once",
            )
        return tuple(order)
    if first not in ("low", "high"):
        raise ArgumentValueError(
            "the first element stands in other bits", got=first, expected="low or high"
        )
    return tuple(range(count) if first == "low" else reversed(range(count)))


def _check_order(g_idx: Any, k: int, groups: int) -> None:
    """ArgumentError unless groups are those of rows that follow each other."""
    if not isinstance(g_idx, np.ndarray) or g_idx.shape != (k,) or g_idx.dtype.kind not in "iu":
        raise ArgumentTypeError(
            "g_idx must be the group of each row",
            got=f"{g_idx.dtype} array of shape {g_idx.shape}"
            if isinstance(g_idx, np.ndarray)
            else type(g_idx).__name__,
            expected=f"{k} integers",
        )
    wrong = np.flatnonzero(g_idx != np.arange(k) * groups // k)
    if wrong.size:
        raise ArgumentValueError(
            "rows are not in the order of their groups: the model was made with desc_act",
            got=f"group {g_idx[wrong[0]]} for row {wrong[0]}",
            expected=f"group {wrong[0] * groups // k}",
            hint='order = np.argsort(g_idx, kind="stable"); b without g_idx, then '
            "tw.QuantizedMatrix(b.format, b.q[order], b.scales, b.zeros), and A[:, order]",
        )
