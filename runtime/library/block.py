"""All weights of a network in one block of memory: what C packs, and where each weight begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

from tilewright.runtime.arrays.memory import ALIGNMENT
from tilewright.runtime.call.packed_weights import header_texts, layout_of
from tilewright.spec.network.value import Network
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import Spec
from tilewright.spec.types import ITEMSIZE


@dataclass(frozen=True, slots=True)
class Part:
    """One weight of a block.

    ``index`` is its place among the network's arrays. ``given`` are the arrays from which it is
    made, ``packer`` is the C function that packs them, "" if the weight is copied. ``row`` is the
    length of a row that the packer takes, 0 if it takes none. ``nbytes`` is the size of a copied
    weight.
    """

    weight: ArrayParameter
    index: int
    given: tuple[ArrayParameter, ...]
    packer: str
    row: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Block:
    """The weights in order, as the files of ``tw.PackedWeights`` have them.

    ``sizes`` has the bytes of each weight by the rank of each target, and ``headers`` the texts
    with which a file of them begins. ``signature`` is that of the function that takes the block.
    ``files`` are the names of the library's own files of weights by rank, none if it has none.
    """

    parts: tuple[Part, ...]
    sizes: tuple[tuple[int, ...], ...]
    headers: tuple[tuple[str, ...], ...]
    signature: Signature
    files: tuple[str, ...] = ()

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """By rank where the weights begin, in bytes, and last the size of the block."""
        return tuple(map(_offsets, self.sizes))

    @property
    def given(self) -> tuple[ArrayParameter, ...]:
        """The arrays from which the block is packed."""
        return tuple(array for part in self.parts for array in part.given)

    def part_at(self, index: int) -> int | None:
        """Return the number of the weight that is array ``index`` of the network, if it is one."""
        return next((n for n, each in enumerate(self.parts) if each.index == index), None)


class Packer(NamedTuple):
    """The C function that packs a weight.

    ``takes_row`` is True if it takes the length of a row. ``nbytes`` has the size of the packed
    weight by the rank of each target.
    """

    name: str
    arrays: tuple[ArrayParameter, ...]
    takes_row: bool
    nbytes: tuple[int, ...]


def block_of(
    spec: Spec, signature: Signature, packers: Mapping[str, Packer], on: Sequence[Signature]
) -> Block | None:
    """Return the block of a network's weights; None for kernels that take no weights.

    ``packers`` are the functions that pack its weights, by the names of these, and ``on`` the
    signatures on each target.
    """
    if not isinstance(spec, Network) or not spec.weights:
        return None
    names = {weight.name for weight in spec.folded.weights}
    arrays = signature.arrays
    parts = tuple(
        _part(array, index, packers.get(array.name))
        for index, array in enumerate(arrays)
        if array.name in names
    )
    if not parts:
        return None  # the weights are compiled in
    sizes = tuple(
        tuple(
            packers[part.weight.name].nbytes[rank] if part.packer else part.nbytes for part in parts
        )
        for rank in range(len(on))
    )
    formats = [{one.name: one.format for one in each.arrays} for each in on]
    headers = tuple(
        tuple(header_texts(layout_of(spec, each), own))
        for each, own in zip(formats, sizes, strict=True)
    )
    whole = replace(parts[0].weight, name="packed", chosen=False, stored="bytes")
    others = [array for array in arrays if array.name not in names]
    first = parts[0].index
    passed = (*others[:first], whole, *others[first:])
    return Block(parts, sizes, headers, replace(signature, arrays=passed))


def _part(weight: ArrayParameter, index: int, packer: Packer | None) -> Part:
    shape = [size for size in weight.shape if isinstance(size, int)]
    if packer is None:
        return Part(weight, index, (weight,), "", 0, prod(shape) * ITEMSIZE[weight.type])
    taken = [array for array in packer.arrays if array.role == "in"]
    given = tuple(
        replace(each, chosen=True, name=f"{weight.name}_{each.name}" if taken[1:] else weight.name)
        for each in taken
    )
    return Part(weight, index, given, packer.name, shape[1] if packer.takes_row else 0, 0)


def _offsets(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return where parts of these sizes begin, each at a cache line, and the end of the last."""
    lines = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    return tuple(accumulate(lines, initial=0))
