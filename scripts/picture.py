"""Draws docs/picture.svg: the path from a spec to a kernel, the tile map of a C, and its C.

The map and the C are those of a real kernel, as the generator makes it now.
``--check`` fails when the committed picture is another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from tilewright import targets
from tilewright.explain.cover import cover
from tilewright.explain.picture import tile_fills
from tilewright.explain.svg import INK, MONO, PALE, PAPER, SANS, box, document, text
from tilewright.generate import Request, generate, plan_for
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.symbolic import ZERO

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "picture.svg"
SPEC, SCHEDULE, TARGET = Gemm(m=64, n=50, k=64), Schedule(tile=(8, 48)), "avx512"

WIDTH, HEIGHT = 960, 560
#: Pixels of an element of C, and the map's corner.
UNIT, LEFT, TOP = 6, 60, 152
CODE_LEFT, CODE_TOP, LINE = 446, 158, 15.5

STAGES = (
    ("spec", "what"),
    ("schedule", "how"),
    ("target", "where"),
    ("plan", "every choice"),
    ("program", "operations"),
    ("C", "intrinsics"),
    ("kernel", "a function"),
)
SIGNS = ("+", "+", "→", "→", "→", "→", "")


def path() -> Iterator[str]:
    """The stages, left to right."""
    middle = f"text-anchor='middle' {SANS}"
    step, width = 131, 108
    for i, ((name, what), sign) in enumerate(zip(STAGES, SIGNS, strict=True)):
        x = 32 + i * step
        yield box(x, 30, width, 46, "#eef2f6" if i < 3 else PAPER)
        yield text(x + width / 2, 50, name, size=14, more=f"font-weight='bold' {middle}")
        yield text(x + width / 2, 67, what, size=11, more=f"fill='{PALE}' {middle}")
        yield text(x + width + 11.5, 58, sign, size=18, more=middle)


def tile_map() -> Iterator[str]:
    """C with the tiles that the plan cuts it into."""
    plan = plan_for(SPEC, SCHEDULE, targets.load(TARGET))
    m, n = (plan.problem.sizes[name] for name in "mn")
    yield text(LEFT, TOP - 22, f"C, {m} x {n}, cut into register tiles", size=14)
    grids = list(cover(plan))
    fills = tile_fills(grids)
    for one in grids:
        for i, j in product(range(one.down), range(one.right)):
            x, y = LEFT + (one.column + j * one.nr) * UNIT, TOP + (one.row + i * one.mr) * UNIT
            yield box(x, y, one.nr * UNIT, one.mr * UNIT, fills[one.mr, one.nr])
    right = f"text-anchor='end' fill='{PALE}' {SANS}"
    yield text(LEFT - 8, TOP + 10, "0", size=11, more=right)
    yield text(LEFT - 8, TOP + 64 * UNIT, "64", size=11, more=right)
    columns = plan.target.of(plan.staging.element)[0].lanes
    for column in (0, columns, 2 * columns, 3 * columns):
        words, x = str(column), LEFT + column * UNIT
        centre = f"text-anchor='middle' fill='{PALE}' {SANS}"
        yield text(x, TOP - 6, words, size=11, more=centre)
        if 0 < column < 3 * columns:
            yield (
                f"<line x1='{x}' y1='{TOP}' x2='{x}' y2='{TOP + 64 * UNIT}' stroke='{PALE}' "
                "stroke-dasharray='2 4'/>"
            )
    assert m * UNIT - ZERO <= HEIGHT
    x = LEFT + 50 * UNIT + 14
    for i, ((rows, columns), fill) in enumerate(fills.items()):
        y = TOP + 14 + 22 * i
        yield box(x - 4, y - 10, 11, 11, fill)
        yield text(x + 12, y, f"{rows}x{columns}", size=12)


def code() -> Iterator[str]:
    """The first tile's K loop."""
    request = Request("gemm", SPEC, SCHEDULE, targets.load(TARGET))
    lines = generate([request]).text.splitlines()
    start = next(i for i, line in enumerate(lines) if "static inline void" in line)
    remark = max(i for i in range(start) if lines[i].startswith("/*"))
    loop = next(i for i, line in enumerate(lines) if i > start and "for (int64_t kt" in line)
    end = next(i for i, line in enumerate(lines) if i > loop and line == "    }")
    shown = [*lines[remark : start + 1], "    ...", *lines[loop : loop + 7], "        ..."]
    shown += [*lines[end - 2 : end + 1], "    ..."]
    yield text(CODE_LEFT, TOP - 22, "and the C of one of them", size=14)
    for i, line in enumerate(shown):
        fill = PALE if line.startswith(("/*", " *")) else INK
        more = f"xml:space='preserve' fill='{fill}' {MONO}"
        yield text(CODE_LEFT, CODE_TOP + LINE * i, line, size=10, more=more)


def picture() -> str:
    """The whole picture as SVG."""
    title = f"{SPEC.m} x {SPEC.n}: from spec, schedule and target to a kernel"
    return document(WIDTH, HEIGHT, title, [*path(), *tile_map(), *code()])


def main() -> int:
    """Draw, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    drawn = picture()
    if parser.parse_args().check:
        same = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == drawn
        print("" if same else f"{PICTURE} is not current; try: python scripts/picture.py")
        return not same
    PICTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
