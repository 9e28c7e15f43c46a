"""The value ``PackedWeights``: weights of a network in the order that its kernel reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.dtypes import accepts, title
from tilewright.runtime.arrays.elements import decode
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.expression.products import Weight
from tilewright.spec.types import is_integer

from .packed_matrix import PackedMatrix

#: Of each weight its name, its shape, and the format of its bytes, "" if they are as given.
Layout = tuple[tuple[str, tuple[int, ...], str], ...]


class PackedWeights:
    """The weights of a network, packed for its kernel: ``net.pack(weights)`` makes them.

    They are copies, and never change. A network with the same weights and the same target takes
    them too.

    Parameters
    ----------
    layout : tuple
        Of each weight its name, its shape, and the format of its bytes.
    arrays : tuple
        Of each weight an array, or a PackedMatrix.

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
        for name, value in (("layout", layout), ("arrays", arrays)):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"packed weights are immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"packed weights are immutable: {name} cannot be deleted")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the weights."""
        return tuple(name for name, _, _ in self.layout)

    @property
    def nbytes(self) -> int:
        """The size of all weights in bytes."""
        return sum(int(array.nbytes) for array in self.arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.layout, tuple(self.arrays))

    def __repr__(self) -> str:
        return f"<PackedWeights {', '.join(self.names)}: {self.nbytes} bytes>"


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
    array = as_array(given, repr(weight))
    if not isinstance(array, np.ndarray) or not accepts(weight.type, array.dtype):
        raise ArgumentTypeError(
            f"the weight {weight!r} has another type or shape than the network's",
            got=f"{getattr(array, 'dtype', type(given).__name__)} of shape {np.shape(array)}",
            expected=f"{title(weight.type)} of shape {weight.shape}",
        )
    _check_shape(weight, array)
    if not is_integer(weight.type) and np.isnan(decode(array, weight.type)).any():
        raise ArgumentValueError(
            f"the weight {weight!r} holds NaN", got="NaN", expected="numbers", hint="np.isnan(w)"
        )
    return array


def _check_shape(weight: Weight, array: Any) -> None:
    shape = tuple(array.shape)
    if shape != weight.shape:
        raise ArgumentValueError(
            f"the weight {weight!r} has another type or shape than the network's",
            got=f"shape {shape}",
            expected=f"{weight.declared} of shape {weight.shape}",
            hint="w.T" if shape == weight.shape[::-1] and len(weight.shape) == 2 else None,
        )
