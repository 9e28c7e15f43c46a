"""Layers of 8-bit integers as operators of PyTorch.

If the inputs have no common scale, the layer's kernel quantizes each row of the inputs, and the
weight is block-quantized with whole columns as blocks. If the inputs have a common scale, another
kernel converts them to unsigned integers first. ``tw.Quantize`` cannot do this, because it always
computes a scale for each row.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.quantized import Quantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.types import TypeName

from .blocks import packed_blocks
from .packed import (
    INPUT_TYPES,
    LayerKind,
    apart,
    format_text,
    layer_schedule,
    matrix_of,
    run_layer,
)
from .products import is_parallel, layer_epilogue, register, rows_of, shaped_as

#: Format of the weight: int8, with one scale for each output of the layer.
FORM = Quantized("s8")
FORM_TEXT = format_text(FORM)
#: Lower limit for the largest magnitude in a row, so that a row of zeros gets a positive scale.
_LEAST = 1e-12
#: Minimum number of input elements for which several threads convert them. On Zen 5, for example,
#: one thread converts 2^21 elements in 110 µs, and two threads in 80 µs.
_MANY = 1 << 20


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of ``x`` as int8, and each row's scale: its largest magnitude / 127.

    Quotients are rounded half to even.
    """
    scale = x.abs().amax(-1).clamp_min(_LEAST) / 127
    return torch.round(x / scale[:, None]).to(torch.int8), scale


@lru_cache(maxsize=16)
def codes_kernel(type_: TypeName, parallel: bool) -> Kernel:
    """Return a kernel that converts a column of inputs to uint8.

    It multiplies the column by the 1 x 1 matrix 1, and quantizes the result.
    """
    spec = Gemm(dim("m"), 1, 1, a=type_, d="u8", d_scale="scalar", d_zero="scalar")
    return compile(spec, Schedule(loops="Mnk") if parallel else Schedule())


@lru_cache
def _one(dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.ones((1, 1), dtype=dtype)


def quantize_all(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Return ``x * (1 / scale) + zero`` as uint8, rounded half to even and saturated.

    ``scale`` is one number of float32, ``zero`` one of int32. NaN becomes 0.
    """
    given = x if x.dtype in INPUT_TYPES else x.float()
    column = given.detach().contiguous().view(-1, 1)
    kernel = codes_kernel(INPUT_TYPES[given.dtype], len(column) >= _MANY)
    named = {"d_scale": scale.reshape(1), "d_zero": zero.reshape(1)}
    one = _one(given.dtype)
    made: torch.Tensor | None = kernel.attempt_new((column, one, *named.values()))
    if made is None:
        made = kernel(column, one, **named)
    return made.reshape(x.shape)


# --- inputs whose rows become integers in the kernel -------------------------------------------


def rows_kind(k: int, n: int, dtype: Any, has_bias: bool, activation: str) -> LayerKind:
    """Return the kind of a layer whose kernel quantizes each row of its inputs.

    If ``dtype`` is not supported, the inputs are float32.
    """
    type_ = INPUT_TYPES.get(dtype, "f32")
    return LayerKind(k, n, type_, has_bias, activation, FORM, "rows")


def packed_rows(weight: torch.Tensor, scale: torch.Tensor) -> PackedMatrix:
    """Return the packed weight for ``run_rows``, which includes the scales ``scale``."""
    n, k = weight.shape
    scales = scale.detach().float().reshape(1, n)
    matrix = QuantizedMatrix(FORM, weight.detach().t(), scales)
    return packed_blocks(matrix, rows_kind(k, n, torch.float32, False, ""))


def run_rows(
    packed: PackedMatrix, x: torch.Tensor, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    """Return the results of a layer whose inputs have no common scale."""
    given = x if x.dtype in INPUT_TYPES else x.float()
    k, n = packed.shape
    kind = rows_kind(k, n, x.dtype, bias is not None, activation)
    return run_layer(kind, packed, given, bias).to(x.dtype)


# --- inputs that have one scale ----------------------------------------------------------------


class FixedKind(NamedTuple):
    """Properties of a layer with one scale for all inputs that determine its kernel."""

    k: int
    n: int
    has_bias: bool
    activation: str


@lru_cache(maxsize=1024)
def fixed_kernel(kind: FixedKind, parallel: bool) -> Kernel:
    """Return the kernel of a layer whose inputs are uint8 with one scale and zero point."""
    spec = Gemm(
        dim("m"), kind.n, kind.k, a="u8", b=Packed("s8"), d="f32", lda=dim("lda"),
        b_scale="column", a_scale="scalar", a_zero="scalar",
        epilogue=layer_epilogue("f32" if kind.has_bias else None, kind.activation),
    )  # fmt: skip
    return compile(spec, layer_schedule(parallel))


def packed_codes(weight: torch.Tensor) -> PackedMatrix:
    """Return the packed weight for ``run_fixed``, which does not include the scales."""
    n, k = weight.shape
    return fixed_kernel(FixedKind(k, n, False, ""), False).pack_b(weight.detach().t())


class Fixed(NamedTuple):
    """Scales of the weight, and the scale and zero point that all inputs share."""

    weight_scale: torch.Tensor
    input_scale: torch.Tensor
    input_zero: torch.Tensor


def run_fixed(
    packed: PackedMatrix, x: torch.Tensor, numbers: Fixed, bias: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:  # fmt: skip
    """Return the results of a layer whose inputs share one scale."""
    k, n = packed.shape
    rows = rows_of(x, k)
    kernel = fixed_kernel(
        FixedKind(k, n, bias is not None, activation), is_parallel(len(rows) * n * k)
    )
    with torch.no_grad():
        codes = quantize_all(rows, numbers.input_scale, numbers.input_zero)
        named: dict[str, torch.Tensor] = {
            "a_scale": numbers.input_scale.reshape(1),
            "b_scale": numbers.weight_scale,
            "a_zero": numbers.input_zero.reshape(1),
        }
        if bias is not None:
            named["bias"] = bias.float().contiguous()
        made: torch.Tensor | None = kernel.attempt_new((codes, packed, *named.values()))
        if made is None:
            made = kernel(apart(codes), packed, **named)
    return shaped_as(x, made.to(x.dtype))


# --- operators ---------------------------------------------------------------------------------


def quantized_linear(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None,
    input_scale: torch.Tensor | None, input_zero: torch.Tensor | None, activation: str,
) -> torch.Tensor:  # fmt: skip
    """Compute ``activation(x @ weight.T + bias)``; the weight is packed at each call."""
    if input_scale is None or input_zero is None:
        return run_rows(packed_rows(weight, weight_scale), x, bias, activation)
    numbers = Fixed(weight_scale, input_scale, input_zero)
    return run_fixed(packed_codes(weight), x, numbers, bias, activation)


def _quantized_linear_fake(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None,
    input_scale: torch.Tensor | None, input_zero: torch.Tensor | None, activation: str,
) -> torch.Tensor:  # fmt: skip
    torch._check(x.shape[-1] == weight.shape[1])
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _fixed_linear_of_packed(
    x: torch.Tensor, packed: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None,
    input_scale: torch.Tensor, input_zero: torch.Tensor, format: str, activation: str,
) -> torch.Tensor:  # fmt: skip
    matrix = matrix_of(packed, format, x.shape[-1], len(weight_scale))
    return run_fixed(matrix, x, Fixed(weight_scale, input_scale, input_zero), bias, activation)


def _fixed_linear_of_packed_fake(
    x: torch.Tensor, packed: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None,
    input_scale: torch.Tensor, input_zero: torch.Tensor, format: str, activation: str,
) -> torch.Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], len(weight_scale)))


register(
    "quantized_linear",
    "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor? input_scale, "
    "Tensor? input_zero, str activation) -> Tensor",
    quantized_linear,
    _quantized_linear_fake,
)
register(
    "fixed_linear_of_packed",
    "(Tensor x, Tensor packed, Tensor weight_scale, Tensor? bias, Tensor input_scale, "
    "Tensor input_zero, str format, str activation) -> Tensor",
    _fixed_linear_of_packed,
    _fixed_linear_of_packed_fake,
)
