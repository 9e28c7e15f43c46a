"""Layers whose weight is packed ahead: their kernels, and the packed bytes as a tensor of a
graph.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from tilewright.runtime.arrays.memory import address, at
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.quantized import Quantize, Quantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.types import TypeName
from torch.utils.weak import WeakIdKeyDictionary

from .products import LAYER_TYPES, is_parallel, layer_epilogue, register, rows_of, shaped_as

if TYPE_CHECKING:
    from tilewright.plan.formats.lookup import Format

#: The type to which a layer's kernel converts its inputs.
#:
#: - blocks: 8-bit integers, with a scale for each block of a row, as long as the weight's blocks.
#: - rows: 8-bit integers, with a scale for each row.
#: - float: no conversion.
Inputs = Literal["blocks", "rows", "float"]
#: Element types of a layer's inputs: tilewright's name by PyTorch's type.
INPUT_TYPES: dict[Any, TypeName] = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16",
}  # fmt: skip


class LayerKind(NamedTuple):
    """Properties of a layer that determine its kernel.

    ``k`` is the number of inputs and ``n`` the number of outputs. ``type`` is the type of the
    inputs and results. Without a ``form`` it is also the type of the weight and the bias. With a
    ``form`` the weight is low-bit and the bias is f32.
    """

    k: int
    n: int
    type: TypeName
    has_bias: bool
    activation: str
    form: Quantized | None = None
    inputs: Inputs = "float"


def format_text(form: Quantized) -> str:
    """Return a low-bit format as JSON, which ``format_of`` reads."""
    return json.dumps([form.stored_name, form.scale, form.zero, form.block])


@lru_cache(maxsize=256)
def format_of(text: str) -> Quantized:
    """Return the low-bit format that ``format_text`` wrote as ``text``."""
    type_, scale, zero, block = json.loads(text)
    return Quantized(type_, scale, zero, tuple(block) if isinstance(block, list) else block)


def layer_spec(kind: LayerKind) -> Gemm:
    """Return the spec of a layer for any number of rows.

    Raise SpecError if the properties in ``kind`` contradict each other.
    """
    a: TypeName | Quantize = kind.type
    if kind.form is not None and kind.inputs != "float":
        a = Quantize(kind.type, per=kind.form.per if kind.inputs == "blocks" else "row")
    bias: TypeName = kind.type if kind.form is None else "f32"
    return Gemm(
        dim("m"), kind.n, kind.k, a=a, b=Packed(kind.form or kind.type), d=kind.type,
        lda=dim("lda"), epilogue=layer_epilogue(bias if kind.has_bias else None, kind.activation),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def layer_kernel(kind: LayerKind, parallel: bool) -> Kernel:
    """Return the kernel of layers of this kind, with or without threads."""
    return compile(layer_spec(kind), layer_schedule(parallel))


def layer_schedule(parallel: bool) -> Schedule:
    """Return the schedule of a layer.

    Threads divide the columns of the result, so that each thread reads only a part of the weight,
    which is usually the larger matrix.
    """
    return Schedule(loops="NMk") if parallel else Schedule(threads=1)


def run_layer(
    kind: LayerKind, packed: PackedMatrix, x: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Compute a layer with a packed weight, without recording a gradient."""
    rows = rows_of(x, kind.k)
    if kind.form is not None and bias is not None:
        bias = bias.float()
    kernel = layer_kernel(kind, is_parallel(len(rows) * kind.n * kind.k))
    made: torch.Tensor | None = kernel.attempt_new(
        (rows, packed) if bias is None else (rows, packed, bias)
    )
    if made is None:
        named = {} if bias is None else {"bias": bias.contiguous()}
        with torch.no_grad():
            made = kernel(apart(rows), packed, **named)
    return shaped_as(x, made)


def apart(rows: torch.Tensor) -> torch.Tensor:
    """Return ``rows`` if its rows are contiguous and do not overlap, else a contiguous copy."""
    count, length = rows.shape
    contiguous = length < 2 or rows.stride(1) == 1
    return rows if contiguous and (count < 2 or rows.stride(0) >= length) else rows.contiguous()


def packed_weight(weight: torch.Tensor) -> PackedMatrix:
    """Return a layer's weight (outputs x inputs), packed.

    The weight has the type of the layer's inputs.
    """
    return layer_kernel(_kind_of(weight), False).pack_b(weight.detach().t())


def weight_format(weight: torch.Tensor) -> Format:
    """Return the format in which a weight is packed on this machine."""
    return format_here(_kind_of(weight))


def _kind_of(weight: torch.Tensor) -> LayerKind:
    n, k = weight.shape
    return LayerKind(k, n, LAYER_TYPES[weight.dtype], False, "")


def format_here(kind: LayerKind) -> Format:
    """Return the format of a layer's packed weight on this machine."""
    from tilewright.plan.formats.lookup import format_of as format_of_spec
    from tilewright.runtime.machine.host import identify

    return format_of_spec(layer_spec(kind), identify("host").description)


# --- packed bytes as tensors -------------------------------------------------------------------


def bytes_of(packed: PackedMatrix) -> torch.Tensor:
    """Return the bytes of a packed matrix as a tensor.

    The tensor shares the matrix's memory and keeps it alive.
    """
    data = packed.data
    return torch.from_numpy(
        at(address(data), data.shape, data.strides, data.dtype, packed, writeable=True)
    )


#: Packed matrices by the tensors that share their memory.
_seen: WeakIdKeyDictionary = WeakIdKeyDictionary()


def matrix_of(data: torch.Tensor, format: str, k: int, n: int) -> PackedMatrix:
    """Return the packed matrix whose bytes are in ``data``.

    The matrix is a view of the tensor's memory, so it sees later writes to the tensor.
    """
    found: PackedMatrix | None = _seen.get(data)
    if found is None or found.format != format or address(found.data) != data.data_ptr():
        found = _seen[data] = PackedMatrix.viewing(
            format, (k, n), as_array(data.detach(), "packed")
        )
    return found


# --- operators ---------------------------------------------------------------------------------


def _linear_of_packed(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, format: str, n: int,
    weight: str, inputs: Inputs, activation: str,
) -> torch.Tensor:  # fmt: skip
    k = x.shape[-1]
    form = format_of(weight) if weight else None
    kind = LayerKind(k, n, INPUT_TYPES[x.dtype], bias is not None, activation, form, inputs)
    return run_layer(kind, matrix_of(packed, format, k, n), x, bias)


def _linear_of_packed_fake(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, format: str, n: int,
    weight: str, inputs: Inputs, activation: str,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], n))


def _pack_weight(weight: torch.Tensor) -> torch.Tensor:
    return bytes_of(packed_weight(weight))


def _pack_weight_fake(weight: torch.Tensor) -> torch.Tensor:
    return weight.new_empty((weight_format(weight).nbytes,), dtype=torch.uint8)


register(
    "linear_of_packed",
    "(Tensor x, Tensor packed, Tensor? bias, str format, int n, str weight, str inputs, "
    "str activation) -> Tensor",
    _linear_of_packed,
    _linear_of_packed_fake,
)
register("pack_weight", "(Tensor weight) -> Tensor", _pack_weight, _pack_weight_fake)
