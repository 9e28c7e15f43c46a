"""A record of what the backend of ``torch.compile`` served or left in each graph."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Left(NamedTuple):
    """A product of a graph that kernels do not compute.

    ``operator`` is the name of PyTorch's operator. ``cure`` is a change that the user can try,
    or "".
    """

    operator: str
    reason: str
    cure: str


class Joined(NamedTuple):
    """A sub-graph that one network computes: the kernel's name, its products, and its nodes."""

    kernel: str
    products: int
    nodes: int


class Served(NamedTuple):
    """The numbers of layers, of their activations and of other products that kernels compute.

    The numbers count nodes of one graph outside of ``networks``. ``left`` has the products that
    Inductor computes instead. ``networks`` has the sub-graphs that networks compute, and ``apart``
    the operators that no network computes, products or not.
    """

    layers: int
    activations: int
    products: int
    left: tuple[Left, ...] = ()
    networks: tuple[Joined, ...] = ()
    apart: tuple[Left, ...] = ()


#: A record for each graph that the backend compiled, in order.
history: list[Served] = []


def record(served: Served) -> None:
    """Add a graph to ``history``; warn if it has products and kernels compute none of them."""
    history.append(served)
    if served.left and not (served.layers or served.products or served.networks):
        reasons = "\n".join(_lines(served.left, counted=False))
        warnings.warn(
            "torch.compile(backend='tilewright') serves no product of this graph; Inductor "
            f"computes all of it\n{reasons}",
            RuntimeWarning,
            stacklevel=3,
        )


def summary(graphs: Sequence[Served] | None = None) -> None:
    """Print how many products of ``graphs`` tilewright computes, and why it left the others.

    If there are networks, the last lines count them, and name the operators that none computes.

    Parameters
    ----------
    graphs : sequence of Served, optional
        By default all graphs that ``torch.compile`` has compiled in this process.

    Examples
    --------
    >>> import tilewright.torch as tt
    >>> left = tt.Left("linear", "float16 is not served", "model.bfloat16()")
    >>> tt.summary([tt.Served(layers=2, activations=1, products=0), tt.Served(0, 0, 0, (left,))])
    graphs: 2
    served: 2 layers, 1 activation in them, 0 other products
    left: 1
      1 x linear: float16 is not served
        try: model.bfloat16()
    """
    graphs = history if graphs is None else graphs
    layers = sum(each.layers for each in graphs)
    activations = sum(each.activations for each in graphs)
    products = sum(each.products for each in graphs)
    left = [one for each in graphs for one in each.left]
    lines = [
        f"graphs: {len(graphs)}",
        f"served: {_counted(layers, 'layer')}, {_counted(activations, 'activation')} in them, "
        f"{_counted(products, 'other product')}",
        f"left: {len(left)}",
        *_lines(left, counted=True),
        *_networks(graphs),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _networks(graphs: Sequence[Served]) -> list[str]:
    """Return lines about networks, and about operators that none computes; none without both."""
    networks = [one for each in graphs for one in each.networks]
    apart = [one for each in graphs for one in each.apart]
    if not networks and not apart:
        return []
    products = sum(one.products for one in networks)
    said = f"networks: {len(networks)}, with {_counted(products, 'product')}"
    return [said, f"in no network: {len(apart)}", *_lines(apart, counted=True)]


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun, for example ``2 layers``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _lines(left: Sequence[Left], *, counted: bool) -> list[str]:
    """Return a line for each different product in ``left``, and a line with what to try."""
    lines = []
    for (operator, reason, cure), count in Counter(left).items():
        lines.append(f"  {f'{count} x ' if counted else ''}{operator}: {reason}")
        if cure:
            lines.append(f"    try: {cure}")
    return lines
