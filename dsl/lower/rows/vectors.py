"""Values of vectors of columns: read leaves, compute expressions, reduce and store the results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.elementwise.builder import Argument, Builder, Value
from tilewright.elementwise.functions import lower_expression
from tilewright.elementwise.reductions import COMBINERS
from tilewright.ir.access import filled, load, store
from tilewright.ir.dataflow import reads, writes
from tilewright.ir.emitter import Emitter
from tilewright.ir.ops import Apply, Op, Splat, Store, Zero
from tilewright.ir.values import Active, Address, Register
from tilewright.plan.rows.passes import Held, Known, Pass, Reduction
from tilewright.plan.rows.plan import RowPasses
from tilewright.spec.expression.nodes import Expression, Number, every_node
from tilewright.spec.expression.tensors import Cast, Extent, Input
from tilewright.spec.network.value import slot
from tilewright.symbolic import ONE, ZERO, size_expr

#: The operations of several vectors interleave. Their number is that of the target's registers,
#: divided by this. If a vector is a group of registers, its operations have independent parts
#: already.
_SIDE_BY_SIDE = 3


class Lanes:
    """The values of one vector of columns; each is read or computed once.

    ``known`` has the registers of values that are already computed. ``pointers`` has the pointers
    to arrays that a loop visits, by the arrays' names in C. This vector is ``place`` vectors after
    the pointers. ``active`` lanes exist; the others are the plan's ``fill``. ``moved`` are the
    plan's: these leaves are read, and kept in ``known``, as integers.
    """

    def __init__(
        self,
        plan: RowPasses,
        emitter: Emitter,
        known: Mapping[Expression, Register],
        pointers: Mapping[str, str] | None = None,
        place: int = 0,
        active: Active = None,
    ) -> None:
        self.plan, self.emitter, self.known = plan, emitter, known
        self.pointers, self.place, self.active = pointers or {}, place, active
        self.made: dict[Expression, Argument] = {}
        self.moved = plan.moved
        self.elements: dict[Expression, Argument] = {}
        self.shared: tuple[Expression, ...] = ()

    def of(self, expression: Expression) -> Argument:
        """Return the value of an expression."""
        plan, builder = self.plan, self.emitter.builder
        return lower_expression(
            expression, builder, self.leaf, plan.real, self._entering, plan.most
        )

    def leaf(self, leaf: Expression) -> Argument:
        """Return the value of a leaf, as a number that is computed with."""
        if leaf not in self.made:
            found = self.element(leaf)
            self.made[leaf] = _real(self.emitter, found) if leaf in self.moved else found
        return self.made[leaf]

    def element(self, leaf: Expression) -> Argument:
        """Return the value of a leaf. If it is ``moved``, its integers are not converted."""
        if leaf not in self.elements:
            known = self.known.get(leaf)
            self.elements[leaf] = self._read(leaf) if known is None else self.emitter.take(known)
        return self.elements[leaf]

    def reduced(self, reduction: Reduction) -> Argument:
        """Return the lanes that a reduction combines with those of other vectors."""
        how = COMBINERS[reduction.fn]
        return how.of(self.emitter.builder, self.of(reduction.expression))

    def hold(self, each: Pass) -> None:
        """Compute and store the values that a pass holds for later passes.

        Before the first store of the pass, all leaves are read that may be in the memory of a
        result.
        """
        self.shared = self.plan.shared(each)
        for held, expression in each.holds:
            self.made[held] = self.of(expression)
            self.emitter.stage(f"store{self.place}")
            self._put(self.plan.array(held), self.made[held], self.plan.real, self.active)

    def store(
        self, name: str, expression: Expression, active: Active = None, note: str = ""
    ) -> None:
        """Compute and store the result ``name``, after the comment ``note``.

        ``active`` lanes exist; None means those of the vector.
        """
        base = self.plan.symbol(name)
        type_ = self.plan.operands[base].type
        if isinstance(expression, Cast) and expression.type == type_:
            (expression,) = expression.args  # the store rounds
        moved = expression in self.moved and self.plan.moves(name, expression)
        found = self.element(expression) if moved else self.of(expression)
        self.emitter.stage(f"store{self.place}", note=note)
        exist = None if self.plan.padded else self.active
        self._put(base, found, type_, exist if active is None else active)

    def _put(self, base: str, found: Argument, type_: str, active: Active) -> None:
        """Store ``found`` as elements of ``type_`` in the array ``base``.

        Integers have the range of ``type_`` already.
        """
        for leaf in self.shared:
            if leaf not in self.made:
                self.element(leaf)
        address = self._address(base)
        if isinstance(found, int) or (isinstance(found, Value) and found.element == "s32"):
            src = self.emitter.register(found)
            plain = "" if type_ == "s32" else type_
            group = 0 if not plain or plain in src.vector.stores else 1
            self.emitter.add(Store(address, src, active, plain, group))
            return
        element = found.element if isinstance(found, Value) else self.plan.real
        store(self.emitter, found, element, address, active, type_)

    def _entering(self, call: object) -> None:
        fn = getattr(call, "fn", "value")
        self.emitter.stage(f"{fn}{self.place}", family=fn)

    def _address(self, base: str) -> Address:
        return Address(self.pointers.get(base, base), self.place * self.emitter.lanes * ONE)

    def _read(self, leaf: Expression) -> Argument:
        plan, emitter = self.plan, self.emitter
        if isinstance(leaf, Extent):
            size = size_expr(slot(leaf.dim), leaf.dim)
            return emitter.splat(size, plan.real, f"{leaf.dim.name}_all{self.place}")
        base = plan.array(leaf)
        type_ = leaf.type if isinstance(leaf, Input) else plan.real
        if not plan.by_columns(leaf):
            return self._spread(base, type_, as_it_is=leaf in self.moved)
        name = f"{base.removesuffix('_')}{self.place}"
        found = load(emitter, self._address(base), self.active, type_, name)
        if leaf in self.moved:
            return found
        found = _real(emitter, found)
        if self.plan.fill == Number(0):
            return found
        return filled(emitter, found, self.active, self.of(self.plan.fill))

    def _spread(self, base: str, type_: str, *, as_it_is: bool) -> Argument:
        """Return the element at the pointer to ``base`` in all lanes."""
        name = f"{base}{self.place}"
        single = Emitter(self.plan.target, 1, f"{self.emitter.prefix}{name}_", self.plan.real)
        at = Address(self.pointers.get(base, base), ZERO)
        found = load(single, at, None, type_, "bits")
        register = single.register(found if as_it_is else _real(single, found))
        self.emitter.add(*single.emit())
        return self.emitter.spread(register, f"{name}_all")


def _real(emitter: Emitter, found: Argument) -> Argument:
    """Return integers as numbers of floating point, unless the arithmetic is of integers."""
    if emitter.builder.real == "s32" or getattr(found, "element", "") not in ("s32", "s64"):
        return found
    return emitter.builder("to_f32", found)


@dataclass(frozen=True, slots=True)
class Vector:
    """One vector of a pass: the registers of ``known`` values, and of its partial results.

    ``sums`` are the registers of the partial results, in the order of the pass's reductions.
    """

    known: Mapping[Expression, Register]
    sums: Sequence[Register] = ()


def side_by_side(
    plan: RowPasses,
    each: Pass,
    prefix: str,
    pointers: Mapping[str, str],
    vectors: Sequence[Vector],
    active: Active = None,
) -> list[Op]:
    """Return the operations of a pass on adjacent vectors; those of a few vectors interleave.

    The vectors begin one after the other, in equal distances. When the first is nearly done, the
    next ones are in the midst of their operations. If all were at the same operation at a time, a
    processor would find few independent operations where one group of vectors meets the next.
    """
    emitter = Emitter(plan.target, plan.vector.lanes, prefix, plan.real)
    parts: list[list[Op]] = []
    for place, vector in enumerate(vectors):
        lanes = Lanes(plan, emitter, vector.known, pointers, place, active)
        lanes.hold(each)
        for reduction, register in zip(each.reductions, vector.sums, strict=True):
            made = emitter.register(lanes.of(reduction.expression))
            name = f"{prefix}{reduction.known.name}_with{place}_"
            emitter.add(*included(plan, reduction.fn, register, made, name))
        for name, expression in each.stores:
            lanes.store(name, expression)
        parts.append(list(emitter.emit()))
    grouped = plan.vector.registers > 1
    width = 1 if grouped else max(1, plan.target.registers // _SIDE_BY_SIDE)
    return list(_in_turns(parts, -(-max(map(len, parts)) // width)))


def _in_turns(parts: Sequence[Sequence[Op]], distance: int) -> Iterator[Op]:
    """Yield one operation of each part in turn. The order within each part stays.

    Constants come first. A part begins ``distance`` turns after the part before it. It waits while
    its next operation reads a register that a part before it has not written yet. In this order,
    which compilers mostly keep, a processor finds more independent operations.
    """
    yield from (op for part in parts for op in part if _is_constant(op))
    queues = [deque(op for op in part if not _is_constant(op)) for part in parts]
    #: For each register, the parts that have not written it yet, in their order.
    writers: dict[str, deque[int]] = {}
    for number, queue in enumerate(queues):
        for register in (register for op in queue for register in writes(op)):
            writers.setdefault(register.name, deque()).append(number)
    turn = 0
    while any(queues):
        begun, turn = turn // max(1, distance) + 1, turn + 1
        for number, queue in enumerate(queues[:begun]):
            names = [register.name for register in reads(queue[0])] if queue else []
            if queue and all(not writers.get(n) or writers[n][0] >= number for n in names):
                op = queue.popleft()
                for register in writes(op):
                    writers[register.name].popleft()
                yield op


def _is_constant(op: Op) -> bool:
    return isinstance(op, Splat) and bool(op.label)


# --- reductions --------------------------------------------------------------------------------


def begin(emitter: Emitter, fn: str, name: str, real: str) -> Register:
    """Return a new register with the value with which a reduction begins in all lanes."""
    how = COMBINERS[fn]
    register = emitter.fresh(name, how.element or real)
    emitter.add(Zero(register))
    if how.start:
        infinity = emitter.register(float("inf"))
        emitter.add(Apply(register, "sub" if how.start < 0 else "add", (register, infinity)))
    return register


def both(b: Builder, fn: str, x: Argument, y: Argument) -> Argument:
    """Return two values combined by the function of a reduction."""
    return COMBINERS[fn].both(b, x, y)


def halved(
    b: Builder, fn: str, part: Callable[[int], Argument], count: int, first: int = 0, step: int = 1
) -> Argument:
    """Combine ``part(first)``, ``part(first + step)`` and so on below ``count`` to one value.

    Each partial result of the first half is combined with one of the second half, until one is
    left. ``part`` is called as late as possible, so that few of them are in registers.
    """
    if step == count:
        return part(first)
    halves = (halved(b, fn, part, count, start, 2 * step) for start in (first, first + step))
    return both(b, fn, *halves)


def included(
    plan: RowPasses, fn: str, register: Register, made: Register, prefix: str
) -> Iterator[Op]:
    """Yield the operations that reduce ``made`` into ``register``."""
    emitter = Emitter(plan.target, plan.vector.lanes, prefix, plan.real)
    both(emitter.builder, fn, emitter.take(register), emitter.take(made))
    *before, last = emitter.emit()
    assert isinstance(last, Apply)
    yield from before
    yield replace(last, dst=register, again=register not in last.args)


def arrays_of(
    plan: RowPasses, each: Pass, known: Iterable[Expression]
) -> dict[str, tuple[str, bool]]:
    """Return for each array of a pass, by name, its element type and whether the pass writes it.

    Leaves that are ``known`` are in registers.
    """
    found: dict[str, tuple[str, bool]] = {}
    registers = set(known)
    for node in every_node(each.visits):
        if isinstance(node, Input) and node not in registers:
            found.setdefault(plan.array(node), (node.type, False))
        elif isinstance(node, Held):
            found.setdefault(plan.array(node), (plan.real, False))
    for held, _ in each.holds:
        found[plan.array(held)] = plan.real, True
    for name, _ in each.stores:
        base = plan.symbol(name)
        found[base] = plan.operands[base].type, True
    return found


def knowns_in(expressions: Iterable[Expression]) -> Iterator[Known]:
    """Yield the values of the whole row that expressions use."""
    return (node for node in every_node(tuple(expressions)) if isinstance(node, Known))
