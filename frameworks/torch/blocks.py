"""Layers of weights of few bits, which have a scale for each block: their operator of PyTorch."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

import torch
from tilewright.runtime.arrays.kinds import torch_type
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.quantized.words import unpack
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.quantized import Quantize, Quantized
from tilewright.spec.sizes import dim
from tilewright.spec.types import TypeName

from .products import (
    is_parallel,
    layer_epilogue,
    layer_schedule,
    packed_weight,
    register,
    run_layer,
)

#: What becomes of the inputs: integers of 8 bits with a scale for each block of a row, as long as
#: the weight's, or for each row; or they stay what they are.
Inputs = Literal["blocks", "rows", "float"]
#: Types of inputs by PyTorch's.
INPUT_TYPES: dict[Any, TypeName] = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16",
}  # fmt: skip


class BlockKind(NamedTuple):
    """Layers that one kernel serves; ``type`` is that of their inputs and results."""

    k: int
    n: int
    form: Quantized
    inputs: Inputs
    type: TypeName
    has_bias: bool
    activation: str


def block_spec(kind: BlockKind) -> Gemm:
    """The product of a layer, for any number of rows; SpecError for what does not go together."""
    a: TypeName | Quantize = kind.type
    if kind.inputs != "float":
        a = Quantize(kind.type, per=kind.form.per if kind.inputs == "blocks" else "row")
    return Gemm(
        dim("m"), kind.n, kind.k, a=a, b=Packed(kind.form), d=kind.type, lda=dim("lda"),
        epilogue=layer_epilogue("f32" if kind.has_bias else None, kind.activation),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def block_kernel(kind: BlockKind, parallel: bool) -> Kernel:
    """The kernel of a layer."""
    return compile(block_spec(kind), layer_schedule(parallel))


# --- weights as tensors ------------------------------------------------------------------------


class Stored(NamedTuple):
    """A quantized matrix as the tensors that a layer keeps; rows are outputs.

    Elements of 2 and 4 bits share bytes along the inputs, the first in the low bits; others have a
    byte each. Scales and zeros are those of the matrix, blocks x outputs.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None

    @classmethod
    def of(cls, matrix: QuantizedMatrix) -> Stored:
        """The tensors of a matrix, which share no memory with it."""
        form = matrix.format
        zeros = None if matrix.zeros is None else _tensor(matrix.zeros, _zero_type(form))
        weight = torch.from_numpy(_shared(matrix.q.T.view(np.uint8), form.stored.bits))
        return cls(weight, _tensor(matrix.scales, _scale_type(form)), zeros)

    def matrix(self, form: Quantized, k: int) -> QuantizedMatrix:
        """The matrix that they hold."""
        weight: Array = as_array(self.weight, "weight")
        if form.stored.bits in (2, 4, 8):
            q = unpack(weight, form.type, axis=1)[:, :k]
        else:
            q = weight.view(np.int8) if form.stored.low < 0 else weight
        return QuantizedMatrix(form, q.T, self.scales, self.zeros)


def _shared(q: Array, bits: int) -> Array:
    """Rows of elements of ``bits`` bits, as many in a byte as fill it."""
    fields = 8 // bits if bits in (2, 4) else 1
    if fields == 1:
        return np.array(q, order="C")
    rows, length = q.shape
    filled = np.zeros((rows, -(-length // fields) * fields), np.uint8)
    filled[:, :length] = q & np.uint8((1 << bits) - 1)
    shifts = np.arange(fields, dtype=np.uint8) * np.uint8(bits)
    parts = filled.reshape(rows, -1, fields) << shifts
    found: Array = np.bitwise_or.reduce(parts, axis=-1)
    return found


def _scale_type(form: Quantized) -> str:
    return "u8" if form.scale == "e8m0" else form.scale


def _zero_type(form: Quantized) -> str:
    return form.stored.unpacked if form.zeros == "zeros" else str(form.zero)


def _tensor(array: Array, type_: str) -> torch.Tensor:
    """A copy of an array whose elements numpy or ml_dtypes has, with PyTorch's name of the type."""
    bits = np.array(array, order="C").view(f"i{array.dtype.itemsize}")
    return torch.from_numpy(bits).view(torch_type(torch, type_))


def format_text(form: Quantized) -> str:
    """A format in the words of ``format_of``."""
    return json.dumps([form.type, form.scale, form.zero, form.block])


@lru_cache(maxsize=256)
def format_of(text: str) -> Quantized:
    """The format that a text names."""
    type_, scale, zero, block = json.loads(text)
    return Quantized(type_, scale, zero, tuple(block) if isinstance(block, list) else block)


# --- the operator ------------------------------------------------------------------------------


def block_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None,
    bias: torch.Tensor | None, format: str, inputs: Inputs, activation: str,
) -> torch.Tensor:  # fmt: skip
    """``activation(x @ weight.T + bias)``, which records no gradient."""
    n, k, form = len(weight), x.shape[-1], format_of(format)
    kind = BlockKind(k, n, form, inputs, INPUT_TYPES[x.dtype], bias is not None, activation)

    def pack() -> Any:
        matrix = Stored(weight, scales, zeros).matrix(form, k)
        return block_kernel(kind, False).pack_b(matrix)

    beside = (scales,) if zeros is None else (scales, zeros)
    packed = packed_weight(weight, pack, beside, (format, inputs, k))
    rows = x if x.dim() == 2 else x.reshape(-1, k)
    bias = bias if bias is None else bias.to(torch.float32)
    kernel = block_kernel(kind, is_parallel(rows.shape[0] * n * k))
    out = run_layer(kernel, packed, rows, bias)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], n)


def _block_linear_fake(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None,
    bias: torch.Tensor | None, format: str, inputs: Inputs, activation: str,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


register(
    "block_linear",
    "(Tensor x, Tensor weight, Tensor scales, Tensor? zeros, Tensor? bias, str format, "
    "str inputs, str activation) -> Tensor",
    block_linear,
    _block_linear_fake,
)
