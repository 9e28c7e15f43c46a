"""``Recipe``: a sub-graph as operators of PyTorch, which become a network or run as they are."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from tilewright.errors import SpecError
from tilewright.runtime.imported import Constants, Model, Names
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Input
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import TypeName

from ..aten import called
from ..elements import Known, Use
from ..products import LAYER_TYPES, linear

#: The number of products that an operator computes.
_PRODUCTS = {
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "addmm"), 1),
    "scaled_dot_product_attention": 2,
}
#: Name of Python's ``operator.getitem`` as a target, and of a conversion.
GET, TO = str(operator.getitem), "aten.to.dtype"


def products_of(target: str) -> int:
    """Return how many products an operator computes, for example 1 for ``aten.mm.default``."""
    return _PRODUCTS.get(target.removeprefix("aten.").partition(".")[0], 0)


class Ref(NamedTuple):
    """The name of a value in an argument of a step."""

    name: str


class Step(NamedTuple):
    """One call: the name of its value, the operator, and arguments with ``Ref`` for values.

    The operator is written as in a graph, for example ``aten.linear.default``. ``types`` are those
    of the tensors that it returns.
    """

    name: str
    target: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]
    types: tuple[torch.dtype, ...]


class Argument(NamedTuple):
    """A tensor that a recipe reads: its name, its shape and its type."""

    name: str
    shape: tuple[Size, ...]
    type: TypeName


@dataclass(frozen=True)
class Recipe:
    """A function of tensors and of weights, as steps.

    ``results`` has the names of the values that the function returns.
    """

    inputs: tuple[Argument, ...]
    weights: tuple[Argument, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        """A name for everything that decides the results: equal recipes have equal keys."""
        said = repr((self.inputs, self.weights, self.steps, self.results))
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def model(self, weights: Sequence[torch.Tensor]) -> Model:
        """Return the network, and the arrays of its weights with the values of ``weights``.

        Raise SpecError if no network computes a step.
        """
        constants, names = Constants(), Names(("w",))
        values: dict[str, Any] = {
            name: Input(names.give(name), type_, shape) for name, shape, type_ in self.inputs
        }
        given = list(values.values())
        for held, tensor in zip(self.weights, weights, strict=True):
            values[held.name] = Known(tensor.detach(), held.name)
        for step in self.steps:
            values[step.name] = evaluate(step, values, constants)
        results = tuple(values[name] for name in self.results)
        for each in results:
            if not isinstance(each, Expression) or isinstance(each, Input):
                raise SpecError("a result is not computed of the inputs", got=type(each).__name__)
        used = set(every_node(results))
        inputs = tuple(each for each in given if each in used)
        if not inputs:
            raise SpecError("no result depends on an input", got=self.results)
        return constants.model(Network(inputs, results, several=len(results) > 1))

    def sizes(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """Return the sizes of a call by the names of their dims."""
        return {
            size.name: own
            for held, tensor in zip(self.inputs, inputs, strict=True)
            for size, own in zip(held.shape, tensor.shape, strict=True)
            if isinstance(size, Dim)
        }

    def run(
        self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Compute the results by PyTorch's operators. Linear layers read their weight as it is."""
        values: dict[str, Any] = {}
        for held, tensor in zip(self.inputs, inputs, strict=True):
            values[held.name] = tensor
        for held, tensor in zip(self.weights, weights, strict=True):
            values[held.name] = tensor.detach()
        sizes = self.sizes(inputs)
        with torch.autocast("cpu", enabled=False):  # the steps have its conversions
            for step in self.steps:
                args, options = read((step.args, dict(step.options)), values, sizes)
                values[step.name] = _function(step.target)(*args, **options)
        return [values[name] for name in self.results]


def evaluate(step: Step, values: Mapping[str, Any], constants: Constants) -> Any:
    """Return the value of a step as an expression, or as a list of them.

    Raise SpecError if no network computes the step.
    """
    args, options = read((step.args, dict(step.options)), values)
    return called(step.target, Use(step.target, "", constants), args, options, step.types)


def read(given: Any, values: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> Any:
    """Return arguments with values in place of their names, and of dims if ``sizes`` has them."""
    if isinstance(given, Ref):
        return values[given.name]
    if isinstance(given, list | tuple):
        return [read(each, values, sizes) for each in given]
    if isinstance(given, dict):
        return {key: read(each, values, sizes) for key, each in given.items()}
    return given.at(sizes) if sizes is not None and isinstance(given, Dim) else given


def _function(target: str) -> Callable[..., Any]:
    """Return the function of a step's target, for example ``torch.ops.aten.relu.default``."""
    if target == GET:
        return operator.getitem
    if target == "aten.linear.default":
        return _linear
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    if x.dtype not in LAYER_TYPES:
        return torch.nn.functional.linear(x, weight, bias)
    return linear(x, weight, bias, "")
