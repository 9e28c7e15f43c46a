"""RISC-V V's spellings of the elementary operations in ``elementwise/operations.py``.

A comparison in V gives one bit per lane. The operations here convert it to a lane whose bits are
all 1 or all 0. V's own minimum of a number and a NaN is the number, which is not what
``elementwise/operations.py`` requires. Minimum and maximum are therefore computed by comparison.
"""

from __future__ import annotations


def _ones(test: str) -> str:
    """Return C for a vector of integers: -1 in lanes in which ``test`` is true, else 0."""
    return f"@vmerge_vxm_$i(@vmv_v_x_$i(0, $n), -1, {test}, $n)"


def _choice(mask: str) -> str:
    """Return C that selects ``{y}`` in lanes where the integer ``mask`` is not 0, else ``{z}``."""
    return f"@vmerge_vvm_$t({{z}}, {{y}}, @vmsne_vx_${{i}}_$b({mask}, 0, $n), $n)"


def _pairs(prefix: str, *names: str) -> dict[str, str]:
    """Return the operations on two vectors whose intrinsics are called ``prefix`` and the name."""
    return {name: f"@{prefix}{name}_vv_$t({{x}}, {{y}}, $n)" for name in names}


_TESTS = {name: f"@vmf{name}_vv_${{t}}_$b({{x}}, {{y}}, $n)" for name in ("lt", "le", "eq", "gt")}
_REAL = {
    **_pairs("vf", "add", "sub", "mul", "div"),
    **{name: f"@vf{name}_v_$t({{x}}, $n)" for name in ("sqrt", "abs", "neg")},
    "fma": "@vfmacc_vv_$t({z}, {x}, {y}, $n)",
    "min": f"@vmerge_vvm_$t({{y}}, {{x}}, {_TESTS['lt']}, $n)",
    "max": f"@vmerge_vvm_$t({{y}}, {{x}}, {_TESTS['gt']}, $n)",
}
#: Rounding of f32 to an integer, by a conversion to s32 and back. Numbers of magnitude 2^23 or more
#: are integers already, and are not converted. A result of 0 keeps the sign of the operand.
_ROUNDED = (
    "@vfsgnj_vv_$t(@vmerge_vvm_$t({x}, @vfcvt_f_x_v_$t(@vfcvt_x_f_v_$i({x}, $n), $n), "
    "@vmflt_vf_${t}_$b(@vfabs_v_$t({x}, $n), 8388608.0f, $n), $n), {x}, $n)"
)
_F32 = {
    **_REAL,
    **{name: _ones(_TESTS[name]) for name in ("lt", "le", "eq")},
    "select": _choice("{x}"),
    "round": _ROUNDED,
    "to_s32": "@vfcvt_x_f_v_$i({x}, $n)",
    "bits": "@vreinterpret_v_${t}_$i({x})",
}
#: Operations on f64. A comparison gives a vector of f64, whose lanes have all bits 1 or all bits 0.
_F64 = {
    **_REAL,
    **{name: f"@vreinterpret_v_${{i}}_$t({_ones(_TESTS[name])})" for name in ("lt", "le", "eq")},
    "select": _choice("@vreinterpret_v_${t}_$i({x})"),
}
_S32 = {
    **_pairs("v", "add", "sub", "mul", "min", "max", "and", "or", "xor"),
    **{name: _ones(f"@vms{name}_vv_${{t}}_$b({{x}}, {{y}}, $n)") for name in ("lt", "eq", "gt")},
    "select": _choice("{x}"),
    "shl": "@vsll_vx_$t({x}, {y}, $n)",
    "shr": "@vsra_vx_$t({x}, {y}, $n)",
    "ushr": "@vreinterpret_v_${u}_$t(@vsrl_vx_$u(@vreinterpret_v_${t}_$u({x}), {y}, $n))",
    "to_f32": "@vfcvt_f_x_v_$f32({x}, $n)",
    "float": "@vreinterpret_v_${t}_$f32({x})",
}
OPERATIONS = {"f32": _F32, "f64": _F64, "s32": _S32, "s64": _pairs("v", "add", "mul")}
