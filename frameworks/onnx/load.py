"""``load``: a network, and the arrays of its weights, from an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import onnx
from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError, TilewrightError
from tilewright.keywords import spelled
from tilewright.runtime.imported import SPACE, Array, Constants, Model, Names
from tilewright.spec.expression.nodes import Expression, every_node
from tilewright.spec.expression.tensors import Input, cast
from tilewright.spec.network.tensor import MOST_AXES
from tilewright.spec.network.value import Network
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import type_name

from .graph import Walk
from .values import Known, Traced, Value, type_of

#: The name of the size that a fixed batch of one becomes.
ROWS = "rows"


@spelled(ArgumentTypeError)
def load(
    path: Any,
    constants: Mapping[str, Any] | None = None,
    *,
    batch: bool | None = None,
    results: Sequence[str] | None = None,
) -> Model:
    """Return the network that an ONNX file describes, and its weights.

    Inputs keep their names as far as C allows: ``onnx::Flatten_0`` becomes ``onnx_Flatten_0``.
    Sizes that the file leaves free are dims with the file's names. Nodes whose inputs are all
    constants, and sizes of shapes, are computed now. Inputs that no result depends on are left out.
    Inputs of int64, uint32 and uint64 are passed as int32, inputs and results of bool as uint8.
    Arithmetic of integers is exact to 2**24.

    Parameters
    ----------
    path : str, path or onnx.ModelProto
        The file, or a model.
    constants : dict, optional
        Values for inputs that do not change, by their names in the file. An ``If`` on them becomes
        the branch that is taken.
    batch : bool, optional
        Files often fix the first axis of all inputs and results to 1. True turns it into the dim
        ``rows``, False keeps it. By default it becomes ``rows`` if the graph permits this.
    results : sequence of str, optional
        The names of the file's results that the network returns, in this order. By default all.

    Returns
    -------
    Model
        ``(network, weights)``: the spec, and the arrays for ``pack``.

    Raises
    ------
    SpecError
        A node cannot be imported. The message has its name, operator and opset.
    ArgumentError
        The file is no ONNX file, or ``constants`` or ``results`` are not those of the file.

    Examples
    --------
    >>> import onnx, tilewright.onnx
    >>> text = '<ir_version: 8, opset_import: ["" : 17]> layer (float[n, 2] x) => (float[n, 2] y) '
    >>> text += "<float[2, 2] up = {1, 2, 3, 4}> { h = MatMul (x, up) y = Relu (h) }"
    >>> file = onnx.parser.parse_model(text)
    >>> network, weights = tilewright.onnx.load(file)
    >>> network
    network(lambda x, w: relu(x @ w.up)).of(x=Tensor('f32', (dim('n'), 2)),
        w={'up': Tensor('f32', (2, 2))})
    >>> net = tw.compile(network)
    >>> net(np.float32([[1, 2]]), net.pack(weights))
    array([[ 7., 10.]], dtype=float32)
    """
    model = _model(path)
    found = _Import(model, constants or {}, results)
    if batch is not False and found.single():
        try:
            return found.made(dict.fromkeys((each.name for each in found.inputs), Dim(ROWS)))
        except TilewrightError:
            if batch:
                raise
        found = _Import(model, constants or {}, results)
    elif batch:
        raise SpecError(
            "the first axis of this file is not a fixed batch of one",
            got=", ".join(f"{each.name} {_said(each)}" for each in found.inputs),
            expected="1 as the first size of all inputs and results",
        )
    return found.made({})


def _model(path: Any) -> onnx.ModelProto:
    if isinstance(path, onnx.ModelProto):
        return path
    if not isinstance(path, str | os.PathLike):
        raise ArgumentTypeError(
            "a model is loaded from a file", got=type(path).__name__, expected="a path"
        )
    try:
        found = onnx.load(path)
    except OSError:
        raise
    except Exception as error:  # protobuf's errors have no common class
        raise ArgumentValueError(
            "the file is no ONNX file", got=f"{os.fspath(path)}: {error}", expected="a .onnx file"
        ) from error
    if not found.HasField("graph") or not found.opset_import:
        raise ArgumentValueError(
            "the file is no ONNX file", got=os.fspath(path), expected="a .onnx file"
        )
    return found


class _Import:
    """One import of a model."""

    def __init__(
        self, model: onnx.ModelProto, constants: Mapping[str, Any], results: Sequence[str] | None
    ) -> None:
        self.graph = model.graph
        given = {each.name for each in self.graph.initializer}
        declared = [each for each in self.graph.input if each.name not in given]
        self.constants = _constants(constants, self.graph.input)
        self.inputs = [each for each in declared if each.name not in self.constants]
        self.outputs = _chosen(self.graph.output, results)
        self.names = Names((SPACE,))
        for each in self.inputs:
            self.names.give(each.name)
        opsets = {
            "" if each.domain == "ai.onnx" else each.domain: each.version
            for each in model.opset_import
        }
        functions = {(each.domain, each.name): each for each in model.functions}
        self.weights = Constants()
        self.walk = Walk(opsets, functions, self.weights)

    def single(self) -> bool:
        """Return True if all inputs and results have a first axis of fixed size 1."""
        tensors = (each for each in self.outputs if each.type.HasField("tensor_type"))
        both = [*self.inputs, *tensors]
        return bool(self.inputs) and all(_sizes(each)[:1] == [1] for each in both)

    def made(self, batches: Mapping[str, Dim]) -> Model:
        """Return the model. ``batches`` has a dim for the first axis of some inputs."""
        scope = {**self.constants, **self._inputs(batches)}
        found = self.walk.graph(self.graph, scope, [each.name for each in self.outputs])
        results = [
            self._result(value, each) for value, each in zip(found, self.outputs, strict=True)
        ]
        used = set(every_node(results))
        given = (scope[each.name] for each in self.inputs)
        tensors = [each.expression for each in given if isinstance(each, Traced)]
        inputs = tuple(each for each in tensors if isinstance(each, Input) and each in used)
        return self.weights.model(Network(inputs, tuple(results), several=len(results) > 1))

    def _inputs(self, batches: Mapping[str, Dim]) -> dict[str, Value]:
        """Return the tensors of the inputs, by the file's names."""
        found: dict[str, Value] = {}
        free = Names((*self.names.of.values(), SPACE, *([ROWS] if batches else [])))
        for each in self.inputs:
            shape = self._shape(each, free)
            if each.name in batches:
                shape = (batches[each.name], *shape[1:])
            type_ = type_of(each.type.tensor_type.elem_type)
            found[each.name] = _input(self.names.of[each.name], type_, shape)
        return found

    def _shape(self, each: onnx.ValueInfoProto, free: Names) -> tuple[Size, ...]:
        sizes: list[Size] = []
        for axis, size in enumerate(_sizes(each)):
            if isinstance(size, int):
                sizes.append(size)
            else:
                sizes.append(Dim(free.give(size or f"{each.name}_{axis}", "a dim")))
        return tuple(sizes)

    def _result(self, value: Value, each: onnx.ValueInfoProto) -> Expression:
        if isinstance(value, Known):
            raise SpecError(
                f"the result {each.name!r} depends on no input",
                got=value.array,
                expected="a result that is computed of the inputs",
                hint="load(path, results=[...]) names those that the network returns",
            )
        if value.type == "s64":
            raise SpecError(f"the result {each.name!r} has a type that no tensor has", got="s64")
        return cast(value.expression, "u8") if value.type == "bool" else value.expression


def _input(name: str, type_: str, shape: tuple[Size, ...]) -> Value:
    held = _HELD.get(type_, type_)
    if len(shape) > MOST_AXES:
        raise SpecError(
            f"the input {name!r} has too many axes",
            got=f"{len(shape)} axes, {shape}",
            expected=f"at most {MOST_AXES}",
        )
    return Traced(Input(name, type_name(held), shape), "bool" if type_ == "bool" else held)


#: For each type of inputs that tilewright's tensors cannot have: the type in which they are passed.
_HELD = {"s64": "s32", "bool": "u8"}


def _sizes(each: onnx.ValueInfoProto) -> list[int | str]:
    """Return the sizes of an input or a result: a name, or "", for those that are free."""
    if not each.type.HasField("tensor_type"):
        raise SpecError(
            f"{each.name!r} is no tensor",
            got=each.type.WhichOneof("value"),
            expected="a tensor",
            hint='options={"zipmap": False} of skl2onnx',
        )
    tensor = each.type.tensor_type
    if not tensor.HasField("shape"):
        raise SpecError(
            f"the file does not give the axes of {each.name!r}",
            got="no shape",
            expected="a shape, whose sizes may be free",
            hint="onnx.shape_inference.infer_shapes(model)",
        )
    return [
        int(size.dim_value) if size.WhichOneof("value") == "dim_value" else size.dim_param
        for size in tensor.shape.dim
    ]


def _chosen(outputs: Any, names: Sequence[str] | None) -> list[onnx.ValueInfoProto]:
    """Return the results of the file that the network returns."""
    declared = {each.name: each for each in outputs}
    if not declared:
        raise SpecError("the file has no results", expected="a model with one or more results")
    if names is None:
        return list(declared.values())
    if isinstance(names, str) or not names or (set(names) - set(declared)):
        raise ArgumentValueError(
            "the file has no such results", got=names, expected=f"some of {list(declared)}"
        )
    return [declared[name] for name in names]


def _said(each: onnx.ValueInfoProto) -> str:
    return f"({', '.join(str(size or '?') for size in _sizes(each))})"


def _constants(given: Mapping[str, Any], inputs: Any) -> dict[str, Known]:
    declared = {each.name: each for each in inputs}
    found = {}
    for name, value in given.items():
        if name not in declared:
            raise ArgumentValueError(
                f"the file has no input {name!r}", got=name, expected=", ".join(declared)
            )
        number = declared[name].type.tensor_type.elem_type
        array: Array = np.asarray(value)
        array = array.astype(onnx.helper.tensor_dtype_to_np_dtype(number))
        wanted = _sizes(declared[name])
        if len(wanted) != array.ndim or any(
            isinstance(size, int) and size != own
            for size, own in zip(wanted, array.shape, strict=True)
        ):
            raise ArgumentValueError(
                f"the constant {name!r} has another shape than the input",
                got=array.shape,
                expected=_said(declared[name]),
            )
        found[name] = Known(array, name)
    return found
