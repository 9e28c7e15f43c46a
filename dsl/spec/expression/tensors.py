"""Define the nodes of expressions that only tensors have: inputs, reductions, casts, extents."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from tilewright.errors import SpecError

from ..sizes import Dim, Size, whole_number
from ..types import DTypeLike, TypeName, type_name
from .nodes import ARRAY_FUNCTIONS, Composed, Expression, Number
from .shapes import Shaped, reduced

ReduceFn = Literal["sum", "max", "min"]


@dataclass(frozen=True, slots=True, repr=False)
class Input(Expression):
    """A tensor that a call passes: its name, type, shape, and strides in elements (None: tight)."""

    name: str
    type: TypeName
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None = None

    @property
    def tensor(self) -> Shaped:
        """Type and shape."""
        return Shaped(self.type, self.shape)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, repr=False)
class Extent(Expression):
    """The value of a size that is known only at the call, as a number of an expression."""

    dim: Dim

    def __repr__(self) -> str:
        return f"nn.extent({self.dim!r})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Reduce(Composed):
    """The sum, maximum or minimum of the elements along one axis of a tensor."""

    fn: ReduceFn
    axis: int
    keepdims: bool
    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        found = reduced(self.fn, self.args[0].tensor, self.axis, self.keepdims)
        object.__setattr__(self, "tensor", found)
        object.__setattr__(self, "_hash", hash((*self.shell, self.args)))

    @property
    def along(self) -> Size:
        """The size of the axis that is reduced."""
        given = self.args[0].tensor
        assert given is not None
        return given.shape[self.axis]

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The function, the axis, and whether the axis is kept."""
        return self.fn, self.axis, self.keepdims

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Reduce:
        """Return the reduction with these fields and arguments."""
        fn, axis, keepdims = shell
        return Reduce(fn, axis, keepdims, args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the reduction."""
        axis = "" if self.axis == -1 else f", axis={self.axis}"
        return f"nn.{self.fn}({args[0]}{axis}{', keepdims=True' if self.keepdims else ''})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Cast(Composed):
    """A tensor rounded to another type, to nearest even; integers saturate, and NaN becomes 0.

    Within the epilogue that a product of a network gets, it is of one element.
    """

    postfix: ClassVar[bool] = True

    type: TypeName
    args: tuple[Expression, ...]
    tensor: Shaped | None = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        given = self.args[0].tensor
        if given is not None and (given.type == "f64") != (self.type == "f64"):
            raise SpecError(
                "f64 is not converted to other types, nor they to f64",
                got=f"{given} to {self.type}",
            )
        found = None if given is None else Shaped(self.type, given.shape)
        object.__setattr__(self, "tensor", found)
        object.__setattr__(self, "_hash", hash((self.type, self.args)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The type."""
        return (self.type,)

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Cast:
        """Return the cast with these fields and arguments."""
        (type_,) = shell
        return Cast(type_, args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the cast."""
        return f"{args[0]}.astype({self.type!r})"


def cast(x: Expression, type: DTypeLike) -> Expression:
    """Return ``x`` as another type; ``x`` itself if it has that type."""
    wanted = type_name(type)
    if wanted == "s64":
        raise SpecError("tensors of s64 are not computed with", got=wanted, hint="s32")
    if x.tensor is None:
        raise SpecError("a cast is of a tensor", got=x, expected="x.astype('bf16')")
    return x if x.tensor.type == wanted else Cast(wanted, (x,))


def reduction(fn: ReduceFn, x: Any, axis: Any = -1, keepdims: bool = False) -> Expression:
    """Return the reduction ``fn`` of ``x`` along one axis, the last by default."""
    if not isinstance(x, Expression):
        raise SpecError(f"nn.{fn} reduces tensors", got=type(x).__name__)
    along = whole_number(axis)
    shape = x.tensor.shape if x.tensor is not None else ()
    if along is None:
        raise SpecError(
            f"nn.{fn} reduces one axis", got=f"axis={axis!r}", expected="an int, such as -1 or 0"
        )
    if 0 <= along < len(shape):
        along -= len(shape)  # one number for each axis, so that equal reductions are equal
    return Reduce(fn, along, bool(keepdims), (x,))


def size(x: Expression, axis: int) -> Expression:
    """Return the length of an axis of ``x``: a number, or an ``Extent`` of the call."""
    assert x.tensor is not None
    length = x.tensor.shape[axis]
    return Extent(length) if isinstance(length, Dim) else Number(length)


def mean(x: Any, axis: Any = -1, keepdims: bool = False) -> Expression:
    """Return the mean of ``x`` along one axis: the sum, divided by the number of elements."""
    total = reduction("sum", x, axis, keepdims)
    return total / size(x, total.axis)  # type: ignore[attr-defined]


def _of_numpy(fn: ReduceFn, x: Any, axis: Any = None, keepdims: bool = False) -> Expression:
    return reduction(fn, x, axis, keepdims)


ARRAY_FUNCTIONS["astype"] = cast
ARRAY_FUNCTIONS["mean"] = mean
ARRAY_FUNCTIONS["sum"] = partial(_of_numpy, "sum")
ARRAY_FUNCTIONS["max"] = ARRAY_FUNCTIONS["amax"] = partial(_of_numpy, "max")
ARRAY_FUNCTIONS["min"] = ARRAY_FUNCTIONS["amin"] = partial(_of_numpy, "min")
