"""Refuse what asks an expression for the numbers that only a call of the kernel has."""

from __future__ import annotations

from typing import Any, NoReturn

from tilewright.errors import SpecError, SpecTypeError


class Opaque:
    """A value without numbers: ``if``, ``float()``, ``x[0]`` and assignment raise an error."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise SpecError(
            "an expression has no truth value: it stands for every element of D or of a tensor",
            got=self,
            hint="tw.where(condition, x, y) chooses by element; a < b < c is (a < b) & (b < c), "
            "and `and`, `or` and `not` are &, | and ~",
        )

    def __getitem__(self, index: Any) -> NoReturn:
        _refuse("an expression has no parts: it stands for all elements", f"x[{index!r}]")

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
