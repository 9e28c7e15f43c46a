"""Draw a plan as a picture in SVG.

In goes a plan with its program. Out come five parts: C cut into register tiles between strips of
A and B, the registers of the largest tile, the roofline, and the loops in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import ceil, log10
from typing import Any

from tilewright.ir.nest import Program
from tilewright.plan.estimate.kernel import estimate
from tilewright.plan.estimate.work import peak
from tilewright.plan.plan import Plan
from tilewright.plan.problem import NOMINAL, Staging
from tilewright.plan.routine import routine_of
from tilewright.plan.tiling.tiles import RegisterTile
from tilewright.spec.types import ITEMSIZE

from .cover import Covered, cover, number
from .decisions import formula
from .svg import FILLS, INK, MONO, PALE, PAPER, SANS, box, document, line, lines, text
from .text import nest_lines

_WIDTH, _HEIGHT = 960, 640
#: Position in pixels of the map, the part that shows C cut into tiles: the length of its longer
#: side, and its left and upper edge.
_SIDE, _LEFT, _TOP = 264, 92, 128
#: Width in pixels of the strips that show A and B, and of the gap between them and C.
_STRIP, _GAP = 30, 26
#: Maximum number of grids of tiles that are drawn. If C has more, only its upper left corner is
#: drawn, which has ``_CORNER`` tiles in each direction.
_MOST_GRIDS, _CORNER = 4000, 8
#: Maximum number of lines that are drawn between the rows (or columns) of tiles of one grid.
_MOST_LINES = 120
_NEST_LINES, _NEST_CHARACTERS = 14, 74
#: Left edges, in pixels, of the part with the registers and of the part with the roofline.
_MIDDLE, _RIGHT = 440, 706
_GRAY = f"fill='{PALE}' {SANS}"
_CENTRE = f"text-anchor='middle' {_GRAY}"
_END = f"text-anchor='end' {_GRAY}"


def picture(plan: Any, program: Program, of_peak: float | None = None) -> str:
    """Return a picture of the plan as the text of an SVG file.

    ``of_peak`` is a measured share of the peak, which becomes a point of the roofline. A stack is
    shown by one of its products. If a stack computes several products side by side, only its loops
    are shown.
    """
    one = next(iter(routine_of(plan).nests(plan)), None)
    found = list(islice(cover(one), _MOST_GRIDS + 1)) if one else []
    sizes = one.problem.sizes if one else plan.sizes
    m, n, k = (number(sizes[d]) for d in "mnk")
    unknown = sorted({str(s) for d in "mnk" for s in sizes[d].free_symbols})
    shown = f"; {', '.join(unknown)} of the call drawn as {NOMINAL}" if unknown else ""
    title = f"{formula(plan)}, {m} x {n} x {k}, on {plan.target.name}{shown}"
    parts = [text(24, 30, title[:118], size=15, more=f"font-weight='bold' {SANS}")]
    parts += _map(_View.of(m, n, found), k)
    parts += _nest(program)
    if found and one:
        parts += _registers(one.staging, _largest(found))
        parts += _roofline(roof(one), of_peak)
    return document(_WIDTH, _HEIGHT, title, parts)


# --- C -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _View:
    """The part of C that is drawn: ``rows`` x ``columns`` elements of a C of ``m`` x ``n``."""

    m: int
    n: int
    rows: int
    columns: int
    found: tuple[Covered, ...]

    @classmethod
    def of(cls, m: int, n: int, found: list[Covered]) -> _View:
        """Return the view of an ``m`` x ``n`` matrix C that the grids ``found`` cover."""
        rows, columns = m, n
        if len(found) > _MOST_GRIDS:
            largest = max(found, key=lambda one: one.mr * one.nr)
            rows, columns = min(m, _CORNER * largest.mr), min(n, _CORNER * largest.nr)
        drawn = (one for one in found if one.mr and one.nr)
        inside = tuple(one for one in drawn if one.row < rows and one.column < columns)
        return cls(m, n, rows, columns, inside)

    @property
    def unit(self) -> float:
        """The size of an element of C in the picture, in pixels."""
        return _SIDE / max(self.rows, self.columns)

    def shown(self, one: Covered) -> tuple[int, int]:
        """Return how many rows and columns of tiles of a grid are visible."""
        down = min(one.down, ceil((self.rows - one.row) / one.mr))
        return down, min(one.right, ceil((self.columns - one.column) / one.nr))

    @property
    def title(self) -> str:
        """The title above C: its size, and the size of the part that is drawn."""
        whole = (self.rows, self.columns) == (self.m, self.n)
        corner = "" if whole else f": {self.rows} x {self.columns} of it"
        return f"C, {self.m} x {self.n}, in register tiles{corner}"


def _map(view: _View, k: int) -> Iterator[str]:
    yield text(24, 62, view.title)
    if not view.found:
        empty = "nothing to draw" if 0 in (view.m, view.n) else "several products share a register"
        yield text(_LEFT, _TOP + 20, empty, more=_GRAY)
        return
    fills = tile_fills(list(view.found))
    for one in view.found:
        yield from _grid(view, one, fills[one.mr, one.nr])
    yield from _strips(view, k)
    yield from _scales(view)
    counts: dict[tuple[int, int], int] = {}
    for one in view.found:
        down, right = view.shown(one)
        counts[one.mr, one.nr] = counts.get((one.mr, one.nr), 0) + down * right
    y = _TOP + _SIDE + 34
    drawn = [(size, fill) for size, fill in fills.items() if counts[size]]
    for i, ((rows, columns), fill) in enumerate(drawn[:6]):
        x, below = 24 + 118 * (i % 3), y + 20 * (i // 3)
        yield box(x, below - 10, 11, 11, fill)
        yield text(x + 16, below, f"{counts[rows, columns]} of {rows}x{columns}", size=12)


def _grid(view: _View, one: Covered, fill: str) -> Iterator[str]:
    """Yield the SVG of a grid of tiles, as far as the grid is visible."""
    unit = view.unit
    down, right = view.shown(one)
    bottom = min(view.rows, one.row + down * one.mr)
    edge = min(view.columns, one.column + right * one.nr)
    x, y = _LEFT + one.column * unit, _TOP + one.row * unit
    width, height = (edge - one.column) * unit, (bottom - one.row) * unit
    yield box(x, y, width, height, fill, 0.8)
    if down <= _MOST_LINES and right <= _MOST_LINES:
        across = (y + i * one.mr * unit for i in range(1, down))
        upright = (x + i * one.nr * unit for i in range(1, right))
        strokes = [(x, at, x + width, at) for at in across]
        yield lines([*strokes, *((at, y, at, y + height) for at in upright)], 0.4)


def _strips(view: _View, k: int) -> Iterator[str]:
    """Yield the SVG of B above C and of A to the left of C.

    The columns of B and the rows of A that the first tile reads are filled.
    """
    unit, first = view.unit, min(view.found, key=lambda one: (one.row, one.column))
    top, left = _TOP - _GAP // 2 - _STRIP, _LEFT - _GAP - _STRIP
    yield box(_LEFT, top, view.columns * unit, _STRIP, PAPER, 0.8)
    yield box(_LEFT, top, min(first.nr, view.columns) * unit, _STRIP, FILLS[1], 0.8)
    yield box(left, _TOP, _STRIP, view.rows * unit, PAPER, 0.8)
    yield box(left, _TOP, _STRIP, min(first.mr, view.rows) * unit, FILLS[2], 0.8)
    yield text(_LEFT + view.columns * unit + 6, top + 21, f"B, {k} rows", size=11, more=_GRAY)
    below = _TOP + view.rows * unit + 13
    yield text(left, below, f"A, {k} columns", size=11, more=_GRAY)


def _scales(view: _View) -> Iterator[str]:
    """Yield the row and column numbers at the edges of C and of its first tile."""
    unit, first = view.unit, min(view.found, key=lambda one: (one.row, one.column))
    for column in sorted({0, min(first.nr, view.columns), view.columns}):
        more = _END if column == view.columns and column else _CENTRE
        if column in (0, view.columns) or (view.columns - column) * unit > 40:
            yield text(_LEFT + column * unit, _TOP - 2, str(column), size=10, more=more)
    for row in sorted({0, view.rows}):
        yield text(
            _LEFT - 3, _TOP + row * unit + (9 if not row else 0), str(row), size=10, more=_END
        )


def tile_fills(found: list[Covered]) -> Mapping[tuple[int, int], str]:
    """Return a colour for each size of tiles: the largest size first, then the tails."""
    sizes = sorted({(one.mr, one.nr) for one in found}, key=lambda s: (-s[0] * s[1], s))
    return {size: FILLS[min(i, len(FILLS) - 1)] for i, size in enumerate(sizes)}


# --- the nest ------------------------------------------------------------------------------------


def _nest(program: Program) -> Iterator[str]:
    top = _TOP + _SIDE + 88
    yield text(24, top - 10, "Loops")
    told = list(nest_lines(program.nest))
    shown = told[: _NEST_LINES - 1] if len(told) > _NEST_LINES else told
    if shown != told:
        shown.append(f"... and {len(told) - len(shown)} lines more")
    for i, words in enumerate(shown[:7]):
        yield _code(24, top + 8 + 15 * i, words)
    for i, words in enumerate(shown[7:]):
        yield _code(24 + 466, top + 8 + 15 * i, words)


def _code(x: float, y: float, words: str) -> str:
    short = words if len(words) <= _NEST_CHARACTERS else f"{words[: _NEST_CHARACTERS - 3]}..."
    return text(x, y, short, size=10, more=f"xml:space='preserve' {MONO}")


# --- registers -----------------------------------------------------------------------------------


def _registers(staging: Staging, tile: RegisterTile) -> Iterator[str]:
    """Yield the SVG of the registers: accumulators as they are in C, then all other registers.

    Each set of accumulators is a block of boxes.
    """
    shape, budget, size = tile.shape, tile.shape.budget, 17
    unit = shape.unit or shape.sums
    held = unit.registers[staging.element] if unit else staging.problem.target.registers
    yield text(_MIDDLE, 62, f"Registers: {budget.total} of {held}")
    top, x = 84.0, float(_MIDDLE)
    side = min(size, 150 / max(1, shape.bands), 210 / max(1, shape.vectors * shape.k_split))
    per_set = shape.bands * shape.vectors
    for _ in range(shape.k_split):
        for place in range(per_set):
            row, column = divmod(place, shape.vectors)
            yield box(x + column * side, top + row * side, side, side, FILLS[0])
        x += shape.vectors * side + 8
    names = {
        staging.input_of(staging.problem.along).name.upper(): budget.along,
        staging.input_of(staging.problem.across).name.upper(): budget.across,
        "mask": budget.masks,
        "free": max(0, held - budget.total) // budget.registers,
    }
    x = _MIDDLE
    y = top + shape.bands * side + 14
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
    """The roofline of a core, and the place of a kernel in it.

    ``peak`` is the core's peak and ``expected`` the kernel's estimated speed, in flops per cycle.
    ``bytes`` is the number of bytes of A, B and C, each counted once. ``intensity`` is flops per
    such byte. ``slopes`` has the bytes per cycle of each cache that holds all operands, and of
    memory, by name.
    """

    peak: float
    expected: float
    intensity: float
    bytes: int
    slopes: Mapping[str, float]

    @property
    def level(self) -> str:
        """The name of the nearest cache that holds all operands, or "memory"."""
        return next(iter(self.slopes))


def roof(plan: Plan) -> Roof:
    """Return the roofline of a plan that has tiles, from its target's core and its estimate."""
    core, spec = plan.target.core, plan.spec
    m, n, k = (number(plan.problem.sizes[d]) for d in "mnk")
    count = number(plan.problem.batch.count) if plan.problem.batch else 1
    form = plan.staging.form
    of_b = k * n * ITEMSIZE[spec.b.type] if form is None else form.of(k, n).nbytes
    moved = (m * k * ITEMSIZE[spec.a.type] + of_b * spec.products) * count
    moved += m * n * ITEMSIZE[plan.staging.output.type] * (2 if spec.beta != 0 else 1)
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
    """Yield the SVG of the roofline: GFLOPS over flops per byte, on logarithmic axes."""
    frame = _Frame(drawn.peak)
    yield text(_RIGHT, 62, "Roofline: GFLOPS of a core at 1 GHz")
    yield box(frame.left, frame.top, frame.width, frame.height, PAPER, 0.6)
    yield from frame.scales()
    for i, (name, rate) in enumerate(reversed(list(drawn.slopes.items()))):
        low, knee = 10.0**frame.low, min(drawn.peak / rate, 10.0**frame.high)
        start = max(low, 10**frame.floor / rate)
        ends = [frame.at(start, rate * start), frame.at(knee, rate * knee)]
        nearest = name == drawn.level
        yield line(ends, INK if nearest else PALE, "" if nearest else "stroke-dasharray='4 3'")
        yield from frame.key(i, f"{name}: {rate:g} bytes a cycle", nearest)
    first = drawn.slopes[drawn.level]
    yield line([frame.at(drawn.peak / first, drawn.peak), frame.at(10.0**frame.high, drawn.peak)])
    x, y = frame.at(10.0**frame.high, drawn.peak)
    yield text(x - 4, y - 5, f"peak {drawn.peak:g}", size=10, more=_END)
    marks = [("estimate", drawn.expected, FILLS[2])]
    marks += [] if of_peak is None else [("measured", of_peak * drawn.peak, FILLS[3])]
    below = frame.top + frame.height + 48
    for i, (name, flops, fill) in enumerate(marks):
        x, y = frame.at(drawn.intensity, flops)
        yield _dot(x, y, fill)
        yield _dot(frame.left + 5 + 122 * i, below - 4, fill)
        yield text(frame.left + 14 + 122 * i, below, f"{name} {flops:.3g}", size=11, more=SANS)
    kept = f"{drawn.bytes / 1024:.4g} KiB of A, B and C: {drawn.level} holds them"
    yield text(frame.left, below + 18, kept, size=11, more=_GRAY)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The axes of the roofline, in pixels and in powers of ten.

    The horizontal axis has flops per byte, from ``10**low`` to ``10**high``. The vertical axis has
    GFLOPS, three powers of ten up to about the peak.
    """

    peak: float
    left: int = _RIGHT + 22
    top: int = 84
    width: int = 208
    height: int = 286
    low: float = -1.0
    high: float = 3.0

    @property
    def floor(self) -> float:
        """The logarithm (base 10) of the GFLOPS at the lower edge of the roofline."""
        return log10(self.peak) - 2.5

    def at(self, intensity: float, flops: float) -> tuple[float, float]:
        """Return the position in pixels of the point at ``intensity`` and ``flops``."""
        x = (min(max(log10(intensity), self.low), self.high) - self.low) / (self.high - self.low)
        y = (min(max(log10(flops), self.floor), self.floor + 3) - self.floor) / 3
        return self.left + x * self.width, self.top + self.height - y * self.height

    def scales(self) -> Iterator[str]:
        """Yield the SVG of the numbers along both axes."""
        bottom = self.top + self.height
        for decade in range(int(self.low), int(self.high) + 1):
            x, _ = self.at(10.0**decade, 1)
            yield text(x, bottom + 13, f"{10.0**decade:g}", size=10, more=_CENTRE)
        for decade in range(ceil(self.floor), int(self.floor + 3) + 1):
            _, y = self.at(1, 10.0**decade)
            yield text(self.left - 4, y + 3, f"{10.0**decade:g}", size=10, more=_END)
        words = "flops for each byte of A, B and C"
        yield text(self.left + self.width / 2, bottom + 27, words, size=11, more=_CENTRE)

    def key(self, place: int, words: str, nearest: bool) -> Iterator[str]:
        """Yield the SVG of line number ``place`` of the legend; line 0 is the lowest."""
        x, y = self.left + self.width - 6, self.top + self.height - 10 - 14 * place
        weight = f"font-weight='bold' {_END}" if nearest else _END
        yield text(x, y, words, size=10, more=weight)


def _dot(x: float, y: float, fill: str) -> str:
    return f"<circle cx='{x:.5g}' cy='{y:.5g}' r='5' fill='{fill}' stroke='{INK}'/>"
