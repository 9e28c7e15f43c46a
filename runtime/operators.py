"""Describe kernels as operators of PyTorch and JAX: tensors in, a new tensor out."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilewright.errors import ArgumentTypeError, SpecError
from tilewright.runtime.kernel import Kernel
from tilewright.spec.gemm import Gemm
from tilewright.spec.transpose import Transpose


class Arguments(NamedTuple):
    """Names of an operator's arguments: tensors first, then numbers.

    ``kernel`` is the kernel's name. ``updated`` is the name of C if the kernel reads and writes it,
    else None. An operator returns a new array instead of updating C.
    """

    kernel: str
    tensors: tuple[str, ...]
    numbers: tuple[str, ...]
    updated: str | None

    @classmethod
    def of(cls, kernel: Kernel) -> Arguments:
        """Return the operator's arguments: those of the kernel in order, without the output.

        Raises SpecError if the kernel is no product, or an operand is not a single tensor.
        """
        _check(kernel)
        signature = kernel.signature
        return cls(
            kernel.name,
            tuple(p.name for p in signature.arrays if p.role != "out"),
            tuple(p.name for p in signature.scalars),
            next((p.name for p in signature.arrays if p.role == "inout"), None),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all arguments, in the order in which a call passes them by position."""
        return (*self.tensors, *self.numbers)

    def ordered(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return a call's arguments, by position and by name, in the order of ``names``.

        Raises ArgumentTypeError if one is missing or superfluous.
        """
        found = dict(zip(self.names, given, strict=False))
        right = len(given) <= len(self.names) and not found.keys() & named.keys()
        found.update(named)
        if not right or found.keys() != set(self.names):
            raise ArgumentTypeError(
                f"{self.kernel}: the arguments are not those of the operator",
                got=f"{len(given)} by position, {', '.join(named) or 'none'} by name",
                expected=", ".join(self.names),
            )
        return tuple(found[name] for name in self.names)


def _check(kernel: Kernel) -> None:
    if not isinstance(kernel.spec, Gemm):
        raise SpecError(
            "an operator is made of a tw.Gemm",
            got=kernel.spec,
            hint="x.t().contiguous()"
            if isinstance(kernel.spec, Transpose)
            else "tw.compile(spec)(x) takes arrays of numpy and tensors of PyTorch",
        )
    for parameter in kernel.signature.arrays:
        bytes_ = parameter.packed or parameter.is_bytes
        if bytes_ or parameter.kind in ("sequence", "flat", "offsets", "packed"):
            raise SpecError(
                "an operator takes one tensor for each operand",
                got=f"{parameter.name} as {'packed' if bytes_ else parameter.kind}",
                expected="tw.Matrix operands, and batch=tw.Strided(...) or none",
                hint="tilewright.torch.Linear packs its weight; kernel(...) takes tensors for all",
            )
