"""The nest that sums A B as one that sums A B2: the same tiles, other operands."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.nest import (
    BlockLoop,
    Call,
    Configure,
    NestNode,
    Pack,
    SelectBatch,
    When,
    WhenSame,
)
from tilewright.lower.staging.buffers import Filled

#: What stands in place of B and of what is made of it.
_NAMES = {
    "b": "b2", "b_packed": "b2_packed", "b_tail_packed": "b2_tail_packed", "b_sums": "b2_sums",
    "sums": "sums2",
}  # fmt: skip


def of_second(nodes: tuple[NestNode, ...]) -> tuple[NestNode, ...]:
    """``nodes`` with B2 in place of B."""
    return tuple(map(_renamed, nodes))


def second(filled: Filled) -> Filled:
    """A buffer of B's as one of B2's."""
    operand = replace(filled.operand, name=_NAMES[filled.operand.buffer], buffer="")
    return replace(filled, operand=operand, nodes=of_second(filled.nodes))


def _renamed(node: NestNode) -> NestNode:
    match node:
        case Call():
            arguments = (
                replace(a, operand=_NAMES.get(a.operand, a.operand)) if a.operand else a
                for a in node.arguments
            )
            return replace(node, arguments=tuple(arguments))
        case SelectBatch():
            selected = (replace(s, name=_NAMES.get(s.name, s.name)) for s in node.selected)
            return replace(node, selected=tuple(selected), body=of_second(node.body))
        case Pack():
            buffer = _NAMES.get(node.buffer, node.buffer)
            fill, body = of_second(node.fill), of_second(node.body)
            return replace(node, buffer=buffer, fill=fill, body=body)
        case Configure():
            return node
        case BlockLoop():
            return replace(node, body=of_second(node.body))
        case When() | WhenSame():
            body, otherwise = of_second(node.body), of_second(node.otherwise)
            return replace(node, body=body, otherwise=otherwise)
