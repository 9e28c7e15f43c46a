"""PyTorch, Inductor, ONNX Runtime and OpenVINO: perceptrons, on a number of threads.

ONNX Runtime and OpenVINO write into given memory. PyTorch and Inductor return new tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.measure.native import MissingError
from tilewright.errors import install

from .models import ZERO, Array, Model

EAGER, INDUCTOR, ORT, OPENVINO = "torch", "Inductor", "ONNX Runtime", "OpenVINO"
#: Names of the modules, for which the extra of the benchmarks has packages.
MODULES = {EAGER: "torch", ORT: "onnxruntime", OPENVINO: "openvino"}

#: A call that returns the result.
Function = Callable[[], Any]


def peers(model: Model, x: Array, threads: int) -> Iterator[tuple[str, Function]]:
    """Yield each peer that has the model's type, with a call that returns the result for ``x``."""
    if model.type != "int8":
        yield from _torch(model, x, threads)
    if model.type != "bf16":
        out = np.empty((len(x), model.widths[-1]), np.float32)
        yield ORT, onnxruntime_call(_onnx(model), x, out, threads)
    yield OPENVINO, _openvino(model, x, threads)


def module(name: str) -> Any:
    """Return an optional module; MissingError says how to install it."""
    try:
        return __import__(name)
    except ImportError:
        raise MissingError(f"{name}: {install(name)}") from None


# --- PyTorch -----------------------------------------------------------------------------------


def _torch(model: Model, x: Array, threads: int) -> Iterator[tuple[str, Function]]:
    torch = module("torch")
    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if model.type == "bf16" else torch.float32
    parts: list[Any] = []
    for layer in model.layers:
        linear = torch.nn.Linear(*layer.weight.shape)
        linear.weight.data = torch.from_numpy(layer.weight.T.copy())
        linear.bias.data = torch.from_numpy(layer.bias)
        parts += [linear, torch.nn.ReLU()]
    layers = torch.nn.Sequential(*parts[:-1]).to(dtype).eval().requires_grad_(False)
    given = torch.from_numpy(x).to(dtype)
    yield from zip((EAGER, INDUCTOR), torch_calls(layers, given), strict=True)


def torch_calls(layers: Any, given: Any) -> Iterator[Function]:
    """Yield a call of a module as it is, then one of the module that Inductor compiles."""
    torch = module("torch")

    def of(function: Any) -> Function:
        def call() -> Any:
            with torch.inference_mode():
                return function(given)

        return call

    yield of(layers)
    torch._dynamo.reset()
    torch._inductor.config.freezing = True  # packs the weights ahead
    yield of(torch.compile(layers))


# --- ONNX Runtime ------------------------------------------------------------------------------


def onnxruntime_call(model: bytes, x: Array, out: Array, threads: int) -> Function:
    """Return a call of an ONNX model with an input ``x``, whose result ``y`` is ``out``."""
    ort = module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    given = ort.OrtValue.ortvalue_from_numpy(x)
    binding.bind_ortvalue_input("x", given)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return out

    return call


def _onnx(model: Model) -> bytes:
    """The model in ONNX; in int8 with QuantizeLinear and DequantizeLinear."""
    onnx = module("onnx")
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(kind: str, inputs: list[str], name: str, **options: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], **options))
        return name

    h = "x"
    for i, layer in enumerate(model.layers):
        weight = constant(f"w{i}", layer.whole if model.type == "int8" else layer.weight)
        if model.type == "int8":
            zero = constant(f"z{i}", np.uint8(0 if i else ZERO))
            by = [constant(f"s{i}", np.float32(layer.of_input)), zero]
            h = node("QuantizeLinear", [h, *by], f"q{i}")
            h = node("DequantizeLinear", [h, *by], f"d{i}")
            zeros = constant(f"wz{i}", np.zeros(layer.whole.shape[1], np.int8))
            scales = [constant(f"ws{i}", layer.scale), zeros]
            weight = node("DequantizeLinear", [weight, *scales], f"dw{i}", axis=1)
        h = node("MatMul", [h, weight], f"m{i}")
        last = i + 1 == len(model.layers)
        h = node("Add", [h, constant(f"b{i}", layer.bias)], "y" if last else f"a{i}")
        h = h if last else node("Relu", [h], f"r{i}")
    given, made = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", columns])]
        for name, columns in (("x", model.widths[0]), ("y", model.widths[-1]))
    )
    graph = helper.make_graph(nodes, "mlp", given, made, constants)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(whole)
    data: bytes = whole.SerializeToString()
    return data


# --- OpenVINO ----------------------------------------------------------------------------------


def _openvino(model: Model, x: Array, threads: int) -> Function:
    ov = module("openvino")
    from openvino import opset15 as ops

    type_ = ov.Type.bf16 if model.type == "bf16" else ov.Type.f32
    given = ops.parameter(list(x.shape), ov.Type.f32)
    h = given
    for i, layer in enumerate(model.layers):
        weight = ops.constant(layer.weight)
        if model.type == "int8":
            zero = 0 if i else ZERO
            ends = [np.float32(layer.of_input * (end - zero)) for end in (0, 255)]
            h = ops.fake_quantize(h, *ends, *ends, 256)
            whole = ops.convert(ops.constant(layer.whole), ov.Type.f32)
            weight = ops.multiply(whole, ops.constant(layer.scale[np.newaxis]))
        h = ops.add(ops.matmul(h, weight, False, False), ops.constant(layer.bias[np.newaxis]))
        h = ops.relu(h) if i + 1 < len(model.layers) else h
    out = np.empty((len(x), model.widths[-1]), np.float32)
    return openvino_call(ov.Model([h], [given]), x, out, type_, threads)


def openvino_call(model: Any, x: Array, out: Array, type_: Any, threads: int) -> Function:
    """Return a call of OpenVINO's ``model``, in ``type_``, from ``x`` to ``out``."""
    ov = module("openvino")
    options = {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": type_,
    }  # fmt: skip
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    request.set_input_tensor(0, ov.Tensor(x, shared_memory=True))
    request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))

    def call() -> Any:
        request.infer()
        return out

    return call
