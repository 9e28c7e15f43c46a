"""Write the expressions of an epilogue as programs of elementary operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import SpecError
from tilewright.spec.expression import REGISTRY, Call, Expression, Number, Truth, walk
from tilewright.spec.expression.checks import check_functions
from tilewright.spec.expression.nodes import Composed, as_expression
from tilewright.spec.expression.shapes import Shaped, together
from tilewright.spec.expression.tensors import Cast, Full

from .builder import Argument, Builder, Value, live
from .conversions import narrow, widen

Leaves = Callable[[Expression], Argument]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Elementary(Composed):
    """An elementary operation on the lanes of ``args``, which may be s32 or f32.

    Numbers among ``args`` are integers if the other arguments are s32.
    """

    fn: str
    args: tuple[Expression, ...]
    tensor: Shaped | None = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        given = [arg.tensor for arg in self.args if arg.tensor is not None]
        object.__setattr__(self, "tensor", together(self.fn, given) if given else None)
        object.__setattr__(self, "_hash", hash((self.fn, self.args)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The operation."""
        return (self.fn,)

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Elementary:
        """Return the operation with these arguments."""
        return Elementary(shell[0], args)

    def printed(self, args: list[str]) -> str:
        """Return the operation as text."""
        return f"{self.fn}({', '.join(args)})"


def elementary(fn: str, *args: Expression | float) -> Expression:
    """Return an elementary operation on expressions and numbers."""
    return Elementary(fn, tuple(map(as_expression, args)))


def lower_expression(
    expression: Expression,
    builder: Builder,
    leaves: Leaves,
    element: str = "f32",
    entering: Callable[[Any], None] = lambda _call: None,
    most: Callable[[Expression], float | None] = lambda _node: None,
) -> Argument:
    """Write the steps of ``expression`` and return the result, a literal if it is constant.

    ``leaves`` returns the value of ``acc``, ``acc2``, ``dst`` and each operand, in lanes of
    ``element``. ``element`` is the builder's floating-point type, or s32 for integer additions.
    ``entering`` is called with each function of the expression before its steps are written.
    ``most`` returns a number that the value of a node never exceeds, or None.
    """
    check_functions(expression, element)
    return _number(builder, _Lowering(builder, leaves, element, entering, most).of(expression))


def lower_function(builder: Builder, fn: str, *args: Argument) -> Argument:
    """Write the steps of tilewright's function ``fn``, and return its value."""
    entry = REGISTRY[fn]
    assert entry.lower is not None
    return _number(builder, entry.lower(builder, *args))


def _number(b: Builder, value: Argument | Truth) -> Argument:
    if isinstance(value, Truth):
        return b("select", value.mask, value.yes, value.no)
    return value


class _Lowering:
    """Writes the steps of one expression to a builder; each node is written once."""

    def __init__(
        self,
        builder: Builder,
        leaves: Leaves,
        element: str,
        entering: Callable[[Any], None],
        most: Callable[[Expression], float | None],
    ) -> None:
        self.builder, self.leaves, self.element = builder, leaves, element
        self.entering, self.most = entering, most
        self.values: dict[int, Argument | Truth] = {}
        # These expressions are kept, because ``values`` finds nodes by their ``id``.
        self.meanings: list[Expression] = []
        # True while steps are written for the expression by which a function is defined.
        self.within_meaning = False

    def of(self, expression: Expression) -> Argument | Truth:
        """Write the steps of ``expression``, and return its value."""
        for node in walk(expression, self.values):
            made = self.values[id(node)] = self._node(node)
            if not isinstance(made, Truth) and (most := self.most(node)) is not None:
                self.builder.at_most(made, most)
        return self.values[id(expression)]

    def _node(self, node: Expression) -> Argument | Truth:
        match node:
            case Number(value) | Full(value):
                return self.builder.literal(int(value) if self.element == "s32" else value)
            case Call():
                return self._call(node)
            case Elementary():
                return self._elementary(node)
            case Cast(type_, (given,)):
                return rounded(self.builder, _number(self.builder, self.values[id(given)]), type_)
            case _:
                return self.leaves(node)

    def _call(self, node: Call) -> Argument | Truth:
        entry, b = node.entry, self.builder
        if not self.within_meaning:
            self.entering(node)
        if entry.lower is None:
            return self._by_meaning(node)
        args = [self.values[id(arg)] for arg in node.args]
        condition = args[:1] if entry.condition else []
        numbers = [_number(b, arg) for arg in args[len(condition) :]]
        if node.fn == "neg" and self.element == "s32":  # s32 has no elementary negation
            return b("sub", 0, *numbers)
        made: Argument | Truth = entry.lower(b, *condition, *numbers)
        if entry.own:
            self._check(node, made)
        return made

    def _elementary(self, node: Elementary) -> Argument:
        self.entering(node)
        args = [_number(self.builder, self.values[id(arg)]) for arg in node.args]
        if any(isinstance(arg, Value) and arg.element == "s32" for arg in args):
            args = [int(arg) if isinstance(arg, float) else arg for arg in args]
        return self.builder(node.fn, *args)

    def _by_meaning(self, node: Call) -> Argument | Truth:
        """Return the value of a function that is defined by an expression of other functions."""
        meaning = node.meaning()
        assert meaning is not None
        self.meanings.append(meaning)
        outermost, self.within_meaning = not self.within_meaning, True
        value = self.of(meaning)
        self.within_meaning = not outermost
        return value

    def _check(self, node: Call, made: object) -> None:
        """Raise SpecError unless a user's ``lower`` returned a number of the builder's type."""
        right = isinstance(made, (float, Truth))
        if isinstance(made, Value):
            right = made.element == self.builder.real
        if not right:
            raise SpecError(
                f"the program of {node.fn} gives no number of {self.builder.real}",
                got=f"lanes of {made.element}" if isinstance(made, Value) else made,
                expected="what one of its steps b(...) returned, or a float",
            )


def rounded(b: Builder, x: Argument, type_: str) -> Argument:
    """Return ``x`` rounded to ``type_``, as a number of the builder's floating-point type.

    Loads and stores convert between f32 and f64, so that ``x`` stays as it is.
    """
    if type_ == b.real or "f64" in (type_, b.real):
        return x
    return widen(b, narrow(b, x, type_), type_)


# -- the programs of users' functions -------------------------------------------------------------


def own_programs(expressions: Iterable[Expression], real: str) -> tuple[str, ...]:
    """Return, as text, the program of each expression that uses a post-op of the user.

    Two kernels may have expressions with the same text, but different functions of that name. These
    texts distinguish such kernels.
    """
    found = []
    for expression in expressions:
        if any(isinstance(node, Call) and node.own for node in walk(expression)):
            found.append(_text(expression, real))
    return tuple(found)


def _text(expression: Expression, real: str) -> str:
    builder = Builder(real)
    inputs: dict[Expression, Value] = {}

    def leaf(node: Expression) -> Value:
        return inputs.setdefault(node, builder.input())

    def name(arg: Argument) -> str:
        if isinstance(arg, Value):
            return f"v{arg.index}"
        return arg.hex() if isinstance(arg, float) else str(arg)

    result = lower_expression(expression, builder, leaf, real)
    given = [f"{name(value)} = {node!r}" for node, value in inputs.items()]
    steps = [
        f"{name(step.dst)} = {step.fn}({', '.join(map(name, step.args))})"
        for step in live(builder.steps, [result])
    ]
    return "; ".join([*given, *steps, name(result)])
