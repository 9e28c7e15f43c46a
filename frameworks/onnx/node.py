"""One node of an ONNX graph as its importer sees it, and the table of importers by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np

import onnx
from tilewright import nn
from tilewright.errors import SpecError
from tilewright.runtime.imported import Array, Constants
from tilewright.spec.expression.nodes import Expression, Number
from tilewright.spec.expression.tensors import cast
from tilewright.spec.sizes import Size
from tilewright.spec.types import type_name

from .values import FLOATING, TYPES, Known, Traced, Value


@dataclass
class Node:
    """A node: its operator, its version, its inputs, its attributes, and errors that name it."""

    proto: onnx.NodeProto
    opset: int
    inputs: tuple[Value | None, ...]
    attributes: dict[str, Any]
    found: Constants

    @property
    def operator(self) -> str:
        """The operator's name."""
        return str(self.proto.op_type)

    @property
    def title(self) -> str:
        """The node in words, for errors."""
        return title(self.proto, self.opset)

    def refuse(
        self, problem: str, got: object = None, expected: object = None, hint: str | None = None
    ) -> NoReturn:
        """Raise SpecError about this node."""
        raise SpecError(
            f"{self.title}: {problem}",
            got=None if got is None else str(got),
            expected=None if expected is None else str(expected),
            hint=hint,
        )

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        found = self.attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else found

    def given(self, index: int) -> bool:
        """Return True if the node has this input."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Known | Traced:
        """Return an input."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            self.refuse(f"input {index} is missing")
        return found

    def constant(self, index: int, what: str) -> Array:
        """Return an input that must be known when the file is loaded."""
        found = self.value(index)
        if not isinstance(found, Known):
            self.refuse(
                f"{what} is computed from the inputs",
                got=self.proto.input[index],
                expected="a constant",
                hint="load(path, constants={...}) fixes inputs",
            )
        return found.array

    def constants(self, index: int, name: str) -> tuple[int, ...] | None:
        """Return whole numbers that older opsets have as an attribute; None if left out."""
        if self.given(index):
            return tuple(int(each) for each in self.constant(index, name).reshape(-1))
        found = self.attributes.get(name)
        return None if found is None else tuple(found)

    @property
    def type(self) -> str:
        """The element type of the first input that is no constant, or else of the first."""
        values = [each for each in self.inputs if each is not None]
        traced = [each.type for each in values if not isinstance(each, Known)]
        return traced[0] if traced else values[0].type

    def tensor(self, index: int) -> Expression:
        """Return an input as an expression."""
        return self.expression(self.value(index))

    def expression(self, value: Known | Traced) -> Expression:
        """Return a value as an expression: a constant becomes a number or a weight."""
        if isinstance(value, Traced):
            return value.expression
        if value.symbolic or value.array.dtype.kind not in "fbiuV":
            self.refuse("a constant of this type is no operand", got=value.array)
        if value.array.size == 1:
            number = float(value.array.reshape(()).astype(np.float64))
            if np.isnan(number):
                self.refuse("NaN as a constant", got=value.name or value.array)
            return Number(number)
        array = value.array.astype(np.float32)
        if not np.array_equal(array.astype(value.array.dtype), value.array, equal_nan=True):
            self.refuse("f32 does not hold this constant", got=value.name)
        while array.ndim > 1 and array.shape[0] == 1:
            array = array[0]
        return self.weight(value, "", array)

    def whole(self, index: int) -> Expression:
        """Return an input as a tensor of its own shape, also if it is a constant of one element."""
        value = self.value(index)
        if isinstance(value, Traced):
            return value.expression
        array = value.array.astype(np.float32)
        if array.size == 1:
            return nn.full(array.shape, float(array.reshape(())))
        return self.weight(value, "whole", array)

    def weight(self, known: Known, use: str, array: Array) -> Expression:
        """Return the weight that holds ``array``, for one use of a constant."""
        return self.found.weight(known.array, known.name, use, array)

    def floating(self) -> str:
        """Return the type of the inputs, which must be floating point."""
        if self.type not in FLOATING:
            self.refuse("integers are not computed with", got=self.type, expected="f32")
        return self.type

    def result(self, found: Expression, type_: str) -> tuple[Value, ...]:
        """Return an expression as the only result, rounded to its type."""
        return (self.traced(found, type_),)

    def traced(self, found: Expression, type_: str) -> Value:
        """Return an expression as a value, rounded to its type."""
        if isinstance(found, Number):
            self.refuse("the result is a number", got=found)
        if found.tensor is None:
            self.refuse("the result is no tensor", got=found)
        if type_ not in TYPES.values():
            self.refuse("tilewright has no such element type", got=self.operator)
        held = found if type_ in ("bool", "s64") else cast(found, type_name(type_))
        return Traced(held, type_)

    def axis(self, name: str = "axis", default: int = 0, *, of: int, end: int = 0) -> int:
        """Return an attribute that is an axis of a tensor with ``of`` axes, counted from 0."""
        axis = int(self.attribute(name, default))
        return self.counted(axis, of + end)

    def counted(self, axis: int, of: int) -> int:
        """Return an axis counted from 0."""
        if not -of <= axis < of:
            self.refuse("there is no such axis", got=axis, expected=f"{-of} to {of - 1}")
        return axis % of


Importer: TypeAlias = Callable[[Node], "Sequence[Value | None]"]
#: The importers by operator; those of the default domain have their name alone.
OPERATORS: dict[str, Importer] = {}


def operator(*names: str) -> Callable[[Importer], Importer]:
    """Register an importer for operators."""

    def add(importer: Importer) -> Importer:
        for name in names:
            OPERATORS[name] = importer
        return importer

    return add


def title(proto: onnx.NodeProto, opset: int) -> str:
    """Return a node in words: its name, its operator and the opset."""
    name = proto.name or next(iter(proto.output), "")
    return f"node {name!r} ({proto.op_type}, opset {opset})"


def shapes(values: Sequence[Value | None]) -> Iterator[tuple[Size, ...]]:
    """Yield the shapes of values."""
    return (value.shape for value in values if value is not None)


def defined(node: Node) -> onnx.FunctionProto | None:
    """Return the function by which ONNX defines an operator; None if there is none."""
    schema = onnx.defs.get_schema(node.operator, node.opset, "")
    if schema.has_function:
        versions = [each for each in schema.function_opset_versions if each <= node.opset]
        if versions:
            text = schema.get_function_with_opset_version(max(versions))
            return onnx.FunctionProto.FromString(text)
    if not schema.has_context_dependent_function:
        return None
    types = [b"" if each is None else _typed(each) for each in node.inputs]
    versions = schema.context_dependent_function_opset_versions
    known = [each for each in versions if each <= node.opset]
    if not known:
        return None
    text = schema.get_context_dependent_function_with_opset_version(
        max(known), node.proto.SerializeToString(), types
    )
    return onnx.FunctionProto.FromString(text) if text else None


def _typed(value: Value) -> bytes:
    """Return the type of a value as ONNX has it."""
    found = [number for number, name in TYPES.items() if name == value.type]
    number = found[0] if found else onnx.TensorProto.UNDEFINED
    shape = [size if isinstance(size, int) else size.name for size in value.shape]
    return bytes(onnx.helper.make_tensor_type_proto(number, shape).SerializeToString())
