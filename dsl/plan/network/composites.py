"""Find functions of ``tilewright.nn``, for example ``softmax``, in a network by their structure.

A network consists of single operators. Two networks with equal operators are equal, even if only
one of them was written with these functions. The functions are therefore found by the operators, so
that equal networks have equal names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright import nn
from tilewright.errors import SpecError
from tilewright.spec.expression.nodes import Call, Composed, Expression, Number, walk
from tilewright.spec.expression.shapes import Shaped
from tilewright.spec.expression.tensors import Cast, Input, Reduce, size
from tilewright.spec.types import TypeName

from .attention import Attention
from .rebuilt import arguments

#: The types of quantized elements.
_QUANTIZED = ("s8", "u8")


@dataclass(frozen=True, slots=True)
class Composite:
    """A function of ``tilewright.nn`` in a network: its name, and the nodes that compute it.

    Nodes are given by their numbers. ``root`` is the number of the result's node.
    """

    fn: str
    root: int
    nodes: frozenset[int]


def composites(
    nodes: Sequence[Expression], attentions: Iterable[Attention]
) -> tuple[Composite, ...]:
    """Return the functions in a network, in the order of their results.

    ``nodes`` are sorted, arguments before their users. A function that is part of another one is
    left out, except for those in an attention.
    """
    patterns = _Patterns(nodes)
    numbers = {id(node): number for number, node in enumerate(nodes)}
    found: dict[int, Composite] = {}
    parts: set[int] = set()
    for root in reversed(range(len(nodes))):
        if root not in parts and (match := patterns.find(nodes[root])) is not None:
            found[root] = _composite(match, root, numbers)
            parts |= found[root].nodes
    soft = {root for root, each in found.items() if each.fn == "softmax"}
    for each in attentions:
        root = numbers[id(each.second)]
        attention = _composite(_Match("attention", _between(each)), root, numbers)
        if not soft.isdisjoint(attention.nodes):
            found[root] = attention
    return tuple(found[root] for root in sorted(found))


class _Match(NamedTuple):
    """The name of a function, and the nodes that compute it."""

    fn: str
    nodes: Iterable[Expression]


def _composite(match: _Match, root: int, numbers: Mapping[int, int]) -> Composite:
    return Composite(match.fn, root, frozenset(numbers[id(node)] for node in match.nodes))


def _between(attention: Attention) -> tuple[Expression, ...]:
    """Return the nodes from the first product of an attention to the second one."""
    found: dict[int, Expression] = {id(attention.first): attention.first}
    for node in walk(attention.second):
        if any(id(arg) in found for arg in arguments(node)):
            found[id(node)] = node
    return tuple(found.values())


class _Pattern(NamedTuple):
    """A function of ``tilewright.nn``, and its result for tensors ``x``, ``w``, ``b``, ``eps``."""

    fn: str
    root: Expression


class _Patterns:
    """Compares nodes with what the functions of ``tilewright.nn`` return.

    ``axes`` are the axes of the network's reductions. ``reduced`` has the ``id`` of each reduction,
    and of each element-wise function that depends on one.
    """

    def __init__(self, nodes: Sequence[Expression]) -> None:
        self.axes = sorted({node.axis for node in nodes if isinstance(node, Reduce)})
        self.reduced: set[int] = set()
        for node in nodes:
            of_reduced = any(id(arg) in self.reduced for arg in arguments(node))
            if isinstance(node, Reduce) or (isinstance(node, Call | Cast) and of_reduced):
                self.reduced.add(id(node))
        self.made: dict[Shaped, tuple[_Pattern, ...]] = {}

    def find(self, node: Expression) -> _Match | None:
        """Return the function whose result is ``node``; None if there is none."""
        if not isinstance(node, Call | Cast) or node.tensor is None:
            return None
        if id(node) in self.reduced:
            shaped = node.tensor
            if shaped not in self.made:
                self.made[shaped] = tuple(_patterns(shaped, self.axes))
            for pattern in self.made[shaped]:
                if (nodes := _matched(pattern.root, node, shaped)) is not None:
                    return _Match(pattern.fn, nodes)
        return _mean(node) or _quantized(node) or _dequantized(node)


def _patterns(shaped: Shaped, axes: Iterable[int]) -> Iterator[_Pattern]:
    """Yield the functions that keep the shape and type of a tensor, the largest ones first."""
    type_, shape = shaped
    real: TypeName = "f64" if type_ == "f64" else "f32"
    x = Input("x", type_, shape)
    w, b = (Input(name, real, shape[-1:]) for name in "wb")
    eps: Any = Input("eps", real, ())
    if not shape:
        return
    yield _Pattern("layer_norm", nn.layer_norm(x, w, b, eps))
    yield _Pattern("layer_norm", nn.layer_norm(x, w, None, eps))
    yield _Pattern("layer_norm", nn.layer_norm(x, None, b, eps))
    yield _Pattern("layer_norm", nn.layer_norm(x, None, None, eps))
    yield _Pattern("rms_norm", nn.rms_norm(x, w, eps))
    yield _Pattern("rms_norm", nn.rms_norm(x, None, eps))
    for axis in axes:
        with suppress(SpecError):  # there is no such axis, or it has no elements
            yield _Pattern("softmax", nn.softmax(x, axis))
            yield _Pattern("log_softmax", nn.log_softmax(x, axis))


def _matched(
    pattern: Expression, node: Expression, shaped: Shaped
) -> tuple[Expression, ...] | None:
    """Return the nodes that a pattern matches, besides its tensors; None if it matches none."""
    tensors: dict[str, Expression] = {}
    found: dict[int, Expression] = {}
    left = [(pattern, node)]
    while left:
        wanted, own = left.pop()
        if isinstance(wanted, Input):
            if tensors.setdefault(wanted.name, own) is not own:
                return None
        elif not isinstance(wanted, Composed):
            if wanted != own:
                return None
        elif type(wanted) is type(own) and wanted.shell == own.shell:
            found[id(own)] = own
            left += zip(wanted.args, arguments(own), strict=True)
        else:
            return None
    return tuple(found.values()) if _fit(tensors, shaped) else None


def _fit(tensors: Mapping[str, Expression], shaped: Shaped) -> bool:
    """Return True if ``tensors`` can be arguments: ``w`` and ``b`` have a number per column."""
    for name, node in tensors.items():
        if name == "eps":
            fits = isinstance(node, Number)
        elif name == "x":
            fits = node.tensor == shaped
        else:
            shape = () if node.tensor is None else node.tensor.shape
            fits = shape[-1:] == shaped.shape[-1:] and all(size == 1 for size in shape[:-1])
        if not fits:
            return False
    return True


def _mean(node: Call | Cast) -> _Match | None:
    """Return ``nn.mean`` if its result is ``node``."""
    if not isinstance(node, Call) or node.fn != "div":
        return None
    total, count = node.args
    if not isinstance(total, Reduce) or total.fn != "sum":
        return None
    whole = size(total.args[0], total.axis)
    return _Match("mean", (total, node)) if count == whole else None


def _quantized(node: Call | Cast) -> _Match | None:
    """Return ``nn.quantize`` if its result is ``node``."""
    if not isinstance(node, Cast) or node.type not in _QUANTIZED:
        return None
    steps, nodes = node.args[0], list[Expression]([node])
    if isinstance(steps, Call) and steps.fn == "add" and isinstance(steps.args[1], Number):
        nodes.append(steps)
        steps = steps.args[0]
    if not isinstance(steps, Call) or steps.fn != "mul":
        return None
    return _Match("quantize", (steps, *nodes))


def _dequantized(node: Call | Cast) -> _Match | None:
    """Return ``nn.dequantize`` if its result is ``node``."""
    if not isinstance(node, Call) or node.fn != "mul":
        return None
    given, nodes = node.args[0], [node]
    if isinstance(given, Call) and given.fn == "sub" and isinstance(given.args[1], Number):
        nodes.append(given)
        given = given.args[0]
    if given.tensor is None or given.tensor.type not in _QUANTIZED:
        return None
    return _Match("dequantize", nodes)
