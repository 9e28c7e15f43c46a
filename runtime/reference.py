"""What a GEMM must make of its operands: exact values, and how far each element may lie from them.

Integers are summed in int64 and taken modulo 2**32; all else is float64, or longdouble for f64. A
bound follows the values through every rounding that a kernel may do; it is 0 where none can occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.spec import QUANTITIES, Gemm

from .known import Array
from .values import decode, epsilon, nearest


@dataclass(frozen=True, slots=True)
class Values:
    """Exact values before they are stored, and how far a kernel's may lie from them.

    ``element`` is the type that the kernel computes them in.
    """

    value: Array
    bound: Array
    element: str

    def rounded(self, value: Array, bound: Array, roundings: int = 1) -> Values:
        """``value`` in place of this, after roundings; one changes nothing that can be held."""
        held = (bound == 0) & (nearest(value, self.element) == value) & (roundings == 1)
        error = roundings * epsilon(self.element) / 2 * np.abs(value)
        return Values(value, bound + np.where(held, 0, error), self.element)

    def scaled(self, factor: Array) -> Values:
        """Multiplied: both the factor and the product are rounded, unless it is a power of two."""
        value, bound = self.value * factor, self.bound * np.abs(factor)
        exact = self.rounded(value, bound)
        two = self.rounded(value, bound, roundings=2)
        power = np.frexp(np.abs(factor))[0] == 0.5
        return Values(value, np.where(power, exact.bound, two.bound), self.element)

    def shifted(self, addend: Array) -> Values:
        """With something added."""
        return self.rounded(self.value + addend, self.bound)


#: From values and the operands by name, as they were given to ``expected``, to new values.
Epilogue = Callable[[Values, Mapping[str, Any]], Values]


@dataclass(frozen=True, slots=True)
class Expected:
    """The output of a call: ``values`` before they are stored as elements of ``type``."""

    values: Values
    type: str

    def range(self) -> tuple[Array, Array]:
        """The least and the greatest element that is right; infinite beyond the type's range."""
        value, bound = self.values.value, self.values.bound
        finite = np.isfinite(value)
        with np.errstate(invalid="ignore"):
            low, high = (np.where(finite, value + way * bound, value) for way in (-1, 1))
        if self.type == self.values.element:  # the bound includes the last rounding
            return low, high
        return nearest(low, self.type), nearest(high, self.type)

    def wrong(self, got: Array) -> Array:
        """Where an element of ``got`` is none of the right ones."""
        elements, (low, high) = decode(got, self.type), self.range()
        with np.errstate(invalid="ignore"):
            right = (low <= elements) & (elements <= high)
        nan = np.isnan(low)
        if self.type == "f8_e4m3":  # it has no infinity
            nan |= np.isinf(low) | np.isinf(high)
        return ~(right | (nan & np.isnan(elements)))

    def error(self, got: Array) -> tuple[Array, Array]:
        """The distance of each element from the exact value, and the greatest that is right."""
        value, (low, high) = self.values.value, self.range()
        with np.errstate(invalid="ignore"):
            error = np.abs(decode(got, self.type) - value)
            allowed = np.maximum(np.abs(high - value), np.abs(value - low))
        return np.nan_to_num(error), np.nan_to_num(allowed)


def expected(spec: Gemm, operands: Mapping[str, Any], epilogue: Epilogue | None = None) -> Expected:
    """What a kernel of ``spec`` must write for ``operands``.

    ``operands`` has the matrices of A's and B's batch as sequences "a" and "b", C as "c" if beta
    is not 0, and by name what is passed by name: arrays, or numbers where one value is taken.
    """
    output = spec.c if spec.d is None else spec.d
    given = {name: _quantity(spec, name, operands) for name in QUANTITIES}
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if spec.type != "s32":
            values = _stored(_floats(spec, operands), given, operands, epilogue)
        else:
            values = _integers(spec, operands, given)
            if not spec.stays_integer:
                values = _stored(_converted(values), given, operands, epilogue)
            else:
                values = _stored_whole(values, given["d_zero"], operands, epilogue)
    return Expected(values, output.type)


def _converted(values: Values) -> Values:
    """Integers as f32."""
    if values.element != "s32":
        return values
    wide = values.value.astype(np.float64)
    return Values(wide, np.zeros(wide.shape), "f32").rounded(wide, np.zeros(wide.shape))


def _stored(
    values: Values,
    given: Mapping[str, Array | None],
    operands: Mapping[str, Any],
    epilogue: Epilogue | None,
) -> Values:
    """Scales, the epilogue, D's scale and D's zero point."""
    for name in ("a_scale", "b_scale"):
        if (scale := given[name]) is not None:
            values = values.scaled(scale)
    if epilogue is not None:
        values = epilogue(values, operands)
    if (scale := given["d_scale"]) is not None:
        values = values.scaled(1 / scale)
    if (zero := given["d_zero"]) is not None:
        values = values.shifted(zero)
    return values


def _stored_whole(
    values: Values, zero: Array | None, operands: Mapping[str, Any], epilogue: Epilogue | None
) -> Values:
    """What stays in s32: an epilogue of additions, and D's zero point."""
    if epilogue is not None:
        values = epilogue(values, operands)
    return Values(_wrap(values.value + (0 if zero is None else zero)), values.bound, "s32")


def _quantity(spec: Gemm, name: str, operands: Mapping[str, Any]) -> Array | None:
    """A scale or zero point as the kernel has it, in a shape that broadcasts to D's."""
    said = getattr(spec, name)
    if said is None:
        return None
    given = np.atleast_1d(np.asarray(operands[name] if isinstance(said, str) else said))
    if name.endswith("_zero"):
        value = given.astype(np.int64)
    elif spec.type == "f64":
        value = given.astype(np.longdouble)
    else:
        value = given.astype(np.float32).astype(np.float64)
    return value[:, None] if said == "row" else value


def factor(spec: Gemm, name: str, operands: Mapping[str, Any]) -> Any:
    """Alpha or beta as the kernel has it: an int where it acts on integers, else rounded."""
    said = getattr(spec, name)
    value = operands[name] if said == "scalar" else said
    if spec.type == "s32" and float(value).is_integer():
        return int(value)
    return np.longdouble(value) if spec.type == "f64" else float(np.float32(value))


# --- sums --------------------------------------------------------------------------------------


def _pairs(spec: Gemm, operands: Mapping[str, Any]) -> Iterator[tuple[Array, Array]]:
    for a, b in zip(operands["a"], operands["b"], strict=True):
        yield decode(np.asarray(a), spec.a.type), decode(np.asarray(b), spec.b.type)


def _zeros(spec: Gemm, operands: Mapping[str, Any], dtype: Any) -> Array:
    """Of D's shape: that of C, or of the output where there is no pair of matrices."""
    for a, b in zip(operands["a"], operands["b"], strict=True):
        return np.zeros((a.shape[0], b.shape[1]), dtype)
    return np.zeros(operands["c" if "c" in operands else "out"].shape, dtype)


def _floats(spec: Gemm, operands: Mapping[str, Any]) -> Values:
    """``alpha * sum + beta * C``, within ``(k * count + 4) * eps`` of the sum of magnitudes.

    Whole numbers are exact as long as the magnitudes are.
    """
    wide = np.longdouble if spec.type == "f64" else np.float64
    total = _zeros(spec, operands, wide)
    magnitude, steps, whole = np.zeros_like(total), 0, True
    for a, b in _pairs(spec, operands):
        a, b = a.astype(wide), b.astype(wide)
        total += a @ b
        magnitude += np.abs(a) @ np.abs(b)
        steps += a.shape[1]
        whole = whole and _whole(a) and _whole(b)
    alpha, beta = (factor(spec, name, operands) for name in ("alpha", "beta"))
    value, size = alpha * total, abs(alpha) * magnitude
    if beta != 0:
        c = decode(operands["c"], spec.c.type).astype(wide)
        value, size = value + beta * c, size + abs(beta) * np.abs(c)
        whole = whole and _whole(c)
    eps = wide(epsilon(spec.type))
    exact = whole and _whole(alpha) and _whole(beta)
    exact &= np.maximum(size, magnitude) * eps < 1
    return Values(value, np.where(exact, 0, (steps + 4) * eps * size), spec.type)


def _whole(numbers: Any) -> bool:
    return bool(np.all(numbers == np.rint(numbers)))


def _integers(spec: Gemm, operands: Mapping[str, Any], given: Mapping[str, Array | None]) -> Values:
    """``alpha * sum + beta * C``: modulo 2**32, but f32 if a factor is not whole."""
    total = _zeros(spec, operands, np.int64)
    a_zero, b_zero = (0 if given[name] is None else given[name] for name in ("a_zero", "b_zero"))
    for a, b in _pairs(spec, operands):
        total += _product(a - a_zero, b - b_zero)
    alpha, beta = (factor(spec, name, operands) for name in ("alpha", "beta"))
    terms = [(alpha, _wrap(total))]
    if beta != 0:
        terms.append((beta, decode(operands["c"], spec.c.type)))
    if all(isinstance(by, int) for by, _ in terms):
        value = _wrap(sum(by * integers for by, integers in terms))
        return Values(value, np.zeros(value.shape, np.int64), "s32")
    return _sum([_term(by, integers) for by, integers in terms])


def _term(by: Any, integers: Array) -> Values:
    """A whole factor acts modulo 2**32, any other on f32."""
    if isinstance(by, int):
        return _converted(Values(_wrap(by * integers), np.zeros(integers.shape, np.int64), "s32"))
    held = _converted(Values(integers, np.zeros(integers.shape, np.int64), "s32"))
    return held.scaled(np.float64(by))


def _sum(terms: list[Values]) -> Values:
    total = terms[0]
    for term in terms[1:]:
        total = total.rounded(total.value + term.value, total.bound + term.bound)
    return total


def _product(a: Array, b: Array) -> Array:
    """The product of int64 matrices modulo 2**64; in float64 where that is exact, and fast."""
    largest = [float(np.abs(matrix).max(initial=0)) for matrix in (a, b)]
    if largest[0] * largest[1] * a.shape[1] < 2.0**53:
        product: Array = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
        return product
    return a @ b


def _wrap(integers: Array) -> Array:
    """Modulo 2**32, as s32 has it."""
    return integers.astype(np.int32).astype(np.int64)
