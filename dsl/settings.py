"""Every environment variable tilewright reads, typed, in one table."""

from __future__ import annotations

import os
from typing import NamedTuple

from .errors import TilewrightError

#: What the variables that name a compiler for another architecture begin with.
_CROSS = "TILEWRIGHT_CC_"


class Settings(NamedTuple):
    """A snapshot of the environment.

    ``cache_dir``  TILEWRIGHT_CACHE_DIR: where compiled kernels lie (default: the user cache).
    ``user_cache`` XDG_CACHE_HOME: where Linux users want their caches (default: ~/.cache).
    ``data_dir``   TILEWRIGHT_DATA_DIR: where calibrations and tunings lie (default: user data).
    ``user_data``  XDG_DATA_HOME: where Linux users want their data (default: ~/.local/share).
    ``compiler``   CC: the native compiler command; may contain spaces and options.
    ``emulate``    TILEWRIGHT_EMULATE=1: run x86 targets in the emulator even where native.
    ``compile_seconds``  TILEWRIGHT_COMPILE_SECONDS: how long a compiler may take for one file
    (default: 600).
    """

    cache_dir: str | None
    user_cache: str | None
    data_dir: str | None
    user_data: str | None
    compiler: str | None
    emulate: bool
    compile_seconds: float


def settings() -> Settings:
    """The settings in force now."""
    get = os.environ.get
    return Settings(
        cache_dir=get("TILEWRIGHT_CACHE_DIR") or None,
        user_cache=get("XDG_CACHE_HOME") or None,
        data_dir=get("TILEWRIGHT_DATA_DIR") or None,
        user_data=get("XDG_DATA_HOME") or None,
        compiler=get("CC") or None,
        emulate=get("TILEWRIGHT_EMULATE", "") not in ("", "0"),
        compile_seconds=_seconds("TILEWRIGHT_COMPILE_SECONDS", 600.0),
    )


def _seconds(name: str, default: float) -> float:
    """A variable that holds a time; TilewrightError where it is not one."""
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
    """TILEWRIGHT_CC_AARCH64, TILEWRIGHT_CC_RISCV64, ...: the compiler command for another
    architecture, by the name that ``platform.machine()`` has for it.
    """
    return os.environ.get(f"{_CROSS}{machine.upper()}") or None
