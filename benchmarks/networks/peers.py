"""PyTorch, Inductor, ONNX Runtime and OpenVINO, on a number of threads.

ONNX Runtime and OpenVINO write into given memory. PyTorch and Inductor return new tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.errors import install

from .graphs import Array, module

EAGER, INDUCTOR, ORT, OPENVINO = "torch", "Inductor", "ONNX Runtime", "OpenVINO"
#: Why ONNX Runtime cannot run a model.
NO_BF16 = "it has no implementation of MatMul in bf16 for CPUs"

#: A call that returns the result.
Function = Callable[[], Any]


# --- PyTorch -----------------------------------------------------------------------------------


def torch_calls(layers: Any, *given: Any) -> Iterator[Function]:
    """Yield a call of a module as it is, then one of the module that Inductor compiles."""
    yield _torch_call(layers, given)
    yield inductor_call(layers, *given)


def inductor_call(layers: Any, *given: Any) -> Function:
    """Return a call of the module that Inductor compiles."""
    torch = module("torch")
    torch._dynamo.reset()
    torch._inductor.config.freezing = True  # packs the weights ahead
    return _torch_call(torch.compile(layers), given)


def _torch_call(function: Any, given: tuple[Any, ...]) -> Function:
    torch = module("torch")

    def call() -> Any:
        with torch.inference_mode():
            return function(*given)

    return call


def int8_calls(layers: Any, *given: Any) -> Iterator[tuple[str, Function | str]]:
    """Yield the peers in int8, or why one cannot run it; Inductor takes scales from ``given``."""
    yield EAGER, "it has no int8 layers with weights by column"
    torch = module("torch")
    try:
        from torchao.quantization.pt2e import quantize_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
    except ImportError:
        yield INDUCTOR, f"it needs torchao: {install('torchao')}"
        return
    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    with torch.no_grad():
        exported = torch.export.export(layers, given).module()
        prepared = quantize_pt2e.prepare_pt2e(exported, quantizer)
        prepared(*given)
        yield INDUCTOR, inductor_call(quantize_pt2e.convert_pt2e(prepared), *given)


# --- ONNX Runtime ------------------------------------------------------------------------------


def onnxruntime_call(
    model: bytes, given: Mapping[str, Array], out: Array, threads: int
) -> Function:
    """Return a call of an ONNX model with these inputs, whose result ``y`` is ``out``."""
    ort = module("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return out

    return call


def readers(
    model: bytes, given: Mapping[str, Array], shape: Sequence[int], type_: str, threads: int
) -> Iterator[tuple[str, Function | str]]:
    """Yield the peers that read an ONNX model in f32 or bf16, or why one cannot run it."""
    if type_ == "bf16":
        yield ORT, NO_BF16
    else:
        yield ORT, onnxruntime_call(model, given, np.empty(shape, np.float32), threads)
    yield OPENVINO, openvino_reads(model, given, shape, type_, threads)


# --- OpenVINO ----------------------------------------------------------------------------------


def openvino_call(
    model: Any, given: Mapping[str, Array], out: Array, type_: Any, threads: int
) -> Function:
    """Return a call of OpenVINO's ``model``, in ``type_``, from inputs in order to ``out``."""
    ov = module("openvino")
    options = {
        "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": type_,
    }  # fmt: skip
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    for number, array in enumerate(given.values()):
        request.set_input_tensor(number, ov.Tensor(array, shared_memory=True))
    request.set_output_tensor(0, ov.Tensor(out, shared_memory=True))

    def call() -> Any:
        request.infer()
        return out

    return call


def openvino_reads(
    model: bytes, given: Mapping[str, Array], shape: Sequence[int], type_: str, threads: int
) -> Function:
    """Return OpenVINO's call of an ONNX model. ``type_`` is that of floating-point arithmetic."""
    ov = module("openvino")
    read, hint = ov.Core().read_model(model), {"bf16": ov.Type.bf16}.get(type_, ov.Type.f32)
    return openvino_call(read, given, np.empty(shape, np.float32), hint, threads)
