"""The blocks in which a matrix unit finds its operands, where a schedule leaves that open.

What is read in rows along K is copied a block of rows at a time: rows of a copy begin with a line
of the cache, an odd number of lines apart. What lies along C's lines is converted: as a whole where
a near cache holds it, else so many of its lines at a time as that cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import NEAR_LINES, THIN, Schedule
from tilewright.spec.sizes import Dim, most_of
from tilewright.spec.types import ITEMSIZE

from .contraction import Product
from .staging import has_few_along_k, product_of
from .vector_axis import asks_for_panels, layouts

#: Rows that are copied at once where a near cache holds all of the other operand: these are read
#: from it as well. On Emerald Rapids 512x512x512 in bf16 takes 246 us so, 299 in blocks of 256, and
#: 368 where rows are read from where they lie.
NEAR_ROWS = 128
#: The same where that operand comes in blocks, each of which all of these rows meet: converting it
#: anew for the next ones costs little. 2048x2048x2048 takes 16.5 ms so and 34 in no blocks.
FAR_ROWS = 1024
#: The bytes of a row of such a block where only the call knows K, and its lines at least and at
#: most where it is known, of which there are a multiple of the least. With K of 4096 64, 128 and
#: 256 lines take 23.6, 19.6 and 17.3 ms for 2048x2048x2048, and 9.3, 7.3 and 10.1 ms for
#: 128x4096x4096.
ROW_BYTES, LEAST, MOST = 256, 128, 256

#: Into blocks of how many steps at most the K of a long operand is cut if ``NEAR_LINES`` rows of C
#: or less meet it, and which share of the second cache each of its blocks takes: sums in C pass
#: there once for each.
#: On Emerald Rapids 49x512x4608 in bf16 takes 1.23 ms with all of K in a block, 0.83 so, in s8 0.40
#: and 0.29; 196x256x2304 0.80 and 0.63, but 1024x1024x2048 takes 1.14 times as long so.
CUT_K, CUT_SHARE = 512, 8

#: The least rows of a block for which a matrix unit reads all of a packed B from beyond the second
#: cache. On Granite Rapids 512x512x4096 in bf16 takes 7.3 million cycles in blocks of 128 rows, 9.8
#: million without blocks, and 12.7 million with K in blocks of 256, whose panels stay in the first
#: cache.
FEW_ROWS = 128

_BLOCKS = "blocks that a near cache holds are copied, and converted, as they are needed"
_WHOLE = "a matrix unit reads rows along K: A and B are converted whole, and not in panels"
_ROWS = "a block of A's rows stays in the second cache while all of B passes"


@dataclass(frozen=True, slots=True)
class _Operands:
    """Who is read in rows, ``across``, and who lies along C's lines; their dimensions."""

    product: Product
    rows: str
    lines: str
    across: Literal["a", "b"]

    @classmethod
    def of(cls, spec: Gemm, schedule: Schedule, target: Target) -> _Operands:
        (lines, _), *_ = layouts(spec, replace(schedule, pack=None), target)
        if lines == "n":
            return cls(product_of(spec, target, "b"), "m", lines, "a")
        return cls(product_of(spec, target, "a"), "n", lines, "b")


def in_matrix_blocks(
    spec: Gemm, schedule: Schedule, target: Target, *, open_: bool
) -> tuple[Schedule, dict[str, str]]:
    """``schedule`` in blocks for a matrix unit if it leaves loops ``open_``, or asks for panels.

    With the reasons. It stays as it is where another unit multiplies, where copied rows would meet
    too few lines, or where vectors along K may read few rows, or columns, where they lie.
    """
    panels = asks_for_panels(spec, schedule, target)
    alone = spec.batch is None and not spec.outputs and spec.quantized is None
    if not (alone and (open_ or panels)) or product_of(spec, target, "b").unit is None:
        return schedule, {}
    if isinstance(spec.b, Packed):
        return _of_packed(spec, schedule, target)
    if not panels and has_few_along_k(spec, target):
        return schedule, {}
    found, parallel = _Operands.of(spec, schedule, target), _parallel(schedule)
    if found.product.unit is None:
        return schedule, {}
    # Where K is of the call the ends of rows, which fill no step, are copied in any case.
    ends, lines = not panels and isinstance(spec.k, Dim), most_of(getattr(spec, found.lines))
    pays = lines > NEAR_LINES or (ends and lines >= THIN)
    if parallel or spec.b2 is not None or not pays:
        if not panels:
            return schedule, {}
        return _of_whole(schedule, parallel=parallel), {"loops": _WHOLE}
    blocks = _in_blocks(spec, schedule, target, found)
    return blocks, {"loops": _BLOCKS, "pack": _BLOCKS}


def _in_blocks(spec: Gemm, schedule: Schedule, target: Target, found: _Operands) -> Schedule:
    """``schedule`` with rows copied, and what lies along C's lines converted, block by block."""
    rows, lines = found.rows, found.lines
    if _cuts_k(spec, found, target):
        most = target.core.second.size // CUT_SHARE // (CUT_K * ITEMSIZE[found.product.along])
        loops, block = f"k{lines}{rows}{lines}k", {"k": CUT_K, lines: max(LEAST, most)}
        return replace(schedule, loops=loops, block=tuple(block.items()), pack="ab")
    near = _stays(spec, found, target)
    loops = f"{lines}{rows}k" if near else f"{lines}{rows}{lines}k"
    most = NEAR_ROWS if near else FAR_ROWS
    block = {} if near else {lines: _lines_of(spec, found, target)}
    if most_of(getattr(spec, rows)) > most:
        loops, block = rows + loops, {rows: most, **block}
    pack = found.across if near else "ab"
    return replace(schedule, loops=loops, block=tuple(block.items()), pack=pack)


def _of_packed(spec: Gemm, schedule: Schedule, target: Target) -> tuple[Schedule, dict[str, str]]:
    """``schedule``, or rows in blocks where all of a B that the caller packed meets each of them.

    K is cut where the second cache would not hold so few rows as are worth it, and C can hold sums
    of a part of K.
    """
    product, k = product_of(spec, target, "b"), spec.k
    if not isinstance(k, int) or k == 0 or _parallel(schedule):
        return schedule, {}
    wide = most_of(spec.n) > NEAR_LINES and spec.b2 is None
    copied: Literal["a"] | None = "a" if wide else None
    second, row = target.core.second.size, k * ITEMSIZE[product.across]
    rows = max(FEW_ROWS, second // 2 // row // FEW_ROWS * FEW_ROWS)
    if most_of(spec.m) <= rows:
        return (schedule, {}) if copied is None else (replace(schedule, pack=copied), {})
    sums = spec.output == "c" and spec.c.type == spec.type and spec.b2 is None
    loops, block = "mnmk", {"m": rows}
    if row * FEW_ROWS > second and sums:
        step = product.step
        most = second // FEW_ROWS // ITEMSIZE[product.across] // step * step
        loops, block = "mknmk", {"m": rows, "k": most}
    found = replace(schedule, loops=loops, block=tuple(block.items()), pack=copied)
    return found, {"loops": _ROWS}


def _parallel(schedule: Schedule) -> bool:
    """Whether several threads are asked for: blocks on the way are one thread's."""
    return (schedule.threads or 1) > 1 or (schedule.loops or "") != (schedule.loops or "").lower()


def _sums_in_c(spec: Gemm) -> bool:
    """Whether C can hold sums of a part of K."""
    return spec.output == "c" and spec.c.type == spec.type and spec.b2 is None


def _cuts_k(spec: Gemm, found: _Operands, target: Target) -> bool:
    """Whether few rows meet blocks of a part of K of what is converted: sums and they stay near.

    What C cannot hold sums for has them in a buffer, which is as large as C.
    """
    second, item = target.core.second.size, ITEMSIZE[found.product.along]
    rows, lines, k = (most_of(getattr(spec, d)) for d in (found.rows, found.lines, "k"))
    sums = rows * lines * ITEMSIZE[spec.type]
    near = _sums_in_c(spec) or lines == inf or sums <= second // 2
    return near and rows <= NEAR_LINES and k > 2 * CUT_K and lines * k * item > second // CUT_SHARE


def _stays(spec: Gemm, found: _Operands, target: Target) -> bool:
    """Whether a near cache holds all of what lies along C's lines."""
    lines, k = most_of(getattr(spec, found.lines)), most_of(spec.k)
    if lines <= NEAR_LINES:
        return True
    return lines * k * ITEMSIZE[found.product.along] <= target.core.second.size // 2


def _lines_of(spec: Gemm, found: _Operands, target: Target) -> int:
    """The lines of a block of what is converted."""
    item, k = ITEMSIZE[found.product.along], most_of(spec.k)
    if k == inf:
        return ROW_BYTES // item
    most = int(target.core.second.size * 5 // 8 // (max(k, 1) * item))
    return max(LEAST, min(MOST, most // LEAST * LEAST))


def _of_whole(schedule: Schedule, *, parallel: bool) -> Schedule:
    """``schedule`` without the panels that it asks for: all is converted before, whole.

    Lines of C are in blocks, of which each meets all of what lies along the vectors; whatever was
    parallel, the lines of one block are shared.
    """
    loops = schedule.loops or ""
    lines, others, k = sorted("mnk", key=loops.lower().rfind)
    kept, block = lines + (others.upper() if parallel else others) + lines + k, 2 * NEAR_ROWS
    return replace(schedule, loops=kept, block=((lines, block),), pack=None)
