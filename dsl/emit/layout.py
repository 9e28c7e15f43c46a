"""Lines of C broken where they are longer than a reader's screen."""

from __future__ import annotations

import re
from collections.abc import Iterator

WIDTH = 120
_OPENING = re.compile(r"\{( /\*.*\*/)?$")
#: Where a line of C may be broken, the best first: behind an argument, before an operator.
_BREAKS = ((", ", 2), (" = ", 3), (" + ", 1), (" * ", 1), ("(", 1), (" ", 1))


def folded(text: str) -> str:
    """``text`` with every line within ``WIDTH`` columns, as far as it can be broken.

    No empty line follows another, nor the beginning of a block.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        if line or not (lines and (not lines[-1] or _OPENING.search(lines[-1]))):
            lines += _parts(line) if len(line) > WIDTH else (line,)
    return "\n".join(lines)


def _parts(line: str) -> Iterator[str]:
    indent = line[: len(line) - len(line.lstrip())]
    starred = line.startswith(" * ")
    end = " \\" if not starred and (line.startswith("#") or line.endswith("\\")) else ""
    more = " *     " if starred else f"{indent}    "
    while len(line) > WIDTH:
        at = _break(line, len(more), starred)
        if at is None:
            break
        yield line[:at].rstrip() + end
        line = more + line[at:].lstrip()
    yield line


def _break(line: str, first: int, starred: bool) -> int | None:
    """Where ``line`` is broken: at the last of the best places that leave enough before them.

    Outside of a comment that is not within a string.
    """
    for text, behind in _BREAKS:
        at = line.rfind(text, first, WIDTH - 2)
        if at > first and (starred or line[: at + behind].count('"') % 2 == 0):
            return at + behind
    return None
