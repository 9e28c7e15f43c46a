"""A kernel's results against numpy in higher precision, within a proven bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArgumentValueError, VerificationError
from tilewright.pack import Pack
from tilewright.spec import Transpose

from .interval import Interval
from .known import Array, strided
from .pack_reference import packed_bytes
from .reference import Expected, expected
from .samples import Sample, Sampled, gain, matrices, sample
from .values import decode


@dataclass(frozen=True, slots=True)
class Verification:
    """What was seen: the largest ``max_error``, and the ``bound`` on the error of that element."""

    max_error: float
    bound: float
    cases: int


def verify(kernel: Sampled, cases: int = 3, seed: int = 0) -> Verification:
    """Run ``cases`` random cases; VerificationError with the first wrong element.

    The first case has small whole numbers and must match bit for bit, as must integers; sums of
    floating point must lie within ``(k * count + 4) * eps * (|alpha| |A| |B| + |beta| |C|)``,
    elementwise. What is done to them further, and the output's own rounding, add to that. All
    bits of output that is not read are set before the call. Inputs and the memory around the
    output's elements must stay as they were.
    """
    if cases < 1:
        raise ArgumentValueError("verify needs a case", got=cases, expected="1 or more")
    rng = np.random.default_rng(seed)
    worst, allowed = 0.0, 0.0
    for case in range(cases):
        error, bound = _run_case(kernel, rng, whole=case == 0, title=f"case {case}, seed {seed}")
        if error >= worst:
            worst, allowed = error, bound
    return Verification(worst, allowed, cases)


def _run_case(
    kernel: Sampled, rng: np.random.Generator, *, whole: bool, title: str
) -> tuple[float, float]:
    """The largest error of one case and its bound."""
    signature = kernel.signature
    held = sample(signature, rng, varied=True, whole=whole, gain=gain(kernel.spec))
    right = _expected(kernel, held)
    before = [memory.copy() for memory in held.memory]
    got = kernel(**held.named(kernel))
    title = f"{title}, sizes {dict(held.sizes)}"
    error, bound = right.error(got)
    wrong = np.argwhere(right.wrong(got))
    if wrong.size:
        at = tuple(int(i) for i in wrong[0])
        raise VerificationError(
            f"{kernel.name} is wrong at {signature.output.name}[{', '.join(map(str, at))}]",
            got=f"{got[at]!r} ({title})",
            expected=f"{right.values.value[at]!r}, at most {float(bound[at]):.3g} off; "
            f"{len(wrong)} of {got.size} elements are wrong",
        )
    _check_memory(kernel, held, before, title)
    if not error.size:
        return 0.0, 0.0
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    return float(error[place]), float(bound[place])


def _check_memory(kernel: Sampled, held: Sample, before: list[Array], title: str) -> None:
    """Everything but the elements of outputs is as it was before the call."""
    for parameter, array, old, memory in zip(
        kernel.signature.arrays, held.arrays, before, held.memory, strict=True
    ):
        now = memory.copy()
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


def _expected(kernel: Sampled, held: Sample) -> Expected:
    if isinstance(kernel.spec, Transpose):
        value = decode(held.arrays[0].T, kernel.spec.type)
        return Expected(Interval.exactly(value, kernel.spec.type), kernel.spec.type)
    if isinstance(kernel.spec, Pack):
        given = matrices(kernel.signature.array("b"), held, kernel.signature)
        data = packed_bytes(kernel.spec, kernel.isa, given)
        return Expected(Interval.exactly(decode(data, "u8"), "u8"), "u8")
    return expected(kernel.spec, _operands(kernel, held))


def _operands(kernel: Sampled, held: Sample) -> dict[str, Any]:
    """The operands as ``expected`` takes them: a batch's matrices one by one."""
    signature = kernel.signature
    named = {p.name: array for p, array in zip(signature.arrays, held.arrays, strict=True)}
    for name in ("a", "b"):
        named[name] = list(matrices(signature.array(name), held, signature))
    return {**named, "out": named[signature.output.name], **held.scalars}
