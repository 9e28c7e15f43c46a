"""Verify a kernel: compare its results with numpy in higher precision, within a proven bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArgumentValueError, VerificationError
from tilewright.isa.target import Target
from tilewright.runtime.arrays.elements import decode
from tilewright.runtime.call.bound_sizes import Array, strided
from tilewright.runtime.emulate.notice import expected
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.value import Network
from tilewright.spec.pack import Copy, Pack, PackQuantized, QuantizeRows
from tilewright.spec.signature import Signature, packs
from tilewright.spec.transpose import Transpose

from .arguments import Sample, Sampled, edges, matrices, samples
from .copy import copied
from .gemm import Expected, results
from .interval import Interval
from .network import network_results
from .pack_b import packed_bytes, packed_parts
from .packed_d import PackedExpected, packed_expected
from .quantized import packed_rows


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a kernel.

    Attributes
    ----------
    max_error : float
        Largest error of an element of the output.
    bound : float
        Allowed error of that element.
    cases : int
        Number of cases.
    unsure : float
        Share of the output's elements that were not compared, because they may have any value: for
        example the quotient of two sums that may both be 0.

    Examples
    --------
    >>> found = tw.compile(tw.Gemm(16, 16, 16)).verify(cases=3)
    >>> found.cases, found.max_error <= found.bound
    (3, True)
    """

    max_error: float
    bound: float
    cases: int
    unsure: float = 0.0


def verify(kernel: Sampled, cases: int = 3, seed: int = 0) -> Verification:
    """Run a kernel on random arguments; raise VerificationError for the first wrong element.

    The first case has small whole numbers and must match bit for bit. Integers must match bit for
    bit in all cases. Sums of floating point must be within ``(k * count + 4) * eps * (|alpha| |A|
    |B| + |beta| |C|)``, elementwise. The epilogue and the output's own rounding add to that bound.
    Before the call, outputs that are not read are filled with 1 bits. The call must not change
    inputs, nor the memory around the output's elements. If sizes are known only at the call,
    further cases have the smallest and largest sizes, and a K of 0. If the bounds of a deep network
    exclude too little, they are those of ``Likely``.
    """
    worst, allowed, unsure, compared = 0.0, 0.0, 0, 0
    for case in cases_of(kernel, cases, seed):
        error, bound = case.run(kernel)
        unsure, compared = unsure + case.unsure, compared + case.elements
        if error >= worst:
            worst, allowed = error, bound
    return Verification(worst, allowed, cases, unsure / max(compared, 1))


def cases_of(kernel: Sampled, cases: int, seed: int) -> Iterator[Case]:
    """Yield the test cases for ``kernel``, which other kernels of its spec and target can run."""
    if cases < 1:
        raise ArgumentValueError("verify needs a case", got=cases, expected="1 or more")
    for number, held in enumerate(samples(kernel.spec, kernel.signature, cases, seed)):
        yield Case(kernel, held, f"case {number}, seed {seed}")
    for held in edges(kernel.spec, kernel.signature, seed):
        yield Case(kernel, held, f"an edge of the sizes, seed {seed}")


class Case:
    """One test case: arguments with their right results, computed once for several kernels."""

    def __init__(self, kernel: Sampled, held: Sample, title: str) -> None:
        self.held, self.title = held, f"{title}, sizes {dict(held.sizes)}"
        self.right = right_results(kernel.spec, kernel.isa, kernel.signature, held)

    @property
    def elements(self) -> int:
        """The number of elements of all outputs."""
        return sum(one.values.value.size for one in self.right.values())

    @property
    def unsure(self) -> int:
        """The number of elements that may have any value."""
        return sum(int(np.count_nonzero(one.values.unsure)) for one in self.right.values())

    def run(self, kernel: Sampled) -> tuple[float, float]:
        """Run ``kernel``; return its largest error and the bound, or raise VerificationError.

        Afterwards the arguments hold their old values.
        """
        held, signature = self.held, kernel.signature
        before = [memory.copy() for memory in held.memory]
        try:
            with expected():
                kernel(**held.named(kernel))
            for name, one in self.right.items():
                got = held.arrays[signature.arrays.index(signature.array(name))]
                one, got = _elements(one, got)
                _check_elements(f"{kernel.name} is wrong at {name}", one, got, self.title)
            _check_memory(kernel, held, before, self.title)
            return _worst(self.right[signature.output.name], held, signature)
        finally:
            for memory, old in zip(held.memory, before, strict=True):
                memory[...] = old


def _elements(right: Expected, got: Array) -> tuple[Expected, Array]:
    """Return an output's right elements and those that it has; unpacked, if it is packed."""
    if isinstance(right, PackedExpected):
        return right.shown(got)
    return right, got


def _check_elements(problem: str, right: Expected, got: Array, title: str) -> None:
    """Raise VerificationError with the first wrong element of ``got``, if there is one."""
    wrong = np.argwhere(right.wrong(got))
    if wrong.size:
        at = tuple(int(i) for i in wrong[0])
        _, bound = right.error(got)
        raise VerificationError(
            f"{problem}[{', '.join(map(str, at))}]",
            got=f"{got[at]!r} ({title})",
            expected=f"{right.values.value[at]!r}, at most {float(bound[at]):.3g} off; "
            f"{len(wrong)} of {got.size} elements are wrong",
        )


def _worst(right: Expected, held: Sample, signature: Signature) -> tuple[float, float]:
    """Return the largest error of the output's elements, and the bound of that element."""
    got = held.arrays[signature.arrays.index(signature.output)]
    right, got = _elements(right, got)
    error, bound = right.error(got)
    if not error.size:
        return 0.0, 0.0
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    return float(error[place]), float(bound[place])


def _check_memory(kernel: Sampled, held: Sample, before: list[Array], title: str) -> None:
    """Raise VerificationError if anything but the elements of outputs changed in the call."""
    for parameter, array, was, memory in zip(
        kernel.signature.arrays, held.arrays, before, held.memory, strict=True
    ):
        old, now = was.copy(), memory.copy()
        if parameter.role != "in":
            for copy in (old, now):
                strided(copy, array.shape, array.strides)[...] = 0
        changed = np.flatnonzero(old.view(np.uint8) != now.view(np.uint8))
        if changed.size:
            raise VerificationError(
                f"{kernel.name} writes {parameter.name}, an input"
                if parameter.role == "in"
                else f"{kernel.name} writes between the lines of {parameter.name}",
                got=f"byte {int(changed[0])} of its memory changed ({title})",
                expected="only the elements of outputs written",
            )


# --- references --------------------------------------------------------------------------------


#: A function of a spec, the target, the signature and the arguments of a call.
Right = Callable[[Any, Target, Signature, Sample], dict[str, Expected]]
_RIGHT: dict[type[Spec], Right] = {}


def results_of(kind: type[Spec]) -> Callable[[Right], Right]:
    """Register the decorated function, which returns right results for specs of class ``kind``.

    It returns what a call must write, by the outputs' names.
    """

    def registered(function: Right) -> Right:
        _RIGHT[kind] = function
        return function

    return registered


def right_results(
    spec: Spec, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    """Return what a kernel must write for the arguments ``held``, by the outputs' names."""
    return _RIGHT[type(spec)](spec, target, signature, held)


@results_of(Gemm)
def _of_product(
    spec: Gemm, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    operands = _operands(signature, held)
    if not packs(spec):
        return results(spec, operands)
    m, n = held.size(spec.m), held.size(spec.n)
    found = results(spec, {**operands, "out": np.zeros((m, n))})
    return {**found, "d": packed_expected(found["d"], spec, target)}


@results_of(Transpose)
def _of_transposition(
    spec: Transpose, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    return exactly(held.arrays[0].T, spec.type)


@results_of(Pack)
def _of_packing(
    spec: Pack, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    return exactly(
        packed_bytes(spec, target, matrices(signature.array("b"), held, signature)), "u8"
    )


@results_of(PackQuantized)
def _of_quantized_packing(
    spec: PackQuantized, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    return exactly(packed_parts(spec, target, held.arrays[:-1]), "u8")


@results_of(QuantizeRows)
def _of_quantized_rows(
    spec: QuantizeRows, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    return exactly(packed_rows(spec, target, held.arrays[0]), "u8")


@results_of(Copy)
def _of_copy(spec: Copy, target: Target, signature: Signature, held: Sample) -> dict[str, Expected]:
    type_ = "u8" if packs(spec) else spec.type_of("d")
    return {"d": exactly(copied(spec, target, held.arrays[0]), type_)["out"]}


@results_of(Network)
def _of_network(
    spec: Network, target: Target, signature: Signature, held: Sample
) -> dict[str, Expected]:
    return network_results(spec, signature, held)


def exactly(values: Array, type_: str) -> dict[str, Expected]:
    """Return right results for ``out``, which must have the elements of ``values`` exactly."""
    return {"out": Expected(Interval.exactly(decode(values, type_), type_), type_)}


def _operands(signature: Signature, held: Sample) -> dict[str, Any]:
    """Return the operands as ``results`` takes them, with a batch's matrices as a sequence."""
    named = {p.name: array for p, array in zip(signature.arrays, held.arrays, strict=True)}
    for name in {"a", "b", "b2"} & named.keys():
        named[name] = list(matrices(signature.array(name), held, signature))
    return {**named, "out": named[signature.output.name], **held.scalars}
