"""Find along which axes the values of a row program vary: rows, columns, both, or none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tilewright.errors import SpecError
from tilewright.spec.expression.nodes import Composed, Expression
from tilewright.spec.expression.shapes import said
from tilewright.spec.expression.tensors import Reduce
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Size


class Place(Enum):
    """The axes along which a value varies."""

    FULL = "rows and columns"
    ROW = "rows"
    COLUMN = "columns"
    ONE = "none"


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows and columns that a row program visits, and the place of each of its nodes."""

    rows: Size
    cols: Size
    places: dict[int, Place]

    def of(self, node: Expression) -> Place:
        """Return the place of a node. It must be a node for which ``grid_of`` found the place."""
        return self.places[id(node)]


def grid_of(network: Network, nodes: Iterable[Expression]) -> Grid:
    """Return the grid of a network, with the places of ``nodes``, arguments first."""
    sizes: dict[str, Size] = {}
    along: dict[int, bool] = {}
    found: list[tuple[Expression, tuple[Size, Size]]] = []
    for node in nodes:
        along[id(node)] = _is_along_rows(node, along)
        found.append((node, _two_axes(node, rows=along[id(node)])))
    for node, shape in found:
        for axis, size in zip(("rows", "columns"), shape, strict=True):
            if size != 1 and sizes.setdefault(axis, size) != size:
                raise SpecError(
                    f"a row program has one number of {axis}",
                    got=f"{said((sizes[axis],))} and {said((size,))}, of {node!r}",
                    expected="tensors that all broadcast to one shape",
                    hint="a kernel for each",
                )
    places = {id(node): _PLACES[shape[0] != 1, shape[1] != 1] for node, shape in found}
    return Grid(sizes.get("rows", 1), sizes.get("columns", 1), places)


_PLACES = {
    (True, True): Place.FULL,
    (True, False): Place.ROW,
    (False, True): Place.COLUMN,
    (False, False): Place.ONE,
}


def _is_along_rows(node: Expression, along: dict[int, bool]) -> bool:
    """Return True if a value of one axis has an element for each row."""
    if node.tensor is None or len(node.tensor.shape) != 1:
        return False
    if isinstance(node, Reduce):
        given = node.args[0].tensor
        return given is not None and len(given.shape) == 2 and node.axis == -1
    args = node.args if isinstance(node, Composed) else ()
    kinds = {along[id(arg)] for arg in args if arg.tensor is not None and arg.tensor.shape}
    if len(kinds) > 1:
        raise SpecError(
            "values of rows meet values of columns along one axis",
            got=node,
            hint="keepdims=True for the reduction, and tw.Tensor(type, (rows, 1))",
        )
    return kinds == {True}


def _two_axes(node: Expression, *, rows: bool) -> tuple[Size, Size]:
    """Return the shape of a node as (rows, columns)."""
    shape = () if node.tensor is None else node.tensor.shape
    if len(shape) == 2:
        if isinstance(node, Composed) and not isinstance(node, Reduce):
            _check_aligned(node)
        return shape[0], shape[1]
    if not shape:
        return 1, 1
    return (shape[0], 1) if rows else (1, shape[0])


def _check_aligned(node: Composed) -> None:
    for arg in node.args:
        lost = isinstance(arg, Reduce) and arg.axis == -1 and not arg.keepdims
        if lost and arg.tensor is not None and len(arg.tensor.shape) == 1:
            raise SpecError(
                "a value for each row meets a tensor as if it had one for each column",
                got=node,
                hint="keepdims=True: shape (rows, 1)",
            )
