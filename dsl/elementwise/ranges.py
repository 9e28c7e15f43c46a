"""Bound the results of elementary operations on f32 by the bounds of their arguments.

A range is the least and the largest number that a value may be, unless the value is NaN. Rounding
keeps the order of numbers, so the rounded results at the ends of ranges are bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from .operations import compute

Range = tuple[float, float]
#: The range of a value of which nothing is known.
ANY: Range = (-math.inf, math.inf)


def range_of(fn: str, args: Sequence[object], given: Sequence[Range]) -> Range:
    """Return the range of ``fn(*args)``; ``given`` has the range of each of ``args``.

    It is ``ANY`` for operations that are not listed here.
    """
    match fn, given:
        case "neg", [(low, high)]:
            return -high, -low
        case "abs", [(low, high)]:
            return max(low, -high, 0.0), max(-low, high)
        case "sqrt", _:
            return 0.0, math.inf
        # The result is the second argument if any argument is NaN. A number is never NaN.
        case "min", [(low, high), (least, most)]:
            return min(low, least), min(high, most) if isinstance(args[0], float) else most
        case "max", [(low, high), (least, most)]:
            return max(low, least) if isinstance(args[0], float) else least, max(high, most)
        case "select", [_, (low, high), (least, most)]:
            return min(low, least), max(high, most)
        case "mul", [(low, high), _] if args[0] == args[1]:
            least, most = range_of("abs", args[:1], [(low, high)])
            return _rounded("mul", (least, least)), _rounded("mul", (most, most))
        case "mul" | "add" | "sub", [one, other] if ANY not in (one, other):
            ends = [_rounded(fn, pair) for pair in product(one, other)]
            return ANY if any(map(math.isnan, ends)) else (min(ends), max(ends))
    return ANY


def _rounded(fn: str, ends: tuple[float, float]) -> float:
    """Return the result at the ends of two ranges; 0 times infinity is 0 there."""
    if fn == "mul" and 0 in ends:
        return 0.0
    return float(compute(fn, *map(np.float32, ends)))
