"""A spec as an operator of PyTorch, for ``torch.compile`` and autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from tilewright.errors import SpecError
from tilewright.runtime.arrays.kinds import torch_type
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.operators import Arguments
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import Dim, Size

from .gradients import Gradients
from .products import LIBRARY, is_plain

#: Operators by the names of their kernels. PyTorch allows each name to be registered only once.
_registered: dict[str, Operator] = {}


def operator(spec: Gemm, schedule: Schedule | None = None, target: str = "host") -> Operator:
    """Return the operator of PyTorch that computes ``spec``.

    The operator has a meta function, and gradients if ``spec`` is differentiable. Its name is
    ``torch.ops.tilewright.<kernel.name>``.

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
        ``op(a, b, bias=...)`` returns a new tensor. The arguments are those of the kernel without
        its output, in the same order; each can be passed by name.

    Raises
    ------
    SpecError
        The spec has several results, or an operand that cannot be a tensor. ``tw.compile`` may
        raise other errors.
    """
    kernel = compile(spec, schedule, target)
    found = _registered.get(kernel.name)
    if found is None:
        found = _registered[kernel.name] = Operator(kernel)
    return found


class Operator:
    """An operator of PyTorch that calls the kernel ``kernel``; see ``operator``."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self._attempt, signature = kernel, kernel.attempt_new, kernel.signature
        _check(kernel)
        self._arguments = Arguments.of(kernel)
        self._inputs, self._scalars = self._arguments.tensors, self._arguments.numbers
        self._names = self._arguments.names
        self._plain = not self._scalars and self._arguments.updated is None
        self._shape = _Shape.of(signature, self._inputs)
        self._dtype = torch_type(torch, signature.output.type)
        self._call = self._registered()

    def __call__(self, *tensors: Any, **named: Any) -> torch.Tensor:
        """Return the result, a new tensor.

        If PyTorch records no gradient and no mode is active, the kernel is called directly, without
        PyTorch's dispatcher.
        """
        if named or len(tensors) != len(self._names):
            tensors = self._arguments.ordered(tensors, named)
        if self._plain and is_plain():
            made = self._attempt(tensors)
            if made is not None:
                return made
            if _is_recorded(tensors):
                return self._recorded.apply(*tensors)
        _check_nested(self._names, tensors)
        return self._call(*tensors)

    def _empty(self, tensors: tuple[Any, ...]) -> torch.Tensor | None:
        """Return a new tensor for the output, None if the inputs have too few axes."""
        try:
            sizes = [
                x if isinstance(x, int) else tensors[x[0]].shape[x[1]] for x in self._shape.sizes
            ]
        except (AttributeError, IndexError):
            return None
        return self._made(torch.empty, sizes, dtype=self._dtype, device="cpu")

    def _made(self, make: Any, sizes: list[Any], **options: Any) -> torch.Tensor:
        if not self._shape.turned:
            return make(sizes, **options)
        *count, rows, columns = sizes
        return make([*count, columns, rows], **options).mT

    # --- registration with PyTorch -------------------------------------------------------------

    def _registered(self) -> Any:
        name, arguments = self.kernel.name, [f"Tensor {x}" for x in self._inputs]
        arguments += [f"float {x}" for x in self._scalars]
        LIBRARY.define(f"{name}({', '.join(arguments)}) -> Tensor")
        LIBRARY.impl(name, self._compute, "CPU")
        whole = f"tilewright::{name}"
        torch.library.register_fake(whole, self._fake, lib=LIBRARY)
        gradients = Gradients(self.kernel.spec, self._inputs, self._scalars)
        self._recorded = _recorded(self, gradients)
        torch.library.register_autograd(
            whole, gradients.backward, setup_context=gradients.save, lib=LIBRARY
        )
        return getattr(torch.ops.tilewright, name).default

    def _compute(self, *values: Any) -> torch.Tensor:
        named = dict(zip(self._names, values, strict=True))
        with torch.no_grad():
            if (updated := self._arguments.updated) is not None:
                named[updated] = named[updated].clone()
                result: torch.Tensor = self.kernel(**named)
                return result
            out = self._empty(values)
            return self.kernel(**named, **({} if out is None else {"out": out}))

    def _fake(self, *values: Any) -> torch.Tensor:
        sizes = [x if isinstance(x, int) else values[x[0]].shape[x[1]] for x in self._shape.sizes]
        return self._made(values[0].new_empty, sizes, dtype=self._dtype)


def _check_nested(names: Sequence[str], tensors: tuple[Any, ...]) -> None:
    """Raise ArgumentTypeError if an argument is a nested tensor."""
    for name, tensor in zip(names, tensors, strict=True):
        if isinstance(tensor, torch.Tensor) and tensor.is_nested:
            as_array(tensor, name)


def _is_recorded(tensors: tuple[Any, ...]) -> bool:
    """Return True if autograd records a call with these tensors."""
    if torch.is_grad_enabled():
        for x in tensors:
            if isinstance(x, torch.Tensor) and x.requires_grad:
                return True
    return False


def _recorded(op: Operator, gradients: Gradients) -> type[torch.autograd.Function]:
    """Return an autograd function that calls the kernel without PyTorch's dispatcher.

    Such a call takes a third of the time.
    """

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> torch.Tensor:
            gradients.save(ctx, tensors, None)
            made = op.kernel.attempt_new(tensors)
            return op._compute(*tensors) if made is None else made

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
            return gradients.backward(ctx, grad)

    return Recorded


class _Shape(NamedTuple):
    """A rule that gives the output's shape from the inputs.

    Each of ``sizes`` is a number, or a pair: the index of an input, and the index of its axis that
    has this size. If ``turned``, the columns of the output are contiguous.
    """

    sizes: tuple[int | tuple[int, int], ...]
    turned: bool

    @classmethod
    def of(cls, signature: Signature, inputs: Sequence[str]) -> _Shape:
        output = signature.output
        count = () if output.kind == "matrix" or output.count is None else (output.count,)
        told = {
            size: (at, axis - len(_axes(p)))
            for at, name in reversed(list(enumerate(inputs)))
            for p in (signature.array(name),)
            for axis, size in enumerate(_axes(p))
            if isinstance(size, Dim)
        }
        sizes = tuple(_size(size, told, output) for size in (*count, *output.shape))
        return cls(sizes, output.order == "F")


def _axes(parameter: ArrayParameter) -> tuple[Size | None, ...]:
    if parameter.kind == "strided" and parameter.batch_stride != 0:
        return (parameter.count, *parameter.shape)
    return parameter.shape if parameter.kind in ("matrix", "strided", "vector") else ()


def _size(
    size: Size, told: dict[Dim, tuple[int, int]], output: ArrayParameter
) -> int | tuple[int, int]:
    if not isinstance(size, Dim):
        return size
    if size not in told:
        raise SpecError(
            f"no input tells the size {size.name} of {output.name}, which an operator makes",
            hint="a size that is an axis of an input, or a number",
        )
    return told[size]


def _check(kernel: Kernel) -> None:
    """Raise SpecError for a kernel that has several results."""
    spec = kernel.spec
    if isinstance(spec, Gemm) and spec.outputs:
        raise SpecError(
            "an operator has one result",
            got=f"outputs {', '.join(name for name, _ in spec.outputs)}",
            hint="kernel(...) takes tensors, and writes further outputs",
        )
