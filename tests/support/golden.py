"""Comparing generated text with the committed one."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

SHOWN_LINES = 60


def check_golden(path: Path, text: str, *, update: bool) -> None:
    """Fail with a diff unless ``path`` holds ``text``; with ``update``, write it."""
    __tracebackhide__ = True
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    shown = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
    if not path.exists():
        pytest.fail(f"{shown} is missing; try: make golden, and review it")
    committed = path.read_text()
    if committed != text:
        lines = unified_diff(
            committed.splitlines(), text.splitlines(), shown, "generated now", lineterm=""
        )
        diff = "\n".join(list(lines)[:SHOWN_LINES])
        pytest.fail(f"{shown} differs; if that is meant: make golden, and review it\n{diff}")
