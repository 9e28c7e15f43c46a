"""Processors that the cost model knows, read from the files of ``cores/``.

They are features of targets, but add no instruction: a kernel for one runs on every CPU that has
its target.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tilewright.errors import TargetError
from tilewright.isa.core_file import CoreFile, parse
from tilewright.isa.target import Feature

#: Folder of the files. ``tilewright calibrate --export`` writes such files.
FOLDER = Path(__file__).parent / "cores"


@cache
def shipped() -> tuple[CoreFile, ...]:
    """Return every shipped core, sorted by name; TargetError if a file is not one."""
    found = tuple(parse(path.read_bytes(), path.name) for path in sorted(FOLDER.glob("*.json")))
    for path, core in zip(sorted(FOLDER.glob("*.json")), found, strict=True):
        if path.stem != core.name:
            raise TargetError(f"{path.name} describes another core", got=core.name)
    return found


def processors(target: str) -> dict[str, Feature]:
    """Return the cores that have numbers for ``target``, as its features."""
    return {
        core.name: Feature(
            title=f"scheduled for {core.title}",
            processors=tuple(core.described()),
            core=core.cores[target],
            core_source=f"{core.title}, shipped: {core.source}",
        )
        for core in shipped()
        if target in core.cores
    }
