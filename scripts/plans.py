"""Draws the pictures of plans in docs/pictures: a kernel's tiles, and a large product's loops.

Every number is a plan's own: block sizes, the tile, and the bytes that each block takes.
``--check`` fails when a committed picture is another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright import targets
from tilewright.explain.svg import FILLS, MONO, PALE, PAPER, SANS, box, document, text
from tilewright.generate import draw_plan, plan_for
from tilewright.plan.plan import Plan
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import ITEMSIZE

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "pictures"
SIZE, TARGET = 2048, "avx512"
SPEC = Gemm(m=SIZE, n=SIZE, k=SIZE)
#: The kernel of the other picture.
SMALL, TILED = Gemm(m=64, n=50, k=64), Schedule(tile=(8, 48))

WIDTH, ROW, TOP = 900, 96, 70
#: Pixels of the side of a whole matrix, and the left edges of C, A and B.
SIDE, LEFTS = 74, {"c": 470, "a": 620, "b": 770}
#: Rows and columns of each matrix.
AXES = {"c": "mn", "a": "mk", "b": "kn"}
NOUNS = {"m": "rows of C", "n": "columns of C", "k": "steps of K"}
_GRAY = f"fill='{PALE}' {SANS}"


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop: its dimension, the size of its step, and the step's name."""

    letter: str
    step: int
    name: str


def loops(plan: Plan) -> Iterator[Loop]:
    """The loops over blocks, then those over panels, outermost first."""
    assert plan.nest.panel_tile is not None, "large products pack panels"
    tile = dict(zip("mn", plan.nest.panel_tile, strict=True))
    seen: set[str] = set()
    for letter in plan.nest.outer:
        again = letter in seen or letter not in plan.nest.blocks
        size, name = (
            (tile[letter], f"{letter}r") if again else (plan.nest.blocks[letter], f"{letter}c")
        )
        seen.add(letter)
        yield Loop(letter, size, name)


def row(plan: Plan, before: Sequence[Loop], sizes: Mapping[str, int]) -> Iterator[str]:
    """The last of the loops in words, and the parts of C, A and B that its body works on."""
    at, loop = len(before) - 1, before[-1]
    y = TOP + at * ROW
    words = f"{at + 1}. {loop.letter} in steps of {loop.name} = {loop.step} {NOUNS[loop.letter]}"
    yield text(28, y + 24, words, size=14, more=f"font-weight='bold' {SANS}")
    for i, said in enumerate(held(plan, loop, sizes)):
        yield text(46, y + 46 + 18 * i, said, size=12, more=_GRAY)
    for matrix, left in LEFTS.items():
        yield box(left, y, SIDE, SIDE, PAPER, 0.8)
        down, right = (share(axis, before) for axis in AXES[matrix])
        fill = FILLS[{"c": 0, "a": 2, "b": 1}[matrix]]
        yield box(left, y, SIDE * right, SIDE * down, fill, 0.8)


def share(axis: str, before: Sequence[Loop]) -> float:
    """Part of a side that is filled, smaller for each loop that cut the dimension."""
    return (1.0, 0.45, 0.14)[sum(loop.letter == axis for loop in before)]


def held(plan: Plan, loop: Loop, sizes: Mapping[str, int]) -> Iterator[str]:
    """Lines on what is packed in the loop's body, and which cache holds it."""
    item, caches = ITEMSIZE["f32"], plan.target.core.caches
    blocks = {"k": ("b", "kn", "B"), "m": ("a", "mk", "A")}
    if (
        loop.name.endswith("c")
        and loop.letter in blocks
        and blocks[loop.letter][0] in plan.staging.packs
    ):
        _, axes, name = blocks[loop.letter]
        kib = sizes[axes[0]] * sizes[axes[1]] * item / 1024
        level = next((i + 1 for i, c in enumerate(caches) if c.size >= kib * 1024), len(caches))
        what = f"{sizes[axes[0]]} x {sizes[axes[1]]}"
        yield f"packs a block of {name}, {what} elements: {kib:.0f} KiB"
        yield f"L{level} holds it ({caches[level - 1].size // 1024} KiB)"
    elif loop.name == "nr":
        kib = sizes["k"] * loop.step * item / 1024
        yield f"reads one panel of B, {sizes['k']} x {loop.step} elements: {kib:.0f} KiB"
        yield "calls the micro-kernel once"
    elif loop.name == "mr":
        kib = sizes["k"] * loop.step * item / 1024
        yield f"reads one panel of A, {loop.step} x {sizes['k']} elements: {kib:.0f} KiB, from L1"
    else:
        yield "nothing is packed yet"


def five_loops() -> str:
    """The loops around the micro-kernel, as SVG."""
    plan = plan_for(SPEC, Schedule(), targets.load(TARGET))
    assert isinstance(plan, Plan)
    sizes = dict.fromkeys("mnk", SIZE)
    title = f"f32, {SIZE} x {SIZE} x {SIZE} on {TARGET}: the loops around the micro-kernel"
    parts = [text(28, 34, title, size=16, more=f"font-weight='bold' {SANS}")]
    parts += [text(left, TOP - 8, name.upper(), size=13) for name, left in LEFTS.items()]
    found = list(loops(plan))
    for at, loop in enumerate(found):
        sizes[loop.letter] = loop.step
        parts += row(plan, found[: at + 1], sizes)
    y = TOP + len(found) * ROW
    mr, nr = (loop.step for loop in found[-2:])
    said = f"{len(found) + 1}. The micro-kernel: {mr} x {nr} sums in registers, one loop over kc"
    parts.append(text(28, y + 24, said, size=14, more=f"font-weight='bold' {SANS}"))
    code = f"for each of kc steps: C[{mr} x {nr}] += column of A's panel x row of B's panel"
    parts.append(text(46, y + 46, code, size=12, more=MONO))
    parts.append(
        text(28, y + 76, "Coloured: what the loop's body works on. Not to scale.", more=_GRAY)
    )
    return document(WIDTH, y + 92, title, parts)


def pictures() -> dict[str, str]:
    """SVG by file name."""
    small = plan_for(SMALL, TILED, targets.load(TARGET))
    assert isinstance(small, Plan)
    return {"tile.svg": draw_plan(small), "five-loops.svg": five_loops()}


def main() -> int:
    """Draw, or with ``--check`` compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    paths = {FOLDER / name: drawn for name, drawn in pictures().items()}
    if parser.parse_args().check:
        stale = [p for p, drawn in paths.items() if not p.exists() or p.read_text("utf-8") != drawn]
        for path in stale:
            print(f"{path} is not current; try: python -m scripts.plans")
        return bool(stale)
    for path, drawn in paths.items():
        path.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
