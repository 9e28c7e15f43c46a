"""SVE's vectors of s32, and of the 8-bit integers, of which a lane sums four products.

With SVE2, and in SME's streaming mode, a lane can also sum two products of 16-bit integers.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.vector import MulAdd, Repeat, Vector

from ..neon_words import BITS
from ..scalar import whole
from .wide import store_widened
from .words import (
    QUAD,
    SIZES,
    all_lanes,
    dots,
    filled,
    first_lanes,
    forms,
    group,
    join,
    mask,
    parts,
    some_lanes,
    unsigned,
    unzips,
)

_ALL = all_lanes("s32")
_OPS = filled(
    {
        **{op: f"sv{op}_s32_x({{t}}, {{{{x}}}}, {{{{y}}}})" for op in ("add", "sub", "mul")},
        **{op: f"sv{op}_s32_x({{t}}, {{{{x}}}}, {{{{y}}}})" for op in ("min", "max", "and")},
        "or": "svorr_s32_x({t}, {{x}}, {{y}})",
        "xor": "sveor_s32_x({t}, {{x}}, {{y}})",
        "shl": "svlsl_n_s32_x({t}, {{x}}, {{y}})",
        "shr": "svasr_s32_x({t}, {{x}}, svdup_n_u32({{y}}))",
        "ushr": (
            "svreinterpret_s32_u32(svlsr_u32_x({t}, svreinterpret_u32_s32({{x}}), "
            "svdup_n_u32({{y}})))"
        ),
        **{
            op: f"svdup_n_s32_z(svcmp{op}_s32({{t}}, {{{{x}}}}, {{{{y}}}}), -1)"
            for op in ("lt", "eq", "gt")
        },
        "to_f32": "svcvt_f32_s32_x({t}, {{x}})",
        "float": "svreinterpret_f32_s32({{x}})",
        "select": "svsel_s32(svcmpne_n_s32({t}, {{x}}, 0), {{y}}, {{z}})",
    },
    t=_ALL,
)


# --- products -----------------------------------------------------------------------------


def _products(lanes: int) -> tuple[MulAdd, ...]:
    return (
        *dots(
            "sdot",
            (4, "s8", "s8"),
            "svdot_s32({acc}, {x}, {y})",
            "svdot_lane_s32({acc}, {x}, {y}, {lane})",
            lanes,
        ),
        *dots(
            "udot",
            (4, "u8", "u8"),
            unsigned("svdot_u32({acc}, {x}, {y})"),
            unsigned("svdot_lane_u32({acc}, {x}, {y}, {lane})"),
            lanes,
        ),
    )


def pairs(lanes: int) -> tuple[MulAdd, ...]:
    """Return the multiply-adds of 16-bit pairs into ``lanes`` sums of s32.

    The products of even elements are added first, then those of odd elements.
    """
    return (*_long("s16", lanes), *_long("u16", lanes))


def _long(element: str, lanes: int) -> tuple[MulAdd, ...]:
    sign = element[0]
    wide = f"{sign}32"
    even, odd = (f"svmlal{half}_{{way}}{wide}" for half in "bt")
    broadcast = f"{odd}({even}({{{{acc}}}}, {{{{x}}}}, {{{{y}}}}), {{{{x}}}}, {{{{y}}}})"
    lane = (
        f"{odd}({even}({{{{acc}}}}, {{{{x}}}}, {{{{y}}}}, 2 * ({{{{lane}}}})), "
        "{{x}}, {{y}}, 2 * ({{lane}}) + 1)"
    )
    spelled = (broadcast.format(way=""), lane.format(way="lane_"))
    spelled = spelled if sign == "s" else (unsigned(spelled[0]), unsigned(spelled[1]))
    mnemonic = f"{sign}mlalb, {sign}mlalt"
    return dots(mnemonic, (2, element, element), *spelled, lanes, instructions=2)


# --- vectors ------------------------------------------------------------------------------

_LOADS = {
    "s8": f"svld1sb_s32({_ALL}, {{p}})",
    "u8": f"svld1ub_s32({_ALL}, {{p}})",
    "s16": f"svld1sh_s32({_ALL}, {{p}})",
    "u16": f"svld1uh_s32({_ALL}, {{p}})",
}
_STORES = {
    "s8": f"svst1b_s32({_ALL}, {{p}}, {{v}})",
    "u8": f"svst1b_s32({_ALL}, (int8_t *)({{p}}), {{v}})",
    "s16": f"svst1h_s32({_ALL}, {{p}}, {{v}})",
    "u16": f"svst1h_s32({_ALL}, (int16_t *)({{p}}), {{v}})",
}


def _doubles(lanes: int) -> tuple[str, str]:
    """Return C that loads f64 as ``lanes`` s32, rounded, and C that stores these as f64.

    The conversions saturate. They compute in the even 32-bit lanes of two vectors.
    """
    every, places = all_lanes("f64"), ("{p}", f"({{p}}) + {lanes // 2}")
    found = (f"svrintn_f64_x({every}, svld1_f64({every}, {p}))" for p in places)
    halves = (f"svcvt_s32_f64_x({every}, {x})" for x in found)
    stores = (
        f"svst1_f64({every}, {p}, svcvt_f64_s32_x({every}, svzip{half}_s32({{v}}, {{v}})))"
        for half, p in enumerate(places, 1)
    )
    return f"svuzp1_s32({', '.join(halves)})", ", ".join(stores)


def sums(nbytes: int) -> tuple[Vector, ...]:
    """Return the vector types of s32: one fills a register of ``nbytes``, one is a C scalar."""
    lanes, one = nbytes // 4, whole("madd")
    load, store = _doubles(lanes)
    return (
        Vector(
            name="z",
            element="s32",
            lanes=lanes,
            ctype="svint32_t",
            zero="svdup_n_s32(0)",
            load=f"svld1_s32({_ALL}, {{p}})",
            store=f"svst1_s32({_ALL}, {{p}}, {{v}})",
            broadcast="svdup_n_s32(*({p}))",
            splat="svdup_n_s32({x})",
            muladd=(
                *_products(lanes),
                *forms(
                    "mla z.s", {"broadcast": f"svmla_s32_x({_ALL}, {{acc}}, {{x}}, {{y}})"}, lanes
                ),
            ),
            sum_lanes=f"(int32_t)svaddv_s32({_ALL}, {{v}})",
            loads={**_LOADS, "f64": load},
            stores={**_STORES, "s64": store_widened(nbytes), "f64": store},
            ops=_OPS,
            mask=mask("s32", _LOADS, _STORES),
            **some_lanes("s32", lanes),
            unzip=unzips("s32"),
        ),
        replace(one, muladd=(*_products(1), *one.muladd)),
    )


def narrow(element: str, nbytes: int) -> tuple[Vector, ...]:
    """Return the vector types of 8-bit or 16-bit integers: one fills a register, one has 32 bits.

    For 16-bit integers, there is also a vector with four elements. The vector that fills a register
    can then be loaded from u8.
    """
    ctype = f"sv{'int' if element[0] == 's' else 'uint'}{8 * SIZES[element]}_t"
    load = f"svld1_{element}({{lanes}}, {{p}})"
    part = f"svreinterpret_{element}_s32(svdup_n_s32({BITS[32]}))"
    whole, one = held(element, nbytes, ctype, load, part)
    four = f"svreinterpret_{element}_s64(svdup_n_s64({BITS[64]}))"
    if SIZES[element] == 1:
        return whole, one
    whole = replace(whole, loads={"u8": f"svld1ub_{element}({all_lanes(element)}, {{p}})"})
    return whole, replace(one, name="d", lanes=4, load=four), one


def factors(element: str, nbytes: int) -> tuple[Vector, ...]:
    """Return the vector types of ``narrow``, with operations that unpack low-bit numbers."""
    made = narrow(element, nbytes)
    return tuple(replace(vector, fields=parts(element), join=join(element)) for vector in made)


def held(element: str, nbytes: int, ctype: str, load: str, part: str) -> tuple[Vector, ...]:
    """Return two vector types that only hold factors: one fills a register, one has 32 bits.

    ``load`` is the C code of a load with the predicate ``{lanes}``. ``part`` is that of a load of
    32 bits.
    """
    lanes = nbytes // SIZES[element]

    def vector(name: str, lanes: int, whole: str) -> Vector:
        return Vector(
            name=name, element=element, lanes=lanes, ctype=ctype, load=whole, group=group(element)
        )

    everywhere = load.replace("{lanes}", all_lanes(element))
    quad = everywhere.replace("svld1_", "svld1rq_")
    first = {n: load.replace("{lanes}", first_lanes(element, str(n))) for n in range(1, lanes)}
    return (
        replace(
            vector("z", lanes, everywhere),
            repeats={element: Repeat(QUAD // SIZES[element], quad)},
            partial_load=first,
        ),
        vector("s", 4 // SIZES[element], part),
    )
