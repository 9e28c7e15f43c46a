"""A spec as a function of JAX's arrays, also inside ``jax.jit``."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import jax
import jax.numpy as jnp
from tilewright.runtime.arrays.dtypes import preferred
from tilewright.runtime.call.scalars import factor, is_number
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.operators import Arguments
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter

from .handler import TARGET, make_known


def operator(spec: Gemm, schedule: Schedule | None = None, target: str = "host") -> Operator:
    """Return the function of JAX's arrays that computes ``spec``.

    Parameters
    ----------
    spec : Gemm
        The product.
    schedule : Schedule, optional
        The schedule; by default the cost model chooses.
    target : str
        The target's name.

    Returns
    -------
    Operator
        ``op(a, b, bias=...)`` returns a new array. The arguments are those of the kernel
        without its outputs, in the same order; each can be passed by name. ``jax.jit`` may trace
        the arrays. alpha and beta are Python numbers. Further outputs of the spec are returned
        after the result.

    Raises
    ------
    SpecError
        An operand of the spec is not a single array.
    TargetError
        This CPU does not support the target. ``tw.compile`` may raise other errors.
    """
    return Operator(compile(spec, schedule, target))


class Operator:
    """A function of JAX's arrays that calls the kernel ``kernel``; see ``operator``.

    ``jax.vmap`` calls the kernel once for each element of the mapped axis. The function has no
    derivative. ``jax.custom_vjp`` can define one.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._arguments = Arguments.of(kernel)
        self._arrays = kernel.signature.arrays
        self._tensors = [p for p in self._arrays if p.role != "out"]
        self._results = [at for at, p in enumerate(self._arrays) if p.role != "in"]
        make_known(kernel)
        last = len(self._arguments.names)
        self._compiled = jax.jit(self._traced, static_argnums=range(len(self._tensors), last))

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Return the result, a new array; raise ArgumentError if an argument does not fit."""
        values = self._arguments.ordered(given, named)
        arrays = [_as_array(p, x) for p, x in zip(self._tensors, values, strict=False)]
        scalars = zip(self.kernel.signature.scalars, values[len(arrays) :], strict=True)
        return self._compiled(*arrays, *(factor(p, x) for p, x in scalars))

    def _traced(self, *values: Any) -> Any:
        """Return the results of the C function's call for traced arrays.

        JAX traces this method once for each combination of shapes, types and scalars.
        """
        inputs = values[: len(self._tensors)]
        call = self._checked(inputs, values[len(inputs) :])
        made = jax.ffi.ffi_call(
            TARGET,
            [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in call.results],
            vmap_method="sequential",
            input_layouts=[_layout(p) for p in self._tensors],
            output_layouts=[_layout(self._arrays[at]) for at in self._results],
            input_output_aliases=self._aliases(),
        )(*inputs, **call.attributes)
        return made[0] if len(made) == 1 else tuple(made)

    def _checked(self, inputs: tuple[Any, ...], numbers: tuple[float, ...]) -> _Call:
        """Check the shapes and types of the traced arrays, and return the call.

        Traced arrays have no memory. The kernel checks new arrays of the same shapes and types
        instead, whose elements are never read. They are dense, as XLA's arrays are.
        """
        alike = {p.name: _alike(p, x) for p, x in zip(self._tensors, inputs, strict=True)}
        frame = self.kernel.frame(
            **alike, **dict(zip(self._arguments.numbers, numbers, strict=True))
        )
        attributes = {
            "kernel": self.kernel.name,
            "places": np.array(self._places(), np.int64),
            "sizes": np.array(frame.sizes, np.int64),
            "numbers": np.array(frame.scalars, np.float64),
        }
        return _Call([frame.arrays[at] for at in self._results], attributes)

    def _places(self) -> list[int]:
        """Return, for each array of the kernel, where XLA passes it.

        The number is the index i of an argument, or -1 - i for the result with index i.
        """
        names = self._arguments.tensors
        return [
            -1 - self._results.index(at) if at in self._results else names.index(p.name)
            for at, p in enumerate(self._arrays)
        ]

    def _aliases(self) -> dict[int, int]:
        """Return the index of C among the arguments, and its index among the results.

        XLA lets both use the same memory. The dictionary is empty if the kernel does not read C.
        """
        updated = self._arguments.updated
        if updated is None:
            return {}
        names = [self._arrays[at].name for at in self._results]
        return {self._arguments.tensors.index(updated): names.index(updated)}


class _Call(NamedTuple):
    """A call that XLA records.

    ``results`` are arrays with the shapes and types of the results. ``attributes`` are constants
    that XLA passes to the C function.
    """

    results: list[Any]
    attributes: dict[str, Any]


def _as_array(parameter: ArrayParameter, given: Any) -> Any:
    """Return an argument for XLA. A scalar is converted to an array with one element."""
    if parameter.kind != "vector" or parameter.shape != (1,):
        return given
    value = jnp.asarray(given, preferred(parameter.type)) if is_number(given) else given
    return jnp.reshape(value, 1) if jnp.ndim(value) == 0 else value


def _layout(parameter: ArrayParameter) -> tuple[int, ...] | None:
    """Return the order of the axes in memory if columns are contiguous, None for C order."""
    if parameter.kind == "vector" or parameter.order == "C":
        return None
    return (0, 2, 1) if _is_stack(parameter) else (1, 0)


def _is_stack(parameter: ArrayParameter) -> bool:
    return parameter.kind == "strided" and parameter.batch_stride != 0


def _alike(parameter: ArrayParameter, given: Any) -> Any:
    """Return a new array with the shape and type of ``given``, in the layout that XLA will use.

    If ``given`` is not an array, return it.
    """
    if not isinstance(given, jax.Array | np.ndarray):
        return given
    if _layout(parameter) is None:
        return np.empty(given.shape, given.dtype)
    return np.empty((*given.shape[:-2], *given.shape[:-3:-1]), given.dtype).swapaxes(-1, -2)
