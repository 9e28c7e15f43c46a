"""Draw a plan as one picture: the loops, C with its register tiles, the registers, the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import log10

from tilewright.ir.nest import Program
from tilewright.plan.estimate.kernel import NOMINAL, estimate
from tilewright.plan.estimate.work import peak
from tilewright.plan.plan import Plan
from tilewright.plan.routines.stack import StackPlan
from tilewright.plan.tiling.tiles import RegisterTile
from tilewright.spec.types import ITEMSIZE

from .cover import Covered, cover, number
from .decisions import formula
from .svg import FILLS, INK, MONO, PALE, PAPER, SANS, box, document, line, lines, text
from .text import nest_lines

_WIDTH, _HEIGHT = 960, 620
#: The map of C, in pixels: the length of its longer side, and its upper left corner.
_SIDE, _LEFT, _TOP = 330, 48, 70
#: Limits of the map: grids, above which C is not drawn, and lines between the tiles of a grid.
_MOST_GRIDS, _MOST_LINES = 4000, 120
_NEST_LINES, _NEST_CHARACTERS = 14, 74
_RIGHT = 430
_GRAY = f"fill='{PALE}' {SANS}"
_CENTRE = f"text-anchor='middle' {_GRAY}"
_END = f"text-anchor='end' {_GRAY}"


def picture(plan: Plan | StackPlan, program: Program, of_peak: float | None = None) -> str:
    """Return the plan as SVG. ``of_peak``, a measured share of the peak, is drawn as a point.

    The picture of a stack shows one product. If several products share vectors, it shows only the
    loops.
    """
    one = plan.each if isinstance(plan, StackPlan) else plan
    found = list(islice(cover(one), _MOST_GRIDS + 1)) if one else []
    m, n, k = (number(plan.sizes[d]) for d in "mnk")
    unknown = sorted({str(s) for d in "mnk" for s in plan.sizes[d].free_symbols})
    shown = f"; {', '.join(unknown)} of the call drawn as {NOMINAL}" if unknown else ""
    title = f"{formula(plan)}, {m} x {n} x {k}, on {plan.target.name}{shown}"
    parts = [text(24, 30, title[:118], size=15, more=f"font-weight='bold' {SANS}")]
    parts += _map(m, n, found)
    parts += _nest(program)
    if found and one:
        parts += _registers(one, _largest(found))
        parts += _roofline(roof(one), of_peak)
    return document(_WIDTH, _HEIGHT, title, parts)


# --- C -------------------------------------------------------------------------------------------


def _map(m: int, n: int, found: list[Covered]) -> Iterator[str]:
    yield text(_LEFT, _TOP - 14, f"C, {m} x {n}, in register tiles")
    if not m or not n or len(found) > _MOST_GRIDS:
        words = "nothing to draw" if not m or not n else "too many blocks to draw"
        yield text(_LEFT, _TOP + 20, words, more=_GRAY)
        return
    unit = _SIDE / max(m, n)
    fills = tile_fills(found)
    for one in found:
        x, y = _LEFT + one.column * unit, _TOP + one.row * unit
        width, height = one.right * one.nr * unit, one.down * one.mr * unit
        yield box(x, y, width, height, fills[one.mr, one.nr], 0.8)
        if one.down <= _MOST_LINES and one.right <= _MOST_LINES:
            across = (y + i * one.mr * unit for i in range(1, one.down))
            upright = (x + i * one.nr * unit for i in range(1, one.right))
            strokes = [(x, at, x + width, at) for at in across]
            yield lines([*strokes, *((at, y, at, y + height) for at in upright)], 0.4)
    yield text(_LEFT - 8, _TOP + 10, "0", size=11, more=f"text-anchor='end' {_GRAY}")
    yield text(_LEFT - 8, _TOP + m * unit, str(m), size=11, more=f"text-anchor='end' {_GRAY}")
    yield text(_LEFT + n * unit, _TOP - 4, str(n), size=11, more=f"text-anchor='end' {_GRAY}")
    counts: dict[tuple[int, int], int] = {}
    for one in found:
        counts[one.mr, one.nr] = counts.get((one.mr, one.nr), 0) + one.down * one.right
    y = _TOP + _SIDE + 22
    for i, ((rows, columns), fill) in enumerate(islice(fills.items(), 6)):
        x, below = _LEFT + 118 * (i % 3), y + 20 * (i // 3)
        yield box(x, below - 10, 11, 11, fill)
        yield text(x + 16, below, f"{counts[rows, columns]} of {rows}x{columns}", size=12)


def tile_fills(found: list[Covered]) -> Mapping[tuple[int, int], str]:
    """Return a colour for each size of tiles, the largest first."""
    sizes = sorted({(one.mr, one.nr) for one in found}, key=lambda s: (-s[0] * s[1], s))
    return {size: FILLS[min(i, len(FILLS) - 1)] for i, size in enumerate(sizes)}


# --- the nest ------------------------------------------------------------------------------------


def _nest(program: Program) -> Iterator[str]:
    top = _TOP + _SIDE + 82
    yield text(_LEFT, top - 10, "Loops")
    told = list(nest_lines(program.nest))
    shown = told[: _NEST_LINES - 1] if len(told) > _NEST_LINES else told
    if shown != told:
        shown.append(f"... and {len(told) - len(shown)} lines more")
    for i, words in enumerate(shown[:7]):
        yield _code(_LEFT, top + 8 + 15 * i, words)
    for i, words in enumerate(shown[7:]):
        yield _code(_LEFT + 470, top + 8 + 15 * i, words)


def _code(x: float, y: float, words: str) -> str:
    short = words if len(words) <= _NEST_CHARACTERS else f"{words[: _NEST_CHARACTERS - 3]}..."
    return text(x, y, short, size=10, more=f"xml:space='preserve' {MONO}")


# --- registers -----------------------------------------------------------------------------------


def _registers(plan: Plan, tile: RegisterTile) -> Iterator[str]:
    """Draw the accumulators as they are arranged in C, set by set, then the other registers."""
    shape, budget, size = tile.shape, tile.shape.budget, 17
    unit = shape.unit or shape.sums
    held = unit.registers[plan.element] if unit else plan.target.registers
    yield text(_RIGHT, _TOP - 14, f"Registers: {budget.total} of {held}")
    side = min(size, 150 / max(1, shape.bands), 210 / max(1, shape.vectors * shape.k_split))
    x = float(_RIGHT)
    per_set = shape.bands * shape.vectors
    for _ in range(shape.k_split):
        for place in range(per_set):
            row, column = divmod(place, shape.vectors)
            yield box(x + column * side, _TOP + row * side, side, side, FILLS[0])
        x += shape.vectors * side + 8
    names = {
        plan.input_of(plan.along).name.upper(): budget.along,
        plan.input_of(plan.across).name.upper(): budget.across,
        "mask": budget.masks,
        "free": max(0, held - budget.total) // budget.registers,
    }
    x = _RIGHT
    y = _TOP + shape.bands * side + 14
    fills = (FILLS[1], FILLS[2], FILLS[5], PAPER)
    rows = [("accumulators", budget.accumulators, FILLS[0])]
    rows += [(name, count, fill) for (name, count), fill in zip(names.items(), fills, strict=True)]
    for name, count, fill in rows:
        if not count:
            continue
        yield text(x, y + 10, f"{count} {name}", size=11, more=SANS)
        shown = 0 if name == "accumulators" else min(count, 24)
        for i in range(shown):
            yield box(x + 84 + 7 * i, y + 3, 6, 8, fill, 0.6)
        y += 15


# --- roofline ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Roof:
    """The limits of a core, and the expected speed of a kernel.

    - ``peak``, ``expected``: flops per cycle.
    - ``intensity``: flops per byte of A, B and C that must be moved at least once.
    - ``bytes``: number of these bytes.
    - ``slopes``: bytes per cycle of each cache that holds the operands, and of memory.
    """

    peak: float
    expected: float
    intensity: float
    bytes: int
    slopes: Mapping[str, float]

    @property
    def level(self) -> str:
        """The name of the nearest cache that holds all operands, or memory."""
        return next(iter(self.slopes))


def roof(plan: Plan) -> Roof:
    """Return the roofline of a plan that has tiles, from its target and the estimate of a call."""
    core, spec = plan.target.core, plan.spec
    m, n, k = (number(plan.sizes[d]) for d in "mnk")
    count = number(plan.batch.count) if plan.batch else 1
    form = plan.packed_format
    of_b = k * n * ITEMSIZE[spec.b.type] if form is None else form.nbytes
    moved = (m * k * ITEMSIZE[spec.a.type] + of_b * spec.products) * count
    moved += m * n * ITEMSIZE[plan.output.type] * (2 if spec.beta != 0 else 1)
    summed, most = estimate(plan, {}), 2 * peak(plan)
    names = [f"L{i + 1}" for i in range(len(core.caches))]
    slopes = {
        name: cache.rate
        for name, cache in zip(names, core.caches, strict=True)
        if cache.size >= moved
    }
    return Roof(
        peak=most,
        expected=most * (summed.least / summed.cycles or 1.0) if summed.cycles else most,
        intensity=max(1, spec.flops({"m": m, "n": n, "k": k, "count": count})) / max(1, moved),
        bytes=moved,
        slopes={**slopes, "memory": core.memory},
    )


def _largest(found: list[Covered]) -> RegisterTile:
    return max((one.tile for one in found), key=lambda tile: number(tile.mr * tile.nr))


def _roofline(drawn: Roof, of_peak: float | None) -> Iterator[str]:
    """Draw flops per cycle over flops per byte, both logarithmic."""
    left, top, width, height = 700, _TOP, 230, _SIDE - 30
    low, high = -1.0, 3.0
    floor = log10(drawn.peak) - 2.5

    def at(intensity: float, flops: float) -> tuple[float, float]:
        x = (min(max(log10(intensity), low), high) - low) / (high - low)
        y = (min(max(log10(flops), floor), floor + 3) - floor) / 3
        return left + x * width, top + height - y * height

    yield text(left, top - 14, "Roofline")
    yield box(left, top, width, height, PAPER, 0.6)
    for decade in range(int(low), int(high) + 1):
        x, _ = at(10.0**decade, 1)
        yield text(x, top + height + 13, f"{10.0**decade:g}", size=10, more=_CENTRE)
    yield text(
        left + width / 2, top + height + 27, "flops a byte moved once", size=11, more=_CENTRE
    )
    yield text(left, top + height + 42, "up: flops a cycle", size=11, more=_GRAY)
    for i, (name, rate) in enumerate(drawn.slopes.items()):
        knee = drawn.peak / rate
        points = [at(10.0**low, rate * 10.0**low), at(min(knee, 10.0**high), drawn.peak)]
        yield line(points, INK if not i else PALE, "" if not i else "stroke-dasharray='4 3'")
        x, y = at(10 ** (low + 0.1), rate * 10 ** (low + 0.1))
        yield text(x + 3, y - 4, f"{name} {rate:g} B", size=10, more=_GRAY)
    first = next(iter(drawn.slopes.values()))
    yield line([at(drawn.peak / first, drawn.peak), at(10.0**high, drawn.peak)])
    x, y = at(10.0**high, drawn.peak)
    yield text(x - 4, y - 5, f"{drawn.peak:g} flops a cycle", size=10, more=_END)
    marks = [("estimate", drawn.expected, FILLS[2])]
    marks += [] if of_peak is None else [("measured", of_peak * drawn.peak, FILLS[3])]
    for name, flops, fill in marks:
        x, y = at(drawn.intensity, flops)
        yield f"<circle cx='{x:.5g}' cy='{y:.5g}' r='5' fill='{fill}' stroke='{INK}'/>"
        yield text(x + 9, y + 14, f"{name} {flops:.3g}", size=10, more=SANS)
    kept = f"{drawn.bytes / 1024:.4g} KiB of operands, in {drawn.level}"
    yield text(left, top + height + 58, kept, size=11, more=_GRAY)
