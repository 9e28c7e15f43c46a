"""RISC-V V's vectors of f32, f64, s32 and s64, those of 16-bit factors, and single elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from tilewright.isa.vector import MulAdd, Vector
from tilewright.spec.types import is_integer
from tilewright.targets.scalar import plain, whole, wide
from tilewright.targets.stored import fields

from .accesses import CONVERSIONS, accesses, moved_as
from .operations import OPERATIONS
from .words import Group

_MULTIPLY_ADD = {"f32": "vfmacc", "f64": "vfmacc", "s32": "vmacc", "s64": "vmacc"}


def forms(mnemonic: str, group: Group, factors: str = "") -> Iterator[MulAdd]:
    """Yield a multiply-add with a C scalar, and one with a vector, for vectors along K.

    The C scalar is the first factor of the intrinsic. ``factors`` is the type of both factors.
    """
    kinds: tuple[tuple[Literal["scalar", "broadcast"], str], ...] = (
        ("scalar", "vx" if is_integer(group.element) else "vf"),
        ("broadcast", "vv"),
    )
    for form, letters in kinds:
        yield MulAdd(
            form=form,
            mnemonic=f"{mnemonic}.{letters}",
            spelling=group.spell(f"@{mnemonic}_{letters}_$t({{acc}}, {{y}}, {{x}}, $n)"),
            cols=group.lanes,
            x=factors,
            y=factors,
        )


#: Products of 16-bit integers, by the types of both factors: with a scalar, and of two vectors.
_MIXED = {
    ("u16", "u16"): (
        ("vwmaccu.vx", "@vwmaccu_vx_$u({acc}, {y}, {x}, $n)"),
        ("vwmaccu.vv", "@vwmaccu_vv_$u({acc}, {y}, {x}, $n)"),
    ),
    ("s16", "u16"): (
        ("vwmaccus.vx", "@vwmaccus_vx_$t({acc}, {y}, {x}, $n)"),
        ("vwmaccsu.vv", "@vwmaccsu_vv_$t({acc}, {x}, {y}, $n)"),
    ),
    ("u16", "s16"): (
        ("vwmaccsu.vx", "@vwmaccsu_vx_$t({acc}, {y}, {x}, $n)"),
        ("vwmaccsu.vv", "@vwmaccsu_vv_$t({acc}, {y}, {x}, $n)"),
    ),
}


def _mixed(group: Group) -> Iterator[MulAdd]:
    """Yield products of 16-bit integers of which one or both are unsigned."""
    kinds: tuple[Literal["scalar", "broadcast"], ...] = ("scalar", "broadcast")
    for (x, y), ways in _MIXED.items():
        for form, (mnemonic, spelling) in zip(kinds, ways, strict=True):
            if x == y:  # the instruction's sums are unsigned too
                seen = spelling.replace("{acc}", "@vreinterpret_v_${t}_$u({acc})")
                spelling = f"@vreinterpret_v_${{u}}_$t({seen})"
            yield MulAdd(
                form=form,
                mnemonic=mnemonic,
                spelling=group.spell(spelling),
                cols=group.lanes,
                x=x,
                y=y,
            )


def vector(group: Group) -> Vector:
    """Return a vector of f32, f64, s32 or s64."""
    element = group.element
    splat = group.spell("@vmv_v_x_$t" if is_integer(element) else "@vfmv_v_f_$t")
    products = tuple(forms(_MULTIPLY_ADD[element], group))
    if element == "s32":
        products = (*forms("vwmacc", group, "s16"), *_mixed(group), *products)
    elif element == "s64":
        products = (*forms("vwmacc", group, "s32"), *products)
    ops = group.table(OPERATIONS[element])
    return Vector(
        name=group.lmul,
        element=element,
        lanes=group.lanes,
        registers=group.registers,
        ctype=group.ctype,
        zero=f"{splat}(0, {group.lanes})",
        broadcast=f"{splat}(*({{p}}), {group.lanes})",
        splat=f"{splat}({{x}}, {group.lanes})",
        add=ops["add"],
        mul=ops["mul"],
        muladd=products,
        sum_lanes=_sum_lanes(group),
        ops=ops,
        transpose=_transpose(group),
        **accesses(group, CONVERSIONS[element]),
    )


def held(group: Group) -> Vector:
    """Return a vector of 16-bit elements, which only holds factors."""
    return Vector(
        name=group.lmul,
        element=group.element,
        lanes=group.lanes,
        registers=group.registers,
        ctype=group.ctype,
        broadcast=_same_bits(group),
        fields=_parts(group) if group.element == "s16" else {},
        join=group.spell("@vor_vv_$t({x}, {y}, $n)") if group.element == "s16" else "",
        **accesses(group, CONVERSIONS[group.element]),
    )


def _parts(group: Group) -> dict[str, tuple[str, ...]]:
    """Return the fields of the low bytes of lanes that have no other bits.

    A number of f4_e2m1 is ``(2 + its last bit) << (exponent - 1)`` halves, or its last bit if the
    exponent is 0. Its first bit is the sign.
    """

    def part(right: int, mask: int) -> str:
        moved = "{v}"
        if right:
            moved = f"@{'vsra' if right > 0 else 'vsll'}_vx_$t({{v}}, {abs(right)}, $n)"
        return f"@vand_vx_$t({moved}, {mask}, $n)"

    def looked_up(index: str) -> str:
        last = f"@vand_vx_$t({index}, 1, $n)"
        exponent = f"@vand_vx_$t(@vsra_vx_$t({index}, 1, $n), 3, $n)"
        normal = f"@vmin_vx_$t({exponent}, 1, $n)"
        digits = f"@vadd_vv_$t({last}, @vsll_vx_$t({normal}, 1, $n), $n)"
        shift = f"@vreinterpret_v_${{t}}_$u(@vsub_vv_$t({exponent}, {normal}, $n))"
        sign = f"@vrsub_vx_$t(@vand_vx_$t(@vsra_vx_$t({index}, 2, $n), 2, $n), 1, $n)"
        return f"@vmul_vv_$t(@vsll_vv_$t({digits}, {shift}, $n), {sign}, $n)"

    made = fields(part, looked_up)
    return {name: tuple(group.spell(text) for text in made[name]) for name in made}


def _same_bits(group: Group) -> str:
    """Return C that broadcasts the element at ``{p}`` as an integer with the same bits."""
    moved = group.of(moved_as(group.element))
    lanes = moved.spell("@vmv_v_x_$t(*({p}), $n)")
    return lanes if moved == group else group.spell(f"@vreinterpret_v_{moved.name}_$t({lanes})")


def _transpose(group: Group) -> dict[int, tuple[str, str]]:
    """Return transpositions by block size: one vector slides over every other block of another."""
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
    """Return the sum of lanes: a reduction leaves it in the first lane of a register."""
    one = Group(group.element, group.vlen // group.size, group.vlen).name
    if is_integer(group.element):
        spelling = "@vmv_x_s_ONE_WORD(@vredsum_vs_${t}_ONE({v}, @vmv_s_x_ONE(0, 1), $n))"
    else:
        spelling = "@vfmv_f_s_ONE_ELEMENT(@vfredusum_vs_${t}_ONE({v}, @vfmv_s_f_ONE(0, 1), $n))"
    word = f"i{group.size}"
    return group.spell(
        spelling.replace("ONE", one).replace("ELEMENT", group.element).replace("WORD", word)
    )


# --- one element alone --------------------------------------------------------------------------

_WHOLE = whole("mulw, addw")
_FIELDS = {
    name: tuple(f"(int16_t)({field})" for field in each) for name, each in _WHOLE.fields.items()
}
_PRODUCTS = tuple(
    replace(_WHOLE.muladd[0], mnemonic=mnemonic, x=x, y=y)
    for (x, y), mnemonic in (
        (("s16", "s16"), "vwmacc.vx"),
        *((pair, ways[0][0]) for pair, ways in _MIXED.items()),
    )
)


def _alone(element: str) -> Vector:
    """Return the vector of one 16-bit element."""
    signed = element == "s16"
    return Vector(
        name="scalar",
        element=element,
        lanes=1,
        ctype="int16_t" if signed else "uint16_t",
        load="*({p})",
        store="*({p}) = {v}",
        loads=dict.fromkeys(CONVERSIONS[element].widened, "*({p})"),
        fields=_FIELDS if signed else {},
        join="(int16_t)({x} | {y})" if signed else "",
    )


SINGLE = {
    "f32": replace(
        plain("f32", "fmadd.s"),
        loads={"bf16": "float_of_bits((int32_t)((uint32_t)*({p}) << 16))"},
    ),
    "f64": plain("f64", "fmadd.d"),
    "s32": replace(_WHOLE, muladd=(*_PRODUCTS, *_WHOLE.muladd)),
    "s64": wide("mul, add", ("s32",)),
    "s16": _alone("s16"),
    "u16": _alone("u16"),
}
