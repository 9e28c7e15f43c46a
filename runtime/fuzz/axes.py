"""The properties (axes) of random batch-reduce products, and the values that are tried for each.

An axis is, for example, ``m``. The values of an axis are called its levels. Over many cases, the
levels occur equally often. Their order depends only on the seed and the axis, so a case is the same
on every machine and target. A level without a meaning in a case is left out, for example a zero
point of a floating-point product.

Combinations that ``Gemm`` or ``Schedule`` refuses are left out too:

- a packed B with a size known only at the call;
- sums in f64 with C, D, operands or functions of another type;
- sums in s64 with fractions, scales, zero points, expressions, or a D of another type;
- a batch by offsets if no array of the call shows a size, and a batch of 0 addresses;
- zero points of an A of integers, if B is floating point and packed;
- loops over m or n outside of the batch loop, if B is low-bit and found by addresses;
- vectors along K, if operands are converted, or if both have K as their slow dimension;
- an uneven register tile, if a size of C is known only at the call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.errors import SpecError
from tilewright.spec import postops
from tilewright.spec.expression import REGISTRY, PostOp, acc
from tilewright.spec.expression.checks import check_functions
from tilewright.spec.types import INPUTS, is_integer

Level = Any
#: Values of the axes m, n and k that mean a run-time size. With ``EIGHTS`` it is a multiple of 8.
RUN_TIME, EIGHTS = "run time", "run time, eights"
NONE = None
_INTEGERS = tuple((a, b) for a in ("s8", "u8") for b in ("s8", "u8"))
_WORDS = (
    *((a, b) for a in ("s16", "u16") for b in ("s16", "u16")),
    ("s16", "s8"), ("u8", "s16"),
)  # fmt: skip
_FLOATS = tuple((name, name) for name in INPUTS if not is_integer(name))
_MIXED = (
    *(("f32", name) for name in ("f16", "bf16", "f8_e4m3", "f8_e5m2")),
    ("bf16", "f32"), ("f16", "bf16"), ("bf16", "f8_e4m3"), ("f8_e4m3", "f8_e5m2"),
)  # fmt: skip


def _tried() -> Iterator[tuple[str, PostOp, tuple[float, ...]]]:
    """Yield each post-op of one value with sample parameters: name on the axis, post-op, sample."""
    for name in postops.NAMES:
        entry = REGISTRY.get(name)
        if entry is not None and len(entry.operands) == 1:
            for values in entry.samples:
                yield " ".join([name, *(f"{value:g}" for value in values)]), entry, values


def _has_f64(name: str, values: tuple[float, ...]) -> bool:
    try:
        check_functions(getattr(postops, name)(acc, *values), "f64")
    except SpecError:
        return False
    return True


_TRIED = tuple(_tried())
#: Post-ops of one value: for each value of the axis "eltwise", the post-op's name and parameters.
ELTWISE = {level: (entry.name, values) for level, entry, values in _TRIED}
#: Values of the axis "eltwise" whose post-ops are nearly linear for large arguments. Large sums
#: test such post-ops well.
STRAIGHT = frozenset(level for level, entry, _ in _TRIED if entry.straight)
#: Values of the axis "eltwise" whose post-ops can be computed in f64.
REAL = frozenset(level for level, entry, values in _TRIED if _has_f64(entry.name, values))
#: Names of the operators and functions of two values that are tried, and of the choice ``where``.
BINARY = (
    *(name for name, entry in REGISTRY.items() if len(entry.operands) == 2 and not entry.own),
    "where",
)
#: Register tiles that fit every target, by their names on the axis "schedule". On no target do they
#: consist of whole vectors.
TILES = {"tile 3x3": (3, 3), "tile 1x7": (1, 7), "tile 2x5": (2, 5)}
#: Value of the axes "alpha" and "beta": a factor so small that it is the smallest positive number
#: of its type, or rounds to 0.
SMALLEST = "smallest"
#: Values of the axis "tree" that mean an epilogue that does not read the product's sums.
WITHOUT_SUMS = ("operand alone", "function of an operand", "old value alone", "a number")
#: Names of operands that Python's or C's libraries, or the generated C, use for something else.
NAMES = ("int64_t", "INT64_MAX", "main", "sums", "m", "i", "mask", "c0_0", "new_")

#: Low-bit formats of B: type of the elements, type of the scales, zero point, length of a block.
QUANTIZED = (
    ("u4", "f16", 8, 32), ("u4", "f16", "u4", 128), ("s4", "f32", "f16", 24), ("s8", "bf16", 0, 40),
    ("u8", "f32", "u8", 64), ("u2", "f16", "bf16", 16), ("f4_e2m1", "e8m0", 0, 32),
    ("f4_e2m1", "f8_e4m3", 0, 16), ("s8", "f32", 0, None), ("u4", "f16", "f16", (32, 48)),
    ("f8_e4m3", "f32", 0, (128, 128)), ("u5", "f16", 16, 40), ("s6", "f32", "f16", 16),
    ("u3", "bf16", "u3", None),
)  # fmt: skip
#: How A is given to a product of integers with a low-bit B: quantized with scales and zero points,
#: or as integers of s8 or u8.
QUANTIZED_A = (
    "blocks", "rows", "blocks and zeros", "rows and zeros", "s8", "u8", "s8 and scales",
    "u8 and scales",
)  # fmt: skip

#: All axes with their values. A value that is listed twice is tried twice as often.
AXES: dict[str, tuple[Level, ...]] = {
    "m": (0, 1, 13, 16, 32, 42, 48, 64, 128, RUN_TIME, EIGHTS),
    "n": (0, 1, 5, 8, 15, 16, 32, 48, 64, 80, RUN_TIME, EIGHTS),
    "k": (
        0, 1, 2, 4, 5, 8, 15, 16, 31, 32, 33, 48, 63, 64, 65, 96, 97, 128, 129, 136, 192, 256, 448,
        512, 608, RUN_TIME, EIGHTS,
    ),
    "types": (*_INTEGERS, *_INTEGERS, *_WORDS, *_FLOATS, *_MIXED),
    "mixed": (*[NONE] * 10, ("a", "u8"), ("a", "s8"), ("b", "s8"), ("b", "s16")),
    "math": (NONE, NONE, NONE, "bf16 always"),
    "c": (NONE, NONE, "f16", "bf16"),
    "sums": (NONE, NONE, "f16", "f32", 16, 64),
    "sums of integers": (NONE, NONE, NONE, "s64"),
    "d": (
        NONE, NONE, "f32", "f16", "bf16", "s32", "s8", "u8", "s8", "u8", "s16", "u16", "f8_e4m3",
        "f8_e5m2",
    ),
    **dict.fromkeys(("order of a", "order of b", "order of c", "order of d"), ("C", "F")),
    "packed b": (NONE, NONE, "one block", 16, 32, 48, 64),
    "quantized b": (*[NONE] * 4, *QUANTIZED),
    "quantized a": (NONE, *QUANTIZED_A),
    "batch": (
        NONE, NONE, "strided", "along k", "apart", "one a", "one b", "offsets", "static offsets",
        "addresses", "stack", "stack apart",
    ),
    "count": (0, 1, 7, 16, RUN_TIME),
    "alpha": (1, 1, 2, 2, -1, 0.5, 0, "scalar", SMALLEST),
    "beta": (0, 0, 0, 1, 1, 1, -2, 0.5, "scalar", SMALLEST),
    **dict.fromkeys(("lda", "ldc", "ldd"), (NONE, NONE, 96, RUN_TIME)),
    "ldb": (NONE, 16, 16, 96, RUN_TIME),
    "a_scale": (NONE, NONE, 0.5, "scalar", "row"),
    "b_scale": (NONE, NONE, 0.25, "scalar", "column"),
    "d_scale": (NONE, NONE, 5, "scalar", "column"),
    "a_zero": (NONE, -2, 128, "scalar", "row"),
    "b_zero": (NONE, NONE, 3, "scalar", "column"),
    "d_zero": (NONE, NONE, -1, "scalar", "column"),
    "tree": (*[NONE] * 8, *WITHOUT_SUMS, "numbers at the edges"),
    "sum": (NONE, NONE, NONE, 2, 1),
    "eltwise": (*[NONE] * 8, *["relu"] * 3, *ELTWISE),
    "binary": (*[NONE] * 6, "add", "add", *BINARY),
    "gated": (*[NONE] * 6, "times", "maximum"),
    "operand": ("f32", "f32", "f16", "bf16", "s32", "s8", "u8", "s16", "f8_e4m3", "f8_e5m2"),
    "operand name": (*["other"] * 4, *NAMES),
    "operand per": (NONE, "row", "column", "full"),
    "binary first": (False, True),
    "outputs": (*[NONE] * 6, "row_max", "row_sum of an operand", "row_absmax"),
    "schedule": (
        NONE, NONE, NONE, NONE, NONE, "n outside", "m outside", "k outside", "batch outside",
        "unrolled", "two threads", "unpacked", "along k", *TILES,
    ),
}  # fmt: skip


def deal(seed: int, index: int) -> dict[str, Level]:
    """Return the value (level) of each axis in the random case number ``index``."""
    return dealt(AXES, seed, index)


def dealt(axes: Mapping[str, tuple[Level, ...]], seed: int, index: int) -> dict[str, Level]:
    """Return the value (level) of each of ``axes`` in the random case number ``index``."""
    return {axis: _card(levels, f"{seed} {axis}", index) for axis, levels in axes.items()}


def _card(levels: tuple[Level, ...], key: str, index: int) -> Level:
    """Return element ``index`` of an endless sequence of copies of ``levels``, each shuffled."""
    deck, place = divmod(index, len(levels))
    cards = list(range(len(levels)))
    random.Random(f"{key} {deck}").shuffle(cards)
    return levels[cards[place]]


def title(level: Level) -> str:
    """Return the value of an axis as text for a table."""
    if isinstance(level, bool):
        return "yes" if level else "no"
    if isinstance(level, tuple):
        return " x ".join(map(str, level))
    return "none" if level is None else str(level)
