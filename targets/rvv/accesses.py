"""Loads and stores of RISC-V V's vectors, with conversion of elements.

A mask is the number of active lanes, which are the first ones. A masked load copies the inactive
lanes from a register of zeros, unless they may hold any values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tilewright.isa.vector import Mask

from .words import Group

#: Kind of a load. It reads all lanes, or only the first ones. The other lanes are then zeros, or
#: hold any values.
_Lanes = Literal["all", "some and zeros", "some and anything"]


@dataclass(frozen=True, slots=True)
class Conversions:
    """C code that converts elements after a load or before a store, by the type in memory.

    ``widened`` converts the loaded vector ``{x}`` to the vector's type. ``narrowed`` converts the
    vector ``{v}`` to the type that is stored. f16 and bf16 are loaded and stored as u16.
    """

    widened: Mapping[str, str] = field(default_factory=dict)
    narrowed: Mapping[str, str] = field(default_factory=dict)

    def __or__(self, more: Conversions) -> Conversions:
        return Conversions({**self.widened, **more.widened}, {**self.narrowed, **more.narrowed})


_HALVES = "@vncvt_x_x_w_$s16({v}, $n)"
_SIGNED = "@vreinterpret_v_${u}_$t"
#: Loaded f64, with 0 in place of NaN, which the conversion to integers would make the largest one.
_NUMBERS = "@vfmerge_vfm_$f64({x}, 0, @vmfne_vv_${f64}_$b({x}, {x}, $n), $n)"
#: Loaded s64, clamped to the range of s32.
_CLAMPED = "@vmin_vx_$s64(@vmax_vx_$s64({x}, INT32_MIN, $n), INT32_MAX, $n)"
#: Conversions that need only V, not its extensions, by the element type of the vector.
CONVERSIONS = {
    "f32": Conversions(
        {
            "bf16": f"{_SIGNED}(@vsll_vx_$u(@vzext_vf2_$u({{x}}, $n), 16, $n))",
            "f64": "@vfncvt_f_f_w_$t({x}, $n)",
        },
        {"f64": "@vfwcvt_f_f_v_$f64({v}, $n)"},
    ),
    "f64": Conversions(
        {"f32": "@vfwcvt_f_f_v_$t({x}, $n)"}, {"f32": "@vfncvt_f_f_w_$f32({v}, $n)"}
    ),
    "s64": Conversions(),
    "s32": Conversions(
        {
            "s16": "@vsext_vf2_$t({x}, $n)",
            "s8": "@vsext_vf4_$t({x}, $n)",
            "u16": f"{_SIGNED}(@vzext_vf2_$u({{x}}, $n))",
            "u8": f"{_SIGNED}(@vzext_vf4_$u({{x}}, $n))",
            "s64": f"@vncvt_x_x_w_$t({_CLAMPED}, $n)",
            "f64": f"@vfncvt_x_f_w_$t({_NUMBERS}, $n)",
        },
        {
            "s64": "@vsext_vf2_$s64({v}, $n)",
            "f64": "@vfwcvt_f_x_v_$f64({v}, $n)",
            "s16": _HALVES,
            "u16": f"@vreinterpret_v_${{s16}}_$u16({_HALVES})",
            "s8": f"@vncvt_x_x_w_$s8({_HALVES}, $n)",
            "u8": f"@vreinterpret_v_${{s8}}_$u8(@vncvt_x_x_w_$s8({_HALVES}, $n))",
        },
    ),
    "s16": Conversions(
        {"s8": "@vsext_vf2_$t({x}, $n)", "u8": f"{_SIGNED}(@vzext_vf2_$u({{x}}, $n))"}
    ),
    "u16": Conversions({"u8": "@vzext_vf2_$t({x}, $n)"}),
    "f16": Conversions(),
    "bf16": Conversions(),
}


def accesses(group: Group, conversions: Conversions) -> dict[str, Any]:
    """Return the fields of ``Vector`` for loads and stores of all lanes, and of the first lanes."""
    store, stores = _store(group), _stores(group, conversions)
    return {
        "load": _load(group),
        "loads": _loads(group, conversions),
        "store": store,
        "stores": stores,
        "mask": _mask(group, conversions),
    }


def _mask(group: Group, conversions: Conversions) -> Mask:
    """Return the masked loads and stores.

    A masked load overwrites the first lanes of a copy of a register of zeros. The zeros and the
    copy need one register each.
    """
    mask = Mask(
        ctype="size_t",
        make="(size_t)({count})",
        load=_load(group, "some and zeros"),
        loads=_loads(group, conversions, "some and zeros"),
        store=_store(group, count="{mask}"),
        stores=_stores(group, conversions, "{mask}"),
        registers=0,
        zeros=2,
    )
    anything: _Lanes = "some and anything"
    loads = _loads(group, conversions, anything)
    return replace(mask, loose=replace(mask, load=_load(group, anything), loads=loads))


def _load(group: Group, lanes: _Lanes = "all") -> str:
    """Return C that loads the elements at ``{p}`` without conversion."""
    held = group.of(moved_as(group.element))
    if held != group:
        return group.spell(f"@vreinterpret_v_{held.name}_$t({_load(held, lanes)})")
    tail, zeros = "", ""
    if lanes == "some and zeros":
        zero = "@vfmv_v_f" if group.element[0] == "f" else "@vmv_v_x"
        tail, zeros = "_tu", f"{zero}_$t(0, $n), "
    count = "$n" if lanes == "all" else "{mask}"
    return group.spell(f"@vle{group.size}_v_${{t}}{tail}({zeros}{{p}}, {count})")


def _loads(group: Group, conversions: Conversions, lanes: _Lanes = "all") -> dict[str, str]:
    return {
        memory: group.spell(spelling).replace("{x}", _load(group.of(moved_as(memory)), lanes))
        for memory, spelling in conversions.widened.items()
    }


def _store(group: Group, value: str = "{v}", count: str = "$n") -> str:
    """Return C that stores the first ``count`` lanes of ``value`` to ``{p}``."""
    held = group.of(moved_as(group.element))
    if held != group:
        return _store(held, group.spell(f"@vreinterpret_v_${{t}}_{held.name}({value})"), count)
    return group.spell(f"@vse{group.size}_v_$t({{p}}, {value}, {count})")


def _stores(group: Group, conversions: Conversions, count: str = "$n") -> dict[str, str]:
    return {
        memory: _store(group.of(moved_as(memory)), group.spell(spelling), count)
        for memory, spelling in conversions.narrowed.items()
    }


def moved_as(element: str) -> str:
    """Return the type as which elements are loaded and stored, for example u16 for f16 and bf16."""
    return "u16" if element in ("f16", "bf16") else element
