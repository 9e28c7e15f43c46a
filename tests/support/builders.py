"""Builders of cache entries: one compiles for real, one does not, one must not be used."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.store import cache
from tilewright.targets import load

#: Where another process finds this module, as support.builders.
TESTS = Path(__file__).resolve().parent.parent
KERNEL = (TESTS / "data" / "kernel.c").read_text()
FILES = {"library": "k.so", "source": "k.c"}


def compiled(folder: Path) -> Mapping[str, Any]:
    """Build the hand-written kernel for real."""
    target = load("scalar")
    compile_library(KERNEL, target, find_compiler(target, emulated=False), folder, "k")
    return {**FILES, "name": "axpy"}


def fake(folder: Path) -> Mapping[str, Any]:
    (folder / "k.c").write_text("the C")
    (folder / "k.so").write_bytes(b"the library")
    return FILES


def never(folder: Path) -> Mapping[str, Any]:
    raise AssertionError(f"built again in {folder}")


def runs(entry: cache.Entry) -> bool:
    """Whether the entry's library can be loaded and computes."""
    axpy = ctypes.CDLL(str(entry.library)).axpy
    array = ctypes.c_float * 3
    out = array()
    axpy(array(1, 2, 3), array(1, 1, 1), out, ctypes.c_int64(3), ctypes.c_float(2))
    return list(out) == [3, 4, 5]
