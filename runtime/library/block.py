"""All weights of a network in one block of memory: what C packs, and where each weight begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

from tilewright.runtime.arrays.memory import ALIGNMENT
from tilewright.spec.network.value import Network
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.types import ITEMSIZE

if TYPE_CHECKING:
    from .interface import Function


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

    ``offsets`` has by the rank of each target where the weights begin, in bytes, and last the size
    of the block. ``signature`` is that of the function that takes the block.
    """

    parts: tuple[Part, ...]
    offsets: tuple[tuple[int, ...], ...]
    signature: Signature

    @property
    def given(self) -> tuple[ArrayParameter, ...]:
        """The arrays from which the block is packed."""
        return tuple(array for part in self.parts for array in part.given)

    def part_at(self, index: int) -> int | None:
        """Return the number of the weight that is array ``index`` of the network, if it is one."""
        return next((n for n, each in enumerate(self.parts) if each.index == index), None)


def block_of(function: Function, packers: Mapping[str, Function]) -> Block | None:
    """Return the block of a network's weights; None for kernels that take no weights.

    ``packers`` are the functions that pack its weights, by the names of these.
    """
    spec = function.member.spec
    if not isinstance(spec, Network) or function.member.weights or not spec.weights:
        return None
    names = {weight.name for weight in spec.folded.weights}
    arrays = function.signature.arrays
    parts = tuple(
        _part(array, index, packers.get(array.name))
        for index, array in enumerate(arrays)
        if array.name in names
    )
    offsets = tuple(
        _offsets([_nbytes(part, packers, rank) for part in parts])
        for rank in range(len(function.on))
    )
    whole = replace(parts[0].weight, name="packed", chosen=False, stored="bytes")
    others = [array for array in arrays if array.name not in names]
    first = parts[0].index
    passed = (*others[:first], whole, *others[first:])
    return Block(parts, offsets, replace(function.signature, arrays=passed))


def _part(weight: ArrayParameter, index: int, packer: Function | None) -> Part:
    if packer is None:
        nbytes = prod(map(int, weight.shape)) * ITEMSIZE[weight.type]  # type: ignore[arg-type]
        return Part(weight, index, (weight,), "", 0, nbytes)
    taken = [array for array in packer.signature.arrays if array.role == "in"]
    given = tuple(
        replace(each, chosen=True, name=f"{weight.name}_{each.name}" if taken[1:] else weight.name)
        for each in taken
    )
    row = int(weight.shape[1]) if packer.sizes else 0  # type: ignore[arg-type]
    return Part(weight, index, given, packer.name, row, 0)


def _nbytes(part: Part, packers: Mapping[str, Function], rank: int) -> int:
    if not part.packer:
        return part.nbytes
    form = packers[part.weight.name].on[rank].format
    assert form is not None
    return int(form.nbytes)


def _offsets(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return where parts of these sizes begin, each at a cache line, and the end of the last."""
    lines = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    return tuple(accumulate(lines, initial=0))
