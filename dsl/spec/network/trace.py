"""Define ``@tw.network``: trace a Python function of tensors to a ``Network``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from inspect import Parameter
from typing import Any

from tilewright.errors import SpecError, SpecTypeError, TilewrightError
from tilewright.keywords import spelled

from ..expression.nodes import Expression
from ..expression.tensors import Input
from ..quantized import Quantized
from ..sizes import Size
from .tensor import Tensor
from .value import Network
from .views import given_shape
from .weights import Weights, check_used


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
        self.signature = _signature(function)
        self.name = getattr(function, "__name__", "network")
        update_wrapper(self, function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Apply the function to expressions, within the tracing of another network."""
        for value in (*args, *named.values()):
            if isinstance(value, Tensor | Mapping) or _has_arrays(value):
                raise SpecTypeError(
                    f"{self.name} is a function of the tensors of another network",
                    got=type(value).__name__,
                    expected="tensors and weights, within another tw.network",
                    hint=f"kernel = tw.compile({self.name}.of(x=tw.Tensor(...))), then kernel(x)",
                )
        bound = self._bound(args, named)
        return self.function(*bound.args, **bound.kwargs)

    def _bound(self, args: Iterable[Any], named: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self.signature.bind(*args, **named)
        except TypeError as error:
            raise SpecTypeError(
                f"{self.name} takes other arguments", got=str(error),
                expected=f"{self.name}({', '.join(self.signature.parameters)})",
            ) from None  # fmt: skip

    def of(self, /, *unnamed: Any, **given: Any) -> Network:
        """Trace the function for tensors of these types and shapes.

        Parameters
        ----------
        *unnamed
            Nothing: the arguments are given by name.
        **given
            For each argument of the function a ``tw.Tensor``, or a dict of weights: names with
            arrays or Tensors, of which types and shapes count. The function reads the weight ``up``
            of ``w={"up": array}`` as ``w.up``. Other values, for example numbers, are passed to the
            function as they are. ``out`` is no argument of the function, but a Tensor with the
            strides of the result, or for several results a tuple with a Tensor or None for each.
            Without it, results have no gaps.

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
        self._check_names(unnamed, given)
        order = [name for name in self.signature.parameters if name in given]
        passed = {name: self._passed(name, given[name]) for name in order}
        found = self._traced(passed)
        several = isinstance(found, tuple | list)
        results = tuple(found) if several else (found,)
        for result in results:
            self._check_result(result)
        if not results:
            self._refuse("the function returns nothing", given)
        inputs = tuple(each for each in passed.values() if isinstance(each, Input))
        made = Network(inputs, results, several, self._strides(results, several, given))
        made.check_told()
        for name, each in passed.items():
            if isinstance(each, Weights):
                check_used(name, each, made.weights)
        return made

    def _check_names(self, unnamed: tuple[Any, ...], given: dict[str, Any]) -> None:
        """Raise SpecError unless ``given`` has the arguments of the function."""
        if unnamed:
            self._refuse("tensors are given by name", dict.fromkeys(map(str, map(type, unnamed))))
        for name, parameter in self.signature.parameters.items():
            if name not in given and parameter.default is Parameter.empty:
                self._refuse(f"{name} is missing", given)
        for name in given:
            if name not in (*self.signature.parameters, "out"):
                self._refuse(f"there is no argument {name!r}", given)

    def _strides(
        self, results: tuple[Expression, ...], several: bool, given: Mapping[str, Any]
    ) -> tuple[tuple[Size, ...] | None, ...]:
        """Return the strides that ``out`` declares for the results; () if it declares none."""
        declared = None if "out" in self.signature.parameters else given.get("out")
        if declared is None:
            return ()
        each = declared if several else (declared,)
        if not isinstance(each, tuple | list) or len(each) != len(results):
            raise SpecError(
                f"{self.name}.of: out has a tw.Tensor or None for each result",
                got=declared,
                expected=f"a tuple with {len(results)}",
            )
        found = tuple(self._declared(*pair) for pair in zip(each, results, strict=True))
        return found if any(found) else ()

    def _declared(self, tensor: Any, result: Expression) -> tuple[Size, ...] | None:
        """Return the strides of a result that ``tensor`` declares; SpecError if it does not fit."""
        if tensor is None:
            return None
        assert result.tensor is not None
        right = Tensor(*result.tensor)
        if not isinstance(tensor, Tensor) or (tensor.type, tensor.shape) != tuple(result.tensor):
            raise SpecError(
                f"{self.name}.of: out is not the result's tensor",
                got=tensor,
                expected=f"{right!r}, with strides",
                hint="x.astype(type) in the function for another type",
            )
        if tensor.strides and tensor.strides[-1] != 1:
            raise SpecError(
                f"{self.name}.of: the rows of a result are contiguous",
                got=tensor,
                expected="strides (step, 1)",
                hint="a function that returns the transposed result, and kernel(..., out=array.T)",
            )
        return tensor.strides if len(tensor.shape) == 2 else None  # other tensors have no gaps

    def _passed(self, name: str, value: Any) -> Any:
        """Return what the function gets for an argument."""
        if isinstance(value, Tensor):
            if isinstance(value.type, Quantized):
                raise SpecError(
                    "only a weight has a low-bit format", got=value, hint=f"{name}={{...: array}}"
                )
            return Input(name, value.type, value.shape, value.strides)
        if isinstance(value, Mapping):
            return Weights(name, value)
        if _has_arrays(value):
            raise SpecTypeError(
                f"{self.name}.of: {name} is neither a tensor nor weights by name",
                got=type(value).__name__,
                expected=f"{name}=tw.Tensor(type, shape), or {name}={{'up': array}}",
            )
        return value

    def _traced(self, passed: Mapping[str, Any]) -> Any:
        """Call the function; SpecError if it uses an argument as a tensor that is none."""
        by_place = [
            name for name, each in self.signature.parameters.items()
            if each.kind is Parameter.POSITIONAL_ONLY and name in passed
        ]  # fmt: skip
        named = {name: value for name, value in passed.items() if name not in by_place}
        others = [
            f"{name}={value!r:.60}" for name, value in passed.items()
            if not isinstance(value, Expression | Weights)
        ]  # fmt: skip
        try:
            return self.function(*(passed[name] for name in by_place), **named)
        except RecursionError as error:
            raise SpecError(
                f"{self.name} calls itself too often", got=str(error), hint="a loop"
            ) from None
        except (AttributeError, TypeError) as error:
            if not others or isinstance(error, TilewrightError):
                raise
            raise SpecTypeError(
                f"{self.name} cannot be traced: {error}",
                got=", ".join(others),
                expected="x=tw.Tensor(type, shape) for a tensor, w={'up': array} for weights",
            ) from error

    def _check_result(self, result: Any) -> None:
        if not isinstance(result, Expression) or result.tensor is None:
            equal = "tw.eq(x, y) compares elements; == compares expressions"
            raise SpecError(
                f"a result of {self.name} is not computed from its tensors",
                got=result if isinstance(result, Expression) else type(result).__name__,
                expected="an expression of the tensors, or a tuple of such expressions",
                hint=equal if isinstance(result, bool)
                else "of(x=tw.Tensor(type, shape)) declares a tensor",
            )  # fmt: skip
        given_shape(result, self.name)

    def _refuse(self, problem: str, given: dict[str, Any]) -> None:
        shown = ", ".join(f"{each}=tw.Tensor(...)" for each in self.signature.parameters)
        raise SpecError(
            f"{self.name}.of: {problem}", got=", ".join(given), expected=f"{self.name}.of({shown})"
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


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if not callable(function):
        raise SpecError("a network is made of a function", got=function)
    try:
        found = inspect.signature(function)
    except ValueError as error:
        raise SpecError("a network is made of a function of Python", got=str(error)) from None
    for name, each in found.parameters.items():
        if each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise SpecError("a network's function names each of its tensors", got=f"*{name}")
    return found


def _has_arrays(value: Any) -> bool:
    """Return True for an array or a tensor of another library, and for a sequence of these."""
    if isinstance(value, tuple | list):
        return any(isinstance(each, Tensor) or _has_arrays(each) for each in value)
    array = hasattr(value, "__array__") or hasattr(value, "__dlpack__")
    return array and getattr(value, "ndim", 0) > 0 and not isinstance(value, Expression)
