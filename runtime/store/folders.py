"""Find and check the directories whose files tilewright executes, and make a private one if
needed.
"""

from __future__ import annotations

import errno
import os
import stat as modes
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tilewright.errors import CacheError
from tilewright.settings import settings

#: Exceptions that reading a damaged JSON file may raise.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError)


class UnusableError(Exception):
    """A file of the cache must not be used; the message says why."""


class Purpose(NamedTuple):
    """Texts about a directory for error messages.

    They are its title, the environment variable that can name another directory, and the harm that
    foreign files could do.
    """

    title: str
    variable: str
    harm: str


CACHE = Purpose("the cache directory", "TILEWRIGHT_CACHE_DIR", "what lies in it is executed")
DATA = Purpose("the data directory", "TILEWRIGHT_DATA_DIR", "its schedules decide what is compiled")


def cache_directory() -> Path:
    """Return the cache directory: ``TILEWRIGHT_CACHE_DIR``, or the user's. It is not checked or
    made.
    """
    known = settings()
    if (found := _directory(known.cache_dir, known.user_cache, "~/.cache")) is not None:
        return found
    import platformdirs

    return Path(platformdirs.user_cache_dir("tilewright", appauthor=False))


def data_directory() -> Path:
    """Return the directory of calibrations and tunings: ``TILEWRIGHT_DATA_DIR``, or the user's.

    It is not checked or made.
    """
    known = settings()
    if (found := _directory(known.data_dir, known.user_data, "~/.local/share")) is not None:
        return found
    import platformdirs

    return Path(platformdirs.user_data_dir("tilewright", appauthor=False))


def _directory(own: str | None, base: str | None, usual: str) -> Path | None:
    """Return the directory that the environment names, or platformdirs' choice on Linux.

    platformdirs itself takes 7 ms to import.
    """
    if own:
        return Path(os.path.abspath(os.path.expanduser(own)))
    if sys.platform != "linux":
        return None
    within = base if base is not None and os.path.isabs(base) else usual
    return Path(os.path.expanduser(within)) / "tilewright"


def tunings_file() -> Path:
    """Return the database of tunings (``runtime/tuned.py``), which is not checked or made.

    The number in its name is the version of the format.
    """
    return data_directory() / "tuned-1.sqlite3"


def exists(path: Path) -> bool:
    """Return True if there is a file at ``path``; raise CacheError for an impossible path.

    A path without permission to look counts as absent. Writing an entry then raises the error.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, PermissionError):
        return False
    except OSError as error:
        long = error.errno == errno.ENAMETOOLONG
        raise CacheError(
            f"the cache directory cannot be used: {error.strerror}",
            got=f"{str(path)[:80]}... ({len(str(path))} characters)" if long else str(path),
            hint="set TILEWRIGHT_CACHE_DIR to a shorter path"
            if long
            else "set TILEWRIGHT_CACHE_DIR",
        ) from None
    return True


def check_directory(path: Path, purpose: Purpose = CACHE) -> None:
    """Raise CacheError for a path that is no directory, or whose files another user could write."""
    stat, title = os.stat(path), f"{purpose.title} {path}"
    if not modes.S_ISDIR(stat.st_mode):
        raise CacheError(
            f"{title} is no directory",
            got=f"a {_kind(stat.st_mode)}",
            hint=f"remove it, or set {purpose.variable}",
        )
    if not hasattr(os, "geteuid"):
        return
    if stat.st_uid != os.geteuid():
        raise CacheError(
            f"{title} belongs to another user",
            got=f"owner {stat.st_uid}",
            expected=f"owner {os.geteuid()}: {purpose.harm}",
            hint=f"set {purpose.variable} to a directory of your own",
        )
    if stat.st_mode & 0o022:
        raise CacheError(
            f"{title} can be written by others",
            got=f"mode {stat.st_mode & 0o777:o}",
            expected=f"no write permission for group and others: {purpose.harm}",
            hint=f"chmod go-w {path}",
        )
    for parent in {*_above(os.path.abspath(path)), *_above(os.path.realpath(path))}:
        _check_parent(title, parent, purpose)


def _check_parent(title: str, parent: str, purpose: Purpose) -> None:
    """Raise CacheError if another user can replace a directory in its ``parent``."""
    stat = os.stat(parent)
    if stat.st_uid not in (0, os.geteuid()) and _is_known(stat.st_uid):
        raise CacheError(
            f"{title} can be replaced by another user",
            got=f"{parent} belongs to user {stat.st_uid}",
            expected=f"owner {os.geteuid()} or 0, for the directories around it too",
            hint=f"set {purpose.variable} to a directory of your own",
        )
    # The user's own group often has only this user.
    own_group = stat.st_gid in (0, os.getegid())
    others = 0o002 if own_group else 0o022
    if stat.st_mode & others and not stat.st_mode & modes.S_ISVTX:
        who = "o" if own_group else "go"
        raise CacheError(
            f"{title} can be replaced by others",
            got=f"{parent} has mode {stat.st_mode & 0o7777:o}",
            expected="no write permission for others, or the sticky bit",
            hint=f"chmod {who}-w {parent}, or set {purpose.variable}",
        )


def _is_known(user: int) -> bool:
    """Return True if ``user`` is a user of this system. In a container, all users outside have one
    and the same number.
    """
    try:
        text = Path("/proc/self/uid_map").read_text(encoding="ascii")
    except OSError:
        return True
    ranges = [tuple(map(int, line.split())) for line in text.splitlines()]
    return any(first <= user < first + count for first, _, count in ranges)


def _kind(mode: int) -> str:
    """Return the kind of a file as a word for error messages, for example "pipe"."""
    tests = {"file": modes.S_ISREG, "pipe": modes.S_ISFIFO, "socket": modes.S_ISSOCK}
    return next((name for name, test in tests.items() if test(mode)), "device")


def _above(path: str) -> Iterator[str]:
    """Yield the directories that contain the absolute ``path``, innermost first."""
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def make_directory(path: Path) -> None:
    """Make ``path`` and its missing parents, accessible to this user alone."""
    missing = [path]
    while not os.path.lexists(parent := missing[-1].parent):
        missing.append(parent)
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)


def check_owner(file: int | str, path: str) -> os.stat_result:
    """Return the status of ``file``, a path or an open file; UnusableError if others can write
    it.
    """
    stat = os.stat(file)
    name = os.path.basename(path)
    if hasattr(os, "geteuid") and (stat.st_uid != os.geteuid() or stat.st_mode & 0o022):
        raise UnusableError(f"{name} belongs to, or can be written by, another user")
    return stat


def read_file(path: str, most: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return the content of the file at ``path``, and its status.

    UnusableError if others can write it, if it is a pipe, or if it is longer than ``most`` bytes.
    Raises OSError.
    """
    with open(path, "rb", buffering=0, opener=without_waiting) as file:
        stat = check_file(file.fileno(), path)
        if most is not None and stat.st_size > most:
            raise UnusableError(f"{os.path.basename(path)} has {stat.st_size} bytes")
        return file.readall(), stat


def check_file(file: int, path: str) -> os.stat_result:
    """Return the status of an open file, as ``check_owner`` does; UnusableError if it is a pipe."""
    stat = check_owner(file, path)
    if not modes.S_ISREG(stat.st_mode):
        raise UnusableError(f"{os.path.basename(path)} is a {_kind(stat.st_mode)}")
    return stat


def without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe is opened without waiting for a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_noexec(path: Path) -> bool:
    """Return True if programs and libraries on the file system of ``path`` cannot be run."""
    return hasattr(os, "statvfs") and bool(os.statvfs(path).f_flag & getattr(os, "ST_NOEXEC", 0))


def has_space(folder: Path) -> bool:
    """Return True if as many bytes as a library has can be written into our own ``folder``."""
    probe = folder / f"space-{os.getpid()}"
    try:
        probe.write_bytes(b"\xff" * (1 << 18))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


def remove(path: Path) -> None:
    """Remove the directory ``path`` with its content, or the file or link, if it exists."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not modes.S_ISDIR(mode):
        path.unlink()
        return
    import shutil

    shutil.rmtree(path)


# --- this process's own directory --------------------------------------------------------------

#: Prefix of a private directory's name, and the file in it that its process keeps locked.
_PREFIX, _IN_USE = "tilewright-", "in-use"
_own: list[tuple[int, Path]] = []


def private() -> Path | None:
    """Return the private directory of this process, None if it has not needed one."""
    return next((path for pid, path in _own if pid == os.getpid()), None)


def make_private() -> Path:
    """Return a directory that only this process uses and that may hold programs; removed at
    exit.
    """
    if (path := private()) is not None:
        return path
    import atexit
    import tempfile

    collect_private()
    candidates = _candidates()
    for base in candidates:
        if not os.access(base, os.W_OK) or is_noexec(Path(base)):
            continue
        try:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError:
            continue
        if has_space(path):
            _lock(path / _IN_USE, os.O_CREAT)
            _own.append((os.getpid(), path))
            atexit.register(_discard, os.getpid(), path)
            return path
        path.rmdir()
    raise CacheError(
        "no temporary directory has room and may hold programs",
        got=", ".join(candidates),
        hint="set TMPDIR",
    )


def _candidates() -> list[str]:
    """Return directories in which private directories may be made."""
    import tempfile

    return [tempfile.gettempdir(), "/var/tmp", "/dev/shm", os.path.expanduser("~")]


def collect_private() -> int:
    """Remove the private directories of processes that were killed, and return their number."""
    found = 0
    for base in dict.fromkeys(_candidates()):
        with suppress(OSError):
            for name in os.listdir(base):
                if name.startswith(_PREFIX) and _is_abandoned(path := Path(base, name)):
                    with suppress(OSError):
                        remove(path)
                        found += 1
    return found


def _is_abandoned(path: Path) -> bool:
    """Return True if ``path`` was a private directory of this user whose process has ended."""
    stat = path.lstat()
    if not modes.S_ISDIR(stat.st_mode) or stat.st_uid != getattr(os, "geteuid", lambda: -1)():
        return False
    try:
        file = _lock(path / _IN_USE)
    except OSError:
        return False
    if file is None:
        return False
    os.close(file)
    return True


def _lock(path: Path, flags: int = 0) -> int | None:
    """Open the file ``path`` and lock it until it is closed, at the latest when the process ends.

    Returns None if files cannot be locked. Raises OSError; BlockingIOError if another process has
    the lock.
    """
    try:
        import fcntl
    except ImportError:
        return None
    file = os.open(path, flags | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def _discard(pid: int, path: Path) -> None:
    if pid == os.getpid():
        remove(path)


# --- telling the user --------------------------------------------------------------------------

_said: set[str] = set()


def say(message: str) -> None:
    """Warn with ``message``, once in a process."""
    if message not in _said:
        _said.add(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
