"""A stack of products: one after another, or several side by side in each vector.

Side by side, lane i of a vector has an element of product i. Groups of A and B are transposed into
this form, multiplied, and C is transposed back. Remaining products that do not fill a vector are
multiplied singly, by the same tiles with one lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import isfinite, prod

from sympy import Expr, Integer

from tilewright.errors import ScheduleError
from tilewright.ir.stages import STACK_BYTES
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.gemm import SHAPES, Gemm
from tilewright.spec.operands import Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, most_of
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import div, size_expr, value

from ..by_rows import plan_product
from ..loops import Decided, Decision, threads_decision
from ..operands import BatchPlan, Operand, batch_stride, operand_of
from ..plan import ByRows, Plan
from ..planner import layout_cycles
from ..problem import NOMINAL, same_types
from ..tiling.parts import exact_parts
from .transpose import cover

#: A tile leaves this number of registers free, for the computation of C from the sums.
SPARE = 2
#: Tiles of at most this number of rows and columns are compared. If a matrix is larger, tiles read
#: it from a buffer anyway, so that larger tiles gain little.
MOST = 8
#: If sizes are known only at the call, tiles of at most this number of rows and columns are
#: compared. It is less than ``MOST``, because the kernel has a tile for each possible remainder.
FEW = 4
#: If sizes are known only at the call, a product takes this number of cycles to select its tiles.
DECIDING = 25
#: A size is assumed to be this number if the spec gives neither its value nor a limit.
UNKNOWN = 8
#: Products side by side take this many times the cycles of their moves and multiply-adds, because
#: loads wait for recent stores. It was measured on Zen 4 for 3x3 to 8x8 in f32 and f64.
WAITING = 1.5


@dataclass(frozen=True, slots=True, repr=False)
class StackPlan(Decided):
    """A stack of products with every choice made.

    ``each`` is the plan of one product if products run one after another. If it is None, products
    are side by side: ``vectors`` are the vector types, widest first, and ``tile`` is (mr, nr), the
    elements of C in a tile. ``batch`` has the strides of A, B and C, or D. ``parallel`` is True if
    threads share products, or groups of them.
    """

    spec: Gemm
    schedule: Schedule
    target: Target
    sizes: Mapping[str, Expr] = field(hash=False)
    operands: Mapping[str, Operand] = field(hash=False)
    batch: BatchPlan
    decisions: tuple[Decision, ...]
    parallel: bool
    each: Plan | ByRows | None
    vectors: tuple[Vector, ...] = ()
    tile: tuple[int, int] = (0, 0)

    @property
    def element(self) -> str:
        """The type of the accumulators."""
        return self.spec.type

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of all sizes that are known only at the call."""
        return tuple(slot for slot, _ in self.spec.runtime_sizes())

    def elements(self, name: str) -> Expr:
        """Return the number of elements in one matrix."""
        rows, columns = (self.sizes[d] for d in SHAPES[name])
        return rows * columns

    def room(self, name: str) -> int | None:
        """Return the most elements that one matrix may have; None if the spec sets no limit."""
        return _most(self.spec, name)

    @property
    def work(self) -> Expr:
        """The work of one product, or of a group of products, in vector multiply-adds."""
        multiplied = prod(self.sizes.values(), start=Integer(1))
        moved = sum((self.elements(name) for name in "abc"), Integer(0))
        if self.each is None:
            return multiplied + 4 * moved
        return div(multiplied, self.target.of(self.element)[0].lanes) + moved


def plan_stack(spec: Gemm, schedule: Schedule, target: Target) -> StackPlan:
    """Return the plan; raise ScheduleError if spec and schedule contradict each other."""
    loops = schedule.loops
    if loops is not None and (loops[0] not in "bB" or len(loops) == 1):
        raise ScheduleError(
            "a stack of products has the loop over them outside",
            got=loops,
            hint=repr(f"b{loops.replace('b', '').replace('B', '') or 'nmk'}"),
        )
    against = _against(spec, schedule, target)
    if schedule.vectorize == "b" and against:
        raise ScheduleError(
            f"products cannot stand side by side in vectors: {against}",
            got="vectorize='b'",
            hint="leave vectorize out, and they are computed one after the other",
        )
    each = None if schedule.vectorize == "b" else _one(spec.alone(), schedule, target)
    reason = "asked for"
    if each is not None and schedule.vectorize is None:
        alone = _alone(spec, schedule, target)
        beside = float("inf") if against else _beside(spec, target)
        if beside < alone:
            each = None
        reason = f"estimated at {min(alone, beside):.0f} cycles a product; "
        reason += against or f"the other way {max(alone, beside):.0f}"
    return _stack(spec, schedule, target, each, reason)


def _stack(
    spec: Gemm, schedule: Schedule, target: Target, each: Plan | ByRows | None, reason: str
) -> StackPlan:
    assert isinstance(spec.batch, Strided)
    parallel = _parallel(schedule, each)
    vectors = () if each is not None else _vectors(target, spec.type)
    tile = schedule.tile or (_tile(spec, target) if each is None else (0, 0))
    names = [name for name in ("a", "b", "b2", "c", "d") if getattr(spec, name) is not None]
    how = "one after the other" if each else f"{vectors[0].lanes} side by side in a vector"
    decisions = [Decision("products", how, reason), *threads_decision(schedule, "B" * parallel)]
    if each is None:
        why = "asked for" if schedule.tile else "fewest loads that leave no register out"
        decisions.append(Decision("tile", f"{tile[0]}x{tile[1]} elements of C", why))
    return StackPlan(
        spec=spec,
        schedule=schedule,
        target=target,
        sizes={slot: size_expr(slot, getattr(spec, slot)) for slot in "mnk"},
        operands={name: _operand(spec, name, each) for name in names},
        batch=_batch(spec, names, each),
        decisions=(*decisions, *(each.decisions if each else ())),
        parallel=parallel,
        each=each,
        vectors=vectors,
        tile=tile,
    )


def _operand(spec: Gemm, name: str, each: Plan | ByRows | None) -> Operand:
    """Return operand ``name`` as the caller gives it, packed or not.

    B2, the B of a second product, has the layout of B.
    """
    packed = isinstance(getattr(spec, name), Packed)
    return each.nests[0].staging.operands[name[0]] if each and packed else operand_of(spec, name)


def _batch(spec: Gemm, names: list[str], each: Plan | ByRows | None) -> BatchPlan:
    assert spec.batch is not None
    strides = {name: _stride(spec, name, each) for name in names}
    return BatchPlan("strided", size_expr("count", spec.batch.count), strides, {})


def _stride(spec: Gemm, name: str, each: Plan | ByRows | None) -> Expr:
    """Return the elements from one matrix to the next; packed matrices are contiguous."""
    if isinstance(getattr(spec, name), Packed) and spec.stride(name) is None:
        return _operand(spec, name, each).strides["b"]
    return batch_stride(spec, name)


def _parallel(schedule: Schedule, each: Plan | ByRows | None) -> bool:
    """True if threads share the products of the stack.

    The schedule asks for this by the loop ``B``, or by threads without loops. Without loops it is
    not done if a product needs buffers, because there is only one scratch memory. Threads then
    share each product instead.
    """
    if schedule.threads == 1:
        return False
    if schedule.loops:
        return schedule.loops[0] == "B"
    return (schedule.threads or 1) > 1 and (each is None or not any(map(has_buffers, each.nests)))


def has_buffers(plan: Plan) -> bool:
    """True if a product has buffers that may be too large for a thread's stack."""
    # A matrix unit reads the tail of K from a buffer.
    copied = any(f"{name}_tail" in plan.staging.operands for name in "ab")
    return (
        copied
        or bool(plan.staging.sources or plan.staging.packs)
        or plan.partial
        or plan.staging.corrects
    )


# --- one after the other -----------------------------------------------------------------------


def _one(alone: Gemm, schedule: Schedule, target: Target) -> Plan | ByRows:
    """Return the plan of one product."""
    if schedule.loops is not None:
        inner = schedule.loops[1:]
        threads = schedule.threads if inner != inner.lower() else None
        return plan_product(alone, replace(schedule, loops=inner, threads=threads), target)
    plan = plan_product(alone, replace(schedule, threads=None), target)
    if schedule.threads is None or _parallel(schedule, plan):
        return plan
    return plan_product(alone, schedule, target)


def _alone(spec: Gemm, schedule: Schedule, target: Target) -> float:
    """Return the estimated cycles of one product of the assumed sizes."""
    alone, sizes = spec.alone(), _counted(spec)
    decides = any(isinstance(getattr(spec, d), Dim) for d in "mnk")
    plan = _one(alone.with_sizes(**sizes), schedule, target)
    return (DECIDING if decides else 0) + layout_cycles(plan.nests[0], UNKNOWN, NOMINAL**3)


# --- side by side ------------------------------------------------------------------------------


def _against(spec: Gemm, schedule: Schedule, target: Target) -> str:
    """Return why products cannot be side by side in vectors; "" if they can."""
    item = ITEMSIZE[spec.type]
    if (
        not same_types(spec)
        or spec.d is not None
        or spec.c.type != spec.type
        or spec.b2 is not None
    ):
        return "A, B and C have to be of the sums' type, without D"
    if "scalar" in (spec.alpha, spec.beta):
        return "alpha and beta are numbers of the call"
    if not _vectors(target, spec.type)[:-1]:
        return f"no vectors of {target.name} are transposed"
    if any(getattr(spec, f"ld{name}") is not None for name in "abc"):
        return "matrices with a leading dimension do not lie in one piece"
    if 0 in (spec.stride("a"), spec.stride("b")):
        return "one matrix serves all of them"
    if schedule.loops is not None and schedule.loops[1:] not in ("mnk", "nmk"):
        return f"loops={schedule.loops!r} asks for more than loops over tiles"
    for name in ("block", "k_unroll", "k_split", "pack", "prefetch"):
        if getattr(schedule, name):
            return f"{name} is a choice of one product's"
    if schedule.tile is not None:
        sizes = _counted(spec)
        mr, nr = (min(size, sizes[d]) for size, d in zip(schedule.tile, "mn", strict=True))
        if (needed := _registers(mr, nr)) > target.registers:
            return f"{mr}x{nr} elements of C need {needed} registers of {target.registers}"
    if 0 in (spec.m, spec.n, spec.k):
        return "there is nothing to multiply"
    lanes = target.of(spec.type)[0].lanes
    for name in "abc":
        most = _most(spec, name)
        if most is None or most * lanes * item > STACK_BYTES:
            size = "a size without limit" if most is None else f"{most * lanes * item} bytes"
            return f"{lanes} of {name.upper()} take {size}, and the stack has {STACK_BYTES}"
    return ""


def _most(spec: Gemm, name: str) -> int | None:
    most = prod(most_of(getattr(spec, d)) for d in SHAPES[name])
    return int(most) if isfinite(most) else None


def _vectors(target: Target, element: str) -> tuple[Vector, ...]:
    """Return the widest vector type that can be transposed, and the scalar type."""
    found = target.of(element)
    wide = [v for v in found if v.transposes and v.lanes > 1 and v.muladd]
    return (*wide[:1], found[-1])


def _counted(spec: Gemm) -> dict[str, int]:
    """Return sizes as the estimate assumes them."""
    sizes = {d: getattr(spec, d) for d in "mnk"}
    return {
        d: min(UNKNOWN, size.max or UNKNOWN) if isinstance(size, Dim) else size
        for d, size in sizes.items()
    }


def side_by_side(spec: Gemm, target: Target) -> float | None:
    """Return the estimated cycles of one of several products that are side by side in vectors.

    None if products of this spec cannot be side by side.
    """
    return None if _against(spec, Schedule(), target) else _beside(spec, target)


def beside_cycles(plan: StackPlan, sizes: Mapping[str, int]) -> float:
    """Return the cycles of one product of these sizes if each lane computes another product."""
    return _beside(plan.spec, plan.target, sizes)


def _beside(spec: Gemm, target: Target, given: Mapping[str, int] | None = None) -> float:
    """Return the cycles of one product: moves and multiply-adds. Each lane has another product."""
    sizes, vector = given or _counted(spec), _vectors(target, spec.type)[0]
    moved = {name: prod(sizes[d] for d in SHAPES[name]) for name in "abc"}
    moved["c"] *= 1 if spec.beta == 0 else 2
    lanes = vector.lanes
    each = cover(target, spec.type, lanes, lanes).cycles(target.core) / lanes
    multiplied = _tile_cycles(sizes, target, _tile(spec, target))
    return WAITING * (each * sum(moved.values()) + multiplied) / lanes


def _tile(spec: Gemm, target: Target) -> tuple[int, int]:
    """Return the tile whose multiply-adds wait least for loads."""
    sizes, registers = _counted(spec), target.registers - SPARE
    known = isinstance(spec.m, int) and isinstance(spec.n, int)
    most = {d: max(1, min(MOST if known else FEW, sizes[d])) for d in "mn"}
    shapes = (
        (mr, nr)
        for mr in range(1, most["m"] + 1)
        for nr in range(1, most["n"] + 1)
        if _registers(mr, nr) <= registers
    )
    return min(shapes, key=lambda tile: (_tile_cycles(sizes, target, tile), tile))


def _registers(mr: int, nr: int) -> int:
    """Return the registers of a tile: its sums, a column of A, and one element of B."""
    return mr * nr + mr + 1


def _tile_cycles(sizes: Mapping[str, int], target: Target, tile: tuple[int, int]) -> float:
    """Return the cycles of all tiles of a group, from loads, multiply-adds and latency."""
    core, k = target.core, sizes["k"]
    total = 0.0
    for rows, down in _extents(sizes["m"], tile[0]):
        for columns, over in _extents(sizes["n"], tile[1]):
            accumulators = rows * columns
            step = max(
                accumulators / core.fma_units,
                (rows + columns) / core.loads,
                (accumulators + rows + columns) / core.issue,
            )
            total += down * over * (k * step + accumulators / core.stores + core.fma_latency)
    return total


@lru_cache(maxsize=256)
def _extents(size: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return the sizes of tiles in ``size`` elements, and the number of each."""
    return tuple(_found(size, most))


def _found(size: int, most: int) -> Iterator[tuple[int, int]]:
    for part in exact_parts(Integer(size), most):
        yield part.units, value(part.count) or 0
