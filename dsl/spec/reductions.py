"""Outputs besides the matrix: the maximum or sum of an expression along each row of C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .expression import Expression, Term, as_expression
from .names import check_name

__all__ = ["row_absmax", "row_max", "row_sum"]

Outputs = tuple[tuple[str, "RowReduction"], ...]


@dataclass(frozen=True, slots=True, repr=False)
class RowReduction:
    """A further output of a kernel: one f32 for each row of C, reduced from an expression."""

    fn: Literal["row_max", "row_sum", "row_absmax"]
    expression: Expression

    def __repr__(self) -> str:
        return f"{self.fn}({self.expression!r})"


@spelled(SpecTypeError)
def row_max(expression: Term) -> RowReduction:
    """Reduce each row to its largest value, for ``Gemm(outputs=...)``.

    Parameters
    ----------
    expression : Expression or float
        The values.

    Returns
    -------
    RowReduction
        -Inf for a row without elements; NaN if a value is NaN.

    Examples
    --------
    >>> spec = tw.Gemm(2, 3, 1, outputs={"top": tw.row_max(tw.acc)})
    >>> top = np.empty(2, np.float32)
    >>> product = tw.compile(spec)(np.float32([[1], [-1]]), np.float32([[1, 2, 3]]), top=top)
    >>> top
    array([ 3., -1.], dtype=float32)
    """
    return RowReduction("row_max", as_expression(expression))


@spelled(SpecTypeError)
def row_sum(expression: Term) -> RowReduction:
    """Reduce each row to its sum in f32, in any order, for ``Gemm(outputs=...)``.

    Parameters
    ----------
    expression : Expression or float
        The values.

    Returns
    -------
    RowReduction
        0 for a row without elements.

    Examples
    --------
    >>> spec = tw.Gemm(2, 3, 1, outputs={"total": tw.row_sum(tw.acc)})
    >>> total = np.empty(2, np.float32)
    >>> product = tw.compile(spec)(np.float32([[1], [-1]]), np.float32([[1, 2, 3]]), total=total)
    >>> total
    array([ 6., -6.], dtype=float32)
    """
    return RowReduction("row_sum", as_expression(expression))


@spelled(SpecTypeError)
def row_absmax(expression: Term) -> RowReduction:
    """Reduce each row to its largest magnitude, for ``Gemm(outputs=...)``.

    Parameters
    ----------
    expression : Expression or float
        The values.

    Returns
    -------
    RowReduction
        0 for a row without elements; NaN if a value is NaN.

    Examples
    --------
    >>> spec = tw.Gemm(2, 3, 1, outputs={"amax": tw.row_absmax(tw.acc)})
    >>> amax = np.empty(2, np.float32)
    >>> product = tw.compile(spec)(np.float32([[1], [-1]]), np.float32([[1, 2, 3]]), amax=amax)
    >>> amax
    array([3., 3.], dtype=float32)
    """
    return RowReduction("row_absmax", as_expression(expression))


def as_outputs(given: Any) -> Outputs:
    """Return the argument ``outputs`` as pairs (name, reduction), sorted by name; () for None."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise SpecError(
            "outputs are given by name", got=given, hint="outputs={'amax': tw.row_absmax(tw.acc)}"
        )
    for name, reduction in given.items():
        check_name(name, "an output")
        if not isinstance(reduction, RowReduction):
            raise SpecError(
                f"output {name!r} is no reduction",
                got=reduction,
                expected="tw.row_max, tw.row_sum or tw.row_absmax of an expression",
            )
    return tuple(sorted(given.items()))
