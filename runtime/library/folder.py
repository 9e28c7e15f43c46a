"""Write a library's folder: replace the library's own files, and leave all others alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from tilewright.errors import ArgumentValueError
from tilewright.runtime.call.packed_weights import PackedWeights
from tilewright.runtime.store.folders import UNREADABLE

from .manifest import digest

MANIFEST = "manifest.json"
#: Bytes of a file that are read at a time.
_PART = 1 << 20


def write(
    folder: Path, library: str, files: Mapping[str, str], weights: Mapping[str, PackedWeights]
) -> Path:
    """Write a library's ``weights`` and ``files`` (texts) by path, the manifest last.

    See ``Library.write``.
    """
    if folder.exists() and not folder.is_dir():
        raise ArgumentValueError(
            "a library is written into a folder", got=f"{folder}, which is a file"
        )
    before = _written(folder, library)
    _check_own(folder, before, files.keys() | weights.keys())
    for path, packed in weights.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        packed.save(folder / path)
    for path, text in sorted(files.items(), key=lambda each: each[0] == MANIFEST):
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    for path in sorted(before.keys() - files.keys() - weights.keys()):
        (folder / path).unlink(missing_ok=True)
        _remove_empty(folder, (folder / path).parent)
    return folder


def _written(folder: Path, library: str) -> Mapping[str, str]:
    """Return the digests of the files that an earlier ``write`` left here, by path."""
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    try:
        told: Any = json.loads(text)
        name, files = told["library"], told["files"]
        found = {_inside(path): str(each["sha256"]) for path, each in files.items()}
    except UNREADABLE:
        raise ArgumentValueError(
            "the folder has a manifest that no library wrote",
            got=str(folder / MANIFEST),
            hint="another folder",
        ) from None
    if name != library:
        raise ArgumentValueError(
            "the folder holds another library",
            got=f"{folder}, with {name}",
            expected=library,
            hint="another folder, or remove this one",
        )
    return {**found, MANIFEST: digest([text.encode()])}


def _inside(path: str) -> str:
    """Return ``path`` if it is inside the folder; raise ValueError otherwise."""
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(path)
    return path


def _check_own(folder: Path, before: Mapping[str, str], files: Iterable[str]) -> None:
    """Raise ArgumentValueError if a file to write or remove is not the library's, or was edited."""
    foreign = [path for path in sorted(files) if path not in before and (folder / path).exists()]
    edited = [path for path, was in before.items() if _differs(folder / path, was)]
    if foreign or edited:
        raise ArgumentValueError(
            "the folder holds files that are not the library's, or were edited",
            got=", ".join(
                [*(f"{p} (not its own)" for p in foreign), *(f"{p} (edited)" for p in edited)]
            ),
            expected="only what was written here before, as it was written",
            hint="another folder, or move these files away",
        )


def _differs(place: Path, was: str) -> bool:
    try:
        with place.open("rb") as file:
            return digest(iter(partial(file.read, _PART), b"")) != was
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _remove_empty(folder: Path, inner: Path) -> None:
    """Remove ``inner`` and its parents inside ``folder`` while they are empty."""
    while inner != folder and inner.is_dir() and not any(inner.iterdir()):
        inner.rmdir()
        inner = inner.parent
