"""SVE's vectors of f32 and f64."""

from __future__ import annotations

from functools import reduce

from tilewright.isa.vector import TABLE, Numbers, Repeat, Spread, Vector

from ..scalar import plain
from ..stored import by_fields, in_memory
from .words import (
    QUAD,
    SIZES,
    all_lanes,
    filled,
    first,
    first_lanes,
    forms,
    mask,
    seen_as,
    some_lanes,
    unzips,
)

#: Elementary operations. ``{f}`` is the element type, ``{t}`` the predicate that is true for all
#: lanes.
_OPS = {
    "add": "svadd_{f}_x({t}, {{x}}, {{y}})",
    "sub": "svsub_{f}_x({t}, {{x}}, {{y}})",
    "mul": "svmul_{f}_x({t}, {{x}}, {{y}})",
    "div": "svdiv_{f}_x({t}, {{x}}, {{y}})",
    "sqrt": "svsqrt_{f}_x({t}, {{x}})",
    "min": "svsel_{f}(svcmplt_{f}({t}, {{x}}, {{y}}), {{x}}, {{y}})",
    "max": "svsel_{f}(svcmpgt_{f}({t}, {{x}}, {{y}}), {{x}}, {{y}})",
    "abs": "svabs_{f}_x({t}, {{x}})",
    "neg": "svneg_{f}_x({t}, {{x}})",
    "fma": "svmla_{f}_x({t}, {{z}}, {{x}}, {{y}})",
}
_SINGLE_OPS = {
    "round": "svrintn_f32_x({t}, {{x}})",
    "to_s32": "svcvt_s32_f32_x({t}, svrintn_f32_x({t}, {{x}}))",
    "bits": "svreinterpret_s32_f32({{x}})",
}


def _ops(element: str) -> dict[str, str]:
    """Return the elementary operations on ``element``.

    A comparison sets all bits of a lane if it is true. Its result is a vector of s32 for f32, and
    of f64 for f64.
    """
    everywhere, size = all_lanes(element), 8 * SIZES[element]
    held = "s32" if element == "f32" else "f64"
    ops = filled(_OPS | (_SINGLE_OPS if element == "f32" else {}), f=element, t=everywhere)
    for op in ("lt", "le", "eq"):
        test = f"svcmp{op}_{element}({everywhere}, {{x}}, {{y}})"
        ops[op] = seen_as(held, f"s{size}", f"svdup_n_s{size}_z({test}, -1)")
    chosen = f"svcmpne_n_s{size}({everywhere}, {seen_as(f's{size}', held, '{x}')}, 0)"
    return ops | {"select": f"svsel_{element}({chosen}, {{y}}, {{z}})"}


_ALL = all_lanes("f32")


def _halves(bits: str) -> str:
    """Return C that converts the f16 in the lower half of each 32-bit lane of ``bits`` to f32."""
    return f"svcvt_f32_f16_x({_ALL}, svreinterpret_f16_u32({bits}))"


def _shifted(count: int, bits: str) -> str:
    return f"svlsl_n_u32_x({_ALL}, {bits}, {count})"


_WORDS, _OCTETS = f"svld1uh_u32({_ALL}, {{p}})", f"svld1ub_u32({_ALL}, {{p}})"
#: Loads that convert other types to f32. bf16 is the upper half of an f32, f8_e5m2 that of an f16.
_LOADS = {
    "f16": _halves(_WORDS),
    "bf16": f"svreinterpret_f32_u32({_shifted(16, _WORDS)})",
    "f8_e5m2": _halves(_shifted(8, _OCTETS)),
}
#: Broadcast of one 16-bit element to all 16-bit lanes. Each 32-bit lane then holds two copies, of
#: which a conversion to f32 uses one.
_EVERY = "svreinterpret_u32_u16(svdup_n_u16(*({p})))"
_SPREADS = {
    "f16": _halves(_EVERY),
    "bf16": f"svreinterpret_f32_u32(svand_n_u32_x({_ALL}, {_EVERY}, 0xffff0000))",
    "f8_e5m2": _halves(_shifted(8, "svdup_n_u32(*({p}))")),
}
_STORES = {
    "f16": f"svst1h_u32({_ALL}, {{p}}, svreinterpret_u32_f16(svcvt_f16_f32_x({_ALL}, {{v}})))"
}


#: Conversions of f64 compute in the even 32-bit lanes of two vectors.
_DOUBLE = all_lanes("f64")


def _doubles(lanes: int) -> tuple[str, str]:
    """Return C that loads f64 as ``lanes`` f32, and C that stores these as f64."""
    places = "{p}", f"({{p}}) + {lanes // 2}"
    halves = (f"svcvt_f32_f64_x({_DOUBLE}, svld1_f64({_DOUBLE}, {p}))" for p in places)
    stores = (
        f"svst1_f64({_DOUBLE}, {p}, svcvt_f64_f32_x({_DOUBLE}, svzip{half}_f32({{v}}, {{v}})))"
        for half, p in enumerate(places, 1)
    )
    return f"svuzp1_f32({', '.join(halves)})", ", ".join(stores)


#: Loads and stores of f32 as f64, which are in the lower half of each 64-bit lane.
_SINGLES = (
    f"svcvt_f64_f32_x({_DOUBLE}, svreinterpret_f32_u64("
    f"svld1uw_u64({_DOUBLE}, (const uint32_t *)({{p}}))))"
)
_ROUNDED = (
    f"svst1w_u64({_DOUBLE}, (uint32_t *)({{p}}), "
    f"svreinterpret_u64_f32(svcvt_f32_f64_x({_DOUBLE}, {{v}})))"
)


_NARROWED = f"svreinterpret_u16_f16(svcvt_f16_f32_x({_ALL}, svdup_n_f32({{v}})))"


def floats(element: str, nbytes: int) -> tuple[Vector, ...]:
    """Return the vector types of f32 or f64: one fills a register, one is a C scalar."""
    if element == "f64":
        return _whole(element, nbytes), plain(element, "fmadd")
    loads = {name: first("f32", _SPREADS[name]) for name in ("f16", "bf16")}
    stores = {"f16": f"*({{p}}) = {first('u16', _NARROWED)}"}
    return _whole(element, nbytes), plain(element, "fmadd", loads, stores)


def _whole(element: str, nbytes: int) -> Vector:
    lanes, quad = nbytes // SIZES[element], QUAD // SIZES[element]
    everywhere = all_lanes(element)
    single = element == "f32"
    load, store = _doubles(lanes)
    loads, stores = (_LOADS, _STORES) if single else ({"f32": _SINGLES}, {"f32": _ROUNDED})
    return Vector(
        name="z",
        element=element,
        lanes=lanes,
        ctype=f"svfloat{8 * SIZES[element]}_t",
        zero=f"svdup_n_{element}(0)",
        load=f"svld1_{element}({everywhere}, {{p}})",
        store=f"svst1_{element}({everywhere}, {{p}}, {{v}})",
        broadcast=f"svdup_n_{element}(*({{p}}))",
        splat=f"svdup_n_{element}({{x}})",
        muladd=forms(
            f"fmla z.{'s' if single else 'd'}",
            {
                "broadcast": f"svmla_{element}_x({everywhere}, {{acc}}, {{x}}, {{y}})",
                "lane": f"svmla_lane_{element}({{acc}}, {{x}}, {{y}}, {{lane}})",
            },
            lanes,
            lanes=quad,
        ),
        sum_lanes=f"svaddv_{element}({everywhere}, {{v}})",
        loads={**loads, "f64": load} if single else loads,
        spreads={name: Spread(how, 1 + (name == "f8_e5m2")) for name, how in _SPREADS.items()}
        if single
        else {},
        repeats={element: Repeat(quad, f"svld1rq_{element}({everywhere}, {{p}})")},
        stores={**stores, "f64": store} if single else stores,
        ops=_ops(element),
        mask=mask(element, loads, stores),
        **some_lanes(element, lanes),
        unzip=unzips(element) if single else {},
        numbers=_numbers(lanes) if single else None,
    )


def _numbers(lanes: int) -> Numbers:
    """Return the lookup of f32 in a table of 16 numbers by the low four bits of each lane.

    A register holds ``lanes`` numbers of the table. Indices beyond them select 0.
    """
    every = all_lanes("s32")

    def found(low: int) -> str:
        code = "svreinterpret_u32_s32({v})"
        code = f"svlsr_n_u32_x({every}, {code}, {low})" if low else code
        code = f"svand_n_u32_x({every}, {code}, 15)"
        parts = []
        for first_ in range(0, TABLE, lanes):
            some = first_lanes("s32", str(TABLE)) if lanes > TABLE else every
            at = f"svsub_n_u32_x({every}, {code}, {first_})" if first_ else code
            parts.append(f"svtbl_u32(svld1_u32({some}, {{table}} + {first_}), {at})")
        joined = reduce(lambda x, y: f"svorr_u32_x({every}, {x}, {y})", parts)
        return f"svreinterpret_f32_u32({joined})"

    return in_memory("uint32_t", by_fields(found))
