"""Processors that the cost model knows, read from the files of ``cores/``.

A processor is a feature of a target, for example ``zen3`` in ``avx2+zen3``, but adds no
instruction. A kernel for it runs on every CPU that has the target.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tilewright.errors import TargetError
from tilewright.isa.core_file import CoreFile, parse
from tilewright.isa.target import Feature

#: Folder of the core files. ``tilewright calibrate --export`` writes files in the same format.
FOLDER = Path(__file__).parent / "cores"


@cache
def shipped() -> tuple[CoreFile, ...]:
    """Return every shipped core file, sorted by name; TargetError if a file is invalid."""
    found = tuple(parse(path.read_bytes(), path.name) for path in sorted(FOLDER.glob("*.json")))
    for path, core in zip(sorted(FOLDER.glob("*.json")), found, strict=True):
        if path.stem != core.name:
            raise TargetError(f"{path.name} describes another core", got=core.name)
    return found


def processors(target: str) -> dict[str, Feature]:
    """Return the processors with known latencies for ``target``, as features of the target."""
    return {
        core.name: Feature(
            title=f"scheduled for {core.title}",
            processors=tuple(core.described()),
            core=core.cores[target],
            core_source=f"{core.title}: figures of targets/cores/{core.name}.json",
        )
        for core in shipped()
        if target in core.cores
    }
