"""What the figures were measured on, and keeping the measurement on one core of it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tilewright.isa.target import Target
from tilewright.runtime.machine.host import features_here, for_this_core
from tilewright.targets import load

from .native import compiler

_ALL = os.sched_getaffinity(0)
ISAS = {
    "amx": {"amx_tile", "amx_int8", "amx_bf16"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"},
    "avx2": {"avx2", "fma", "f16c"},
}


def _cpuinfo(field: str) -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def cpu() -> str:
    """Name, family and model of the processor, and how many cores this process may use."""
    name = _cpuinfo("model name") or platform.processor()
    family, model = _cpuinfo("cpu family"), _cpuinfo("model")
    return f"{name} (family {family}, model {model}), {len(os.sched_getaffinity(0))} cores"


def _isas() -> list[Target]:
    flags = set(_cpuinfo("flags").split())
    return [load(isa) for isa, needed in ISAS.items() if needed <= flags]


def native_isas() -> tuple[str, ...]:
    """The vector ISAs measured here that the processor has, widest first, scheduled for it."""
    return tuple(for_this_core(target).name for target in _isas() if target.matrix is None)


def targets() -> tuple[str, ...]:
    """Those ISAs alone, and each with all features that the processor has, AMX's tiles first."""
    whole = (for_this_core(each, features_here(each)).name for each in _isas())
    return tuple(dict.fromkeys((*whole, *native_isas())))


def vendor() -> str:
    """Whose the processor is, as it says itself."""
    return _cpuinfo("vendor_id")


def pin(core: int | None) -> None:
    """Keep this process on one core, by default the last it may use."""
    os.sched_setaffinity(0, {max(_ALL) if core is None else core})


@contextmanager
def every_core() -> Iterator[None]:
    """For what is not timed, such as compiling: all cores for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _ALL)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def versions() -> dict[str, str]:
    """Of Python, the compiler, and tilewright with what it computes beside."""
    said = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True)
    found = {"python": platform.python_version(), "compiler": said.stdout.splitlines()[0]}
    for package in ("tilewright", "numpy", "torch", "mkl"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
