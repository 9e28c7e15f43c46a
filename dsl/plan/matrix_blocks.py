"""Choose blocks for a matrix unit if a schedule leaves them open.

The operand across the vectors is read in rows along K. It is copied in blocks of rows, so that each
row starts at a cache line and rows are an odd number of cache lines apart. The operand along the
vectors is converted: as a whole if L2 holds it, else in blocks that L2 holds. Below, *lines* are
rows or columns of the operand along the vectors.
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

#: If L2 holds the whole converted operand, this number of rows of the other operand is copied at
#: once, because L2 must hold both. On Emerald Rapids, 512x512x512 in bf16 takes 246 us with 128
#: rows, 299 us with 256 rows, and 368 us without a copy.
NEAR_ROWS = 128
#: If the converted operand is cut into blocks, this number of rows of the other operand is copied
#: at once. Each further block of rows converts the whole operand again, which costs little at this
#: size. 2048x2048x2048 takes 16.5 ms with these blocks and 34 ms without blocks.
FAR_ROWS = 1024
#: A block of the converted operand has ``LEAST`` to ``MOST`` lines, a multiple of ``LEAST``. If K
#: is known only at the call, a block has ``ROW_BYTES`` bytes for each element of K.
#: For example with K = 4096, 2048x2048x2048 takes 23.6 ms with 64 lines, 19.6 ms with 128, and
#: 17.3 ms with 256. 128x4096x4096 takes 9.3, 7.3 and 10.1 ms.
ROW_BYTES, LEAST, MOST = 256, 128, 256

#: K is cut into blocks of ``CUT_K`` elements only if C has at most ``NEAR_LINES`` rows, because
#: each block reads and writes the partial sums. A block of the converted operand then takes
#: 1 / ``CUT_SHARE`` of L2. On Emerald Rapids, 49x512x4608 in bf16 takes 0.83 ms with these blocks
#: and 1.23 ms without them; in s8 it takes 0.29 ms and 0.40 ms. 196x256x2304 takes 0.63 ms and
#: 0.80 ms. With more rows the blocks do harm: 1024x1024x2048 takes 1.14 times as long with them.
CUT_K, CUT_SHARE = 512, 8

#: If the caller packed B, a block of C has at least this number of rows, because each block reads
#: all of B from L3 or memory. On Granite Rapids, 512x512x4096 in bf16 takes 7.3 million cycles in
#: blocks of 128 rows, and 9.8 million without blocks. With K in blocks of 256, whose panels stay in
#: L1, it takes 12.7 million.
FEW_ROWS = 128

_BLOCKS = "blocks that a near cache holds are copied, and converted, as they are needed"
_WHOLE = "a matrix unit reads rows along K: A and B are converted whole, and not in panels"
_ROWS = "a block of A's rows stays in the second cache while all of B passes"


@dataclass(frozen=True, slots=True)
class _Operands:
    """The operand that is copied in rows, and the one that is converted.

    ``across`` is the operand that is copied; its dimension of C is ``rows``. The other operand is
    converted; its dimension of C is ``lines``.
    """

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
    """Return ``schedule`` with blocks for a matrix unit, and the reasons for them.

    ``open_`` is True if the schedule has no loops yet; otherwise it must ask for panels. The
    schedule is not changed in these cases: no matrix unit multiplies; C has too few lines to make
    use of copied rows; C has so few rows or columns that vectors along K read them in place.
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
    # If K is known only at the call, the tails of rows are copied in any case. Copying whole rows
    # then pays for fewer lines.
    ends, lines = not panels and isinstance(spec.k, Dim), most_of(getattr(spec, found.lines))
    pays = lines > NEAR_LINES or (ends and lines >= THIN)
    if parallel or spec.b2 is not None or not pays:
        if not panels:
            return schedule, {}
        return _of_whole(schedule, parallel=parallel), {"loops": _WHOLE}
    blocks = _in_blocks(spec, schedule, target, found)
    return blocks, {"loops": _BLOCKS, "pack": _BLOCKS}


def _in_blocks(spec: Gemm, schedule: Schedule, target: Target, found: _Operands) -> Schedule:
    """Return ``schedule`` that copies rows, and converts the other operand, block by block."""
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
    """Return ``schedule`` for a B that the caller packed, with blocks of rows, and the reasons.

    Each block of rows reads all of B. K is cut into blocks, too, if L2 cannot hold ``FEW_ROWS``
    rows of A and C can hold partial sums.
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
    """True if the schedule has several threads.

    They cannot share a block that one of them converts.
    """
    return (schedule.threads or 1) > 1 or (schedule.loops or "") != (schedule.loops or "").lower()


def _sums_in_c(spec: Gemm) -> bool:
    """True if partial sums can be kept in C."""
    return spec.output == "c" and spec.c.type == spec.type and spec.b2 is None


def _cuts_k(spec: Gemm, found: _Operands, target: Target) -> bool:
    """True if K is cut into blocks.

    This is so if C has few rows and the converted operand exceeds its share of L2. The partial sums
    must be in C, or fit in half of L2.
    """
    second, item = target.core.second.size, ITEMSIZE[found.product.along]
    rows, lines, k = (most_of(getattr(spec, d)) for d in (found.rows, found.lines, "k"))
    sums = rows * lines * ITEMSIZE[spec.type]
    near = _sums_in_c(spec) or lines == inf or sums <= second // 2
    return near and rows <= NEAR_LINES and k > 2 * CUT_K and lines * k * item > second // CUT_SHARE


def _stays(spec: Gemm, found: _Operands, target: Target) -> bool:
    """True if L2 holds all of the operand along the vectors."""
    lines, k = most_of(getattr(spec, found.lines)), most_of(spec.k)
    if lines <= NEAR_LINES:
        return True
    return lines * k * ITEMSIZE[found.product.along] <= target.core.second.size // 2


def _lines_of(spec: Gemm, found: _Operands, target: Target) -> int:
    """Return the number of lines in a block of the converted operand."""
    item, k = ITEMSIZE[found.product.along], most_of(spec.k)
    if k == inf:
        return ROW_BYTES // item
    most = int(target.core.second.size * 5 // 8 // (max(k, 1) * item))
    return max(LEAST, min(MOST, most // LEAST * LEAST))


def _of_whole(schedule: Schedule, *, parallel: bool) -> Schedule:
    """Return ``schedule`` without panels, with both operands converted whole before the loops.

    C is cut into blocks of lines, and each block uses the whole operand along the vectors. In a
    parallel schedule, threads share the rows or columns of one block.
    """
    loops = schedule.loops or ""
    lines, others, k = sorted("mnk", key=loops.lower().rfind)
    kept, block = lines + (others.upper() if parallel else others) + lines + k, 2 * NEAR_ROWS
    return replace(schedule, loops=kept, block=((lines, block),), pack=None)
