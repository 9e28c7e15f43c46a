"""Kernels with epilogues, outputs and a second B: compiled for any target, called by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.generate import Request, generate
from tilewright.plan.formats.layout import PackedFormat
from tilewright.plan.formats.lookup import AnyFormat, formats_of
from tilewright.plan.formats.low_bit import QuantizedFormat
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.quantized.matrix import quantized_bytes
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter, signature
from tilewright.spec.sizes import Dim, Size

from .packed import DTYPES, layout
from .trial import Lab, lab

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Trial:
    """A kernel, and the values of its dims in one call."""

    spec: Gemm
    schedule: Schedule = field(default_factory=Schedule)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def size(self, size: Size) -> int:
        """The number that ``size`` stands for."""
        return self.sizes[size.name] if isinstance(size, Dim) else size

    def __str__(self) -> str:
        return f"{self.spec} {self.schedule} {dict(self.sizes)}"


class Kernels:
    """Trials in one program of a target, run between guard pages.

    There are thousands, so the compiler does not optimise: what it makes of the C when it does is
    for random kernels to show, and for those of documents and examples.
    """

    def __init__(self, target: str, trials: Sequence[Trial], directory: Path) -> None:
        self.target, self.trials = resolve(target), trials
        requests = [Request(f"k{i}", t.spec, t.schedule, self.target) for i, t in enumerate(trials)]
        names = [request.name for request in requests]
        text = generate(requests).text
        self.lab: Lab = lab([text], names, self.target, directory, flags=("-O0",))

    def __call__(
        self, index: int, given: Mapping[str, Any], flush: Any = "rear"
    ) -> dict[str, Array]:
        """The outputs by name: D or C as "out", those of ``outputs`` by their own.

        An operand of a batch is a list of matrices; what is only written need not be given.
        """
        trial = self.trials[index]
        parameters, formats = signature(trial.spec), formats_of(trial.spec, self.target)
        arrays = [
            packed_memory(formats[p.name], p, given[p.name])
            if p.packed
            else _memory(trial, p, given.get(p.name))
            for p in parameters.arrays
        ]
        data = self.lab.runner.call(
            f"k{index}",
            arrays,
            [trial.size(s.dim) for s in parameters.sizes],
            [float(given[s.name]) for s in parameters.scalars],
            [p.role != "in" for p in parameters.arrays],
            names=[p.name for p in parameters.arrays],
            flush=flush,
        )
        written = [p for p in parameters.arrays if p.role != "in"]
        found = {}
        for parameter, held in zip(written, data, strict=True):
            name = "out" if parameter.name == trial.spec.output else parameter.name
            found[name] = _array(trial, parameter, np.frombuffer(held, DTYPES[parameter.type]))
        return found


def _memory(trial: Trial, parameter: ArrayParameter, given: Any) -> Any:
    """An argument in the memory that the kernel may touch; NaN, or ones, where only written."""
    shape = tuple(map(trial.size, parameter.shape))
    dtype = DTYPES[parameter.type]
    if parameter.role == "out":
        return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8)
    if parameter.kind == "offsets":
        return np.asarray(given, np.int64)
    if parameter.kind in ("strided", "flat"):
        return np.concatenate([_flat(parameter, one) for one in given] or [np.empty(0, np.uint8)])
    if parameter.kind == "sequence":
        return [(_flat(parameter, one), 0) for one in given]
    if parameter.kind == "vector":
        given = np.atleast_1d(np.asarray(given, dtype))
    assert given.shape == shape and given.dtype == dtype, (parameter, given.dtype, given.shape)
    return _flat(parameter, given)


def packed_memory(form: AnyFormat, parameter: ArrayParameter, given: Any) -> Any:
    """A packed operand: one matrix, those of a batch side by side, or a sequence of them."""
    matrices = given if isinstance(given, list) else [given]
    if isinstance(form, QuantizedFormat):
        return np.concatenate([quantized_bytes(one, form) for one in matrices])
    assert isinstance(form, PackedFormat)
    if parameter.kind == "sequence":
        return [(layout(form, matrix), 0) for matrix in matrices]
    if parameter.batch_stride == 0:
        matrices = matrices[:1]
    return np.concatenate([layout(form, one) for one in matrices] or [np.empty(0, np.uint8)])


def _flat(parameter: ArrayParameter, given: Array) -> Array:
    flat = given.ravel(order=parameter.order)
    return flat.view(f"u{flat.itemsize}").copy()  # bits: there is no buffer of bf16


def _array(trial: Trial, parameter: ArrayParameter, flat: Array) -> Array:
    return flat.reshape(tuple(map(trial.size, parameter.shape)), order=parameter.order)


def draw(type_: str, shape: tuple[int, ...], rng: np.random.Generator, most: int = 4) -> Array:
    """Whole numbers of at most that magnitude: what floating point sums exactly."""
    least = 0 if type_ == "u8" else -most
    return rng.integers(least, most + 1, shape).astype(DTYPES[type_])


def operands(trial: Trial, rng: np.random.Generator) -> dict[str, Any]:
    """Every operand of a trial, drawn; an operand of a batch is a list."""
    found: dict[str, Any] = {}
    for p in signature(trial.spec).arrays:
        shape = tuple(map(trial.size, p.shape))
        if p.count is not None and p.kind != "offsets":
            count = trial.size(p.count)
            drawn = [draw(p.type, shape, rng) for _ in range(count)]
            found[p.name] = drawn[:1] * count if p.batch_stride == 0 else drawn
        elif p.role != "out":
            found[p.name] = draw(p.type, shape, rng)
    return found


def product(trial: Trial, given: Mapping[str, Any], b: str = "b") -> Array:
    """The sum of A B, or A B2, over the batch, in int64 or float64."""
    wide = np.int64 if trial.spec.type == "s32" else np.float64
    batch = trial.spec.batch is not None
    pairs = zip(given["a"], given[b], strict=True) if batch else [(given["a"], given[b])]
    total = np.zeros((trial.size(trial.spec.m), trial.size(trial.spec.n)), wide)
    for left, right in pairs:
        total += np.einsum("ik,kj->ij", left.astype(wide), right.astype(wide))
    return total


def spread(given: Mapping[str, Any], name: str, per: str | None) -> Array:
    """An operand in f32, in a shape that broadcasts to D's."""
    array: Array = np.atleast_1d(given[name]).astype(np.float32)
    return array[:, None] if per == "row" else array


def same(got: Array, expected: Array) -> bool:
    """Whether they hold the same bits; a NaN is any NaN."""
    bits = f"u{got.itemsize}"
    agree: Array = np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(expected).view(bits)
    if got.dtype.kind not in "iu":
        agree = agree | (np.isnan(got) & np.isnan(expected))
    return got.dtype == expected.dtype and got.shape == expected.shape and bool(agree.all())


def equal(got: Array, expected: Array) -> bool:
    """Whether they hold the same numbers: zeros of either sign are one."""
    zero = np.zeros_like(got)
    return same(np.where(got == 0, zero, got), np.where(expected == 0, zero, expected))
