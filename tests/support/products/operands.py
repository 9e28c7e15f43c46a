"""A case's operands in exactly the memory it may touch, and what it must make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.spec.gemm import SHAPES
from tilewright.spec.operands import Addresses, Offsets, Strided
from tilewright.spec.signature import signature

from .space import Case, Rng, rng_of

Array = np.ndarray[Any, Any]
Kind = Literal["integers", "random", "special"]
DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("f4"), "f64": np.dtype("f8")}
#: What the results of a type are compared with.
WIDE: dict[str, np.dtype[Any]] = {"f32": np.dtype("f8"), "f64": np.dtype("longdouble")}
PADDING = -77.0


@dataclass(frozen=True, slots=True)
class Operands:
    """``arguments`` in the order of the signature, each no longer than the kernel may reach.

    Padding of A and B is NaN; C is NaN where it must not be read, PADDING between its lines.
    ``expected`` is all of C afterwards, in WIDE; ``tolerance`` None where it must be exact.
    """

    arguments: list[Any]
    names: tuple[str, ...]
    c: Array
    expected: Array
    tolerance: Array | None

    def check(self, got: Array) -> None:
        """AssertionError that names the first wrong element of C's memory."""
        wide = got.astype(self.expected.dtype)
        same = (wide == self.expected) | (np.isnan(wide) & np.isnan(self.expected))
        if self.tolerance is not None:
            with np.errstate(invalid="ignore"):
                same |= np.abs(wide - self.expected) <= self.tolerance
        if not same.all():
            first = int(np.argmin(same))
            raise AssertionError(
                f"{np.count_nonzero(~same)} of {same.size} elements of C's memory are wrong; "
                f"element {first} is {wide[first]!r}, expected {self.expected[first]!r}"
            )


def operands(case: Case, kind: Kind) -> Operands:
    """Operands of integers, of random numbers, or of integers with NaN and Inf among them."""
    rng = rng_of(case.name, str(case.spec), kind)
    draw = _draws(kind, rng)
    a, b = (_inputs(case, name, draw, rng) for name in "ab")
    c = _output(case, kind, rng)
    product, magnitude = _products(case, a.matrices, b.matrices)
    expected, tolerance = _expected(case, kind, c, product, magnitude)
    given = {"a": a.argument, "b": b.argument, "c": c}
    given |= {"a_offsets": a.offsets, "b_offsets": b.offsets}
    names = tuple(array.name for array in signature(case.spec).arrays)
    return Operands([given[name] for name in names], names, c, expected, tolerance)


def matrix(case: Case, name: str, flat: Array, offset: int = 0) -> Array:
    """The 2-d view of operand ``name`` that begins ``offset`` elements into ``flat``."""
    return as_strided(flat[offset:], _shape(case, name), _strides(case, name, flat.itemsize))


def _shape(case: Case, name: str) -> tuple[int, int]:
    rows, cols = (case.size(slot, getattr(case.spec, slot)) for slot in SHAPES[name])
    return rows, cols


def _leading(case: Case, name: str) -> int:
    rows, cols = _shape(case, name)
    given = getattr(case.spec, f"ld{name}")
    tight = cols if getattr(case.spec, name).order == "C" else rows
    return tight if given is None else case.size(f"ld{name}", given)


def _strides(case: Case, name: str, itemsize: int) -> tuple[int, int]:
    leading = _leading(case, name) * itemsize
    return (leading, itemsize) if getattr(case.spec, name).order == "C" else (itemsize, leading)


def extent(case: Case, name: str) -> int:
    """The elements from the first to the last of one matrix, the last line without padding."""
    rows, cols = _shape(case, name)
    lines, width = (rows, cols) if getattr(case.spec, name).order == "C" else (cols, rows)
    return (lines - 1) * _leading(case, name) + width if lines and width else 0


# --- values ------------------------------------------------------------------------------------


def _draws(kind: Kind, rng: Rng) -> Callable[[tuple[int, int]], Array]:
    if kind == "random":
        return lambda shape: rng.uniform(-1, 1, shape)
    if kind == "integers":
        return lambda shape: rng.integers(-4, 5, shape).astype(float)

    def special(shape: tuple[int, int]) -> Array:
        numbers = rng.integers(-4, 5, shape).astype(float)
        for value in (np.nan, np.inf, -np.inf):
            if numbers.size and rng.random() < 0.5:
                numbers[rng.integers(shape[0]), rng.integers(shape[1])] = value
        return numbers

    return special


@dataclass(frozen=True, slots=True)
class _Inputs:
    """An input as the kernel takes it, its offsets, and its matrices."""

    argument: Any
    offsets: Array | None
    matrices: list[Array]


def _inputs(case: Case, name: str, draw: Callable[[tuple[int, int]], Array], rng: Rng) -> _Inputs:
    dtype, size = DTYPES[case.spec.type], extent(case, name)
    offsets = _offsets(case, name, rng)
    if isinstance(case.spec.batch, Addresses):
        flats = [np.full(size, np.nan, dtype) for _ in offsets]
        for flat in flats:
            matrix(case, name, flat)[:] = draw(_shape(case, name))
        return _Inputs([(flat, 0) for flat in flats], None, [matrix(case, name, f) for f in flats])
    flat = np.full(max((o + size for o in offsets), default=0), np.nan, dtype)
    for offset in offsets:
        matrix(case, name, flat, offset)[:] = draw(_shape(case, name))
    return _Inputs(
        flat, np.array(offsets, np.int64), [matrix(case, name, flat, o) for o in offsets]
    )


def _offsets(case: Case, name: str, rng: Rng) -> Sequence[int]:
    """Where each matrix of the batch begins, in elements."""
    batch = case.spec.batch
    if batch is None:
        return [0]
    count = case.size("count", batch.count)
    if isinstance(batch, Strided):
        given = getattr(batch, name)
        rows, cols = _shape(case, name)
        lines = rows if getattr(case.spec, name).order == "C" else cols
        tight = lines * _leading(case, name)
        stride = tight if given is None else case.size(f"stride_{name}", given)
        return [i * stride for i in range(count)]
    if isinstance(batch, Offsets):
        static = getattr(batch, name)
        return list(rng.integers(0, 300, count)) if static is None else list(static)
    return [0] * count


def _output(case: Case, kind: Kind, rng: Rng) -> Array:
    flat = np.full(extent(case, "c"), PADDING, DTYPES[case.spec.type])
    c = matrix(case, "c", flat)
    if case.spec.beta == 0:
        c[:] = np.nan
        return flat
    c[:] = _draws("integers" if kind == "special" else kind, rng)(c.shape)
    if kind == "special" and c.size and 0 not in case.scalars:
        c[rng.integers(c.shape[0]), rng.integers(c.shape[1])] = np.nan
    return flat


# --- what must come out ------------------------------------------------------------------------


def _products(case: Case, a: list[Array], b: list[Array]) -> tuple[Array, Array]:
    """The sum of A B over the batch, and that of |A| |B|."""
    wide = WIDE[case.spec.type]
    m, n = _shape(case, "c")
    product, magnitude = np.zeros((m, n), wide), np.zeros((m, n), wide)
    with np.errstate(invalid="ignore"):
        for left, right in zip(a, b, strict=True):
            x, y = left.astype(wide), right.astype(wide)
            product += np.einsum("ik,kj->ij", x, y)
            magnitude += np.einsum("ik,kj->ij", abs(x), abs(y))
    return product, magnitude


def factors(case: Case) -> tuple[float, float]:
    """The values of alpha and beta in this call."""
    left = iter(case.scalars)
    alpha, beta = (
        next(left) if factor == "scalar" else float(factor)
        for factor in (case.spec.alpha, case.spec.beta)
    )
    return alpha, beta


def _expected(
    case: Case, kind: Kind, c: Array, product: Array, magnitude: Array
) -> tuple[Array, Array | None]:
    alpha, beta = factors(case)
    expected = c.astype(WIDE[case.spec.type])
    view = matrix(case, "c", expected)
    tolerance = np.zeros_like(expected)
    with np.errstate(invalid="ignore"):
        old = np.zeros_like(view) if case.spec.beta == 0 else beta * view
        view[:] = alpha * product + old
    if kind != "random":
        return expected, None
    count = case.size("count", case.spec.batch.count) if case.spec.batch else 1
    terms = case.size("k", case.spec.k) * count + 4
    eps = float(np.finfo(DTYPES[case.spec.type]).eps)
    matrix(case, "c", tolerance)[:] = terms * eps * (abs(alpha) * magnitude + abs(old))
    return expected, tolerance
