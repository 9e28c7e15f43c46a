"""Read and write rows of tensors by integers, as a traced function asks for it."""

from __future__ import annotations

from typing import Any

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..expression.nodes import ARRAY_FUNCTIONS, Expression
from ..expression.shapes import said, together
from ..expression.tensors import Scatter, Take, cast
from ..types import is_integer
from .views import given_shape


@spelled(SpecTypeError)
def take(table: Expression, rows: Expression) -> Expression:
    """Return rows of a table, for example embeddings of tokens.

    A negative number counts from the last row. Numbers beyond the table are those of its first or
    last row.

    Parameters
    ----------
    table : Expression
        A tensor (n, ...), for example a weight.
    rows : Expression
        A tensor of integers: an input of type s32 or s64, or ``x.astype("s32")``.

    Returns
    -------
    Expression
        A tensor of the shape of ``rows``, followed by that of a row.

    Examples
    --------
    >>> net = tw.network(tw.nn.take).of(table=tw.Tensor("f32", (3, 2)), rows=tw.Tensor("s32", 2))
    >>> tw.compile(net)(np.float32([[0, 1], [2, 3], [4, 5]]), np.int32([2, 0]))
    array([[4., 5.], [0., 1.]], dtype=float32)
    """
    shape, numbers = given_shape(table, "nn.take"), given_shape(rows, "nn.take")
    assert rows.tensor is not None
    if not shape or shape[0] == 0 or not is_integer(rows.tensor.type):
        raise SpecError(
            "nn.take is of a table and of integers, the numbers of its rows",
            got=f"a table {said(shape)}, and {rows.tensor.type} of shape {said(numbers)}",
            expected='tw.Tensor("s32", ...), or rows.astype("s32")',
        )
    return Take((table, rows))


@spelled(SpecTypeError)
def scatter_add(base: Expression, index: Expression, rows: Expression) -> Expression:
    """Return a tensor with rows added to its rows: ``np.add.at(base, index, rows)`` on a copy.

    Rows are added one after another, in the order of ``index``. Each sum is computed as ``+`` does,
    in f32 (f64 for f64), and rounded to the type of ``base``: integers are exact below 2**24, and
    saturate. All targets, stages and threads give the same bits. Numbers of rows count as in
    ``take``: from the last row if they are negative, and those beyond the tensor are its first or
    last row. To add rows to zeros, pass ``nn.full(shape, 0)``.

    Parameters
    ----------
    base : Expression
        A tensor (n, ...) of one or more rows. It is not changed.
    index : Expression
        A tensor of integers: an input of type s32 or s64, or ``x.astype("s32")``.
    rows : Expression
        A tensor of the shape of ``index``, followed by that of a row.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``base``.

    Examples
    --------
    >>> base, row = tw.Tensor("f32", 3), tw.Tensor("s32", 2)
    >>> add = tw.network(tw.nn.scatter_add).of(base=base, index=row, rows=tw.Tensor("f32", 2))
    >>> tw.compile(add)(np.float32([0, 10, 20]), np.int32([1, 1]), np.float32([1, 2]))
    array([ 0., 13., 20.], dtype=float32)
    """
    return _scattered("scatter_add", base, index, rows)


@spelled(SpecTypeError)
def scatter(base: Expression, index: Expression, rows: Expression) -> Expression:
    """Return a tensor with rows replaced: ``base[index] = rows`` on a copy.

    For example, new keys are written into a cache of keys. If the result is one of the network's,
    a call may pass the cache itself as ``out``: its other rows are then not copied. The last one of
    several rows with one number stays. Numbers of rows count as in ``take``: from the last row if
    they are negative, and those beyond the tensor are its first or last row.

    Parameters
    ----------
    base : Expression
        A tensor (n, ...) of one or more rows. It is not changed.
    index : Expression
        A tensor of integers: an input of type s32 or s64, or ``x.astype("s32")``.
    rows : Expression
        A tensor of the shape of ``index``, followed by that of a row. It is rounded to the type of
        ``base``.

    Returns
    -------
    Expression
        A tensor of the shape and type of ``base``.

    Examples
    --------
    >>> cache, at = tw.Tensor("f32", (3, 2)), tw.Tensor("s32", 1)
    >>> write = tw.network(tw.nn.scatter).of(base=cache, index=at, rows=tw.Tensor("f32", (1, 2)))
    >>> tw.compile(write)(np.zeros((3, 2), np.float32), np.int32([1]), np.float32([[4, 5]]))
    array([[0., 0.],
           [4., 5.],
           [0., 0.]], dtype=float32)
    """
    return _scattered("scatter", base, index, rows)


def _scattered(fn: str, base: Expression, index: Expression, rows: Expression) -> Expression:
    parts = [given_shape(each, f"nn.{fn}") for each in (base, index, rows)]
    given = [each.tensor for each in (base, index, rows) if each.tensor is not None]
    (n, *row), numbers = parts[0] or (0,), parts[1]
    whole = is_integer(given[1].type) and "s64" not in (given[0].type, given[2].type)
    if n == 0 or not whole or parts[2] != (*numbers, *row):
        raise SpecError(
            f"nn.{fn} is of a tensor, of integers, and of a row for each integer",
            got=", ".join(map(str, given)),
            expected=f"one or more rows, s32 or s64, and rows of shape {said((*numbers, *row))}",
        )
    together(f"nn.{fn}", [given[0]._replace(shape=parts[2]), given[2]])
    return Scatter(fn, (base, index, cast(rows, given[0].type) if fn == "scatter" else rows))


def _taken(x: Any, rows: Any, axis: Any) -> Expression:
    if axis != 0:
        raise SpecError("np.take is along the first axis", got=f"axis={axis!r}", expected="axis=0")
    return take(x, rows)


ARRAY_FUNCTIONS["take"] = _taken
