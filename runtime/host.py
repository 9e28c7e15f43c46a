"""What this machine is, and by what means it runs a target."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from tilewright.errors import TargetError
from tilewright.isa import Target
from tilewright.settings import settings
from tilewright.targets import NAMES, load

from .folders import cache_directory

Means = Literal["native", "qemu", "header"]

_CPUINFO = Path("/proc/cpuinfo")
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU: ``features`` in the words of ``/proc/cpuinfo``; ``name`` as the vendor has it."""

    machine: str
    name: str
    features: frozenset[str]


def machine() -> str:
    """The architecture: ``x86_64``, ``aarch64``, ..."""
    if hasattr(os, "uname"):
        name = os.uname().machine
    else:
        import platform

        name = platform.machine()
    return _ALIASES.get(name.lower(), name.lower())


@cache
def cpu() -> Cpu:
    """The CPU here. Linux says itself what it has; elsewhere archspec finds out, once."""
    fields = _first_processor()
    features = fields.get("flags") or fields.get("Features")
    if features is None:
        return _detected()
    name = fields.get("model name") or fields.get("CPU part") or machine()
    return Cpu(machine(), name, frozenset(features.split()))


def _first_processor() -> dict[str, str]:
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            text = file.read(16384).partition("\n\n")[0]
    except OSError:
        return {}
    rows = (row.partition(":") for row in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in rows}


def _detected() -> Cpu:
    """What archspec says, remembered in the cache directory under the machine's own name."""
    import json

    here = " ".join(os.uname()) if hasattr(os, "uname") else sys.platform
    file = cache_directory() / "host.json"
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["here"] == here:
            return Cpu(machine(), known["name"], frozenset(known["features"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = _archspec()
    known = {"here": here, "name": found.name, "features": sorted(found.features)}
    try:
        os.makedirs(file.parent, mode=0o700, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(known), encoding="utf-8")
        part.replace(file)
    except OSError:
        pass
    return found


def _archspec() -> Cpu:
    import archspec.cpu

    found = archspec.cpu.host()
    return Cpu(machine(), found.name, frozenset(found.features))


def describe() -> str:
    """The CPU's name and microarchitecture, for people."""
    import archspec.cpu

    return f"{cpu().name} ({archspec.cpu.host().name})"


def caches() -> dict[str, int]:
    """Bytes of the first core's data caches by level: ``{"L1": 32768, "L2": ..}``; {} unknown."""
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        if kind != "Instruction":
            units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
            sizes[f"L{level}"] = int(size.rstrip("KMG")) * units.get(size[-1], 1)
    return sizes


def is_native(target: Target) -> bool:
    """True if this CPU has what ``target`` needs."""
    return target.machine in ("", cpu().machine) and cpu().features.issuperset(target.cpu_flags)


def resolve(target: str) -> Target:
    """The target called ``target``; "host" is the best one that this CPU runs natively."""
    if not isinstance(target, str):
        raise TargetError("a target is named by a string", got=target)
    if target == "host":
        found = next(found for found in map(load, NAMES) if is_native(found))
        return found.having(n for n in found.features if is_native(found.having([n])))
    base, *features = [part.strip() for part in target.split("+")]
    return load(base).having(features)


def means(target: Target, *, emulated: bool | None = None) -> Means:
    """By what ``target`` runs here; ``emulated`` True asks for what stands in for the CPU.

    Raises TargetError, which says what to install.
    """
    emulation = target.emulation
    possible = emulation.qemu is not None or emulation.header is not None
    if emulated is None:
        emulated = not is_native(target) or (settings().emulate and possible)
    if not emulated:
        return "native"
    if emulation.qemu is not None and find_qemu(target) is not None:
        return "qemu"
    if emulation.header is not None:
        return "header"
    raise TargetError(
        f"nothing here runs {target.name}",
        got=f"{cpu().name} ({machine()})",
        expected=f"{target.title}, or {emulation.qemu or 'an emulator'} on PATH",
        hint="install qemu's user-mode emulators (Debian, Ubuntu: apt-get install qemu-user)"
        if emulation.qemu
        else None,
    )


def find_qemu(target: Target) -> str | None:
    """The path of the program that emulates ``target``'s CPU; None if there is none."""
    import shutil

    name = target.emulation.qemu
    return None if name is None else shutil.which(name) or shutil.which(f"{name}-static")


def user_compiler(target: Target, means: Means) -> str | None:
    """The compiler that the environment names for ``target``: a part of a kernel's key."""
    if means == "header" or target.machine in ("", machine()):
        return settings().compiler
    return settings().cross if target.machine == "aarch64" else None
