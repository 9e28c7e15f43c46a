"""The CPU that this process runs on: its architecture, its name, and what it has."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tilewright.runtime.store.folders import cache_directory

from .cpuid import unlisted

_CPUINFO = Path("/proc/cpuinfo")
_AUXV = Path("/proc/self/auxv")
#: The keys of the auxiliary vector (Linux, include/uapi/linux/auxvec.h).
_AUXV_KEYS = {"HWCAP": 16, "HWCAP2": 26}
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
#: Fields of ``/proc/cpuinfo`` that name the CPU.
_NAMES = ("model name", "CPU part", "cpu", "uarch")


class Cpu(NamedTuple):
    """The CPU: ``features`` in the words of ``/proc/cpuinfo``; ``name`` as the vendor has it.

    ``processor`` is its vendor, family and model, where there are such, else its name.
    """

    machine: str
    name: str
    features: frozenset[str]
    processor: str


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
    """The CPU here. Linux says itself what it has, x86 CPUs what it leaves out; elsewhere archspec
    finds out, once.
    """
    fields = _first_processor()
    features = _features(fields)
    if features is None:
        return _detected()
    name = next((fields[key] for key in _NAMES if key in fields), machine())
    numbers = [fields[key] for key in ("vendor_id", "cpu family", "model") if key in fields]
    processor = " ".join(numbers) or name
    found = frozenset(features)
    if machine() == "x86_64":
        found |= unlisted(processor)
    return Cpu(machine(), name, found, processor)


def _features(fields: Mapping[str, str]) -> Iterable[str] | None:
    """What the CPU has, by the way of its architecture; None if Linux does not say."""
    if machine() == "ppc64le":
        return _power_features()
    if machine() == "riscv64" and "isa" in fields:
        return _riscv_features(fields["isa"])
    said = fields.get("flags") or fields.get("Features")
    return None if said is None else said.split()


def _riscv_features(isa: str) -> Iterator[str]:
    """``rv64imafdcv_zvfh``: a letter each, then names."""
    letters, *names = isa.lower().split("_")
    yield from letters.removeprefix("rv64")
    yield from names


def _power_features() -> Iterator[str]:
    """What the kernel told this process of the CPU; ``/proc/cpuinfo`` does not have it."""
    from tilewright.targets.detection import POWER

    words = dict(struct.iter_unpack("@LL", _AUXV.read_bytes()))
    for name, bit in POWER.bits.items():
        if words.get(_AUXV_KEYS[bit.word], 0) >> bit.bit & 1:
            yield name


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
            return _named(known["name"], known["features"])
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
    return _named(found.name, found.features)


def _named(name: str, features: Iterable[str]) -> Cpu:
    return Cpu(machine(), name, frozenset(features), name)
