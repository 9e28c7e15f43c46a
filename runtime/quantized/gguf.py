"""Blocks as GGUF files hold them: bytes in which scales and elements stand beside each other.

A row of such a container is a column of B; its blocks lie along K. How the bytes of a block are
laid out is ggml's, and checked bit for bit against the package ``gguf``.
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
    """Blocks taken apart, one in each row: elements, scales, and minima where there are any."""

    q: Array
    scales: Array
    zeros: Array | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """How ``elements`` of a column stand in ``nbytes``, and the format that they have here.

    ``write`` is None where numbers of several blocks share factors, which cannot be found again.
    """

    form: Quantized
    elements: int
    nbytes: int
    read: Callable[[Array], Parts]
    write: Callable[[Parts], Array] | None = None


@spelled(ArgumentTypeError)
def from_gguf(data: Any, type: Any, shape: Any) -> QuantizedMatrix:
    """A tensor of a GGUF file as B, ``shape`` k x n, or count x k x n.

    ``data`` are the tensor's bytes: n rows of k weights each, which become columns of B; bytes, or
    an array of uint8 as the package ``gguf`` gives it. ``type`` is one of q4_0, q4_1, q5_0, q5_1,
    q8_0, q2_K, q3_K, q4_K, q5_K, q6_K, mxfp4 and nvfp4, or a member of that package's enum. The
    elements stay as they are; scales that a container holds as products are multiplied out,
    exactly, in f32. ArgumentError where bytes and shape do not fit.

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
    """The bytes of a tensor of a GGUF file, uint8: n rows of K's blocks, or count x n.

    It is the inverse of ``from_gguf`` for q4_0, q4_1, q5_0, q5_1, q8_0, mxfp4 and nvfp4, and takes
    a matrix of that format. Those named K are refused: their scales are products of stored numbers.

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


# --- what is refused ---------------------------------------------------------------------------


def _named(type: Any) -> tuple[str, Container]:
    """Return a container and its name, by a text or a member of the package ``gguf``'s enum."""
    name = type if isinstance(type, str) else getattr(type, "name", type)
    found = one_of(name, CONTAINERS, "unknown type of a GGUF tensor")
    return found, CONTAINERS[found]


def _sizes(container: Container, type: str, shape: Any) -> tuple[int, int, int]:
    """Count, k and n; ArgumentError unless blocks divide k."""
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
    """The bytes as rows; ArgumentError unless they are those of this shape."""
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
    """Return a value's type, and the value if it is short."""
    return f"{given.__class__.__name__}: {given!r:.60}"


# --- blocks ------------------------------------------------------------------------------------


def _halves(part: Array) -> Array:
    """Numbers of f16 that stand in bytes."""
    return np.ascontiguousarray(part).view("<f2").astype(np.float16, copy=False)


def _nibbles(part: Array) -> Array:
    """First the lower halves of bytes, then the upper ones."""
    return np.concatenate([part & 15, part >> 4], axis=-1)


def _of_nibbles(q: Array) -> Array:
    """The bytes of which ``_nibbles`` makes ``q``."""
    low, high = np.split(q.view(np.uint8), 2, axis=-1)
    found: Array = low | high << 4
    return found


def _bytes(numbers: Array) -> Array:
    """The bytes of numbers, as they stand in memory of a little-endian machine."""
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
    """32 fifth bits, then 16 bytes of four bits each."""
    fifth = np.unpackbits(rows[:, :4], axis=-1, bitorder="little")
    found: Array = _nibbles(rows[:, 4:]) | fifth << 4
    return found


def _of_five_bits(q: Array) -> Array:
    """The bytes of which ``_five_bits`` makes ``q``."""
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
    """So many bits of each of 32 bytes for one run of 32 elements after the other."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = part.reshape(len(part), -1, 1, 32) >> shifts & ((1 << bits) - 1)
    return fields.reshape(len(part), -1)


def _factors_of_six_bits(rows: Array) -> tuple[Array, Array]:
    """The scales and minima of eight blocks in 16 bytes: two f16, and 6 bits for each."""
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
    # The scales have no sign there, whatever its bit is.
    q = _nibbles(rows[:, 4:].reshape(-1, 4, 8)).reshape(len(rows), 64)
    return Parts(q, rows[:, :4] & 127)


def _write_nvfp4(parts: Parts) -> Array:
    q = _of_nibbles(parts.q.reshape(-1, 4, 16)).reshape(len(parts.q), 32)
    return np.hstack([_bytes(parts.scales), q])


#: Containers by the names that GGUF has for them.
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
    "mxfp4": Container(
        Quantized("f4_e2m1", scale="e8m0", block=32), 32, 17, _read_mxfp4, _write_q4_0
    ),
    "nvfp4": Container(
        Quantized("f4_e2m1", scale="f8_e4m3", block=16), 64, 36, _read_nvfp4, _write_nvfp4
    ),
}
