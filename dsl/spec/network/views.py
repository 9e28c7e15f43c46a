"""Make views of tensors, joins, and constant tensors, as a traced function asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..expression.nodes import ARRAY_FUNCTIONS, Expression, Number, as_expression
from ..expression.shapes import grouped, said
from ..expression.tensors import Count, Full, Join, View, cast
from ..sizes import Dim, Size, joined_size, terms_of, whole_number
from ..types import DTypeLike, TypeName, type_name


def given_shape(x: Any, fn: str) -> tuple[Size, ...]:
    """Return the shape of ``x``; SpecError if it is no tensor."""
    if not isinstance(x, Expression) or x.tensor is None:
        raise SpecError(
            f"{fn} is of tensors", got=x if isinstance(x, Expression) else type(x).__name__
        )
    return x.tensor.shape


def reshape(x: Any, *shape: Any) -> Expression:
    """Return ``x`` in another shape, in numpy's order; one size may be -1."""
    old = given_shape(x, "reshape")
    new = _completed(old, list(_several(shape)), x)
    grouped(old, new)
    made: Expression = x
    while isinstance(made, View) and made.fn == "reshape":
        (made,) = made.args
    return made if new == given_shape(made, "reshape") else View("reshape", new, (made,))


def transpose(x: Any, *axes: Any) -> Expression:
    """Return ``x`` with its axes in another order; reversed without ``axes``."""
    count = len(given_shape(x, "transpose"))
    given = _several(axes)
    order = tuple(range(count))[::-1] if given in ((), (None,)) else _axes(given, count, x)
    made: Expression = x
    if isinstance(made, View) and made.fn == "transpose":
        return transpose(made.args[0], tuple(made.how[axis] for axis in order))
    return made if order == tuple(range(count)) else View("transpose", order, (made,))


def swapped(x: Any) -> Expression:
    """Return ``x`` with its last two axes exchanged."""
    count = len(given_shape(x, "T"))
    order = list(range(count))
    order[-2:] = order[-2:][::-1]
    return transpose(x, tuple(order))


def swapaxes(x: Any, one: Any, other: Any) -> Expression:
    """Return ``x`` with two axes exchanged."""
    count = len(given_shape(x, "swapaxes"))
    first, second = (_axis(axis, count, x) for axis in (one, other))
    order = list(range(count))
    order[first], order[second] = second, first
    return transpose(x, tuple(order))


@spelled(SpecTypeError)
def expand(x: Expression, shape: Sequence[Size]) -> Expression:
    """Return ``x`` broadcast to a shape: a view, no element moves.

    Parameters
    ----------
    x : Expression
        A tensor.
    shape : sequence of int or Dim
        The shape.

    Returns
    -------
    Expression
        The broadcast tensor.

    Examples
    --------
    >>> rows = tw.network(lambda x: tw.nn.expand(x, (2, 2)))
    >>> tw.compile(rows.of(x=tw.Tensor("f32", 2)))(np.float32([1, 5]))
    array([[1., 5.], [1., 5.]], dtype=float32)
    """
    old, new = given_shape(x, "expand"), _several((shape,))
    fits = len(new) >= len(old) and all(
        size in (1, wide) for size, wide in zip(old[::-1], new[::-1], strict=False)
    )
    if not fits or not all(isinstance(size, Dim) or _is_size(size) for size in new):
        raise SpecError(
            "a tensor cannot be broadcast to this shape",
            got=f"{said(old)} to {new}",
            expected="sizes that are equal, or 1, counted from the last axis",
        )
    return x if new == old else View("expand", _sizes(new, "nn.expand"), (x,))


def sliced(x: Any, index: Any) -> Expression:
    """Return a part of ``x``: numpy's ``x[...]`` of ints, slices, None and ``...``."""
    old = given_shape(x, "an index")
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    if taken > len(old) or sum(part is Ellipsis for part in parts) > 1:
        raise SpecError("there are more indices than axes", got=f"{len(parts)}", expected=said(old))
    rest: list[Any] = [slice(None)] * (len(old) - taken)
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    at = next(number for number, part in enumerate(parts) if part is Ellipsis)
    parts[at : at + 1] = rest
    how: list[tuple[int, Size, int]] = []
    shape: list[Size] = []
    axis = 0
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        how.append(_range(part, old[axis], x))
        if isinstance(part, slice):
            shape.append(how[-1][1])
        axis += 1
    whole = all(one == (0, size, 1) for one, size in zip(how, old, strict=True))
    found = x if whole else View("slice", tuple(how), (x,))
    return reshape(found, tuple(shape))


@spelled(SpecTypeError)
def split(x: Expression, parts: int, axis: int = -1) -> tuple[Expression, ...]:
    """Return equal parts of ``x`` along an axis: views, no element moves.

    Parameters
    ----------
    x : Expression
        A tensor.
    parts : int
        The number of parts. It divides the size of the axis.
    axis : int
        The axis, of fixed size.

    Returns
    -------
    tuple of Expression
        The parts.

    Examples
    --------
    >>> @tw.network
    ... def product(x):
    ...     one, other = tw.nn.split(x, 2)
    ...     return one * other
    >>> tw.compile(product.of(x=tw.Tensor("f32", (1, 4))))(np.float32([[1, 2, 3, 4]]))
    array([[3., 8.]], dtype=float32)
    """
    shape = given_shape(x, "nn.split")
    at, count = _axis(axis, len(shape), x), whole_number(parts)
    size = shape[at]
    if count is None or count < 1 or isinstance(size, Dim) or size % count:
        raise SpecError(
            "nn.split cuts an axis into equal parts",
            got=f"{parts!r} parts of axis {at}: {said(shape)}",
            expected="a number of parts that divides a fixed size",
        )
    each = size // count
    cuts = (slice(part * each, (part + 1) * each) for part in range(count))
    return tuple(sliced(x, (*[slice(None)] * at, cut)) for cut in cuts)


@spelled(SpecTypeError)
def concat(tensors: Sequence[Expression], axis: int = 0) -> Expression:
    """Return tensors one after another along an axis.

    Parameters
    ----------
    tensors : sequence of Expression
        They agree in all other axes, and in type.
    axis : int
        The axis, of fixed size in each.

    Returns
    -------
    Expression
        The joined tensor.

    Examples
    --------
    >>> twice = tw.network(lambda x: tw.nn.concat((x, x + 1), axis=1))
    >>> tw.compile(twice.of(x=tw.Tensor("f32", (1, 2))))(np.float32([[1, 5]]))
    array([[1., 5., 2., 6.]], dtype=float32)
    """
    given = list(tensors)
    if not given:
        raise SpecError("nn.concat joins tensors", got="none", expected="one or more")
    count = len(given_shape(given[0], "nn.concat"))
    at = _axis(axis, count, given[0])
    for one in given:
        given_shape(one, "nn.concat")
    return given[0] if len(given) == 1 else Join(at, tuple(given))


@spelled(SpecTypeError)
def pad(x: Expression, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Expression:
    """Return ``x`` with more elements before and after it.

    Parameters
    ----------
    x : Expression
        A tensor.
    widths : sequence of (int, int)
        Elements before and after, for each axis; (0, 0) for an axis of the call's size.
    value : float
        The new elements.

    Returns
    -------
    Expression
        The larger tensor.

    Examples
    --------
    >>> wider = tw.network(lambda x: tw.nn.pad(x, ((0, 0), (1, 1))))
    >>> tw.compile(wider.of(x=tw.Tensor("f32", (1, 2))))(np.float32([[1, 5]]))
    array([[0., 1., 5., 0.]], dtype=float32)
    """
    shape = given_shape(x, "nn.pad")
    try:
        sides = [[whole_number(side) for side in pair] for pair in widths]
    except TypeError:
        sides = []
    if len(sides) != len(shape) or any(
        len(pair) != 2 or any(side is None or side < 0 for side in pair) for pair in sides
    ):
        raise SpecError(
            "nn.pad has (before, after) for each axis",
            got=widths,
            expected=f"{len(shape)} pairs of ints, 0 or more",
            hint="x[1:-1] removes elements",
        )
    assert x.tensor is not None
    made: Expression = x
    real: TypeName = "f64" if x.tensor.type == "f64" else "f32"
    for axis, pair in enumerate(sides):
        if pair == [0, 0]:
            continue
        around = [
            full((*given_shape(made, "nn.pad")[:axis], side or 0, *shape[axis + 1 :]), value, real)
            for side in pair
        ]
        around = [cast(each, x.tensor.type) for each in around]
        made = concat([each for each in (around[0], made, around[1]) if _has(each, axis)], axis)
    return made


def _has(x: Expression, axis: int) -> bool:
    assert x.tensor is not None
    return x.tensor.shape[axis] != 0


@spelled(SpecTypeError)
def full(shape: Sequence[Size], value: float, type: DTypeLike = "f32") -> Expression:
    """Return a tensor whose elements are all one number.

    Parameters
    ----------
    shape : sequence of int or Dim
        The shape.
    value : float
        The number.
    type : str or numpy type
        "f32", or "f64" for networks of f64.

    Returns
    -------
    Expression
        The tensor.

    Examples
    --------
    >>> led = tw.network(lambda x: tw.nn.concat((tw.nn.full((1,), 7), x)))
    >>> tw.compile(led.of(x=tw.Tensor("f32", 2)))(np.float32([1, 5]))
    array([7., 1., 5.], dtype=float32)
    """
    number = as_expression(value)
    if not isinstance(number, Number):
        raise SpecError("nn.full is of a number", got=value)
    return Full(number.value, _sizes(_several((shape,)), "nn.full"), _real(type, "nn.full"))


@spelled(SpecTypeError)
def arange(size: Size, type: DTypeLike = "f32") -> Expression:
    """Return the numbers 0, 1, 2 and so on. In f32 they are exact up to 2**24.

    Parameters
    ----------
    size : int or Dim
        How many.
    type : str or numpy type
        "f32", or "f64" for networks of f64.

    Returns
    -------
    Expression
        A tensor with one axis.

    Examples
    --------
    >>> add = tw.network(lambda x: x + tw.nn.arange(3))
    >>> tw.compile(add.of(x=tw.Tensor("f32", 3)))(np.float32([10, 20, 30]))
    array([10., 21., 32.], dtype=float32)
    """
    (length,) = _sizes((size,), "nn.arange")
    return Count(length, _real(type, "nn.arange"))


@spelled(SpecTypeError)
def index(x: Expression, axis: int = -1) -> Expression:
    """Return the place of each element of ``x`` along an axis, for masks and rotations.

    Parameters
    ----------
    x : Expression
        A tensor.
    axis : int
        The axis.

    Returns
    -------
    Expression
        A tensor with the axes of ``x``, all of size 1 but this one. It is f32, or f64 if ``x`` is.

    Examples
    --------
    >>> lower = tw.network(lambda x: tw.where(tw.nn.index(x, 1) <= tw.nn.index(x, 0), x, 0))
    >>> tw.compile(lower.of(x=tw.Tensor("f32", (2, 2))))(np.ones((2, 2), np.float32))
    array([[1., 0.], [1., 1.]], dtype=float32)
    """
    shape = given_shape(x, "nn.index")
    at = _axis(axis, len(shape), x)
    places = arange(shape[at], "f64" if x.tensor is not None and x.tensor.type == "f64" else "f32")
    return reshape(places, tuple(shape[i] if i == at else 1 for i in range(len(shape))))


def _real(type_: DTypeLike, fn: str) -> TypeName:
    found = type_name(type_)
    if found not in ("f32", "f64"):
        raise SpecError(f"{fn} makes f32 or f64", got=found, hint=f"{fn}(...).astype({found!r})")
    return found


def _sizes(given: Iterable[Any], fn: str) -> tuple[Size, ...]:
    found: list[Size] = []
    for size in given:
        if not isinstance(size, Dim) and not _is_size(size):
            raise SpecError(f"{fn} has sizes", got=size, expected="an int, 0 or more, or a tw.dim")
        found.append(size if isinstance(size, Dim) else int(size))
    return tuple(found)


def _is_size(size: Any) -> bool:
    whole = whole_number(size)
    return whole is not None and whole >= 0


def _several(given: Sequence[Any]) -> tuple[Any, ...]:
    """Return ``f(1, 2)`` and ``f((1, 2))`` alike."""
    if len(given) == 1 and isinstance(given[0], tuple | list):
        return tuple(given[0])
    return tuple(given)


def _completed(old: Sequence[Size], new: list[Any], x: Any) -> tuple[Size, ...]:
    """Return the new shape with the size that is -1."""
    free = [number for number, size in enumerate(new) if not isinstance(size, Dim) and size == -1]
    if len(free) > 1:
        raise SpecError("one size of a shape may be -1", got=tuple(new))
    if free:
        new[free[0]] = 1
        sizes = _sizes(new, "reshape")
        (whole, left), (wanted, dims) = (terms_of(joined_size(each)) for each in (old, sizes))
        rest = list(left)
        fits = wanted > 0 and whole % wanted == 0 and all(each in rest for each in dims)
        for each in dims:
            if each in rest:
                rest.remove(each)
            else:
                fits = False
        if not fits:
            raise SpecError(
                "no size for -1 keeps the elements",
                got=f"{said(old)} to {said(sizes)} with -1 at {free[0]}",
                hint="leading axes may stay: x @ w.up takes tensors of any number of axes",
            )
        new[free[0]] = joined_size((whole // wanted, *rest))
    return _sizes(new, "reshape")


def _axis(axis: Any, count: int, x: Any) -> int:
    found = whole_number(axis)
    if found is None or not -count <= found < count:
        raise SpecError(
            "a tensor has no such axis", got=axis, expected=f"{-count} to {count - 1}, of {x!r}"
        )
    return found % count


def _axes(given: Sequence[Any], count: int, x: Any) -> tuple[int, ...]:
    found = tuple(_axis(axis, count, x) for axis in given)
    if sorted(found) != list(range(count)):
        raise SpecError(
            "transpose has each axis once", got=tuple(given), expected=f"the numbers below {count}"
        )
    return found


def _range(part: Any, size: Size, x: Any) -> tuple[int, Size, int]:
    """Return (first, count, step) of one axis."""
    if isinstance(part, slice):
        if part in (slice(None), slice(0, None), slice(None, None, 1), slice(0, None, 1)):
            return 0, size, 1
        if isinstance(size, Dim):
            raise SpecError(
                "an axis whose size is known only at the call is not cut",
                got=f"{part} of an axis of size {size.name}, in {x!r}",
                expected="the whole axis, x[:]",
                hint="two tensors; or an int in place of the dim",
            )
        ends = (part.start, part.stop, part.step)
        whole = all(end is None or whole_number(end) is not None for end in ends)
        if not whole or (part.step is not None and part.step < 1):
            raise SpecError("a slice has ints, and a positive step", got=part)
        first, stop, step = part.indices(size)
        return first, max(0, -(-(stop - first) // step)), step
    found = whole_number(part)
    if found is None:
        raise SpecError(
            "an index is an int, a slice, None or ...",
            got=type(part).__name__,
            hint="nn.take gathers rows, nn.scatter and nn.scatter_add write rows; "
            "tw.where chooses by element",
        )
    if isinstance(size, Dim) and found != 0:
        raise SpecError(
            "along an axis whose size is known only at the call, only index 0 is known to exist",
            got=f"{found} of an axis of size {size.name}, in {x!r}",
        )
    if not isinstance(size, Dim) and not -size <= found < size:
        raise SpecError("an index is beyond its axis", got=found, expected=f"{-size} to {size - 1}")
    return found if isinstance(size, Dim) else found % size, 1, 1


def _expanded(x: Any, axis: Any) -> Expression:
    shape = given_shape(x, "expand_dims")
    at = _axis(axis, len(shape) + 1, x)
    return reshape(x, (*shape[:at], 1, *shape[at:]))


def _squeezed(x: Any, axis: Any) -> Expression:
    shape = given_shape(x, "squeeze")
    at = _axis(axis, len(shape), x)
    if shape[at] != 1:
        raise SpecError("squeeze removes an axis of size 1", got=f"axis {at} of {said(shape)}")
    return reshape(x, (*shape[:at], *shape[at + 1 :]))


def _split(x: Any, parts: Any, axis: Any = 0) -> Any:
    return list(split(x, parts, axis))


def _padded(
    x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0.0
) -> Expression:
    if mode != "constant":
        raise SpecError("np.pad adds equal elements", got=f"mode={mode!r}", expected="'constant'")
    return pad(x, pad_width, constant_values)


def _stacked(tensors: Any, axis: Any = 0) -> Expression:
    return concat([_expanded(one, axis) for one in tensors], axis)


ARRAY_FUNCTIONS["reshape"] = reshape
ARRAY_FUNCTIONS["transpose"] = transpose
ARRAY_FUNCTIONS["swapaxes"] = swapaxes
ARRAY_FUNCTIONS["T"] = swapped
ARRAY_FUNCTIONS["sliced"] = sliced
ARRAY_FUNCTIONS["concatenate"] = concat
ARRAY_FUNCTIONS["broadcast_to"] = expand
ARRAY_FUNCTIONS["expand_dims"] = _expanded
ARRAY_FUNCTIONS["squeeze"] = _squeezed
ARRAY_FUNCTIONS["split"] = _split
ARRAY_FUNCTIONS["stack"] = _stacked
ARRAY_FUNCTIONS["pad"] = _padded
