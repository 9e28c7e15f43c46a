"""Choose what a schedule leaves open, from the sizes of the spec: loops, packing, prefetches."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from operator import lt
from typing import Literal

from tilewright.errors import ScheduleError
from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix
from tilewright.spec.schedule import (
    LARGE,
    LINES,
    MANY_ROWS,
    STEPS_AHEAD,
    THIN,
    Schedule,
    converted_work,
    large_converted,
    large_work,
    line_in_place,
    of_short_sums,
    of_thin,
    streams,
)
from tilewright.spec.sizes import most_of
from tilewright.spec.types import ITEMSIZE

from .estimate.caches import PAGE, PAGES
from .formats.quantized_b import COLUMNS, quantized_format
from .loops import outer_length
from .matrix_blocks import in_matrix_blocks
from .staging import has_few_along_k, is_plain, packs_beside_a, product_of

#: A quantized B is prefetched this number of bytes ahead. For one row of A and a 4-bit B in memory,
#: the best distances are 2 to 4 KiB. Zen 4 then reads 29 GB/s, but 28 GB/s with 6 KiB. Granite
#: Rapids reads 13.8 GB/s, but 12.2 GB/s with 6 KiB. If B is in Zen 4's caches, all of these
#: distances are equally fast.
AHEAD_BYTES = 3072
#: If the caller packed A, a large B is packed in panels of ``PANEL_VECTORS`` vectors of columns and
#: ``PANEL_K`` elements of K. Tiles of 2 and of 3 vectors divide such a panel without a tail.
PANEL_VECTORS, PANEL_K = 6, 256

_LARGE = "operands are large: blocks that the caches hold are packed"
_PANELS = "A is packed ahead, and B is large: blocks of it are packed in panels"
_THIN = "lines of C are short: the operand along them is packed once, the other one read in place"
_PASSING = "C passes to memory in whole lines; the operand along them stays in a near cache"
_STREAMS = "few rows read lines of a matrix side by side, from end to end"
_PAGES = "a block of K lies in no more pages than a core knows the places of"
_PARTS = "so much of K is summed in f16, and added in f32"


def default_schedule(
    spec: Gemm, schedule: Schedule, target: Target
) -> tuple[Schedule, dict[str, str]]:
    """Return ``schedule`` with defaults for what it leaves open, and the reasons for them."""
    if spec.quantized is not None and schedule.prefetch is None:
        return _asking_ahead(spec, schedule, target)
    parts = _in_parts(spec, schedule, target)
    if parts is not schedule:
        return parts, {"loops": _PARTS}
    large = _for_size(spec, schedule, target)
    if large is not schedule:
        how = _PANELS if packs_beside_a(spec) else _LARGE if large.pack == "ab" else _THIN
        return large, {"loops": how, "pack": how, "vectorize": "C is contiguous along it"}
    streamed = _in_streams(spec, schedule, target)
    if streamed is not schedule:
        return streamed, {"loops": _STREAMS, "vectorize": "the matrix is contiguous along it"}
    paged = _in_pages(spec, schedule, target)
    if paged is not schedule:
        return paged, {"loops": _PAGES, "vectorize": "C is contiguous along it"}
    lines = _in_lines(spec, schedule, target)
    if lines is not schedule:
        return lines, dict.fromkeys(("loops", "pack") if lines.pack else ("loops",), _PASSING)
    open_ = _leaves_open(schedule) and schedule.tile is None and schedule.prefetch is None
    return in_matrix_blocks(spec, schedule, target, open_=open_)


def _asking_ahead(
    spec: Gemm, schedule: Schedule, target: Target
) -> tuple[Schedule, dict[str, str]]:
    """Return ``schedule`` with a prefetch distance if a quantized B exceeds L1.

    A product with one row mostly waits for loads, and hardware prefetchers stop at the end of a
    page.
    """
    form, nearest = quantized_format(spec, target), target.core.caches[0].size
    if schedule.pack is not None or form.nbytes <= nearest:
        return schedule, {}
    block = form.lines(form.block // form.group) * min(form.nb, COLUMNS) * form.group
    distance = max(1, round(AHEAD_BYTES / block))
    why = f"B has {form.nbytes >> 10} KiB, the nearest cache {nearest >> 10}"
    return replace(schedule, prefetch=distance), {"prefetch": why}


def _in_parts(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule``, with blocks of K if low-precision sums may have only some elements of K.

    The spec limits the number of elements (``sum_steps``). The sums of blocks are then added in
    f32. Raises ScheduleError if the schedule asks for longer blocks. A product that is summed in
    f32 is not changed.
    """
    most = spec.sum_steps
    if most is None or product_of(spec, target, "b").accumulator == spec.type:
        return schedule
    short = most_of(spec.k) <= most
    if short and spec.batch is None:
        return schedule
    batch, loops = "b" if spec.batch else "", schedule.loops
    if loops is None:
        grid = "NM" if (schedule.threads or 1) > 1 else "nm"
        grid = "Mn" if spec.outputs and grid == "NM" else grid
        given = dict(schedule.block)
        return replace(
            schedule,
            loops=f"{batch}k{grid}k",
            block=tuple({**given, "k": min(most, given.get("k", most))}.items()),
        )
    outer = loops.lower()[: outer_length(loops)]
    block = dict(schedule.block)
    if batch in outer and (short or ("k" in outer and block.get("k", most + 1) <= most)):
        return schedule
    raise ScheduleError(
        f"sums of more than {most} elements of K would be held in {spec.sum_type}",
        got=f"loops={loops!r}, block={block}, with sums={spec.sums!r}",
        expected=f"blocks of at most {most} of K outside, and the batch too",
        hint=f"loops='{batch}knmk', block={{'k': {most}}}, or leave loops out",
    )


def _for_size(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule``, with packed blocks that fit the caches if the product is large.

    A schedule that has a nest already is not changed. If C has another type than the sums, partial
    sums are kept in a buffer.
    """
    sizes = [size for size in (spec.m, spec.n, spec.k) if isinstance(size, int)]
    if not _leaves_open(schedule) or schedule.prefetch or len(sizes) < 3:
        return schedule
    if packs_beside_a(spec):
        return _beside_packed_a(spec, schedule, target)
    converted = not is_plain(spec, target)
    least, work = LARGE, large_work(sizes[0])
    if converted:
        least, work = _least_converted(spec), _converted_work(spec, target)
    if not is_alone(spec) or spec.is_packed or any(map(lt, sizes, least)) or prod(sizes) < work:
        return schedule
    if converted and product_of(spec, target, "b").unit is not None:
        return schedule
    if converted and has_few_along_k(spec, target):
        return schedule
    if not converted and _stays_in_place(spec, schedule, target):
        return schedule
    along, _ = _read_along(spec)
    thin = not (converted or _crosses(spec)) and getattr(spec, along) <= THIN
    loops = "nkMmnk" if along == "n" else "mkNnmk"
    nest = of_thin(along) if thin else Schedule(loops=loops, pack="ab", vectorize=along)
    return _with_nest(schedule, nest)


def _beside_packed_a(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule`` for an A that the caller packed; if B is large, pack it in panels."""
    sizes = [size for size in (spec.m, spec.n, spec.k) if isinstance(size, int)]
    large = not any(map(lt, sizes, LARGE)) and prod(sizes) >= large_work(sizes[0])
    if not large or (schedule.threads or 1) > 1 or not is_alone(spec):
        return schedule
    columns = PANEL_VECTORS * target.of(spec.type)[0].lanes
    block = {"n": columns, "k": PANEL_K}
    return _with_nest(schedule, Schedule(loops="nkmnk", pack="b", block=block, vectorize="n"))


def _stays_in_place(spec: Gemm, schedule: Schedule, target: Target) -> bool:
    """True if tiles read the operand along the vectors in place, without packing.

    This is so if C has few rows and the rows of this operand are short.
    """
    along, _ = _read_along(spec)
    length, rows = (spec.n, spec.m) if along == "n" else (spec.m, spec.n)
    if not isinstance(length, int) or not isinstance(rows, int):
        return False
    longest = line_in_place(rows, target.core.second.size)
    return _reads_lines(spec, schedule) and length * ITEMSIZE[spec.type] <= longest


def _crosses(spec: Gemm) -> bool:
    """True if the operand across the vectors is not contiguous along K.

    Each K step then reads other cache lines.
    """
    along, _ = _read_along(spec)
    operand = spec.a if along == "n" else spec.b
    return isinstance(operand, Matrix) and operand.order == ("F" if along == "n" else "C")


def _reads_lines(spec: Gemm, schedule: Schedule) -> bool:
    """True if a single thread reads contiguous rows of the operand along the vectors.

    C must also have the type of the sums, so that it can hold partial sums.
    """
    _, name = _read_along(spec)
    operand, output = getattr(spec, name), getattr(spec, spec.output)
    same = operand.order == output.order and output.type == spec.type
    return bool(same and (schedule.threads or 1) == 1)


def _with_nest(schedule: Schedule, nest: Schedule) -> Schedule:
    """Return ``schedule`` with the loops, blocks, packing and vector axis of ``nest``."""
    loops = nest.loops or ""
    return replace(
        schedule,
        loops=loops if (schedule.threads or 1) > 1 else loops.lower(),
        block=nest.block,
        pack=nest.pack,
        vectorize=nest.vectorize,
    )


def _least_converted(spec: Gemm) -> tuple[int, int, int]:
    """Return the smallest m, n and k for which operands are converted block by block.

    This is for products that vectors multiply.
    """
    few, many, deep = large_converted(unit=False)
    return (few, many, deep) if _read_along(spec)[0] == "n" else (many, few, deep)


def _converted_work(spec: Gemm, target: Target) -> int:
    """Return the smallest m * n * k for which operands are converted block by block."""
    along, name = _read_along(spec)
    product, operand = product_of(spec, target, name), getattr(spec, name)
    turned = isinstance(operand, Matrix) and operand.order != ("C" if along == "n" else "F")
    rows = spec.m if along == "n" else spec.n
    assert isinstance(rows, int), "sizes are known"
    return converted_work(rows, ITEMSIZE[product.along], turned=turned)[2]


def _in_streams(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule``, with a nest that streams B from memory if C has few rows.

    If C is contiguous along columns and has few of them, A is streamed instead. A C with a single
    column is contiguous in both directions. A schedule that has a nest already is not changed.
    """
    if not _leaves_open(schedule) or not (is_alone(spec) and is_plain(spec, target)):
        return schedule
    output, parallel = getattr(spec, spec.output), (schedule.threads or 1) > 1
    by_rows = output.order == "C" and not (spec.n == 1 and spec.a.order == "F")
    along: Literal["m", "n"] = "n" if by_rows else "m"
    across, matrix = (spec.m, spec.b) if by_rows else (spec.n, spec.a)
    sizes = [size for size in (spec.m, spec.n, spec.k) if isinstance(size, int)]
    few = streams(across, ITEMSIZE[spec.type]) if isinstance(across, int) else None
    contiguous = isinstance(matrix, Matrix) and matrix.order == ("C" if by_rows else "F")
    if parallel or len(sizes) < 3 or few is None or not contiguous or output.type != spec.type:
        return schedule
    if prod(sizes) < few[2] or getattr(spec, along) < target.of(spec.type)[0].lanes:
        return schedule
    loops = "knmk" if by_rows else "kmnk"
    return replace(schedule, loops=loops, block=(("k", LINES),), vectorize=along)


def _in_pages(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule``, with K in blocks whose pages fit in the TLB.

    If tiles read an operand in place, each of its rows may be in another page. They use a page
    again only after all rows of a block. A schedule that has a nest already is not changed.
    """
    if not _leaves_open(schedule) or not (is_alone(spec) and is_plain(spec, target)):
        return schedule
    along, _ = _read_along(spec)
    length, k = getattr(spec, along), spec.k
    if not _reads_lines(spec, schedule) or not isinstance(length, int) or not isinstance(k, int):
        return schedule
    row = length * ITEMSIZE[spec.type]
    block = PAGES if _crosses(spec) else max(PAGES, PAGES * PAGE // max(1, row))
    if length < target.of(spec.type)[0].lanes or 2 * k < 3 * block:
        return schedule
    loops = "knmk" if along == "n" else "kmnk"
    return replace(schedule, loops=loops, block=(("k", block),), vectorize=along)


def _in_lines(spec: Gemm, schedule: Schedule, target: Target) -> Schedule:
    """Return ``schedule``, with a nest that writes C row by row if C is large.

    A schedule that has a nest already is not changed.
    """
    core, parallel = target.core, (schedule.threads or 1) > 1
    sizes = [size for size in (spec.m, spec.n, spec.k) if isinstance(size, int)]
    open_ = _leaves_open(schedule) and is_alone(spec) and not spec.is_packed
    if parallel or len(sizes) < 3 or not open_:
        return schedule
    along, name = _read_along(spec)
    read, written = getattr(spec, name), getattr(spec, spec.output)
    product = product_of(spec, target, name)
    if product.unit is None and not (is_plain(spec, target) and read.order == written.order):
        return schedule
    across, length = sizes[:2] if along == "n" else sizes[1::-1]
    vectorize = None if product.unit is not None else along
    in_lines = replace(schedule, loops="mnk" if along == "n" else "nmk", vectorize=vectorize)
    many = product.unit is None and across >= MANY_ROWS
    # Bytes of C and of the operand across the vectors. The default nest reads both again for each
    # column of tiles. If they exceed half of L2, tiles are computed row by row instead.
    passing = across * (length + sizes[2]) * ITEMSIZE[written.type]
    few = LARGE[1] <= length <= THIN
    if many and few and sizes[2] >= LARGE[2] and passing > core.second.size // 2:
        return in_lines
    if across * length * ITEMSIZE[written.type] <= core.second.size:
        return schedule
    if many and sizes[2] < LARGE[2]:
        return _with_nest(schedule, of_short_sums(along))
    # Each row of tiles reads the whole operand along the vectors again, so it must fit in half of
    # L1. For a matrix unit it may be half of L2, which delivers matrices as fast as it multiplies.
    near = core.second.size if product.unit is not None else core.caches[0].size
    again = sizes[2] * getattr(spec, along) * ITEMSIZE[product.along]
    return schedule if again > near // 2 else in_lines


def asking_ahead(
    spec: Gemm, schedule: Schedule, target: Target, vectorize: str, packs: str
) -> tuple[Schedule, str]:
    """Return ``schedule`` with a prefetch distance in K steps, and the reason for it.

    Rows of the operand along the vectors are prefetched if it is read in place and exceeds L1,
    because a hardware prefetcher cannot predict the next row. A distance in the schedule is kept.
    """
    name = {"n": "b", "m": "a"}.get(vectorize, "")
    if schedule.prefetch is not None:
        return schedule, "asked for"
    if not name or name in packs or not (is_alone(spec) and is_plain(spec, target)):
        return schedule, ""
    length, k, nearest = getattr(spec, vectorize), spec.k, target.core.caches[0].size
    lines = spec.m if vectorize == "n" else spec.n
    if not (isinstance(length, int) and isinstance(k, int)) or lines == 1:
        # With one row of C, loads limit the speed, and prefetches would only add to them.
        return schedule, ""
    size = k * length * ITEMSIZE[spec.type]
    if size <= nearest:
        return schedule, ""
    why = f"{name.upper()} has {size >> 10} KiB, the nearest cache {nearest >> 10}"
    return replace(schedule, prefetch=STEPS_AHEAD), why


def _leaves_open(schedule: Schedule) -> bool:
    """True if the schedule asks for no loops, packing, vector axis, blocks, or tails."""
    nest = (schedule.loops, schedule.pack, schedule.vectorize, schedule.block)
    return not any(nest) and schedule.tails == "auto"


def is_alone(spec: Gemm) -> bool:
    """True if the spec is a single product with a single output."""
    return spec.batch is None and spec.b2 is None and not spec.outputs


def _read_along(spec: Gemm) -> tuple[Literal["m", "n"], Literal["a", "b"]]:
    """Return the dimension along which C is contiguous, and the operand that has it: n and B, or m
    and A.
    """
    return ("n", "b") if getattr(spec, spec.output).order == "C" else ("m", "a")
