"""The result of ``pack_b``: bytes in a format that a family of kernels shares, and its file."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.memory import ALIGNMENT, address, in_large_pages
from tilewright.runtime.store.replaced import file_path, replacing
from tilewright.spec.sizes import MAX_SIZE

if TYPE_CHECKING:
    from tilewright.plan.formats.lookup import AnyFormat

_MAGIC = b"tilewright pack\n"
_VERSION = 1
#: Start of a file: magic bytes, the version, and the length of the JSON header that follows.
_START = struct.Struct("<16sII")

#: Maximum length of a file's JSON header in bytes.
_LONGEST = 1 << 16

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@spelled(ArgumentTypeError)
class PackedMatrix:
    """A packed B or A, which is passed in its place to each kernel that expects its ``format``.

    A packed matrix is immutable and not an ndarray. ``pack_b`` and ``pack_a`` return one; a call of
    the class makes one from bytes.

    Parameters
    ----------
    format : str
        Name of the packed format.
    shape : tuple of int
        (k, n), or (count, k, n) for a batch; (m, k) for an A.
    data : numpy.ndarray
        The bytes, as a 1-d uint8 array, which is copied.

    Attributes
    ----------
    format, shape
        The parameters.
    data : numpy.ndarray
        The bytes, read-only, aligned to a cache line.
    nbytes : int
        Length of ``data``.

    Raises
    ------
    ArgumentError
        The format has no matrix of this shape in this number of bytes.

    Examples
    --------
    >>> layer = tw.compile(tw.Gemm(2, 4, 4, b=tw.Packed("f32")))
    >>> weights = layer.pack_b(np.eye(4, dtype=np.float32))
    >>> weights.shape, weights.nbytes == weights.data.size
    ((4, 4), True)
    >>> weights.save("weights.packed")
    >>> tw.PackedMatrix.load("weights.packed").format == weights.format
    True
    """

    # CPython stores these attributes in alphabetical order. The dispatcher reads the first one,
    # ``_record``, which is a struct tw_packed.
    __slots__ = ("_record", "data", "format", "shape")
    _record: np.ndarray[Any, np.dtype[np.int64]]
    data: Bytes
    format: str
    shape: tuple[int, ...]

    def __init__(self, format: object, shape: tuple[int, ...], data: Any) -> None:
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1:
            raise ArgumentTypeError(
                "packed bytes must be a 1-d uint8 array",
                got=f"{data.dtype} array of shape {data.shape}"
                if isinstance(data, np.ndarray)
                else type(data).__name__,
            )
        if hasattr(self, "_record"):
            raise AttributeError("a PackedMatrix is immutable: it is made once")
        checked = check_packed("a packed matrix", format, shape, data.nbytes)
        block = new_block(data.nbytes)
        matrix_in(block)[:] = data
        _fill(self, *checked, block)

    @classmethod
    def owning(cls, format: str, shape: tuple[int, ...], block: Bytes) -> PackedMatrix:
        """Return a matrix whose memory is ``block``, which ``new_block`` made; nothing is copied.

        Nobody else may hold or write the block.
        """
        self = cls.__new__(cls)
        _fill(self, *check_packed("a packed matrix", format, shape, matrix_in(block).nbytes), block)
        return self

    @classmethod
    def viewing(cls, format: str, shape: tuple[int, ...], data: Bytes) -> PackedMatrix:
        """Return a matrix on another object's bytes, without a copy if they start at a cache
        line.
        """
        if data.nbytes and address(data) % ALIGNMENT:
            return cls(format, shape, data)
        self = cls.__new__(cls)
        text, sizes = check_packed("a packed matrix", format, shape, data.nbytes)
        text = sys.intern(text)
        record = np.array(_record_of(text, sizes, data), np.int64)
        seen = data.view()
        seen.flags.writeable = False
        _set(self, text, sizes, seen, record)
        return self

    @property
    def is_whole(self) -> bool:
        """True if the object was made by the class and none of its fields was removed."""
        try:
            record = _record_of(self.format, self.shape, self.data)
            return bool(self._record.tolist() == record)
        except AttributeError:
            return False

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a PackedMatrix is immutable: {name} cannot be deleted")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a PackedMatrix is immutable: {name} cannot be set")

    @property
    def nbytes(self) -> int:
        """The length of ``data`` in bytes."""
        return self.data.nbytes

    def where_it_is_passed(self) -> str:
        """Return the advice of an error message for a function that takes no packed matrix."""
        return "a kernel with this format, for example the one whose pack_a or pack_b made it"

    def dequantize(self) -> np.ndarray[Any, Any]:
        """Return the elements of a block-quantized matrix in float32.

        Returns
        -------
        numpy.ndarray
            k x n, or count x k x n: the values of the ``tw.QuantizedMatrix`` that was packed.

        Raises
        ------
        ArgumentError
            The format is not quantized.
        """
        from tilewright.plan.formats.low_bit import QuantizedFormat
        from tilewright.runtime.quantized.packed import dequantized

        form = _format(self.format)
        if not isinstance(form, QuantizedFormat):
            raise ArgumentTypeError(
                "the packed matrix is not quantized in blocks",
                got=self.format,
                expected="what pack_b made for b=tw.Packed(tw.Quantized(...))",
            )
        parts = self.data.reshape(-1, form.nbytes)
        matrices = [dequantized(part, form) for part in parts]
        return np.stack(matrices) if len(self.shape) == 3 else matrices[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ``load`` reads.

        Parameters
        ----------
        path : str or os.PathLike
            The file. One that exists is replaced when the new one is complete.
        """
        import json
        import zlib

        header = {
            "format": self.format,
            "shape": self.shape,
            "nbytes": self.nbytes,
            "crc32": zlib.crc32(self.data.data),
        }
        text = json.dumps(header).encode()
        text += b" " * (-(_START.size + len(text)) % ALIGNMENT)
        with replacing(path) as file:
            file.write(_START.pack(_MAGIC, _VERSION, len(text)) + text)
            file.write(self.data.data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PackedMatrix:
        """Read the matrix that ``save`` wrote.

        Parameters
        ----------
        path : str or os.PathLike
            The file.

        Returns
        -------
        PackedMatrix
            The matrix.

        Raises
        ------
        ArgumentError
            The file is damaged, truncated or too long.
        """
        import zlib

        with file_path(path).open("rb") as file:
            start = file.read(_START.size)
            if len(start) < _START.size or not start.startswith(_MAGIC):
                raise ArgumentValueError(f"{path} is no packed matrix", got=start[:16])
            _, version, length = _START.unpack(start)
            if version != _VERSION:
                raise ArgumentValueError(
                    f"{path} has another version of the file format",
                    got=version,
                    expected=_VERSION,
                    hint="pack the matrix again and save it",
                )
            header = _header(path, file.read(min(length, _LONGEST)), length)
            nbytes = header["nbytes"]
            rest = os.fstat(file.fileno()).st_size - _START.size - length
            if rest != nbytes:
                _wrong_length(path, rest, nbytes)
            checked = check_packed(f"{path}", header["format"], header["shape"], nbytes)
            block = _block_for(path, nbytes)
            got = file.readinto(matrix_in(block).data)
            if got != nbytes:
                _wrong_length(path, got, nbytes)
        if zlib.crc32(matrix_in(block).data) != header["crc32"]:
            raise ArgumentValueError(f"{path} is damaged: its checksum does not match")
        self = cls.__new__(cls)
        _fill(self, *checked, block)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedMatrix, (self.format, self.shape, np.array(self.data))

    def __repr__(self) -> str:
        if not self.is_whole:
            return "<PackedMatrix without its data>"
        sizes = "x".join(map(str, self.shape))
        return f"<PackedMatrix {sizes} in {self.format}, {self.nbytes} bytes>"


def memory(argument: Any) -> np.ndarray[Any, Any]:
    """Return the array whose address C gets: a packed matrix's bytes, or the argument itself."""
    return argument.data if isinstance(argument, PackedMatrix) else argument


def packed_row(packed: PackedMatrix, format: str) -> np.ndarray[Any, Any]:
    """Return the bytes of one packed matrix as a row; ArgumentError if it has another format."""
    if packed.format != format or len(packed.shape) != 2:
        raise ArgumentValueError(
            "the matrix is packed in another format",
            got=f"{packed.format}, of shape {packed.shape}",
            expected=f"one matrix in {format}",
            hint="tw.Copy(rows, cols, packed.format, ...)",
        )
    return packed.data.reshape(1, -1)


def matrix_of(format: str, data: Any) -> PackedMatrix:
    """Return the packed matrix with the bytes ``data``, a row for each matrix of a batch.

    Raises ArgumentError if the bytes do not fit the format.
    """
    form, lines = _format(format), np.asarray(data)
    assert form is not None and all(isinstance(size, int) for size in form.shape)
    return PackedMatrix(format, (*lines.shape[:-1], *form.shape), lines.reshape(-1))


# --- what a matrix is made of ------------------------------------------------------------------


def check_packed(
    what: str, format: object, shape: Sequence[int], nbytes: int
) -> tuple[str, tuple[int, ...]]:
    """Return a format and a shape if they fit each other and the number of bytes.

    Every way to make a matrix includes this check. Raise ArgumentError with ``what`` otherwise.
    """
    form, sizes = _format(str(format)), _sizes(shape)
    if sizes is None:
        raise ArgumentValueError(
            f"{what} has no shape (k, n) or (count, k, n)", got=f"{shape!r:.80}"
        )
    if form is None or form.is_open:
        raise ArgumentValueError(
            f"{what} has an unknown format",
            got=f"{format!s:.200}",
            expected="the format of a matrix that kernel.pack_b made",
        )
    assert form.k is not None and form.nbytes is not None
    if sizes[-2:] != form.shape:
        raise ArgumentValueError(
            f"{what} has a shape that is not its format's",
            got=sizes,
            expected=f"{form.shape}, or a count before them: {form.text}",
        )
    count = sizes[0] if len(sizes) == 3 else 1
    if nbytes != count * form.nbytes:
        raise ArgumentValueError(
            f"{what} has another number of bytes than its format says",
            got=f"{nbytes} bytes",
            expected=f"{count * form.nbytes}: {form.nbytes} for each matrix of {form.text}",
        )
    return form.text, sizes


def new_block(nbytes: int) -> Bytes:
    """Return memory for a packed matrix of ``nbytes`` bytes, and for the record that C reads."""
    return in_large_pages(ALIGNMENT + nbytes)


def matrix_in(block: Bytes) -> Bytes:
    """Return the part of a ``new_block`` that holds the matrix."""
    return block[ALIGNMENT:]


def _fill(packed: PackedMatrix, format: str, shape: tuple[int, ...], block: Bytes) -> None:
    """Set the fields of ``packed`` after the checks; record and bytes share one block of memory."""
    text = sys.intern(format)
    record = _record_of(text, shape, matrix_in(block))
    block[:ALIGNMENT].view(np.int64)[: len(record)] = record
    # The array is made from a read-only buffer, so that no caller can make it writeable.
    frozen = np.asarray(memoryview(block.data).toreadonly())
    _set(packed, text, shape, matrix_in(frozen), frozen[: 8 * len(record)].view(np.int64))


def _set(
    packed: PackedMatrix, text: str, shape: tuple[int, ...], data: Bytes,
    record: np.ndarray[Any, np.dtype[np.int64]],
) -> None:  # fmt: skip
    """Set the attributes of a new PackedMatrix, whose own ``__setattr__`` refuses all changes."""
    for name, value in (("format", text), ("shape", shape), ("data", data), ("_record", record)):
        object.__setattr__(packed, name, value)


def _record_of(format: str, shape: tuple[int, ...], data: Bytes) -> list[int]:
    """Return the fields of the C struct tw_packed for a packed matrix."""
    return [
        id(format),
        address(data),
        data.nbytes,
        shape[0] if len(shape) == 3 else -1,
        *shape[-2:],
        id(family_of(format)),
    ]


@cache
def family_of(format: str) -> str:
    """Return the name of the format for kernels whose sizes only the call knows.

    It is the same for all matrices that differ only in their sizes. Names that C compares are
    interned, and kept as long as the process runs.
    """
    form = _format(format)
    family = getattr(form, "family", None)
    return sys.intern(format if family is None else family.text)


@cache
def _formats() -> dict[str, AnyFormat]:
    """Return the dict of known formats by their interned names.

    C compares addresses of names, so the names are kept as long as the process runs.
    """
    return {}


def _format(text: str) -> AnyFormat | None:
    known = _formats().get(text)
    if known is None:
        from tilewright.plan.formats.named import format_named

        known = format_named(text)
        if known is not None:
            _formats()[sys.intern(text)] = known
    return known


def _sizes(shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return ``shape`` as two or three numbers that C can hold, else None."""
    try:
        sizes = tuple(map(index, shape))
    except TypeError:
        return None
    return sizes if len(sizes) in (2, 3) and all(0 <= n <= MAX_SIZE for n in sizes) else None


# --- files -------------------------------------------------------------------------------------


def _header(path: str | os.PathLike[str], text: bytes, length: int) -> dict[str, Any]:
    """Return a file's header from its JSON text; ArgumentError if a field is missing or wrong."""
    import json

    wanted = {"format": str, "shape": list, "nbytes": int, "crc32": int}
    try:
        header = json.loads(text) if len(text) == length else None
    except (ValueError, RecursionError):
        header = None
    if (
        not isinstance(header, dict)
        or any(not isinstance(header.get(name), kind) for name, kind in wanted.items())
        or not all(isinstance(size, int) and size >= 0 for size in header["shape"])
        or header["nbytes"] < 0
    ):
        raise ArgumentValueError(f"{path} is truncated or damaged: its header cannot be read")
    return header


def _wrong_length(path: str | os.PathLike[str], got: int, expected: int) -> NoReturn:
    raise ArgumentValueError(
        f"{path} is {'truncated' if got < expected else 'too long'}",
        got=f"{got} bytes of data",
        expected=f"{expected:.6g} bytes, as its header says"
        if expected > MAX_SIZE
        else f"{expected}, as its header says",
    )


def _block_for(path: str | os.PathLike[str], nbytes: int) -> Bytes:
    """Return memory for a file's matrix; ArgumentError if the machine has too little memory."""
    # Some systems do not report how much memory they have.
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if nbytes > memory:
            _no_memory(path, nbytes)
    try:
        return new_block(nbytes)
    except MemoryError:
        _no_memory(path, nbytes)


def _no_memory(path: str | os.PathLike[str], nbytes: int) -> NoReturn:
    raise ArgumentValueError(
        f"{path} holds more than this machine's memory", got=f"{nbytes} bytes of data"
    ) from None
