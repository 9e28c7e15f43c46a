"""Define the nodes of an expression, which says how elements of D or of a tensor are computed.

Nodes are immutable and compare by structure. Python's operators build them. Nothing is evaluated or
rewritten here. An expression is a graph: a node that is used twice exists once. Functions that read
an expression visit each node once and without recursion, so deep and shared expressions are cheap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from inspect import Signature, signature
from itertools import count
from numbers import Rational, Real
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from tilewright.errors import SpecError, SpecTypeError

from ..sizes import Dim, Size, real_number
from .opaque import METHODS, Opaque
from .postop import REGISTRY, PostOp
from .shapes import Shaped, together


class Expression(Opaque["Expression"]):
    """An expression for an element of D: a number, an input, or a function of expressions.

    ``+ - * / ** abs() < <= > >=`` make new nodes. ``& | ^ ~`` are logical operators: a value is
    true if it is not 0. ``==`` compares structure.

    Examples
    --------
    >>> gate = tw.Operand("gate", "f32", per="full")
    >>> (tw.acc + 1) * gate < 6
    lt((acc + 1) * Operand('gate', 'f32', per='full'), 6)
    >>> tw.acc + 1 == tw.acc + 1
    True
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Expression:
        """Return the node for a numpy function, so that ``np.maximum(tw.acc, 0)`` works."""
        name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
        entry = REGISTRY.get(name)
        if name == "matmul" and method == "__call__" and not options:
            return ARRAY_FUNCTIONS["matmul"](*inputs)
        plain = method == "__call__" and not options and entry is not None and not entry.own
        if (
            plain
            and entry is not None
            and len(entry.operands) == len(inputs)
            and not entry.parameters
        ):
            return call(name, *inputs)
        theirs = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        return _refuse_numpy(theirs, _UFUNCS.get(theirs, name))

    def __array_function__(self, function: Any, _types: Any, args: Any, named: Any) -> Expression:
        """Return the node for a numpy function of arrays, so that ``np.where`` works."""
        name = function.__name__
        known = ARRAY_FUNCTIONS.get(name)
        if known is None:
            _refuse_numpy(name, name)
        try:
            signature(known).bind(*args, **named)
        except TypeError as error:
            raise SpecTypeError(
                f"np.{name} of an expression takes other arguments",
                got=str(error),
                expected=f"np.{name}{signature(known).replace(return_annotation=Signature.empty)}",
            ) from None
        return known(*args, **named)

    @classmethod
    def __torch_function__(
        cls, function: Any, _types: Any, _args: Any = (), _named: Any = None
    ) -> NoReturn:
        """Raise SpecError: PyTorch's functions cannot be applied to an expression."""
        name = getattr(function, "__name__", str(function))
        _refuse_numpy(name, name, "torch")

    def __add__(self, other: Term) -> Expression:
        return call("add", self, other)

    def __radd__(self, other: Term) -> Expression:
        return call("add", other, self)

    def __sub__(self, other: Term) -> Expression:
        return call("sub", self, other)

    def __rsub__(self, other: Term) -> Expression:
        return call("sub", other, self)

    def __mul__(self, other: Term) -> Expression:
        return call("mul", self, other)

    def __rmul__(self, other: Term) -> Expression:
        return call("mul", other, self)

    def __truediv__(self, other: Term) -> Expression:
        return call("div", self, other)

    def __rtruediv__(self, other: Term) -> Expression:
        return call("div", other, self)

    def __matmul__(self, other: Expression) -> Expression:
        return ARRAY_FUNCTIONS["matmul"](self, other)

    def __pow__(self, exponent: float) -> Expression:
        return call("pow", self, 1, parameter("pow", "beta", exponent))

    def __rpow__(self, base: object) -> NoReturn:
        raise SpecTypeError(
            "the exponent of ** must be a number",
            got=f"{base!r} ** {self!r}",
            expected="an expression ** a number",
            hint=f"tw.exp(x * {math.log(base)!r}), with the expression as x"
            if isinstance(base, int | float) and base > 0
            else "tw.exp(x * log(base)), with the expression as x",
        )

    def __neg__(self) -> Expression:
        return call("neg", self)

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return call("abs", self)

    def __lt__(self, other: Term) -> Expression:
        return call("lt", self, other)

    def __le__(self, other: Term) -> Expression:
        return call("le", self, other)

    def __gt__(self, other: Term) -> Expression:
        return call("gt", self, other)

    def __ge__(self, other: Term) -> Expression:
        return call("ge", self, other)

    def __and__(self, other: Term) -> Expression:
        return call("logical_and", self, other)

    def __rand__(self, other: Term) -> Expression:
        return call("logical_and", other, self)

    def __or__(self, other: Term) -> Expression:
        return call("logical_or", self, other)

    def __ror__(self, other: Term) -> Expression:
        return call("logical_or", other, self)

    def __xor__(self, other: Term) -> Expression:
        return call("logical_xor", self, other)

    def __rxor__(self, other: Term) -> Expression:
        return call("logical_xor", other, self)

    def __invert__(self) -> Expression:
        return call("logical_not", self)


Term = Expression | float

#: Functions for numpy's functions and methods of arrays, by numpy's name. Modules of tensors add
#: to them.
ARRAY_FUNCTIONS: dict[str, Callable[..., Expression]] = METHODS

#: Names of numpy functions that have another name in tilewright, with tilewright's name.
_UFUNCS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "negative": "neg", "absolute": "abs",
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "rint": "round", "bitwise_and": "logical_and",
    "bitwise_or": "logical_or", "bitwise_xor": "logical_xor", "invert": "logical_not",
    "add.at": "nn.scatter_add",
}  # fmt: skip


def _refuse_numpy(theirs: str, ours: str, library: str = "np") -> NoReturn:
    """Raise SpecError: a library's function ``theirs`` cannot be applied to an expression."""
    known = ours == "nn.scatter_add" or (ours in REGISTRY and not REGISTRY[ours].own)
    raise SpecError(
        f"{library}.{theirs} is no function of expressions",
        got=f"{library}.{theirs} of an expression",
        expected="a function of tilewright, for example tw.relu, or nn.sum in a network",
        hint=f"tw.{ours}" if known else "@tw.postop defines a function of your own",
    )


def _infinite(value: object) -> bool:
    """Return True if ``value`` is infinite, False if it is finite but too large for a float."""
    return not isinstance(value, Rational) and math.isinf(value)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Number(Expression):
    """A number in an expression. It is rounded to the type in which the expression is computed."""

    value: float

    def __post_init__(self) -> None:
        value = real_number(self.value)
        if value is None or (math.isinf(value) and not _infinite(self.value)):
            raise SpecError(
                "a number of an expression is beyond floating point",
                got=self.value,
                expected="magnitudes below 2**1024, or float('inf')",
            )
        object.__setattr__(self, "value", value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.value.hex() == other.value.hex()

    def __hash__(self) -> int:
        return hash(self.value.hex())

    def __repr__(self) -> str:
        if self.value - self.value != 0:
            return f"float({str(self.value)!r})"
        whole = -1e16 < self.value < 1e16 and float(int(self.value)).hex() == self.value.hex()
        return repr(int(self.value) if whole else self.value)


C = TypeVar("C", bound="Composed")


class Composed(Expression):
    """A node that is made of other expressions: a call of a function, a reduction, a cast.

    ``shell`` is all of a node but its ``args``; ``of`` makes a node of both.
    """

    __slots__ = ()
    #: True if ``printed`` puts something after the argument: an operator in it needs parentheses.
    postfix: ClassVar[bool] = False
    #: The operator between the two arguments in printed code; "" if ``printed`` spells the node.
    infix: ClassVar[str] = ""
    args: tuple[Expression, ...]
    _hash: int

    @property
    def shape(self) -> tuple[Size, ...]:
        """The shape of a tensor; SpecError for an expression of an epilogue."""
        return self._shaped.shape

    @property
    def _shaped(self) -> Shaped:
        if self.tensor is None:
            raise SpecError("an epilogue's expression is of one element, not a tensor", got=self)
        return self.tensor

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The fields of the node besides ``args``."""
        raise NotImplementedError

    @classmethod
    def of(cls: type[C], shell: tuple[Any, ...], args: tuple[Expression, ...]) -> C:
        """Return the node with these fields and arguments."""
        raise NotImplementedError

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the node, given that of its arguments."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Composed) and self._hash == other._hash and rows(self) == rows(other)
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return text_of((self,))

    def __copy__(self: C) -> C:
        return self

    def __deepcopy__(self: C, _memo: Any) -> C:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return of_rows, (rows(self),)

    def canonical(self, text: Callable[[object], str]) -> str:
        """Return a text for this expression; equal expressions have equal texts.

        ``text`` returns such a text for an operand, a number or a leaf.
        """
        return ";".join(
            f"{row.kind.__name__}{row.shell}{row.args}" if isinstance(row, Row) else text(row)
            for row in rows(self)
        )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Call(Composed):
    """A call of a post-op, a function of epilogues: its operands, followed by its parameters.

    ``own`` is the post-op itself if a user defined it, so that a later definition with the same
    name does not change this expression. It is None for tilewright's post-ops.
    """

    fn: str
    args: tuple[Expression, ...]
    own: PostOp | None = None
    tensor: Shaped | None = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        given = [arg.tensor for arg in self.args if arg.tensor is not None]
        object.__setattr__(self, "tensor", together(self.fn, given) if given else None)
        object.__setattr__(self, "_hash", hash((self.fn, self.args, self.own)))

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The function's name, and the post-op if a user defined it."""
        return self.fn, self.own

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Call:
        """Return the call with these fields and arguments."""
        fn, own = shell
        return Call(fn, args, own)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the call, given that of its arguments."""
        return _function_text(self, args)

    @property
    def entry(self) -> PostOp:
        """The entry with all facts about the post-op that is applied."""
        return self.own or REGISTRY[self.fn]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The expressions that the post-op is applied to."""
        return self.args[: len(self.entry.operands)]

    @property
    def parameters(self) -> tuple[float, ...]:
        """The numbers that the post-op takes after its operands."""
        behind = self.args[len(self.entry.operands) :]
        return tuple(arg.value for arg in behind if isinstance(arg, Number))

    def meaning(self) -> Expression | None:
        """Return the same result as an expression of other functions; None if there is none."""
        found = self.entry.meaning(self.operands, self.parameters)
        return None if found is None else as_expression(found)


def as_expression(value: object) -> Expression:
    """Return ``value`` as an expression: unchanged if it is one, a number as a ``Number``."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool):
        raise SpecError(
            "a Python bool stands in an expression",
            got=value,
            hint="== compares structure; tw.eq and tw.ne compare elements",
        )
    if isinstance(value, Real):
        return Number(value)  # type: ignore[arg-type]
    raise SpecError(
        "an expression is made of tensors, weights and numbers; in an epilogue, it is made of "
        "tw.acc, tw.acc2, tw.dst, tw.Operand and numbers",
        got=value if isinstance(value, str) else type(value).__name__,
        hint=_hint(value),
    )


def _hint(value: object) -> str:
    """Return the hint of an error message for a value that cannot be part of an expression."""
    name = getattr(value, "__name__", "")
    if isinstance(value, Dim):
        return f"nn.extent({value!r}), the size as a number"
    if callable(value) and name in REGISTRY:
        return f"tw.{name}(tw.acc), the function with its argument"
    if type(value).__name__ == "RowReduction":
        return "outputs={'total': tw.row_sum(tw.acc)}: reductions of rows are outputs"
    return (
        "for an array: in an epilogue bias = tw.Operand('bias', 'f32', per='column') and "
        "bias=array in the call; in a network w.bias and of(..., w={'bias': array})"
    )


def call(fn: str, *args: object) -> Call:
    """Apply tilewright's function ``fn`` to expressions and numbers."""
    return Call(fn, tuple(as_expression(arg) for arg in args))


def parameter(fn: str, name: str, value: object, *, finite: bool = True) -> Number:
    """Return ``value`` as parameter ``name`` of function ``fn``; SpecError if it is no number.

    NaN is refused. Infinity is refused if ``finite``.
    """
    number = real_number(value) if isinstance(value, Real) else None
    if number is None or math.isnan(number):
        raise SpecError(f"{name} of {fn} must be a number", got=value)
    if finite and math.isinf(number):
        raise SpecError(f"{name} of {fn} must be a finite number", got=value)
    return Number(value)  # type: ignore[arg-type]


ARRAY_FUNCTIONS["where"] = lambda condition, x, y: call("where", condition, x, y)
ARRAY_FUNCTIONS["round"] = lambda x: call("round", x)


# -- how to visit the nodes of an expression ----------------------------------------------------


def walk(expression: Expression, known: Container[int] = ()) -> Iterator[Expression]:
    """Yield each node of ``expression`` once, arguments before the nodes that use them.

    Nodes whose ``id`` is in ``known`` are left out, together with nodes that only they use.
    """
    seen: set[int] = set()
    stack = [(expression, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif id(node) not in seen and id(node) not in known:
            seen.add(id(node))
            stack.append((node, True))
            if isinstance(node, Composed):
                stack += [(arg, False) for arg in reversed(node.args)]


def walk_meanings(
    expression: Expression, seen: dict[int, Expression] | None = None
) -> Iterator[Expression]:
    """Yield each node once, and also the nodes of the expressions by which functions are defined.

    Nodes whose ``id`` is in ``seen`` are left out. Nodes that are yielded are added to ``seen``.
    """
    # ``seen`` keeps the nodes alive, so that no other node gets the ``id`` of a deleted one.
    seen = {} if seen is None else seen
    for node in walk(expression, seen):
        seen[id(node)] = node
        yield node
        if isinstance(node, Call) and node.entry.lower is None:
            meaning = node.meaning()
            assert meaning is not None
            yield from walk_meanings(meaning, seen)


class Row(NamedTuple):
    """A composed node as a row of the table that ``rows`` makes; ``args`` are numbers of rows."""

    kind: type[Composed]
    shell: tuple[Hashable, ...]
    args: tuple[int, ...]

    def node(self, nodes: list[Expression]) -> Composed:
        """Return the node of this row, given those of all rows before it."""
        return self.kind.of(self.shell, tuple(nodes[number] for number in self.args))


def rows(*expressions: Expression) -> tuple[Row | Expression, ...]:
    """Return ``expressions`` as a table with one row for each different node, arguments first.

    The last row is the last expression, unless it is part of another one. Equal nodes share a row,
    so that equal expressions have equal tables.
    """
    numbers: dict[Row | Expression, int] = {}
    places: dict[int, int] = {}
    for node in every_node(expressions):
        row: Row | Expression = node
        if isinstance(node, Composed):
            row = Row(type(node), node.shell, tuple(places[id(arg)] for arg in node.args))
        places[id(node)] = numbers.setdefault(row, len(numbers))
    return tuple(numbers)


def every_node(expressions: Iterable[Expression]) -> Iterator[Expression]:
    """Yield each node of several expressions once, arguments before the nodes that use them."""
    seen: set[int] = set()
    for expression in expressions:
        for node in walk(expression, seen):
            seen.add(id(node))
            yield node


def of_rows(table: Iterable[Row | Expression]) -> Expression:
    """Return the expression from which ``rows`` made ``table``."""
    return nodes_of(table)[-1]


def nodes_of(table: Iterable[Row | Expression]) -> list[Expression]:
    """Return the node of each row of a table; equal nodes are one object."""
    nodes: list[Expression] = []
    for row in table:
        nodes.append(row.node(nodes) if isinstance(row, Row) else row)
    return nodes


# -- how an expression is printed ---------------------------------------------------------------

_INFIX = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
_ATOM = 5
#: When an expression is printed, each part with more characters or more nested calls than this gets
#: a name: Python cannot read more than about 200 nested brackets.
_LONG, _DEEP = 500, 40


class _Part(NamedTuple):
    """A printed part of an expression: its text, operator precedence and depth of nested calls.

    ``strength`` is the precedence: 1 for a sum, up to 5 for a name or a function call.
    """

    text: str
    strength: int = _ATOM
    depth: int = 0

    def within(self, least: int) -> str:
        return self.text if self.strength >= least else f"({self.text})"


def text_of(
    expressions: tuple[Expression, ...],
    *,
    several: bool = False,
    taken: Container[str] = (),
    shared: int | None = None,
) -> str:
    """Return the Python code that makes an expression, or if ``several``, a tuple of them.

    Large parts get names first: ``(e0 := ..., e1 := ..., e1 + e1)[-1]``, none of those ``taken``.
    So do parts with more than ``shared`` characters that are used twice.
    """
    table, parts, named = rows(*expressions), list[_Part](), list[str]()
    nodes = nodes_of(table)
    numbers = {node: number for number, node in enumerate(nodes)}
    last = [numbers[expression] for expression in expressions]
    uses = Counter(arg for row in table if isinstance(row, Row) for arg in row.args)
    uses.update(last)
    names = (f"e{i}" for i in count() if f"e{i}" not in REGISTRY and f"e{i}" not in taken)
    for number, row in enumerate(table):
        if isinstance(row, Row):
            part = _part(nodes[number], [parts[place] for place in row.args])
        else:
            text = repr(row)
            part = _Part(text, 3 if text.startswith("-") else _ATOM)
        again = shared is not None and uses[number] > 1 and len(part.text) > shared
        large = number not in last and (len(part.text) > _LONG or part.depth > _DEEP)
        if again or large:
            name = next(names)
            named.append(f"{name} := {part.text}")
            part = _Part(name)
        parts.append(part)
    texts = [parts[number].text for number in last]
    made = f"({', '.join(texts)}{',' * (len(texts) == 1)})" if several else texts[0]
    return f"({', '.join([*named, made])})[-1]" if named else made


def _part(node: Expression, args: list[_Part]) -> _Part:
    """Return the printed form of the call ``node``, given the printed forms of its arguments."""
    assert isinstance(node, Composed)
    depth = 1 + max(arg.depth for arg in args)
    if node.infix:
        return _Part(f"{args[0].within(2)} {node.infix} {args[1].within(3)}", 2, depth)
    if not isinstance(node, Call):
        return _Part(node.printed([arg.within(_ATOM * node.postfix) for arg in args]), _ATOM, depth)
    if node.fn in _INFIX:
        sign, strength = _INFIX[node.fn]
        left, right = args[0].within(strength), args[1].within(strength + 1)
        return _Part(f"{left} {sign} {right}", strength, depth)
    if node.fn == "neg":
        return _Part(f"-{args[0].within(3)}", 3, depth)
    if node.fn == "pow" and node.args[1] == Number(1) and not isinstance(node.args[0], Number):
        return _Part(f"{args[0].within(_ATOM)} ** {args[2].text}", 4, depth)
    return _Part(node.printed([arg.text for arg in args]), _ATOM, depth)


def _function_text(node: Call, args: list[str]) -> str:
    numbers = dict(node.entry.parameters)
    required = len(node.args) - sum(default is not None for default in numbers.values())
    said = args[:required]
    behind = list(numbers.items())[required - len(node.operands) :]
    for text, arg, (name, default) in zip(
        args[required:], node.args[required:], behind, strict=True
    ):
        if default is None or arg != Number(default):
            said.append(f"{name}={text}")
    return f"{node.fn}({', '.join(said)})"
