"""Decide whether a network computes in f64 or in f32, and which casts between them are possible.

One loop computes in one of both. It converts elements as it loads inputs and stores results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from tilewright.errors import SpecError

from ..expression.nodes import Composed, Expression, every_node
from ..expression.tensors import Cast, Input
from ..types import is_integer


def real_of(results: Sequence[Expression]) -> Literal["f32", "f64"]:
    """Return the type of arithmetic. Casts do not count, nor inputs that only casts use."""
    nodes = list(every_node(results))
    moves = not any(map(_converts, nodes))
    computed = (node for node in nodes if moves or isinstance(node, Composed))
    return "f64" if any(_is_wide(node) and not _converts(node) for node in computed) else "f32"


def check_real(results: Sequence[Expression], is_staged: Callable[[], bool]) -> None:
    """Raise SpecError if one loop would compute in f64 and in f32, or if it cannot convert.

    ``is_staged`` returns True if the network has more than one loop.
    """
    nodes = list(every_node(results))
    if not any(map(_is_wide, nodes)):
        return
    casts = [node for node in nodes if isinstance(node, Cast) and _converts(node)]
    if is_staged():
        if casts:
            raise SpecError(
                "only a network of one loop over rows or columns converts from or to f64",
                got=casts[0],
                expected="no products, weights, views or joins",
                hint="tw.Copy, or a second network",
            )
        return
    real = real_of(results)
    computed = [node for node in nodes if not _converts(node)]
    used = {arg for node in computed if isinstance(node, Composed) for arg in node.args}
    for cast in casts:
        (given,), other = cast.args, "f64" if real == "f32" else "f32"
        loads = cast.type == real and isinstance(given, Input) and given.type == other
        last = cast in results and cast not in used
        stores = cast.type == other and last and given.tensor and given.tensor.type != "s32"
        if not loads and not stores:
            raise SpecError(
                f"this is not converted beside arithmetic in {real}",
                got=cast,
                expected=f"{other} to {real} of an input, or {real} to {other} of a result",
                hint="two networks, or tw.Copy",
            )
    loaded = {arg for cast in casts for arg in cast.args} - used - set(results)
    for node in computed:
        if node not in loaded and not _fits(node, real):
            raise SpecError(
                "a network of one loop computes in f64 or in f32, not in both",
                got=f"{node.tensor.type if node.tensor else real} of {node}, beside {real}",
                expected=f"tensors of {real}, and inputs that are cast to {real} at once",
                hint="two networks",
            )


def _is_wide(node: Expression) -> bool:
    return node.tensor is not None and node.tensor.type == "f64"


def _converts(node: Expression) -> bool:
    """Return True for a cast from f64 to another type, or to f64."""
    return isinstance(node, Cast) and _is_wide(node) != _is_wide(node.args[0])


def _fits(node: Expression, real: str) -> bool:
    """Return True if a loop that computes in ``real`` computes or moves a node."""
    if node.tensor is None:
        return True
    if real == "f32":
        return node.tensor.type != "f64"
    return node.tensor.type == "f64" or is_integer(node.tensor.type)
