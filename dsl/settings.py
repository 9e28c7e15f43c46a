"""Every environment variable tilewright reads, typed, in one table."""

from __future__ import annotations

import os

from .errors import TilewrightError

#: Prefix of the variables that name a compiler for another architecture.
_CROSS = "TILEWRIGHT_CC_"
#: Values of TILEWRIGHT_THREADS; the first is the default.
THREADS = ("auto", "openmp", "own")


class Settings:
    """The settings of the environment; a variable is read each time it is used."""

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
        """TILEWRIGHT_DATA_DIR: folder of calibrations and tunings (default: the user's data)."""
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
        """TILEWRIGHT_EMULATE=1: run x86 targets in the emulator even where native."""
        return _flag("TILEWRIGHT_EMULATE")

    @property
    def max_target(self) -> str | None:
        """TILEWRIGHT_MAX_TARGET: the best target that "host" may be (default: what the CPU has)."""
        return _text("TILEWRIGHT_MAX_TARGET")

    @property
    def quiet(self) -> bool:
        """TILEWRIGHT_QUIET=1: say nothing on a terminal while a compiler works."""
        return _flag("TILEWRIGHT_QUIET")

    @property
    def compile_seconds(self) -> float:
        """TILEWRIGHT_COMPILE_SECONDS: a compiler's time limit for one file (default: 600 s)."""
        return _seconds("TILEWRIGHT_COMPILE_SECONDS", 600.0)

    @property
    def threads(self) -> str:
        """TILEWRIGHT_THREADS: who runs parallel loops: ``openmp``, ``own`` or ``auto`` (default).

        ``auto`` is an OpenMP runtime if the process has loaded one, else tilewright's own threads.
        """
        return _one_of("TILEWRIGHT_THREADS", THREADS)

    @property
    def openmp_threads(self) -> int | None:
        """OMP_NUM_THREADS: most threads of a parallel loop; of a list, its first number."""
        text = (_text("OMP_NUM_THREADS") or "").partition(",")[0].strip()
        return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else None


_SETTINGS = Settings()


def settings() -> Settings:
    """Return the settings."""
    return _SETTINGS


def _text(name: str) -> str | None:
    """Return a variable; None if it is empty or absent."""
    return os.environ.get(name) or None


def _flag(name: str) -> bool:
    """Return True if a variable is set, and not to 0."""
    return os.environ.get(name, "") not in ("", "0")


def _one_of(name: str, values: tuple[str, ...]) -> str:
    """Return a variable that holds one of ``values``; TilewrightError if it does not."""
    text = _text(name) or values[0]
    if text not in values:
        raise TilewrightError(
            f"{name} has no such value", got=repr(text), expected=f"one of {', '.join(values)}"
        )
    return text


def _seconds(name: str, default: float) -> float:
    """Return a variable that holds seconds; TilewrightError if it does not."""
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
    """Return the command of the compiler for another architecture, None for the default.

    It is read from TILEWRIGHT_CC_AARCH64, TILEWRIGHT_CC_RISCV64, and so on. ``machine`` is the
    architecture as ``platform.machine()`` names it.
    """
    return os.environ.get(f"{_CROSS}{machine.upper()}") or None
