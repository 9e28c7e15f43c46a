"""What the SVE vectors share: predicates, moves, and the exchange of blocks of any size.

Intrinsics know no length: all lanes are those of ``svptrue``, and so one spelling serves every
length. Only constants follow from it: how many lanes an ``svext`` goes, where a table ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from tilewright.isa.vector import Factors, Form, Mask, MulAdd

from .. import neon_words
from ..stored import fields, table

#: Bytes of an element.
SIZES = {
    "f64": 8, "s64": 8, "f32": 4, "s32": 4,
    "f16": 2, "bf16": 2, "s16": 2, "u16": 2, "s8": 1, "u8": 1,
}  # fmt: skip
#: The bytes that loads replicate in every segment of a vector, and the bits of a segment.
QUAD, SEGMENT = 16, 128
#: The registers of which products by element take one; those of f64 have twice as many.
PICKED = 7

Pair = tuple[str, str]


def all_lanes(element: str) -> str:
    """The predicate of every lane."""
    return f"svptrue_b{8 * SIZES[element]}()"


def first_lanes(element: str, count: str) -> str:
    """The predicate of the first ``count`` lanes."""
    return f"svwhilelt_b{8 * SIZES[element]}_s64(0, {count})"


def mask(
    element: str, loads: Mapping[str, str] | None = None, stores: Mapping[str, str] | None = None
) -> Mask:
    """Loads and stores of the first lanes; a predicate is no vector register.

    ``loads`` and ``stores`` are those of all lanes that convert.
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
    """An access of the lanes of a mask; what is computed with them is so in all lanes."""
    return re.sub(rf"(sv(?:ld|st)1\w*)\({re.escape(all_lanes(element))}", r"\1({mask}", access)


def seen_as(element: str, other: str, x: str) -> str:
    """``x``, of ``other``, with its bits seen as ``element``."""
    return x if element == other else f"svreinterpret_{element}_{other}({x})"


def filled(table: Mapping[str, str], **words: str) -> dict[str, str]:
    """The spellings of ``table`` with ``words`` filled in."""
    return {name: spelling.format(**words) for name, spelling in table.items()}


def parts(element: str) -> dict[str, tuple[str, ...]]:
    """Parts of bytes, and what they mean by a table."""
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
    """The bits of two registers."""
    return f"svorr_{element}_x({all_lanes(element)}, {{x}}, {{y}})"


def group(element: str) -> str:
    """A register full of the ``{bits}`` bits ``{x}``, as ``element``."""
    return f"svreinterpret_{element}_s{{bits}}(svdup_n_s{{bits}}((int{{bits}}_t)({{x}})))"


def first(element: str, x: str) -> str:
    """The first lane of a vector, as a C scalar."""
    return f"svlasta_{element}(svpfalse_b(), {x})"


def alone(product: str, element: str) -> str:
    """A product into the first lane of a vector, for an accumulator that is a C scalar."""
    return first(element, product.replace("{acc}", f"svdup_n_{element}({{acc}})"))


def transposes(element: str, lanes: int) -> dict[int, Pair]:
    """Block transpositions: neighbours by ``trn``, also as lanes of twice the size.

    Larger blocks are moved over each other, and chosen from by a predicate.
    """
    return {1 << i: _exchanged(element, lanes, 1 << i) for i in range(lanes.bit_length() - 1)}


def unzips(element: str) -> dict[int, Pair]:
    """The even or odd pairs of lanes of 32 bits of two registers."""
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
    """A product of u32 accumulators, on s32."""
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
    """A product of groups as large as a sum: by one group of each segment, and with one alike."""
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
    """One multiply-add in each form; that by lane takes one of ``lanes`` in each segment."""
    made = neon_words.forms(mnemonic, spellings, cols, factors=factors, instructions=instructions)
    return tuple(
        replace(op, lanes=lanes, within=PICKED) if op.form == "lane" else op for op in made
    )
