"""Break lines of generated C that are too long to read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

WIDTH = 120
_OPENING = re.compile(r"\{( /\*.*\*/)?$")
#: Texts at which a line of C may be broken, best first. The number says how many characters of the
#: text stay on the first line.
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
        before = line[: at + behind].replace('\\"', "")
        if at > first and (starred or before.count('"') % 2 == 0):
            return at + behind
    return None


# --- commands ----------------------------------------------------------------------------------

#: Matches words that a shell reads correctly without quotation marks.
_PLAIN = re.compile(r"[\w@%+=:,./-]+\Z", re.ASCII)


def pasted(groups: Sequence[Sequence[str]]) -> str:
    """Return a command as text to paste into a shell, with each group of words on its own line.

    A longer line goes on after a backslash, which a shell leaves out, in quotation marks too.
    """
    lines = [" ".join(map(_quoted, words)) for words in groups]
    return " \\\n  ".join("\\\n".join(_continued(line)) for line in lines)


def _quoted(word: str) -> str:
    return word if _PLAIN.match(word) else '"' + re.sub(r'(["$`\\])', r"\\\1", word) + '"'


def _continued(line: str) -> Iterator[str]:
    """Break ``line`` at commas; yield its parts, each of which fits ``WIDTH`` with a backslash."""
    while len(line) > WIDTH - 2:
        at = line.rfind(", ", 0, WIDTH - 3)
        if at < 0:
            break
        yield line[: at + 2]
        line = line[at + 2 :]
    yield line
