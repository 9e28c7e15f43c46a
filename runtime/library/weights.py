"""Weights of networks in a library: constants in C, or files, in the format of each target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import SpecError, TilewrightError
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import AnyFormat
from tilewright.plan.formats.low_bit import QuantizedFormat
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.call.packed_weights import (
    PackedWeights,
    frozen,
    layout_of,
    weights_by_name,
)
from tilewright.runtime.quantized.matrix import QuantizedMatrix, quantized_bytes
from tilewright.runtime.reference.network import folded_arrays
from tilewright.runtime.reference.pack_b import packed_in
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.expression.products import Weight
from tilewright.spec.network.value import Network
from tilewright.spec.types import ITEMSIZE, TypeName, is_integer, type_name

#: Most bytes of the weights that are compiled into a library, before they are packed. Compilers
#: take seconds for each MiB. Larger weights are files.
MOST = 2**20
#: Elements in a line of C.
_LINE = 8


def shipped(name: str, spec: object, given: object) -> tuple[dict[str, Any], dict[Weight, Any]]:
    """Return the weights of kernel ``name``: those that are compiled in by parameter, or those for
    files.

    Raise SpecError if the kernel has no weights; ArgumentError if arrays do not fit.
    """
    if not isinstance(spec, Network) or not spec.weights:
        raise SpecError(f"kernel {name!r} has no weights", got=spec, expected="a tw.network")
    try:
        found = weights_by_name(spec.weights, given)
    except TilewrightError as error:
        raise type(error)(
            f"kernel {name!r}: {error.problem}", got=error.got, expected=error.expected
        ) from None
    folded = folded_arrays(spec, found)
    if sum(map(_nbytes, found.values())) > MOST:
        return {}, folded
    return {weight.name: _contiguous(array) for weight, array in folded.items()}, {}


def _nbytes(array: Any) -> int:
    """Return the bytes of a weight before it is packed; low-bit elements count with their bits."""
    if not isinstance(array, QuantizedMatrix):
        return int(array.nbytes)
    blocks = [each for each in (array.scales, array.zeros) if each is not None]
    bits = array.format.stored.bits * array.q.size
    return -(-bits // 8) + sum(each.nbytes for each in blocks)


def _contiguous(array: Any) -> Any:
    return array if isinstance(array, QuantizedMatrix) else np.ascontiguousarray(array)


def packed_weights(
    spec: Network, arrays: Mapping[Weight, Any], formats: Mapping[str, AnyFormat]
) -> PackedWeights:
    """Return weights as the kernel of a target reads them, which has these packed ``formats``."""
    layout = layout_of(spec, {name: form.text for name, form in formats.items()})
    found = (_packed(arrays[weight], formats.get(weight.name)) for weight in spec.folded.weights)
    return PackedWeights(layout, tuple(found))


def _packed(array: Any, form: AnyFormat | None) -> Any:
    return frozen(array) if form is None else PackedMatrix(form.text, array.shape, _in(form, array))


def _in(form: AnyFormat, array: Any) -> Array:
    """Return the bytes of a matrix in a packed format."""
    if isinstance(form, QuantizedFormat):
        return quantized_bytes(array, form)
    assert isinstance(form, PackedFormat)
    data: Array = packed_in(form, [array])[0]
    return data


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant array in C of ``element``s, and the ranks of the targets whose kernels read it."""

    name: str
    element: TypeName
    data: bytes
    ranks: tuple[int, ...]

    @property
    def lines(self) -> Iterator[str]:
        """The initializer, line by line."""
        plain = self.element in ("f32", "f64") or is_integer(self.element)
        # C has the other numbers as the bits of their elements.
        held = DTYPES[self.element] if plain else np.dtype(f"u{ITEMSIZE[self.element]}")
        texts = [_spelled(value) for value in np.frombuffer(self.data, held)]
        for at in range(0, len(texts), _LINE):
            yield ", ".join(texts[at : at + _LINE])


def _spelled(value: Any) -> str:
    """Return a number as C, exact: the shortest decimals that are rounded to it."""
    if not isinstance(value, np.floating):
        return str(value)
    if not np.isfinite(value):
        return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!s}f" if value.itemsize == 4 else str(value)


@dataclass
class Constants:
    """The constants of a library; equal arrays are one."""

    library: str
    _found: dict[tuple[TypeName, bytes], list[int]] = field(default_factory=dict)

    def place(self, array: Any, form: AnyFormat | None, rank: int) -> str:
        """Return the C name of a weight in the format that the kernel of one target reads."""
        if form is None:
            data, element = array, type_name(array.dtype)
        else:
            # A low-bit weight has elements, scales and zero points in one array.
            low = isinstance(form, QuantizedFormat)
            data, element = _in(form, array), "u8" if low else type_name(form.stored)
        key = element, data.tobytes()
        number = list(self._found).index(key) if key in self._found else len(self._found)
        ranks = self._found.setdefault(key, [])
        if rank not in ranks:
            ranks.append(rank)
        return self._name(number)

    def _name(self, number: int) -> str:
        return f"{self.library}_weight{number}"

    @property
    def all(self) -> tuple[Constant, ...]:
        """All constants."""
        return tuple(
            Constant(self._name(number), element, data, tuple(ranks))
            for number, ((element, data), ranks) in enumerate(self._found.items())
        )


def placed(fixed: Mapping[str, Any], names: Iterable[str], given: Sequence[Any]) -> list[Any]:
    """Return the arrays of a call, with compiled-in weights in place of random ones."""
    return [fixed.get(name, array) for name, array in zip(names, given, strict=True)]
