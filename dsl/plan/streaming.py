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
from .problem import Staging

#: Stores bypass the caches only if the multiply-adds take at most this many times as long as the
#: transfer of C to memory.
_MATTERS = 4


def with_streams(plan: Plan) -> Plan:
    """Return ``plan``, with stores that bypass the caches if this is asked for or saves time."""
    asked, hindrance = plan.problem.schedule.stores, next(_hindrances(plan), None)
    if asked == "stream" and hindrance is not None:
        raise ScheduleError(
            "C cannot be written past the caches here",
            got=f"stores='stream', and {hindrance}",
            expected="whole lines of C that are written once and not read",
            hint="leave stores out",
        )
    if asked == "stream":
        return _streaming(plan, ONE, "asked for")
    if asked is not None or hindrance is not None or not _matters(plan.staging):
        return plan
    most = plan.target.core.caches[-1].size
    held = most // ITEMSIZE[plan.staging.output.type]
    elements = plan.problem.sizes["m"] * plan.problem.sizes["n"]
    if most_of(plan.spec.m) * most_of(plan.spec.n) <= held:
        return plan
    if value(elements) is not None:
        size = elements * ITEMSIZE[plan.staging.output.type]
        return _streaming(plan, ONE, f"C has {_size(size)}, a core's caches hold {_size(most)}")
    why = f"where C has {_size(most)} or more, which a core's caches hold"
    return _streaming(plan, div(elements, held), why)


def _streaming(plan: Plan, where: Expr, reason: str) -> Plan:
    said = Decision("stores", "past the caches", f"{reason}; whole vectors of aligned lines")
    nest = replace(plan.nest, streams=where)
    return replace(plan, nest=nest, decisions=(*plan.decisions, said))


def _size(size: Expr | int) -> str:
    return f"{int(size) / 2**20:.3g} MiB"


def _hindrances(plan: Plan) -> Iterator[str]:
    """Yield the reasons why stores of C cannot bypass the caches."""
    spec, written, target = plan.spec, plan.staging.output, plan.target
    vectors = target.of(plan.staging.element)
    if not any(vector.stream for vector in vectors):
        yield f"{target.name} has no store of {plan.staging.element} for that"
    if spec.beta != 0 or spec.reads_output:
        yield "C is read"
    if written.packed:
        yield "D is packed from rows that a cache holds"
    if set(plan.nest.outer.lower()) & {"b", "k"}:
        yield f"loops={plan.nest.outer + plan.nest.inner!r} add to sums in C, block by block of K"
    if plan.staging.product.unit is not None or plan.staging.product.blocks:
        yield f"{plan.staging.product.mnemonic} sums in blocks"
    if plan.problem.dot or plan.staging.transposed or plan.problem.bounces:
        yield "lines of C do not lie along the vectors"
    if written.type != plan.staging.element:
        yield f"sums of {plan.staging.element} are stored as {written.type}"
    if mod(
        written.strides[plan.problem.across] * ITEMSIZE[written.type], target.core.line
    ) != 0 and value(written.strides[plan.problem.across]):
        step = written.strides[plan.problem.across] * ITEMSIZE[written.type]
        yield f"lines of C begin {step} bytes apart, which is no multiple of {target.core.line}"


def _matters(staging: Staging) -> bool:
    """True if K is so short that C's transfer takes a large share of the time."""
    core, k = staging.problem.target.core, value(staging.problem.sizes["k"])
    vector = staging.vectors[0]
    form = staging.product.form(vector, "broadcast", "scalar")
    if k is None or form is None:
        return k is None
    each = core.at(vector.nbytes).between(form.mnemonic, form.instructions)
    making = k / staging.product.depth * each / vector.lanes
    return bool(making <= _MATTERS * 2 * ITEMSIZE[staging.output.type] / core.memory)
