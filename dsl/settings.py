"""Every environment variable tilewright reads, typed, in one table."""

from __future__ import annotations

import os
from typing import NamedTuple

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
    """

    cache_dir: str | None
    user_cache: str | None
    data_dir: str | None
    user_data: str | None
    compiler: str | None
    emulate: bool


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
    )


def cross_compiler(machine: str) -> str | None:
    """TILEWRIGHT_CC_AARCH64, TILEWRIGHT_CC_RISCV64, ...: the compiler command for another
    architecture, by the name that ``platform.machine()`` has for it.
    """
    return os.environ.get(f"{_CROSS}{machine.upper()}") or None
