"""Networks from other projects' files: names that C allows, and constants that become weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.errors import SpecError
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.expression.products import Weight
from tilewright.spec.names import check_name
from tilewright.spec.network.value import TAKEN, Network
from tilewright.spec.types import TypeName

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
#: The argument of an imported network's function that has the weights.
SPACE = "w"
_OTHER = re.compile(r"[^A-Za-z0-9]+")


class Names:
    """Gives each thing a name of its own. ``of`` maps names of the file to those given."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.of: dict[str, str] = {}
        self._given = {*TAKEN, *reserved}

    def give(self, name: str, what: str = "a tensor") -> str:
        """Return the name for ``name``, for example ``onnx_Flatten_0`` for ``onnx::Flatten_0``."""
        if name not in self.of:
            self.of[name] = self.another(name, what)
        return self.of[name]

    def another(self, name: str, what: str) -> str:
        """Return a new name that resembles ``name``."""
        plain = _OTHER.sub("_", name).strip("_") or "n"
        plain = f"n{plain}" if plain[0].isdigit() else plain
        numbered = (f"{plain}_{number}" for number in count(2))
        for found in chain((plain, f"n_{plain}"), numbered):
            if found in self._given or re.fullmatch(r"out\d*", found):
                continue
            try:
                check_name(found, what)
            except SpecError:
                continue
            self._given.add(found)
            return found
        raise AssertionError(name)


class Model(NamedTuple):
    """A network, and the arrays of its weights.

    Attributes
    ----------
    network : Network
        The spec, to be passed to ``tw.compile`` or ``tw.library``.
    weights : dict
        The arrays for ``pack``, by name.
    """

    network: Network
    weights: dict[str, Any]


@dataclass
class Constants:
    """The constants of a file that become weights of the network: arrays by key."""

    names: Names = field(default_factory=Names)
    arrays: dict[str, Any] = field(default_factory=dict)
    _found: dict[tuple[int, str], tuple[object, Weight]] = field(default_factory=dict)

    def weight(
        self, source: object, name: str, use: str, array: Array, type_: TypeName = "f32"
    ) -> Weight:
        """Return the weight that holds ``array``, for one ``use`` of the constant ``source``."""
        place = id(source), use
        if place not in self._found:
            key = self.names.another(name or "constant", f"a weight of {SPACE}")
            self.arrays[key] = np.ascontiguousarray(array)
            shape = tuple(map(int, array.shape))
            # ``source`` is kept, so that its ``id`` stays its own.
            self._found[place] = source, Weight(SPACE, key, type_, shape)
        return self._found[place][1]

    def low_bit(self, source: object, name: str, matrix: QuantizedMatrix) -> Weight:
        """Return the weight that holds a low-bit matrix, made of the constant ``source``."""
        place = id(source), "low-bit"
        if place not in self._found:
            key = self.names.another(name or "constant", f"a weight of {SPACE}")
            self.arrays[key] = matrix
            shape = tuple(map(int, matrix.shape))
            self._found[place] = source, Weight(SPACE, key, "f32", shape, matrix.format)
        return self._found[place][1]

    def model(self, network: Network) -> Model:
        """Return the network with the arrays that it uses."""
        keys = [each.key for each in network.weights]
        return Model(network, {key: self.arrays[key] for key in keys})
