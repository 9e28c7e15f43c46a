"""Count the configurations of a matrix unit that tiles need; tiles share one if their
shapes fit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from sympy import Expr

from .tile_shape import TileShape

#: The shape of a register: its number of rows (or a formula), and what a row holds.
Shape = Hashable


def numbered(wanted: Sequence[Shape], known: Sequence[Shape], most: int) -> list[int] | None:
    """Return a register number for each wanted shape; None if there are too few registers.

    Shapes that are not among ``known`` get new numbers.
    """
    free, numbers, end = list(range(len(known))), [], len(known)
    for shape in wanted:
        same = next((number for number in free if known[number] == shape), None)
        if same is None:
            same, end = end, end + 1
        else:
            free.remove(same)
        numbers.append(same)
    return numbers if end <= most else None


def configurations_of(tiles: Iterable[Sequence[Shape]], most: int) -> list[int]:
    """Return the number of the configuration that each tile uses, given its registers' shapes."""
    found: list[list[Shape]] = []
    used: list[int] = []
    for shapes in tiles:
        places = (numbered(shapes, known, most) for known in found)
        fits = ((index, numbers) for index, numbers in enumerate(places) if numbers is not None)
        index, numbers = next(fits, (len(found), list(range(len(shapes)))))
        if index == len(found):
            found.append([])
        known = found[index]
        pairs = sorted(zip(numbers, shapes, strict=True), key=lambda pair: pair[0])
        known += [shape for number, shape in pairs if number >= len(known)]
        used.append(index)
    return used


def register_shapes(shape: TileShape, across: Expr | int, last: Expr | int) -> tuple[Shape, ...]:
    """Return the register shapes of a tile if its matrix unit has configurations, else nothing.

    The tile has ``across`` rows and ``last`` active lanes in its last vector.
    """
    unit = shape.unit
    if unit is None or not unit.template:
        return ()
    bands = [*[unit.rows] * (shape.bands - 1), across - unit.rows * (shape.bands - 1)]
    columns = [*[shape.vector.lanes] * (shape.columns - 1), last]
    sums = [(rows, lanes) for rows in bands for lanes in columns for _ in range(shape.k_split)]
    rows_of_a = [(rows, "across") for rows in bands]
    columns_of_b = [(shape.groups, "along", lanes) for lanes in columns]
    held, passing = columns_of_b, rows_of_a
    if shape.hold == "across":
        held, passing = passing, held  # type: ignore[assignment]
    left = min(len(passing), unit.most - len(sums) - len(held))
    return (*sums, *held, *passing[: left - 1], *passing[-1:])
