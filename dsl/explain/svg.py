"""Make elements of SVG: text, boxes and lines, in the colours that all pictures share."""

from __future__ import annotations

import html
from collections.abc import Iterable

INK, PALE, PAPER = "#1f2933", "#7b8794", "#ffffff"
#: Colours of register tiles: the first for the largest tile size, the others for tails.
FILLS = ("#dbe9f6", "#f6c667", "#f2994a", "#e06c5a", "#b0d6a8", "#c6b4e0")
SANS = "font-family='Helvetica, Arial, sans-serif'"
MONO = "font-family='Menlo, Consolas, monospace'"


def text(x: float, y: float, words: str, *, size: float = 13, more: str = SANS) -> str:
    """Return an SVG element that shows a line of text at (x, y); ``words`` are escaped."""
    return f"<text x='{x:g}' y='{y:g}' font-size='{size:g}' {more}>{html.escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, fill: str, stroke: float = 1) -> str:
    """Return an SVG element for a filled rectangle, without an outline if ``stroke`` is 0."""
    line = f"stroke='{INK}' stroke-width='{stroke:g}'" if stroke else ""
    return f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' fill='{fill}' {line}/>"


def line(points: Iterable[tuple[float, float]], colour: str = INK, more: str = "") -> str:
    """Return an SVG element for a line through ``points``."""
    path = " ".join(f"{x:.4g},{y:.4g}" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' {more}/>"


def lines(strokes: Iterable[tuple[float, float, float, float]], width: float) -> str:
    """Return one SVG element for many straight lines, each given as (x1, y1, x2, y2)."""
    path = " ".join(f"M{a:.5g} {b:.5g}L{c:.5g} {d:.5g}" for a, b, c, d in strokes)
    return f"<path d='{path}' stroke='{INK}' stroke-width='{width:g}'/>" if path else ""


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return the text of an SVG file that shows the elements ``parts`` on a white background."""
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' "
            f"fill='{INK}'>",
            f"<title>{html.escape(title)}</title>",
            f"<rect width='{width:g}' height='{height:g}' fill='{PAPER}'/>",
            *parts,
            "</svg>\n",
        ]
    )
