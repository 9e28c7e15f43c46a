"""Break lines of generated C that are too long to read."""

from __future__ import annotations

import re
from collections.abc import Iterator

WIDTH = 120
_OPENING = re.compile(r"\{( /\*.*\*/)?$")
#: Places where a line of C may be broken, best first: the text, and how many of its characters stay
#: on the first line.
_BREAKS = ((", ", 2), (" = ", 3), (" + ", 1), (" * ", 1), ("(", 1), (" ", 1))


def folded(text: str) -> str:
    """Return ``text`` with lines of at most ``WIDTH`` columns, as far as they can be broken.

    Empty lines after another one, or after the beginning of a block, are removed.
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
    """Return the column where ``line`` is broken, None if there is none.

    This is the last place of the best kind that leaves enough text before it. A string is not
    broken, except in a comment.
    """
    for text, behind in _BREAKS:
        at = line.rfind(text, first, WIDTH - 2)
        if at > first and (starred or line[: at + behind].count('"') % 2 == 0):
            return at + behind
    return None
