"""Explain a plan's spec and decisions as text: formula, conversions, corrections, and output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sympy import Expr, sympify

from tilewright.plan.formats.lookup import formats_of
from tilewright.plan.loops import Decided
from tilewright.plan.operands import Operand
from tilewright.plan.plan import Plan
from tilewright.plan.problem import Staging, same_types
from tilewright.plan.routine import Row, routine_of
from tilewright.plan.routines.stack import StackPlan
from tilewright.spec.expression import Call
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Packed
from tilewright.spec.quantized import SHIFTS
from tilewright.spec.scalars import of_sums
from tilewright.spec.types import is_integer
from tilewright.symbolic import c_text, simplify

_DIMENSIONS = {"a": "mk", "b": "kn", "c": "mn", "d": "mn"}
_INDEX = {"row": "[m]", "column": "[n]", "full": "[m, n]"}
_OPERATORS = ("add", "sub", "mul", "div", "neg")
_OPERAND = re.compile(r"Operand\('(\w+)', '\w+'(?:, per='(\w+)')?\)")


def text_of(expr: Expr) -> str:
    """Return the C text of a formula in a short form, with like terms added up."""
    return c_text(simplify(expr))


# --- the formula -------------------------------------------------------------------------------


def _held(spec: Gemm, one: Plan | None) -> str:
    """Return the type of the sums as text, for example ``f16, of 64 of K, and f32``."""
    if one is None or not one.staging.narrow:
        return spec.type
    steps = spec.sum_steps
    return (
        one.staging.element
        if steps is None
        else f"{one.staging.element}, of {steps} of K, and {spec.type}"
    )


def formula(plan: Decided) -> str:
    """Return what a kernel computes as one line, for example ``gemm C = A B, f32``."""
    return " ".join(next(routine_of(plan).head(plan)).split())


def head_of_product(plan: Plan) -> Iterator[str]:
    """Yield the first lines about a product: the formula, the matrices, and the batch."""
    operands = {**plan.staging.operands, **plan.staging.sources}
    yield from _products(plan.spec, plan, operands, plan.problem.sizes)
    if batch := plan.problem.batch:
        yield f"batch     {batch.kind}, {text_of(batch.count)} pairs of A and B"


def head_of_stack(plan: StackPlan) -> Iterator[str]:
    """Yield the first lines about a stack: the formula, the matrices, and how many there are."""
    one = plan.each.nests[0] if plan.each is not None else None
    yield from _products(plan.spec, one, plan.operands, plan.sizes)
    yield f"stack     {text_of(plan.batch.count)} products, each with its own C"


def _products(
    spec: Gemm, one: Plan | None, operands: Mapping[str, Operand], sizes: Mapping[str, Expr]
) -> Iterator[str]:
    simple = same_types(spec) and (one is None or not one.staging.finishes)
    kind = spec.type if simple else f"sums in {_held(spec, one)}"
    yield f"gemm      {_formula(spec)}, {kind}"
    names = "abc" if spec.d is None else "abcd" if spec.beta != 0 else "abd"
    texts = (_matrix(spec, operands[name], sizes, typed=not simple) for name in names)
    yield f"          {', '.join(texts)}"


#: "row" or "column", whichever is contiguous in a matrix, by the matrix's order.
LINES = {"C": "row", "F": "column"}


def _matrix(spec: Gemm, operand: Operand, sizes: Mapping[str, Expr], *, typed: bool) -> str:
    given, shape = getattr(spec, operand.name), _DIMENSIONS[operand.name]
    of = f" of {given.type}" if typed else ""
    if isinstance(given, Packed):
        rows, columns = (text_of(sizes[dimension]) for dimension in shape)
        return f"{operand.name.upper()} {rows} x {columns}{of} (packed)"
    return matrix_text(operand, (shape[0], shape[1]), sizes, of)


def matrix_text(
    operand: Operand, shape: tuple[str, str], sizes: Mapping[str, Expr], of: str = ""
) -> str:
    """Return a matrix as text, for example ``X 33 x 70 (rows 70 elements apart)``.

    ``shape`` has the names of its two sizes; ``of`` follows them.
    """
    rows, columns = (text_of(sizes[dimension]) for dimension in shape)
    apart = next((d for d in shape if operand.strides[d] != 1), shape[0])
    line = "column" if apart == shape[1] else "row"
    place = f"{line}s {text_of(operand.strides[apart])} elements apart"
    return f"{operand.name.upper()} {rows} x {columns}{of} ({place})"


def flops_of(spec: Gemm, sizes: Mapping[str, Expr], count: Expr) -> Expr:
    """Return the additions and multiplications of ``count`` products of these ``sizes``."""
    return sympify(spec.flops({**sizes, "count": count}))


def _formula(spec: Gemm) -> str:
    """Return the formula of the product as text, for example ``C = A B``."""
    total = _sum(spec)
    if scales := [_quantity(spec, name) for name in ("a_scale", "b_scale") if _has(spec, name)]:
        total = f"{' '.join(scales)} {f'({total})' if spec.beta != 0 else total}"
    name = spec.output.upper()
    if not any(_has(spec, part) for part in ("epilogue", "d_scale", "d_zero")):
        return f"{name} = {total}"
    value = _epilogue(spec) if _has(spec, "epilogue") else "acc"
    if _has(spec, "d_scale"):
        infix = isinstance(spec.epilogue, Call) and spec.epilogue.fn in _OPERATORS
        value = f"{f'({value})' if infix else value} / {_quantity(spec, 'd_scale')}"
    if _has(spec, "d_zero"):
        value += f" + {_quantity(spec, 'd_zero')}"
    return f"{name} = {value} with acc = {total}"


def _sum(spec: Gemm) -> str:
    """Return the text for ``alpha A B + beta C``, with the factors and zero points of ``spec``."""
    a, b = (
        f"({name.upper()} - {_quantity(spec, f'{name}_zero')})"
        if _has(spec, f"{name}_zero")
        else name.upper()
        for name in "ab"
    )
    product = f"sum of {a} {b}" if spec.batch and not spec.stacked else f"{a} {b}"
    alpha, beta = (_factor(factor) for factor in (spec.alpha, spec.beta))
    old = "" if spec.beta == 0 else " + C" if spec.beta == 1 else f" + {beta} C"
    return f"{product if spec.alpha == 1 else f'{alpha} {product}'}{old}"


def _factor(factor: float | str) -> str:
    return f"{factor:g}" if isinstance(factor, float) else "a number of the call"


def _has(spec: Gemm, name: str) -> bool:
    return of_sums(getattr(spec, name))


def _quantity(spec: Gemm, name: str) -> str:
    """Return a scale or zero point as text: a number, or a name such as ``b_scale[n]``."""
    given = getattr(spec, name)
    if isinstance(given, str):
        return name + _INDEX.get(given, "")
    return f"{given:g}" if name.endswith("_scale") else str(given)


def _epilogue(spec: Gemm) -> str:
    """Return the epilogue as text, with operands as names such as ``bias[n]``."""
    return _OPERAND.sub(lambda found: found[1] + _INDEX.get(found[2], ""), repr(spec.epilogue))


# --- the decisions -----------------------------------------------------------------------------


def rows_of_product(plan: Plan) -> Iterator[Row]:
    """Yield the decisions of a product on conversions, corrections, output, tails and stores."""
    if not plan.staging.plain:
        yield from (_staging(plan.staging, name) for name in "ab")
    if plan.staging.corrects:
        yield from _corrections(plan.staging)
    if plan.staging.finishes:
        yield _output(plan.staging)
    if isinstance(plan.spec.d, Packed):
        yield "D packed", "from rows in a buffer", formats_of(plan.spec, plan.target)["d"].text
    if plan.partial:
        written = plan.staging.output.name.upper()
        why = f"{written} holds no sums: it is made of them when all are there"
        yield "partial sums", "in a buffer", why
    yield from _schedule_decisions(plan.staging)


def _staging(staging: Staging, name: str) -> Row:
    """Return the row that says how A or B gets from memory to the multiply-adds."""
    product, operand = staging.product, staging.operands[name]
    element, shift = staging.factor(name), product.shifts[name]
    loaded = "" if operand.type == element else f", {element} when loaded"
    if name == "b" and staging.form is not None:
        return "B", "packed before", f"{staging.form.text}{loaded}"
    if name == "a" and isinstance(staging.problem.spec.a, Packed):
        return (
            "A",
            "packed before",
            formats_of(staging.problem.spec, staging.problem.target)["a"].text,
        )
    grouped = f"groups of {product.group} along K" if product.group > 1 else "lines side by side"
    if name in staging.packs:
        change = _change(operand.type, element, shift, operand.rounded)
        if product.unit is not None and staging.input_of(staging.problem.across).name == name:
            done = "copied" if operand.type == element and not shift else "converted"
            return name.upper(), f"{done} in blocks", f"{change}, rows along K, filled with zeros"
        return name.upper(), "converted as it is packed", f"{change}, {grouped}"
    if name not in staging.sources:
        return name.upper(), "where it lies", f"{operand.type}{loaded}"
    source, spec = staging.sources[name], staging.problem.spec
    if spec.sums_blocks:
        shift = -SHIFTS.get(source.type, 0)
        return name.upper(), *_in_blocks(spec, _change(source.type, operand.type, shift))
    change = _change(source.type, operand.type, shift, source.rounded)
    how = "rows along K" if operand.strides["k"] == 1 else grouped
    return name.upper(), "converted first", f"{change}, {how}, for whole vectors{loaded}"


def _in_blocks(spec: Spec, change: str) -> tuple[str, str]:
    """Return choice and reason for A if sums are computed in blocks of K: copied or quantized."""
    assert isinstance(spec, Gemm)
    if spec.quantize is None:
        zeros = ", with a zero point" if spec.offsets_blocks else ""
        return "copied first", f"{change}{zeros}, rows of whole blocks"
    how = spec.quantize
    where = "a row" if how.block is None else f"{how.block} of a row"
    zeros = " and a zero point" if how.zero else ""
    return "quantized first", f"{change}, a scale{zeros} for {where}"


def _change(source: str, type_: str, shift: int, rounded: str = "") -> str:
    """Return the conversion of elements in words, for example ``u8 - 128 to s8``.

    ``rounded`` is the type to which they are rounded on the way, "" for none.
    """
    if rounded:
        return f"{source} rounded to {rounded}" + ("" if rounded == type_ else f", as {type_}")
    if shift:
        return f"{source} {'+' if shift > 0 else '-'} {abs(shift)} to {type_}"
    return type_ if source == type_ else f"{source} to {type_}"


def _corrections(staging: Staging) -> Iterator[Row]:
    """Yield the rows about corrections of the sums, for zero points and shifts of A and B."""
    spec, shifts = staging.problem.spec, staging.product.shifts
    stored = isinstance(spec.b, Packed)
    lines = {"a": ("b", "B's columns"), "b": ("a", "A's rows")}
    for name, (other, summed) in lines.items():
        factor = _joined(getattr(spec, f"{name}_zero"), f"{name}_zero", shifts[name])
        if factor == "0":
            continue
        how = "packed with B" if stored and other == "b" else "summed first"
        each = f"{factor} times the sums of {summed} is subtracted"
        more = _joined(spec.b_zero, "b_zero", 0) if name == "a" else _joined(0, "", shifts["a"])
        if more != "0":
            sign = "less" if name == "a" else "and"
            each += f", {sign} {more} for each of their terms"
        yield "correction", how, each


def _joined(zero: object, name: str, shift: int) -> str:
    """Return a zero point and a shift as one factor, for example ``(a_zero - 128)``."""
    if isinstance(zero, str):
        return f"({name} {'+' if shift > 0 else '-'} {abs(shift)})" if shift else name
    return str((zero if isinstance(zero, int) else 0) + shift)


def _output(staging: Staging) -> Row:
    """Return the row that says how sums become elements of the output."""
    spec, element = staging.problem.spec, staging.output.type
    if spec.stays_integer:
        parts = ["in s32"]
    else:
        parts = ["in f32"] if spec.type == "s32" else []
        parts += [f"times {_quantity(spec, x)}" for x in ("a_scale", "b_scale") if _has(spec, x)]
    parts += [_epilogue(spec)] if _has(spec, "epilogue") else []
    parts += [f"times 1 / {_quantity(spec, 'd_scale')}"] if _has(spec, "d_scale") else []
    parts += [f"plus {_quantity(spec, 'd_zero')}"] if spec.d_zero not in (None, 0) else []
    if is_integer(element):
        rounded = [] if spec.stays_integer else ["rounded half to even"]
        parts += rounded + ([] if element == spec.type and spec.stays_integer else ["saturated"])
    elif element != spec.type and element not in ("f32", "f64"):
        parts.append("rounded to nearest even")
    return staging.output.name.upper(), element, ", ".join(parts)


def _schedule_decisions(staging: Staging) -> Iterator[Row]:
    schedule = staging.problem.schedule
    why = "asked for"
    if schedule.tails == "auto":
        masks = any(vector.mask for vector in staging.vectors)
        how = "masked vectors" if masks else "partial accesses or narrower vectors"
        why = f"last columns or rows: {how}, or a last vector that overlaps the previous one"
    if staging.problem.bounces:
        why += "; a partly filled vector passes through a buffer on the stack"
    yield "tails", schedule.tails, why
    if staging.transposed:
        why = f"{staging.output.name.upper()} is contiguous across the vectors: blocks are "
        why += f"transposed in registers, so that {staging.problem.across} is contiguous"
        yield "store", "transposed", why
