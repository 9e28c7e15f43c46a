"""Directories that hold what is executed: whose they are, and a private one when need be."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from tilewright.errors import CacheError
from tilewright.settings import settings


class UnusableError(Exception):
    """A file of the cache that must not be used, and why."""


def cache_directory() -> Path:
    """The cache directory: ``TILEWRIGHT_CACHE_DIR``, or the user's; not checked, not made."""
    known = settings()
    if known.cache_dir:
        return Path(os.path.abspath(os.path.expanduser(known.cache_dir)))
    if sys.platform == "linux":  # what platformdirs says, without the 7 ms of its import
        base = known.user_cache if os.path.isabs(known.user_cache or "") else "~/.cache"
        return Path(os.path.expanduser(str(base))) / "tilewright"
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright", appauthor=False))


def check_directory(path: Path) -> None:
    """Refuse a directory from which another user could have us execute something."""
    if not hasattr(os, "geteuid"):
        return
    stat = os.stat(path)
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
    for parent in _above(os.path.realpath(path)):
        mode = os.stat(parent).st_mode
        if mode & 0o002 and not mode & 0o1000:
            raise CacheError(
                f"the cache directory {path} can be replaced by others",
                got=f"{parent} has mode {mode & 0o7777:o}",
                expected="no write permission for others, or the sticky bit",
                hint=f"chmod o-w {parent}, or set TILEWRIGHT_CACHE_DIR",
            )


def _above(path: str) -> Iterator[str]:
    """The directories around the absolute ``path``, innermost first."""
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def check_owner(file: int | str, path: str) -> os.stat_result:
    """The status of ``file``, a path or an open file, that nobody else can have written."""
    stat = os.stat(file)
    if hasattr(os, "geteuid") and (stat.st_uid != os.geteuid() or stat.st_mode & 0o022):
        name = os.path.basename(path)
        raise UnusableError(f"{name} belongs to, or can be written by, another user")
    return stat


def is_noexec(path: Path) -> bool:
    """True if programs and libraries on the file system of ``path`` cannot be run."""
    return hasattr(os, "statvfs") and bool(os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0))


def has_room(folder: Path) -> bool:
    """True if a library's worth of bytes can be written into ``folder``, which is our own."""
    probe = folder / f"room-{os.getpid()}"
    try:
        probe.write_bytes(b"\xff" * (1 << 18))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def remove(folder: Path) -> None:
    """Remove ``folder`` and all in it, if it is there."""
    import shutil

    if folder.exists():
        shutil.rmtree(folder)


# --- this process's own directory --------------------------------------------------------------

_own: list[tuple[int, Path]] = []


def private() -> Path | None:
    """The private directory of this process, if it needed one so far."""
    return next((path for pid, path in _own if pid == os.getpid()), None)


def make_private() -> Path:
    """A directory that only this process uses and that may hold programs; removed at exit."""
    if (path := private()) is not None:
        return path
    import atexit
    import tempfile

    candidates = [tempfile.gettempdir(), "/var/tmp", "/dev/shm", os.path.expanduser("~")]
    for base in candidates:
        if not os.access(base, os.W_OK) or is_noexec(Path(base)):
            continue
        try:
            path = Path(tempfile.mkdtemp(prefix="tilewright-", dir=base))
        except OSError:
            continue
        if has_room(path):
            _own.append((os.getpid(), path))
            atexit.register(_discard, os.getpid(), path)
            return path
        path.rmdir()
    raise CacheError(
        "no temporary directory has room and may hold programs",
        got=", ".join(candidates),
        hint="set TMPDIR",
    )


def _discard(pid: int, path: Path) -> None:
    if pid == os.getpid():
        remove(path)


# --- telling the user --------------------------------------------------------------------------

_said: set[str] = set()


def say(message: str) -> None:
    """Warn, once in a process."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
