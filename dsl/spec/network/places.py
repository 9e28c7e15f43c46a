"""Find which values of a row program have an element for each row, each column, both, or once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ..expression.nodes import Composed, Expression, every_node
from ..expression.tensors import Reduce
from ..sizes import Size


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

    def whole(self, node: Expression, *, columns: bool) -> bool:
        """Return True if a node has an element for each row and column, and passes visit it.

        Passes visit columns, or rows if the network reduces ``columns``. The last one stores such a
        result, which may be in the memory of an input.
        """
        one, along = (self.cols, Place.ROW) if columns else (self.rows, Place.COLUMN)
        place = self.of(node)
        return place == Place.FULL or (one == 1 and place == along)


def grid_of(nodes: Iterable[Expression]) -> Grid | None:
    """Return the grid of a network with these nodes, arguments first; None if there is none.

    All nodes then broadcast to one shape, and a value of one axis has an element for each row, or
    for each column.
    """
    sizes: dict[str, Size] = {}
    along: dict[int, bool] = {}
    found: list[tuple[Expression, tuple[Size, Size]]] = []
    for node in nodes:
        kinds = _kinds(node, along)
        if len(kinds) > 1 or not _is_aligned(node, along):
            return None
        along[id(node)] = kinds == {True}
        found.append((node, _two_axes(node, rows=along[id(node)])))
    for _, shape in found:
        for axis, size in zip(("rows", "columns"), shape, strict=True):
            if size != 1 and sizes.setdefault(axis, size) != size:
                return None
    places = {id(node): _PLACES[shape[0] != 1, shape[1] != 1] for node, shape in found}
    return Grid(sizes.get("rows", 1), sizes.get("columns", 1), places)


def is_row_program(results: Sequence[Expression]) -> bool:
    """Return True if one loop over rows, or over columns, stores each element of results once."""
    nodes = list(every_node(results))
    grid = grid_of(nodes)
    if grid is None:
        return False
    many, kept = grid.rows, Place.ROW
    if reduces_columns(nodes):
        many, kept = grid.cols, Place.COLUMN
    return many == 1 or all(grid.of(result) in (Place.FULL, kept) for result in results)


def reduces_columns(nodes: Iterable[Expression]) -> bool:
    """Return True if a network reduces along the first of two axes."""
    return any(isinstance(n, Reduce) and n.axis == -2 and n.args[0].ndim == 2 for n in nodes)


_PLACES = {
    (True, True): Place.FULL,
    (True, False): Place.ROW,
    (False, True): Place.COLUMN,
    (False, False): Place.ONE,
}


def _kinds(node: Expression, along: dict[int, bool]) -> set[bool]:
    """Return for a value of one axis whether it, or what it is made of, varies along the rows."""
    if node.tensor is None or len(node.tensor.shape) != 1:
        return set()
    if isinstance(node, Reduce):
        return {node.args[0].ndim == 2 and node.axis == -1}
    args = node.args if isinstance(node, Composed) else ()
    return {along[id(arg)] for arg in args if arg.tensor is not None and arg.tensor.shape}


def _two_axes(node: Expression, *, rows: bool) -> tuple[Size, Size]:
    """Return the shape of a node as (rows, columns)."""
    shape = () if node.tensor is None else node.tensor.shape
    if len(shape) == 2:
        return shape[0], shape[1]
    if not shape:
        return 1, 1
    return (shape[0], 1) if rows else (1, shape[0])


def _is_aligned(node: Expression, along: dict[int, bool]) -> bool:
    """Return False if a value of each row is reduced, or meets a matrix as if it were a row."""
    if isinstance(node, Reduce) and node.args[0].ndim == 1:
        return not along[id(node.args[0])]
    if node.ndim != 2 or not isinstance(node, Composed):
        return True
    return not any(arg.ndim == 1 and along[id(arg)] for arg in node.args)
