"""What was decided about a tile."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from .tile_request import Work
from .tile_shape import TileShape


@dataclass(frozen=True, slots=True)
class TileFacts:
    """What was decided about a tile of ``rows`` x ``cols`` elements of C, for whoever reads it.

    ``accumulators`` are the names of the registers, in rows and columns of C; ``work`` is what
    the cost model was asked.
    """

    rows: Expr
    cols: Expr
    steps: Expr
    accumulate: bool
    shape: TileShape
    work: Work
    accumulators: tuple[tuple[str, ...], ...]
