"""Find functions of ``tilewright.nn``, for example ``softmax``, in a network by their structure.

A network has single operators. Two networks are equal if their operators are, however they were
written. The names of functions follow from the operators too: equal networks have equal names.
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

    ``root`` is the node of its result.
    """

    fn: str
    root: Expression
    nodes: tuple[Expression, ...]


def composites(
    nodes: Sequence[Expression], attentions: Iterable[Attention]
) -> tuple[Composite, ...]:
    """Return the functions in a network, in the order of their results.

    ``nodes`` are sorted, arguments before their users. A function that is part of another one is
    left out, except for those in an attention.
    """
    patterns = _Patterns(any(isinstance(node, Reduce) for node in nodes))
    found: dict[int, Composite] = {}
    parts: set[int] = set()
    for node in reversed(nodes):
        if id(node) not in parts and (made := patterns.find(node)) is not None:
            found[id(node)] = made
            parts.update(map(id, made.nodes))
    for each in attentions:
        between = _between(each)
        if any(id(node) in found and found[id(node)].fn == "softmax" for node in between):
            found[id(each.second)] = Composite("attention", each.second, between)
    return tuple(found[id(node)] for node in nodes if id(node) in found)


def _between(attention: Attention) -> tuple[Expression, ...]:
    """Return the nodes from the first product of an attention to the second one."""
    found: dict[int, Expression] = {id(attention.first): attention.first}
    for node in walk(attention.second):
        if any(id(arg) in found for arg in arguments(node)):
            found[id(node)] = node
    return tuple(found.values())


class _Pattern(NamedTuple):
    """What a function of ``tilewright.nn`` makes of the tensors ``x``, ``w``, ``b`` and ``eps``."""

    fn: str
    root: Expression


class _Patterns:
    """Compares nodes with what the functions of ``tilewright.nn`` make.

    Those with a reduction are tried only if the network ``reduces``.
    """

    def __init__(self, reduces: bool) -> None:
        self.reduces = reduces
        self.made: dict[Shaped, tuple[_Pattern, ...]] = {}

    def find(self, node: Expression) -> Composite | None:
        """Return the function whose result is ``node``; None if there is none."""
        if not isinstance(node, Call | Cast) or node.tensor is None:
            return None
        if self.reduces:
            shaped = node.tensor
            if shaped not in self.made:
                self.made[shaped] = tuple(_patterns(shaped))
            for pattern in self.made[shaped]:
                if (nodes := _matched(pattern.root, node, shaped)) is not None:
                    return Composite(pattern.fn, node, nodes)
        return _mean(node) or _quantized(node) or _dequantized(node)


def _patterns(shaped: Shaped) -> Iterator[_Pattern]:
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
    for axis in range(-len(shape), 0):
        with suppress(SpecError):  # an axis without elements has no maximum
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


def _mean(node: Call | Cast) -> Composite | None:
    """Return ``nn.mean`` if its result is ``node``."""
    if not isinstance(node, Call) or node.fn != "div":
        return None
    total, count = node.args
    if not isinstance(total, Reduce) or total.fn != "sum":
        return None
    whole = size(total.args[0], total.axis)
    return Composite("mean", node, (total, node)) if count == whole else None


def _quantized(node: Call | Cast) -> Composite | None:
    """Return ``nn.quantize`` if its result is ``node``."""
    if not isinstance(node, Cast) or node.type not in _QUANTIZED:
        return None
    steps, nodes = node.args[0], list[Expression]([node])
    if isinstance(steps, Call) and steps.fn == "add" and isinstance(steps.args[1], Number):
        nodes.append(steps)
        steps = steps.args[0]
    if not isinstance(steps, Call) or steps.fn != "mul":
        return None
    return Composite("quantize", node, (steps, *reversed(nodes)))


def _dequantized(node: Call | Cast) -> Composite | None:
    """Return ``nn.dequantize`` if its result is ``node``."""
    if not isinstance(node, Call) or node.fn != "mul":
        return None
    given, nodes = node.args[0], [node]
    if isinstance(given, Call) and given.fn == "sub" and isinstance(given.args[1], Number):
        nodes.append(given)
        given = given.args[0]
    if given.tensor is None or given.tensor.type not in _QUANTIZED:
        return None
    return Composite("dequantize", node, tuple(reversed(nodes)))
