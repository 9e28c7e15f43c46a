"""How charts look: one figure in light and in dark colours, written as SVG with its digest."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent.parent / "docs" / "pictures"
#: Inches of a chart: as wide as a page's column, and legible at a phone's width.
WIDTH, HEIGHT = 7.2, 3.9


@dataclass(frozen=True, slots=True)
class Mode:
    """Colours of one mode: ink and paper, and one for each line."""

    name: str
    ink: str
    grid: str
    paper: str
    lines: dict[str, str]

    def colour(self, name: str) -> str:
        """Return the colour of a peer, or of ours."""
        return self.lines.get(name.split(" (", maxsplit=1)[0], self.ink)


_LIGHT = {"tilewright": "#0b62c4", "tw.matmul": "#0b62c4", "numpy": "#c2410c",
          "OpenBLAS": "#c2410c", "torch": "#7e22ce", "oneDNN": "#15803d", "LIBXSMM": "#a16207",
          "MKL": "#be185d", "peak": "#64748b"}  # fmt: skip
_DARK = {"tilewright": "#60a5fa", "tw.matmul": "#60a5fa", "numpy": "#fb923c",
         "OpenBLAS": "#fb923c", "torch": "#c084fc", "oneDNN": "#4ade80", "LIBXSMM": "#facc15",
         "MKL": "#f472b6", "peak": "#94a3b8"}  # fmt: skip
MODES = (
    Mode("light", "#1f2933", "#d5dbe1", "#ffffff", _LIGHT),
    Mode("dark", "#e6edf3", "#3b4450", "#0d1117", _DARK),
)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its file name without mode and ending, the data that it shows, how it is drawn.

    ``draw(axes, data, mode)`` fills one axes; ``caption`` says where the figures are from.
    """

    name: str
    title: str
    caption: str
    data: Any
    draw: Callable[[Any, Any, Mode], None]
    size: tuple[float, float] = field(default=(WIDTH, HEIGHT))

    @property
    def digest(self) -> str:
        """What the drawn file is compared by: the data, the words and the drawing's own code."""
        code = Path(self.draw.__code__.co_filename).read_text(encoding="utf-8")
        held = json.dumps([self.name, self.title, self.caption, self.data, self.size, code])
        return hashlib.sha256(
            (held + Path(__file__).read_text(encoding="utf-8")).encode()
        ).hexdigest()

    def path(self, mode: Mode) -> Path:
        """Where the chart of a mode stands."""
        return FOLDER / f"{self.name}-{mode.name}.svg"

    def current(self) -> bool:
        """True if the committed files were drawn from these data by this code."""
        paths = [self.path(mode) for mode in MODES]
        return all(p.exists() and self.digest in p.read_text(encoding="utf-8") for p in paths)

    def write(self) -> None:
        """Draw both files."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        for mode in MODES:
            self.path(mode).write_text(self._svg(mode), encoding="utf-8")

    def _svg(self, mode: Mode) -> str:
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot

        with mpl.rc_context(_settings(mode, self.name)):
            figure, axes = pyplot.subplots(figsize=self.size, layout="constrained")
            axes.set_title(self.title, loc="left", fontweight="bold")
            self.draw(axes, self.data, mode)
            figure.supxlabel(self.caption, fontsize=6.5, color=mode.colour("peak"))
            text = io.StringIO()
            about = {"Date": None, "Title": self.title, "Description": f"digest {self.digest}"}
            figure.savefig(text, format="svg", metadata=about)
            pyplot.close(figure)
        drawn = text.getvalue()
        return re.sub(r"[ \t]+$", "", drawn[drawn.index("<svg") :], flags=re.MULTILINE)


def _settings(mode: Mode, salt: str) -> dict[str, Any]:
    ink = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
    return {
        **dict.fromkeys(ink, mode.ink),
        "figure.facecolor": mode.paper,
        "axes.facecolor": mode.paper,
        "savefig.facecolor": mode.paper,
        "grid.color": mode.grid,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
        "font.family": "sans-serif",
        "axes.titlesize": 10,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
    }
