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

from ..aten import Known, Use, called
from ..products import linear

#: Name of Python's ``operator.getitem`` as a target.
GET = str(operator.getitem)


class Ref(NamedTuple):
    """The name of a value in an argument of a step."""

    name: str


class Step(NamedTuple):
    """One call: the name of its value, the operator, and arguments with ``Ref`` for values.

    The operator is written as in a graph, for example ``aten.linear.default``.
    """

    name: str
    target: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Recipe:
    """A function of tensors and of weights, as steps. All tensors are f32.

    ``inputs`` and ``weights`` are pairs of a name and a shape. ``results`` has the names of the
    values that the function returns.
    """

    inputs: tuple[tuple[str, tuple[Size, ...]], ...]
    weights: tuple[tuple[str, tuple[Size, ...]], ...]
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
            name: Input(names.give(name), "f32", shape) for name, shape in self.inputs
        }
        given = list(values.values())
        for (name, _), tensor in zip(self.weights, weights, strict=True):
            values[name] = Known(tensor.detach(), name)
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

    def run(
        self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Compute the results by PyTorch's operators. Linear layers read their weight as it is."""
        values: dict[str, Any] = {}
        sizes: dict[str, int] = {}
        for (name, shape), tensor in zip(self.inputs, inputs, strict=True):
            values[name] = tensor
            pairs = zip(shape, tensor.shape, strict=True)
            sizes |= {size.name: own for size, own in pairs if isinstance(size, Dim)}
        for (name, _), tensor in zip(self.weights, weights, strict=True):
            values[name] = tensor.detach()
        for step in self.steps:
            args, options = read((step.args, dict(step.options)), values, sizes)
            values[step.name] = _function(step.target)(*args, **options)
        return [values[name] for name in self.results]


def evaluate(step: Step, values: Mapping[str, Any], constants: Constants) -> Any:
    """Return the value of a step as an expression, or as a list of them.

    Raise SpecError if no network computes the step.
    """
    args, options = read((step.args, dict(step.options)), values)
    return called(step.target, Use(step.target, "", constants), args, options)


def read(given: Any, values: Mapping[str, Any], sizes: Mapping[str, int] | None = None) -> Any:
    """Return arguments with values in place of their names, and of dims if ``sizes`` has them."""
    if isinstance(given, Ref):
        return values[given.name]
    if isinstance(given, list | tuple):
        return [read(each, values, sizes) for each in given]
    if isinstance(given, dict):
        return {key: read(each, values, sizes) for key, each in given.items()}
    return sizes[given.name] if sizes is not None and isinstance(given, Dim) else given


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
    return linear(x, weight, bias, "")
