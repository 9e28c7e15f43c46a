"""Find attention in a network, and choose the stages that keep its scores in the caches.

Attention is a product of two tensors, a softmax or another row program of it, and a product that
contracts the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.isa.machine import Core
from tilewright.spec.expression.nodes import Call, Expression
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Cast, Reduce
from tilewright.spec.network.stages import Stage
from tilewright.spec.operands import Packed
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import value

from .rebuilt import arguments
from .step import Step

#: Rows of a block of queries at most. More rows read packed keys less often, but need more memory.
MOST = 64
#: Rows of a block at least: each block reads all keys and values once.
LEAST = 16
#: The blocks of all matrices are at least this many times as many as the threads.
_EACH = 2


@dataclass(frozen=True, slots=True)
class Attention:
    """The two products of an attention, and the nodes to compute before the first one.

    ``before`` are the nodes that the second product needs and that do not depend on the first.
    """

    first: Product
    second: Product
    before: tuple[Expression, ...]


def attentions(
    nodes: Sequence[Expression], users: Mapping[int, Sequence[Expression]]
) -> Iterator[Attention]:
    """Yield each attention of a network. ``nodes`` are sorted, arguments before their users."""
    places = {id(node): place for place, node in enumerate(nodes)}
    for first in nodes:
        if not isinstance(first, Product) or first.weight is not None:
            continue
        if (second := _second(first, users)) is None:
            continue
        depends, before = {id(first)}, list[Expression]()
        for node in nodes[places[id(first)] + 1 : places[id(second)]]:
            if any(id(arg) in depends for arg in arguments(node)):
                depends.add(id(node))
            else:
                before.append(node)
        if id(second.args[1]) not in depends:
            yield Attention(first, second, tuple(before))


def _second(first: Product, users: Mapping[int, Sequence[Expression]]) -> Product | None:
    """Return the second product of an attention, None if there is none.

    Its left operand is a row program, such as a softmax, of the product ``first``.
    """
    stack: list[Expression] = [first]
    seen, reduced, found = {id(first)}, False, list[Product]()
    while stack:
        node = stack.pop()
        for user in users[id(node)]:
            if isinstance(user, Product) and user.args[0] is node and user.weight is None:
                found.append(user)
            elif not isinstance(user, Call | Cast | Reduce):
                return None
            elif id(user) not in seen:
                reduced = reduced or isinstance(user, Reduce)
                seen.add(id(user))
                stack.append(user)
    return found[0] if reduced and len(found) == 1 else None


def stages_of_attention(
    steps: Sequence[Step], threads: int, core: Core
) -> tuple[tuple[Stage, str], ...]:
    """Return a stage for each attention that is better computed in blocks of rows, and the reason.

    That is the case if threads share the blocks, or if scores and weights of all matrices exceed
    L2 or have a size that only the call knows.
    """
    found: list[tuple[Stage, str]] = []
    for trio in zip(steps, steps[1:], steps[2:], strict=False):
        reason = _reason(trio, threads, core) if _is_attention(*trio) else None
        if reason is not None:
            names = _names(trio)
            found.append((Stage(names, rows=_rows(trio, threads, core)), reason))
    return tuple(found)


def _names(trio: Sequence[Step]) -> str:
    """Return the name of an attention, or those of its stages if it has none."""
    every = (name for name in trio[0].also if all(name in step.also for step in trio[1:]))
    return next(every, " ".join(step.name for step in trio))


def _reason(trio: Sequence[Step], threads: int, core: Core) -> str | None:
    """Return why blocks of rows are better than all rows at once, None if they are not."""
    sizes = [value(step.buffer.nbytes) for step in trio[:2] if step.buffer is not None]
    known = sum(size for size in sizes if size is not None)
    if threads > 1:
        return "threads share its blocks"
    if None in sizes:
        return "the size of its scores is known only at the call"
    if known > core.second.size:
        return f"all scores and weights have {known >> 10} KiB, L2 {core.second.size >> 10}"
    return None


def _is_attention(scores: Step, weights: Step, result: Step) -> bool:
    """Return True if three stages in order are an attention."""
    return (
        _multiplies_values(scores) and _multiplies_values(result)
        and weights.row_program is not None and not weights.row_program.columns
        and scores.buffer is not None and scores.written in weights.operands.values()
        and weights.buffer is not None and result.operands.get("a") == weights.written
    )  # fmt: skip


def _multiplies_values(step: Step) -> bool:
    return step.nest is not None and not isinstance(step.nest.spec.b, Packed)


def _rows(trio: Sequence[Step], threads: int, core: Core) -> int:
    """Return the rows of a block: its scores and weights take at most half of L2."""
    result = trio[2]
    assert result.nest is not None
    rows, keys = (value(result.nest.problem.sizes[d]) for d in "mk")
    most = MOST
    if keys:
        line = sum(ITEMSIZE[step.buffer.element] for step in trio[:2] if step.buffer)
        most = max(LEAST, min(most, core.second.size // 2 // (keys * line)))
    if not rows:
        return most
    matrices = prod(value(loop.trips) or 1 for loop in result.loops)
    blocks = max(-(-rows // most), -(-_EACH * threads // matrices))
    return max(min(rows, LEAST), -(-rows // blocks))
