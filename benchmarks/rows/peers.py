"""PyTorch, Inductor and OpenVINO: softmax, and layer_norm followed by gelu, into given memory.

Each peer writes to an array that exists, as tilewright does: the time of new memory pages would
otherwise exceed that of the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.measure.native import MissingError
from tilewright.errors import install

SOFTMAX, NORM = "softmax", "layer_norm + gelu"
EAGER, INDUCTOR, OPENVINO = "torch", "Inductor", "OpenVINO"
EPS = 1e-5

Function = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Tensors:
    """The operands of one row program as tensors of PyTorch: rows x columns, and two of columns."""

    x: Any
    weight: Any
    bias: Any
    out: Any

    @property
    def type(self) -> str:
        """The name of the type here."""
        return {"torch.float32": "f32", "torch.bfloat16": "bf16"}[str(self.x.dtype)]


def torch() -> Any:
    """PyTorch with one thread; MissingError if it is not installed."""
    try:
        import torch as found
    except ImportError:
        raise MissingError(f"PyTorch: {install('torch')}") from None
    found.set_num_threads(1)
    return found


def peers(name: str, tensors: Tensors) -> Iterator[tuple[str, Function]]:
    """Yield each installed peer by its name, with a call that computes ``name`` into ``out``."""
    yield EAGER, _eager(name, tensors)
    yield INDUCTOR, _inductor(name, tensors)
    if (found := openvino()) is not None:
        yield OPENVINO, _openvino(found, name, tensors)


def openvino() -> Any:
    """OpenVINO, or None if it is not installed."""
    try:
        import openvino as found
    except ImportError:
        return None
    return found


def _eager(name: str, given: Tensors) -> Function:
    ops, x, out = torch().ops.aten, given.x, given.out
    if name == SOFTMAX:
        return lambda: ops._softmax.out(x, -1, False, out=out)
    rows, shape = x.shape[0], x.shape[1:]
    between, means, deviations = torch().empty_like(x), *(x.new_empty(rows, 1) for _ in range(2))

    def norm() -> None:
        ops.native_layer_norm.out(
            x, shape, given.weight, given.bias, EPS, out0=between, out1=means, out2=deviations
        )
        ops.gelu.out(between, out=out)

    return norm


def _inductor(name: str, given: Tensors) -> Function:
    found = torch()
    functional = found.nn.functional

    def softmax(x: Any, out: Any) -> None:
        out.copy_(functional.softmax(x, -1))

    def norm(x: Any, weight: Any, bias: Any, out: Any) -> None:
        out.copy_(functional.gelu(functional.layer_norm(x, x.shape[1:], weight, bias, EPS)))

    found._dynamo.reset()
    if name == SOFTMAX:
        made = found.compile(softmax)
        return lambda: made(given.x, given.out)
    made = found.compile(norm)
    return lambda: made(given.x, given.weight, given.bias, given.out)


def _openvino(ov: Any, name: str, given: Tensors) -> Function:
    from openvino import opset15 as ops

    type_ = {"f32": ov.Type.f32, "bf16": ov.Type.bf16}[given.type]
    arrays = [given.x] if name == SOFTMAX else [given.x, given.weight, given.bias]
    inputs = [ops.parameter(list(array.shape), type_) for array in arrays]
    if name == SOFTMAX:
        result = ops.softmax(inputs[0], 1)
    else:
        x, weight, bias = inputs
        axis = ops.constant([1], ov.Type.i64)
        centred = ops.mvn(x, axis, True, EPS, "inside_sqrt")
        result = ops.gelu(ops.add(ops.multiply(centred, weight), bias), "erf")
    model = ov.Model([result], inputs)
    options = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": type_}
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, _shared(ov, array, type_))
    request.set_output_tensor(0, _shared(ov, given.out, type_))
    infer: Function = request.infer
    return infer


def _shared(ov: Any, tensor: Any, type_: Any) -> Any:
    """A tensor of OpenVINO in the memory of one of PyTorch."""
    found = torch()
    bits = tensor.view(found.int16) if type_ == ov.Type.bf16 else tensor
    return ov.Tensor(bits.numpy(), list(tensor.shape), type_)
