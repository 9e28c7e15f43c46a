"""Check the expressions of a spec against the rest of the spec, for example against its types."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from tilewright.errors import SpecError

from ..scalars import QUANTITIES, check_finite
from . import Call, Expression, Number, acc2, dst, operands_of, uses, walk, walk_meanings

#: Names that calls of a kernel already use for arguments, so that operands cannot have them.
_TAKEN = (
    "self", "a", "b", "b2", "c", "d", "out", "alpha", "beta", "a_offsets", "b_offsets",
    *QUANTITIES,
)  # fmt: skip


def check_leaves(expressions: Iterable[Expression], *, b2: bool, d: bool) -> None:
    """Raise SpecError if an expression uses ``acc2`` without a B2, ``dst`` without a D, a tensor.

    A B2 whose product no expression uses is refused too.
    """
    given = tuple(expressions)
    for expression in given:
        if expression.tensor is not None:
            raise SpecError(
                "an expression of a product uses a tensor of a network",
                got=expression,
                hint="tw.Operand(name, type, per) is an array of a product",
            )
    gated = any(uses(expression, acc2) for expression in given)
    if gated and not b2:
        raise SpecError(
            "tw.acc2 is the product with a second B, and there is none", hint="b2='f32', as b"
        )
    if b2 and not gated:
        raise SpecError(
            "b2 is given, but no expression uses its product",
            expected="tw.acc2 in the epilogue or in outputs",
            hint="epilogue=tw.silu(tw.acc) * tw.acc2",
        )
    if not d and any(uses(expression, dst) for expression in given):
        raise SpecError(
            "tw.dst is D's old value, and there is no D", hint="d='f32', or beta=1 to read C"
        )


#: Maximum number of nodes in an expression.
MOST_NODES = 10_000


def check_size(expression: Expression) -> None:
    """Raise SpecError if an expression has more than ``MOST_NODES`` nodes."""
    count = sum(1 for _ in walk(expression))
    if count > MOST_NODES:
        raise SpecError(
            "an expression is too large",
            got=f"{count} functions, operands and numbers",
            expected=f"at most {MOST_NODES}",
            hint="e = e + e uses one node twice: what is computed twice need not be written twice",
        )


def check_types(expression: Expression, type_: str) -> None:
    """Raise SpecError unless ``expression`` can be computed with sums of type ``type_``."""
    check_numbers(expression, type_)
    for operand in operands_of(expression):
        if (operand.type == "f64") != (type_ == "f64"):
            raise SpecError(
                f"operand {operand.name!r} must be f64 exactly where the sums are",
                got=f"{operand.type}, with sums in {type_}",
            )
    if type_ == "f64":
        check_functions(expression, type_)


def check_numbers(expression: Expression, type_: str) -> None:
    """Raise SpecError if a finite number in ``expression`` is too large for ``type_``.

    ``type_`` is the type in which the expression is computed.
    """
    for node in walk_meanings(expression):
        if isinstance(node, Number) and math.isfinite(node.value):
            check_finite(node.value, node.value, "a number of an expression", type_)


def check_functions(expression: Expression, element: str) -> None:
    """Raise SpecError if ``expression`` uses a function that cannot be computed in ``element``."""
    for node in walk_meanings(expression) if element == "f64" else walk(expression):
        if not isinstance(node, Call):
            continue
        if element == "s32" and not node.entry.whole:
            raise SpecError(f"{node.fn} is not computed in s32", got=node, expected="+ and - alone")
        if element == "f64" and node.entry.lower and not node.entry.has_f64(node.parameters):
            raise SpecError(
                f"{node.fn} is not computed in f64",
                got=node,
                expected="arithmetic, comparisons, sqrt, and the powers -2, -1, 0.5, 1 to 4",
                hint="with f32 operands it is computed in f32",
            )


@lru_cache(maxsize=256)
def has_functions(expression: Expression, element: str) -> bool:
    """Return True if all functions of ``expression`` are defined for type ``element``."""
    try:
        check_functions(expression, element)
    except SpecError:
        return False
    return True


def check_names(names: Iterable[str]) -> None:
    """Raise SpecError if one of the ``names`` of operands and outputs is reserved or used twice."""
    taken = set(_TAKEN)
    for name in names:
        if name in taken:
            raise SpecError(
                f"the name {name!r} is taken by another argument of the call",
                got=", ".join(sorted(taken)),
                hint="another name for the operand or output",
            )
        taken.add(name)
