"""Read specs and schedules from Python text on the command line, such as ``Gemm(64, 48, 64)``.

The input is text as ``repr`` prints it. The output is the spec or the schedule. The text is parsed
and never run as Python. It may contain only constants, arithmetic, and calls of classes and
functions that make specs, for example ``Gemm``. Generated files use this form: they contain the
command that generates them again.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tilewright as tw
from tilewright import nn
from tilewright.errors import ScheduleError, SpecError
from tilewright.spec import postops, reductions
from tilewright.spec.network.weights import Weights
from tilewright.spec.pack import Pack, PackQuantized, QuantizeRows
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Spec

_MADE = (
    "Gemm", "Transpose", "Copy", "Schedule", "Matrix", "Packed", "Quantized", "Quantize", "Strided",
    "Table", "Offsets", "Addresses", "Operand", "dim", "acc", "acc2", "dst", "Tensor", "Stage",
    "Stages",
)  # fmt: skip
_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.MatMult: operator.matmul,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@cache
def _names() -> Mapping[str, Any]:
    """Return the names that the text may use, with their values."""
    found = {name: getattr(tw, name) for name in _MADE}
    for module in (postops, reductions):
        found |= {name: getattr(module, name) for name in module.__all__}
    return found | {
        "Pack": Pack,
        "PackQuantized": PackQuantized,
        "QuantizeRows": QuantizeRows,
        "dict": dict,
        "inf": float("inf"),
        "nan": float("nan"),
    }


def spec_of_code(text: str) -> Spec:
    """Return the spec that ``text`` describes; raise SpecError if it does not describe one."""
    found = _value(text, SpecError)
    if not isinstance(found, Spec):
        raise SpecError("the text makes no spec", got=text, hint='"Gemm(64, 48, 64)"')
    return found


def schedule_of_code(text: str) -> Schedule:
    """Return the schedule that ``text`` describes; raise ScheduleError if it is not a schedule."""
    found = _value(text, ScheduleError)
    if not isinstance(found, Schedule):
        raise ScheduleError("the text makes no schedule", got=text, hint='"Schedule(tile=(8, 48))"')
    return found


def _value(text: str, error: type[SpecError] | type[ScheduleError]) -> Any:
    try:
        return _Reading().of(_Short().visit(ast.parse(text.strip(), mode="eval")).body)
    except (SyntaxError, TypeError, ValueError, RecursionError) as wrong:
        if isinstance(wrong, (SpecError, ScheduleError)):
            raise
        raise error(
            f"the text cannot be read: {wrong}", got=text, expected="what repr() of it prints"
        ) from None


class _Short(ast.NodeTransformer):
    """Rewrites ``tw.Gemm`` and ``tilewright.Gemm`` to ``Gemm``, the form in which repr prints."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        match node.value:
            case ast.Name(id="tw" | "tilewright"):
                return ast.Name(node.attr, node.ctx)
        return node


#: The methods of tensors that a printed network calls.
_METHODS = ("astype", "reshape", "transpose")


class _Reading:
    """Evaluates the syntax tree of one text.

    The text may name values and use them again, as in ``(e0 := acc + 1, e0 * e0)[-1]``.
    """

    def __init__(self) -> None:
        self.names = dict(_names())

    def of(self, node: ast.expr) -> Any:
        """Return the value of a node; raise ValueError if the node is not allowed."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Tuple(elts=parts):
                return tuple(map(self.of, parts))
            case ast.List(elts=parts):
                return list(map(self.of, parts))
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {self.of(key): self.of(one) for key, one in pairs if key}
            case ast.UnaryOp(op=op, operand=one) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.of(one))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.of(left), self.of(right))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=words) if name in _names():
                named = {word.arg: self.of(word.value) for word in words if word.arg is not None}
                return _names()[name](*map(self.of, args), **named)
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Call(func=ast.Name(id="network"), args=[ast.Lambda() as made]),
                    attr="of",
                ),
                keywords=words,
            ):
                return self._network(made, words)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="nn"), attr=name), args=args, keywords=words
            ) if name in nn.__all__:
                named = {word.arg: self.of(word.value) for word in words if word.arg is not None}
                return getattr(nn, name)(*map(self.of, args), **named)
            case ast.Call(func=ast.Attribute(value=one, attr=name), args=[how]) if name in _METHODS:
                return getattr(self.of(one), name)(self.of(how))
            case ast.Attribute(value=ast.Name(id=name), attr=key) if isinstance(
                self.names.get(name), Weights
            ):
                return self.names[name][key]
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if name not in _names():
                self.names[name] = self.of(value)
                return self.names[name]
            case ast.Subscript(value=ast.Tuple(elts=parts), slice=ast.UnaryOp()):
                return self.of(ast.Tuple(parts))[self.of(node.slice)]
            case ast.Subscript(value=one, slice=ast.Slice() | ast.Tuple() as index):
                return self.of(one)[self.of(index)]
            case ast.Slice(lower=first, upper=stop, step=step):
                return slice(
                    *(None if each is None else self.of(each) for each in (first, stop, step))
                )
        raise ValueError(f"{ast.unparse(node)} makes no spec and no part of one")

    def _network(self, made: ast.Lambda, words: list[ast.keyword]) -> Any:
        """Return the network of a function that is given as text."""
        names = [arg.arg for arg in made.args.args]

        def function(**tensors: Any) -> Any:
            self.names |= tensors
            return self.of(made.body)

        parameters = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names]
        vars(function)["__signature__"] = inspect.Signature(parameters)
        given = {word.arg: self.of(word.value) for word in words if word.arg is not None}
        return tw.network(function).of(**given)
