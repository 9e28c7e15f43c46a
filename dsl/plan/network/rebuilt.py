"""Replace nodes of an expression."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.spec.expression.nodes import Composed, Expression


def arguments(node: Expression) -> tuple[Expression, ...]:
    """Return the arguments of a node; none for a leaf."""
    return node.args if isinstance(node, Composed) else ()


def same_node(node: Composed, args: tuple[Expression, ...]) -> Expression:
    """Return ``node`` with other arguments."""
    return node.of(node.shell, args)


def rebuilt(
    node: Expression,
    leaf: Callable[[Expression], Expression | None],
    changed: Callable[[Composed, tuple[Expression, ...]], Expression] = same_node,
) -> Expression:
    """Return ``node`` with some of its nodes replaced.

    If ``leaf`` returns an expression for a node, that expression takes the node's place. Otherwise
    ``changed`` makes the node again from its new arguments.
    """
    made: dict[int, Expression] = {}
    stack = [node]
    while stack:
        each = stack[-1]
        if id(each) in made:
            stack.pop()
            continue
        found = leaf(each)
        args = each.args if found is None and isinstance(each, Composed) else ()
        if missing := [arg for arg in args if id(arg) not in made]:
            stack += missing
            continue
        if found is None:
            found = each
            if isinstance(each, Composed):
                found = changed(each, tuple(made[id(arg)] for arg in args))
        made[id(each)] = found
        stack.pop()
    return made[id(node)]
