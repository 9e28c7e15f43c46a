"""Define the nodes of networks with products: weights, and products of two tensors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tilewright.errors import SpecError

from ..types import TypeName
from .nodes import Composed, Expression
from .opaque import ARRAY_FUNCTIONS
from .shapes import Shaped, multiplied


@dataclass(frozen=True, slots=True, repr=False)
class Weight(Expression):
    """An array that ``pack`` takes once: its namespace, its name in it, its type and shape."""

    space: str
    key: str
    type: TypeName
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the weight's array in C and in a call, for example ``w_up``."""
        return f"{self.space}_{self.key}"

    @property
    def tensor(self) -> Shaped:
        """Type and shape."""
        return Shaped(self.type, self.shape)

    def __repr__(self) -> str:
        return f"{self.space}.{self.key}"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Product(Composed):
    """The product of tensors (..., m, k) and (..., k, n), in f32; leading axes broadcast."""

    infix: ClassVar[str] = "@"

    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        x, w = self.args
        if x.tensor is None or w.tensor is None:
            raise SpecError(
                "a product is of two tensors",
                got=f"{x!r} @ {w!r}",
                expected='x @ w.up, with w={"up": array} in of(...)',
            )
        object.__setattr__(self, "tensor", multiplied(x.tensor, w.tensor, f"{x!r} @ {w!r}"))
        object.__setattr__(self, "_hash", hash(("product", self.args)))

    @property
    def weight(self) -> Weight | None:
        """The second operand if it is a weight, which is packed once; else None."""
        weight = self.args[1]
        return weight if isinstance(weight, Weight) and len(weight.shape) == 2 else None

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """Nothing: a product has its arguments alone."""
        return ()

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Product:
        """Return the product of these arguments."""
        return Product(args)


def product(x: Any, w: Any) -> Expression:
    """Return the product of two tensors; a tensor with one axis is a row, or a column."""
    for each in (x, w):
        if not isinstance(each, Expression) or each.tensor is None:
            raise SpecError(
                "a product is of two tensors",
                got=type(each).__name__,
                expected='x @ w.up, with w={"up": array} in of(...)',
            )
    row, column = (len(each.tensor.shape) == 1 for each in (x, w))
    reshape = ARRAY_FUNCTIONS["reshape"]
    left = reshape(x, (1, *x.tensor.shape)) if row else x
    right = reshape(w, (*w.tensor.shape, 1)) if column else w
    found = Product((left, right))
    shape = found.tensor.shape
    kept = (*shape[:-2], *shape[-2 + row : len(shape) - column])
    return reshape(found, kept) if row or column else found


ARRAY_FUNCTIONS["matmul"] = product
