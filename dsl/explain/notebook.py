"""Show a plan as HTML in notebooks: formula, estimate, picture, and text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tilewright.ir.nest import Program
from tilewright.plan.loops import Decided
from tilewright.plan.routine import routine_of

from .estimates import estimated, summary
from .picture import picture
from .text import explain, sizes_of_call


def notebook(plan: Decided, program: Program, name: str, notes: Sequence[str]) -> str:
    """Return the HTML of a kernel called ``name``, with ``notes`` below its formula.

    A product has a picture; the text can be unfolded below it.
    """
    drawn = picture(plan, program) if routine_of(plan).drawn else ""
    said = explain(plan, program)
    lines = [said.splitlines()[0].removeprefix("gemm").strip(), *notes[:1], *_estimate(plan)]
    shown = "<br/>".join(map(escape, [*lines, *notes[1:]]))
    words = f"<summary>{escape(name)}</summary><pre>{escape(said)}</pre>"
    return f"<div><p>{shown}</p>{drawn}<details{'' if drawn else ' open'}>{words}</details></div>"


def _estimate(plan: Decided) -> list[str]:
    """Return a list with one line, the estimate of a call on data in cache; [] without estimate."""
    hot = estimated(plan, sizes_of_call(plan, {}), cold=False)
    return [] if hot is None else [f"estimated, with data in cache, at {summary(hot)}"]
