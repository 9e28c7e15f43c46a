"""Compiled kernels on disk: found by a digest, verified before use, published by one rename.

Layout: ``entries/<key>/`` holds an entry's files and its ``manifest.json``, ``building/<key>``
what a process is making, ``locks/<key>.lock`` the lock under which it does. An entry whose
manifest names another key is a reference: one kernel of a library that holds many.

A directory that cannot take entries (read-only, full) or cannot run them (noexec) is helped out
by a private temporary one for the life of the process, and the user is told.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import CacheError, ToolchainError
from tilewright.settings import settings

FORMAT = 1
MANIFEST = "manifest.json"
LOCK_SECONDS = 600.0
_PACKAGE = Path(sys.modules["tilewright.errors"].__file__ or "").parent
_SOURCES = (_PACKAGE, _PACKAGE / "targets", _PACKAGE / "templates", _PACKAGE / "runtime")


@dataclass(frozen=True, slots=True)
class Entry:
    """A verified entry: ``library`` may be loaded or run; ``manifest`` is what its maker said."""

    key: str
    directory: Path
    library: Path
    source: Path
    manifest: Mapping[str, Any]


class _Bad(Exception):
    """An entry that must not be used, and why."""


def directory() -> Path:
    """The cache directory: ``TILEWRIGHT_CACHE_DIR``, or the user's; not checked, not made."""
    named = settings().cache_dir
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    if sys.platform == "linux":  # what platformdirs says, without the 7 ms of its import
        base = os.environ.get("XDG_CACHE_HOME", "")
        return Path(base if base.strip() else os.path.expanduser("~/.cache")) / "tilewright"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright", appauthor=False))


_digests: dict[tuple[Any, ...], str] = {}


def sources_digest() -> str:
    """SHA-256 of everything that decides what is generated; cheap while no file changes."""
    stamp = []
    for folder in _SOURCES:
        with os.scandir(folder) as files:
            for file in files:
                if file.name.endswith((".py", ".j2", ".h")):
                    stat = file.stat()
                    stamp.append((file.path, stat.st_mtime_ns, stat.st_size))
    stamp.sort()
    if (known := _digests.get(tuple(stamp))) is None:
        digest = hashlib.sha256()
        for path, _, size in stamp:
            digest.update(f"{os.path.basename(path)}\0{size}\0".encode())
            digest.update(Path(path).read_bytes())
        known = _digests[tuple(stamp)] = digest.hexdigest()
    return known


def key(*parts: str) -> str:
    """The key of what ``parts`` describe, made by this generator, on this kind of machine."""
    machine = os.uname().machine if hasattr(os, "uname") else ""
    digest = hashlib.sha256()
    for part in (sources_digest(), sys.platform, machine, *parts):
        digest.update(f"{len(part)}:{part};".encode())
    return digest.hexdigest()


def lookup(key: str) -> Entry | None:
    """The entry of ``key`` once it is verified; None, and a warning, when it must not be used."""
    for root in _roots():
        if (entry := _find(root, key)) is not None:
            return entry
    return None


def publish(key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
    """The entry of ``key``: the one there is, or what ``build`` makes.

    ``build`` writes into the directory it is given and returns what the manifest shall say; its
    ``library`` and ``source`` name two of the files. Of several processes one builds, and the
    others take its entry.
    """
    root = _roots()[0]
    try:
        return _make(root, key, build)
    except ToolchainError:
        if _has_room(root):
            raise
        problem = "the disk is full"
    except OSError as error:
        problem = error.strerror or str(error)
    _say(f"tilewright's cache {root} takes no new kernels ({problem}); kept for this process only")
    try:
        return _make(_private(), key, build)
    except OSError as error:
        raise CacheError(
            "neither the cache nor a temporary directory takes the kernel",
            got=f"{root}: {problem}; {_private()}: {error.strerror}",
            hint="make room, or set TILEWRIGHT_CACHE_DIR",
        ) from error


def refer(key: str, entry: Entry, info: Mapping[str, Any]) -> Entry:
    """Make ``key`` find ``entry`` too, with ``info`` in place of what its manifest says."""
    if entry.manifest["key"] == key:
        return entry
    root = _root_of(entry)
    own = {**info, "format": FORMAT, "key": key, "entry": entry.manifest["key"]}
    try:
        with _locked(root, key):
            _remove(root / "entries" / key)
            building = _fresh(root / "building" / key)
            (building / MANIFEST).write_text(json.dumps(own, indent=1), encoding="utf-8")
            os.rename(building, root / "entries" / key)
    except OSError as error:
        _say(f"tilewright's cache {root} takes no new kernels ({error.strerror})")
    return Entry(key, entry.directory, entry.library, entry.source, {**entry.manifest, **own})


def list_entries() -> list[Entry]:
    """All entries that can be used, references among them; those that cannot are said."""
    return [entry for key in _keys() if (entry := lookup(key)) is not None]


def verify_entries() -> Iterator[tuple[str, str | None]]:
    """Every key with what is wrong with it, or None; all files are read, not only libraries."""
    root = directory()
    for key in _keys():
        try:
            entry = _open(root, key)
            for name in entry.manifest["files"]:
                _verify(entry.directory / name, entry.manifest["files"][name])
        except _Bad as bad:
            yield key, str(bad)
        else:
            yield key, None


def clear() -> int:
    """Remove every entry; how many there were. Libraries in use by a process stay usable to it."""
    root, keys = directory(), _keys()
    if root.exists():
        _check_directory(root)
        for name in ("entries", "building", "locks"):
            _remove(root / name)
    return len(keys)


def _keys() -> list[str]:
    entries = directory() / "entries"
    return sorted(os.listdir(entries)) if entries.is_dir() else []


# --- one store ---------------------------------------------------------------------------------


def _find(root: Path, key: str) -> Entry | None:
    try:
        return _runnable(root, _open(root, key))
    except FileNotFoundError:
        return None
    except _Bad as bad:
        _say(f"tilewright's cache entry {key[:16]} is set aside: {bad}")
        return None


def _open(root: Path, key: str, *, referred: bool = False) -> Entry:
    """The entry, its library verified. Raises FileNotFoundError when there is none."""
    folder = root / "entries" / key
    with open(folder / MANIFEST, "rb") as file:
        _check_owner(file.fileno(), folder / MANIFEST)
        text = file.read()
    for path in (root / "entries", folder):
        _check_owner(path, path)
    manifest = _parse(text, key)
    if "entry" in manifest:
        if referred:
            raise _Bad("a reference to a reference")
        try:
            held = _open(root, manifest["entry"], referred=True)
        except FileNotFoundError:
            raise _Bad("the library it refers to is gone") from None
        merged = {**held.manifest, **manifest}
        return Entry(key, held.directory, held.library, held.source, merged)
    library = folder / manifest["library"]
    _verify(library, manifest["files"][manifest["library"]])
    return Entry(key, folder, library, folder / manifest["source"], manifest)


def _parse(text: bytes, key: str) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise _Bad(f"its manifest has format {manifest['format']}, this version {FORMAT}")
        if manifest["key"] != key:
            raise _Bad("its manifest is another entry's")
        if "entry" not in manifest:
            names = {manifest["library"], manifest["source"]}
            if not names <= manifest["files"].keys() or any("/" in name for name in names):
                raise _Bad("its manifest names files it does not list")
        return dict(manifest)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _Bad("its manifest cannot be read") from None


#: Files verified by this process: a library of many kernels is hashed once.
_verified: dict[tuple[Any, ...], str] = {}


def _verify(path: Path, listed: Mapping[str, Any]) -> None:
    try:
        with open(path, "rb") as file:
            stat = _check_owner(file.fileno(), path)
            stamp = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            if stat.st_size != listed["size"]:
                raise _Bad(f"{path.name} has {stat.st_size} bytes, not {listed['size']}")
            if (digest := _verified.get(stamp)) is None:
                digest = hashlib.sha256(file.read()).hexdigest()
        if digest != listed["sha256"]:
            raise _Bad(f"{path.name} was altered")
        _verified[stamp] = digest
    except OSError as error:
        raise _Bad(f"{path.name}: {error.strerror}") from None


def _make(root: Path, key: str, build: Callable[[Path], Mapping[str, Any]]) -> Entry:
    if not os.path.isdir(root):
        os.makedirs(root, mode=0o700, exist_ok=True)
    with _locked(root, key):
        if (entry := _find(root, key)) is not None:
            return entry
        building = _fresh(root / "building" / key)
        try:
            manifest = {**build(building), "format": FORMAT, "key": key}
            _write_manifest(building, manifest)
            _remove(root / "entries" / key)
            (root / "entries").mkdir(mode=0o700, exist_ok=True)
            os.rename(building, root / "entries" / key)
        except BaseException:
            _remove(building)
            raise
        try:
            return _runnable(root, _open(root, key))
        except _Bad as bad:
            raise OSError(None, f"an entry just written is not usable: {bad}") from None


def _write_manifest(building: Path, manifest: dict[str, Any]) -> None:
    manifest["files"] = {}
    for file in sorted(building.iterdir()):
        os.chmod(file, file.stat().st_mode & ~0o022)
        data = file.read_bytes()
        manifest["files"][file.name] = {
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
    for role in ("library", "source"):
        if manifest.get(role) not in manifest["files"]:
            raise CacheError(f"the builder left no {role}", got=manifest.get(role))
    text = json.dumps(manifest, indent=1)
    (building / MANIFEST).write_text(text, encoding="utf-8")


def _locked(root: Path, key: str) -> Any:
    import filelock

    for name in ("locks", "building", "entries"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
        _check_directory(root / name)
    lock = filelock.FileLock(root / "locks" / f"{key}.lock", timeout=LOCK_SECONDS)
    try:
        return lock.acquire()
    except filelock.Timeout:
        raise OSError(None, f"another process held {key[:16]} for {LOCK_SECONDS} s") from None


def _fresh(folder: Path) -> Path:
    """The empty directory ``folder``: what a killed process left in it goes."""
    _remove(folder)
    folder.mkdir(mode=0o700)
    return folder


def _remove(folder: Path) -> None:
    import shutil

    if folder.exists():
        shutil.rmtree(folder)


def _has_room(root: Path) -> bool:
    probe = root / "building" / f"room-{os.getpid()}"
    try:
        probe.write_bytes(b"\xff" * 262144)
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


# --- which directories -------------------------------------------------------------------------

_helper: list[tuple[int, Path]] = []


def _roots() -> list[Path]:
    """The cache directory, checked, then this process's private one if it has one."""
    root = directory()
    if root.exists():
        _check_directory(root)
    return [root, *(path for pid, path in _helper if pid == os.getpid())]


def _private() -> Path:
    """A directory that only this process uses and that may hold programs; removed at exit."""
    for pid, path in _helper:
        if pid == os.getpid():
            return path
    import atexit
    import tempfile

    candidates = [tempfile.gettempdir(), "/dev/shm", "/var/tmp", str(directory().parent)]
    for base in candidates:
        if os.access(base, os.W_OK) and not _noexec(Path(base)):
            path = Path(tempfile.mkdtemp(prefix="tilewright-", dir=base))
            _helper.append((os.getpid(), path))
            atexit.register(_discard, os.getpid(), path)
            return path
    raise CacheError(
        "no temporary directory may hold programs", got=candidates, hint="set TMPDIR"
    )


def _discard(pid: int, path: Path) -> None:
    import shutil

    if pid == os.getpid():
        shutil.rmtree(path, ignore_errors=True)


def _noexec(path: Path) -> bool:
    return hasattr(os, "statvfs") and bool(os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0))


def _runnable(root: Path, entry: Entry) -> Entry:
    """``entry`` itself, or with its library copied to where programs may run."""
    if not _noexec(root):
        return entry
    copy = _private() / f"{entry.manifest.get('entry', entry.key)}-{entry.library.name}"
    if not copy.exists():
        _say(f"tilewright's cache {root} is mounted noexec; libraries are copied to {copy.parent}")
        listed = entry.manifest["files"][entry.library.name]
        copy.write_bytes(entry.library.read_bytes())
        copy.chmod(0o700)
        _verify(copy, listed)
    return Entry(entry.key, entry.directory, copy, entry.source, entry.manifest)


def _root_of(entry: Entry) -> Path:
    return entry.directory.parent.parent


# --- whose directories -------------------------------------------------------------------------


def _check_directory(path: Path) -> None:
    """Refuse a directory from which another user could have us execute something."""
    stat = os.stat(path)
    if not hasattr(os, "geteuid"):
        return
    if stat.st_uid != os.geteuid():
        raise CacheError(
            f"the cache directory {path} belongs to another user",
            got=f"owner {stat.st_uid}",
            expected=f"owner {os.geteuid()}: what lies in it is executed",
            hint="set TILEWRIGHT_CACHE_DIR to a directory of your own",
        )
    if stat.st_mode & 0o022:
        raise CacheError(
            f"the cache directory {path} can be written by others",
            got=f"mode {stat.st_mode & 0o777:o}",
            expected="no write permission for group and others: what lies in it is executed",
            hint=f"chmod go-w {path}",
        )
    for parent in path.parents:
        mode = parent.stat().st_mode
        if mode & 0o002 and not mode & 0o1000:
            raise CacheError(
                f"the cache directory {path} can be replaced by others",
                got=f"{parent} has mode {mode & 0o7777:o}",
                hint=f"chmod o-w {parent}, or set TILEWRIGHT_CACHE_DIR",
            )


def _check_owner(file: int | Path, path: Path) -> os.stat_result:
    stat = os.stat(file)
    if hasattr(os, "geteuid") and (stat.st_uid != os.geteuid() or stat.st_mode & 0o022):
        raise _Bad(f"{path.name} belongs to, or can be written by, another user")
    return stat


_said: set[str] = set()


def _say(message: str) -> None:
    """Warn, once in a process."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
