"""Resolve spec, schedule and target into numbers: every decision, with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sympy import Expr

from .errors import ScheduleError, SpecError
from .isa import Target, Vector, uncut
from .model import Work, choose
from .operands import Addresses, Offsets, Strided
from .schedule import Schedule
from .spec import SHAPES, Gemm
from .symbolic import ONE, size_expr, value
from .types import ITEMSIZE

Dimension = Literal["m", "n", "k"]
#: A packed block up to this many bytes lies on the stack.
STACK_BYTES = 32 * 1024
#: The dimension the vectors lie along, and the operands to pack, of "ab".
Layout = tuple[Dimension, str]
#: Which operands must be contiguous along a dimension for vectors to lie along it.
_NEEDS: tuple[tuple[Dimension, str], ...] = (("n", "b"), ("m", "a"), ("k", "ab"))


@dataclass(frozen=True, slots=True)
class Decision:
    """One resolved choice, as ``explain`` prints it."""

    what: str
    choice: str
    reason: str


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand's strides in elements, by dimension; ``buffer`` is where it lies, if packed."""

    name: str
    type: str
    strides: Mapping[str, Expr] = field(hash=False)
    buffer: str = ""

    def __post_init__(self) -> None:
        if not self.buffer:
            object.__setattr__(self, "buffer", self.name)


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
    ``k``: n). ``outer`` are the loops over blocks, ``inner`` those around the accumulators;
    upper case runs in parallel.
    ``transposed``: C is contiguous across the vectors, so tiles are transposed when stored.
    ``packs`` are the operands that are packed, of "ab".
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
    packs: str
    decisions: tuple[Decision, ...]

    @property
    def element(self) -> str:
        """The type of the accumulators."""
        return self.spec.type

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The target's vectors that can do what this plan asks of them, widest first."""
        vectors = self.target.of(self.element)
        if self.transposed:
            return tuple(v for v in vectors if v.transposes and (self.bounces or v.cuts_any))
        return tuple(v for v in vectors if v.cuts_any) if self.dot else vectors

    @property
    def dot(self) -> bool:
        """Whether the vectors lie along K."""
        return self.vectorize == "k"

    @property
    def bounces(self) -> bool:
        """Whether the tail of a tile is computed as a whole vector, and part of it copied."""
        return self.schedule.tails == "bounce"

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
            bounces=self.bounces,
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
    plans = [_plan_along(layout, spec, schedule, target) for layout in _layouts(spec, schedule)]
    costs = [_estimate(plan) if len(plans) > 1 else 0.0 for plan in plans]
    best = min(zip(costs, range(len(plans)), strict=True))[1]
    return replace(plans[best], decisions=(*_why(plans, costs, best), *plans[best].decisions))


def _why(plans: list[Plan], costs: list[float], best: int) -> tuple[Decision, ...]:
    plan = plans[best]
    if len(plans) == 1:
        reason = "asked for" if plan.schedule.vectorize else "the only way the operands allow"
    else:
        others = ", ".join(
            f"{p.vectorize}{' with packing ' + p.packs if p.packs else ''} {cost:.0f}"
            for p, cost in zip(plans, costs, strict=True)
            if p is not plan
        )
        reason = f"estimated at {costs[best]:.0f} cycles; {others}"
    along = Decision("vectorize", plan.vectorize, reason)
    if not plan.packs:
        return (along,)
    how = "padded to whole vectors, for tails='bounce'" if plan.bounces else "contiguous"
    why = "asked for" if plan.schedule.pack == plan.packs else f"so that the vectors are {how}"
    return (along, Decision("pack", plan.packs, why))


def _plan_along(layout: Layout, spec: Gemm, schedule: Schedule, target: Target) -> Plan:
    vectorize, packs = layout
    if not target.of(spec.type):
        raise SpecError(f"{target.name} has no vectors of {spec.type}", hint="another target")
    sizes = {slot: size_expr(slot, getattr(spec, slot)) for slot in "mnk"}
    operands = {name: _operand(spec, name) for name in "abc"}
    batch = _batch(spec)
    along = "m" if vectorize == "k" else vectorize
    outer, inner, loop_reason = _loops(spec, schedule, along, packs)
    decisions = (Decision("loops", outer + inner, loop_reason), *_threads(schedule, outer))
    return Plan(
        spec=spec,
        schedule=schedule,
        target=uncut(target) if schedule.tails == "bounce" else target,
        vectorize=vectorize,
        across="n" if along == "m" else "m",
        transposed=vectorize != "k" and value(operands["c"].strides[vectorize]) != 1,
        outer=outer.lower() if schedule.threads == 1 else outer,
        inner=inner,
        blocks=dict(schedule.block),
        sizes=sizes,
        operands=operands,
        batch=batch,
        packs=packs,
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
    """The dimensions along which vectors may lie without packing, C's contiguous one first."""
    return tuple(dimension for dimension, packs in _layouts(spec, Schedule()) if not packs)


def _layouts(spec: Gemm, schedule: Schedule) -> tuple[Layout, ...]:
    """(dimension of the vectors, operands to pack) to choose from: unpacked ones first."""
    strides = {name: _operand(spec, name).strides for name in "abc"}
    may_pack = schedule.pack is None and schedule.tile is None and _packable(spec, schedule)
    found: list[Layout] = []
    for dimension, needs in _NEEDS:
        if schedule.vectorize not in (None, dimension):
            continue
        packs: str = schedule.pack or ""
        if schedule.tails == "bounce":
            if dimension == "k" or not isinstance(getattr(spec, dimension), int):
                continue
            packs = "".join(sorted({*packs, *needs}))
        missing = [x for x in needs if value(strides[x][dimension]) != 1 and x not in packs]
        if dimension == "k":
            if not missing and not packs:
                found.append((dimension, ""))
        elif not missing:
            found.append((dimension, packs))
        elif may_pack or (schedule.vectorize and _packable(spec, schedule)):
            found.append((dimension, "".join(sorted({*packs, *missing}))))
    if not found:
        raise _no_layout(spec, schedule)
    found.sort(key=lambda x: (x[1] != "", x[0] == "k" or value(strides["c"][x[0]]) != 1))
    return tuple(found[:1] if schedule.tile is not None else found)


def _packable(spec: Gemm, schedule: Schedule) -> bool:
    """Whether the batch does not stand inside the accumulators' loops."""
    loops = schedule.loops
    return spec.batch is None or loops is None or "b" in loops[: _outer_length(loops)]


def _no_layout(spec: Gemm, schedule: Schedule) -> ScheduleError:
    if schedule.tails == "bounce":
        return ScheduleError(
            "tails='bounce' needs vectors along m or n, of a size known when it is compiled",
            got=f"vectorize={schedule.vectorize!r}, m={spec.m!r}, n={spec.n!r}",
            hint="tails='auto', or vectorize along a size that is an int",
        )
    return ScheduleError(
        f"with vectorize={schedule.vectorize!r} and pack={schedule.pack!r} no vector is contiguous",
        got=f"A in {spec.a.order} order, B in {spec.b.order} order, loops={schedule.loops!r}",
        expected="'n' needs B contiguous along n, 'm' A along m, 'k' both along k, or packing",
        hint="leave vectorize out, or put b left of m and n so that operands can be packed",
    )


def _estimate(plan: Plan) -> float:
    """The cost model's cycles; equal for all when a size is known only at the call.

    What nobody asked to pack must fit on the stack well: scratch memory is one more parameter.
    """
    extents = {d: value(plan.sizes[d]) for d in "mnk"}
    across, along, depth = extents[plan.across], extents[plan.along], extents["k"]
    if not across or not along or not depth:
        return 0.0
    product = choose(plan.target, across, along, True, plan.work(plan.sizes["k"], False)).cycles
    lines = {"a": extents["m"] or 0, "b": extents["n"] or 0}
    unasked = plan.packs if not (plan.schedule.pack or plan.schedule.vectorize) else ""
    if any(2 * depth * lines[x] * ITEMSIZE[plan.element] > STACK_BYTES for x in unasked):
        return float("inf")
    packing = sum(depth * lines[name] * _move_cycles(plan, name) for name in plan.packs)
    times = (value(plan.batch.count) or 1) if plan.batch and "b" in plan.outer else 1
    return times * (product + packing)


def _move_cycles(plan: Plan, name: str) -> float:
    """Cycles to pack one element: a load, a store, the shuffles of a transposition, overlapped."""
    core, line = plan.target.core, "m" if name == "a" else "n"
    vectors = plan.target.of(plan.element)
    shuffles = 0
    if value(plan.operands[name].strides[line]) != 1:
        vectors = tuple(v for v in vectors if v.transposes)
        shuffles = vectors[0].lanes.bit_length() - 1
    per_vector = max(1 / core.loads, 1 / core.stores, shuffles / core.shuffles)
    return per_vector / vectors[0].lanes


def _outer_length(loops: str) -> int:
    return max(map(loops.lower().rfind, "mn")) + 1


def _loops(spec: Gemm, schedule: Schedule, along: str, packs: str) -> tuple[str, str, str]:
    """(outer, inner, reason): the letters left of and right of the accumulators."""
    loops, reason = schedule.loops, "asked for"
    if loops is None:
        grid = "nm" if along == "n" else "mn"
        grid = grid.upper() if (schedule.threads or 1) > 1 else grid
        loops = f"b{grid}k" if spec.batch and packs else grid + ("bk" if spec.batch else "k")
        reason = f"a panel along {along} stays in the cache while the other dimension passes"
    legal = "bnmk" if spec.batch else "nmk"
    if ("b" in loops) != (spec.batch is not None):
        raise ScheduleError(
            "loops must name b exactly when the spec has a batch", got=loops, hint=f'"{legal}"'
        )
    cut = _outer_length(loops)
    outer, inner = loops[:cut], loops[cut:]
    if inner not in ("", "b", "k", "bk"):
        raise ScheduleError(
            "right of the last m or n only b and k may stand, b first", got=loops, hint=f'"{legal}"'
        )
    if packs and "b" in inner:
        raise ScheduleError(
            "packing needs the batch loop left of m and n",
            got=f"loops={loops!r}, pack={packs!r}",
            hint=f'"{legal}"',
        )
    for letter in "mnk":
        twice = loops.lower().count(letter) == 2
        if twice != (letter in dict(schedule.block)):
            raise ScheduleError(
                f"block[{letter!r}] is the step of the first of two loops over {letter}",
                got=f"loops={loops!r}, block={dict(schedule.block)}",
                hint=f"name {letter} twice and give its block, or neither",
            )
    return outer, inner, reason


def _threads(schedule: Schedule, outer: str) -> tuple[Decision, ...]:
    if outer == outer.lower():
        return ()
    if schedule.threads is None:
        return (Decision("threads", "at most one for each CPU", "as many as the process may use"),)
    return (Decision("threads", f"at most {schedule.threads}", "asked for"),)
