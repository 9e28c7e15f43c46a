"""Tables that programs write into pages, each between a pair of markers of its own."""

from __future__ import annotations


def placed(page: str, name: str, block: str) -> str:
    """``page`` with ``block`` between the markers called ``name``; ValueError where they lack."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    head, found, rest = page.partition(begin)
    _, ended, tail = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page lacks {begin.strip()} and {end.strip()}")
    return f"{head}{begin}{block}{end}{tail}"
