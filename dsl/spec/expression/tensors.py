"""Define the nodes of expressions that only tensors have: inputs, reductions, casts, views, joins.

A view is another shape of the same elements: an offset and strides. It moves no elements.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import mul
from typing import Any, ClassVar, Literal

from tilewright.errors import SpecError

from ..sizes import Dim, Size, terms_of, whole_number
from ..types import DTypeLike, TypeName, type_name
from .nodes import ARRAY_FUNCTIONS, Composed, Expression, Number
from .shapes import Shaped, joined, reduced

ReduceFn = Literal["sum", "max", "min"]
ViewFn = Literal["reshape", "transpose", "expand", "slice"]


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
    """The sum, maximum or minimum of the elements along one axis of a tensor.

    Within kernels, ``fn`` may be another function that reduces values.
    """

    fn: str
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


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class View(Composed):
    """The elements of a tensor in another shape.

    ``how`` is the new shape of ``reshape`` and ``expand``, the axes of ``transpose``, and for
    ``slice`` the (first, count, step) of each axis.
    """

    postfix: ClassVar[bool] = True

    fn: ViewFn
    how: tuple[Any, ...]
    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        given = self.args[0].tensor
        assert given is not None, "the functions that make views check this"
        shape = self.how
        if self.fn == "transpose":
            shape = tuple(given.shape[axis] for axis in self.how)
        elif self.fn == "slice":
            shape = tuple(count for _, count, _ in self.how)
        object.__setattr__(self, "tensor", Shaped(given.type, shape))
        object.__setattr__(self, "_hash", hash((*self.shell, self.args)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The function, and its numbers."""
        return self.fn, self.how

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> View:
        """Return the view with these fields and arguments."""
        fn, how = shell
        return View(fn, how, args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the view."""
        if self.fn == "slice":
            given = self.args[0].tensor
            assert given is not None
            pairs = zip(self.how, given.shape, strict=True)
            return f"{args[0]}[{', '.join(_slice_text(part, size) for part, size in pairs)}]"
        if self.fn == "expand":
            return f"nn.expand({args[0]}, {self.how!r})"
        return f"{args[0]}.{self.fn}({self.how!r})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Join(Composed):
    """Tensors one after another along an axis, counted from the first."""

    axis: int
    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        given = [arg.tensor for arg in self.args]
        object.__setattr__(self, "tensor", joined(given, self.axis))
        object.__setattr__(self, "_hash", hash((self.axis, self.args)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The axis."""
        return (self.axis,)

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Join:
        """Return the join with these fields and arguments."""
        (axis,) = shell
        return Join(axis, args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the join."""
        comma = "," * (len(args) == 1)
        return f"nn.concat(({', '.join(args)}{comma}), axis={self.axis})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Take(Composed):
    """Rows of a table, by a tensor of row numbers."""

    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        table, rows = (arg.tensor for arg in self.args)
        assert table is not None and rows is not None, "nn.take checks this"
        found = Shaped(table.type, (*rows.shape, *table.shape[1:]))
        object.__setattr__(self, "tensor", found)
        object.__setattr__(self, "_hash", hash(("take", self.args)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """Nothing: it has its arguments alone."""
        return ()

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Take:
        """Return the rows for these arguments."""
        return Take(args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that takes the rows."""
        return f"nn.take({', '.join(args)})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Scatter(Composed):
    """A tensor in which rows are replaced, or added to; a tensor of integers has their numbers.

    ``fn`` is the function of ``tilewright.nn``: "scatter" or "scatter_add".
    """

    fn: str
    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        base = self.args[0].tensor
        assert base is not None, "nn.scatter checks this"
        object.__setattr__(self, "tensor", base)
        object.__setattr__(self, "_hash", hash((self.fn, self.args)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The function."""
        return (self.fn,)

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Scatter:
        """Return the tensor for these arguments."""
        return Scatter(shell[0], args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that replaces or adds the rows."""
        return f"nn.{self.fn}({', '.join(args)})"


@dataclass(frozen=True, slots=True, repr=False)
class Full(Expression):
    """A tensor of f32 or f64 whose elements are all one number."""

    value: float
    shape: tuple[Size, ...]
    type: TypeName = "f32"

    @property
    def tensor(self) -> Shaped:
        """Type and shape."""
        return Shaped(self.type, self.shape)

    @property
    def number(self) -> Number:
        """The number."""
        return Number(self.value)

    def __repr__(self) -> str:
        return f"nn.full({self.shape!r}, {self.number!r}{_type_text(self.type)})"


@dataclass(frozen=True, slots=True, repr=False)
class Count(Expression):
    """The numbers 0, 1, 2 and so on: a tensor of f32 or f64 with one axis."""

    size: Size
    type: TypeName = "f32"

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape."""
        return (self.size,)

    @property
    def tensor(self) -> Shaped:
        """Type and shape."""
        return Shaped(self.type, (self.size,))

    def __repr__(self) -> str:
        return f"nn.arange({self.size!r}{_type_text(self.type)})"


def _type_text(type_: TypeName) -> str:
    return "" if type_ == "f32" else f", type={type_!r}"


def _slice_text(part: tuple[int, Size, int], size: Size) -> str:
    first, count, step = part
    if (first, count, step) == (0, size, 1):
        return ":"
    assert not isinstance(count, Dim)
    stop = first + (count - 1) * step + 1 if count else first
    return f"{first}:{stop}" + (f":{step}" if step != 1 else "")


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
    return extent_of(x.tensor.shape[axis])


def extent_of(length: Size) -> Expression:
    """Return a size as a number of an expression."""
    number, dims = terms_of(length)
    found: Expression = Number(number)
    for each in dims:
        found = Extent(each) if found == Number(1) else found * Extent(each)
    return found


def mean(x: Any, axis: Any = -1, keepdims: bool = False) -> Expression:
    """Return the mean of ``x`` along one axis: the sum, divided by the number of elements."""
    total = reduction("sum", x, axis, keepdims)
    return total / size(x, total.axis)  # type: ignore[attr-defined]


def _of_numpy(fn: ReduceFn, x: Any, axis: Any = None, *, keepdims: bool = False) -> Expression:
    """Return numpy's reduction along one axis, several or all (None), the last one first."""
    if axis is not None and not isinstance(axis, tuple):
        return reduction(fn, x, axis, keepdims)
    for one in _axes(fn, x, axis):
        x = reduction(fn, x, one, keepdims)
    return x  # type: ignore[no-any-return]


def _axes(fn: str, x: Any, given: tuple[Any, ...] | None) -> list[int]:
    """Return axes of ``x``, counted from the first, in descending order."""
    count = x.ndim if isinstance(x, Expression) else 0
    axes = list(range(count)) if given is None else [whole_number(axis) for axis in given]
    found = {axis % count for axis in axes if axis is not None and -count <= axis < count}
    if len(found) < len(axes) or not count:
        raise SpecError(
            f"nn.{fn} reduces axes of a tensor, each once",
            got=f"axis={given!r} of {x!r}",
            expected=f"{-count} to {count - 1}" if count else "a tensor with axes",
        )
    return sorted(found, reverse=True)


def _mean_of_numpy(x: Any, axis: Any = None, *, keepdims: bool = False) -> Expression:
    if axis is not None and not isinstance(axis, tuple):
        return mean(x, axis, keepdims)
    total = _of_numpy("sum", x, axis, keepdims=keepdims)
    sizes = [size(x, one) for one in _axes("mean", x, axis)]
    return total / reduce(mul, sizes)


ARRAY_FUNCTIONS["astype"] = cast
ARRAY_FUNCTIONS["mean"] = _mean_of_numpy
ARRAY_FUNCTIONS["sum"] = partial(_of_numpy, "sum")
ARRAY_FUNCTIONS["max"] = ARRAY_FUNCTIONS["amax"] = partial(_of_numpy, "max")
ARRAY_FUNCTIONS["min"] = ARRAY_FUNCTIONS["amin"] = partial(_of_numpy, "min")
