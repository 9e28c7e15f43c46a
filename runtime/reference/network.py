"""The right results of a network: float64 through its expressions, with bounds on roundings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.call.bound_sizes import Array, value_of
from tilewright.spec.expression import Expression
from tilewright.spec.expression.products import Weight
from tilewright.spec.expression.tensors import Cast, View
from tilewright.spec.network.value import Network
from tilewright.spec.signature import Signature

from .arguments import Sample
from .gemm import Expected
from .likely import Likely
from .tensors import Tensors, viewed

#: Bounds are too wide for a test if they are wider than this share of the largest value.
VAGUE = 1 / 64


def network_results(spec: Network, signature: Signature, held: Sample) -> dict[str, Expected]:
    """Return what a kernel must write for the arguments ``held``, by the names of the results."""
    arrays = {p.name: array for p, array in zip(signature.arrays, held.arrays, strict=True)}
    return expected_of(spec.folded, arrays, held.sizes)


def expected_of(
    spec: Network, arrays: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Expected]:
    """Return the right results for ``arrays``, by name. ``sizes`` are those of the dims.

    The bounds hold for all roundings. In a deep network such bounds exclude nothing: then the
    bounds of a result are those of ``Likely``.
    """
    found = _evaluated(Tensors(spec, arrays, sizes), spec)
    vague = [name for name, each in found.items() if _is_vague(each)]
    if vague:
        likely = _evaluated(Likely(spec, arrays, sizes), spec)
        found |= {name: likely[name] for name in vague}
    return found


def _evaluated(evaluation: Tensors, spec: Network) -> dict[str, Expected]:
    found = {}
    with np.errstate(all="ignore"):
        for name, result in zip(spec.names, spec.results, strict=True):
            assert result.tensor is not None
            stored = isinstance(result, Cast) and result.type != spec.real
            made = result.args[0] if isinstance(result, Cast) and stored else result
            shape = tuple(value_of(size, evaluation.sizes) for size in result.tensor.shape)
            exact = evaluation.of(made)
            values = exact if made is result else evaluation.number(made)
            found[name] = Expected(values.spread(shape or (1,)), result.tensor.type)
    return found


def _is_vague(found: Expected) -> bool:
    """Return True if an element may be anything, or if its bounds are far from each other."""
    values = found.values
    with np.errstate(invalid="ignore"):
        width, size = values.high - values.low, np.abs(values.value)
    finite = np.isfinite(width) & np.isfinite(size)
    widest, largest = (np.max(part, initial=0.0, where=finite) for part in (width, size))
    return bool(np.any(values.unsure)) or widest > VAGUE * largest


def folded_arrays(spec: Network, given: Mapping[Weight, Any]) -> dict[Weight, Any]:
    """Return the weights of ``spec.folded``: those given, and constants computed in float64."""
    names = {weight.name: array for weight, array in given.items()}
    return {
        weight: _constant(spec, spec.constants[weight], names)
        if weight in spec.constants
        else given[weight]
        for weight in spec.folded.weights
    }


def _constant(spec: Network, constant: Expression, arrays: Mapping[str, Array]) -> Array:
    """Return the array of an expression of weights, rounded to its type."""
    views: list[View] = []
    node = constant
    while isinstance(node, View):
        views.append(node)
        node = node.args[0]
    assert node.tensor is not None
    if isinstance(node, Weight):
        array = arrays[node.name].reshape(node.shape)
    else:
        made = node.args[0] if isinstance(node, Cast) else node
        with np.errstate(all="ignore"):
            found = Tensors(spec, arrays, {}).of(made)
        shape = tuple(value_of(size, {}) for size in node.tensor.shape)
        array = encode(found.spread(shape).value, node.tensor.type)
    for view in reversed(views):
        shape = tuple(value_of(size, {}) for size in view.tensor.shape)
        array = viewed(view, array, shape)
    return np.ascontiguousarray(array)
