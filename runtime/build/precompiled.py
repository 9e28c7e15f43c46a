"""Precompile the header of the intrinsics, which takes most of a small kernel's compile time.

The C of a kernel includes that header itself and needs nothing else. This module keeps the
compiler's state after the first lines of such a file, the *preamble*, for one compiler and its
options. The compiler takes the state in place of those lines, and makes the same code of the rest.

Layout: ``headers/<key>/`` in the cache directory holds the preamble, the precompiled file, and a
``manifest.json``, which is written last. ``<key>.seen`` says that the preamble was compiled before.
``<key>.lock`` is held while files are made. Making them takes as long as two compiles, so they are
made when a preamble is compiled for the second time. All files may be removed at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import CacheError, ToolchainError
from tilewright.runtime.store.folders import (
    UNREADABLE,
    UnusableError,
    cache_directory,
    check_directory,
    check_owner,
    remove,
)

#: Function that makes the files ``OUTPUT`` and ``READS`` in a folder from its file ``PREAMBLE``.
Maker = Callable[[Path], None]

FORMAT = 1
HEADERS = "headers"
PREAMBLE, OUTPUT, READS = "preamble.h", "preamble.h.gch", "reads.d"
MANIFEST = "manifest.json"
#: Maximum number of precompiled headers that are kept. One made by gcc takes 24 MB.
KEPT = 16
#: Maximum number of times a precompiled header is made again, if the compiler refuses it.
TRIES = 2

_INCLUDE = re.compile(r"#\s*include\b")
_OPENS, _CLOSES = re.compile(r"#\s*if"), re.compile(r"#\s*endif\b")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def preamble(text: str) -> str:
    """Return the directives at the start of C text, up to the last include before other code."""
    lines: list[str] = []
    whole = depth = 0
    included = False
    for line in _COMMENT.sub("", text).splitlines():
        if not (directive := line.strip()):
            continue
        if directive[0] != "#" or directive[-1] == "\\":
            break
        lines.append(directive)
        included |= bool(_INCLUDE.match(directive))
        depth += bool(_OPENS.match(directive)) - bool(_CLOSES.match(directive))
        if included and not depth:
            whole, included = len(lines), False
    return "".join(f"{line}\n" for line in lines[:whole])


def find(text: str, made_by: Sequence[str], make: Maker) -> Path | None:
    """Return the folder that holds the preamble ``text`` precompiled, None if there is none yet.

    ``made_by`` names the compiler and its options. The second call with the same arguments makes
    the folder. The result is also None if the cache directory takes no files, or if others could
    have changed them.
    """
    folder = _folder(text, made_by)
    try:
        if _usable(folder):
            return folder
        return _made(folder, text, make)
    except (OSError, CacheError, ToolchainError):
        return None


def set_aside(folder: Path) -> None:
    """Remove a precompiled header that the compiler refuses.

    It is made again at most ``TRIES`` times.
    """
    try:
        remove(folder)
        with open(_seen(folder), "a", encoding="utf-8") as seen:
            seen.write("x")
    except OSError:
        return


def _folder(text: str, made_by: Sequence[str]) -> Path:
    digest = hashlib.sha256(repr((FORMAT, text, *made_by)).encode()).hexdigest()
    return cache_directory() / HEADERS / digest


def _seen(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.seen")


# --- using -------------------------------------------------------------------------------------

#: SHA-256 of each precompiled file that this process has read. Keys: path, inode, size and times.
_read: dict[tuple[Any, ...], str] = {}


def _usable(folder: Path) -> bool:
    """Return True if ``folder`` is complete, safe from others, and made from current headers."""
    try:
        with open(folder / MANIFEST, "rb", buffering=0) as file:
            check_owner(file.fileno(), MANIFEST)
            manifest = json.loads(file.readall())
        for directory in (folder.parent.parent, folder.parent, folder):
            check_directory(directory)
        check_owner(str(folder / PREAMBLE), PREAMBLE)
        if _digest(folder / OUTPUT) != manifest["sha256"]:
            return False
        if any(_stamp(path) != stamp for path, stamp in manifest["reads"].items()):
            return False
        os.utime(folder / MANIFEST)
    except (OSError, UnusableError, *UNREADABLE):
        return False
    return True


def _digest(path: Path) -> str:
    with open(path, "rb", buffering=0) as file:
        stat = check_owner(file.fileno(), str(path))
        stamp = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if stamp not in _read:
            _read[stamp] = hashlib.file_digest(file, "sha256").hexdigest()
    return _read[stamp]


def _stamp(path: str) -> list[int]:
    stat = os.stat(path)
    return [stat.st_size, stat.st_mtime_ns]


# --- making ------------------------------------------------------------------------------------


def _made(folder: Path, text: str, make: Maker) -> Path | None:
    import filelock

    root, seen = folder.parent, _seen(folder)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for directory in (root.parent, root):
        check_directory(directory)
    try:
        lock = filelock.FileLock(root / f"{folder.name}.lock", timeout=0).acquire()
    except filelock.Timeout:
        # Another process is making this precompiled header.
        return None
    with lock:
        if _usable(folder):
            return folder
        if not seen.exists():
            seen.touch(mode=0o600)
            return None
        if seen.stat().st_size >= TRIES:
            return None
        return _fill(folder, text, make)


def _fill(folder: Path, text: str, make: Maker) -> Path:
    """Make a precompiled header in its final folder, because compilers record a header's path."""
    remove(folder)
    folder.mkdir(mode=0o700)
    try:
        (folder / PREAMBLE).write_text(text, encoding="utf-8")
        make(folder)
        reads = {path: _stamp(path) for path in _prerequisites(folder / READS)}
        for name in (PREAMBLE, OUTPUT, READS):
            (folder / name).chmod(0o600)
        _write(folder / MANIFEST, {"sha256": _digest(folder / OUTPUT), "reads": reads})
    except BaseException as problem:
        if isinstance(problem, (OSError, ToolchainError)):
            set_aside(folder)
        else:
            remove(folder)
        raise
    _prune(folder)
    return folder


def _prerequisites(rule: Path) -> Iterator[str]:
    """Yield the headers on which a precompiled file depends, from the rule that the compiler wrote.

    The preamble is left out. Its path is relative, while those of all headers are absolute.
    """
    _, _, names = rule.read_text(encoding="utf-8").replace("\\\n", " ").partition(": ")
    return (name for name in shlex.split(names) if os.path.isabs(name))


def _write(path: Path, value: Mapping[str, Any]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.chmod(0o600)
    part.replace(path)


def _prune(newest: Path) -> None:
    """Remove the least recently used precompiled headers, so that ``KEPT`` remain."""
    used = {}
    for manifest in newest.parent.glob(f"*/{MANIFEST}"):
        try:
            used[manifest.parent] = manifest.stat().st_mtime_ns
        except FileNotFoundError:
            # Another process has removed this folder.
            continue
    for folder in sorted(used, key=used.__getitem__)[: max(0, len(used) - KEPT)]:
        if folder != newest:
            _seen(folder).unlink(missing_ok=True)
            remove(folder)
