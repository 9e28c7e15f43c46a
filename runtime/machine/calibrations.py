"""Store and find the performance numbers of a core that ``tilewright calibrate`` measured.

The user's data directory has one calibration for each kind of processor and compiler. Its numbers
for a target have a name that is a digest of them, for example ``avx512+vnni+core1f00ba12``. So a
kernel's name shows which numbers were used to choose its tiles, on any machine. A pickled kernel
carries its numbers along.

A warm start only reads the file and compares its digest. The file was checked when it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.errors import TargetError
from tilewright.runtime.store import folders
from tilewright.runtime.store.folders import UNREADABLE, UnusableError, say
from tilewright.settings import settings

if TYPE_CHECKING:
    from tilewright.isa.core_file import CoreFile
    from tilewright.isa.target import Target

#: Version of the calibration file's format. The core inside the file has a version of its own.
FORMAT = 1
_LONGEST = 1 << 20
#: Pattern of the part of a target's name that refers to measured performance numbers of a core.
_NAME = re.compile(r"core[0-9a-f]{8}")
#: Pattern of characters that are replaced by "_" in the name of a calibration file.
_NO_LETTERS = re.compile(r"[^a-z0-9]+")


class Measured(NamedTuple):
    """The measured performance numbers of a core for ``target``, as plain JSON data.

    ``source`` is a text that says on which machine, with which compiler and when they were
    measured.
    """

    name: str
    target: str
    numbers: Mapping[str, Any]
    source: str


class Calibration(NamedTuple):
    """A calibration file: processor, compiler, the numbers by target, and the core's raw data."""

    processor: str
    compiler: str
    cores: Mapping[str, Measured]
    raw: Mapping[str, Any]


def is_measured(name: str) -> bool:
    """Return True if ``name``, like "core1f00ba12", refers to measured numbers of a core."""
    return _NAME.fullmatch(name) is not None


def path_of(processor: str) -> Path:
    """Return the path of the calibration file of a processor.

    If the environment names a compiler, the path depends on that too.
    """
    named = settings().compiler
    parts = [processor] if named is None else [processor, named]
    text = _NO_LETTERS.sub("_", " ".join(parts).lower()).strip("_")
    # A digest distinguishes names that differ only in replaced or cut characters.
    if named is not None or len(text) > 80:
        text = f"{text[:80]}_{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:8]}"
    return folders.data_directory() / "cores" / f"{text}.json"


def of(processor: str) -> Calibration | None:
    """Return the calibration of a processor, None if there is none.

    A file that is damaged, or of another processor or version, is renamed with a warning.
    """
    path = str(path_of(processor))
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return _known(path, processor, stat.st_ino, stat.st_size, stat.st_mtime_ns)


@cache
def _known(path: str, processor: str, *_status: int) -> Calibration | None:
    try:
        return _read(path, processor)
    except (UnusableError, OSError) as problem:
        aside = f"{path}.unusable"
        with suppress(OSError):
            os.replace(path, aside)
        say(
            f"tilewright's calibration is set aside as {aside}: {problem}; "
            "tilewright calibrate measures anew"
        )
        return None


def _read(path: str, processor: str) -> Calibration:
    """Read a calibration file; raises UnusableError or OSError."""
    text, _ = folders.read_file(path, _LONGEST)
    try:
        raw = json.loads(text)
        if raw["format"] != FORMAT:
            raise UnusableError(f"it has format {raw['format']!r}, this version writes {FORMAT}")
        if raw["digest"] != _digest(raw):
            raise UnusableError("it was altered")
        if raw["processor"] != processor:
            raise UnusableError(f"it is that of {raw['processor']!r}, this is {processor!r}")
        cores = raw["core"]["cores"].items()
        source = str(raw["core"]["source"])
        found = {target: measured(target, numbers, source) for target, numbers in cores}
        return Calibration(processor, str(raw["compiler"]), found, raw["core"])
    except UNREADABLE:
        raise UnusableError("it cannot be read") from None


def _digest(raw: Mapping[str, Any]) -> str:
    said = {key: value for key, value in raw.items() if key != "digest"}
    return hashlib.sha256(_canonical(said).encode()).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def measured(target: str, numbers: Mapping[str, Any], source: str) -> Measured:
    """Return measured numbers of a core with a name, which is a digest of them."""
    text = _canonical({"target": target, "numbers": numbers})
    name = f"core{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return Measured(name, target, numbers, source)


def keep(processor: str, compiler: str, core: CoreFile) -> Path:
    """Store a calibration in one step, replacing the old one; return its file. Raises OSError."""
    said = {"format": FORMAT, "processor": processor, "compiler": compiler, "core": core.raw()}
    path = path_of(processor)
    folders.make_directory(path.parent)
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps({**said, "digest": _digest(said)}, indent=1), encoding="utf-8")
        part.chmod(0o600)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def forget(path: Path) -> bool:
    """Remove a calibration; True if there was one."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


# --- numbers by their name ---------------------------------------------------------------------

#: Measured numbers of a core that came to this process with a pickled kernel, by their names.
_carried: dict[str, Measured] = {}


def carry(given: Measured) -> None:
    """Register measured numbers of a core that came with a pickled kernel.

    Raises TargetError if they do not match their name.
    """
    if measured(given.target, given.numbers, given.source).name != given.name:
        raise TargetError("a kernel's numbers of a core are not those of its name", got=given.name)
    _carried[given.name] = given


def called(name: str) -> Measured:
    """Return the measured numbers of a core called ``name``; TargetError if they are not here."""
    if name in _carried:
        return _carried[name]
    for path in sorted((folders.data_directory() / "cores").glob("*.json")):
        with suppress(UnusableError, OSError, *UNREADABLE):
            processor = json.loads(folders.read_file(str(path), _LONGEST)[0])["processor"]
            for each in _read(str(path), processor).cores.values():
                if each.name == name:
                    return each
    raise TargetError(
        f"no calibration here has the numbers {name}",
        got=f"those of {folders.data_directory() / 'cores'}",
        expected="those of the machine, and of the day, that named them",
        hint="target='host', or a target without them",
    )


@cache
def scheduled(target: Target, name: str) -> Target:
    """Return ``target`` with measured performance numbers of a core, those called ``name``.

    Raises TargetError if they were measured for another target.
    """
    from tilewright.isa.core_file import core_of

    found = called(name)
    base = target.name.partition("+")[0]
    if found.target != base:
        raise TargetError(f"{name} are numbers for {found.target}", got=target.name)
    return replace(
        target,
        name=f"{target.name}+{name}",
        title=f"{target.title}, scheduled as measured",
        core=core_of(found.numbers, name),
        core_source=f"measured: {found.source}",
    )
