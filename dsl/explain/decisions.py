"""Explain a plan's spec and decisions as text: formula, conversions, corrections, and output."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sympy import Expr

from tilewright.plan.plan import Plan
from tilewright.plan.routines.pack_b import PackPlan
from tilewright.plan.routines.pack_quantized import QuantizedPackPlan
from tilewright.plan.routines.stack import StackPlan
from tilewright.plan.routines.transpose import TransposePlan
from tilewright.plan.rows.plan import RowsPlan
from tilewright.plan.staging import same_types
from tilewright.spec.expression import Call
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Packed
from tilewright.spec.quantized import Quantize
from tilewright.spec.scalars import of_sums
from tilewright.spec.types import is_integer
from tilewright.symbolic import c_text, simplify

AnyPlan = Plan | StackPlan | TransposePlan | PackPlan | QuantizedPackPlan | RowsPlan
#: A decision of a plan as three texts: its subject, the choice, and the reason.
Row = tuple[str, str, str]
_DIMENSIONS = {
    "a": "mk", "b": "kn", "c": "mn", "d": "mn", "x": ("rows", "cols"), "out": ("cols", "rows"),
}  # fmt: skip
_INDEX = {"row": "[m]", "column": "[n]", "full": "[m, n]"}
_OPERATORS = ("add", "sub", "mul", "div", "neg")
_OPERAND = re.compile(r"Operand\('(\w+)', '\w+'(?:, per='(\w+)')?\)")


def text_of(expr: Expr) -> str:
    """Return the C text of a formula in a short form, with like terms added up."""
    return c_text(simplify(expr))


# --- the formula -------------------------------------------------------------------------------


def _held(plan: Plan | StackPlan) -> str:
    """Return the type of the sums as text, for example ``f16, of 64 of K, and f32``."""
    one = plan.each if isinstance(plan, StackPlan) else plan
    if one is None or not one.narrow:
        return plan.spec.type
    steps = plan.spec.sum_steps
    return one.element if steps is None else f"{one.element}, of {steps} of K, and {plan.spec.type}"


def head(plan: AnyPlan) -> Iterator[str]:
    """Yield the first lines of an explanation: the formula, the matrices, and the batch."""
    if isinstance(plan, PackPlan):
        yield from _head_of_packing(plan)
        return
    if isinstance(plan, QuantizedPackPlan):
        yield _of_few_bits(plan)
        return
    if isinstance(plan, TransposePlan):
        yield f"transpose {_matrix(plan, 'x')} to {_matrix(plan, 'out')}, {plan.element}"
        return
    if isinstance(plan, RowsPlan):
        rows, cols = text_of(plan.rows), text_of(plan.cols)
        yield f"rows      {rows} of {cols} columns: {', '.join(map(repr, plan.spec.results))}"
        return
    spec = plan.spec
    one = plan.each if isinstance(plan, StackPlan) else plan
    simple = same_types(spec) and (one is None or not one.finishes)
    kind = spec.type if simple else f"sums in {_held(plan)}"
    yield f"gemm      {_formula(spec)}, {kind}"
    names = "abc" if spec.d is None else "abcd" if spec.beta != 0 else "abd"
    yield f"          {', '.join(_matrix(plan, name, typed=not simple) for name in names)}"
    if isinstance(plan, StackPlan):
        yield f"stack     {text_of(plan.batch.count)} products, each with its own C"
    elif plan.batch:
        yield f"batch     {plan.batch.kind}, {text_of(plan.batch.count)} pairs of A and B"


def formula(plan: AnyPlan) -> str:
    """Return what a kernel computes as one line, for example ``gemm C = A B, f32``."""
    return " ".join(next(head(plan)).split())


#: "row" or "column", whichever is contiguous in a matrix, by the matrix's order.
_LINES = {"C": "row", "F": "column"}


def _head_of_packing(plan: PackPlan) -> Iterator[str]:
    spec, strides = plan.spec, plan.operands["b"].strides
    apart, line = strides["k" if spec.order == "C" else "n"], _LINES[spec.order]
    yield (
        f"pack      B {spec.k} x {spec.n} ({line}s {text_of(apart)} elements apart), "
        f"{spec.source} as {spec.type}, for A of {spec.a}: {plan.format.nbytes} bytes"
    )
    if plan.batch:
        yield f"batch     strided, {text_of(plan.batch.count)} of B"


def _of_few_bits(plan: QuantizedPackPlan) -> str:
    spec, form = plan.spec, plan.format
    lines = "rows" if spec.order == "C" else "columns"
    return (
        f"pack      B {spec.k} x {spec.n} ({lines} contiguous), {spec.type.type} with scales for "
        f"{form.block} of K: {form.nbytes} bytes"
    )


def _matrix(plan: Plan | StackPlan | TransposePlan, name: str, typed: bool = False) -> str:
    dimensions = _DIMENSIONS[name]
    operand = plan.operands[name]
    shape = " x ".join(text_of(plan.sizes[dimension]) for dimension in dimensions)
    if not isinstance(plan, TransposePlan):
        sources = plan.sources if isinstance(plan, Plan) else {}
        operand = sources.get(name, operand)
        given = getattr(plan.spec, name)
        shape += f" of {given.type}" if typed else ""
        if isinstance(given, Packed):
            return f"{name.upper()} {shape} (packed)"
    apart = next((d for d in dimensions if operand.strides[d] != 1), dimensions[0])
    line = "column" if apart == dimensions[1] else "row"
    return f"{name.upper()} {shape} ({line}s {text_of(operand.strides[apart])} elements apart)"


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


def decisions(plan: AnyPlan) -> Iterator[Row]:
    """Yield subject, choice and reason for each decision of a plan, except those on tiles."""
    yield from ((d.what, d.choice, d.reason) for d in plan.decisions)
    one = plan.each if isinstance(plan, StackPlan) else plan
    if isinstance(one, Plan):
        yield from _of_product(one)


def _of_product(plan: Plan) -> Iterator[Row]:
    """Yield the decisions of a product on conversions, corrections, output, tails and stores."""
    if not plan.plain:
        yield from (_staging(plan, name) for name in "ab")
    if plan.corrects:
        yield from _corrections(plan)
    if plan.finishes:
        yield _output(plan)
    if plan.partial:
        why = f"{plan.output.name.upper()} holds no sums: it is made of them when all are there"
        yield "partial sums", "in a buffer", why
    yield from _schedule_decisions(plan)


def _staging(plan: Plan, name: str) -> Row:
    """Return the row that says how A or B gets from memory to the multiply-adds."""
    product, operand = plan.product, plan.operands[name]
    element, shift = plan.factor(name), product.shifts[name]
    loaded = "" if operand.type == element else f", {element} when loaded"
    if name == "b" and plan.packed_format is not None:
        return "B", "packed before", f"{plan.packed_format.text}{loaded}"
    grouped = f"groups of {product.group} along K" if product.group > 1 else "lines side by side"
    if name in plan.packs:
        change = _change(operand.type, element, shift)
        if product.unit is not None and plan.input_of(plan.across).name == name:
            done = "copied" if operand.type == element and not shift else "converted"
            return name.upper(), f"{done} in blocks", f"{change}, rows along K, filled with zeros"
        return name.upper(), "converted as it is packed", f"{change}, {grouped}"
    if name not in plan.sources:
        return name.upper(), "where it lies", f"{operand.type}{loaded}"
    change = _change(plan.sources[name].type, operand.type, shift)
    if plan.spec.sums_blocks:
        return name.upper(), *_in_blocks(plan.spec, change)
    how = "rows along K" if operand.strides["k"] == 1 else grouped
    return name.upper(), "converted first", f"{change}, {how}, for whole vectors{loaded}"


def _in_blocks(spec: Spec, change: str) -> tuple[str, str]:
    """Return choice and reason for A if sums are computed in blocks of K: copied or quantized."""
    assert isinstance(spec, Gemm)
    if not isinstance(spec.a, Quantize):
        return "copied first", f"{change}, rows of whole blocks"
    where = "a row" if spec.a.block is None else f"{spec.a.block} of a row"
    zeros = " and a zero point" if spec.a.zero else ""
    return "quantized first", f"{change}, a scale{zeros} for {where}"


def _change(source: str, type_: str, shift: int) -> str:
    """Return the conversion of elements in words, for example ``u8 - 128 to s8``."""
    if shift:
        return f"{source} {'+' if shift > 0 else '-'} {abs(shift)} to {type_}"
    return type_ if source == type_ else f"{source} to {type_}"


def _corrections(plan: Plan) -> Iterator[Row]:
    """Yield the rows about corrections of the sums, for zero points and shifts of A and B."""
    spec, shifts = plan.spec, plan.product.shifts
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


def _output(plan: Plan) -> Row:
    """Return the row that says how sums become elements of the output."""
    spec, element = plan.spec, plan.output.type
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
    return plan.output.name.upper(), element, ", ".join(parts)


def _schedule_decisions(plan: Plan) -> Iterator[Row]:
    schedule = plan.schedule
    why = "asked for"
    if schedule.tails == "auto":
        masks = any(vector.mask for vector in plan.vectors)
        how = "masked vectors" if masks else "partial accesses or narrower vectors"
        why = f"last columns or rows: {how}, or a last vector that overlaps the previous one"
    if plan.bounces:
        why += "; a partly filled vector passes through a buffer on the stack"
    yield "tails", schedule.tails, why
    if plan.transposed:
        yield (
            "store",
            "transposed",
            f"{plan.output.name.upper()} is contiguous across the vectors: blocks are transposed "
            f"in registers, so that {plan.across} is contiguous",
        )
