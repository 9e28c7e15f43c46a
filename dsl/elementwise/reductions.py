"""Functions that reduce many values to one: how two are combined, and what NaN means to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from .builder import Argument, Builder
from .functions import lower_function

#: All bits of an f32 except the sign.
_MAGNITUDE = 0x7FFFFFFF


def _same(_builder: Builder, value: Argument) -> Argument:
    return value


@dataclass(frozen=True, slots=True)
class Combiner:
    """A function of many values, combined two at a time.

    Each value is passed through ``of``. Two of these are combined by ``both``, until one is left,
    which is passed through ``result``. Values are combined in lanes of ``element``, "" for the
    builder's floating-point type. ``start`` is the result for no values.
    """

    start: float
    both: Callable[[Builder, Argument, Argument], Argument]
    element: str = ""
    of: Callable[[Builder, Argument], Argument] = _same
    result: Callable[[Builder, Argument], Argument] = _same


def _elementary(fn: str) -> Callable[[Builder, Argument, Argument], Argument]:
    return lambda b, x, y: b(fn, x, y)


def _propagating(fn: str) -> Callable[[Builder, Argument, Argument], Argument]:
    """Return the maximum or minimum of two values that is NaN if either value is NaN.

    The elementary maximum returns its second operand if either is NaN. It is therefore computed in
    both orders, and the bits of both results are combined by "or". The results are equal, or zeros
    of either sign, unless an operand is NaN. Then the combined bits are a NaN.
    """

    def both(b: Builder, x: Argument, y: Argument) -> Argument:
        if b.real != "f32":
            return lower_function(b, {"max": "maximum", "min": "minimum"}[fn], x, y)
        return b("float", b("or", b("bits", b(fn, x, y)), b("bits", b(fn, y, x))))

    return both


def _magnitude(b: Builder, x: Argument) -> Argument:
    return b("bits", b("abs", x))


def _float(b: Builder, bits: Argument) -> Argument:
    return b("float", bits)


def _ordered(b: Builder, x: Argument) -> Argument:
    """Return an f32 as an integer of the same order; a NaN is beyond all numbers."""
    return _flipped(b, b("bits", x))


def _unordered(b: Builder, integer: Argument) -> Argument:
    return b("float", _flipped(b, integer))


def _flipped(b: Builder, bits: Argument) -> Argument:
    """Return ``bits`` with all bits but the sign inverted if the sign is set; this is its own
    inverse.
    """
    return b("xor", bits, b("and", b("shr", bits, 31), _MAGNITUDE))


#: The functions by name. ``max`` and ``min`` are NaN if any value is NaN; ``maximum`` treats NaN
#: like ``tw.maximum``. The others compare bits as s32, in which a NaN is beyond all numbers.
#: ``absmax`` is the greatest magnitude; ``greatest`` and ``least`` take 0 for one of the values.
#: ``total`` is the sum of s32 lanes.
COMBINERS = {
    "sum": Combiner(0.0, _elementary("add")),
    "max": Combiner(-math.inf, _propagating("max")),
    "min": Combiner(math.inf, _propagating("min")),
    "maximum": Combiner(-math.inf, lambda b, x, y: lower_function(b, "maximum", x, y)),
    "absmax": Combiner(0, _elementary("max"), "s32", _magnitude, _float),
    "greatest": Combiner(0, _elementary("max"), "s32", _ordered, _float),
    "least": Combiner(0, _elementary("min"), "s32", _ordered, _unordered),
    "total": Combiner(0, _elementary("add"), "s32"),
}
#: The functions of an epilogue's outputs by tilewright's names.
OUTPUTS = {
    "row_sum": COMBINERS["sum"],
    "row_max": COMBINERS["maximum"],
    "row_absmax": COMBINERS["absmax"],
}
