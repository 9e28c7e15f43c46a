"""RISC-V V's vectors of f32, f64 and s32, and of the 16-bit integers that these sum.

A mask is a number of lanes; its loads take the other lanes from a register of zeros, but for those
of which nobody asks zeros. Conversions
and comparisons use what V alone has: it has no f16, and its minimum of a number and a NaN is the
number, so that minima are chosen by comparison. A comparison gives bits, of which lanes of ones are
made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from tilewright.isa.vector import Mask, MulAdd, Vector
from tilewright.targets.scalar import plain, whole

from .words import Group

# --- elementary operations ----------------------------------------------------------------------


def _ones(test: str) -> str:
    """Lanes of ones where the bits that ``test`` gives are set."""
    return f"@vmerge_vxm_$i(@vmv_v_x_$i(0, $n), -1, {test}, $n)"


def _choice(mask: str) -> str:
    """Y where lanes of the integers ``mask`` are not 0, else z."""
    return f"@vmerge_vvm_$t({{z}}, {{y}}, @vmsne_vx_${{i}}_$b({mask}, 0, $n), $n)"


def _pairs(prefix: str, *names: str) -> dict[str, str]:
    """Operations of two vectors that are called as here."""
    return {name: f"@{prefix}{name}_vv_$t({{x}}, {{y}}, $n)" for name in names}


_TESTS = {name: f"@vmf{name}_vv_${{t}}_$b({{x}}, {{y}}, $n)" for name in ("lt", "le", "eq", "gt")}
_REAL = {
    **_pairs("vf", "add", "sub", "mul", "div"),
    **{name: f"@vf{name}_v_$t({{x}}, $n)" for name in ("sqrt", "abs", "neg")},
    "fma": "@vfmacc_vv_$t({z}, {x}, {y}, $n)",
    "min": f"@vmerge_vvm_$t({{y}}, {{x}}, {_TESTS['lt']}, $n)",
    "max": f"@vmerge_vvm_$t({{y}}, {{x}}, {_TESTS['gt']}, $n)",
}
#: An f32 from 2^23 on is an integer; what is rounded keeps its sign, though it be 0.
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
#: A comparison of f64 has its lanes of ones in a vector of f64.
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
_OPS = {"f32": _F32, "f64": _F64, "s32": _S32}

# --- memory -------------------------------------------------------------------------------------

#: What a load leaves in the lanes that it does not read.
Lanes = Literal["all", "zeros", "anything"]
#: What makes elements of LOADED, as many of another type.
_WIDENED = {
    "f32": {"bf16": "@vreinterpret_v_${u}_$t(@vsll_vx_$u(@vzext_vf2_$u(LOADED, $n), 16, $n))"},
    "s32": {
        "s16": "@vsext_vf2_$t(LOADED, $n)",
        "s8": "@vsext_vf4_$t(LOADED, $n)",
        "u16": "@vreinterpret_v_${u}_$t(@vzext_vf2_$u(LOADED, $n))",
        "u8": "@vreinterpret_v_${u}_$t(@vzext_vf4_$u(LOADED, $n))",
    },
    "s16": {
        "s8": "@vsext_vf2_$t(LOADED, $n)",
        "u8": "@vreinterpret_v_${u}_$t(@vzext_vf2_$u(LOADED, $n))",
    },
}
_HALVES = "@vncvt_x_x_w_$s16({v}, $n)"
#: The low bits of elements, as many of another type.
_NARROWED = {
    "s32": {
        "u16": f"@vreinterpret_v_${{s16}}_$u16({_HALVES})",
        "s8": f"@vncvt_x_x_w_$s8({_HALVES}, $n)",
        "u8": f"@vreinterpret_v_${{s8}}_$u8(@vncvt_x_x_w_$s8({_HALVES}, $n))",
    },
}


def load(group: Group, how: Lanes = "all") -> str:
    """The elements at ``{p}``: all; those of a mask, and zeros; or those, and anything."""
    count = "$n" if how == "all" else "{mask}"
    tail, zeros = "", ""
    if how == "zeros":
        zero = "@vfmv_v_f" if group.element[0] == "f" else "@vmv_v_x"
        tail, zeros = "_tu", f"{zero}_$t(0, $n), "
    return group.spell(f"@vle{group.size}_v_${{t}}{tail}({zeros}{{p}}, {count})")


def _loads(group: Group, how: Lanes = "all") -> dict[str, str]:
    """Loads that convert."""
    return {
        memory: group.spell(spelling).replace("LOADED", load(group.of(_bits(memory)), how))
        for memory, spelling in _WIDENED.get(group.element, {}).items()
    }


def _bits(memory: str) -> str:
    """The integers as which elements of a type are loaded."""
    return memory if memory[0] in "su" else "u16"


def store(group: Group, value: str = "{v}", count: str = "$n") -> str:
    """Writes the first lanes of ``value`` to ``{p}``."""
    return group.spell(f"@vse{group.size}_v_$t({{p}}, {value}, {count})")


def _stores(group: Group, count: str = "$n") -> dict[str, str]:
    """Stores that convert."""
    return {
        memory: store(group.of(memory), group.spell(spelling), count)
        for memory, spelling in _NARROWED.get(group.element, {}).items()
    }


def cut(group: Group) -> Mask:
    """Accesses of the first lanes, whose number the mask is."""
    mask = Mask(
        ctype="size_t",
        make="(size_t)({count})",
        load=load(group, "zeros"),
        store=store(group, count="{mask}"),
        registers=0,
        loads=_loads(group, "zeros"),
        stores=_stores(group, "{mask}"),
    )
    loose = replace(mask, load=load(group, "anything"), loads=_loads(group, "anything"))
    return replace(mask, loose=loose)


# --- vectors ------------------------------------------------------------------------------------


def forms(mnemonic: str, group: Group, x: str = "", y: str = "") -> Iterator[MulAdd]:
    """A multiply-add with a C scalar, and with a vector, as vectors along K take it.

    The scalar is the first factor of its intrinsic. ``x`` and ``y`` are the factors' types.
    """
    kind = "vx" if group.element == "s32" else "vf"
    for form, letters in (("scalar", kind), ("broadcast", "vv")):
        yield MulAdd(
            form="scalar" if form == "scalar" else "broadcast",
            mnemonic=f"{mnemonic}.{letters}",
            spelling=group.spell(f"@{mnemonic}_{letters}_$t({{acc}}, {{y}}, {{x}}, $n)"),
            cols=group.lanes,
            x=x,
            y=y,
        )


_MULTIPLY_ADD = {"f32": "vfmacc", "f64": "vfmacc", "s32": "vmacc"}


def vector(group: Group) -> Vector:
    """A vector of f32, f64 or s32."""
    element, integer = group.element, group.element == "s32"
    splat = group.spell("@vmv_v_x_$t" if integer else "@vfmv_v_f_$t")
    products = tuple(forms(_MULTIPLY_ADD[element], group))
    if integer:
        products = (*forms("vwmacc", group, "s16", "s16"), *products)
    return Vector(
        name=group.lmul,
        element=element,
        lanes=group.lanes,
        registers=group.registers,
        ctype=group.ctype,
        zero=f"{splat}(0, {group.lanes})",
        load=load(group),
        store=store(group),
        broadcast=f"{splat}(*({{p}}), {group.lanes})",
        splat=f"{splat}({{x}}, {group.lanes})",
        add=group.spell(_OPS[element]["add"]),
        mul=group.spell(_OPS[element]["mul"]),
        muladd=products,
        sum_lanes=_sum_lanes(group),
        loads=_loads(group),
        stores=_stores(group),
        ops=group.table(_OPS[element]),
        mask=cut(group),
        transpose=_transpose(group),
    )


def _transpose(group: Group) -> dict[int, tuple[str, str]]:
    """Blocks interleaved: those of one vector slide over every other one of the other."""
    found = {}
    for block in (1 << i for i in range(group.lanes.bit_length() - 1)):
        odd, even = (
            f"@vms{test}_vx_${{u}}_$b(@vand_vx_$u(@vid_v_$u($n), {block}, $n), 0, $n)"
            for test in ("ne", "eq")
        )
        up = f"@vslideup_vx_${{t}}_mu({odd}, {{x}}, {{y}}, {block}, $n)"
        down = f"@vslidedown_vx_${{t}}_mu({even}, {{y}}, {{x}}, {block}, $n)"
        found[block] = group.spell(up), group.spell(down)
    return found


def _sum_lanes(group: Group) -> str:
    """A reduction leaves its sum in the first lane of a whole register, in which it begins."""
    one = Group(group.element, group.vlen // group.size, group.vlen).name
    if group.element == "s32":
        spelling = "@vmv_x_s_ONE_i32(@vredsum_vs_${t}_ONE({v}, @vmv_s_x_ONE(0, 1), $n))"
    else:
        spelling = "@vfmv_f_s_ONE_ELEMENT(@vfredusum_vs_${t}_ONE({v}, @vfmv_s_f_ONE(0, 1), $n))"
    return group.spell(spelling.replace("ONE", one).replace("ELEMENT", group.element))


def held(group: Group) -> Vector:
    """A vector of 16-bit integers, which only holds factors."""
    return Vector(
        name=group.lmul,
        element=group.element,
        lanes=group.lanes,
        registers=group.registers,
        ctype=group.ctype,
        load=load(group),
        store=store(group),
        loads=_loads(group),
        mask=cut(group),
    )


# --- one element alone --------------------------------------------------------------------------

_WHOLE = whole("mulw, addw")
_PRODUCT = MulAdd(
    form="scalar",
    mnemonic="vwmacc.vx",
    spelling="(int32_t)((uint32_t){acc} + (uint32_t)({x} * {y}))",
    cols=1,
    x="s16",
    y="s16",
)
SINGLE = {
    "f32": replace(
        plain("f32", "fmadd.s"),
        loads={"bf16": "float_of_bits((int32_t)((uint32_t)*({p}) << 16))"},
    ),
    "f64": plain("f64", "fmadd.d"),
    "s32": replace(_WHOLE, muladd=(_PRODUCT, *_WHOLE.muladd)),
    "s16": Vector(
        name="scalar",
        element="s16",
        lanes=1,
        ctype="int16_t",
        load="*({p})",
        store="*({p}) = {v}",
        loads=dict.fromkeys(("s8", "u8"), "*({p})"),
    ),
}
