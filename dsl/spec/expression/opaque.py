"""Give expressions the methods of arrays; refuse those that ask for numbers of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from tilewright.errors import SpecAttributeError, SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..types import DTypeLike
from .postop import REGISTRY
from .shapes import Shaped

E = TypeVar("E")

#: Axes of a reduction; None: all.
Axes = int | tuple[int, ...] | None

#: Names of fields that some kinds of expressions have: without the field there is no hint.
_FIELDS = frozenset(("tensor", "type", "shape", "name", "value", "args"))
#: What to write in place of attributes that arrays of numpy and tensors of PyTorch have.
_MEANT = {
    "flatten": "x.reshape(-1)", "ravel": "x.reshape(-1)", "view": "x.reshape(...)",
    "permute": "x.transpose(...)", "squeeze": "x.reshape(...)", "unsqueeze": "x[None]",
    "size": "x.shape", "dtype": "x.astype(type) converts", "dot": "x @ y", "matmul": "x @ y",
    "repeat": "nn.expand(x, shape)",
    "to": "x.astype(type)", "float": "x.astype('f32')", "int": "x.astype('s32')",
    "softmax": "nn.softmax(x)", "amax": "x.max(axis)", "amin": "x.min(axis)",
    "take": "nn.take(x, rows)", "split": "nn.split(x, parts)", "chunk": "nn.split(x, parts)",
    "var": "nn.mean(d * d), where d is x - nn.mean(x, keepdims=True)",
    "std": "tw.sqrt(nn.mean(d * d)), where d is x - nn.mean(x, keepdims=True)",
}  # fmt: skip

#: Functions for numpy's functions and methods of arrays, by numpy's name. Modules of tensors add
#: to them.
METHODS: dict[str, Callable[..., Any]] = {}


class Opaque(Generic[E]):
    """A value without numbers: ``if``, ``float()`` and assignment raise an error."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # The methods that a frozen dataclass defines raise a TypeError for names that are no field.
        if "__setattr__" in vars(cls):
            cls.__setattr__, cls.__delattr__ = Opaque.__setattr__, Opaque.__delattr__  # type: ignore[method-assign]

    @property
    def tensor(self) -> Shaped | None:
        """Type and shape of an expression of tensors; None for numbers and in epilogues."""
        return None

    @spelled(SpecTypeError)
    def astype(self, type: DTypeLike) -> E:
        """Return a tensor rounded to another type.

        Parameters
        ----------
        type : str or numpy type
            The element type. Arithmetic after it is in f32 again, on the rounded numbers.

        Returns
        -------
        Expression
            The rounded tensor.
        """
        found: E = METHODS["astype"](self, type)
        return found

    def __getitem__(self, index: Any) -> E:
        if self.tensor is None:
            raise SpecTypeError(
                "an expression has no parts: it stands for all elements",
                got=f"x[{index!r}]",
                expected="functions of whole tensors: operators, tw.where, tw.exp, nn.max",
            )
        found: E = METHODS["sliced"](self, index)
        return found

    @property
    def T(self) -> E:  # noqa: N802
        """A tensor with its last two axes exchanged."""
        found: E = METHODS["T"](self)
        return found

    @property
    def ndim(self) -> int:
        """The number of axes of a tensor."""
        return 0 if self.tensor is None else len(self.tensor.shape)

    def reshape(self, *shape: Any) -> E:
        """Return a tensor in another shape, in numpy's order; one size may be -1.

        Parameters
        ----------
        *shape : int or Dim
            Sizes. Axes are joined; an axis is cut into its dims and its number.

        Returns
        -------
        Expression
            A view: no element moves.
        """
        found: E = METHODS["reshape"](self, *shape)
        return found

    def transpose(self, *axes: Any) -> E:
        """Return a tensor with its axes in another order; reversed without ``axes``.

        Parameters
        ----------
        *axes : int
            The axis of this tensor that becomes axis 0, 1 and so on.

        Returns
        -------
        Expression
            A view: no element moves.
        """
        found: E = METHODS["transpose"](self, *axes)
        return found

    @spelled(SpecTypeError)
    def swapaxes(self, one: int, other: int) -> E:
        """Return a tensor with two axes exchanged.

        Parameters
        ----------
        one, other : int
            The axes.

        Returns
        -------
        Expression
            A view: no element moves.
        """
        found: E = METHODS["swapaxes"](self, one, other)
        return found

    def clip(self, low: Any, high: Any) -> E:
        """Return ``tw.clip(x, low, high)``.

        Parameters
        ----------
        low, high : float
            The smallest and the largest value.

        Returns
        -------
        Expression
            The limited values.
        """
        found: E = METHODS["clip"](self, low, high)
        return found

    @spelled(SpecTypeError)
    def sum(self, axis: Axes = None, keepdims: bool = False) -> E:
        """Return the sum along axes, as numpy does. ``nn.sum`` has one axis, the last by default.

        Parameters
        ----------
        axis : int or tuple of int, optional
            The axes; all by default. The last one is reduced first.
        keepdims : bool
            True if the axes stay, with size 1.

        Returns
        -------
        Expression
            The sums.
        """
        found: E = METHODS["sum"](self, axis, keepdims=keepdims)
        return found

    @spelled(SpecTypeError)
    def mean(self, axis: Axes = None, keepdims: bool = False) -> E:
        """Return the mean along axes, as numpy does. ``nn.mean`` has one axis, the last by default.

        Parameters
        ----------
        axis : int or tuple of int, optional
            The axes; all by default. The last one is reduced first.
        keepdims : bool
            True if the axes stay, with size 1.

        Returns
        -------
        Expression
            The means.
        """
        found: E = METHODS["mean"](self, axis, keepdims=keepdims)
        return found

    @spelled(SpecTypeError)
    def max(self, axis: Axes = None, keepdims: bool = False) -> E:
        """Return the maximum along axes, as numpy does. ``nn.max`` has one axis.

        Parameters
        ----------
        axis : int or tuple of int, optional
            The axes; all by default. The last one is reduced first.
        keepdims : bool
            True if the axes stay, with size 1.

        Returns
        -------
        Expression
            The maxima.
        """
        found: E = METHODS["max"](self, axis, keepdims=keepdims)
        return found

    @spelled(SpecTypeError)
    def min(self, axis: Axes = None, keepdims: bool = False) -> E:
        """Return the minimum along axes, as numpy does. ``nn.min`` has one axis.

        Parameters
        ----------
        axis : int or tuple of int, optional
            The axes; all by default. The last one is reduced first.
        keepdims : bool
            True if the axes stay, with size 1.

        Returns
        -------
        Expression
            The minima.
        """
        found: E = METHODS["min"](self, axis, keepdims=keepdims)
        return found

    def __bool__(self) -> NoReturn:
        raise SpecError(
            "an expression has no truth value: it stands for every element of D or of a tensor",
            got=self,
            hint="tw.where(condition, x, y) chooses by element; a < b < c is (a < b) & (b < c), "
            "and `and`, `or` and `not` are &, | and ~",
        )

    def __round__(self, digits: int | None = None) -> E:
        if digits is not None:
            _refuse("an expression is rounded to whole numbers", f"round(x, {digits!r})")
        found: E = METHODS["round"](self)
        return found

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        _refuse(
            "an expression cannot be assigned to: it never changes",
            f"x[{index!r}] = ...",
            "tw.where(condition, value, x) is a new value, and so is nn.scatter(x, index, rows)",
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise SpecAttributeError(
            "an expression never changes: it has no attributes to set",
            got=f"x.{name} = ...",
            expected="a new value: y = x * 2",
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise SpecAttributeError("an expression never changes", got=f"del x.{name}")

    def __delitem__(self, index: Any) -> NoReturn:
        _refuse("an expression cannot be assigned to: it never changes", f"del x[{index!r}]")

    def __len__(self) -> int:
        first = self.tensor.shape[0] if self.tensor is not None and self.tensor.shape else None
        if isinstance(first, int):
            return first
        return _refuse(
            "an expression has no length before the kernel runs",
            "len(x)",
            None if first is None else f"nn.extent(x.shape[0]), the size {first.name} as a number",
        )

    def __iter__(self) -> NoReturn:
        _refuse("an expression has no elements to iterate over", "iter(x)", "x[0], or nn.split")

    def __reversed__(self) -> NoReturn:
        _refuse("an expression has no elements to iterate over", "reversed(x)")

    def __contains__(self, value: object) -> NoReturn:
        _refuse("an expression has no elements to iterate over", f"{value!r} in x")

    def __array__(self, *_how: Any, **_named: Any) -> NoReturn:
        _refuse("an expression has no numbers before the kernel runs", "an array of x")

    def __index__(self) -> int:
        return _refuse("an expression has no number before the kernel runs", "x as an index")

    def __complex__(self) -> NoReturn:
        _refuse("an expression has no number before the kernel runs", "complex(x)")

    def __format__(self, form: str) -> str:
        if form:
            _refuse("an expression has no number before the kernel runs", f"{form!r} as a format")
        return repr(self)

    def __mod__(self, other: object) -> NoReturn:
        _refuse("an expression has no %", f"x % {other!r}", "x - y * tw.floor(x / y)")

    def __floordiv__(self, other: object) -> NoReturn:
        _refuse("an expression has no //", f"x // {other!r}", "tw.floor(x / y)")

    def __divmod__(self, other: object) -> NoReturn:
        _refuse("an expression has no divmod", f"divmod(x, {other!r})", "tw.floor(x / y)")

    def __lshift__(self, other: object) -> NoReturn:
        _refuse("an expression has no bits to shift", f"x << {other!r}", "x * 2")

    def __rshift__(self, other: object) -> NoReturn:
        _refuse("an expression has no bits to shift", f"x >> {other!r}", "tw.floor(x / 2)")

    if not TYPE_CHECKING:  # else any name would pass the check of types

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or name in _FIELDS:
                raise AttributeError(name)
            raise SpecAttributeError(
                f"an expression has no attribute {name!r}",
                got=f"x.{name}",
                expected=", ".join(name for name in dir(Opaque) if not name.startswith("_")),
                hint=_MEANT.get(name, f"tw.{name}(x)" if name in REGISTRY else None),
            )

    def __float__(self) -> NoReturn:
        _refuse("an expression has no number before the kernel runs", "float(x)")

    def __int__(self) -> NoReturn:
        _refuse("an expression has no number before the kernel runs", "int(x)")

    def item(self) -> NoReturn:
        """Raise SpecError: a number is known only when the kernel runs."""
        _refuse("an expression has no number before the kernel runs", "x.item()")


def _refuse(problem: str, got: str, hint: str | None = None) -> NoReturn:
    usual = "functions of whole tensors: operators, tw.where, tw.exp, nn.max"
    raise SpecTypeError(problem, got=got, expected=usual, hint=hint)
