"""Representative kernels, whose C is committed in ``generated/``; their names say what they are."""

from __future__ import annotations

import re
from typing import Any

from tilewright import targets
from tilewright.spec.expression import Operand, acc
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Addresses, Matrix, Offsets, Packed, Strided
from tilewright.spec.postops import gelu_erf, relu
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim
from tilewright.spec.transpose import Transpose

#: The targets without a matrix unit: one that has it has the vectors of one of these.
VECTOR_TARGETS = tuple(name for name in targets.NAMES if targets.load(name).matrix is None)
_LD: dict[str, Any] = {"lda": Dim("lda"), "ldb": Dim("ldb"), "ldc": Dim("ldc")}
_SIZES = {name: Dim(name.upper(), multiple_of=16) for name in "mnk"}

SPECIMENS: dict[str, tuple[Spec, Schedule]] = {
    "gemm_f32_16x6x64_fff_beta1_ld_of_the_call": (
        Gemm(16, 6, 64, order="F", beta=1, **_LD),
        Schedule(tile=(16, 6), k_unroll=2),
    ),
    "gemm_f32_64x48x64_ccc": (Gemm(64, 48, 64), Schedule()),
    "gemm_f32_64x48x64_fff_beta1_batch16_tile16x4_bnmk": (
        Gemm(64, 48, 64, order="F", beta=1, batch=Strided(16)),
        Schedule(tile=(16, 4), loops="bnmk", k_unroll=2),
    ),
    "gemm_f64_13x7x5_ccf_alpha2_narrow_tails": (
        Gemm(13, 7, 5, a="f64", c=Matrix("f64", "F"), alpha=2),
        Schedule(tails="narrow"),
    ),
    "gemm_f32_mxnxk_of_16_ccc_of_the_call": (
        Gemm(_SIZES["m"], _SIZES["n"], _SIZES["k"]),
        Schedule(),
    ),
    "gemm_f32_5x3xk_cfc_alpha_and_beta_of_the_call_offsets": (
        Gemm(
            5,
            3,
            Dim("K"),
            b=Matrix("f32", "F"),
            alpha="scalar",
            beta="scalar",
            batch=Offsets(Dim("count")),
        ),
        Schedule(vectorize="k"),
    ),
    "gemm_f32_8x16xk_ccc_beta1_tile4x16_knmk_prefetch4": (
        Gemm(8, 16, Dim("K"), beta=1),
        Schedule(tile=(4, 16), loops="knmk", block={"k": 8}, k_unroll=2, prefetch=4),
    ),
    "gemm_f32_31x16x64_ccc_tile31x16": (
        Gemm(31, 16, 64),
        Schedule(tile=(31, 16), k_unroll=1),
    ),
    "gemm_f64_3x2x24_cff_addresses4": (
        Gemm(3, 2, 24, a=Matrix("f64", "C"), order="F", batch=Addresses(4)),
        Schedule(vectorize="k"),
    ),
    "gemm_f32_16x8x8_cff_tile16x4_pack_ab": (
        Gemm(16, 8, 8, a=Matrix("f32", "C"), order="F"),
        Schedule(tile=(16, 4), pack="ab", k_unroll=2),
    ),
    "gemm_f32_64x48xk_ccc_parallel_nm": (
        Gemm(64, 48, Dim("K")),
        Schedule(loops="NMk", threads=2),
    ),
    "gemm_f32_3x21x5_ccc_beta1_bounced_tails": (
        Gemm(3, 21, 5, beta=1),
        Schedule(tails="bounce"),
    ),
    "gemm_u8s8_6x20x13_ccc_to_u8_bias_relu": (
        Gemm(
            6,
            20,
            13,
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
    "gemm_bf16_mx16x31_ccc_packed_batch3_to_bf16": (
        Gemm(Dim("M"), 16, 31, a="bf16", b=Packed("bf16"), d="bf16", beta=1, batch=Strided(3)),
        Schedule(),
    ),
    "gemm_f16_5x9x8_fcf_gelu": (
        Gemm(5, 9, 8, a=Matrix("f16", "F"), b="f16", order="F", epilogue=gelu_erf(acc)),
        Schedule(),
    ),
    "gemm_f16_1x64x9_ccc_packed": (Gemm(1, 64, 9, a="f16", b=Packed("f16")), Schedule()),
    "gemm_s8_64x64x512_ccc_packed": (
        Gemm(64, 64, 512, a="s8", b=Packed("s8"), beta=1),
        Schedule(),
    ),
    "gemm_bf16_37x20x34_cfc_relu_to_bf16": (
        Gemm(37, 20, 34, a="bf16", b=Matrix("bf16", "F"), d="bf16", epilogue=relu(acc)),
        Schedule(),
    ),
    "gemm_u8_mxnxk_fcf_of_the_call": (
        Gemm(Dim("M"), Dim("N"), Dim("K"), a=Matrix("u8", "F"), b="u8", order="F", lda=Dim("lda")),
        Schedule(),
    ),
    "gemm_bf16_64x32x64_ccc_parallel_mn": (
        Gemm(64, 32, 64, a="bf16"),
        Schedule(tile=(32, 16), loops="MNk", threads=2),
    ),
    "transpose_f32_8x8": (Transpose(8, 8), Schedule()),
}


#: The targets that have the registers for a tile, where not all do.
_VECTORS = ("avx512", "avx2", "neon")
ONLY = {
    "gemm_f32_16x6x64_fff_beta1_ld_of_the_call": _VECTORS,
    "gemm_f32_64x48x64_fff_beta1_batch16_tile16x4_bnmk": _VECTORS,
    "gemm_f32_8x16xk_ccc_beta1_tile4x16_knmk_prefetch4": _VECTORS,
    "gemm_f32_31x16x64_ccc_tile31x16": ("avx512",),
    "gemm_f32_3x21x5_ccc_beta1_bounced_tails": _VECTORS,
    "gemm_f32_16x8x8_cff_tile16x4_pack_ab": _VECTORS,
    "gemm_f32_64x48xk_ccc_parallel_nm": ("avx2",),
    "gemm_f16_1x64x9_ccc_packed": ("avx512",),
    "gemm_s8_64x64x512_ccc_packed": ("amx",),
    "gemm_bf16_37x20x34_cfc_relu_to_bf16": ("amx",),
    "gemm_u8_mxnxk_fcf_of_the_call": ("amx",),
    "gemm_bf16_64x32x64_ccc_parallel_mn": ("amx",),
}
#: What has the vectors of another target is shown with what they lack.
_MATRICES = {name for name in SPECIMENS if "_s8_" in name or "_u8" in name or "_bf16_" in name}


def specimens(target: str) -> list[str]:
    """The names of the kernels of ``target``."""
    found = [name for name in SPECIMENS if target in ONLY.get(name, (target,))]
    return found if target in VECTOR_TARGETS else [name for name in found if name in _MATRICES]


def code(text: str) -> str:
    """The C without its comments."""
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
