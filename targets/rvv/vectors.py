"""RISC-V V's vectors of f32, f64, s32 and s64, those of 16-bit factors, and single elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Literal

from tilewright.isa.vector import TABLE, MulAdd, Numbers, Vector
from tilewright.spec.types import is_integer
from tilewright.targets.scalar import plain, whole, wide
from tilewright.targets.stored import fields

from ..stored import by_fields, in_memory
from .accesses import CONVERSIONS, accesses, moved_as
from .operations import OPERATIONS
from .words import Group

#: Names of the intrinsics that give the first lane as a C scalar.
_FIRST = {
    "f32": "@vfmv_f_s_${t}_f32",
    "f64": "@vfmv_f_s_${t}_f64",
    "s32": "@vmv_x_s_${t}_i32",
    "s64": "@vmv_x_s_${t}_i64",
}
#: Numbers of lanes with which a look-up in a table is faster than arithmetic: it takes one permute
#: for each part of the table that a vector holds, and in groups of registers a permute is slow.
_TABLES = (4, 8, 16, 32)
_MULTIPLY_ADD = {"f32": "vfmacc", "f64": "vfmacc", "s32": "vmacc", "s64": "vmacc"}


def forms(mnemonic: str, group: Group, factors: str = "") -> Iterator[MulAdd]:
    """Yield a multiply-add by a C scalar, and one by a vector, with sums in ``group``.

    The multiply-add of two vectors is for vectors along K. ``factors`` is the type of both factors,
    "" for the type of the sums. The intrinsic takes ``{y}`` first, because the C scalar must come
    before the vector.
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


#: Multiply-adds of 16-bit integers, by the types of both factors. For each pair: the mnemonic and
#: the spelling with a C scalar, then those with two vectors.
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
    """Yield the multiply-adds of 16-bit integers of which one or both are unsigned."""
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
    """Return the vector type for ``group``, whose elements are f32, f64, s32 or s64."""
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
        muladd=products,
        sum_lanes=_sum_lanes(group),
        ops=ops,
        transpose=_transpose(group),
        fill=group.spell("@vmv_v_v_${t}_tu({other}, {v}, {mask})"),
        first=group.spell(f"{_FIRST[element]}({{v}})"),
        down={
            block: group.spell(f"@vslidedown_vx_$t({{v}}, {block}, $n)") for block in _blocks(group)
        },
        numbers=_numbers(group) if element == "f32" and group.lanes in _TABLES else None,
        **accesses(group, CONVERSIONS[element]),
    )


def _numbers(group: Group) -> Numbers:
    """Return the lookup of f32 in a table of 16 numbers by the low four bits of each lane.

    A vector holds ``group.lanes`` numbers of the table. Indices beyond them select 0.
    """

    def found(low: int) -> str:
        code = "@vreinterpret_v_${i}_$u({v})"
        code = f"@vsrl_vx_$u({code}, {low}, $n)" if low else code
        code = f"@vand_vx_$u({code}, 15, $n)"
        count, parts = min(TABLE, group.lanes), []
        for first in range(0, TABLE, group.lanes):
            at = f"@vsub_vx_$u({code}, {first}, $n)" if first else code
            some = f"@vle32_v_$u({{table}} + {first}, {count})"
            parts.append(f"@vrgather_vv_$u({some}, {at}, $n)")
        joined = reduce(lambda x, y: f"@vor_vv_$u({x}, {y}, $n)", parts)
        return group.spell(f"@vreinterpret_v_${{u}}_$t({joined})")

    return in_memory("uint32_t", by_fields(found))


def held(group: Group) -> Vector:
    """Return the vector type for ``group``, whose 16-bit elements are only used as factors."""
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
    """Return ``Vector.fields``: C that extracts each bit field from the low byte of the lanes.

    The upper bits of the lanes must be 0. Numbers of f4_e2m1 are computed, in units of one half.
    Their highest bit is the sign, the next two bits are the exponent, the lowest bit is the
    mantissa. The magnitude is ``(2 + mantissa) << (exponent - 1)``, or ``mantissa`` if the exponent
    is 0.
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
    """Return C that broadcasts the element at ``{p}``; f16 and bf16 are read as u16."""
    moved = group.of(moved_as(group.element))
    lanes = moved.spell("@vmv_v_x_$t(*({p}), $n)")
    return lanes if moved == group else group.spell(f"@vreinterpret_v_{moved.name}_$t({lanes})")


def _blocks(group: Group) -> Iterator[int]:
    """Yield the sizes of blocks in lanes, from one lane to half of the lanes."""
    return (1 << i for i in range(group.lanes.bit_length() - 1))


def _transpose(group: Group) -> dict[int, tuple[str, str]]:
    """Return transpositions of two vectors, by the block size in lanes.

    One vector is shifted by a block, and overwrites every second block of the other.
    """
    found = {}
    for block in _blocks(group):
        odd, even = (
            f"@vms{test}_vx_${{u}}_$b(@vand_vx_$u(@vid_v_$u($n), {block}, $n), 0, $n)"
            for test in ("ne", "eq")
        )
        up = f"@vslideup_vx_${{t}}_mu({odd}, {{x}}, {{y}}, {block}, $n)"
        down = f"@vslidedown_vx_${{t}}_mu({even}, {{y}}, {{x}}, {block}, $n)"
        found[block] = group.spell(up), group.spell(down)
    return found


def _sum_lanes(group: Group) -> str:
    """Return C for the sum of all lanes of ``{v}``, as a C scalar.

    V's reduction leaves the sum in the first lane of a register.
    """
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
    """Return the vector type with one lane of s16 or u16, which is a C scalar."""
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
    "f32": plain(
        "f32",
        "fmadd.s",
        loads={"bf16": "float_of_bits((int32_t)((uint32_t)*({p}) << 16))"},
    ),
    "f64": plain("f64", "fmadd.d"),
    "s32": replace(_WHOLE, muladd=(*_PRODUCTS, *_WHOLE.muladd)),
    "s64": wide("mul, add", ("s32",)),
    "s16": _alone("s16"),
    "u16": _alone("u16"),
}
