"""Count what each stage of a network does in a call: bytes, flops, and the estimated time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import groupby
from math import ceil, prod
from operator import attrgetter

from tilewright.plan.estimate.kernel import estimate
from tilewright.plan.network.block import COUNT
from tilewright.plan.network.placed import exprs_of
from tilewright.plan.network.step import Step
from tilewright.plan.routine import StageFacts, routine_of
from tilewright.plan.routines.network import NetworkPlan
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.expression.products import Weight
from tilewright.spec.expression.tensors import Extent, Full
from tilewright.spec.quantized import Quantized
from tilewright.spec.signature import ArrayParameter, signature
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import evaluate

from .row_blocks import one_block, times, whole


def stage_facts(plan: NetworkPlan, sizes: Mapping[str, int]) -> Iterator[StageFacts]:
    """Yield the numbers of each stage of a call with these ``sizes``, by their names in C."""
    most = {each.name: sizes[slot] for slot, each in plan.spec.runtime_sizes()}
    arrays = {each.symbol: _nbytes(each, most) for each in signature(plan.spec.folded).arrays}
    for step in plan.steps:
        if step.buffer is not None:
            arrays[str(step.written)] = evaluate(step.buffer.nbytes, sizes)
    program = -1
    for block, steps in groupby(plan.steps, attrgetter("block")):
        for number, step in enumerate(steps):
            program += block is None or number == 0
            yield _facts(step, program, arrays, sizes, plan.schedule.threads or 1)


def _facts(
    step: Step,
    program: int,
    arrays: Mapping[str, int],
    sizes: Mapping[str, int],
    threads: int,
) -> StageFacts:
    """Return the numbers of one stage; ``arrays`` are the bytes of the network's arrays."""
    block = step.block
    runs = prod(evaluate(loop.trips, sizes) for loop in step.loops)
    private = frozenset[str]()
    if block is not None:
        private = frozenset(map(str, block.private))
        runs = evaluate(times(block), {**sizes, COUNT.name: evaluate(block.count, sizes)})
    first = {**sizes, **{loop.counter: 0 for loop in step.loops}}  # a size may be a counter
    known = dict(sizes) | {slot: evaluate(expr, first) for slot, expr in one_block(step).items()}
    each, every = _arrays_of(step, known, runs)
    every = {name: min(size, arrays.get(name, size)) for name, size in every.items()}
    held = every if block is None else each
    moved = {name: size for name, size in every.items() if name not in private}
    written = str(step.written)
    cycles, bound = _estimated(step, known, runs, threads)
    alone = sum(_size_of(node, sizes) for node in step.alone)
    return StageFacts(
        name=step.name,
        program=program,
        runs=1 if block is None else runs,
        result=held.get(written, 0),
        arrays=sum(held.values()),
        read=sum(size for name, size in moved.items() if name != written),
        written=moved.get(written, 0),
        alone=alone or sum(every.values()),
        flops=_flops(step, sizes),
        cycles=cycles,
        bound=bound,
    )


def _estimated(
    step: Step, sizes: Mapping[str, int], runs: int, threads: int
) -> tuple[float | None, str]:
    """Return the estimated cycles of all runs of a stage, and what limits one run.

    ``sizes`` are those of a run, by the stage's own names.
    """
    one = routine_of(step.plan).estimate(step.plan, sizes, cold=False)
    if one is None:
        return None, ""
    cycles, rows = one.cycles, step.row_program
    if step.block is not None or step.parallel:
        shares = threads if step.block is None else step.block.threads
        return ceil(runs / shares) * cycles, one.bound
    if step.product is not None and threads > 1:
        cycles = estimate(step.product, sizes, threads=threads).cycles
    elif rows is not None and rows.parallel:
        cycles /= threads
    return runs * cycles, one.bound


def _arrays_of(
    step: Step, sizes: Mapping[str, int], runs: int
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return the bytes of a stage's arrays in one run, and in all runs, by the network's names.

    ``sizes`` are those of the run, by the stage's own names. All blocks of rows of a matrix read
    the same bytes of an array that has no such rows, for example of the weights.
    """
    dims = {each.name: sizes[slot] for slot, each in step.plan.spec.runtime_sizes()}
    one, every = defaultdict[str, int](int), defaultdict[str, int](int)
    block, rows = step.block, step.rows
    for array in signature(step.plan.spec).arrays:
        if (name := step.operands.get(array.symbol)) is None:
            continue
        size, often = _nbytes(array, dims), runs
        if block is not None and rows is not None and rows.steps.get(array.symbol) == 0:
            often = prod(evaluate(loop.trips, sizes) for loop in block.stack)
        one[str(name)] += size
        every[str(name)] += size * often
    return one, every


def _nbytes(array: ArrayParameter, dims: Mapping[str, int]) -> int:
    """Return the size of an array in bytes without padding; ``dims`` are sizes by name."""

    def known(size: Size) -> int:
        return size.at(dims) if isinstance(size, Dim) else size

    shape = [known(size) for size in array.shape]
    if array.quantized is not None:
        return _stored(array.quantized, *shape)
    return prod(shape) * array.itemsize


def _stored(form: Quantized, k: int, n: int) -> int:
    """Return the bytes of the elements and scales of a low-bit weight."""
    return k * n * form.stored.bits // 8 + prod(form.blocks(k, n)) * ITEMSIZE[form.scale]


def _size_of(node: Expression, sizes: Mapping[str, int]) -> int:
    """Return the size of a tensor in bytes; 0 for a number."""
    if node.tensor is None or isinstance(node, Full | Extent):
        return 0
    if isinstance(node, Weight) and node.quantized is not None:
        return _stored(node.quantized, *node.shape)
    elements = prod(evaluate(size, sizes) for size in exprs_of(node.tensor.shape))
    return elements * ITEMSIZE[node.tensor.type]


def _flops(step: Step, sizes: Mapping[str, int]) -> int:
    """Return the floating-point operations of a stage's product in a call; 0 if it has none."""
    if step.product is None:
        return 0
    known = dict(sizes) | {slot: evaluate(expr, sizes) for slot, expr in whole(step).items()}
    around = step.loops if step.block is None else step.block.stack
    one = routine_of(step.plan).flops(step.plan)
    return evaluate(one, known) * prod(evaluate(loop.trips, sizes) for loop in around)
