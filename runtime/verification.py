"""A kernel's results against numpy in higher precision, within a proven bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArgumentValueError, VerificationError
from tilewright.spec import Gemm, Transpose

from .known import DTYPES, Array
from .samples import Sample, Sampled, matrices, sample

#: What references are computed in.
_WIDE: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float64), "f64": np.dtype(np.longdouble)}


@dataclass(frozen=True, slots=True)
class Verification:
    """What was seen: the largest ``max_error``, and the ``bound`` on the error of that element."""

    max_error: float
    bound: float
    cases: int


def verify(kernel: Sampled, cases: int = 3, seed: int = 0) -> Verification:
    """Run ``cases`` random cases; VerificationError with the first wrong element.

    The first case has whole numbers and must match bit for bit; the others must lie within
    ``(k * count + 4) * eps * (|alpha| |A| |B| + |beta| |C|)``, elementwise. Output that is not
    read is NaN before the call. Memory around the output's elements must stay as it was.
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
    held = sample(signature, rng, varied=True, whole=whole)
    expected, bound = reference(kernel, held, whole=whole)
    output = signature.arrays.index(signature.output)
    before = held.memory[output].copy()
    got = kernel(**held.named(signature))
    error = np.abs(got.astype(expected.dtype) - expected)
    wrong = np.argwhere(~(error <= bound))
    if wrong.size:
        at = tuple(int(i) for i in wrong[0])
        raise VerificationError(
            f"{kernel.name} is wrong at {signature.output.name}[{', '.join(map(str, at))}]",
            got=f"{got[at]!r} ({title}, sizes {dict(held.sizes)})",
            expected=f"{expected[at]!r}, at most {float(bound[at]):.3g} off; "
            f"{len(wrong)} of {got.size} elements are wrong",
        )
    _check_padding(kernel, held, before, got, title)
    if not error.size:
        return 0.0, 0.0
    place = np.unravel_index(int(np.argmax(error)), error.shape)
    return float(error[place]), float(bound[place])


def _check_padding(kernel: Sampled, held: Sample, before: Array, got: Array, title: str) -> None:
    """Everything but the output's elements is as it was before the call."""
    output = kernel.signature.arrays.index(kernel.signature.output)
    after = held.memory[output].copy()
    start = got.__array_interface__["data"][0] - held.memory[output].__array_interface__["data"][0]
    view = np.lib.stride_tricks.as_strided
    for memory in (before, after):
        view(memory[start // got.itemsize :], got.shape, got.strides)[...] = 0
    changed = np.flatnonzero(before.view(np.uint8) != after.view(np.uint8))
    if changed.size:
        raise VerificationError(
            f"{kernel.name} writes between the lines of {kernel.signature.output.name}",
            got=f"byte {int(changed[0])} of its memory changed ({title}, sizes {dict(held.sizes)})",
            expected="only the elements of the output written",
        )


# --- references --------------------------------------------------------------------------------


def reference(kernel: Sampled, held: Sample, *, whole: bool) -> tuple[Array, Array]:
    """The exact result, and how far from it each element may lie; of the output's shape."""
    if isinstance(kernel.spec, Transpose):
        x = held.arrays[0]
        return x.T.copy(), np.zeros(x.T.shape, x.dtype)
    return _gemm(kernel, kernel.spec, held, whole=whole)


def _gemm(kernel: Sampled, spec: Gemm, held: Sample, *, whole: bool) -> tuple[Array, Array]:
    wide, signature = _WIDE[spec.type], kernel.signature
    c = held.arrays[2]
    total, magnitude = np.zeros(c.shape, wide), np.zeros(c.shape, wide)
    steps = 0
    pairs = zip(*(matrices(signature.array(name), held, signature) for name in "ab"), strict=True)
    for a, b in pairs:
        a, b = a.astype(wide), b.astype(wide)
        total += a @ b
        magnitude += np.abs(a) @ np.abs(b)
        steps += a.shape[1]
    alpha = _factor(spec.alpha, "alpha", held, spec.type)
    beta = _factor(spec.beta, "beta", held, spec.type)
    result, size = alpha * total, abs(alpha) * magnitude
    if beta != 0:
        result, size = result + beta * c.astype(wide), size + abs(beta) * np.abs(c.astype(wide))
    info = np.finfo(DTYPES[spec.type])
    if whole and _stays_whole(alpha, beta, size, info):
        return result, np.zeros_like(size)
    return result, (steps + 4) * wide.type(info.eps) * size


def _factor(factor: Any, name: str, held: Sample, element: str) -> Any:
    """Alpha or beta as the kernel sees it: rounded to the element type, then widened."""
    value = held.scalars[name] if factor == "scalar" else factor
    return _WIDE[element].type(DTYPES[element].type(value))


def _stays_whole(alpha: Any, beta: Any, size: Array, info: Any) -> bool:
    """Whether every sum of whole numbers on the way to the result is exact."""
    largest = float(size.max(initial=0)) / min(abs(float(alpha)) or 1.0, 1.0)
    return float(alpha).is_integer() and float(beta).is_integer() and largest * info.eps < 1
