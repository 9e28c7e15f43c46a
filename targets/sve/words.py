"""Shared parts of the SVE vectors: predicates, moves, and the exchange of blocks of any size.

Intrinsics do not depend on the length of vectors: ``svptrue`` selects all lanes. Only constants
depend on the length, for example the distance of an ``svext`` and the end of a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.isa.vector import Factors, Form, Mask, MulAdd

from .. import neon_words
from ..stored import fields, table

#: Bytes of an element, by type.
SIZES = {
    "f64": 8, "s64": 8, "f32": 4, "s32": 4,
    "f16": 2, "bf16": 2, "s16": 2, "u16": 2, "s8": 1, "u8": 1,
}  # fmt: skip
#: A segment of a vector, in bytes and in bits. ``svld1rq`` loads a segment, and repeats it.
QUAD, SEGMENT = 16, 128
#: Number of registers that kernels use for factors that are indexed by lane. The instructions can
#: encode only the first registers there: 8 of them, or 16 for f64.
PICKED = 7

Pair = tuple[str, str]


def all_lanes(element: str) -> str:
    """Return C for a predicate that is true for all lanes, for example ``svptrue_b32()``."""
    return f"svptrue_b{8 * SIZES[element]}()"


def first_lanes(element: str, count: str) -> str:
    """Return C for the predicate that is true for the first ``count`` lanes of ``element``."""
    return f"svwhilelt_b{8 * SIZES[element]}_s64(0, {count})"


def mask(
    element: str, loads: Mapping[str, str] | None = None, stores: Mapping[str, str] | None = None
) -> Mask:
    """Return loads and stores of the first lanes by a predicate, which takes no vector register.

    ``loads`` and ``stores`` are the spellings that access all lanes and convert them, by the type
    in memory.
    """
    return Mask(
        ctype="svbool_t",
        make=first_lanes(element, "{count}"),
        load=f"svld1_{element}({{mask}}, {{p}})",
        store=f"svst1_{element}({{mask}}, {{p}}, {{v}})",
        registers=0,
        loads={name: _masked(how, element) for name, how in (loads or {}).items()},
        stores={name: _masked(how, element) for name, how in (stores or {}).items()},
    )


def _masked(access: str, element: str) -> str:
    """Return ``access`` with its loads and stores limited to ``{mask}``.

    The conversions in it still compute all lanes.
    """
    return re.sub(rf"(sv(?:ld|st)1\w*)\({re.escape(all_lanes(element))}", r"\1({mask}", access)


def seen_as(element: str, other: str, x: str) -> str:
    """Return C that reinterprets the bits of ``x``, a vector of ``other``, as ``element``."""
    return x if element == other else f"svreinterpret_{element}_{other}({x})"


def filled(table: Mapping[str, str], **words: str) -> dict[str, str]:
    """Return the spellings of ``table`` with ``words`` filled in."""
    return {name: spelling.format(**words) for name, spelling in table.items()}


def parts(element: str) -> dict[str, tuple[str, ...]]:
    """Return ``Vector.fields``: C that extracts each bit field from the bytes of ``{v}``.

    A field of type f4_e2m1 selects one of 16 numbers in a table.
    """
    every = all_lanes("u8")
    numbers = f"svdupq_n_u8({', '.join(map(str, table(unsigned=element == 'u8')))})"

    def part(right: int, mask: int) -> str:
        moved = bytes_ = seen_as("u8", element, "{v}")
        if right:
            shift = "lsr" if right > 0 else "lsl"
            moved = f"sv{shift}_n_u8_x({every}, {bytes_}, {abs(right)})"
        return f"svand_n_u8_x({every}, {moved}, {mask})"

    made = fields(part, lambda index: f"svtbl_u8({numbers}, {index})")
    return {name: tuple(seen_as(element, "u8", x) for x in made[name]) for name in made}


def join(element: str) -> str:
    """Return C for the bitwise or of the vectors ``{x}`` and ``{y}``."""
    return f"svorr_{element}_x({all_lanes(element)}, {{x}}, {{y}})"


def group(element: str) -> str:
    """Return C that repeats the low ``{bits}`` bits of the integer ``{x}`` through a register."""
    return f"svreinterpret_{element}_s{{bits}}(svdup_n_s{{bits}}((int{{bits}}_t)({{x}})))"


def first(element: str, x: str) -> str:
    """Return C that gives the first lane of the vector ``x`` as a C scalar."""
    return f"svlasta_{element}(svpfalse_b(), {x})"


def some_lanes(element: str, lanes: int) -> dict[str, Any]:
    """Return the fields of ``Vector`` that select or move lanes of a vector of ``element``."""
    steps = (1 << i for i in range(lanes.bit_length() - 1))
    return {
        "fill": f"svsel_{element}({{mask}}, {{v}}, {{other}})",
        "first": first(element, "{v}"),
        "down": {step: f"svext_{element}({{v}}, {{v}}, {step})" for step in steps},
        "transpose": transposes(element, lanes),
    }


def alone(product: str, element: str) -> str:
    """Return C that computes ``product`` in a vector, but takes and gives a C scalar sum."""
    return first(element, product.replace("{acc}", f"svdup_n_{element}({{acc}})"))


def transposes(element: str, lanes: int) -> dict[int, Pair]:
    """Return transpositions of two vectors, by the block size in lanes.

    Blocks of one lane are exchanged by ``trn``, and blocks of 64 bits by ``trn`` on 64-bit lanes.
    For larger blocks, one vector is shifted by a block, and a predicate selects lanes of both.
    """
    return {1 << i: _exchanged(element, lanes, 1 << i) for i in range(lanes.bit_length() - 1)}


def unzips(element: str) -> dict[int, Pair]:
    """Return C that gives the even 64-bit pairs of lanes of two vectors, and C for the odd ones."""
    x, y = (seen_as("f64", element, f"{{{v}}}") for v in "xy")
    even, odd = (seen_as(element, "f64", f"svuzp{i}_f64({x}, {y})") for i in (1, 2))
    return {2: (even, odd)}


def _exchanged(element: str, lanes: int, block: int) -> Pair:
    if block == 1:
        return f"svtrn1_{element}({{x}}, {{y}})", f"svtrn2_{element}({{x}}, {{y}})"
    if block * SIZES[element] == 8:
        x, y = (seen_as("f64", element, f"{{{v}}}") for v in "xy")
        even, odd = (seen_as(element, "f64", f"svtrn{i}_f64({x}, {y})") for i in (1, 2))
        return even, odd
    bits = 8 * SIZES[element]
    place = f"svand_n_u{bits}_x({all_lanes(element)}, svindex_u{bits}(0, 1), {block})"
    even = f"svcmpeq_n_u{bits}({all_lanes(element)}, {place}, 0)"
    up = f"svext_{element}({{y}}, {{y}}, {lanes - block})"
    down = f"svext_{element}({{x}}, {{x}}, {block})"
    return f"svsel_{element}({even}, {{x}}, {up})", f"svsel_{element}({even}, {down}, {{y}})"


def unsigned(product: str) -> str:
    """Return ``product``, which sums in u32, with casts that make its accumulator s32."""
    acc = "svreinterpret_u32_s32({acc})"
    return f"svreinterpret_s32_u32({product.replace('{acc}', acc)})"


def dots(
    mnemonic: str,
    factors: Factors,
    broadcast: str,
    lane: str,
    lanes: int,
    *,
    element: str = "s32",
    instructions: int = 1,
) -> tuple[MulAdd, ...]:
    """Return multiply-adds whose lanes each sum the products of one K group.

    ``broadcast`` and ``lane`` are C expressions. In ``broadcast``, all groups of the second factor
    are equal. In ``lane``, the second factor is one group of each segment. ``lanes`` is the number
    of sums.
    """
    spellings: dict[Form, str] = {"broadcast": broadcast, "lane": lane}
    if lanes == 1:
        spellings = {"broadcast": alone(broadcast, element)}
    each = QUAD // SIZES[element]
    return forms(mnemonic, spellings, lanes, factors=factors, lanes=each, instructions=instructions)


def forms(
    mnemonic: str,
    spellings: Mapping[Form, str],
    cols: int,
    *,
    factors: Factors = (1, "", ""),
    lanes: int = 0,
    instructions: int = 1,
) -> tuple[MulAdd, ...]:
    """Return one multiply-add for each form in ``spellings``.

    The form ``lane`` selects one of the ``lanes`` groups of a segment.
    """
    made = neon_words.forms(mnemonic, spellings, cols, factors=factors, instructions=instructions)
    return tuple(
        replace(op, lanes=lanes, within=PICKED) if op.form == "lane" else op for op in made
    )
