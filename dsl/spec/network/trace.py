"""Define ``@tw.network``: trace a Python function of tensors to a ``Network``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import update_wrapper
from inspect import Parameter
from typing import Any

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..expression.nodes import Expression
from ..expression.tensors import Input
from ..quantized import Quantized
from .tensor import Tensor
from .value import Network
from .views import given_shape
from .weights import Weights


class NetworkFunction:
    """A function of tensors. ``of`` traces it; a call within another network applies it.

    Examples
    --------
    >>> twice = tw.network(lambda x: x + x)
    >>> tw.network(lambda x: twice(twice(x))).of(x=tw.Tensor("f32", 8))
    network(lambda x: (e0 := x + x, e0 + e0)[-1]).of(x=Tensor('f32', (8,)))
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.parameters = _parameters(function)
        update_wrapper(self, function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Apply the function to expressions, within the tracing of another network."""
        return self.function(*args, **named)

    def of(self, **given: Any) -> Network:
        """Trace the function for tensors of these types and shapes.

        Parameters
        ----------
        **given
            For each argument of the function a ``tw.Tensor``, or a dict of weights: names with
            arrays or Tensors, of which types and shapes count. The function reads the weight ``up``
            of ``w={"up": array}`` as ``w.up``. Other values, for example numbers, are passed to the
            function as they are.

        Returns
        -------
        Network
            The spec, to be passed to ``tw.compile``.

        Raises
        ------
        SpecError
            An argument is missing, shapes do not fit, or the function does something that cannot
            be traced.
        """
        inputs: list[Input] = []
        spaces: list[Weights] = []
        passed: dict[str, Any] = {}
        for name, default in self.parameters.items():
            if name not in given:
                if default is Parameter.empty:
                    self._refuse(f"{name} is missing", given)
                continue
            value = given[name]
            if isinstance(value, Tensor):
                if isinstance(value.type, Quantized):
                    raise SpecError(
                        "only a weight has a low-bit format",
                        got=value,
                        hint=f"{name}={{...: array}}",
                    )
                value = Input(name, value.type, value.shape, value.strides)
                inputs.append(value)
            elif isinstance(value, Mapping):
                value = Weights(name, value)
                spaces.append(value)
            passed[name] = value
        for name in given:
            if name not in self.parameters:
                self._refuse(f"there is no argument {name!r}", given)
        found = self.function(**passed)
        several = isinstance(found, tuple | list)
        results = tuple(found) if several else (found,)
        for result in results:
            self._check_result(result)
        if not results:
            self._refuse("the function returns nothing", given)
        made = Network(tuple(inputs), results, several)
        made.check_told()
        for space in spaces:
            space.check_used(made.weights)
        return made

    def _check_result(self, result: Any) -> None:
        if not isinstance(result, Expression) or result.tensor is None:
            raise SpecError(
                f"a result of {self.function.__name__} is not computed from its tensors",
                got=result if isinstance(result, Expression) else type(result).__name__,
                expected="an expression of the tensors, or a tuple of such expressions",
                hint="of(x=tw.Tensor(type, shape)) declares a tensor",
            )
        given_shape(result, self.function.__name__)

    def _refuse(self, problem: str, given: dict[str, Any]) -> None:
        name = self.function.__name__
        shown = ", ".join(f"{each}=tw.Tensor(...)" for each in self.parameters)
        raise SpecError(
            f"{name}.of: {problem}", got=", ".join(given), expected=f"{name}.of({shown})"
        )


@spelled(SpecTypeError)
def network(function: Callable[..., Any]) -> NetworkFunction:
    """Make a network of a Python function of tensors.

    Within the function, tensors are expressions: Python's operators, ``tw.relu`` and its kin,
    ``tw.where``, functions of ``@tw.postop``, numpy's functions of these names, and those of
    ``tilewright.nn`` work on them. Arithmetic is in f32, or in f64 for tensors of f64. ``x.shape``,
    ``x.type`` and ``x.astype(type)`` are numpy's.

    Parameters
    ----------
    function : function
        Returns a tensor, or a tuple of tensors.

    Returns
    -------
    NetworkFunction
        ``of(x=tw.Tensor(...))`` gives the spec.

    Raises
    ------
    SpecError
        The object is no function with named arguments.

    Examples
    --------
    >>> @tw.network
    ... def half(x):
    ...     return x * 0.5
    >>> kernel = tw.compile(half.of(x=tw.Tensor("f32", (2, 3))))
    >>> kernel(np.float32([[1, 2, 3], [4, 5, 6]]))
    array([[0.5, 1. , 1.5], [2. , 2.5, 3. ]], dtype=float32)
    """
    return NetworkFunction(function)


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    if not callable(function):
        raise SpecError("a network is made of a function", got=function)
    found = inspect.signature(function).parameters
    for name, each in found.items():
        if each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise SpecError("a network's function names each of its tensors", got=f"*{name}")
    return {name: each.default for name, each in found.items()}
