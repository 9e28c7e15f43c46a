"""Estimate the cycles of a stack of products: one product times their number, plus transfers."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.plan.problem import NOMINAL
from tilewright.plan.routines.stack import StackPlan, beside_cycles
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import evaluate, value

from .caches import Cycles, Nest, Piece, Region, Repeat
from .kernel import Estimate, estimate_of, nest_of

#: The name of the time in which elements are moved so that several products share vectors.
MOVING = "moves between products and lanes"


def estimate_stack(plan: StackPlan, sizes: Mapping[str, int], *, cold: bool = False) -> Estimate:
    """Return the estimated time of a call on the plan's core, like ``estimate`` for one product.

    ``sizes`` are the sizes of the call by name; a missing one is taken as ``NOMINAL``.
    """
    slots = dict.fromkeys(plan.slots, NOMINAL) | dict(sizes)
    count = evaluate(plan.batch.count, slots)
    body, least = _product(plan, slots)
    regions = {
        name: region if _serves_all(plan, name) else Region(count, region.span, region.span)
        for name, region in body.regions.items()
    }
    moves = frozenset(name for name in body.regions if not _serves_all(plan, name))
    nest: Nest = Repeat(count, moves, body, regions) if count > 1 else body
    return estimate_of(plan.target.core, nest, least * count, cold=cold)


def _product(plan: StackPlan, slots: Mapping[str, int]) -> tuple[Nest, float]:
    """Return the nest of one product, and its cycles at the peak."""
    if plan.each is not None:
        return nest_of(plan.each, slots)
    extents = {d: evaluate(plan.sizes[d], slots) for d in "mnk"}
    item, vector = ITEMSIZE[plan.spec.type], plan.vectors[0]
    regions = {}
    for name in "abc":
        span = float(evaluate(plan.elements(name), slots) * item)
        regions[name] = Region(1, span, span)
    multiply_adds = plan.spec.flops({**extents, "count": 1}) / 2
    least = multiply_adds / vector.lanes / plan.target.core.fma_units
    return Piece(regions, Cycles({MOVING: beside_cycles(plan, extents)})), least


def _serves_all(plan: StackPlan, name: str) -> bool:
    """True if all products use the same matrix."""
    stride = plan.batch.strides.get(name[0])
    return stride is not None and value(stride) == 0
