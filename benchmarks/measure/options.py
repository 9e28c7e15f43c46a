"""What the command line chose."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.console import Console

from .native import Effort
from .shapes import Shape


@dataclass(frozen=True, slots=True)
class Options:
    """``only`` restricts shapes; figures over whole lists are then left out.

    ``variants`` of each shape are measured, 0 for all.
    """

    console: Console
    seed: int
    effort: Effort
    target: str
    only: re.Pattern[str] | None = None
    peers_only: bool = False
    variants: int = 60

    def wants(self, shape: Shape | str) -> bool:
        """Whether a shape is to be measured."""
        return self.only is None or self.only.search(str(shape)) is not None
