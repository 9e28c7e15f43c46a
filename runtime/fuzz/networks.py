"""Random networks: products, reductions, views and joins of tensors, in any order."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Any

from tilewright import nn
from tilewright.spec import postops
from tilewright.spec.expression import Expression
from tilewright.spec.expression.nodes import every_node
from tilewright.spec.expression.products import Weight
from tilewright.spec.expression.tensors import Input
from tilewright.spec.network.value import Network
from tilewright.spec.network.views import reshape, sliced, transpose
from tilewright.spec.quantized import Quantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Size, dim, joined_size, terms_of
from tilewright.spec.types import TypeName, is_integer

from .axes import NONE, RUN_TIME, Level, dealt, title
from .cases import CASES

#: A tensor has at most ``_MOST`` elements if each size of the call is ``_USUAL``.
_MOST, _USUAL = 20_000, 8
#: Functions of one tensor, and those of them that f64 has.
_REAL: dict[str, Callable[[Any], Any]] = {
    "relu": postops.relu, "clip": lambda x: postops.clip(x, -1.5, 2), "abs": postops.abs,
    "halved": lambda x: 0.5 * x - 0.25,
}  # fmt: skip
_CURVED: dict[str, Callable[[Any], Any]] = {
    "tanh": postops.tanh, "gelu_erf": postops.gelu_erf, "silu": postops.silu,
}  # fmt: skip
_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y, "times": lambda x, y: postops.clip(x, -4, 4) * y,
    "maximum": postops.maximum, "where": lambda x, y: postops.where(x > y, x, 0.5 * y),
}  # fmt: skip


@dataclass
class _Hand:
    """The tensors that a random network has made so far.

    If ``apart``, no operator mixes the indices of the first axis.
    """

    random: random.Random
    type: TypeName
    apart: bool
    pool: list[Expression] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    weights: list[Weight] = field(default_factory=list)

    def of(self, fits: Callable[[Expression], bool]) -> Expression | None:
        """Return a tensor that fits, a late one with more probability; None if none does."""
        found = [x for x in self.pool if fits(x)]
        return self.random.choice(found[-3:] + found) if found else None

    def weight(self, type_: TypeName, shape: tuple[int, ...]) -> Weight:
        """Return a new weight, or sometimes one that the network has already."""
        same = [w for w in self.weights if (w.type, w.shape) == (type_, shape) and not w.quantized]
        if len(shape) == 1 and same and self.random.random() < 0.3:
            return self.random.choice(same)
        return self.noted(Weight("w", f"w{len(self.weights)}", type_, shape))

    def noted(self, weight: Weight) -> Weight:
        """Return ``weight``, and add it to the weights of the network."""
        self.weights.append(weight)
        return weight

    def input(self, type_: TypeName, shape: tuple[Size, ...]) -> Input:
        """Return a new input."""
        self.inputs.append(Input(f"x{len(self.inputs)}", type_, shape))
        return self.inputs[-1]

    def axis(self, x: Expression) -> int | None:
        """Return a random axis that may be mixed; None if there is none."""
        axes = range(int(self.apart), x.ndim)
        return self.random.choice(axes) if axes else None

    def real(self, x: Expression) -> Expression:
        """Return ``x`` as numbers of the network's arithmetic."""
        return x if self.type == "f64" else x.astype("f32")


def _shape(x: Expression) -> tuple[Size, ...]:
    assert x.tensor is not None
    return x.tensor.shape


def _type(x: Expression) -> TypeName:
    assert x.tensor is not None
    return x.tensor.type


def _elements(shape: tuple[Size, ...]) -> int:
    return prod(size if isinstance(size, int) else _USUAL for size in shape)


def _number(hand: _Hand) -> int:
    return hand.random.choice((1, 2, 3, 7, 8, 16, 17, 32, 33))


# --- operators: each returns a new tensor, or None if the tensors so far do not allow it ----------


def _map(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: True)
    functions = _REAL if hand.type == "f64" else _REAL | _CURVED
    return None if x is None else functions[hand.random.choice(list(functions))](x)


def _pair(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: True)
    y = None if x is None else hand.of(lambda y: _broadcast(hand, x, y))
    if x is None or y is None:
        return None
    found: Expression = _PAIRS[hand.random.choice(list(_PAIRS))](*hand.random.sample((x, y), 2))
    return found


def _broadcast(hand: _Hand, x: Expression, y: Expression) -> bool:
    """Return True if two tensors broadcast."""
    if hand.apart and x.ndim != y.ndim:
        return False
    pairs = list(zip(_shape(x)[::-1], _shape(y)[::-1], strict=False))
    return all(a == b or 1 in (a, b) for a, b in pairs)


def _bias(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > 1 and isinstance(_shape(x)[-1], int) and _shape(x)[-1] != 0)
    if x is None:
        return None
    real: TypeName = "f64" if hand.type == "f64" else hand.random.choice(("f32", "bf16"))
    columns = _shape(x)[-1]
    assert isinstance(columns, int)
    return x + hand.weight(real, (columns,))


def _linear(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > 1 and isinstance(_shape(x)[-1], int) and _shape(x)[-1] != 0)
    if x is None:
        return None
    k, n = _shape(x)[-1], _number(hand)
    assert isinstance(k, int)
    types: dict[str, tuple[TypeName, ...]] = {
        "s8": ("s8", "u8"), "u8": ("s8", "u8"), "f32": ("f32", "f32", "bf16", "f16"),
    }  # fmt: skip
    kept = _type(x)
    x = x.astype("f32") if kept == "s32" else x
    found = x @ hand.weight(hand.random.choice(types.get(_type(x), (_type(x),))), (k, n))
    if is_integer(_type(x)):
        return found * 2.0**-10
    return found if hand.random.random() < 0.5 else found * 0.25


def _quantized(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > 1 and isinstance(_shape(x)[-1], int) and _shape(x)[-1] != 0)
    if x is None or hand.type == "f64":
        return None
    k, n = _shape(x)[-1], _number(hand)
    assert isinstance(k, int)
    if k % 16 == 0 and hand.random.random() < 0.5:
        form = Quantized("u4", scale="f16", zero=8, block=16)
        return hand.real(x) @ hand.noted(Weight("w", f"w{len(hand.weights)}", "f32", (k, n), form))
    zero = hand.random.choice((0, 3))
    left = nn.quantize(x, 0.25, zero, "u8" if zero else "s8")
    right = nn.dequantize(hand.weight("s8", (k, n)), 2.0**-7)
    return nn.dequantize(left, 0.25, zero) @ right


def _values(hand: _Hand) -> Expression | None:
    """Return the product of two tensors of the call."""
    least = 3 if hand.apart else 2
    x = hand.of(lambda x: x.ndim >= least and not is_integer(_type(x)))
    if x is None:
        return None

    def fits(y: Expression) -> bool:
        if y.ndim < least or (hand.apart and y.ndim != x.ndim) or _type(y) != _type(x):
            return False
        lead = zip(_shape(x)[-3::-1], _shape(y)[-3::-1], strict=False)
        return all(a == b or 1 in (a, b) for a, b in lead)

    way = hand.random.choice(("x y.T", "x.T y", "x y"))
    at = {"x y.T": (-1, -1), "x.T y": (-2, -2), "x y": (-1, -2)}[way]
    y = hand.of(lambda y: fits(y) and _shape(x)[at[0]] == _shape(y)[at[1]])
    if y is None:
        return None
    return (x.T if way == "x.T y" else x) @ (y.T if way == "x y.T" else y)


def _reduce(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: hand.axis(x) is not None and x.ndim > 1)
    if x is None:
        return None
    axis = hand.axis(x)
    assert axis is not None
    functions = (nn.sum, nn.mean) if _shape(x)[axis] == 0 else (nn.sum, nn.mean, nn.max, nn.min)
    return hand.random.choice(functions)(x, axis, hand.random.random() < 0.6)


def _norm(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > 1 and _shape(x)[-1] != 0 and not is_integer(_type(x)))
    if x is None:
        return None
    if hand.type == "f64":
        return x - nn.mean(x, hand.axis(x) or 0, keepdims=True)
    axis = hand.axis(x)
    if axis is not None and _shape(x)[axis] != 0 and hand.random.random() < 0.5:
        return hand.random.choice((nn.softmax, nn.log_softmax))(x, axis)
    return nn.rms_norm(x, eps=0.5)


def _view(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > 1 + int(hand.apart))
    if x is None:
        return None
    shape, kept = _shape(x), int(hand.apart)
    axis = hand.axis(x)
    size = None if axis is None else shape[axis]
    match hand.random.choice(("transpose", "join", "cut", "slice", "at", "new")):
        case "transpose":
            return transpose(
                x, (*range(kept), *hand.random.sample(range(kept, x.ndim), x.ndim - kept))
            )
        case "join":
            for at, (one, other) in enumerate(pairwise(shape)):
                if at >= kept:
                    both = joined_size((one, other))
                    return reshape(x, (*shape[:at], both, *shape[at + 2 :]))
        case "cut" if isinstance(size, int) and size > 1 and x.ndim < 5:
            part = next(p for p in (2, 3, 4, 7, size) if size % p == 0)
            return reshape(x, (*shape[:axis], part, size // part, *shape[(axis or 0) + 1 :]))
        case "slice" if isinstance(size, int) and size > 0:
            first = hand.random.randrange(size)
            cut = slice(first, hand.random.randint(first, size), hand.random.choice((1, 1, 2)))
            return sliced(x, (*[slice(None)] * (axis or 0), cut))
        case "at" if isinstance(size, int) and size > 0 and x.ndim > 2:
            return sliced(x, (*[slice(None)] * (axis or 0), hand.random.randrange(size)))
        case "new" if x.ndim < 5:
            return reshape(x, (*shape[:axis], 1, *shape[axis:]))
    return None


def _heads(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: 1 < x.ndim < 5 and isinstance(_shape(x)[-1], int))
    if x is None or hand.apart:
        return None
    width = _shape(x)[-1]
    assert isinstance(width, int)
    for parts in (2, 3, 7):
        if width and width % parts == 0:
            return nn.merge(postops.relu(nn.heads(x, parts)))
    return None


def _join(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > int(hand.apart))
    axis = None if x is None else hand.axis(x)
    if x is None or axis is None or not isinstance(_shape(x)[axis], int):
        return None
    if hand.random.random() < 0.3 and _type(x) == "f32":
        widths = [(0, 0)] * x.ndim
        widths[axis] = (hand.random.randrange(3), hand.random.randrange(3))
        return nn.pad(x, widths, 1.5)

    def fits(y: Expression) -> bool:
        if y.ndim != x.ndim or _type(y) != _type(x) or not isinstance(_shape(y)[axis], int):
            return False
        return all(
            a == b for at, (a, b) in enumerate(zip(_shape(x), _shape(y), strict=True)) if at != axis
        )

    y = hand.of(fits)
    assert y is not None
    return nn.concat(hand.random.sample((x, y, y), hand.random.choice((2, 3))), axis)


def _take(hand: _Hand) -> Expression | None:
    table = hand.of(lambda x: x.ndim < 4 and _shape(x)[:1] not in ((), (0,)))
    if table is None or hand.apart:
        return None
    shape = hand.random.choice(((5,), (2, 3), (0,), (1,)))
    return nn.take(table, hand.input(hand.random.choice(("s32", "s64", "u8")), shape))


def _scatter(hand: _Hand) -> Expression | None:
    base = hand.of(lambda x: x.ndim < 4 and _shape(x)[:1] not in ((), (0,)))
    if base is None or hand.apart:
        return None
    row = _shape(base)[1:]
    fits = [x for x in hand.pool if x.ndim == base.ndim and _shape(x)[1:] == row]
    fits = [x for x in fits if all(map(_is_single, _shape(x)[:1]))]
    if fits and hand.random.random() < 0.7:
        rows = hand.random.choice(fits)
        shape = _shape(rows)[:1]
    elif all(map(_is_single, row)):
        shape = hand.random.choice(((4,), (2, 3), (0,), (1,)))
        rows = hand.input(hand.type, (*shape, *row))
    else:
        return None
    scatter = hand.random.choice((nn.scatter, nn.scatter_add))
    return scatter(base, hand.input(hand.random.choice(("s32", "s64", "u8")), shape), rows)


def _is_single(size: Size) -> bool:
    """Return True if an input may have this size: it is no product of dims."""
    return isinstance(size, int) or terms_of(size) == (1, (size,))


def _mask(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: x.ndim > 1 + int(hand.apart))
    if x is None or hand.type == "f64":
        return None
    return postops.where(nn.index(x, -1) <= nn.index(x, -2), x, -1.0)


def _cast(hand: _Hand) -> Expression | None:
    x = hand.of(lambda x: True)
    if x is None or hand.type == "f64":
        return None
    return x.astype(hand.random.choice(("bf16", "f16", "f32", "s8", "u8", "s32", "f8_e5m2")))


OPERATORS: dict[str, Callable[[_Hand], Expression | None]] = {
    "function": _map, "function of two": _pair, "bias": _bias, "linear": _linear,
    "quantized": _quantized, "product": _values, "reduction": _reduce, "norm": _norm,
    "view": _view, "heads": _heads, "join": _join, "rows of a table": _take, "added rows": _scatter,
    "mask": _mask, "cast": _cast,
}  # fmt: skip
#: All axes of networks with their values.
NETWORK_AXES: dict[str, tuple[Level, ...]] = {
    "network of": ("f32", "f32", "f32", "bf16", "f16", "f64"),
    "batch of tensors": (NONE, NONE, 0, 1, 3, RUN_TIME),
    "rows of tensors": (1, 2, 5, 13, RUN_TIME, RUN_TIME, RUN_TIME),
    "columns of tensors": (1, 3, 16, 17, 32, 48, RUN_TIME),
    "operators": (1, 2, 3, 4, 6, 8, 12),
    "one operator": tuple(OPERATORS),
    "results": (1, 1, 2, 3),
    "first axis": ("mixed", "apart"),
    "network schedule": (NONE, NONE, "two threads"),
}
_NAME = re.compile(
    rf"(?<!['\w.])(compile|network|Tensor|Quantized|dim|nn|Schedule|{'|'.join(postops.NAMES)})\b"
    r"(?![='])"
)


@dataclass(frozen=True, slots=True)
class NetworkCase:
    """One random case: a network to be made and verified. ``levels`` has the value of each axis."""

    seed: int
    index: int
    levels: Mapping[str, str]
    arguments: Mapping[str, Any]

    @property
    def schedule(self) -> Schedule:
        """The case's schedule."""
        return Schedule(threads=2) if self.arguments["network schedule"] else Schedule()

    @property
    def apart(self) -> bool:
        """True if an index of the first axis of a result depends on that index of inputs alone."""
        return bool(self.arguments["first axis"] == "apart")

    def spec(self) -> Network:
        """Return the case's spec; SpecError if tilewright refuses it."""
        given = self.arguments
        hand = _Hand(
            random.Random(f"{self.seed} network {self.index}"), given["network of"], self.apart
        )
        sizes = [given[f"{name} of tensors"] for name in ("batch", "rows", "columns")]
        names = ("batch", "rows", "columns")
        shape = tuple(
            dim(name) if size == RUN_TIME else size
            for name, size in zip(names, sizes, strict=True) if size is not None
        )  # fmt: skip
        hand.pool.append(hand.input(hand.type, shape))
        if hand.random.random() < 0.3:
            hand.pool.append(hand.input(hand.type, (*shape[:-2], 1, shape[-1])) * 1.0)
        wanted = hand.random.randrange(given["operators"])
        for number in range(given["operators"]):
            found = None
            names_left = list(OPERATORS)
            hand.random.shuffle(names_left)
            if number == wanted:
                names_left.insert(0, given["one operator"])
            while found is None:
                found = OPERATORS[names_left.pop(0)](hand)
                if found is not None and _elements(_shape(found)) > _MOST:
                    found = None
            hand.pool.append(found)
        results = [hand.pool[-1]]
        results += hand.random.choices(hand.pool, k=given["results"] - 1)
        return _network(hand, results)

    def python(self, target: str) -> str:
        """Return the statement that makes the kernel and verifies it as the sweep does."""
        made = [repr(self.spec())]
        if self.schedule != Schedule():
            made.append(repr(self.schedule))
        text = f"compile({', '.join(made)}, target={target!r})"
        return _NAME.sub(r"tw.\1", f"{text}.verify(cases={CASES}, seed={self.index})")


def _network(hand: _Hand, results: list[Expression]) -> Network:
    """Return the network of some results. Inputs that they do not use become results too."""
    used = {node for node in every_node(tuple(results)) if isinstance(node, Input)}
    if hand.inputs[0] not in used:
        results = [*results, hand.inputs[0]]
        used.add(hand.inputs[0])
    inputs = tuple(each for each in hand.inputs if each in used)
    made = Network(inputs, tuple(results), len(results) > 1)
    made.check_told()
    return made


def draw_network(seed: int, index: int) -> NetworkCase:
    """Return the random network number ``index`` of a seed."""
    given = dealt(NETWORK_AXES, seed, index)
    levels = {axis: title(level) for axis, level in given.items()}
    return NetworkCase(seed, index, levels, given)
