"""Resolve spec, schedule and target into numbers: every decision, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sympy import Expr

from .errors import ScheduleError, SpecError
from .isa import Target, Vector
from .model import TileShape, Work, choose, step_cycles
from .schedule import Schedule
from .spec import SHAPES, Addresses, Gemm, Offsets, Strided
from .symbolic import ONE, ZERO, size_expr, value


Dimension = Literal["m", "n", "k"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One resolved choice, as ``explain`` prints it."""

    what: str
    choice: str
    reason: str


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's strides in elements, by dimension."""

    name: str
    type: str
    strides: Mapping[str, Expr] = field(hash=False)


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How the batch is found: its count, and strides where it is strided."""

    kind: str
    count: Expr
    strides: Mapping[str, Expr] = field(hash=False)
    static: Mapping[str, tuple[int, ...]] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """A GEMM with every choice made that does not depend on the region.

    ``vectorize`` is the dimension along the vectors, ``across`` the other one of m and n (for
    ``k``: n). ``outer`` are the loops over blocks, ``inner`` those around the accumulators.
    ``transposed``: C is contiguous across the vectors, so tiles are transposed when stored.
    """

    spec: Gemm
    schedule: Schedule
    target: Target
    vectorize: str
    across: str
    transposed: bool
    outer: str
    inner: str
    blocks: Mapping[str, int] = field(hash=False)
    sizes: Mapping[str, Expr] = field(hash=False)
    operands: Mapping[str, Operand] = field(hash=False)
    batch: BatchPlan | None
    decisions: tuple[Decision, ...]

    @property
    def element(self) -> str:
        return self.spec.type

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The target's vectors that can do what this plan asks of them, widest first."""
        vectors = self.target.of(self.element)
        if self.transposed:
            return tuple(v for v in vectors if v.transposes and v.cuts_any)
        return tuple(v for v in vectors if v.cuts_any) if self.dot else vectors

    @property
    def dot(self) -> bool:
        """Whether the vectors lie along K."""
        return self.vectorize == "k"

    @property
    def sum_along(self) -> str | None:
        """For vectors along K: the dimension of C along which sums are stored as vectors."""
        if not all(v.transposes for v in self.vectors):
            return None
        strides = self.operands["c"].strides
        return next((d for d in (self.along, self.across) if value(strides[d]) == 1), None)

    @property
    def along(self) -> str:
        """The dimension of C whose tile size counts vectors (for ``k``: m, one row a vector)."""
        return "m" if self.dot else self.vectorize

    def feeder(self, dimension: str) -> Operand:
        """The input operand that lies along ``dimension`` of C."""
        return self.operands["a" if dimension == "m" else "b"]

    def work(self, steps: Expr, accumulate: bool) -> Work:
        """What the cost model must know of a tile with ``steps`` K steps."""
        count = (value(self.batch.count) or 1) if self.batch and "b" in self.inner else 1
        schedule = self.schedule
        known = value(steps)
        return Work(
            vectors=self.vectors,
            steps=(known if known is not None else 64) * count,
            reads_c=accumulate or self.spec.beta != 0,
            feeds=self._feeds(),
            splits=(schedule.k_split,) if schedule.k_split else _splits(known),
            dot=self.dot,
            transposed=self.transposed,
            depth=known,
            overlaps=self._overlaps(known, accumulate),
            spare=self.target.hold.spare if self.target.hold and not schedule.tile else 0,
        )

    def _overlaps(self, steps: int | None, accumulate: bool) -> bool:
        """Whether a tile's last vector may overlap the one before.

        Two stores that overlap are not forwarded to a load that spans them: where C is read, K
        must be long enough to hide the wait of whoever reads it next.
        """
        if self.dot or self.transposed or self.schedule.tails not in ("auto", "overlap"):
            return False
        reads = accumulate or self.spec.beta != 0
        return not reads or steps is None or steps >= 4 * self.target.core.fma_latency

    def _feeds(self) -> tuple[str, ...]:
        if self.dot:
            return ()
        across = self.feeder(self.across).strides
        if value(across["k"]) == 1:
            return ("lane_k",)
        return ("lane_s",) if value(across[self.across]) == 1 else ()


def _splits(steps: int | None) -> tuple[int, ...]:
    return tuple(s for s in (1, 2, 4) if steps is None or s == 1 or steps >= 2 * s)


def make_plan(spec: Gemm, schedule: Schedule, target: Target) -> Plan:
    """The plan; ScheduleError or SpecError if schedule and spec contradict each other."""
    plans = [_plan_along(d, spec, schedule, target) for d in _dimensions(spec, schedule)]
    costs = [_estimate(plan) if len(plans) > 1 else 0.0 for plan in plans]
    best = min(zip(costs, range(len(plans)), strict=True))[1]
    return replace(
        plans[best], decisions=(_why_along(plans, costs, best), *plans[best].decisions)
    )


def _why_along(plans: list[Plan], costs: list[float], best: int) -> Decision:
    plan = plans[best]
    if plan.schedule.vectorize:
        reason = "asked for"
    elif len(plans) == 1:
        reason = "the only dimension along which the operands are contiguous"
    else:
        others = ", ".join(
            f"{p.vectorize} {c:.0f}" for p, c in zip(plans, costs, strict=True) if p is not plan
        )
        reason = f"estimated at {costs[best]:.0f} cycles; {others}"
    return Decision("vectorize", plan.vectorize, reason)


def _plan_along(vectorize: Dimension, spec: Gemm, schedule: Schedule, target: Target) -> Plan:
    if not target.of(spec.type):
        raise SpecError(f"{target.name} has no vectors of {spec.type}", hint="another target")
    sizes = {slot: size_expr(slot, getattr(spec, slot)) for slot in "mnk"}
    operands = {name: _operand(spec, name) for name in "abc"}
    batch = _batch(spec)
    along = "m" if vectorize == "k" else vectorize
    outer, inner, loop_reason = _loops(spec, schedule, along)
    decisions = (Decision("loops", outer + inner, loop_reason),)
    return Plan(
        spec=spec,
        schedule=schedule,
        target=target,
        vectorize=vectorize,
        across="n" if along == "m" else "m",
        transposed=vectorize != "k" and value(operands["c"].strides[vectorize]) != 1,
        outer=outer,
        inner=inner,
        blocks=_blocks(schedule, outer + inner),
        sizes=sizes,
        operands=operands,
        batch=batch,
        decisions=decisions,
    )


def _operand(spec: Gemm, name: str) -> Operand:
    rows, cols = SHAPES[name]
    leading_slot = f"ld{name}"
    given = getattr(spec, leading_slot)
    if given is None:
        contiguous = cols if getattr(spec, name).order == "C" else rows
        leading = size_expr(contiguous, getattr(spec, contiguous))
    else:
        leading = size_expr(leading_slot, given)
    order = getattr(spec, name).order
    strides = {rows: leading, cols: ONE} if order == "C" else {rows: ONE, cols: leading}
    return Operand(name, getattr(spec, name).type, strides)


def _batch(spec: Gemm) -> BatchPlan | None:
    batch = spec.batch
    if batch is None:
        return None
    count = size_expr("count", batch.count)
    match batch:
        case Strided():
            strides = {}
            for name in "ab":
                given = getattr(batch, name)
                strides[name] = (
                    _tight(spec, name) if given is None else size_expr(f"stride_{name}", given)
                )
            return BatchPlan("strided", count, strides, {})
        case Offsets():
            static = {
                name: getattr(batch, name) for name in "ab" if getattr(batch, name) is not None
            }
            return BatchPlan("offsets", count, {}, static)
        case Addresses():
            return BatchPlan("addresses", count, {}, {})


def _tight(spec: Gemm, name: str) -> Expr:
    """The elements of one matrix whose lines are a leading dimension apart."""
    rows, cols = SHAPES[name]
    lines = rows if getattr(spec, name).order == "C" else cols
    leading = next(s for d, s in _operand(spec, name).strides.items() if d == lines)
    return size_expr(lines, getattr(spec, lines)) * leading


def legal_dimensions(spec: Gemm) -> tuple[Dimension, ...]:
    """The dimensions along which the operands that must be contiguous are, C's own first."""
    strides = {name: _operand(spec, name).strides for name in "abc"}
    needs: dict[Dimension, tuple[str, ...]] = {"n": ("b",), "m": ("a",), "k": ("a", "b")}
    legal = [d for d, names in needs.items() if all(value(strides[x][d]) == 1 for x in names)]
    return tuple(sorted(legal, key=lambda d: d == "k" or value(strides["c"][d]) != 1))


def _dimensions(spec: Gemm, schedule: Schedule) -> tuple[Dimension, ...]:
    legal, asked = legal_dimensions(spec), schedule.vectorize
    if asked is None:
        return legal if schedule.tile is None else legal[:1]
    if asked not in legal:
        raise ScheduleError(
            f"vectorize={asked!r} needs operands contiguous along {asked}",
            got=f"A in {spec.a.order} order, B in {spec.b.order} order",
            expected=f"one of {', '.join(map(repr, legal))}",
        )
    return (asked,)


def _estimate(plan: Plan) -> float:
    """The cost model's cycles; equal for all when a size is known only at the call."""
    across, along = value(plan.sizes[plan.across]), value(plan.sizes[plan.along])
    if not across or not along:
        return 0.0
    return choose(plan.target, across, along, True, plan.work(plan.sizes["k"], False)).cycles


def _loops(spec: Gemm, schedule: Schedule, along: str) -> tuple[str, str, str]:
    """(outer, inner, reason): the letters left of and right of the accumulators."""
    loops, reason = schedule.loops, "asked for"
    if loops is None:
        loops = ("nm" if along == "n" else "mn") + ("bk" if spec.batch else "k")
        reason = f"a panel along {along} stays in the cache while the other dimension passes"
    legal = "bnmk" if spec.batch else "nmk"
    if ("b" in loops) != (spec.batch is not None):
        raise ScheduleError(
            "loops must name b exactly when the spec has a batch", got=loops, hint=f'"{legal}"'
        )
    cut = max(loops.rfind("m"), loops.rfind("n")) + 1
    outer, inner = loops[:cut], loops[cut:]
    if inner not in ("", "b", "k", "bk"):
        raise ScheduleError(
            "right of the last m or n only b and k may stand, b first", got=loops, hint=f'"{legal}"'
        )
    for letter in "mnk":
        twice = loops.count(letter) == 2
        if twice != (letter in dict(schedule.block)):
            raise ScheduleError(
                f"block[{letter!r}] is the step of the first of two loops over {letter}",
                got=f"loops={loops!r}, block={dict(schedule.block)}",
                hint=f"name {letter} twice and give its block, or neither",
            )
    return outer, inner, reason


def _blocks(schedule: Schedule, loops: str) -> dict[str, int]:
    return dict(schedule.block)


def bound_of(shape: TileShape, target: Target) -> float:
    """The fraction of the multiply-add peak that the K loop of a tile can reach."""
    return shape.multiply_adds / target.core.fma_units / step_cycles(shape, target.core)

