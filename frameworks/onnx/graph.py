"""Walk an ONNX graph in order, and give each node to its importer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
from tilewright.errors import SpecError, TilewrightError
from tilewright.runtime.imported import Constants

from . import einsum, elementwise, indices, learned, low_bit, moves, products, quantized, rows  # noqa: F401 (they register)
from .fold import folded
from .node import OPERATORS, Node, defined, title
from .values import Known, Value

Scope = dict[str, Value]


@dataclass
class Walk:
    """The state of an import: opsets, functions of the file, and weights found so far."""

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], onnx.FunctionProto]
    constants: Constants
    #: Names of the functions that are being walked: a function does not call itself.
    within: tuple[tuple[str, str], ...] = ()

    def graph(
        self, graph: onnx.GraphProto, scope: Scope, wanted: Sequence[str] | None = None
    ) -> list[Value]:
        """Return the results of a graph, given the values of names around it."""
        inner = dict(scope)
        for tensor in graph.initializer:
            if tensor.name not in inner:  # else load's ``constants`` fix it
                inner[tensor.name] = known(tensor)
        if graph.sparse_initializer:
            raise SpecError("sparse tensors are not imported", got=graph.name)
        wanted = [each.name for each in graph.output] if wanted is None else wanted
        self.nodes(graph.node, wanted, inner, {})
        for name in wanted:
            if name not in inner:
                raise SpecError(
                    "a result of the graph is no tensor, or no node computes it",
                    got=name,
                    expected="a tensor",
                )
        return [inner[name] for name in wanted]

    def nodes(
        self,
        nodes: Iterable[onnx.NodeProto],
        wanted: Iterable[str],
        scope: Scope,
        attributes: Mapping[str, onnx.AttributeProto],
    ) -> None:
        """Put the results of the nodes that ``wanted`` depends on into ``scope``."""
        for proto in _needed(list(nodes), set(wanted)):
            made = self.node(proto, scope, attributes)
            for name, value in zip(proto.output, made, strict=False):
                if name and value is not None:
                    scope[name] = value

    def node(
        self, proto: onnx.NodeProto, scope: Scope, attributes: Mapping[str, onnx.AttributeProto]
    ) -> list[Value | None]:
        """Return the results of one node."""
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        function = self.functions.get((domain, proto.op_type))
        inputs = [self._value(proto, name, scope) if name else None for name in proto.input]
        if function is not None:
            return self._call(proto, function, inputs, scope)
        opset = self.opsets.get(domain, 0)
        proto = _resolved(proto, attributes)
        own = {each.name: onnx.helper.get_attribute_value(each) for each in proto.attribute}
        if proto.op_type == "If" and domain == "":
            return self._if(proto, opset, inputs, scope)
        if domain == "" and (found := folded(proto, inputs, self.opsets)) is not None:
            return list(found)
        node = Node(proto, opset, tuple(inputs), own, self.constants)
        importer = OPERATORS.get(proto.op_type if domain == "" else f"{domain}.{proto.op_type}")
        if importer is None:
            return self._expanded(node)
        try:
            return list(importer(node))
        except TilewrightError as error:
            if error.problem.startswith("node "):
                raise
            raise SpecError(
                f"{node.title}: {error.problem}", got=error.got, expected=error.expected,
                hint=error.hint,
            ) from error  # fmt: skip

    def _value(self, proto: onnx.NodeProto, name: str, scope: Scope) -> Value:
        if name not in scope:
            raise SpecError(
                f"{title(proto, self.opsets.get(proto.domain, 0))}: no earlier value has this name",
                got=name,
                expected="an input, an initializer or the result of an earlier node",
            )
        return scope[name]

    def _expanded(self, node: Node) -> list[Value | None]:
        """Return the results of the nodes by which ONNX defines an operator, if it does so."""
        proto = node.proto
        if not proto.domain and onnx.defs.has(proto.op_type):
            body = defined(node)
            if body is not None:
                return self._call(proto, body, list(node.inputs), {})
        return node.refuse(
            "this operator is not imported",
            got=f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type,
            expected="an operator of the page docs/how-to/onnx.md",
            hint="compute this part outside of the network",
        )

    def _call(
        self,
        proto: onnx.NodeProto,
        function: onnx.FunctionProto,
        inputs: list[Value | None],
        scope: Scope,
    ) -> list[Value | None]:
        key = function.domain, function.name
        if key in self.within:
            raise SpecError("a function of the file calls itself", got=function.name)
        inner: Scope = {
            name: value
            for name, value in zip(function.input, inputs, strict=False)
            if value is not None
        }
        given = {each.name: each for each in function.attribute_proto}
        given |= {each.name: each for each in proto.attribute}
        schema = onnx.defs.has(proto.op_type) and onnx.defs.get_schema(proto.op_type)
        if not proto.domain and schema:
            for name, each in schema.attributes.items():
                if name not in given and each.default_value.name:
                    given[name] = each.default_value
        opsets = {each.domain: each.version for each in function.opset_import} or self.opsets
        walk = Walk(opsets, self.functions, self.constants, (*self.within, key))
        walk.nodes(function.node, function.output, inner, given)
        return [inner.get(name) for name in function.output]

    def _if(
        self,
        proto: onnx.NodeProto,
        opset: int,
        inputs: list[Value | None],
        scope: Scope,
    ) -> list[Value | None]:
        """Return the results of the branch that is taken, or a choice of both."""
        branches = {each.name: each.g for each in proto.attribute}
        (condition,) = inputs
        if isinstance(condition, Known):
            taken = "then_branch" if bool(condition.array.reshape(())) else "else_branch"
            return list(self.graph(branches[taken], scope))
        both = [self.graph(branches[name], scope) for name in ("then_branch", "else_branch")]
        made: list[Value | None] = []
        where = onnx.helper.make_node("Where", ["condition", "x", "y"], ["z"], name=proto.name)
        for then, other in zip(*both, strict=True):
            node = Node(where, opset, (condition, then, other), {}, self.constants)
            if then.shape != other.shape:
                node.refuse(
                    "an If on data has branches of different shapes",
                    got=f"{then.shape} and {other.shape}",
                    expected="one shape",
                )
            made += OPERATORS["Where"](node)
        return made


def known(tensor: onnx.TensorProto) -> Known:
    """Return a constant of the file."""
    return Known(onnx.numpy_helper.to_array(tensor), tensor.name)


def _needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that ``wanted`` depends on, in order."""
    kept = []
    for proto in reversed(nodes):
        if wanted.intersection(proto.output):
            kept.append(proto)
            wanted.update(_reads(proto))
    return kept[::-1]


def _reads(proto: onnx.NodeProto) -> set[str]:
    found = set(proto.input)
    for attribute in proto.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                found |= _reads(inner)
            found |= {each.name for each in graph.output}
    return found - {""}


def _resolved(
    proto: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """Return a node whose attributes that refer to those of a function have their values."""
    if not any(each.ref_attr_name for each in proto.attribute):
        return proto
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    del made.attribute[:]
    for each in proto.attribute:
        if not each.ref_attr_name:
            made.attribute.append(each)
        elif (value := attributes.get(each.ref_attr_name)) is not None:
            made.attribute.append(value)
            made.attribute[-1].name = each.name
    return made
