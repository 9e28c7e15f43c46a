"""Decide whether stores of C bypass the caches: C is larger than they are and is not read again.

An ordinary store first loads its cache line from memory, and evicts another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sympy import Expr

from tilewright.errors import ScheduleError
from tilewright.spec.sizes import most_of
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, div, mod, value

from .loops import Decision
from .plan import Plan

#: Stores bypass the caches only if the multiply-adds take at most this many times as long as the
#: transfer of C to memory.
_MATTERS = 4


def with_streams(plan: Plan) -> Plan:
    """Return ``plan``, with stores that bypass the caches if this is asked for or saves time."""
    asked, hindrance = plan.schedule.stores, next(_hindrances(plan), None)
    if asked == "stream" and hindrance is not None:
        raise ScheduleError(
            "C cannot be written past the caches here",
            got=f"stores='stream', and {hindrance}",
            expected="whole lines of C that are written once and not read",
            hint="leave stores out",
        )
    if asked == "stream":
        return _streaming(plan, ONE, "asked for")
    if asked is not None or hindrance is not None or not _matters(plan):
        return plan
    most = plan.target.core.caches[-1].size
    held = most // ITEMSIZE[plan.output.type]
    elements = plan.sizes["m"] * plan.sizes["n"]
    if most_of(plan.spec.m) * most_of(plan.spec.n) <= held:
        return plan
    if value(elements) is not None:
        size = elements * ITEMSIZE[plan.output.type]
        return _streaming(plan, ONE, f"C has {_size(size)}, a core's caches hold {_size(most)}")
    why = f"where C has {_size(most)} or more, which a core's caches hold"
    return _streaming(plan, div(elements, held), why)


def _streaming(plan: Plan, where: Expr, reason: str) -> Plan:
    said = Decision("stores", "past the caches", f"{reason}; whole vectors of aligned lines")
    return replace(plan, streams=where, decisions=(*plan.decisions, said))


def _size(size: Expr | int) -> str:
    return f"{int(size) / 2**20:.3g} MiB"


def _hindrances(plan: Plan) -> Iterator[str]:
    """Yield the reasons why stores of C cannot bypass the caches."""
    spec, written, target = plan.spec, plan.output, plan.target
    vectors = target.of(plan.element)
    if not any(vector.stream for vector in vectors):
        yield f"{target.name} has no store of {plan.element} for that"
    if spec.beta != 0 or spec.reads_output:
        yield "C is read"
    if written.packed:
        yield "D is packed from rows that a cache holds"
    if set(plan.outer.lower()) & {"b", "k"}:
        yield f"loops={plan.outer + plan.inner!r} add to sums in C, block by block of K"
    if plan.product.unit is not None or plan.product.blocks:
        yield f"{plan.product.mnemonic} sums in blocks"
    if plan.dot or plan.transposed or plan.bounces:
        yield "lines of C do not lie along the vectors"
    if written.type != plan.element:
        yield f"sums of {plan.element} are stored as {written.type}"
    if mod(written.strides[plan.across] * ITEMSIZE[written.type], target.core.line) != 0 and value(
        written.strides[plan.across]
    ):
        step = written.strides[plan.across] * ITEMSIZE[written.type]
        yield f"lines of C begin {step} bytes apart, which is no multiple of {target.core.line}"


def _matters(plan: Plan) -> bool:
    """True if K is so short that C's transfer takes a large share of the time."""
    core, k = plan.target.core, value(plan.sizes["k"])
    vector = plan.vectors[0]
    form = plan.product.form(vector, "broadcast", "scalar")
    if k is None or form is None:
        return k is None
    each = core.at(vector.nbytes).between(form.mnemonic, form.instructions)
    making = k / plan.product.depth * each / vector.lanes
    return bool(making <= _MATTERS * 2 * ITEMSIZE[plan.output.type] / core.memory)
