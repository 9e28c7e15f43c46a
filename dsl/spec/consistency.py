"""Checks between the fields of a ``Gemm``: types, layouts and sizes that fit each other."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tilewright.errors import SpecError

from .operands import SHAPES, Packed, Strided
from .quantized import Quantize
from .sizes import Dim, check_dims, check_extent
from .sums import check_wide
from .types import INPUTS, ITEMSIZE, TYPES, accumulator, is_integer

if TYPE_CHECKING:
    from .gemm import Gemm

#: What C may be where it is the result, by the type of sums that follows from A and B. Where there
#: is a D, C is only read, and may have any type that D may have.
_OF_C = {"f32": ("f32", "f16", "bf16"), "s32": ("s32", "s64"), "f64": ("f64",)}
_ZEROS = ("a_zero", "b_zero")


def check_gemm(spec: Gemm) -> None:
    """Raise SpecError if types, layouts and sizes do not fit each other."""
    _check_types(spec)
    if spec.expressions or spec.b2 is not None:
        _check_expressions(spec)
    for name in "abcd":
        ld = getattr(spec, f"ld{name}")
        operand = getattr(spec, name)
        if ld is None:
            continue
        if operand is None or isinstance(operand, Packed):
            what = "there is no D" if operand is None else f"{name} is packed"
            raise SpecError(f"ld{name} is given, but {what}", got=ld, hint=f"leave ld{name} out")
        if name == "c" and spec.d is not None and spec.beta == 0:
            raise SpecError(
                "ldc is given, but C is neither read nor written: beta is 0, and D is written",
                got=ld,
                hint=f"ldd={ld!r}, or leave ldc out",
            )
        least = spec.contiguous_size(name)
        if isinstance(ld, int) and isinstance(least, int) and ld < least:
            raise SpecError(
                f"ld{name} is smaller than a contiguous line of {name.upper()}",
                got=ld,
                expected=f"{least} or more",
            )
    if isinstance(spec.b, Packed):
        _check_packed(spec)
    if spec.stacked:
        _check_stack(spec)
    check_dims(spec.runtime_sizes())
    _check_extents(spec)


def _check_extents(spec: Gemm) -> None:
    """Raise SpecError if an operand with all of its batch is larger than memory can be."""
    for name, (rows, cols) in SHAPES.items():
        operand = getattr(spec, name)
        if operand is None:
            continue
        lines = rows if operand.order == "C" else cols
        itemsize = max(ITEMSIZE[operand.type], ITEMSIZE[spec.type])
        extent = (getattr(spec, lines), spec.leading(name))
        check_extent(extent, itemsize, name.upper())
        if spec.batch is None or not spec.batched(name):
            continue
        check_extent((spec.batch.count, *extent), itemsize, f"the batch of {name.upper()}")
        stride = spec.stride(name)
        check_extent((spec.batch.count, stride), itemsize, f"the batch of {name.upper()}")
        line = spec.contiguous_size(name)
        known = isinstance(stride, int) and isinstance(line, int)
        if name in ("c", "d") and known and stride < line:  # type: ignore[operator]
            raise SpecError(
                f"matrices of {name.upper()} share elements",
                got=f"one every {stride} elements, and a contiguous line has {line}",
                hint="tw.Strided(count, c=None) for one tight matrix after the other",
            )


def _check_packed(spec: Gemm) -> None:
    """Refuse open sizes and scattered matrices of a packed B."""
    if isinstance(spec.k, Dim) or isinstance(spec.n, Dim):
        raise SpecError(
            "a packed B has fixed sizes", got=f"k={spec.k!r}, n={spec.n!r}", hint="ints for k and n"
        )
    if isinstance(spec.batch, Strided) and spec.batch.b not in (None, 0):
        raise SpecError(
            "matrices of a packed B have the stride of their format",
            got=f"b={spec.batch.b!r}",
            expected="b=None for one matrix each, or b=0 for one that serves all",
        )


def _check_stack(spec: Gemm) -> None:
    """Refuse arrays of a stack of products that exist only once for all of them."""
    whole = [operand.name for operand in spec.named if operand.per == "full"]
    if whole or spec.outputs:
        name = whole[0] if whole else dict(spec.outputs).popitem()[0]
        raise SpecError(
            "a stack of products has neither outputs nor operands of C's size",
            got=f"{name!r}, with batch={spec.batch!r}",
            expected="operands that all products share: per row, per column, or one number",
            hint="without batch, and one call for each product",
        )


def _check_types(spec: Gemm) -> None:
    for name in "ab":
        if getattr(spec, name).type not in INPUTS:
            raise SpecError(
                f"{name.upper()} cannot have this type",
                got=getattr(spec, name).type,
                expected=f"one of {', '.join(INPUTS)}",
            )
    for name in ("a", "b", "b2", "c", "d"):
        operand = getattr(spec, name)
        if isinstance(operand, Packed) and name not in ("b", "b2"):
            raise SpecError(f"only B can be packed, not {name.upper()}", hint="tw.Matrix(type)")
        if isinstance(operand, Quantize) and name != "a":
            raise SpecError(
                f"only A is quantized by the kernel, not {name.upper()}",
                hint="tw.Packed(tw.Quantized(...)) for B, whose elements are given so",
            )
    held = accumulator(*spec.factors)
    allowed = _OF_C[held]
    if spec.d is not None and held != "f64":
        allowed = tuple(name for name in TYPES if name not in ("f64", "s64"))
        allowed += ("s64",) if held == "s32" else ()
    if spec.c.type not in allowed:
        raise SpecError(
            "C cannot have this type",
            got=f"c={spec.c.type} with a={spec.a.type}, b={spec.b.type}",
            expected=f"one of {', '.join(allowed)}",
            hint="integers in A and B for sums of 64 bits"
            if spec.c.type == "s64"
            else f"d={spec.c.type!r}: D may have any type",
        )
    given = {field.name: getattr(spec, field.name) for field in fields(spec)}
    check_wide(spec.type, given, {name: given[name].type for name in "abcd" if given[name]})
    if spec.d is not None and (spec.d.type == "f64") != (spec.type == "f64"):
        raise SpecError(
            "D is f64 exactly when A and B are", got=f"d={spec.d.type}, sums in {spec.type}"
        )
    for name in _ZEROS:
        operand = getattr(spec, name[0])
        if getattr(spec, name) is not None and not is_integer(operand.type):
            raise SpecError(
                f"{name} needs integers in {name[0].upper()}", got=f"{name[0]}={operand.type}"
            )


def _check_expressions(spec: Gemm) -> None:
    from .checks import check_leaves, check_names, check_size, check_types

    for expression in spec.expressions:
        check_size(expression)
    check_leaves(spec.expressions, b2=spec.b2 is not None, d=spec.d is not None)
    for expression in spec.expressions:
        check_types(expression, spec.type)
    if spec.b2 not in (None, spec.b):
        raise SpecError(
            "b2 must be of B's type and layout", got=f"b={spec.b}, b2={spec.b2}", expected=spec.b
        )
    if spec.outputs and spec.type == "f64":
        raise SpecError("outputs are f32, and of sums in f64 there are none", got=spec.outputs[0])
    check_names([*(operand.name for operand in spec.named), *dict(spec.outputs)])
