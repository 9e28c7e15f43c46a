"""Give expressions the methods of arrays; refuse those that ask for numbers of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

from tilewright.errors import SpecError, SpecTypeError

from ..types import DTypeLike
from .shapes import Shaped

E = TypeVar("E")

#: Functions for numpy's functions and methods of arrays, by numpy's name. Modules of tensors add
#: to them.
METHODS: dict[str, Callable[..., Any]] = {}


class Opaque(Generic[E]):
    """A value without numbers: ``if``, ``float()`` and assignment raise an error."""

    __slots__ = ()

    @property
    def tensor(self) -> Shaped | None:
        """Type and shape of an expression of tensors; None for numbers and in epilogues."""
        return None

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

    def sum(self, axis: int, keepdims: bool = False) -> E:
        """Return the sum along an axis, as ``nn.sum`` does.

        Parameters
        ----------
        axis : int
            The axis.
        keepdims : bool
            True if the axis stays, with size 1.

        Returns
        -------
        Expression
            The sums.
        """
        found: E = METHODS["sum"](self, axis, keepdims=keepdims)
        return found

    def mean(self, axis: int, keepdims: bool = False) -> E:
        """Return the mean along an axis, as ``nn.mean`` does.

        Parameters
        ----------
        axis : int
            The axis.
        keepdims : bool
            True if the axis stays, with size 1.

        Returns
        -------
        Expression
            The means.
        """
        found: E = METHODS["mean"](self, axis, keepdims)
        return found

    def max(self, axis: int, keepdims: bool = False) -> E:
        """Return the maximum along an axis, as ``nn.max`` does.

        Parameters
        ----------
        axis : int
            The axis.
        keepdims : bool
            True if the axis stays, with size 1.

        Returns
        -------
        Expression
            The maxima.
        """
        found: E = METHODS["max"](self, axis, keepdims=keepdims)
        return found

    def min(self, axis: int, keepdims: bool = False) -> E:
        """Return the minimum along an axis, as ``nn.min`` does.

        Parameters
        ----------
        axis : int
            The axis.
        keepdims : bool
            True if the axis stays, with size 1.

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

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        _refuse(
            "an expression cannot be assigned to: it never changes",
            f"x[{index!r}] = ...",
            "tw.where(condition, value, x) is a new value; out= of the call says where it goes",
        )

    def __iter__(self) -> NoReturn:
        _refuse("an expression has no elements to iterate over", "iter(x)")

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
