"""Define the nodes of networks with products: weights, and the product of a tensor and a weight."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tilewright.errors import SpecError

from ..types import TypeName
from .nodes import ARRAY_FUNCTIONS, Composed, Expression
from .shapes import Shaped, said


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
    """The product of a tensor (rows, k) and a weight (k, n), in f32."""

    infix: ClassVar[str] = "@"

    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        x, w = self.args
        if x.tensor is None or not isinstance(w, Weight):
            raise SpecError(
                "a product is of a tensor and a weight",
                got=f"{x!r} @ {w!r}",
                expected='x @ w.up, with w={"up": array} in of(...)',
            )
        for name, each in (("x", x.tensor), ("the weight", w.tensor)):
            if each.type != "f32" or len(each.shape) != 2:
                raise SpecError(
                    f"{name} of a product has two axes and type f32",
                    got=f"{each} in {x!r} @ {w!r}",
                    expected="x: (rows, k), the weight: (k, n)",
                    hint='x.astype("f32")' if len(each.shape) == 2 else None,
                )
        if x.tensor.shape[1] != w.shape[0]:
            raise SpecError(
                "the columns of x are not the rows of the weight",
                got=f"{said(x.tensor.shape)} @ {said(w.shape)} in {x!r} @ {w!r}",
                expected="(rows, k) @ (k, n)",
                hint=f"the transposed weight {w!r}" if x.tensor.shape[1] == w.shape[1] else None,
            )
        found = Shaped("f32", (x.tensor.shape[0], w.shape[1]))
        object.__setattr__(self, "tensor", found)
        object.__setattr__(self, "_hash", hash(("product", self.args)))

    @property
    def weight(self) -> Weight:
        """The second operand."""
        weight = self.args[1]
        assert isinstance(weight, Weight)
        return weight

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """Nothing: a product has its arguments alone."""
        return ()

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Product:
        """Return the product of these arguments."""
        return Product(args)


def product(x: Any, w: Any) -> Expression:
    """Return the product of a tensor and a weight."""
    for each in (x, w):
        if not isinstance(each, Expression):
            raise SpecError(
                "a product is of a tensor and a weight",
                got=type(each).__name__,
                expected='x @ w.up, with w={"up": array} in of(...)',
            )
    return Product((x, w))


ARRAY_FUNCTIONS["matmul"] = product
