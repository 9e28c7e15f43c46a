"""Put stages of a network into one loop over blocks of rows, as the user's ``Stages`` say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import ceil

from sympy import Expr, expand

from tilewright.errors import ScheduleError
from tilewright.ir.nest import Name
from tilewright.ir.stages import Buffer
from tilewright.spec.network.stages import Stage, Stages
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ZERO, symbol, value

from .block import HERE, Block
from .joined import least
from .placed import same
from .step import Opening, Rows, Step

#: Minimum number of rows of a block that threads share, in general and in attention. With fewer
#: rows, a product takes longer for each row. Each block of an attention reads all keys and values.
_LEAST, _LEAST_OF_ATTENTION = 4, 8
#: A block that threads share takes at least this many times as long as a parallel region costs.
#: With 1, a second thread would save as much time as it costs, but small blocks take longer for
#: each row.
_WORTH = 1.5
#: If threads can share the loops of a single block instead, rows are cut into several blocks only
#: if a block takes at least this many times as long as reading the weights, which each thread must
#: read for its block.
_STREAMED = 2

#: A stage of the user, and the numbers of its products and row programs.
Group = tuple[Stage, range]


def grouped(stages: Stages, steps: Sequence[Step]) -> tuple[Group, ...]:
    """Return every stage, also those that the user leaves open, in the order in which they run."""
    names = [step.name for step in steps]
    places = numbers_of(steps)
    products = {step.name for step in steps if step.product is not None}
    for name, _ in stages.products:
        if name not in products:
            raise ScheduleError(
                f"the network has no product {name!r}",
                got=stages,
                expected=_listed(sorted(products)),
            )
    found: dict[int, Group] = {}
    named: set[int] = set()
    for stage in stages.stages:
        if unknown := [name for name in stage.names if name not in places]:
            raise ScheduleError(
                f"the network has nothing called {unknown[0]!r}", got=stage, expected=_listed(names)
            )
        numbers = [number for name in stage.names for number in places[name]]
        whole = range(min(numbers), max(numbers) + 1)
        if list(whole) != numbers:
            given = " ".join(names[number] for number in whole)
            raise ScheduleError(
                "a stage has names that follow each other, in the order in which they run",
                got=stage,
                expected=_listed(names),
                hint=f"tw.{Stage(given, stage.rows, at=dict(stage.at))!r}",
            )
        if twice := named.intersection(whole):
            raise ScheduleError(
                f"{names[min(twice)]!r} is in two stages", got=stages, hint="name it once"
            )
        named.update(whole)
        found[whole.start] = stage, whole
    for number, name in enumerate(names):
        if number not in named:
            found[number] = Stage(name), range(number, number + 1)
    return tuple(found[number] for number in sorted(found))


def numbers_of(steps: Sequence[Step]) -> Mapping[str, Sequence[int]]:
    """Return, for each name, the numbers of the stages that have it."""
    found: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        for name in step.names:
            found.setdefault(name, []).append(number)
    return found


def resolved(stages: Stages, groups: Sequence[Group]) -> Stages:
    """Return the schedule with all stages."""
    every = (stage for stage, _ in groups)
    return Stages(*every, products=stages.products, threads=stages.threads)


def openings(groups: Sequence[Group], steps: Sequence[Step]) -> dict[int, Opening]:
    """Return by number how each stage of a group with rows is opened.

    Leading axes are loops around the blocks of a group if a stage of it cannot count its rows
    through them.
    """
    found: dict[int, Opening] = {}
    for stage, numbers in groups:
        if stage.rows is not None:
            stacked = any(steps[number].loops for number in numbers)
            found |= dict.fromkeys(numbers, Opening.STACK if stacked else Opening.ROWS)
    return found


def blocked(
    groups: Sequence[Group], steps: Sequence[Step], threads: int | None
) -> tuple[Step, ...]:
    """Return all stages; a group for which the user gives ``rows`` runs in blocks of rows.

    Raises ScheduleError if a row of a group needs other rows of a value of the group.
    """
    found: list[Step] = []
    users = users_of(steps)
    for stage, numbers in groups:
        own = [steps[number] for number in numbers]
        if stage.rows is None:
            found += own
        else:
            found += in_blocks(stage, numbers, own, users, threads or 1)
    return tuple(found)


def users_of(steps: Sequence[Step]) -> Mapping[Name, set[int]]:
    """Return the numbers of the stages that read or write each array."""
    found: dict[Name, set[int]] = {}
    for number, step in enumerate(steps):
        for name in _touched(step):
            found.setdefault(name, set()).add(number)
    return found


def in_blocks(
    stage: Stage,
    numbers: range,
    steps: Sequence[Step],
    users: Mapping[Name, set[int]],
    threads: int,
) -> tuple[Step, ...]:
    """Return ``steps``, which are the stages ``numbers``, in blocks of rows.

    Raises ScheduleError if a row needs other rows of a value of these stages.
    """
    inside = {*numbers}
    outside = {step.written for step in steps if not users[step.written] <= inside}
    return tuple(_in_blocks(stage, numbers.start, steps, outside, threads))


def _in_blocks(
    stage: Stage, first: int, steps: Sequence[Step], outside: set[Name], threads: int
) -> Iterator[Step]:
    assert stage.rows is not None
    every = [(step, _rows(stage, step)) for step in steps]
    total, stack = every[0][1].total, steps[0].loops
    written: dict[Name, Step] = {}
    for step, rows in every:
        if step.loops != stack:
            here, there = (_matrices(each) for each in (step, steps[0]))
            _refuse(stage, f"{step.name} has {here}, {steps[0].name} has {there}", step)
        if not same(rows.total, total):
            _refuse(stage, f"{step.name} has {rows.total} rows, {steps[0].name} has {total}", step)
        written[step.written] = step
        _check(stage, step, rows, written)
    known = value(total)
    few = known is not None and known < 2
    if few and not stack:
        yield from steps
        return
    private = frozenset(step.written for step in steps if step.buffer) - outside
    private = frozenset() if few else private
    # If all rows fit in one block, it has exactly these rows: C compilers then see that buffers
    # have space.
    height = stage.rows if known is None else max(1, min(stage.rows, known))
    block = Block(first, height, total, threads, private, stack)
    block = for_threads(block, steps)
    for step, rows in every:
        shifts = dict(step.shifts)
        for name, array in step.operands.items():
            if array in private:
                shifts[name] = _within(step, name, written[array])
            elif rows.steps[name] != 0:
                shifts[name] = shifts.get(name, ZERO) + block.start * rows.steps[name]
        buffer = step.buffer
        if buffer is not None and step.written in private:
            out = next(name for name, array in step.operands.items() if array == step.written)
            buffer = Buffer(buffer.name, buffer.element, block.most * rows.steps[out])
        sizes = step.sizes if rows.slot is None else {**step.sizes, rows.slot: HERE}
        yield replace(step, shifts=shifts, sizes=sizes, buffer=buffer, block=block, loops=())


def for_threads(block: Block, steps: Sequence[Step]) -> Block:
    """Return the block of the stages ``steps``. If threads share it, set how they cut the rows."""
    if not block.parallel:
        return block
    tall = max(map(_whole_rows, steps))
    unit = next(each for each in (tall, 2, 1) if block.rows % each == 0)
    few: float = _LEAST_OF_ATTENTION if block.stack else _LEAST
    inner = value(block.total) is None and any(map(_shares, steps))
    several = block.sharing if inner else 2
    block = replace(block, unit=unit, least=several * int(few), inner=inner)
    each = [cycles for step in steps if (cycles := least(step)) is not None]
    if len(each) < len(steps):
        return block
    cycles = max(1.0, sum(each))
    core = steps[0].plan.target.core
    few = max(few, _WORTH * core.region / (cycles * block.matrices))
    if inner:
        nbytes = sum(map(_weight_bytes, steps))
        few = max(few, _STREAMED * nbytes / core.rate(nbytes) / cycles)
    return replace(block, least=ceil(several * few), work=round(cycles * core.fma_units))


def _shares(step: Step) -> bool:
    """Return True if a stage has a loop that threads can share within a single block."""
    nests = () if step.product is None else step.product.nests
    return any(nest.nest.parallel(d) for nest in nests for d in "mn")


def _weight_bytes(step: Step) -> int:
    """Return the bytes of the weight of a product."""
    if step.nest is None:
        return 0
    problem = step.nest.problem
    n, k = (value(problem.sizes[d]) for d in "nk")
    return (n or 0) * (k or 0) * ITEMSIZE.get(problem.spec.b.type, 1)


def tile_rows(step: Step) -> int:
    """Return the rows of a stage's largest register tile; 8 for a row program."""
    if step.nest is None:
        return 8
    return max((int(tile.shape.rows) for tile in step.nest.tiling.tiles), default=1)


def _whole_rows(step: Step) -> int:
    """Return the unit of rows in which a stage should be cut into blocks.

    If a tile with fewer rows takes as long as a whole one, it is the rows of a whole tile. Else it
    is 2: one row takes more than half of the time of two.
    """
    if (nest := step.nest) is None:
        return 2
    shapes = [tile.shape for tile in nest.tiling.tiles]
    if nest.problem.across == "n":
        return max((shape.vectors * shape.vector.lanes for shape in shapes), default=2)
    return tile_rows(step) if nest.staging.product.unit is not None else 2


def _matrices(step: Step) -> str:
    counts = " x ".join(str(loop.trips) for loop in step.loops)
    return f"{counts} matrices" if counts else "one matrix"


def _within(step: Step, name: str, maker: Step) -> Expr:
    """Return the offset of operand ``name`` in the matrix that ``maker`` writes to its array."""
    out = next(each for each, of in maker.operands.items() if of == maker.written)
    first, shift = (each.shifts.get(slot, ZERO) for each, slot in ((maker, out), (step, name)))
    alone = {symbol(loop.counter): ZERO for loop in maker.loops}
    return expand(shift - (first - first.xreplace(alone))) if alone else shift


def _touched(step: Step) -> Iterator[Name]:
    """Yield the arrays that a stage reads or writes."""
    yield from step.operands.values()
    if step.found is not None:
        yield step.found.indices


def _rows(stage: Stage, step: Step) -> Rows:
    if step.rows is None:
        _refuse(stage, f"{step.name} computes {step.said}, which is not row by row", step)
    assert step.rows is not None
    return step.rows


def _check(stage: Stage, step: Step, rows: Rows, written: dict[Name, Step]) -> None:
    """Raise ScheduleError if a row of a stage needs other rows of what the group writes."""
    for name, array in step.operands.items():
        if array not in written:
            continue
        maker = written[array]
        assert maker.rows is not None
        out = next(each for each, of in maker.operands.items() if of == array)
        line, at = maker.rows.steps[out], value(_within(step, name, maker))
        most = value(line)
        inside = at == 0 or (at is not None and most is not None and at < most)
        if not inside or (rows.total != 1 and not same(rows.steps[name], line)):
            made = "" if maker is step else f", which {maker.name} computes"
            _refuse(stage, f"a row of {step.name} needs other rows of {array}{made}", step)


def _refuse(stage: Stage, problem: str, step: Step) -> None:
    before = " ".join(takewhile(lambda name: name not in step.names, stage.names))
    hint = f"tw.Stage({before!r}, rows={stage.rows})" if before else None
    raise ScheduleError(
        "a stage in blocks of rows computes each row from the same row",
        got=problem,
        expected=f"a stage that ends before {step.name!r}",
        hint=hint,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
