"""The right results of a GEMM: exact values, and bounds between which the elements of D must be.

Integers are summed in int64 and taken modulo 2**32, or modulo 2**64 if the sums are s64. Other
types are summed in float64, f64 in longdouble. Each value has an error bound, which grows with
every rounding that a kernel may do. The bound is 0 if no rounding can occur.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.runtime.arrays.elements import decode, encode, epsilon, in_range, nearest
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.quantized.matrix import QuantizedMatrix, magnitudes
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.expression import Expression
from tilewright.spec.gemm import QUANTITIES, Gemm
from tilewright.spec.scalars import of_sums, quantity_type
from tilewright.spec.types import FORMATS, is_integer

from .epilogue import REDUCTIONS, evaluate, evaluate_whole
from .interval import LEAST, Interval, add
from .quantized import block_count, block_sums


@dataclass(frozen=True, slots=True)
class Expected:
    """The right values of an output, before they are stored as elements of ``type``."""

    values: Interval
    type: str

    def range(self) -> tuple[Array, Array]:
        """Return the least and the greatest right element; infinite beyond the type's range."""
        low, high = self.values.low, self.values.high
        # The bounds already include the last rounding.
        if self.type == self.values.element:
            return low, high
        return nearest(low, self.type), nearest(high, self.type)

    def limits(self) -> tuple[Array, Array, Array]:
        """Return the least and the greatest right number, and a mask of the elements that may be
        NaN.

        If only NaN is right, the least number is above the greatest.
        """
        low, high = self.range()
        # 64-bit integers stay integers, because a double holds only 53 bits.
        if low.dtype.kind == "i":
            return low, high, np.zeros(low.shape, bool)
        unsure, nan = self.values.unsure, np.isnan(low)
        low = np.where(unsure, -np.inf, np.where(nan, np.inf, low))
        high = np.where(unsure, np.inf, np.where(nan, -np.inf, high))
        if self.type in FORMATS and not FORMATS[self.type].infinity:
            nan |= np.isinf(low) | np.isinf(high)
        return low, high, nan | unsure

    def wrong(self, got: Array) -> Array:
        """Return a mask of the elements of ``got`` that are not right."""
        elements, (low, high, nan) = decode(got, self.type), self.limits()
        right = (low <= elements) & (elements <= high)
        return ~(right | (nan & np.isnan(elements)))

    def error(self, got: Array) -> tuple[Array, Array]:
        """Return the distance of each element from the exact value, and the largest allowed
        distance.

        Both are 0 for saturated elements.
        """
        value, (low, high) = self.values.value, self.range()
        with np.errstate(invalid="ignore"):
            error = np.abs(decode(got, self.type) - value)
            allowed = np.maximum(np.abs(high - value), np.abs(value - low))
        inside = in_range(value, self.type) & ~self.values.unsure
        return np.where(inside, error, 0), np.where(inside, allowed, 0)


def expected(spec: Gemm, operands: Mapping[str, Any]) -> Expected:
    """Return what a kernel of ``spec`` must write to C, or to D if there is one."""
    return results(spec, operands)[spec.output]


def results(spec: Gemm, operands: Mapping[str, Any]) -> dict[str, Expected]:
    """Return what a kernel of ``spec`` must write, by the outputs' names.

    Parameters
    ----------
    spec : Gemm
        The product.
    operands : mapping
        "a", "b" and "b2" are sequences of the batch's matrices. "c" is C if beta is not 0, "d" is
        D's old value if an expression reads it. Arguments passed by name have their names as keys.
        "out" has D's shape, if no other operand shows that shape. For a stack of products, "c", "d"
        and "out" have the batch as their first axis.
    """
    if spec.stacked:
        return _stack_results(spec, operands)
    output = spec.c if spec.d is None else spec.d
    given = {name: _quantity(spec, name, operands) for name in QUANTITIES}
    if spec.reads_output:
        operands = {**operands, "d": decode(operands["d"], output.type)}
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if spec.stays_integer:
            found = {spec.output: Expected(_stored_whole(spec, given, operands), output.type)}
            sums = _scaled_sums(spec, operands, given) if spec.outputs else {}
        else:
            sums = _scaled_sums(spec, operands, given)
            found = {spec.output: Expected(_stored(spec, sums, given, operands), output.type)}
        for name, reduction in spec.outputs:
            values = _evaluated(spec, reduction.expression, sums, operands)
            found[name] = Expected(REDUCTIONS[reduction.fn](values), "f32")
    return found


def _stack_results(spec: Gemm, operands: Mapping[str, Any]) -> dict[str, Expected]:
    """Return the results of all products of a stack, along a new first axis."""
    alone, shape = spec.alone(), operands["out"].shape
    parts = [_element(operands, i) for i in range(shape[0])]
    found = [results(alone, part)[spec.output] for part in parts]
    output = spec.c if spec.d is None else spec.d
    if not found:
        return {spec.output: Expected(Interval.exactly(np.zeros(shape), "f32"), output.type)}
    values = Interval.stacked([each.values for each in found])
    return {spec.output: Expected(values, output.type)}


def _element(operands: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return the operands of one product of a stack."""
    lists = {name: [operands[name][index]] for name in ("a", "b", "b2") if name in operands}
    arrays = {name: operands[name][index] for name in ("c", "d", "out") if name in operands}
    return {**operands, **lists, **arrays}


def _scaled_sums(
    spec: Gemm, operands: Mapping[str, Any], given: Mapping[str, Array | None]
) -> dict[str, Interval]:
    """Return the sums that an epilogue calls acc and acc2, with all factors applied."""
    sums = {"acc": _factored(spec, operands, given, "b", with_c=True)}
    if spec.b2 is not None:
        sums["acc2"] = _factored(spec, operands, given, "b2", with_c=False)
    for name in ("a_scale", "b_scale"):
        if (scale := given[name]) is not None:
            sums = {leaf: values.scaled(scale) for leaf, values in sums.items()}
    return sums


def _evaluated(
    spec: Gemm, expression: Expression, sums: Mapping[str, Interval], operands: Mapping[str, Any]
) -> Interval:
    """Return the value of an expression. If sympy may rewrite it, the bounds include both forms."""
    values = evaluate(expression, sums, operands)
    if spec.algebra:
        from tilewright.elementwise.simplify import simplify

        values = values.joined(evaluate(simplify(expression), sums, operands))
    return values.spread(sums["acc"].value.shape)


def _stored(
    spec: Gemm,
    sums: Mapping[str, Interval],
    given: Mapping[str, Array | None],
    operands: Mapping[str, Any],
) -> Interval:
    """Return the sums after the epilogue, D's scale and D's zero point are applied."""
    values = sums["acc"]
    if spec.epilogue is not None:
        values = _evaluated(spec, spec.epilogue, sums, operands)
    if (scale := given["d_scale"]) is not None:
        values = values.scaled(1 / scale)
    if (zero := given["d_zero"]) is not None:
        wide = zero.astype(values.value.dtype)
        values = add(values, Interval.exactly(wide, values.element).rounded())
    return values


def _stored_whole(
    spec: Gemm, given: Mapping[str, Array | None], operands: Mapping[str, Any]
) -> Interval:
    """Return the sums after an epilogue of integer additions and D's zero point, in integers."""
    whole = _integers(spec, operands, given, "b", with_c=True)
    sums = {"acc": whole}
    if spec.epilogue is not None:
        if spec.b2 is not None:
            sums["acc2"] = _integers(spec, operands, given, "b2", with_c=False)
        whole = evaluate_whole(spec.epilogue, sums, operands)
    zero = given["d_zero"]
    whole = _wrap(whole + (0 if zero is None else zero), spec.type)
    return Interval.exactly(whole, spec.type).spread(sums["acc"].shape)


def _quantity(spec: Gemm, name: str, operands: Mapping[str, Any]) -> Array | None:
    """Return a scale or zero point as the kernel holds it, in a shape that broadcasts to D's."""
    said = getattr(spec, name)
    if not of_sums(said):
        return None
    given = np.atleast_1d(np.asarray(operands[name] if isinstance(said, str) else said))
    type_ = quantity_type(name, spec.type)
    if type_ == "s32":
        value = given.astype(np.int64)
    elif type_ == "f64":
        value = given.astype(np.longdouble)
    else:
        value = given.astype(np.float32).astype(np.float64)
    return value[:, None] if said == "row" else value


def factor(spec: Gemm, name: str, operands: Mapping[str, Any]) -> Any:
    """Return alpha or beta as the kernel holds it: rounded to the type of the arithmetic."""
    said = getattr(spec, name)
    value = operands[name] if said == "scalar" else said
    if spec.type == "f64":
        return np.longdouble(value)
    return float(value) if is_integer(spec.type) else float(np.float32(value))


# --- sums --------------------------------------------------------------------------------------


def _factored(
    spec: Gemm,
    operands: Mapping[str, Any],
    given: Mapping[str, Array | None],
    b: str,
    *,
    with_c: bool,
) -> Interval:
    """Return ``alpha * sum + beta * C`` in f32 or f64; without the last term unless ``with_c``."""
    if spec.sums_blocks:
        sums, steps = block_sums(spec, operands, b, given["a_zero"]), block_count(spec, operands, b)
        return _in_f32(spec, operands, sums, with_c=with_c, steps=steps)
    if spec.sum_type == "f16":
        return _in_f32(spec, operands, _halves(spec, operands, b), with_c=with_c)
    if spec.type != "s32":
        return _floats(spec, operands, given, b, with_c=with_c)
    if is_integer(spec.factor_type):
        return _real(_integers(spec, operands, given, b, with_c=with_c))
    return _in_f32(spec, operands, _real(_integer_sums(spec, operands, given, b)), with_c=with_c)


def _in_f32(
    spec: Gemm, operands: Mapping[str, Any], sums: Interval, *, with_c: bool, steps: int = 1
) -> Interval:
    """Return ``alpha * sums + beta * C`` in f32. Kernels may add the sums in ``steps`` parts."""
    alpha, beta = (np.float64(factor(spec, name, operands)) for name in ("alpha", "beta"))
    total = sums.scaled(alpha)
    if with_c and beta != 0:
        c = decode(operands["c"], spec.c.type)
        held = _real(c) if is_integer(spec.c.type) else Interval.exactly(c, "f32")
        total = add(total, held.scaled(beta))
        if steps > 1:
            total = total.widened(steps * epsilon("f32") * np.abs(beta * c))
    return total


def _sizes(spec: Gemm, b: Any, elements: Array) -> Array:
    """Return the magnitudes of B's elements as they enter the error bound.

    A kernel may multiply zero points and minima of blocks with sums of A, separately from B's
    elements.
    """
    if not isinstance(b, QuantizedMatrix) or b.zeros is None or spec.a.type == "f32":
        return np.abs(elements)
    return magnitudes(b)


def _pairs(spec: Gemm, operands: Mapping[str, Any], b: str) -> Iterator[tuple[Array, Array]]:
    for left, right in zip(operands["a"], operands[b], strict=True):
        if isinstance(right, QuantizedMatrix):
            wide: Array = right.dequantize().astype(np.float64)
        else:
            wide = decode(np.asarray(right), spec.b.type)
        yield decode(np.asarray(left), spec.a.type), wide


def _as_multiplied(spec: Gemm, left: Array, right: Array) -> tuple[Array, Array]:
    """Return the elements of A and B as a kernel multiplies them: rounded, if ``math`` says so."""
    if spec.math is None:
        return left, right
    rounded = (
        decode(encode(each, type_), type_) if type_ == "bf16" else each
        for each, type_ in zip((left, right), spec.rounded, strict=True)
    )
    return next(rounded), next(rounded)


def _zeros(spec: Gemm, operands: Mapping[str, Any], dtype: Any) -> Any:
    """Return zeros of D's shape: the shape of C, or of the output if the batch is empty."""
    for a, b in zip(operands["a"], operands["b"], strict=True):
        return np.zeros((a.shape[0], b.shape[1]), dtype)
    return np.zeros(operands["c" if "c" in operands else "out"].shape, dtype)


def _floats(
    spec: Gemm,
    operands: Mapping[str, Any],
    zeros: Mapping[str, Array | None],
    b: str,
    *,
    with_c: bool,
) -> Interval:
    """Return the sums with bounds of ``(k * count + 4) * eps`` times the sum of magnitudes.

    Sums of whole numbers are exact while their magnitudes are exact. Kernels subtract a zero point
    times the sums of the other operand from the sums of products, so magnitudes include both.
    """
    wide: Any = np.longdouble if spec.type == "f64" else np.float64
    total = _zeros(spec, operands, wide)
    magnitude, steps, whole = np.zeros_like(total), 0, True
    held = np.zeros_like(total)
    pairs = zip(_pairs(spec, operands, b), operands[b], strict=True)
    for (left, right), given in pairs:
        x, y = left.astype(wide), right.astype(wide)
        of_a, of_b = (_or_zero(zeros[name]) for name in ("a_zero", "b_zero"))
        total += (x - of_a) @ (y - of_b)
        x, y = _as_multiplied(spec, x, y)
        held += (x - of_a) @ (y - of_b) if spec.math else 0
        magnitude += (np.abs(x) + np.abs(of_a)) @ (_sizes(spec, given, y) + np.abs(of_b))
        steps += x.shape[1]
        whole = whole and _whole(x) and _whole(y)
    alpha, beta = (factor(spec, name, operands) for name in ("alpha", "beta"))
    value, size = alpha * total, abs(alpha) * magnitude
    held = alpha * held if spec.math else value
    if with_c and beta != 0:
        c = decode(operands["c"], spec.c.type).astype(wide)
        value, size = value + beta * c, size + abs(beta) * np.abs(c)
        held = held + beta * c
        whole = whole and _whole(c)
    eps = wide(epsilon(spec.type))
    exact = whole and _whole(alpha) and _whole(beta)
    exact &= np.maximum(size, magnitude) * eps <= 2
    # Below the smallest normal number, rounding errors are absolute.
    each = eps * size + LEAST[spec.type]
    found = Interval.around(held, np.where(exact, 0, (steps + 4) * each), spec.type)
    # What ``math`` rounds is part of the error, but not of what is uncertain.
    return found if spec.math is None else replace(found, value=value)


def _or_zero(given: Array | None) -> Array:
    """Return a zero point, or 0 for None."""
    return np.zeros(1) if given is None else given


#: Least magnitude that rounds to infinity in f16.
_BEYOND_F16 = 65520.0


def _halves(spec: Gemm, operands: Mapping[str, Any], b: str) -> Interval:
    """Return sums with bounds for kernels that hold them, or parts of them along K, in f16.

    The bound is that of ``_floats`` with f16's epsilon. Partial sums may overflow f16 and be
    infinite, with either sign. Sums in f32 are right as well.
    """
    total = _zeros(spec, operands, np.float64)
    magnitude, sizes, steps, whole = np.zeros_like(total), np.zeros_like(total), 0, True
    for left, right in _pairs(spec, operands, b):
        total += left @ right
        magnitude += np.abs(left) @ np.abs(right)
        sizes += np.abs(_finite(left)) @ np.abs(_finite(right))
        steps += left.shape[1]
        whole = whole and _whole(left) and _whole(right)
    most = steps if spec.sum_steps is None else min(steps, spec.sum_steps)
    eps = epsilon("f16")
    bound = (most + 4) * (eps * magnitude + LEAST["f16"])
    if most < steps:
        bound += (-(-steps // most) + 4) * epsilon("f32") * magnitude
    exact = whole & (magnitude * eps <= 2)
    found = Interval.around(total, np.where(exact, 0, bound), "f32")
    highest = (1 + (most + 4) * eps) * sizes
    up, down = (highest + way * total >= 2 * _BEYOND_F16 for way in (1, -1))
    low, high = np.where(down, -np.inf, found.low), np.where(up, np.inf, found.high)
    lost = (up & down) | (np.isinf(total) & (highest >= _BEYOND_F16))
    return Interval(total, np.where(lost, np.nan, low), np.where(lost, np.nan, high), "f32")


def _finite(numbers: Array) -> Array:
    return np.where(np.isfinite(numbers), numbers, 0)


def _whole(numbers: Any) -> bool:
    return bool(np.all(numbers == np.rint(numbers)))


def _integer_sums(
    spec: Gemm, operands: Mapping[str, Any], given: Mapping[str, Array | None], b: str
) -> Array:
    total = _zeros(spec, operands, np.int64)
    zeros = [0 if given[name] is None else given[name] for name in ("a_zero", "b_zero")]
    for left, right in _pairs(spec, operands, b):
        total += _product(left - zeros[0], right - zeros[1])
    return _wrap(total, spec.type)


def _integers(
    spec: Gemm,
    operands: Mapping[str, Any],
    given: Mapping[str, Array | None],
    b: str,
    *,
    with_c: bool,
) -> Array:
    """Return ``alpha * sum + beta * C`` modulo the range of the sums."""
    alpha, beta = (int(factor(spec, name, operands)) for name in ("alpha", "beta"))
    total = alpha * _integer_sums(spec, operands, given, b)
    if with_c and beta != 0:
        total = total + beta * decode(operands["c"], spec.c.type)
    return _wrap(total, spec.type)


def _real(integers: Array) -> Interval:
    """Return s32 integers converted to f32."""
    return Interval.exactly(integers.astype(np.float64), "f32").rounded()


def _product(a: Array, b: Array) -> Array:
    """Return the product of int64 matrices modulo 2**64; in float64, which is faster, if exact."""
    largest = [float(np.abs(matrix).max(initial=0)) for matrix in (a, b)]
    if largest[0] * largest[1] * a.shape[1] < 2.0**53:
        product: Array = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
        return product
    return a @ b


def _wrap(integers: Array, type_: str) -> Array:
    """Return integers modulo the range of ``type_``, as int64."""
    return integers.astype(DTYPES[type_]).astype(np.int64)
