"""Define the leaves of an epilogue: sums, D's old value, and operands that a call passes by name.

A row program has leaves of its own, its tensors (``tensors.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..names import check_name
from ..types import DTypeLike, TypeName, is_integer, type_name
from .nodes import Call, Expression, Number, walk

Per = Literal["column", "row", "full"]


@dataclass(frozen=True, slots=True, repr=False)
class Leaf(Expression):
    """A value that the kernel itself supplies: ``acc``, ``acc2`` or ``dst``."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in ("acc", "acc2", "dst"):
            raise SpecError(
                "a kernel supplies no such value",
                got=self.name,
                expected="tw.acc, tw.acc2 or tw.dst",
                hint="what is passed at the call is a tw.Operand",
            )

    def __repr__(self) -> str:
        return self.name


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, repr=False)
class Operand(Expression):
    """A named argument of the call: one value, or one for each column, row or element of D.

    In Python it is passed by ``name``. In C its parameter is ``name`` with "_" appended, for
    example ``bias_`` for "bias".

    Parameters
    ----------
    name : str
        An identifier; keywords of C, C++ and Python, and names that C reserves, are refused.
    type : str or numpy type
        Element type.
    per : {"column", "row", "full", "element"}, optional
        Values for each column (n,), row (m,) or element (m, n) of D; None is one value. "element"
        means "full".

    Raises
    ------
    SpecError
        The name or type is not possible.

    Examples
    --------
    >>> bias = tw.Operand("bias", "f32", per="column")
    >>> kernel = tw.compile(tw.Gemm(2, 3, 4, epilogue=tw.acc + bias))
    >>> a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    >>> kernel(a, b, bias=np.float32([0, 10, 20]))
    array([[ 4., 14., 24.], [ 4., 14., 24.]], dtype=float32)
    """

    name: str
    type: TypeName
    per: Per | None

    def __init__(
        self, name: str, type: DTypeLike = "f32", per: Per | Literal["element"] | None = None
    ) -> None:
        check_name(name, "an operand")
        text = per is None or isinstance(per, str)
        named = "full" if text and per == "element" else per
        if not text or named not in (None, *get_args(Per)):
            raise SpecError(
                f"operand {name!r}: per says which elements of D have a value of their own",
                got=per,
                expected="None (one value for all), 'column', 'row' or 'full'",
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", _computed_with(name, type))
        object.__setattr__(self, "per", named)

    def __repr__(self) -> str:
        per = "" if self.per is None else f", per={self.per!r}"
        return f"Operand({self.name!r}, {self.type!r}{per})"


def _computed_with(name: str, type_: DTypeLike) -> TypeName:
    """Return the type of operand ``name``; SpecError for s64, which expressions cannot use."""
    found = type_name(type_)
    if found == "s64":
        raise SpecError(
            f"operand {name!r} cannot have this type",
            got=found,
            expected="a type that is converted to that of the expression",
            hint="s32, or f64 where sums are",
        )
    return found


acc: Leaf = Leaf("acc")
acc2: Leaf = Leaf("acc2")
dst: Leaf = Leaf("dst")


def operands_of(*expressions: Expression) -> tuple[Operand, ...]:
    """Return the operands of ``expressions``, sorted by name.

    SpecError if two operands with the same name differ.
    """
    found: dict[str, Operand] = {}
    for expression in expressions:
        for node in walk(expression):
            if isinstance(node, Operand) and found.setdefault(node.name, node) != node:
                raise SpecError(
                    f"operand {node.name!r} is declared twice with different properties",
                    got=f"{found[node.name]} and {node}",
                    hint="make one tw.Operand and use it in both places",
                )
    return tuple(found[name] for name in sorted(found))


def uses(expression: Expression, leaf: Leaf) -> bool:
    """Return True if ``leaf`` (``acc``, ``acc2`` or ``dst``) occurs in ``expression``."""
    return any(node == leaf for node in walk(expression))


def is_integer_additions(expression: Expression) -> bool:
    """Return True if ``expression`` only adds and subtracts products, D and integers.

    Such an expression can be computed in s32, modulo 2**32.
    """
    for node in walk(expression):
        match node:
            case Leaf():
                whole = True
            case Number(value):
                whole = -(2.0**31) <= value < 2.0**31 and value.is_integer()
            case Operand():
                whole = is_integer(node.type)
            case _:
                whole = isinstance(node, Call) and node.entry.whole
        if not whole:
            return False
    return True
