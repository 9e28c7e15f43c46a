"""SVE's vectors of s64: a lane sums four products of 16-bit integers, all signed or all unsigned.

If one factor is signed and the other unsigned, loads widen both to s64, and a lane sums one
product.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.vector import MulAdd, Vector

from ..scalar import wide
from .words import all_lanes, dots, filled, forms, mask, some_lanes

_ALL = all_lanes("s64")
_OPS = filled({op: f"sv{op}_s64_x({{t}}, {{{{x}}}}, {{{{y}}}})" for op in ("add", "mul")}, t=_ALL)
_LOADS = {
    "s8": f"svld1sb_s64({_ALL}, {{p}})",
    "u8": f"svld1ub_s64({_ALL}, {{p}})",
    "s16": f"svld1sh_s64({_ALL}, {{p}})",
    "u16": f"svld1uh_s64({_ALL}, {{p}})",
}


def wide_sums(nbytes: int) -> tuple[Vector, ...]:
    """Return the vector types of s64: one fills a register of ``nbytes``, one is a C scalar."""
    lanes, one = nbytes // 8, wide("madd")
    alike = forms("mla z.d", {"broadcast": f"svmla_s64_x({_ALL}, {{acc}}, {{x}}, {{y}})"}, lanes)
    return (
        Vector(
            name="z",
            element="s64",
            lanes=lanes,
            ctype="svint64_t",
            zero="svdup_n_s64(0)",
            load=f"svld1_s64({_ALL}, {{p}})",
            store=f"svst1_s64({_ALL}, {{p}}, {{v}})",
            broadcast="svdup_n_s64(*({p}))",
            splat="svdup_n_s64({x})",
            muladd=(*_fours(lanes), *alike),
            sum_lanes=f"svaddv_s64({_ALL}, {{v}})",
            loads=_LOADS,
            ops=_OPS,
            mask=mask("s64", _LOADS),
            **some_lanes("s64", lanes),
        ),
        replace(one, muladd=(*_fours(1), *one.muladd)),
    )


def store_widened(nbytes: int) -> str:
    """Return C that widens a vector of s32 to s64, and stores it as two vectors."""
    low = f"svst1_s64({_ALL}, {{p}}, svunpklo_s64({{v}}))"
    return f"{low}, svst1_s64({_ALL}, ({{p}}) + {nbytes // 8}, svunpkhi_s64({{v}}))"


def _fours(lanes: int) -> tuple[MulAdd, ...]:
    return (
        *dots(
            "sdot z.d",
            (4, "s16", "s16"),
            "svdot_s64({acc}, {x}, {y})",
            "svdot_lane_s64({acc}, {x}, {y}, {lane})",
            lanes,
            element="s64",
        ),
        *dots(
            "udot z.d",
            (4, "u16", "u16"),
            _unsigned("svdot_u64({acc}, {x}, {y})"),
            _unsigned("svdot_lane_u64({acc}, {x}, {y}, {lane})"),
            lanes,
            element="s64",
        ),
    )


def _unsigned(product: str) -> str:
    """Return ``product``, which sums in u64, with casts that make its accumulator s64."""
    acc = "svreinterpret_u64_s64({acc})"
    return f"svreinterpret_s64_u64({product.replace('{acc}', acc)})"
