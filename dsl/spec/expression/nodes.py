"""Define the nodes of an expression, which says how an epilogue computes the elements of D.

Nodes are immutable and compare by structure. Python's operators build them. Nothing is evaluated or
rewritten here. An expression is a graph: a node that is used twice exists once. Functions that read
an expression visit each node once and without recursion, so deep and shared expressions are cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from numbers import Rational, Real
from typing import Any, Literal, NamedTuple, NoReturn, get_args

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..names import check_name
from ..sizes import real_number
from ..types import DTypeLike, TypeName, is_integer, type_name
from .postop import REGISTRY, PostOp

Per = Literal["column", "row", "full"]


class Expression:
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
        plain = method == "__call__" and not options and entry is not None and not entry.own
        if (
            plain
            and entry is not None
            and len(entry.operands) == len(inputs)
            and not entry.parameters
        ):
            return call(name, *inputs)
        return _refuse_numpy(ufunc.__name__, name)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        """Raise SpecError for numpy functions that act on whole arrays, for example ``np.sort``."""
        _refuse_numpy(function.__name__, function.__name__)

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

    def __pow__(self, exponent: float) -> Expression:
        return call("pow", self, 1, parameter("pow", "beta", exponent))

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

    def __bool__(self) -> NoReturn:
        raise SpecError(
            "an expression has no truth value: it stands for every element of D",
            got=self,
            hint="tw.where(condition, x, y) chooses by element; a < b < c is (a < b) & (b < c), "
            "and `and`, `or` and `not` are &, | and ~",
        )


Term = Expression | float

#: Names of numpy functions that have another name in tilewright, with tilewright's name.
_UFUNCS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "negative": "neg", "absolute": "abs",
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "rint": "round", "bitwise_and": "logical_and",
    "bitwise_or": "logical_or", "bitwise_xor": "logical_xor", "invert": "logical_not",
}  # fmt: skip


def _refuse_numpy(theirs: str, ours: str) -> NoReturn:
    """Raise SpecError: numpy's function ``theirs`` cannot be applied to an expression."""
    known = ours in REGISTRY and not REGISTRY[ours].own
    raise SpecError(
        f"np.{theirs} is no function of expressions",
        got=f"np.{theirs} of an expression",
        expected="a function of epilogues: they stand in tilewright, as tw.relu does",
        hint=f"tw.{ours}" if known else "@tw.postop makes one of your own",
    )


@dataclass(frozen=True, slots=True, repr=False)
class Leaf(Expression):
    """A value that the kernel itself supplies: ``acc``, ``acc2`` or ``dst``."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in ("acc", "acc2", "dst"):
            raise SpecError(
                "a kernel supplies no such value",
                got=self.name,
                expected="tw.acc, tw.acc2 or tw.dst",
                hint="what is passed at the call is a tw.Operand",
            )

    def __repr__(self) -> str:
        return self.name


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, repr=False)
class Operand(Expression):
    """A named argument of the call: one value, or one for each column, row or element of D.

    In Python it is passed by ``name``. In C its parameter is ``name`` with "_" appended, for
    example ``bias_`` for "bias".

    Parameters
    ----------
    name : str
        An identifier; keywords of C, C++ and Python, and names that C reserves, are refused.
    type : str or numpy type
        Element type.
    per : {"column", "row", "full", "element"}, optional
        Values for each column (n,), row (m,) or element (m, n) of D; None is one value. "element"
        means "full".

    Raises
    ------
    SpecError
        The name or type is not possible.

    Examples
    --------
    >>> bias = tw.Operand("bias", "f32", per="column")
    >>> kernel = tw.compile(tw.Gemm(2, 3, 4, epilogue=tw.acc + bias))
    >>> a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    >>> kernel(a, b, bias=np.float32([0, 10, 20]))
    array([[ 4., 14., 24.], [ 4., 14., 24.]], dtype=float32)
    """

    name: str
    type: TypeName
    per: Per | None

    def __init__(
        self, name: str, type: DTypeLike = "f32", per: Per | Literal["element"] | None = None
    ) -> None:
        check_name(name, "an operand")
        text = per is None or isinstance(per, str)
        named = "full" if text and per == "element" else per
        if not text or named not in (None, *get_args(Per)):
            raise SpecError(
                f"operand {name!r}: per says which elements of D have a value of their own",
                got=per,
                expected="None (one value for all), 'column', 'row' or 'full'",
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", _computed_with(name, type))
        object.__setattr__(self, "per", named)

    def __repr__(self) -> str:
        per = "" if self.per is None else f", per={self.per!r}"
        return f"Operand({self.name!r}, {self.type!r}{per})"


def _computed_with(name: str, type_: DTypeLike) -> TypeName:
    """Return the type of operand ``name``; SpecError for s64, which expressions cannot use."""
    found = type_name(type_)
    if found == "s64":
        raise SpecError(
            f"operand {name!r} cannot have this type",
            got=found,
            expected="a type that is converted to that of the expression",
            hint="s32, or f64 where sums are",
        )
    return found


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


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Call(Expression):
    """A call of a post-op, a function of epilogues: its operands, followed by its parameters.

    ``own`` is the post-op itself if a user defined it, so that a later definition with the same
    name does not change this expression. It is None for tilewright's post-ops.
    """

    fn: str
    args: tuple[Expression, ...]
    own: PostOp | None = None
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.fn, self.args, self.own)))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Call) and self._hash == other._hash and rows(self) == rows(other)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return _text(self)

    def __copy__(self) -> Call:
        return self

    def __deepcopy__(self, _memo: Any) -> Call:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return of_rows, (rows(self),)

    def canonical(self, text: Callable[[object], str]) -> str:
        """Return a text for this expression; equal expressions have equal texts.

        ``text`` returns such a text for an operand, a number or a leaf.
        """
        return ";".join(
            f"{row.fn}{row.own or ''}{row.args}" if isinstance(row, Row) else text(row)
            for row in rows(self)
        )

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


acc: Leaf = Leaf("acc")
acc2: Leaf = Leaf("acc2")
dst: Leaf = Leaf("dst")


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
        "an expression is made of tw.acc, tw.acc2, tw.dst, tw.Operand and numbers",
        got=value if isinstance(value, str) else type(value).__name__,
        hint=_hint(value),
    )


def _hint(value: object) -> str:
    """Return the hint of an error message for a value that cannot be part of an expression."""
    name = getattr(value, "__name__", "")
    if callable(value) and name in REGISTRY:
        return f"tw.{name}(tw.acc), the function with its argument"
    if type(value).__name__ == "RowReduction":
        return "outputs={'total': tw.row_sum(tw.acc)}: reductions of rows are outputs"
    return (
        "for an array, write bias = tw.Operand('bias', 'f32', per='column') into the expression, "
        "and pass bias=array in the call"
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
            if isinstance(node, Call):
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
    """A ``Call`` as a row of the table that ``rows`` makes; ``args`` are numbers of other rows."""

    fn: str
    own: PostOp | None
    args: tuple[int, ...]


def rows(expression: Expression) -> tuple[Row | Expression, ...]:
    """Return ``expression`` as a table with one row for each different node, arguments first.

    The last row is the expression itself. Equal calls share a row, so that equal expressions have
    equal tables.
    """
    numbers: dict[Row | Expression, int] = {}
    places: dict[int, int] = {}
    for node in walk(expression):
        row: Row | Expression = node
        if isinstance(node, Call):
            row = Row(node.fn, node.own, tuple(places[id(arg)] for arg in node.args))
        places[id(node)] = numbers.setdefault(row, len(numbers))
    return tuple(numbers)


def of_rows(table: Iterable[Row | Expression]) -> Expression:
    """Return the expression from which ``rows`` made ``table``."""
    nodes: list[Expression] = []
    for row in table:
        if isinstance(row, Row):
            row = Call(row.fn, tuple(nodes[number] for number in row.args), row.own)
        nodes.append(row)
    return nodes[-1]


def operands_of(*expressions: Expression) -> tuple[Operand, ...]:
    """Return the operands of ``expressions``, sorted by name.

    SpecError if two operands with the same name differ.
    """
    found: dict[str, Operand] = {}
    for expression in expressions:
        for node in walk(expression):
            if isinstance(node, Operand) and found.setdefault(node.name, node) != node:
                raise SpecError(
                    f"operand {node.name!r} is declared twice with different properties",
                    got=f"{found[node.name]} and {node}",
                    hint="make one tw.Operand and use it in both places",
                )
    return tuple(found[name] for name in sorted(found))


def uses(expression: Expression, leaf: Leaf) -> bool:
    """Return True if ``leaf`` (``acc``, ``acc2`` or ``dst``) occurs in ``expression``."""
    return any(node == leaf for node in walk(expression))


def is_integer_additions(expression: Expression) -> bool:
    """Return True if ``expression`` only adds and subtracts products, D and integers.

    Such an expression can be computed in s32, modulo 2**32.
    """
    for node in walk(expression):
        match node:
            case Leaf():
                whole = True
            case Number(value):
                whole = -(2.0**31) <= value < 2.0**31 and value.is_integer()
            case Operand():
                whole = is_integer(node.type)
            case _:
                whole = isinstance(node, Call) and node.entry.whole
        if not whole:
            return False
    return True


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


def _text(expression: Expression) -> str:
    """Return the Python code that makes ``expression``.

    Large parts get names first: ``(e0 := ..., e1 := ..., e1 + e1)[-1]``.
    """
    table, parts, named = rows(expression), list[_Part](), list[str]()
    nodes, names = list[Expression](), (f"e{i}" for i in count() if f"e{i}" not in REGISTRY)
    for row in table:
        if isinstance(row, Row):
            args = tuple(nodes[number] for number in row.args)
            nodes.append(Call(row.fn, args, row.own))
            part = _part(nodes[-1], [parts[number] for number in row.args])
        else:
            nodes.append(row)
            text = repr(row)
            part = _Part(text, 3 if text.startswith("-") else _ATOM)
        if len(parts) < len(table) - 1 and (len(part.text) > _LONG or part.depth > _DEEP):
            name = next(names)
            named.append(f"{name} := {part.text}")
            part = _Part(name)
        parts.append(part)
    return f"({', '.join([*named, parts[-1].text])})[-1]" if named else parts[-1].text


def _part(node: Expression, args: list[_Part]) -> _Part:
    """Return the printed form of the call ``node``, given the printed forms of its arguments."""
    assert isinstance(node, Call)
    depth = 1 + max(arg.depth for arg in args)
    if node.fn in _INFIX:
        sign, strength = _INFIX[node.fn]
        left, right = args[0].within(strength), args[1].within(strength + 1)
        return _Part(f"{left} {sign} {right}", strength, depth)
    if node.fn == "neg":
        return _Part(f"-{args[0].within(3)}", 3, depth)
    if node.fn == "pow" and node.args[1] == Number(1) and not isinstance(node.args[0], Number):
        return _Part(f"{args[0].within(_ATOM)} ** {args[2].text}", 4, depth)
    return _Part(_function_text(node, [arg.text for arg in args]), _ATOM, depth)


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
