"""Representative kernels, whose C is committed in ``generated/``; their names say what they are."""

from __future__ import annotations

import re
from typing import Any

from support import compilers
from tilewright import targets
from tilewright.nn import sum as sum_of
from tilewright.nn import take
from tilewright.spec.expression import Operand, acc
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.network.tensor import Tensor
from tilewright.spec.network.trace import network
from tilewright.spec.operands import Addresses, Matrix, Offsets, Packed, Strided
from tilewright.spec.pack import PackQuantized
from tilewright.spec.postops import gelu_erf, relu
from tilewright.spec.quantized import Quantize, Quantized
from tilewright.spec.reductions import row_absmax, row_max
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim
from tilewright.spec.transpose import Transpose

#: The targets without a matrix unit: one that has it has the vectors of one of these.
VECTOR_TARGETS = tuple(name for name in compilers.TARGETS if targets.load(name).matrix is None)
_LD: dict[str, Any] = {"lda": Dim("lda"), "ldb": Dim("ldb"), "ldc": Dim("ldc")}
_SIZES = {name: Dim(name.upper(), multiple_of=16) for name in "mnk"}

SPECIMENS: dict[str, tuple[Spec, Schedule]] = {
    "gemm_f32_16x4x64_fff_beta1_ld_of_the_call": (
        Gemm(16, 4, 64, order="F", beta=1, **_LD),
        Schedule(tile=(16, 4), k_unroll=1),
    ),
    "gemm_f32_64x48x64_ccc": (Gemm(64, 48, 64), Schedule()),
    "gemm_f32_32x8x16_fff_beta1_batch16_tile16x4_bnmk": (
        Gemm(32, 8, 16, order="F", beta=1, batch=Strided(16)),
        Schedule(tile=(16, 4), loops="bnmk", k_unroll=1),
    ),
    "gemm_f32_mx4xk_fcc_a_in_panels": (
        Gemm(Dim("m"), 4, Dim("k"), a=Matrix("f32", "F"), **_LD),
        Schedule(tile=(2, 4), loops="kmmk", block={"m": 8, "k": 16}, pack="a"),
    ),
    "gemm_f32_2x3x4_ccc_stack_side_by_side": (
        Gemm(2, 3, 4, batch=Strided(Dim("count"), c=None)),
        Schedule(vectorize="b"),
    ),
    "gemm_f32_8x8xk_fff_batch_of_the_call_bnmk": (
        Gemm(8, 8, Dim("K"), order="F", batch=Strided(Dim("count"))),
        Schedule(loops="bnmk"),
    ),
    "gemm_f64_3x5x3_ccf_alpha2_narrow_tails": (
        Gemm(3, 5, 3, a="f64", c=Matrix("f64", "F"), alpha=2),
        Schedule(tails="narrow"),
    ),
    "gemm_f32_mxnxk_of_16_ccc_of_the_call": (
        Gemm(_SIZES["m"], _SIZES["n"], _SIZES["k"]),
        Schedule(),
    ),
    "gemm_f32_2x2xk_cfc_alpha_and_beta_of_the_call_offsets": (
        Gemm(
            2,
            2,
            Dim("K"),
            b=Matrix("f32", "F"),
            alpha="scalar",
            beta="scalar",
            batch=Offsets(Dim("count")),
        ),
        Schedule(vectorize="k"),
    ),
    "gemm_f32_2x16x16_ccc_beta1_tile2x16_knmk_prefetch4": (
        Gemm(2, 16, 16, beta=1),
        Schedule(tile=(2, 16), loops="knmk", block={"k": 8}, k_unroll=2, prefetch=4),
    ),
    "gemm_f32_31x16x64_ccc_tile31x16": (
        Gemm(31, 16, 64),
        Schedule(tile=(31, 16), k_unroll=1),
    ),
    "gemm_f64_3x2x24_cff_addresses4": (
        Gemm(3, 2, 24, a=Matrix("f64", "C"), order="F", batch=Addresses(4)),
        Schedule(vectorize="k"),
    ),
    "gemm_f32_8x4x4_cff_tile8x4_pack_ab": (
        Gemm(8, 4, 4, a=Matrix("f32", "C"), order="F"),
        Schedule(tile=(8, 4), pack="ab", k_unroll=2),
    ),
    "gemm_f32_64x48xk_ccc_parallel_nm": (
        Gemm(64, 48, Dim("K")),
        Schedule(loops="NMk", threads=2),
    ),
    "gemm_f32_2x9x3_ccc_beta1_bounced_tails": (
        Gemm(2, 9, 3, beta=1),
        Schedule(tails="bounce"),
    ),
    "gemm_u8s8_2x16x4_ccc_to_u8_bias_relu": (
        Gemm(
            2,
            16,
            4,
            a="u8",
            b="s8",
            d="u8",
            a_zero=128,
            b_scale="column",
            d_scale=0.05,
            d_zero=3,
            epilogue=relu(acc + Operand("bias", per="column")),
        ),
        Schedule(),
    ),
    "gemm_u8s8_1x8x4_ccc_packed_to_u8_bias_relu": (
        Gemm(
            1,
            8,
            4,
            a="u8",
            b=Packed("s8"),
            d="u8",
            a_zero=128,
            b_scale="column",
            d_scale=0.05,
            d_zero=3,
            epilogue=relu(acc + Operand("bias", per="column")),
        ),
        Schedule(),
    ),
    "gemm_s8_2x16x4_ccc_packed_zero_point_and_scale": (
        Gemm(2, 16, 4, a="s8", b=Packed("s8"), a_zero="scalar", b_scale="column"),
        Schedule(),
    ),
    "gemm_bf16_2x16x3_ccc_packed_batch3_to_bf16": (
        Gemm(2, 16, 3, a="bf16", b=Packed("bf16"), d="bf16", beta=1, batch=Strided(3)),
        Schedule(),
    ),
    "gemm_f32_2x9x4_ccc_row_max": (
        Gemm(2, 9, 4, d="f32", outputs={"most": row_max(acc)}),
        Schedule(),
    ),
    "gemm_f32_2x16x8_ccc_row_absmax": (
        Gemm(2, 16, 8, d="f32", outputs={"amax": row_absmax(acc)}),
        Schedule(),
    ),
    "gemm_f16_8x2x4_fcf_gelu": (
        Gemm(8, 2, 4, a=Matrix("f16", "F"), b="f16", order="F", epilogue=gelu_erf(acc)),
        Schedule(),
    ),
    "gemm_f16_1x64x4_ccc_packed": (Gemm(1, 64, 4, a="f16", b=Packed("f16")), Schedule()),
    "gemm_s8_32x32x128_ccc_packed": (
        Gemm(32, 32, 128, a="s8", b=Packed("s8"), beta=1),
        Schedule(),
    ),
    "gemm_bf16_2x16x34_ccc_packed_relu_to_bf16": (
        Gemm(2, 16, 34, a="bf16", b=Packed("bf16"), d="bf16", epilogue=relu(acc)),
        Schedule(),
    ),
    "gemm_u5_1x16x16_ccc_quantized_packed": (
        Gemm(1, 16, 16, a=Quantize(per=("row", 16)), b=Packed(Quantized("u5", zero=16, block=16))),
        Schedule(),
    ),
    "gemm_f32_1x8x8_ccc_times_u4_packed": (
        Gemm(1, 8, 8, b=Packed(Quantized("u4", block=8))),
        Schedule(),
    ),
    "gemm_bf16_1x16x32_ccc_times_u4_packed": (
        Gemm(1, 16, 32, a="bf16", b=Packed(Quantized("u4", zero=8, block=32))),
        Schedule(unpack_rows=1),
    ),
    "gemm_f32_4x16x32_ccc_times_u4_unpacked": (
        Gemm(4, 16, 32, b=Packed(Quantized("u4", scale="f16", zero=8, block=16)), d="bf16"),
        Schedule(loops="mnkmnk", pack="b"),
    ),
    "gemm_u8_mx16x64_fff_of_the_call": (
        Gemm(Dim("M"), 16, 64, a="u8", order="F"),
        Schedule(),
    ),
    "gemm_bf16_mx16x32_ccc_packed_of_the_call": (
        Gemm(Dim("M"), 16, 32, a="bf16", b=Packed("bf16")),
        Schedule(tile=(16, 16)),
    ),
    "gemm_bf16_32x16x32_ccc_parallel_m": (
        Gemm(32, 16, 32, a="bf16", b=Packed("bf16")),
        Schedule(tile=(16, 16), loops="Mnk", threads=2),
    ),
    "gemm_f32_8x16x64_fcc": (Gemm(8, 16, 64, a=Matrix("f32", "F")), Schedule()),
    "pack_u4_64x16_c_with_zeros": (
        PackQuantized(
            64, 16, Quantized("u4", scale="f16", zero="u4", block=32), a=Quantize(per=("row", 32))
        ),
        Schedule(),
    ),
    "transpose_f32_8x8": (Transpose(8, 8), Schedule()),
    "rows_bf16_mx64_sum": (network(sum_of).of(x=Tensor("bf16", (Dim("M"), 64))), Schedule()),
    "network_f32_4_rows_of_9x8": (
        network(take).of(table=Tensor("f32", (9, 8)), rows=Tensor("s32", (4,))),
        Schedule(),
    ),
}


#: The targets that show a kernel of a kind: those on which it differs most.
TARGETS: dict[str, tuple[str, ...]] = {
    "gemm_f32_16x4x64_fff_beta1_ld_of_the_call": ("avx512",),
    "gemm_f32_64x48x64_ccc": ("avx512", "avx2", "scalar"),
    "gemm_f32_32x8x16_fff_beta1_batch16_tile16x4_bnmk": ("avx2",),
    "gemm_f32_mx4xk_fcc_a_in_panels": ("avx2",),
    "gemm_f32_2x3x4_ccc_stack_side_by_side": ("neon",),
    "gemm_f32_8x8xk_fff_batch_of_the_call_bnmk": ("avx2",),
    "gemm_f64_3x5x3_ccf_alpha2_narrow_tails": ("neon", "scalar"),
    "gemm_f32_mxnxk_of_16_ccc_of_the_call": ("avx2", "scalar"),
    "gemm_f32_2x2xk_cfc_alpha_and_beta_of_the_call_offsets": ("avx512",),
    "gemm_f32_2x16x16_ccc_beta1_tile2x16_knmk_prefetch4": ("avx2",),
    "gemm_f32_31x16x64_ccc_tile31x16": ("avx512",),
    "gemm_f64_3x2x24_cff_addresses4": ("avx2", "scalar"),
    "gemm_f32_8x4x4_cff_tile8x4_pack_ab": ("avx2", "neon"),
    "gemm_f32_64x48xk_ccc_parallel_nm": ("avx2",),
    "gemm_f32_2x9x3_ccc_beta1_bounced_tails": ("avx512", "neon"),
    "gemm_u8s8_2x16x4_ccc_to_u8_bias_relu": ("avx512",),
    "gemm_u5_1x16x16_ccc_quantized_packed": ("avx512",),
    "gemm_f32_1x8x8_ccc_times_u4_packed": ("avx2",),
    "gemm_bf16_1x16x32_ccc_times_u4_packed": ("amx",),
    "gemm_f32_4x16x32_ccc_times_u4_unpacked": ("avx512",),
    "gemm_u8s8_1x8x4_ccc_packed_to_u8_bias_relu": ("avx2", "neon"),
    "gemm_s8_2x16x4_ccc_packed_zero_point_and_scale": ("avx512",),
    "gemm_bf16_2x16x3_ccc_packed_batch3_to_bf16": ("avx512",),
    "gemm_f32_2x16x8_ccc_row_absmax": (),
    "gemm_f32_2x9x4_ccc_row_max": ("avx512",),
    "gemm_f16_8x2x4_fcf_gelu": ("avx2",),
    "gemm_f16_1x64x4_ccc_packed": ("avx512",),
    "gemm_s8_32x32x128_ccc_packed": ("amx",),
    "gemm_bf16_2x16x34_ccc_packed_relu_to_bf16": ("amx",),
    "gemm_u8_mx16x64_fff_of_the_call": (),
    "gemm_bf16_mx16x32_ccc_packed_of_the_call": ("amx",),
    "gemm_bf16_32x16x32_ccc_parallel_m": (),
    "gemm_f32_8x16x64_fcc": ("power10", "sme"),
    "pack_u4_64x16_c_with_zeros": ("avx2",),
    "transpose_f32_8x8": ("avx2", "neon"),
    "rows_bf16_mx64_sum": ("avx2",),
    "network_f32_4_rows_of_9x8": ("avx2",),
}


#: The targets that have the registers, or the unit, for a tile that was asked for.
_WITHOUT_SCALAR = ("amx", *(name for name in VECTOR_TARGETS if name != "scalar"))
_ABLE: dict[str, tuple[str, ...]] = {
    "gemm_f32_16x4x64_fff_beta1_ld_of_the_call": _WITHOUT_SCALAR,
    "gemm_f32_32x8x16_fff_beta1_batch16_tile16x4_bnmk": _WITHOUT_SCALAR,
    "gemm_f32_2x3x4_ccc_stack_side_by_side": _WITHOUT_SCALAR,
    "gemm_f32_2x16x16_ccc_beta1_tile2x16_knmk_prefetch4": tuple(
        name for name in _WITHOUT_SCALAR if name != "amx"
    ),
    "gemm_f32_31x16x64_ccc_tile31x16": ("amx", "avx512"),
    "gemm_f32_8x4x4_cff_tile8x4_pack_ab": _WITHOUT_SCALAR,
    "gemm_bf16_mx16x32_ccc_packed_of_the_call": ("amx", "avx512", "sme"),
    "gemm_bf16_32x16x32_ccc_parallel_m": ("amx", "avx512", "sme"),
}


def specimens(target: str) -> list[str]:
    """The names of the kernels whose C is committed for ``target``."""
    return [name for name in SPECIMENS if target in TARGETS[name]]


def able(target: str) -> list[str]:
    """The names of the kernels that ``target`` can be asked for."""
    return [name for name in SPECIMENS if target in _ABLE.get(name, (target,))]


def code(text: str) -> str:
    """The C without its comments."""
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
