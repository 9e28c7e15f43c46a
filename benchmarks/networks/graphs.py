"""Build ONNX models node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measure.native import MissingError
from tilewright.errors import install

Array = np.ndarray[Any, Any]


def module(name: str) -> Any:
    """Return an optional module; MissingError says how to install it."""
    try:
        return __import__(name)
    except ImportError:
        raise MissingError(f"{name}: {install(name)}") from None


class Graph:
    """An ONNX model that grows. Names of values are text."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        module("onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        for name, value in constants.items():
            self.constant(name, value)

    def constant(self, name: str, value: Any) -> str:
        """Add a constant; return its name."""
        from onnx import numpy_helper

        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def ints(self, *values: int) -> str:
        """Add a constant of int64."""
        return self.constant(f"ints{len(self.constants)}", np.array(values, np.int64))

    def node(self, kind: str, *inputs: str, out: str = "", **options: Any) -> str:
        """Add a node; return the name of its result."""
        from onnx import helper

        made = out or f"made{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [made], **options))
        return made

    def linear(self, h: str, weight: str, bias: str, out: str = "") -> str:
        """Add a product and the addition of a bias."""
        return self.node("Add", self.node("MatMul", h, weight), bias, out=out)

    def rounded(self, h: str, scale: float, zero: int) -> str:
        """Add the quantization of activations to u8, and back."""
        number = len(self.nodes)
        by = (
            self.constant(f"s{number}", np.float32(scale)),
            self.constant(f"z{number}", np.uint8(zero)),
        )
        return self.node("DequantizeLinear", self.node("QuantizeLinear", h, *by), *by)

    def by_column(self, whole: Array, scale: Array) -> str:
        """Add a weight in s8 with a scale for each column, in f32."""
        number = len(self.nodes)
        zeros = self.constant(f"wz{number}", np.zeros(whole.shape[1], np.int8))
        parts = self.constant(f"w{number}", whole), self.constant(f"ws{number}", scale), zeros
        return self.node("DequantizeLinear", *parts, axis=1)

    def relu(self, h: str) -> str:
        """Add a relu."""
        return self.node("Relu", h)

    def norm(self, h: str, weight: str, bias: str, eps: float, out: str = "") -> str:
        """Add a layer norm of the last axis."""
        return self.node("LayerNormalization", h, weight, bias, out=out, axis=-1, epsilon=eps)

    def model(self, given: Mapping[str, Array], shape: Sequence[int | str]) -> bytes:
        """Return the model whose inputs are as ``given``, and whose result ``y`` is f32."""
        import onnx
        from onnx import TensorProto, helper

        inputs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in given.items()
        ]
        made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))]
        graph = helper.make_graph(self.nodes, "graph", inputs, made, self.constants)
        opset = [helper.make_opsetid("", 20)]
        whole = helper.make_model(graph, opset_imports=opset, ir_version=9)
        onnx.checker.check_model(whole)
        data: bytes = whole.SerializeToString()
        return data


def dynamically_quantized(model: bytes) -> bytes:
    """Return ONNX Runtime's int8 model: weights by column, activations by their range at a call."""
    onnx = module("onnx")
    module("onnxruntime")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(
            onnx.load_from_string(model), path, ["MatMul"], per_channel=True,
            weight_type=QuantType.QInt8, extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        return path.read_bytes()
