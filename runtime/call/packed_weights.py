"""The value ``PackedWeights``: weights of a network in the order that its kernel reads."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from operator import index
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.keywords import spelled
from tilewright.runtime.arrays.dtypes import accepts, title
from tilewright.runtime.arrays.elements import decode
from tilewright.runtime.arrays.memory import ALIGNMENT, in_large_pages
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.store.replaced import file_path, replacing
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.expression.products import Weight
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import MAX_SIZE
from tilewright.spec.types import is_integer

from .packed_matrix import PackedMatrix, check_packed, memory

#: For each weight its name, its shape, and its packed format, or its type if it is not packed.
Layout = tuple[tuple[str, tuple[int, ...], str], ...]

_MAGIC = b"tilewright nets\n"
_VERSION = 1
#: Start of a file: magic bytes, the version, and the length of the JSON header that follows.
_START = struct.Struct("<16sII")
#: Maximum length of a file's JSON header in bytes.
_LONGEST = 1 << 24


def layout_of(spec: Network, formats: Mapping[str, str]) -> Layout:
    """Return the layout of a network's weights; ``formats`` are the names of their formats, or
    ``""``, by the weights' names.
    """
    constants = spec.constants
    # A constant is named by its expression, so that other constants have other names.
    return tuple(
        (repr(constants.get(w, w)), w.shape, formats.get(w.name) or w.type)
        for w in spec.folded.weights
    )


@spelled(ArgumentTypeError)
class PackedWeights:
    """The weights of a network, packed for its kernel: ``net.pack(weights)`` makes them.

    They are copies, and immutable. Another network takes them too if its weights have the same
    names, shapes and formats.

    Parameters
    ----------
    layout : tuple
        For each weight its name, its shape, and the format of its bytes.
    arrays : tuple
        For each weight an array, or a PackedMatrix if it is packed.

    Attributes
    ----------
    layout, arrays
        The parameters.
    names : tuple of str
        The names of the weights, for example ``w.up``.
    nbytes : int
        The size of all weights in bytes.

    Examples
    --------
    >>> spec = tw.network(lambda x, w: x @ w.up).of(
    ...     x=tw.Tensor("f32", (2, 3)), w={"up": tw.Tensor("f32", (3, 4))}
    ... )
    >>> packed = tw.compile(spec).pack({"up": np.ones((3, 4), np.float32)})
    >>> packed.names
    ('w.up',)
    """

    __slots__ = ("arrays", "layout")
    arrays: tuple[Any, ...]
    layout: Layout

    def __init__(self, layout: Layout, arrays: tuple[Any, ...]) -> None:
        given: tuple[Any, Any] = layout, arrays
        both = all(isinstance(each, tuple) for each in given)
        if not both or len(layout) != len(arrays) or any(len(each) != 3 for each in layout):
            raise ArgumentTypeError(
                "packed weights have an array for each weight of their layout",
                got=f"{layout!r:.60}, {arrays!r:.60}",
                hint="packed = net.pack(weights)",
            )
        for name, value in (("layout", layout), ("arrays", arrays)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"packed weights are immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"packed weights are immutable: {name} cannot be deleted")

    def adopt(self, layout: Layout) -> None:
        """Replace the layout by an equal one, so that later calls find the same object."""
        object.__setattr__(self, "layout", layout)

    def where_it_is_passed(self) -> str:
        """Return the advice of an error message for a function that takes no packed weights."""
        return "net(x, packed): the kernel of the network takes its weights after the tensors"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights."""
        return tuple(name for name, _, _ in self.layout)

    @property
    def nbytes(self) -> int:
        """The size of all weights in bytes."""
        return sum(int(array.nbytes) for array in self.arrays)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that ``load`` reads.

        Parameters
        ----------
        path : str or os.PathLike
            The file. One that exists is replaced when the new one is complete.
        """
        with replacing(path) as file:
            for piece in self.pieces():
                file.write(piece)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Yield the content of the file that ``save`` writes, piece by piece."""
        import zlib

        parts = [np.atleast_1d(np.asarray(memory(array))).reshape(-1) for array in self.arrays]
        parts = [part.view(np.uint8) for part in parts]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part.data, checksum)
        sizes = [part.nbytes for part in parts]
        text = f"{''.join(header_texts(self.layout, sizes))}{checksum}}}".encode()
        text += b" " * (-(_START.size + len(text)) % ALIGNMENT)
        yield _START.pack(_MAGIC, _VERSION, len(text)) + text
        for part in parts:
            yield part.data
            yield bytes(-part.nbytes % ALIGNMENT)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mapped: bool = False) -> PackedWeights:
        """Read the weights that ``save`` wrote.

        Parameters
        ----------
        path : str or os.PathLike
            The file.
        mapped : bool
            True to map the file into memory, read-only: a page is read when it is first used, and
            processes share it. The checksum is not compared then. The file must not be shortened
            while it is in use.

        Returns
        -------
        PackedWeights
            The weights.

        Raises
        ------
        ArgumentError
            The file is damaged, truncated or too long, or its header contradicts its data.

        Examples
        --------
        >>> layer = tw.network(lambda x, w: x @ w.up)
        >>> spec = layer.of(x=tw.Tensor("f32", (1, 2)), w={"up": tw.Tensor("f32", (2, 2))})
        >>> net = tw.compile(spec)
        >>> net.pack({"up": np.eye(2, dtype=np.float32)}).save("layer.weights")
        >>> net(np.float32([[1, 2]]), tw.PackedWeights.load("layer.weights", mapped=True))
        array([[1., 2.]], dtype=float32)
        """
        source = file_path(path)
        with source.open("rb") as file:
            entries, checksum, begin = _read_header(path, file)
            wanted = sum(-(-each.nbytes // ALIGNMENT) * ALIGNMENT for each in entries)
            rest = os.fstat(file.fileno()).st_size - begin
            if rest != wanted or begin % ALIGNMENT:
                raise ArgumentValueError(
                    f"{path} has another length than its header says",
                    got=f"{rest} bytes of weights",
                    expected=f"{wanted} bytes",
                )
            data = in_large_pages(0 if mapped else wanted)
            if not mapped and file.readinto(data.data) != wanted:
                raise ArgumentValueError(f"{path} became shorter while it was read")
        if mapped and wanted:
            data = np.asarray(np.memmap(source, np.uint8, "r", begin, (wanted,)))
        # The array is made from a read-only buffer, so that no caller can make it writeable.
        parts = _parts(entries, np.asarray(memoryview(data.data).toreadonly()))
        if not mapped:
            _check_sum(path, parts, checksum)
        arrays = (_array(each, part) for each, part in zip(entries, parts, strict=True))
        return cls(tuple((e.name, e.shape, e.format) for e in entries), tuple(arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.layout, tuple(self.arrays))

    def __repr__(self) -> str:
        return f"<PackedWeights {', '.join(self.names)}: {self.nbytes} bytes>"


class _Entry(NamedTuple):
    """One weight of a file: its name, shape and format as in ``Layout``, and its bytes."""

    name: str
    shape: tuple[int, ...]
    format: str
    nbytes: int


def header_texts(layout: Layout, sizes: Iterable[int]) -> list[str]:
    """Return the text of a file's header up to its checksum: a beginning, a part for each weight,
    and the rest.
    """
    import json

    entries = [
        json.dumps({"name": name, "shape": shape, "format": form, "nbytes": nbytes})
        for (name, shape, form), nbytes in zip(layout, sizes, strict=True)
    ]
    parts = [f"{text}, " for text in entries[:-1]] + entries[-1:]
    return ['{"weights": [', *parts, '], "crc32": ']


def _read_header(path: str | os.PathLike[str], file: BinaryIO) -> tuple[list[_Entry], int, int]:
    """Return a file's entries, its checksum, and the place at which the weights begin."""
    start = file.read(_START.size)
    if len(start) < _START.size or not start.startswith(_MAGIC):
        raise ArgumentValueError(f"{path} has no packed weights", got=start[:16])
    _, version, length = _START.unpack(start)
    if version != _VERSION or length > _LONGEST:
        raise ArgumentValueError(
            f"{path} has another version of the file format, or too long a header",
            got=f"version {version}, {length} bytes of header",
            expected=f"version {_VERSION}, at most {_LONGEST} bytes",
            hint="pack the weights again and save them",
        )
    return *_entries(path, file.read(length)), _START.size + length


def _check_sum(
    path: str | os.PathLike[str], parts: Iterable[np.ndarray[Any, Any]], wanted: int
) -> None:
    import zlib

    found = 0
    for part in parts:
        found = zlib.crc32(part.data, found)
    if found != wanted:
        raise ArgumentValueError(f"{path} is damaged: its checksum does not match")


def _entries(path: str | os.PathLike[str], text: bytes) -> tuple[list[_Entry], int]:
    """Return the weights of a file's header, and the checksum.

    Raises ArgumentError if a field is missing or wrong, or if sizes contradict each other.
    """
    import json

    try:
        given = json.loads(text)
        entries = [
            _Entry(each["name"], tuple(map(index, each["shape"])), each["format"],
                   index(each["nbytes"]))
            for each in given["weights"]
        ]  # fmt: skip
        checksum = index(given["crc32"])
        texts = all(isinstance(t, str) for each in entries for t in (each.name, each.format))
        sizes = all(0 <= n <= MAX_SIZE for each in entries for n in (*each.shape, each.nbytes))
        if not texts or not sizes or not all(1 <= len(each.shape) <= 2 for each in entries):
            raise ValueError("names, sizes")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArgumentValueError(f"{path} has a damaged header", got=f"{error!r:.80}") from None
    for each in entries:
        if each.format in DTYPES:
            wanted = prod(each.shape) * DTYPES[each.format].itemsize
            if each.nbytes != wanted:
                raise ArgumentValueError(
                    f"the weight {each.name} of {path} has another number of bytes than its shape",
                    got=each.nbytes,
                    expected=f"{wanted} for {each.format} of shape {each.shape}",
                )
        else:
            check_packed(f"the weight {each.name} of {path}", each.format, each.shape, each.nbytes)
    return entries, checksum


def _parts(entries: list[_Entry], data: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the bytes of each weight: each begins at a cache line."""
    found, at = [], 0
    for each in entries:
        found.append(data[at : at + each.nbytes])
        at += -(-each.nbytes // ALIGNMENT) * ALIGNMENT
    return found


def _array(entry: _Entry, part: np.ndarray[Any, Any]) -> Any:
    """Return a weight whose bytes are ``part``."""
    if entry.format in DTYPES:
        return part.view(DTYPES[entry.format]).reshape(entry.shape)
    return PackedMatrix.viewing(entry.format, entry.shape, part)


def _restored(layout: Layout, arrays: tuple[Any, ...]) -> PackedWeights:
    return PackedWeights(layout, tuple(map(frozen, arrays)))


def frozen(array: Any) -> Any:
    """Return a packed matrix as it is, and an array as a copy that cannot be written."""
    if isinstance(array, PackedMatrix):
        return array
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), array.dtype).reshape(array.shape)


def weights_by_name(weights: tuple[Weight, ...], given: Any) -> dict[Weight, Any]:
    """Return the array of each weight; ArgumentError for names, shapes or types that do not fit.

    ``given`` has the weights by name. If a network has several namespaces, it has a dict for each.
    """
    spaces = list(dict.fromkeys(weight.space for weight in weights))
    whole = {spaces[0]: given} if len(spaces) == 1 else given
    _check_names("the weights", whole, spaces)
    found = {}
    for space in spaces:
        keys = [weight.key for weight in weights if weight.space == space]
        _check_names(f"the weights of {space}", whole[space], keys)
    for weight in weights:
        found[weight] = _checked(weight, whole[weight.space][weight.key])
    return found


def _check_names(what: str, given: Any, wanted: list[str]) -> None:
    """Raise ArgumentError unless ``given`` is a dict with the ``wanted`` keys and no others."""
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{what} are a dict from names to arrays",
            got=type(given).__name__,
            expected=", ".join(wanted),
        )
    missing = [key for key in wanted if key not in given]
    more = [str(key) for key in given if key not in wanted]
    if missing or more:
        said = [f"{', '.join(missing)} missing"] * bool(missing)
        said += [f"{', '.join(more)} not used by the network"] * bool(more)
        raise ArgumentValueError(
            f"{what} are not those of the network",
            got="; ".join(said),
            expected=", ".join(wanted),
        )


def _checked(weight: Weight, given: Any) -> Any:
    """Return a weight's array; ArgumentError for another type or shape, and for NaN in it."""
    if weight.quantized is not None:
        if isinstance(given, QuantizedMatrix) and given.format == weight.quantized:
            _check_shape(weight, given)
            return given
        raise ArgumentTypeError(
            f"the weight {weight!r} is a low-bit matrix of another format",
            got=given.format if isinstance(given, QuantizedMatrix) else type(given).__name__,
            expected=weight.quantized,
            hint="tw.quantize(array, format)",
        )
    if getattr(given, "requires_grad", False):
        given = given.detach()  # the parameters of a module: packing copies them
    array = as_array(given, repr(weight))
    if not isinstance(array, np.ndarray) or not accepts(weight.type, array.dtype):
        raise ArgumentTypeError(
            f"the weight {weight!r} has another type or shape than the network's",
            got=f"{getattr(array, 'dtype', type(given).__name__)} of shape {np.shape(array)}",
            expected=f"{title(weight.type)} of shape {weight.shape}",
            hint=f"array.astype({title(weight.type)!r})" if hasattr(array, "astype") else None,
        )
    _check_shape(weight, array)
    if not is_integer(weight.type) and np.isnan(decode(array, weight.type)).any():
        raise ArgumentValueError(
            f"the weight {weight!r} holds NaN",
            got="NaN",
            expected="numbers",
            hint="np.isnan(array)",
        )
    return array


def _check_shape(weight: Weight, array: Any) -> None:
    shape = tuple(array.shape)
    if shape != weight.shape:
        raise ArgumentValueError(
            f"the weight {weight!r} has another type or shape than the network's",
            got=f"shape {shape}",
            expected=f"{weight.declared} of shape {weight.shape}",
            hint="array.T" if shape == weight.shape[::-1] and len(weight.shape) == 2 else None,
        )
