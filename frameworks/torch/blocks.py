"""Layers with low-bit weights that have a scale for each block, as an operator of PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import torch
from tilewright.runtime.arrays.kinds import torch_type
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.quantized.words import unpack
from tilewright.spec.quantized import Quantized

from .packed import INPUT_TYPES, Inputs, LayerKind, format_of, layer_spec, run_layer
from .products import register

# --- weights as tensors ------------------------------------------------------------------------


class Stored(NamedTuple):
    """A quantized weight as the tensors that a layer keeps. Its rows are the layer's outputs.

    Consecutive elements of 2 and 4 bits in a row share a byte, the first element in the low bits.
    Other elements have a byte each. Scales and zero points have the shape blocks x outputs, as in
    ``QuantizedMatrix``.
    """

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None

    @classmethod
    def of(cls, matrix: QuantizedMatrix) -> Stored:
        """Return the tensors of a matrix, which share no memory with it."""
        form = matrix.format
        zeros = None if matrix.zeros is None else _tensor(matrix.zeros, _zero_type(form))
        weight = torch.from_numpy(_shared(matrix.q.T.view(np.uint8), form.stored.bits))
        return cls(weight, _tensor(matrix.scales, _scale_type(form)), zeros)

    def matrix(self, form: Quantized, k: int) -> QuantizedMatrix:
        """Return the matrix that the tensors hold."""
        weight: Array = as_array(self.weight, "weight")
        if form.stored.bits in (2, 4, 8):
            q = unpack(weight, form.type, axis=1)[:, :k]
        else:
            q = weight.view(np.int8) if form.stored.low < 0 else weight
        return QuantizedMatrix(form, q.T, self.scales, self.zeros)


def _shared(q: Array, bits: int) -> Array:
    """Return a matrix of elements with ``bits`` bits; elements of 2 and 4 bits share bytes."""
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
    """Return a copy of a numpy array as a tensor of type ``type_``; ml_dtypes types are allowed."""
    bits = np.array(array, order="C").view(f"i{array.dtype.itemsize}")
    return torch.from_numpy(bits).view(torch_type(torch, type_))


# --- the operator ------------------------------------------------------------------------------


def packed_blocks(matrix: QuantizedMatrix, kind: LayerKind) -> PackedMatrix:
    """Return a low-bit weight, packed for the kernels of layers of this kind."""
    from tilewright.plan.formats.quantized_b import quantized_format
    from tilewright.runtime.call.pack_source import Given, pack_quantized
    from tilewright.runtime.machine.host import identify

    spec = layer_spec(kind)
    form = quantized_format(spec, identify("host").description)
    return pack_quantized(spec, form.text, Given(matrix))


def block_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None,
    bias: torch.Tensor | None, format: str, inputs: Inputs, activation: str,
) -> torch.Tensor:  # fmt: skip
    """Compute ``activation(x @ weight.T + bias)``; the weight is packed at each call."""
    n, k, form = len(weight), x.shape[-1], format_of(format)
    kind = LayerKind(k, n, INPUT_TYPES[x.dtype], bias is not None, activation, form, inputs)
    packed = packed_blocks(Stored(weight, scales, zeros).matrix(form, k), kind)
    return run_layer(kind, packed, x, bias)


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
