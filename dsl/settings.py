"""Read the environment variables of tilewright: each is a typed property in one class."""

from __future__ import annotations

import os

from .errors import TilewrightError

#: Prefix of the variables that give a compiler for another architecture, for example
#: ``TILEWRIGHT_CC_AARCH64``.
_CROSS = "TILEWRIGHT_CC_"
#: Values of TILEWRIGHT_THREADS; the first is the default.
THREADS = ("auto", "openmp", "own")


class Settings:
    """The settings that environment variables give. A variable is read at each use of a setting."""

    __slots__ = ()

    @property
    def cache_dir(self) -> str | None:
        """TILEWRIGHT_CACHE_DIR: folder of compiled kernels (default: the user's cache folder)."""
        return _text("TILEWRIGHT_CACHE_DIR")

    @property
    def user_cache(self) -> str | None:
        """XDG_CACHE_HOME: folder of caches on Linux (default: ~/.cache)."""
        return _text("XDG_CACHE_HOME")

    @property
    def data_dir(self) -> str | None:
        """TILEWRIGHT_DATA_DIR: folder of calibrations and tunings (default: in the user's data)."""
        return _text("TILEWRIGHT_DATA_DIR")

    @property
    def user_data(self) -> str | None:
        """XDG_DATA_HOME: folder of user data on Linux (default: ~/.local/share)."""
        return _text("XDG_DATA_HOME")

    @property
    def compiler(self) -> str | None:
        """CC: command of the native compiler; it may contain spaces and options."""
        return _text("CC")

    @property
    def emulate(self) -> bool:
        """TILEWRIGHT_EMULATE=1: emulate x86 targets even if this CPU could run them."""
        return _flag("TILEWRIGHT_EMULATE")

    @property
    def max_target(self) -> str | None:
        """TILEWRIGHT_MAX_TARGET: best target that "host" may mean (default: the CPU's best)."""
        return _text("TILEWRIGHT_MAX_TARGET")

    @property
    def quiet(self) -> bool:
        """TILEWRIGHT_QUIET=1: print no progress on the terminal while a compiler works."""
        return _flag("TILEWRIGHT_QUIET")

    @property
    def compile_seconds(self) -> float:
        """TILEWRIGHT_COMPILE_SECONDS: a compiler's time limit for one file (default: 600 s)."""
        return _seconds("TILEWRIGHT_COMPILE_SECONDS", 600.0)

    @property
    def threads(self) -> str:
        """TILEWRIGHT_THREADS: threads of parallel loops: ``openmp``, ``own`` or ``auto`` (default).

        ``openmp`` are the threads of an OpenMP runtime, ``own`` are threads that tilewright starts.
        ``auto`` uses an OpenMP runtime if the process has loaded one, else tilewright's threads.
        """
        return _one_of("TILEWRIGHT_THREADS", THREADS)

    @property
    def openmp_threads(self) -> int | None:
        """OMP_NUM_THREADS: maximum number of threads of a loop; the first number of a list."""
        text = (_text("OMP_NUM_THREADS") or "").partition(",")[0].strip()
        return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


_SETTINGS = Settings()


def settings() -> Settings:
    """Return the settings of this process."""
    return _SETTINGS


def _text(name: str) -> str | None:
    """Return the value of environment variable ``name``; None if it is empty or not set."""
    return os.environ.get(name) or None


def _flag(name: str) -> bool:
    """Return True if environment variable ``name`` is set to anything but "" and 0."""
    return os.environ.get(name, "") not in ("", "0")


def _one_of(name: str, values: tuple[str, ...]) -> str:
    """Return a variable's value, by default ``values[0]``; TilewrightError if not in ``values``."""
    text = _text(name) or values[0]
    if text not in values:
        raise TilewrightError(
            f"{name} has no such value", got=repr(text), expected=f"one of {', '.join(values)}"
        )
    return text


def _seconds(name: str, default: float) -> float:
    """Return the number of seconds in variable ``name``; TilewrightError if it is no number."""
    text = os.environ.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise TilewrightError(
            f"{name} is not a time", got=repr(text), expected="seconds, a positive number"
        )
    return seconds


def cross_compiler(machine: str) -> str | None:
    """Return the user's command of a compiler for ``machine``; None if the user gives none.

    It is read from TILEWRIGHT_CC_AARCH64, TILEWRIGHT_CC_RISCV64, and so on. ``machine`` is the
    architecture as ``platform.machine()`` names it.
    """
    return os.environ.get(f"{_CROSS}{machine.upper()}") or None
