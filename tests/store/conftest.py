from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.runtime.store import folders


@pytest.fixture
def fresh(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, in a process that has said nothing and has no private directory."""
    monkeypatch.setattr(folders, "_said", set())
    monkeypatch.setattr(folders, "_own", [])
    yield empty_cache
    for _, path in folders._own:
        shutil.rmtree(path)
