"""The cache of compiled kernels: found by a digest, verified before use, published by one rename.

Layout of the directory: ``entries/<key>/`` holds the files of an entry with its ``manifest.json``.
``building/<key>`` holds what a process is making, under the lock ``locks/<key>.lock``.
``templates`` and ``headers`` hold files that save compile time. If the manifest of an entry names
another key, the entry is a reference: one kernel of a library with many kernels.

If the directory takes no entries (read-only, full) or cannot run them (noexec), a private temporary
directory is used until the process ends, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import errors, targets, templates
from tilewright.errors import CacheError, ToolchainError

from . import folders
from .folders import (
    UNREADABLE,
    UnusableError,
    check_directory,
    check_file,
    check_owner,
    remove,
    say,
)
from .patience import patience

#: Function that writes an entry's files into a directory, and returns the facts for the manifest.
Builder = Callable[[Path], Mapping[str, Any]]
#: Function that returns the caller's objection to a manifest as text, None if there is none.
Check = Callable[[Mapping[str, Any]], str | None]

FORMAT = 1
MANIFEST = "manifest.json"
#: Maximum length of a manifest in bytes. A library of 1,000 kernels has a record for each spec.
_LONGEST_MANIFEST = 1 << 24
LOCK_SECONDS = 600.0
#: The ways in which the library of an entry may run, as ``machine.host.means`` returns them.
_MEANS = ("native", "qemu", "header")
#: Other folders of the cache directory. Their files are made again if they are missing (see
#: ``shelf``).
_REMADE = ("templates", "headers")
_TOOLCHAIN = os.path.join(os.path.dirname(__file__), "..", "build", "toolchain.py")
#: Packages whose files decide what is generated. In a checkout their folders are side by side. In
#: an installation the second and the third are inside the first.
_ROOMS = tuple(os.path.dirname(str(module.__file__)) for module in (errors, targets, templates))
#: Folders of the first package that are not part of it in a checkout.
_OTHER_ROOMS = frozenset(
    {"targets", "templates", "runtime", "tuning", "torch", "jax", "examples", "cli"}
)
#: Endings of files that decide what is generated: Python modules, templates, and the JSON files of
#: processor cores.
_SOURCES = (".py", ".j2", ".json")
#: Names of folders that hold no sources.
_NOT_SOURCES = frozenset({"__pycache__"})


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified entry. ``library`` may be loaded or run; ``manifest`` holds its builder's
    facts.
    """

    key: str
    directory: Path
    library: Path
    manifest: Mapping[str, Any]

    @property
    def source(self) -> Path:
        """The C file that the library was compiled from."""
        return self.directory / str(self.manifest["source"])

    @property
    def holder(self) -> str:
        """Key of the entry that owns the directory: another key if this entry is a reference."""
        return str(self.manifest.get("entry", self.key))


@cache
def sources_digest() -> str:
    """Return the SHA-256 of all sources that decide what is generated, as of the first call.

    The digest does not follow later changes of the files, since a process continues with the
    modules that it loaded.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_sources()):
        with open(path, "rb", buffering=0) as file:
            text = file.readall()
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, str]]:
    """Yield each source file: the number of its package with the path below it, and the full
    path.
    """
    yield "toolchain.py", _TOOLCHAIN
    for number, room in enumerate(_ROOMS):
        yield from _below(room, str(number), _NOT_SOURCES | _OTHER_ROOMS)


def _below(folder: str, name: str, without: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the source files in a folder and in its subfolders, except those named in
    ``without``.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SOURCES):
                yield f"{name}/{entry.name}", entry.path
            elif entry.name not in without and entry.is_dir():
                yield from _below(entry.path, f"{name}/{entry.name}", _NOT_SOURCES)


def key(*parts: str) -> str:
    """Return the cache key of the entry that ``parts`` describe.

    The key also depends on tilewright's sources, the operating system and the architecture.
    """
    machine = os.uname().machine if hasattr(os, "uname") else ""
    digest = hashlib.sha256()
    for part in (sources_digest(), sys.platform, machine, *parts):
        digest.update(f"{len(part)}:{part};".encode())
    return digest.hexdigest()


def lookup(key: str, check: Check | None = None) -> Entry | None:
    """Return the verified entry of ``key``; None if there is none or, with a warning, if it is
    unusable.

    ``check`` returns a further objection to the manifest, or None.
    """
    found = (_find(root, key, check) for root in _roots())
    return next((entry for entry in found if entry is not None), None)


def publish(key: str, build: Builder, check: Check | None = None) -> Entry:
    """Return the entry of ``key``, or build it.

    Parameters
    ----------
    key : str
        The entry's key.
    build : callable
        Called with an empty directory. It writes the files and returns the facts for the manifest,
        in which ``library`` and ``source`` name two of the files.
    check : callable, optional
        Returns an objection to a manifest, or None. An existing entry with an objection is built
        again.

    Returns
    -------
    Entry
        The entry. If several processes ask for one key at the same time, one process builds the
        entry and the others take it.

    Raises
    ------
    CacheError
        No directory can hold the entry. Errors that ``build`` raises are passed on, unless the disk
        is full.
    """
    root = _roots()[0]
    try:
        return _make(root, key, build, check)
    except _RefusedError as refused:
        problem = str(refused)
    say(f"tilewright's cache {root} takes no new kernels ({problem}): kept for this process only")
    own = folders.make_private()
    try:
        return _make(own, key, build, check)
    except _RefusedError as refused:
        raise CacheError(
            "neither the cache nor a temporary directory takes the kernel",
            got=f"{root}: {problem}; {own}: {refused}",
            hint="make room, or set TILEWRIGHT_CACHE_DIR",
        ) from refused


def refer(key: str, entry: Entry, info: Mapping[str, Any]) -> Entry:
    """Write an entry for ``key`` that refers to ``entry``, with ``info`` as its manifest."""
    root = entry.directory.parent.parent
    own = {**info, "format": FORMAT, "key": key, "entry": entry.holder}
    if key == entry.holder:
        return entry
    try:
        with _locked(root, key):
            building = _fresh(root / "building" / key)
            _write_json(building / MANIFEST, own)
            _put(root, key)
    except OSError as error:
        say(f"tilewright's cache {root} takes no new kernels ({error.strerror})")
    return Entry(key, entry.directory, entry.library, {**entry.manifest, **own})


def discard(entry: Entry) -> None:
    """Remove an entry, the one it refers to, and the copy of its library if there is one."""
    for name in {entry.key, entry.holder}:
        remove(entry.directory.parent / name)
    remove(entry.library)


def list_entries() -> list[Entry]:
    """Return all usable entries, references included; warn about the others."""
    return [entry for key in _keys() if (entry := lookup(key)) is not None]


def verify_entries() -> Iterator[tuple[str, str | None]]:
    """Yield each key with its fault, or None. All files are read, not only the libraries."""
    for key in _keys():
        try:
            entry = _open(folders.cache_directory(), key)
            for name, listed in entry.manifest["files"].items():
                _verify(str(entry.directory / name), listed)
        except (UnusableError, FileNotFoundError) as problem:
            yield key, str(problem)
        else:
            yield key, None


def clear() -> int:
    """Remove all entries and return their number. A process can go on using a library it has
    loaded.
    """
    keys, (root, *_) = _keys(), _roots()
    folders.collect_private()
    for name in ("entries", "building", "locks", *_REMADE):
        remove(root / name)
    return len(keys)


def _keys() -> list[str]:
    entries = _roots()[0] / "entries"
    return sorted(os.listdir(entries)) if entries.is_dir() else []


def _roots() -> list[Path]:
    """Return the cache directory, checked, and this process's private directory if it has one."""
    root = folders.cache_directory()
    if folders.exists(root):
        check_directory(root)
    own = folders.private()
    return [root] if own is None else [root, own]


# --- reading -----------------------------------------------------------------------------------


def _find(root: Path, key: str, check: Check | None = None) -> Entry | None:
    try:
        entry = _open(root, key)
        if check is not None and (problem := check(entry.manifest)) is not None:
            raise UnusableError(problem)
        return _runnable(root, entry)
    except FileNotFoundError:
        return None
    except UnusableError as problem:
        say(f"tilewright's cache entry {key[:16]} is set aside: {problem}")
        return None


def _open(root: Path, key: str, *, referred: bool = False) -> Entry:
    """Return the entry of ``key``, its library verified; FileNotFoundError if there is none."""
    entries = os.path.join(root, "entries")
    folder = os.path.join(entries, key)
    try:
        text, _ = folders.read_file(os.path.join(folder, MANIFEST), _LONGEST_MANIFEST)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnusableError(f"{MANIFEST}: {error.strerror}") from None
    for path in (entries, folder):
        check_owner(path, path)
    manifest = _parse(text, key)
    if "entry" not in manifest:
        library = os.path.join(folder, manifest["library"])
        _verify(library, manifest["files"][manifest["library"]])
        return Entry(key, Path(folder), Path(library), manifest)
    if referred:
        raise UnusableError("it refers to a reference")
    try:
        held = _open(root, manifest["entry"], referred=True)
    except FileNotFoundError:
        raise UnusableError("the library it refers to is gone") from None
    return Entry(key, held.directory, held.library, {**held.manifest, **manifest})


def _parse(text: bytes, key: str) -> dict[str, Any]:
    """Return the manifest; UnusableError if a field that this module reads has the wrong type."""
    try:
        manifest = dict(json.loads(text))
        if manifest["format"] != FORMAT:
            raise UnusableError(
                f"its manifest has format {manifest['format']}, this version writes {FORMAT}"
            )
        if manifest["key"] != key:
            raise UnusableError("its manifest belongs to another entry")
        if manifest.get("means", "native") not in _MEANS:
            raise UnusableError(f"its manifest says that it runs by {manifest['means']!r:.40}")
        if "entry" in manifest:
            names = [manifest["entry"]]
        else:
            files = manifest["files"]
            names = [manifest["library"], manifest["source"], *files]
            legal = all(type(each["size"]) is int and each["size"] >= 0 for each in files.values())
            if not legal or not all(isinstance(each["sha256"], str) for each in files.values()):
                raise ValueError
            if not {manifest["library"], manifest["source"]} <= files.keys():
                raise ValueError
        if not all(map(_is_name, names)):
            raise ValueError
    except UNREADABLE:
        raise UnusableError("its manifest cannot be read") from None
    return manifest


def _is_name(name: object) -> bool:
    """Return True if ``name`` is a plain file name that cannot lead to another folder."""
    if not isinstance(name, str) or name in ("", os.curdir, os.pardir):
        return False
    return name.isprintable() and os.path.basename(name) == name


#: SHA-256 of each file that this process has read, so that a library of many kernels is read once.
_hashed: dict[tuple[Any, ...], str] = {}


def _verify(path: str, listed: Mapping[str, Any]) -> None:
    name = os.path.basename(path)
    try:
        with open(path, "rb", buffering=0, opener=folders.without_waiting) as file:
            stat = check_file(file.fileno(), path)
            stamp = (path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            if stat.st_size != listed["size"]:
                raise UnusableError(f"{name} has {stat.st_size} bytes, not {listed['size']}")
            if (digest := _hashed.get(stamp)) is None:
                digest = _hashed[stamp] = hashlib.sha256(file.readall()).hexdigest()
    except OSError as error:
        raise UnusableError(f"{name}: {error.strerror}") from None
    if digest != listed["sha256"]:
        raise UnusableError(f"{name} was altered")


def _runnable(root: Path, entry: Entry) -> Entry:
    """Return ``entry``, with its library copied to a directory where programs may run if
    necessary.
    """
    if not folders.is_noexec(root):
        return entry
    own = folders.make_private()
    say(f"tilewright's cache {root} is mounted noexec: libraries are copied to {own}")
    copy = own / f"{entry.holder}-{entry.library.name}"
    if not copy.exists():
        part = own / f"{entry.holder}-{os.getpid()}"
        part.write_bytes(entry.library.read_bytes())
        part.chmod(0o700)
        part.rename(copy)
    _verify(str(copy), entry.manifest["files"][entry.library.name])
    return Entry(entry.key, entry.directory, copy, entry.manifest)


# --- writing -----------------------------------------------------------------------------------


class _RefusedError(Exception):
    """A directory takes no new entries; the message says why."""


@contextmanager
def _own_files() -> Iterator[None]:
    """Turn errors of the cache's own file operations into _RefusedError."""
    try:
        yield
    except OSError as error:
        raise _RefusedError(error.strerror or str(error)) from error


def _make(root: Path, key: str, build: Builder, check: Check | None) -> Entry:
    with _own_files():
        if not root.is_dir():
            folders.make_directory(root)
        lock = _locked(root, key)
    with lock:
        with _own_files():
            if (entry := _find(root, key, check)) is not None:
                return entry
            _collect(root, key)
            building = _fresh(root / "building" / key)
        try:
            said = _built(building, build)
            with _own_files():
                _finish(building, said, key)
                _put(root, key)
        except BaseException:
            remove(building)
            raise
        if (entry := _find(root, key, check)) is None:
            raise _RefusedError("what was just written cannot be read back")
        return entry


def _built(folder: Path, build: Builder) -> Mapping[str, Any]:
    """Return the result of ``build``; _RefusedError if it failed because the disk is full."""
    try:
        with patience("compiling a kernel, once; it is then kept in the cache"):
            return build(folder)
    except (OSError, ToolchainError) as error:
        if not folder.is_dir() or folders.has_space(folder):
            raise
        raise _RefusedError("there is no room on the disk") from error


def _finish(building: Path, said: Mapping[str, Any], key: str) -> None:
    """Write the manifest of the entry whose files are in the folder ``building``."""
    manifest = {**said, "format": FORMAT, "key": key, "files": _contents(building)}
    for role in ("library", "source"):
        if manifest.get(role) not in manifest["files"]:
            raise CacheError(f"the builder left no {role}", got=manifest.get(role))
    _write_json(building / MANIFEST, manifest)


def _contents(building: Path) -> dict[str, dict[str, Any]]:
    files = {}
    for file in sorted(building.iterdir()):
        os.chmod(file, file.stat().st_mode & ~0o022)
        data = file.read_bytes()
        files[file.name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return files


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    path.chmod(0o600)


def _put(root: Path, key: str) -> None:
    """Rename the folder with the built files to that of the entry, after removing an old entry."""
    remove(root / "entries" / key)
    os.rename(root / "building" / key, root / "entries" / key)


def _locked(root: Path, key: str) -> Any:
    import filelock

    for name in ("locks", "building", "entries"):
        with suppress(FileExistsError):
            (root / name).mkdir(mode=0o700)
        check_directory(root / name)
    try:
        return filelock.FileLock(root / "locks" / f"{key}.lock", timeout=LOCK_SECONDS).acquire()
    except filelock.Timeout:
        raise OSError(None, f"another process held the lock for {LOCK_SECONDS:.0f} s") from None


def _collect(root: Path, key: str) -> None:
    """Remove the folders in ``building`` of processes that were killed: their locks are free."""
    import filelock

    for name in os.listdir(root / "building"):
        if name == key:
            continue
        lock = filelock.FileLock(root / "locks" / f"{name}.lock", timeout=0)
        with suppress(filelock.Timeout, OSError), lock:
            remove(root / "building" / name)


def _fresh(folder: Path) -> Path:
    """Return the empty directory ``folder``; the files of a killed process are removed."""
    remove(folder)
    folder.mkdir(mode=0o700)
    return folder
