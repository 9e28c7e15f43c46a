"""Compute nodes whose inputs are all known when the file is loaded."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import onnx
from tilewright.errors import SpecError
from tilewright.spec.sizes import joined_size

from .node import title
from .values import TYPES, Known, Value, sizes_array, sizes_of

#: Operators whose results are not a function of their inputs.
_RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
           "Bernoulli"}  # fmt: skip


def folded(
    proto: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
) -> Sequence[Value | None] | None:
    """Return the results of a node of known inputs; None if it is no such node."""
    if proto.op_type in ("Shape", "Size") and inputs[0] is not None:
        return _size(proto, inputs[0])
    if proto.op_type in _RANDOM:
        return None
    if proto.op_type == "CastLike" and isinstance(inputs[0], Known) and inputs[1] is not None:
        return _cast_like(proto, inputs[0], inputs[1], opsets)
    if proto.op_type == "Constant" and proto.attribute[0].name == "value":
        return (Known(onnx.numpy_helper.to_array(proto.attribute[0].t), proto.output[0]),)
    if not all(each is None or isinstance(each, Known) for each in inputs):
        return None
    if proto.op_type in _QUANTIZED:
        return None
    if proto.op_type == "Transpose" and len(inputs[0].shape) == 2 and _is_turned(proto):  # type: ignore[union-attr]
        return (inputs[0].turned,)  # type: ignore[union-attr]
    given = [each for each in inputs if isinstance(each, Known)]
    if any(each.symbolic for each in given):
        return _of_sizes(proto, inputs, opsets)
    return _evaluated(proto, inputs, opsets)


#: Operators whose importers compute constants, and keep the integers that products multiply.
_QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "Identity"}


def _is_turned(proto: onnx.NodeProto) -> bool:
    """Return True if a transposition exchanges the two axes of a matrix."""
    orders = [list(each.ints) for each in proto.attribute if each.name == "perm"]
    return orders in ([], [[1, 0]])


def _size(proto: onnx.NodeProto, value: Value) -> Sequence[Known] | None:
    shape = value.shape
    bounds = {each.name: each.i for each in proto.attribute}
    if proto.op_type == "Shape":
        return (Known(sizes_array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))])),)
    return (Known(sizes_array(joined_size(shape))),)


def _cast_like(
    proto: onnx.NodeProto, value: Known, like: Value, opsets: Mapping[str, int]
) -> Sequence[Known]:
    """Return a constant as the type of another value, of which only the type counts."""
    if isinstance(like, Known):
        to = onnx.helper.np_dtype_to_tensor_dtype(like.array.dtype)
    else:
        to = next(number for number, name in TYPES.items() if name == like.type)
    made = onnx.helper.make_node("Cast", proto.input[:1], proto.output, to=to, name=proto.name)
    return _evaluated(made, [value], opsets)


def _evaluated(
    proto: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
) -> Sequence[Known]:
    """Return the results that ONNX's own reference computes."""
    # The import takes a second, and most files need none of it.
    from onnx.reference import ReferenceEvaluator

    names = [name for name in proto.input if name]
    infos = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in dict.fromkeys(names)]
    wanted = [name for name in proto.output if name]
    outputs = [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in wanted]
    graph = onnx.helper.make_graph([proto], "folded", infos, outputs)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    arrays = {
        name: each.array
        for name, each in zip(proto.input, inputs, strict=True)
        if isinstance(each, Known)
    }
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found: Any = ReferenceEvaluator(model).run(None, arrays)
    except Exception as error:  # any fault of the reference is one of the file
        raise SpecError(
            f"{title(proto, opsets.get(proto.domain, 0))}: ONNX's reference cannot compute it",
            got=f"{type(error).__name__}: {error}",
            expected="constants that fit the operator",
        ) from error
    by_name = {
        name: Known(np.asarray(each), name)
        for name, each in zip(wanted, found, strict=True)
        if not isinstance(each, list)
    }
    return [by_name.get(name) for name in proto.output]  # type: ignore[misc]


def _of_sizes(
    proto: onnx.NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
) -> Sequence[Known] | None:
    """Return the results of a node that moves sizes: with numbers in place of the sizes.

    Each size is replaced by a number that occurs nowhere else. Operators that only move elements
    return these numbers, which are then replaced by the sizes again.
    """
    if proto.op_type in ("Mul", "ReduceProd"):
        return _products(proto, inputs)
    if proto.op_type not in _MOVES and not _is_of_signs(proto, inputs):
        return None
    sizes: list[Any] = []
    given: list[Known | None] = []
    for each in inputs:
        if not isinstance(each, Known) or not each.symbolic:
            given.append(each)  # type: ignore[arg-type]
            continue
        numbers = np.empty(each.array.shape, np.int64)
        for place, size in np.ndenumerate(each.array):
            numbers[place] = _FIRST + len(sizes)
            sizes.append(size)
        given.append(Known(numbers, each.name))
    found = []
    for value in _evaluated(proto, given, opsets):
        array = value.array
        held = [
            sizes[int(one) - _FIRST] if _FIRST <= one < _FIRST + len(sizes) else int(one)
            for one in array.reshape(-1)
        ]
        found.append(Known(sizes_array(held).reshape(array.shape), value.name))
    return found


def _products(proto: onnx.NodeProto, inputs: Sequence[Value | None]) -> Sequence[Known] | None:
    """Return products of sizes."""
    arrays = [each.array for each in inputs if isinstance(each, Known)]
    if proto.op_type == "Mul":
        if any(
            not each.symbolic and (each.type != "s64" or each.array.min() < 1)
            for each in inputs
            if isinstance(each, Known)
        ):
            return None
        return (Known(sizes_array(arrays[0] * arrays[1])),)
    if arrays[0].ndim != 1:
        return None
    kept = all(each.i for each in proto.attribute if each.name == "keepdims")
    found = sizes_array(joined_size(sizes_of(arrays[0])))
    return (Known(found.reshape((1,) * kept)),)


def _is_of_signs(proto: onnx.NodeProto, inputs: Sequence[Value | None]) -> bool:
    """Return True if a node tells which sizes are negative, as -1 is in a shape: no dim is."""
    known = [each.array for each in inputs if isinstance(each, Known) and not each.symbolic]
    return proto.op_type == "Equal" and len(known) == 1 and bool(np.all(known[0] < 0))


#: The number that stands for the first size. It fits into 32 bits, and no tensor is that long.
_FIRST = 2**30
_MOVES = {"Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Identity", "Reshape", "Cast",
          "Split", "Flatten", "Expand", "Where"}  # fmt: skip
