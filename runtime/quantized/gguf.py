"""Read and write quantized tensors of GGUF files.

In go the bytes of a tensor, in which the scales and elements of each block are next to each other;
out comes a QuantizedMatrix, and the reverse. A row of the tensor is a column of B, and its blocks
follow K. The layouts are those of ggml. Tests compare them bit for bit with the package ``gguf``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array
from tilewright.spec.quantized import Quantized
from tilewright.spec.sizes import whole_number

from .choices import one_of
from .matrix import QuantizedMatrix


class Parts(NamedTuple):
    """Blocks as separate arrays with a row for each block: elements, scales, and minima."""

    q: Array
    scales: Array
    zeros: Array | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """A tensor type of GGUF, which stores ``elements`` elements of a column in ``nbytes`` bytes.

    ``form`` is the format of the resulting QuantizedMatrix. ``write`` is None if several blocks
    share factors, which cannot be recovered from the scales.
    """

    form: Quantized
    elements: int
    nbytes: int
    read: Callable[[Array], Parts]
    write: Callable[[Parts], Array] | None = None


@spelled(ArgumentTypeError)
def from_gguf(data: Any, type: Any, shape: Any) -> QuantizedMatrix:
    """Return a tensor of a GGUF file as a QuantizedMatrix.

    The elements stay as they are. If the tensor type stores scales as products, the products are
    computed exactly, in f32.

    Parameters
    ----------
    data : bytes or array of uint8
        The tensor's bytes: n rows of k weights each. The rows become the columns of B. The package
        ``gguf`` gives such an array.
    type : str or enum member
        One of q4_0, q4_1, q5_0, q5_1, q8_0, q2_K, q3_K, q4_K, q5_K, q6_K, iq4_nl, mxfp4 and
        nvfp4. Or a member of the enum in the package ``gguf``.
    shape : tuple of int
        (k, n), or (count, k, n) for several matrices.

    Returns
    -------
    QuantizedMatrix
        B, k x n.

    Raises
    ------
    ArgumentError
        The type is unknown, or ``data`` does not have the size for ``shape``.

    Examples
    --------
    >>> form = tw.Quantized("u4", scale="f16", zero=8, block=32)
    >>> b = tw.quantize(np.linspace(-1, 1, 64, dtype=np.float32).reshape(32, 2), form)
    >>> again = tw.from_gguf(tw.to_gguf(b, "q4_0"), "q4_0", (32, 2))
    >>> again.format == form and bool((again.dequantize() == b.dequantize()).all())
    True
    """
    name, container = _named(type)
    sizes = _sizes(container, name, shape)
    rows, (count, _, n) = _rows(container, name, data, sizes), sizes
    parts, stacked = container.read(rows.reshape(-1, container.nbytes)), len(shape) == 3

    def columns(each: Array) -> Array:
        matrix = each.reshape(count, n, -1).swapaxes(1, 2)
        return matrix if stacked else matrix[0]

    zeros = None if parts.zeros is None else columns(parts.zeros)
    return QuantizedMatrix(container.form, columns(parts.q), columns(parts.scales), zeros)


@spelled(ArgumentTypeError)
def to_gguf(matrix: QuantizedMatrix, type: Any) -> Array:
    """Return a QuantizedMatrix as the bytes of a tensor for a GGUF file.

    It is the inverse of ``from_gguf``.

    Parameters
    ----------
    matrix : QuantizedMatrix
        The matrix. Its format must be that of ``type``.
    type : str or enum member
        One of q4_0, q4_1, q5_0, q5_1, q8_0, iq4_nl, mxfp4 and nvfp4. The types whose names end in K
        cannot be written, because their scales are products of stored numbers.

    Returns
    -------
    array of uint8
        n rows with the blocks of K, or count x n rows.

    Raises
    ------
    ArgumentError
        The type is unknown or cannot be written, or the matrix has another format.

    Examples
    --------
    >>> form = tw.Quantized("s8", scale="f16", block=32)
    >>> tw.to_gguf(tw.quantize(np.ones((64, 3), np.float32), form), "q8_0").shape
    (3, 68)
    """
    name, container = _named(type)
    if container.write is None:
        known = ", ".join(key for key, each in CONTAINERS.items() if each.write is not None)
        raise ArgumentValueError(
            f"{name} cannot be written: its scales are products of stored numbers",
            got=name,
            expected=f"one of {known}",
        )
    if not isinstance(matrix, QuantizedMatrix):
        raise ArgumentTypeError(
            "matrix must be a tw.QuantizedMatrix",
            got=_kind(matrix),
            hint="tw.quantize(w, format)",
        )
    if matrix.format != container.form:
        raise ArgumentValueError(
            f"{name} holds another format", got=matrix.format, expected=f"{container.form}"
        )
    _sizes(container, name, matrix.shape)

    def blocks(each: Array) -> Array:
        lines = np.ascontiguousarray(each.swapaxes(-1, -2))
        return lines.reshape(-1, container.elements * lines.shape[-1] // matrix.shape[-2])

    zeros = None if matrix.zeros is None else blocks(matrix.zeros)
    rows = container.write(Parts(blocks(matrix.q), blocks(matrix.scales), zeros))
    return rows.reshape(*matrix.shape[:-2], matrix.shape[-1], -1)


def row_bytes(type: Any, k: int) -> int:
    """Return the bytes of a row of ``k`` weights, of which the last block may lack some."""
    _, container = _named(type)
    return -(-k // container.elements) * container.nbytes


# --- what is refused ---------------------------------------------------------------------------


def _named(type: Any) -> tuple[str, Container]:
    """Return name and layout of a GGUF tensor type, given as text or as a member of an enum."""
    name = type if isinstance(type, str) else getattr(type, "name", type)
    found = one_of(name, CONTAINERS, "unknown type of a GGUF tensor")
    return found, CONTAINERS[found]


def _sizes(container: Container, type: str, shape: Any) -> tuple[int, int, int]:
    """Return count, k and n; raise ArgumentError unless k is a multiple of the block."""
    listed = isinstance(shape, tuple | list) or (isinstance(shape, np.ndarray) and shape.ndim == 1)
    sizes = [whole_number(size) for size in shape] if listed else []
    if len(sizes) not in (2, 3) or any(size is None or size < 1 for size in sizes):
        raise ArgumentValueError(
            "shape, that of B, must be two or three positive sizes",
            got=f"{shape!r:.80}",
            expected="(k, n), or (count, k, n)",
        )
    whole = [size for size in sizes if size is not None]
    count, k, n = [1] * (3 - len(whole)) + whole
    if k % container.elements:
        swapped = n % container.elements == 0
        raise ArgumentValueError(
            f"blocks of {type} do not divide k",
            got=f"k={k}, n={n}",
            expected=f"k a multiple of {container.elements}",
            hint=f"shape=({n}, {k}): k, the length of a row of weights, comes first"
            if swapped
            else None,
        )
    return count, k, n


def _rows(container: Container, type: str, data: Any, sizes: tuple[int, int, int]) -> Array:
    """Return the bytes as rows; raise ArgumentError unless their number fits the shape."""
    given = as_array(data, "data")
    if not isinstance(given, np.ndarray) or given.dtype != np.uint8:
        raise ArgumentTypeError(
            "data must be bytes",
            got=f"{given.dtype} array" if isinstance(given, np.ndarray) else _kind(given),
            expected="bytes, or an array of uint8",
            hint="data.view(np.uint8)" if isinstance(given, np.ndarray) else None,
        )
    count, k, n = sizes
    row = k // container.elements * container.nbytes
    if given.size != count * n * row:
        raise ArgumentValueError(
            f"data is not as long as {type} is for this shape",
            got=f"{given.size} bytes",
            expected=f"{count * n * row}: {count * n} rows of {row} bytes, {container.nbytes} "
            f"for each {container.elements} elements, for k={k}, n={n}"
            + (f", {count} matrices" if count > 1 else ""),
        )
    if given.ndim > 1 and given.shape[-1] != row:
        other = given.shape[-1] * container.elements // container.nbytes
        raise ArgumentValueError(
            "rows of data are not as long as k",
            got=f"shape {given.shape}: rows of {other} elements",
            expected=f"({prod(given.shape[:-1]) * given.shape[-1] // row}, {row}) for k={k}",
            hint="k comes first in the shape of B: a row of weights is a column of B",
        )
    return np.ascontiguousarray(given)


def _kind(given: object) -> str:
    """Return a value's type, followed by the value, shortened."""
    return f"{given.__class__.__name__}: {given!r:.60}"


# --- blocks ------------------------------------------------------------------------------------


def _halves(part: Array) -> Array:
    """Return the f16 numbers in an array of bytes."""
    return np.ascontiguousarray(part).view("<f2").astype(np.float16, copy=False)


def _nibbles(part: Array) -> Array:
    """Return the 4-bit numbers in bytes: the low 4 bits of all bytes, then the high 4 bits."""
    return np.concatenate([part & 15, part >> 4], axis=-1)


def _of_nibbles(q: Array) -> Array:
    """Return 4-bit numbers packed in bytes. It is the inverse of ``_nibbles``."""
    low, high = np.split(q.view(np.uint8), 2, axis=-1)
    found: Array = low | high << 4
    return found


def _bytes(numbers: Array) -> Array:
    """Return the bytes of an array of numbers in little-endian order."""
    return np.ascontiguousarray(numbers).view(np.uint8)


def _read_q4_0(rows: Array) -> Parts:
    return Parts(_nibbles(rows[:, 2:]), _halves(rows[:, :2]))


def _write_q4_0(parts: Parts) -> Array:
    return np.hstack([_bytes(parts.scales), _of_nibbles(parts.q)])


def _read_q4_1(rows: Array) -> Parts:
    return Parts(_nibbles(rows[:, 4:]), _halves(rows[:, :2]), _halves(rows[:, 2:4]))


def _write_q4_1(parts: Parts) -> Array:
    assert parts.zeros is not None
    return np.hstack([_bytes(parts.scales), _bytes(parts.zeros), _of_nibbles(parts.q)])


def _five_bits(rows: Array) -> Array:
    """Return 5-bit numbers from 4 bytes with the fifth bits and 16 bytes with the low 4 bits."""
    fifth = np.unpackbits(rows[:, :4], axis=-1, bitorder="little")
    found: Array = _nibbles(rows[:, 4:]) | fifth << 4
    return found


def _of_five_bits(q: Array) -> Array:
    """Return 5-bit numbers packed in bytes. It is the inverse of ``_five_bits``."""
    fifth = np.packbits(q >> 4, axis=-1, bitorder="little")
    return np.hstack([fifth, _of_nibbles(q & 15)])


def _read_q5_0(rows: Array) -> Parts:
    return Parts(_five_bits(rows[:, 2:]), _halves(rows[:, :2]))


def _write_q5_0(parts: Parts) -> Array:
    return np.hstack([_bytes(parts.scales), _of_five_bits(parts.q)])


def _read_q5_1(rows: Array) -> Parts:
    return Parts(_five_bits(rows[:, 4:]), _halves(rows[:, :2]), _halves(rows[:, 2:4]))


def _write_q5_1(parts: Parts) -> Array:
    assert parts.zeros is not None
    return np.hstack([_bytes(parts.scales), _bytes(parts.zeros), _of_five_bits(parts.q)])


def _read_q8_0(rows: Array) -> Parts:
    return Parts(rows[:, 2:].view(np.int8), _halves(rows[:, :2]))


def _write_q8_0(parts: Parts) -> Array:
    return np.hstack([_bytes(parts.scales), _bytes(parts.q)])


def _planes(part: Array, bits: int) -> Array:
    """Return the fields of ``bits`` bits that bytes hold, each field as an element.

    Of 32 bytes at a time, field 0 of all comes first, then field 1, and so on.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = part.reshape(len(part), -1, 1, 32) >> shifts & ((1 << bits) - 1)
    return fields.reshape(len(part), -1)


def _factors_of_six_bits(rows: Array) -> tuple[Array, Array]:
    """Return the scales and minima of eight blocks.

    The 16 bytes of a row hold two f16 factors, then 6 bits for each scale and minimum.
    """
    whole = _halves(rows[:, :4]).astype(np.float32)
    first, second, last = rows[:, 4:8], rows[:, 8:12], rows[:, 12:16]
    scales = np.hstack([first & 63, last & 15 | first >> 6 << 4])
    minima = np.hstack([second & 63, last >> 4 | second >> 6 << 4])
    return whole[:, :1] * scales, -whole[:, 1:] * minima


def _read_q2_k(rows: Array) -> Parts:
    whole, packed = _halves(rows[:, 80:]).astype(np.float32), rows[:, :16]
    q = _planes(rows[:, 16:80], 2)
    return Parts(q, whole[:, :1] * (packed & 15), -whole[:, 1:] * (packed >> 4))


def _read_q3_k(rows: Array) -> Parts:
    q = _planes(rows[:, 32:96], 2) | _planes(rows[:, :32], 1) << 2
    packed = rows[:, 96:108]
    low = np.hstack([packed[:, :8] & 15, packed[:, :8] >> 4])
    high = np.hstack([packed[:, 8:] >> shift & 3 for shift in (0, 2, 4, 6)])
    scales = (low | high << 4).view(np.int8) - np.int8(32)
    return Parts(q, _halves(rows[:, 108:]).astype(np.float32) * scales)


def _read_q4_k(rows: Array) -> Parts:
    q = _nibbles(rows[:, 16:].reshape(-1, 4, 32)).reshape(len(rows), 256)
    return Parts(q, *_factors_of_six_bits(rows))


def _read_q5_k(rows: Array) -> Parts:
    low = _nibbles(rows[:, 48:].reshape(-1, 4, 32)).reshape(len(rows), 256)
    return Parts(low | _planes(rows[:, 16:48], 1) << 4, *_factors_of_six_bits(rows))


def _read_q6_k(rows: Array) -> Parts:
    low = _nibbles(rows[:, :128].reshape(-1, 2, 64)).reshape(len(rows), 256)
    q = low | _planes(rows[:, 128:192], 2) << 4
    scales = rows[:, 192:208].view(np.int8)
    return Parts(q, _halves(rows[:, 208:]).astype(np.float32) * scales)


def _read_mxfp4(rows: Array) -> Parts:
    return Parts(_nibbles(rows[:, 1:]), rows[:, :1])


def _read_nvfp4(rows: Array) -> Parts:
    # Scales of nvfp4 have no sign: the sign bit of the byte is ignored.
    q = _nibbles(rows[:, 4:].reshape(-1, 4, 8)).reshape(len(rows), 64)
    return Parts(q, rows[:, :4] & 127)


def _write_nvfp4(parts: Parts) -> Array:
    q = _of_nibbles(parts.q.reshape(-1, 4, 16)).reshape(len(parts.q), 32)
    return np.hstack([_bytes(parts.scales), q])


#: The tensor types of GGUF by their names.
CONTAINERS: dict[str, Container] = {
    "q4_0": Container(
        Quantized("u4", scale="f16", zero=8, block=32), 32, 18, _read_q4_0, _write_q4_0
    ),
    "q4_1": Container(
        Quantized("u4", scale="f16", zero="f16", block=32), 32, 20, _read_q4_1, _write_q4_1
    ),
    "q5_0": Container(
        Quantized("u5", scale="f16", zero=16, block=32), 32, 22, _read_q5_0, _write_q5_0
    ),
    "q5_1": Container(
        Quantized("u5", scale="f16", zero="f16", block=32), 32, 24, _read_q5_1, _write_q5_1
    ),
    "q8_0": Container(Quantized("s8", scale="f16", block=32), 32, 34, _read_q8_0, _write_q8_0),
    "q2_K": Container(Quantized("u2", scale="f32", zero="f32", block=16), 256, 84, _read_q2_k),
    "q3_K": Container(Quantized("u3", scale="f32", zero=4, block=16), 256, 110, _read_q3_k),
    "q4_K": Container(Quantized("u4", scale="f32", zero="f32", block=32), 256, 144, _read_q4_k),
    "q5_K": Container(Quantized("u5", scale="f32", zero="f32", block=32), 256, 176, _read_q5_k),
    "q6_K": Container(Quantized("u6", scale="f32", zero=32, block=16), 256, 210, _read_q6_k),
    "iq4_nl": Container(
        Quantized("iq4_nl", scale="f16", block=32), 32, 18, _read_q4_0, _write_q4_0
    ),
    "mxfp4": Container(
        Quantized("f4_e2m1", scale="e8m0", block=32), 32, 17, _read_mxfp4, _write_q4_0
    ),
    "nvfp4": Container(
        Quantized("f4_e2m1", scale="f8_e4m3", block=16), 64, 36, _read_nvfp4, _write_nvfp4
    ),
}
