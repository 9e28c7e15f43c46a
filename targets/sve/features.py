"""Extensions of SVE: products of mixed signs, of bf16 and f16, and 2x2 blocks in each segment.

SVE itself has dot products of 8-bit integers, both signed or both unsigned. Semantics: Arm
Architecture Reference Manual. ``bfdot`` and ``bfmmla`` flush denormals, and round to odd between
their additions.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.target import Feature
from tilewright.isa.vector import MOST_ROWS, Factors, MulAdd, Numbers, Vector

from ..neon_words import BITS
from .integers import held, narrow, pairs
from .words import all_lanes, dots, first_lanes, seen_as, unsigned

Muladds = dict[tuple[str, str], tuple[MulAdd, ...]]


def _blocks(mnemonic: str, factors: Factors, product: str, lanes: int) -> tuple[MulAdd, ...]:
    """Return the multiply-add of a 2x2 block of C in each segment of 128 bits.

    A segment of ``y`` has a K group for each row of its block, a segment of ``x`` for each column.
    The result is empty if vectors are too long for the transposition of a square block in
    registers: B is packed for these blocks, and the same packed B must also work if the other
    dimension of C is contiguous.
    """
    if lanes >= MOST_ROWS:
        return ()
    depth, x, y = factors
    return (
        MulAdd(
            form="broadcast",
            mnemonic=mnemonic,
            spelling=product,
            rows=2,
            cols=lanes // 2,
            segments=lanes // 4,
            depth=depth,
            x=x,
            y=y,
        ),
    )


def _i8mm(lanes: int) -> Muladds:
    def mixed(lanes: int) -> tuple[MulAdd, ...]:
        return (
            *dots(
                "usdot",
                (4, "u8", "s8"),
                "svusdot_s32({acc}, {x}, {y})",
                "svusdot_lane_s32({acc}, {x}, {y}, {lane})",
                lanes,
            ),
            *dots(
                "sudot",
                (4, "s8", "u8"),
                "svusdot_s32({acc}, {y}, {x})",
                "svsudot_lane_s32({acc}, {x}, {y}, {lane})",
                lanes,
            ),
        )

    blocks = (
        *_blocks("smmla", (8, "s8", "s8"), "svmmla_s32({acc}, {y}, {x})", lanes),
        *_blocks("usmmla", (8, "s8", "u8"), "svusmmla_s32({acc}, {y}, {x})", lanes),
        *_blocks("ummla", (8, "u8", "u8"), unsigned("svmmla_u32({acc}, {y}, {x})"), lanes),
    )
    return {("z", "s32"): (*mixed(lanes), *blocks), ("scalar", "s32"): mixed(1)}


def _bf16(lanes: int) -> Muladds:
    def dot(lanes: int) -> tuple[MulAdd, ...]:
        return dots(
            "bfdot",
            (2, "bf16", "bf16"),
            "svbfdot_f32({acc}, {x}, {y})",
            "svbfdot_lane_f32({acc}, {x}, {y}, {lane})",
            lanes,
            element="f32",
        )

    blocks = _blocks("bfmmla", (4, "bf16", "bf16"), "svbfmmla_f32({acc}, {y}, {x})", lanes)
    return {("z", "f32"): (*dot(lanes), *blocks), ("scalar", "f32"): dot(1)}


#: Multiply-add of f16 pairs: it adds the products of odd elements, then those of even elements.
_FMLAL = "svmlalb_f32(svmlalt_f32({acc}, {x}, {y}), {x}, {y})"
_FMLAL_LANE = (
    "svmlalb_lane_f32(svmlalt_lane_f32({acc}, {x}, {y}, 2 * ({lane}) + 1), {x}, {y}, 2 * ({lane}))"
)


def _sve2(lanes: int) -> Muladds:
    floats = {
        (name, "f32"): dots(
            "fmlalt, fmlalb",
            (2, "f16", "f16"),
            _FMLAL,
            _FMLAL_LANE,
            count,
            element="f32",
            instructions=2,
        )
        for name, count in (("z", lanes), ("scalar", 1))
    }
    return floats | {(name, "s32"): pairs(count) for name, count in (("z", lanes), ("scalar", 1))}


def halves(element: str, nbytes: int, ctype: str) -> tuple[Vector, ...]:
    """Return the vector types of f16 or bf16; elements are loaded as u16 with the same bits."""
    load = f"svreinterpret_{element}_u16(svld1_u16({{lanes}}, {{p}}))"
    part = f"svreinterpret_{element}_s32(svdup_n_s32({BITS[32]}))"
    return held(element, nbytes, ctype, load, part)


def _looking_up(whole: Vector, *others: Vector) -> tuple[Vector, ...]:
    """Return the vector types of bf16; ``whole`` gets lookups in a table of 16 numbers.

    One register holds the low bytes of the 16 numbers, another register the high bytes.
    """
    every, bytes_ = all_lanes("u8"), seen_as("u8", "s16", "{v}")

    def found(low: int, bits: int) -> str:
        moved = f"svlsr_n_u8_x({every}, {bytes_}, {low})" if low else bytes_
        index = f"svand_n_u8_x({every}, {moved}, {(1 << bits) - 1})"
        halves = (f"svtbl_u8(svget2_u8({{table}}, {i}), {index})" for i in range(2))
        return seen_as("bf16", "u8", f"svtrn1_u8({', '.join(halves)})")

    numbers = "(const uint8_t *)(const int16_t[]){{{numbers}}}"
    found_in = {f"u{n}": tuple(found(low, n) for low in range(0, 8, n)) for n in (4, 2)}
    table = Numbers(
        f"svld2_u8({first_lanes('u8', '16')}, {numbers})", "s16", found_in, "svuint8x2_t"
    )
    store = f"svst1_u16({all_lanes('u16')}, {{p}}, {seen_as('u16', 'bf16', '{v}')})"
    return replace(whole, numbers=table, loads=_from_bytes(), store=store), *others


def _from_bytes() -> dict[str, str]:
    """Return C that loads 8-bit integers, converts them to f32, and then exactly to bf16."""
    every = all_lanes("f32")

    def load(way: str) -> str:
        words = seen_as("s32", "s16", f"svld1{way}_s16({all_lanes('s16')}, {{p}})")
        parts = f"svexth_s32_x({every}, {words})", f"svasr_n_s32_x({every}, {words}, 16)"
        even, odd = (f"svcvt_f32_s32_x({every}, {part})" for part in parts)
        return f"svcvtnt_bf16_f32_m(svcvt_bf16_f32_x({every}, {even}), {every}, {odd})"

    return {"s8": load("sb"), "u8": load("ub")}


def features(nbytes: int) -> dict[str, Feature]:
    """Return the features by name; a target's name lists them in this order.

    ``nbytes`` is the length of a vector in bytes.
    """
    lanes = nbytes // 4
    return {
        "sve2": Feature(
            title="SVE2 with products of f16 added to f32, of 16-bit integers to s32",
            cpu_flags=("sve2",),
            compiler_flags=("-march=armv8.2-a", "+sve2"),
            zig="+sve2",
            muladd=_sve2(lanes),
            vectors=(
                *halves("f16", nbytes, "svfloat16_t"),
                *narrow("s16", nbytes),
                *narrow("u16", nbytes),
            ),
        ),
        "i8mm": Feature(
            title="dot products of mixed signs and matrix products of 8-bit integers",
            cpu_flags=("svei8mm",),
            compiler_flags=("-march=armv8.2-a", "+i8mm"),
            zig="+i8mm",
            muladd=_i8mm(lanes),
        ),
        "bf16": Feature(
            title="dot and matrix products of bf16",
            cpu_flags=("svebf16",),
            compiler_flags=("-march=armv8.2-a", "+bf16"),
            zig="+bf16",
            muladd=_bf16(lanes),
            vectors=_looking_up(*halves("bf16", nbytes, "svbfloat16_t")),
        ),
    }
