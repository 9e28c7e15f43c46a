"""A layer of 8-bit integers as an operator of PyTorch."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from tilewright.runtime.driver import compile
from tilewright.runtime.kernel import Kernel
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.sizes import dim

from .products import (
    LayerKind,
    is_parallel,
    layer_epilogue,
    layer_schedule,
    packed_weight,
    register,
)

#: The least scale of a row: one whose elements are all zero.
_LEAST = 1e-12


@lru_cache(maxsize=1024)
def quantized_kernel(kind: LayerKind, parallel: bool) -> Kernel:
    """The kernel of a quantised layer whose rows are of ``kind.type``: ``u8`` with one scale and
    zero point, ``s8`` with a scale for each row.
    """
    rows: dict[str, Any] = {"a_scale": "row"}
    if kind.type == "u8":
        rows = {"a_scale": "scalar", "a_zero": "scalar"}
    spec = Gemm(
        dim("m"), kind.n, kind.k, a=kind.type, b=Packed("s8"), d="f32", lda=dim("lda"),
        b_scale="column", **rows,
        epilogue=layer_epilogue("f32" if kind.has_bias else None, kind.activation),
    )  # fmt: skip
    return compile(spec, layer_schedule(parallel))


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as int8, nearest and half to even, with the scale of each: what 127 stands for / 127."""
    scale = x.abs().amax(-1).clamp_min(_LEAST) / 127
    return torch.round(x / scale[:, None]).to(torch.int8), scale


def quantize_all(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Elements as uint8, nearest and half to even, saturated: ``x / scale + zero``."""
    return torch.round(x / scale + zero).clamp(0, 255).to(torch.uint8)


def _quantized_linear(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None,
    input_scale: torch.Tensor | None, input_zero: torch.Tensor | None, activation: str,
) -> torch.Tensor:  # fmt: skip
    n, k = weight.shape
    rows = x.reshape(-1, k).float()
    kind = LayerKind(k, n, "s8" if input_scale is None else "u8", bias is not None, activation)
    named: dict[str, Any] = {"b_scale": weight_scale}
    if input_scale is None or input_zero is None:
        codes, named["a_scale"] = quantize_rows(rows)
    else:
        codes = quantize_all(rows, input_scale, input_zero)
        named |= {"a_scale": input_scale.reshape(1), "a_zero": int(input_zero)}
    if bias is not None:
        named["bias"] = bias
    parallel = is_parallel(len(rows) * n * k)
    out = torch.empty((len(rows), n), dtype=torch.float32, device="cpu")
    with torch.no_grad():
        packed = packed_weight(
            weight, lambda: quantized_kernel(kind, False).pack_b(weight.detach().t())
        )
        quantized_kernel(kind, parallel)(codes, packed, out=out, **named)
    return out.reshape(*x.shape[:-1], n).to(x.dtype)


def _quantized_linear_fake(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, bias: torch.Tensor | None,
    input_scale: torch.Tensor | None, input_zero: torch.Tensor | None, activation: str,
) -> torch.Tensor:  # fmt: skip
    torch._check(x.shape[-1] == weight.shape[1])
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


register(
    "quantized_linear",
    "(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, Tensor? input_scale, "
    "Tensor? input_zero, str activation) -> Tensor",
    _quantized_linear,
    _quantized_linear_fake,
)
