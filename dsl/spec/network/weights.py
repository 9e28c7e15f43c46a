"""Define ``Weights``, the namespace of weights that a traced function reads by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tilewright.errors import SpecAttributeError, SpecError

from ..expression.products import Weight
from ..names import check_name
from ..quantized import Quantized
from ..sizes import Dim
from ..types import TypeName, type_name
from .tensor import Tensor


class Weights:
    """Weights by name, as a traced function sees them: ``w.up`` or ``w["up"]``."""

    def __init__(self, space: str, given: Mapping[str, Any]) -> None:
        check_name(space, "an argument with weights")
        self.__space = space
        self.__found = {key: _weight(space, key, one) for key, one in given.items()}

    def __getitem__(self, key: str) -> Weight:
        if key not in self.__found:
            raise self.__unknown(key, SpecError)
        return self.__found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.__found)

    def __len__(self) -> int:
        return len(self.__found)

    def __contains__(self, key: object) -> bool:
        return key in self.__found

    def __getattr__(self, key: str) -> Weight:
        if key.startswith(("__", "_Weights__")):
            raise AttributeError(key)
        if key not in self:
            raise self.__unknown(key, SpecAttributeError)
        return self[key]

    def __unknown(self, key: str, error: type[SpecError]) -> SpecError:
        return error(
            f"{self.__space} has no weight {key!r}",
            got=key,
            expected=", ".join(self.__found) or "no weights were given",
        )


def check_used(space: str, given: Weights, used: Collection[Weight]) -> None:
    """Raise SpecError if a weight is not among those that the results use."""
    weights = [given[key] for key in given]
    for weight in weights:
        if weight not in used:
            raise SpecError(
                f"no result depends on the weight {weight!r}",
                got=", ".join(map(repr, weights)),
                expected=", ".join(map(repr, used)) or "no weights",
                hint=f"leave {weight.key!r} out of {space}, or use it in the function",
            )


def _weight(space: str, key: Any, given: Any) -> Weight:
    """Return the weight that an array or a Tensor declares."""
    check_name(key, f"a weight of {space}")
    if not isinstance(given, Tensor):
        form = getattr(given, "format", None)
        if isinstance(form, Quantized):
            given = Tensor(form, tuple(given.shape))
        elif not hasattr(given, "shape") or not hasattr(given, "dtype"):
            raise SpecError(
                f"the weight {space}.{key} is an array or a tw.Tensor", got=type(given).__name__
            )
        else:
            given = Tensor(_type_of(given.dtype), tuple(given.shape))
    free = any(isinstance(size, Dim) for size in given.shape)
    if free or given.strides is not None or 0 in given.shape or not given.shape:
        raise SpecError(
            f"the weight {space}.{key} has one or two axes of fixed size, and no strides",
            got=given,
            expected='tw.Tensor("f32", (k, n)) or tw.Tensor("f32", n)',
        )
    sizes = tuple(int(size) for size in given.shape)
    if isinstance(given.type, Quantized):
        if len(sizes) != 2:
            raise SpecError(
                f"the low-bit weight {space}.{key} has two axes", got=given, expected="(k, n)"
            )
        return Weight(space, key, "f32", sizes, given.type)
    return Weight(space, key, given.type, sizes)


def _type_of(dtype: Any) -> TypeName:
    """Return the type of an array of numpy, or of a tensor of another library."""
    return type_name(str(dtype).removeprefix("torch.") if "torch" in str(dtype) else dtype)
