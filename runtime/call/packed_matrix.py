"""B as ``pack_b`` leaves it: bytes in a format that a family of kernels shares, and their file."""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError

from .abi import ALIGNMENT, address, aligned

_MAGIC = b"tilewright pack\n"
_VERSION = 1
#: The magic, the version, and the length of the header in JSON that follows.
_START = struct.Struct("<16sII")

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class PackedMatrix:
    """A packed B: passed in place of b to every kernel that expects its ``format``.

    ``shape`` is (k, n), or (count, k, n) for a batch; ``data`` are the bytes, at a cache line and
    read-only. Immutable, and no ndarray.
    """

    # The dispatcher reads the first of these, in alphabetical order: struct tw_packed.
    __slots__ = ("_record", "data", "format", "shape")
    _record: np.ndarray[Any, np.dtype[np.int64]]
    data: Bytes
    format: str
    shape: tuple[int, ...]

    def __init__(self, format: object, shape: tuple[int, ...], data: Bytes) -> None:
        if data.dtype != np.uint8 or data.ndim != 1 or not data.flags.c_contiguous:
            raise ArgumentTypeError(
                "packed bytes must be a contiguous 1-d uint8 array",
                got=f"{data.dtype} array of shape {data.shape}",
            )
        if len(shape) not in (2, 3):
            raise ArgumentValueError(
                "a packed matrix has the shape (k, n) or (count, k, n)", got=shape
            )
        if address(data) % ALIGNMENT:
            held = aligned(data.nbytes)
            held[:] = data
            data = held
        text = sys.intern(str(format))
        frozen = data.view()
        frozen.flags.writeable = False
        matrices = shape[0] if len(shape) == 3 else -1
        record = [id(text), address(data), data.nbytes, matrices, *shape[-2:]]
        for name, value in (
            ("format", text),
            ("shape", tuple(map(int, shape))),
            ("data", frozen),
            ("_record", np.array(record, np.int64)),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a PackedMatrix is immutable: {name} cannot be set")

    @property
    def nbytes(self) -> int:
        """The length of ``data``."""
        return self.data.nbytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ``load`` reads."""
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
        with Path(path).open("wb") as file:
            file.write(_START.pack(_MAGIC, _VERSION, len(text)) + text)
            file.write(self.data.data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PackedMatrix:
        """The matrix that ``save`` wrote to ``path``; ArgumentError if the file is not whole."""
        import zlib

        with Path(path).open("rb") as file:
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
            header = _header(path, file.read(length), length)
            rest = os.fstat(file.fileno()).st_size - _START.size - length
            if rest != header["nbytes"]:
                raise ArgumentValueError(
                    f"{path} is {'truncated' if rest < header['nbytes'] else 'too long'}",
                    got=f"{rest} bytes of data",
                    expected=f"{header['nbytes']}, as its header says",
                )
            data = aligned(header["nbytes"])
            file.readinto(data.data)
        if zlib.crc32(data.data) != header["crc32"]:
            raise ArgumentValueError(f"{path} is damaged: its checksum does not match")
        return cls(header["format"], tuple(header["shape"]), data)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedMatrix, (self.format, self.shape, np.array(self.data))

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        return f"<PackedMatrix {sizes} in {self.format}, {self.nbytes} bytes>"


def memory(argument: Any) -> np.ndarray[Any, Any]:
    """The array that C takes for an argument."""
    return argument.data if isinstance(argument, PackedMatrix) else argument


def _header(path: str | os.PathLike[str], text: bytes, length: int) -> dict[str, Any]:
    """The header, once it has every field."""
    import json

    wanted = {"format": str, "shape": list, "nbytes": int, "crc32": int}
    try:
        header = json.loads(text) if len(text) == length else None
    except ValueError:
        header = None
    if (
        not isinstance(header, dict)
        or any(not isinstance(header.get(name), kind) for name, kind in wanted.items())
        or not all(isinstance(size, int) and size >= 0 for size in header["shape"])
        or header["nbytes"] < 0
    ):
        raise ArgumentValueError(f"{path} is truncated or damaged: its header cannot be read")
    return header
