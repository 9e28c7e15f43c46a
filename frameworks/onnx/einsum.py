"""Einsum: sums of products of tensors, written as letters for axes."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase

from tilewright import nn
from tilewright.spec.expression.nodes import Expression
from tilewright.spec.sizes import Size, joined_size

from .node import Node, operator
from .values import Value

Result = Sequence[Value | None]


@operator("Einsum")
def _einsum(node: Node) -> Result:
    tensors = [node.whole(index) for index in range(len(node.inputs))]
    given, out = _letters(node, [_shape(x) for x in tensors])
    found, letters = tensors[0], given[0]
    for number, (other, theirs) in enumerate(zip(tensors[1:], given[1:], strict=True), 2):
        kept = set(out).union(*given[number:])
        found, letters = _product((found, letters), (other, theirs), kept)
    found, letters = _summed(found, letters, set(out))
    order = [letters.index(each) for each in out]
    return node.result(found.transpose(*order), node.floating())


def _shape(x: Expression) -> tuple[Size, ...]:
    assert x.tensor is not None
    return x.tensor.shape


def _letters(node: Node, shapes: Sequence[tuple[Size, ...]]) -> tuple[list[str], str]:
    """Return a letter for each axis of the operands, and of the result."""
    text = node.attribute("equation").replace(" ", "")
    left, _, out = text.partition("->")
    given = left.split(",")
    spare = (each for each in ascii_uppercase if each not in text)
    more = "".join(each for _, each in zip(range(_MOST), spare, strict=False))
    wide = [
        len(shape) - len(one.replace("...", "")) for one, shape in zip(given, shapes, strict=True)
    ]
    named = [one.replace("...", more[:axes][::-1]) for one, axes in zip(given, wide, strict=True)]
    every = "".join(named)
    if "->" not in text:
        dots = more[: max(wide)][::-1] if "..." in left else ""
        once = (each for each in ascii_uppercase + ascii_lowercase if every.count(each) == 1)
        out = dots + "".join(sorted(set(once) - set(dots)))
    out = out.replace("...", more[: max(wide)][::-1])
    if any(len(set(one)) < len(one) for one in named):
        node.refuse(
            "an axis of an operand has a letter of its own", got=text, expected="ij, not ii"
        )
    return named, out


#: The largest number of axes that "..." stands for.
_MOST = 6


def _summed(x: Expression, letters: str, kept: set[str]) -> tuple[Expression, str]:
    """Return a tensor summed along the axes that are not kept."""
    for axis in reversed(range(len(letters))):
        if letters[axis] not in kept:
            x, letters = nn.sum(x, axis=axis), letters[:axis] + letters[axis + 1 :]
    return x, letters


def _product(
    one: tuple[Expression, str], other: tuple[Expression, str], kept: set[str]
) -> tuple[Expression, str]:
    """Return the sum of products of two tensors, along the axes that they share and lose."""
    a, left = _summed(*one, kept | set(other[1]))
    b, right = _summed(*other, kept | set(one[1]))
    both = [each for each in left if each in right and each in kept]
    along = [each for each in left if each in right and each not in kept]
    rows = [each for each in left if each not in right]
    columns = [each for each in right if each not in left]
    sizes = {**dict(zip(right, _shape(b), strict=True)), **dict(zip(left, _shape(a), strict=True))}
    x = _grouped(a, left, sizes, both, (rows, along))
    y = _grouped(b, right, sizes, both, (along, columns))
    made = x @ y if along else x * y
    return made.reshape(*(sizes[each] for each in (*both, *rows, *columns))), "".join(
        (*both, *rows, *columns)
    )


def _grouped(
    x: Expression,
    letters: str,
    sizes: dict[str, Size],
    both: list[str],
    groups: Sequence[list[str]],
) -> Expression:
    """Return a tensor with the axes ``both``, and then one axis for each group."""
    order = [letters.index(each) for each in (*both, *(each for some in groups for each in some))]
    joined = (joined_size(sizes[each] for each in some) for some in groups)
    return x.transpose(*order).reshape(*(sizes[each] for each in both), *joined)
