"""The operator that computes a sub-graph by its network, and the packed weights of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

import torch
from tilewright.errors import ArgumentError
from tilewright.runtime.call.packed_weights import PackedWeights
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, Size
from torch.utils.weak import WeakIdKeyDictionary

from ..packed import INPUT_TYPES
from ..products import register
from .digest import digest
from .recipe import Recipe


class Joined(NamedTuple):
    """A sub-graph whose network is compiled.

    ``kernels`` are its kernels by their number of threads. ``places`` are the indices of the inputs
    that the network reads. ``results`` are the shapes and types of the results.
    """

    recipe: Recipe
    network: Network
    kernels: dict[int, Kernel]
    places: tuple[int, ...]
    results: tuple[tuple[tuple[Size, ...], torch.dtype], ...]

    @property
    def kernel(self) -> Kernel:
        """The kernel for as many threads as PyTorch uses now."""
        return self.compiled(torch.get_num_threads())

    def compiled(self, threads: int) -> Kernel:
        """Return the kernel for this number of threads; compile it if there is none."""
        if threads not in self.kernels:
            self.kernels[threads] = compile(self.network, Schedule(threads=threads))
        return self.kernels[threads]


class Held(NamedTuple):
    """What is kept of the weights of one sub-graph between calls.

    ``seen`` is the digest of the last call's weights. If ``tried``, ``packed`` are those weights
    packed, None if they cannot be packed. ``weights`` are references to them.
    """

    seen: int
    tried: bool
    packed: PackedWeights | None
    weights: tuple[ref[torch.Tensor], ...]

    def is_of(self, weights: Sequence[torch.Tensor]) -> bool:
        """Return True if ``weights`` are the same objects."""
        return all(x() is y for x, y in zip(self.weights, weights, strict=True))


#: The sub-graphs whose networks are compiled, by the keys of their recipes.
_joined: dict[str, Joined] = {}
#: For each first weight of a sub-graph: the ``Held`` by key and by the ids of all weights.
_held: WeakIdKeyDictionary = WeakIdKeyDictionary()
_packing = Lock()


def join(recipe: Recipe, weights: Sequence[torch.Tensor]) -> Joined:
    """Compile the network of a sub-graph, and make it known to the operator.

    Raise SpecError if no network computes it, and other errors of tilewright if none is compiled.
    """
    found = _joined.get(recipe.key)
    if found is None:
        network = recipe.model(weights).network
        names = [held.name for held in recipe.inputs]
        places = tuple(names.index(each.name) for each in network.inputs)
        made = [each.tensor for each in network.results if each.tensor is not None]
        dtypes = {name: dtype for dtype, name in INPUT_TYPES.items()}
        results = tuple((each.shape, dtypes[each.type]) for each in made)
        found = Joined(recipe, network, {}, places, results)
    found.compiled(torch.get_num_threads())
    _joined[recipe.key] = found
    return found


def _network(
    inputs: list[torch.Tensor], weights: list[torch.Tensor], key: str, constant: bool
) -> list[torch.Tensor]:
    """Compute the sub-graph ``key``. If ``constant``, the weights never change."""
    joined = _joined[key]
    with torch.no_grad():
        packed = _packed(joined, weights, constant) if weights else None
        if weights and packed is None:
            return joined.recipe.run(inputs, weights)
        given: list[Any] = [inputs[place].resolve_neg().contiguous() for place in joined.places]
        made = joined.kernel(*given, *([] if packed is None else [packed]))
        return list(made) if isinstance(made, tuple) else [made]


def _packed(joined: Joined, weights: list[torch.Tensor], constant: bool) -> PackedWeights | None:
    """Return the packed weights of a call.

    Weights are packed at their first call, and again at the second call after a change. The call
    before that gets None, as do all calls with weights that cannot be packed, such as NaN.
    """
    place = (joined.recipe.key, *map(id, weights))
    kept: dict[Any, Held] = _held.setdefault(weights[0], {})
    held = kept.get(place)
    if constant and held is not None and held.is_of(weights):
        return held.packed
    now, references = digest(weights), tuple(map(ref, weights))
    if held is not None and held.seen != now:
        kept[place] = Held(now, False, None, references)
        return None
    if held is None or not held.tried:
        with _packing:
            packed = _pack(joined, weights)
        # Another thread may have written into a weight while it was packed.
        if digest(weights) != now:
            return None
        kept[place] = held = Held(now, True, packed, references)
    return held.packed


def _pack(joined: Joined, weights: list[torch.Tensor]) -> PackedWeights | None:
    try:
        return joined.kernel.pack(joined.recipe.model(weights).weights)
    except ArgumentError:
        return None


def _fake(
    inputs: list[torch.Tensor], weights: list[torch.Tensor], key: str, constant: bool
) -> list[torch.Tensor]:
    joined = _joined[key]
    sizes = joined.recipe.sizes(inputs)
    return [
        inputs[0].new_empty([x.at(sizes) if isinstance(x, Dim) else x for x in shape], dtype=dtype)
        for shape, dtype in joined.results
    ]


register(
    "network",
    "(Tensor[] inputs, Tensor[] weights, str key, bool constant) -> Tensor[]",
    _network,
    _fake,
)
