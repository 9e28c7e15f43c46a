"""The plan of a row program: its passes, its vectors, and where it holds values between passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, fields

from sympy import Expr

from tilewright.errors import PlanError, ScheduleError
from tilewright.ir.stages import STACK_BYTES
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.spec.expression.nodes import Call, Expression, Number, every_node
from tilewright.spec.expression.tensors import Input
from tilewright.spec.network.places import Place
from tilewright.spec.network.value import Network, slot
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter, signature, symbol_of
from tilewright.spec.types import ITEMSIZE, is_integer
from tilewright.symbolic import ONE, ZERO, size_expr, value

from ..loops import Decided, Decision
from ..operands import Operand
from .passes import Cut, Held, Known, Pass, cut, operations

#: A reduction of a row has this number of partial results. Element j belongs to partial result j
#: modulo this number. At the end, one half of the partial results is combined with the other half,
#: until one is left. All targets use this order, so that all give the same bits. The number is a
#: multiple of the lanes of every vector type that is used.
PARTIAL = 64
#: A reduction of a column has this number of partial results. Element i belongs to partial result i
#: modulo this number.
TURNS = 4
#: A block of columns has at most this number of vectors.
_WIDEST = 4
#: Values of one row that are held between passes are on the stack if they take at most this number
#: of bytes. Larger ones are in the scratch memory of the call. If threads share the rows, larger
#: ones are computed again instead.
HELD_BYTES = 1 << 15
#: A trip of a pass computes several vectors of columns. Their number is that of the target's
#: registers divided by ``_SHARE``, and by the number of the pass's reductions.
_SHARE = 4
#: The maximum number of rows that each pass visits before the next pass begins. A processor then
#: folds the reductions of one row while it visits the next row.
_TOGETHER = 4


#: The default of ``RowPasses.fill``.
ZEROS = Number(0)


@dataclass(frozen=True, slots=True, repr=False)
class RowPasses:
    """Passes over one row, with everything that is needed to emit their operations.

    ``operands`` has the arrays by their names in C; the strides of rows are named ``m``, those of
    columns ``n``. ``held`` has for each held value the result in whose row it is stored, "" for a
    buffer. ``tile`` is the number of rows and columns of a trip, None if the pass decides.

    With ``any_order``, ``cols`` is known, and reductions are combined in the order that is fastest
    on the target. This is for integers, and for sums that may be rounded differently on each
    target. Results then have ``padded`` columns, a whole number of vectors, unless it is 0. Past
    the end of a row, passes read ``fill`` in place of elements.
    """

    target: Target
    cut: Cut
    real: str
    cols: Expr
    operands: Mapping[str, Operand] = field(hash=False)
    vector: Vector
    held: tuple[str, ...] = ()
    tile: tuple[int, int] | None = None
    any_order: bool = False
    padded: int = 0
    fill: Expression = ZEROS

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes over a row."""
        return self.cut.passes

    @property
    def together(self) -> int:
        """The number of rows that each pass visits before the next pass begins."""
        return 1

    @property
    def prefetching(self) -> int | None:
        """The number of the pass that prefetches the rows of the next block, None for no pass."""
        return None

    @property
    def far(self) -> tuple[str, ...]:
        """The arrays whose next rows are prefetched."""
        return ()

    @property
    def matrices(self) -> tuple[str, ...]:
        """The arrays that have elements of their own for each row and column, by name in C."""
        steps = {name: operand.strides for name, operand in self.operands.items()}
        return tuple(name for name, each in steps.items() if each["m"] != 0 and each["n"] != 0)

    def most(self, node: Expression) -> float | None:
        """Return an upper bound of ``node``: 0 for a value minus its row's maximum, else None."""
        match node:
            case Call(fn="sub", args=(x, Known() as top)):
                every = (each for one in self.passes for each in one.reductions)
                of_top = (each for each in every if each.known == top and each.fn == "max")
                return 0.0 if any(each.expression == x for each in of_top) else None
        return None

    @property
    def moved(self) -> frozenset[Expression]:
        """The integer inputs that are results themselves: their elements are only copied.

        There is none if the arithmetic is that of integers anyway.
        """
        if is_integer(self.real):
            return frozenset()
        results = (result for one in self.passes for result in (*one.stores, *one.ends))
        return frozenset(one for name, one in results if self.moves(name, one))

    def moves(self, name: str, expression: Expression) -> bool:
        """Return True if the result ``name`` is an input of its type.

        A sum of one element, for example, is such an input, but in another type.
        """
        if not isinstance(expression, Input) or not is_integer(expression.type):
            return False
        return self.operands[self.symbol(name)].type == expression.type

    def symbol(self, name: str) -> str:
        """Return the name in C of the result ``name``."""
        return next(key for key in self.operands if key.removesuffix("_") == name)

    def array(self, leaf: Expression) -> str:
        """Return the array that has the values of a leaf, by its name in C."""
        if isinstance(leaf, Held):
            name = self.held[leaf.number]
            return self.symbol(name) if name else f"held{leaf.number}"
        assert isinstance(leaf, Input | Known)
        return symbol_of(leaf.name) if isinstance(leaf, Input) else f"{leaf.name}_rows"

    def by_columns(self, leaf: Expression) -> bool:
        """Return True if a leaf has an element for each column."""
        if isinstance(leaf, Input):
            return self.cut.grid.of(leaf) in (Place.FULL, Place.COLUMN)
        return isinstance(leaf, Held)

    def shared(self, each: Pass) -> tuple[Expression, ...]:
        """Return the leaves of a pass that may be in the memory of a result that it writes."""
        made = [self.held[held.number] for held, _ in each.holds]
        written = {self.operands[self.symbol(name)].type for name, _ in each.stores}
        written |= {self.real for name in made if name}
        before = {held for held, _ in each.holds}

        def may(node: Expression) -> bool:
            if isinstance(node, Held):
                return node not in before and self.held[node.number] != ""
            return isinstance(node, Input) and node.type in written and self.cut.whole(node)

        return tuple(dict.fromkeys(node for node in every_node(each.visits) if may(node)))

    def in_place(self, each: Pass) -> bool:
        """Return True if the order of reading and writing matters for results in place.

        It does if what a pass reads for one value may be in the memory where it stores another.
        """
        stored = {id(made) for _, made in (*each.holds, *each.stores)}
        inputs = {node for node in self.shared(each) if isinstance(node, Input)}
        return any(
            inputs.intersection(every_node((made,))) and stored - {id(made)} for made in each.visits
        )

    def unroll(self, each: Pass) -> int:
        """Return how many adjacent vectors have partial results of their own."""
        return min(self._trip(len(each.reductions)), PARTIAL // self.vector.lanes)

    def periods(self, each: Pass) -> int:
        """Return how many times ``unroll`` vectors a trip of a pass computes."""
        wide = self.tile is None and self.vector.registers > 1
        return 1 if wide else self._trip(len(each.reductions)) // self.unroll(each)

    def _trip(self, reductions: int) -> int:
        """Return how many vectors a trip computes at most in a pass with so many reductions."""
        if self.tile is not None:
            return self.tile[1] // self.vector.lanes
        most = max(1, self.target.registers // _SHARE // max(1, reductions))
        return 1 << most.bit_length() - 1


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RowsPlan(RowPasses, Decided):
    """Every choice for a row program.

    ``work`` has the number of elementary operations of each pass for one column.
    """

    spec: Network
    schedule: Schedule
    decisions: tuple[Decision, ...] = ()
    rows: Expr
    work: tuple[int, ...]

    @property
    def parallel(self) -> bool:
        """True if threads share the rows, or the columns that are reduced."""
        return (self.schedule.threads or 1) > 1 and (self.columns or self.rows != 1)

    @property
    def columns(self) -> bool:
        """True if columns are reduced, block by block of columns."""
        return self.cut.columns

    @property
    def width(self) -> int:
        """The number of vectors in a block of columns that is reduced.

        For each vector and each reduction, ``TURNS`` partial results are in registers.
        """
        if self.schedule.tile is not None:
            return self.schedule.tile[1] // self.vector.lanes
        reductions = max(len(each.reductions) for each in self.passes)
        parts = TURNS * max(1, reductions) * self.vector.registers
        most = self.target.registers // (2 * parts)
        return max(1, min(1 << most.bit_length() - 1 if most else 1, _WIDEST))

    @property
    def resolved(self) -> Schedule:
        """The schedule with the tile that was chosen: one row by the columns of a trip."""
        widths = [self.unroll(each) * self.periods(each) for each in self.passes]
        vectors = self.width if self.columns else min(widths)
        return Schedule(tile=(1, vectors * self.vector.lanes), threads=self.schedule.threads)

    @property
    def together(self) -> int:
        """The number of rows that each pass visits before the next pass begins."""
        columns, known = value(self.cols), value(self.rows)
        if self.columns or len(self.passes) == 1 or columns is None:
            return 1
        if self.alternates:
            return 1
        row, core = columns * self.column_bytes, self.target.core
        buffers = columns * ITEMSIZE[self.real] * self.held.count("")
        fits = core.caches[0].size // 2 // max(row + buffers, 1)
        most = min(_TOGETHER, fits, HELD_BYTES // max(buffers, 1))
        return max(1, most if known is None else min(most, known))

    @property
    def column_bytes(self) -> int:
        """The bytes of a row in memory, for each column."""
        return sum(ITEMSIZE[self.operands[name].type] for name in self.matrices)

    def starved(self, rate: float) -> bool:
        """Return True if a row arrives later, at ``rate`` bytes per cycle, than it is computed."""
        vectors = self.vector.registers / self.vector.lanes
        work = vectors * sum(self.work) / self.target.core.fma_units
        return work < self.column_bytes / rate

    @property
    def alternates(self) -> bool:
        """True if transfers from beyond L2 limit the speed.

        All passes then visit one row before the next row begins: few bytes are read, then few are
        written. If several rows are read and then written, the transfers take longer.
        """
        rows, columns = value(self.rows), value(self.cols)
        if rows is None or columns is None:
            return False
        size, core = rows * columns * self.column_bytes, self.target.core
        return size > core.second.size and self.starved(core.rate(size))

    @property
    def far(self) -> tuple[str, ...]:
        """The matrices whose next rows are prefetched: those that may be too large for the stack.

        C compilers see that the next row would be past the end of a buffer on the stack.
        """
        rows = value(self.rows)
        sizes = {
            name: ITEMSIZE[each.type] * (value(each.strides["m"]) or 0) * (rows or 0)
            for name, each in self.operands.items()
        }
        return tuple(name for name in self.matrices if not 0 < sizes[name] <= STACK_BYTES)

    @property
    def prefetching(self) -> int | None:
        """The number of the pass that prefetches the rows of the next block, None for no pass.

        It is the pass with the most arithmetic, during which they arrive.
        """
        one = len(self.passes) == 1 or value(self.rows) == 1
        if self.columns or one or not self.far or self.starved(self.target.core.memory):
            return None
        return self.work.index(max(self.work))

    @property
    def in_scratch(self) -> tuple[str, ...]:
        """The buffers of held values in the scratch memory of a call: too large for the stack."""
        known = value(self.cols)
        buffers = [f"held{place}" for place, name in enumerate(self.held) if not name]
        small = known is not None and known * len(buffers) * ITEMSIZE[self.real] <= HELD_BYTES
        return () if small else tuple(buffers)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """For each tile program, the numbers of its passes."""
        every = tuple(range(len(self.passes)))
        return (every,) if self.together == 1 else tuple((number,) for number in every)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of all sizes that are known only at the call."""
        return self.spec.slots


def plan_rows(spec: Network, schedule: Schedule, target: Target) -> RowsPlan:
    """Return the plan of the row program ``spec``."""
    parameters = signature(spec)
    real = spec.real
    loaded = {each.type for each in parameters.arrays} & {"f32", "f64"} - {real}
    vector = widest(target, real, loaded)
    _check_schedule(schedule, tile_widths(target, vector))
    results = dict(zip(spec.names, spec.results, strict=True))
    found = cut(results)
    columns = found.grid.cols
    if found.columns and "" in _held(found, spec):
        found = cut(results, lambda count: not count)
    elif (schedule.threads or 1) > 1 and not _may_hold(_held(found, spec).count(""), columns, real):
        found = cut(results, lambda count: _may_hold(count, columns, real))
    cols = size_expr(slot(columns), columns)
    rows = size_expr(slot(found.grid.rows), found.grid.rows)
    operands = {each.symbol: _operand(each, found) for each in parameters.arrays}
    held = _held(found, spec)
    work = tuple(
        operations(each.visits, wide=real == "f64") + len(each.reductions) for each in found.passes
    )
    plan = RowsPlan(
        spec=spec, schedule=schedule, target=target, cut=found, real=real, rows=rows, cols=cols,
        operands=operands, vector=vector, held=held, tile=schedule.tile, work=work,
    )  # fmt: skip
    object.__setattr__(plan, "decisions", tuple(_decisions(plan)))
    return plan


def _may_hold(count: int, columns: object, real: str) -> bool:
    """Return True if ``count`` rows of ``columns`` values fit in the memory for held values."""
    known = columns if isinstance(columns, int) else None
    if not count:
        return True
    return known is not None and count * known * ITEMSIZE[real] <= HELD_BYTES


def _held(found: Cut, spec: Network) -> tuple[str, ...]:
    """Return for each held value the name of a result in whose row it is stored until it is needed.

    The name is "" if there is no such result. The result must have the type of the arithmetic, and
    the last pass must store it. No pass after the one that stores the value may read an input,
    because the result may be in the same array as an input.
    """
    free = [
        name
        for name, expression in found.passes[-1].stores
        if expression.tensor is not None and expression.tensor.type == spec.real
    ]  # fmt: skip
    places: list[str] = []
    reading = [
        index
        for index, each in enumerate(found.passes)
        if any(found.whole(node) for node in each.inputs())
    ]
    for index, each in enumerate(found.passes):
        reads = index < max(reading, default=-1)
        for _ in each.holds:
            places.append(free.pop() if free and not reads else "")
    return tuple(places)


def widest(target: Target, real: str, memory: Set[str] = frozenset()) -> Vector:
    """Return the widest vector type of ``real`` that can reduce rows.

    ``PARTIAL`` must be a multiple of its lanes, and the target must be able to exchange the two
    halves of a vector. It loads and stores elements of the types in ``memory`` too.
    """
    for vector in target.of(real):
        blocks = {1 << i for i in range(vector.lanes.bit_length() - 1)}
        converts = memory <= vector.loads.keys() & vector.stores.keys()
        if PARTIAL % vector.lanes == 0 and blocks <= set(vector.transpose) and converts:
            return vector
    raise PlanError(f"{target.name} has no vector of {real}", got=real)


def _operand(array: ArrayParameter, found: Cut) -> Operand:
    """Return an array with its strides along rows and columns."""
    rows, cols = (1, 1, *array.shape)[-2:] if len(array.shape) == 2 else (1, array.shape[0])
    if len(array.shape) == 1 and not found.columns and _is_per_row(array, found):
        rows, cols = array.shape[0], 1
    line = size_expr(slot(cols), cols)
    leading = line if array.leading is None else size_expr(slot(array.leading), array.leading)
    steps = {"m": ZERO if rows == 1 else leading, "n": ZERO if cols == 1 else ONE}
    return Operand(array.symbol, array.type, steps)


def _is_per_row(array: ArrayParameter, found: Cut) -> bool:
    return array.role != "in" and any(
        array.name == name for each in found.passes for name, _ in each.ends
    )


def tile_widths(target: Target, vector: Vector) -> tuple[int, ...]:
    """Return the legal numbers of columns of a trip, which the schedule's tile may ask for."""
    most = max(PARTIAL, target.registers // _SHARE * vector.lanes)
    return tuple(vector.lanes << power for power in range(8) if vector.lanes << power <= most)


def _check_schedule(schedule: Schedule, widths: tuple[int, ...]) -> None:
    """Raise ScheduleError if the schedule sets more than a tile and threads, or a wrong tile."""
    for name in (f.name for f in fields(Schedule)):
        if name not in ("tile", "threads") and getattr(schedule, name) != getattr(Schedule(), name):
            raise ScheduleError(
                f"a row program has no {name} to schedule",
                got=f"{name}={getattr(schedule, name)!r}",
                expected="tile=(1, columns of a trip), threads, or nothing",
            )
    if schedule.tile is None:
        return
    if schedule.tile[0] != 1 or schedule.tile[1] not in widths:
        raise ScheduleError(
            "a row program cannot have this tile",
            got=f"tile={schedule.tile}",
            expected=f"1 row, and {', '.join(map(str, widths))} columns",
        )


def _decisions(plan: RowsPlan) -> Iterator[Decision]:
    lanes = plan.vector.lanes
    whose = "column" if plan.columns else "row"
    yield Decision("vectors", f"{lanes} of {plan.real}", "the widest whose lanes can be folded")
    if plan.columns:
        why = "their partial results fit the registers"
        yield Decision("block", f"{plan.width * lanes} columns", why)
    yield Decision(
        "passes",
        str(len(plan.passes)),
        f"cut at the reductions, each of which needs all of a {whose} before the next pass",
    )
    for place, name in enumerate(plan.held):
        where = f"in the row of {name}" if name else "in a buffer of one row"
        where += " of the call's scratch memory" if f"held{place}" in plan.in_scratch else ""
        yield Decision(
            f"held{place}", where, "several passes need it, and it takes long to compute"
        )
    if len(plan.passes) > 1 and not plan.columns:
        yield from _blocks(plan)
    threads = plan.schedule.threads or 1
    yield Decision("threads", str(threads), f"each computes {whose}s of its own")


def _blocks(plan: RowsPlan) -> Iterator[Decision]:
    """Yield how many rows a pass visits before the next begins, and the pass that prefetches."""
    count = plan.together
    if value(plan.cols) is None:
        why = "the number of columns is known only at the call"
    elif plan.alternates:
        why = "transfers limit the speed, and take longer if several rows are read, then written"
    elif count in (_TOGETHER, value(plan.rows)):
        why = "the reductions of one row are folded while the next row is visited"
    else:
        why = "more do not fit the first cache, or the stack"
    yield Decision("rows", f"{count} in each pass", why)
    if (number := plan.prefetching) is not None:
        why = "it has the most arithmetic, which takes longer than the transfers"
        yield Decision("prefetch", f"the next {count} rows in pass {number}", why)
