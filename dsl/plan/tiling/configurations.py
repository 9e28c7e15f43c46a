"""How often a matrix unit is told the shapes of its registers: tiles share what fits them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from sympy import Expr

from .tile_shape import TileShape

#: The rows of a register, by a number or a formula, and what its rows hold.
Shape = Hashable


def numbered(wanted: Sequence[Shape], known: Sequence[Shape], most: int) -> list[int] | None:
    """A register of each wanted shape, new ones behind those known; None if too few are left."""
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
    """For each tile, by the shapes of its registers, which configuration it uses."""
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
    """The shapes of the registers of a tile of a matrix unit that has configurations.

    It has so many rows ``across``, and ``last`` lanes in its last vector. Nothing for other tiles.
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
