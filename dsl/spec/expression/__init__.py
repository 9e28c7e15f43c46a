"""Expressions of epilogues: their nodes, and the functions that they may use.

A new function needs an entry in one of the modules here, and its name in that module's ``__all__``.
"""

from . import (
    activations,
    arithmetic,
    comparisons,
    exponential,
    gaussian,
    logarithm,
    products,
    tensors,
    trigonometry,
)
from .define import apply, postop
from .leaves import Leaf, Operand, Per, acc, acc2, dst, is_integer_additions, operands_of, uses
from .nodes import (
    Call,
    Composed,
    Expression,
    Number,
    Term,
    as_expression,
    call,
    parameter,
    walk,
    walk_meanings,
)
from .postop import REGISTRY, Arithmetic, Compared, Monotone, PostOp, Truth, Within

#: The modules that define tilewright's functions of epilogues, for example relu.
FAMILIES = (arithmetic, comparisons, activations, exponential, logarithm, gaussian, trigonometry)
__all__ = [
    "FAMILIES",
    "REGISTRY",
    "Arithmetic",
    "Call",
    "Compared",
    "Composed",
    "Expression",
    "Leaf",
    "Monotone",
    "Number",
    "Operand",
    "Per",
    "PostOp",
    "Term",
    "Truth",
    "Within",
    "acc",
    "acc2",
    "apply",
    "as_expression",
    "call",
    "dst",
    "is_integer_additions",
    "operands_of",
    "parameter",
    "postop",
    "products",
    "tensors",
    "uses",
    "walk",
    "walk_meanings",
]
