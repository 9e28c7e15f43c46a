"""The CPU that this process runs on: architecture, name and features."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from .cpuid import unlisted
from .remembered import remembered

_CPUINFO = Path("/proc/cpuinfo")
_AUXV = Path("/proc/self/auxv")
#: Keys of the auxiliary vector (Linux, include/uapi/linux/auxvec.h).
_AUXV_KEYS = {"HWCAP": 16, "HWCAP2": 26}
#: The length of an SVE or RISC-V vector is a multiple of this many bytes.
_SEGMENT = 16
#: Number of Linux' system call for a RISC-V processor's properties, and its key for extensions.
_HWPROBE, _EXTENSIONS = 258, 4
#: Machine code of RISC-V's ``csrr a0, vlenb`` and ``ret``.
READ_VLENB = struct.pack("<2I", 0xC2202573, 0x00008067)
_ALIASES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
#: Fields of ``/proc/cpuinfo`` that name the CPU.
_NAMES = ("uarch", "model name", "CPU part", "cpu")


class Cpu(NamedTuple):
    """The CPU: ``features`` as ``/proc/cpuinfo`` spells them, and ``name`` as the vendor gives it.

    ``processor`` is vendor, family and model if the CPU has them, else the name.
    """

    machine: str
    name: str
    features: frozenset[str]
    processor: str


def machine() -> str:
    """Return the architecture, for example ``x86_64`` or ``aarch64``."""
    if hasattr(os, "uname"):
        name = os.uname().machine
    else:
        import platform

        name = platform.machine()
    return _ALIASES.get(name.lower(), name.lower())


@cache
def cpu() -> Cpu:
    """Return the CPU of this machine.

    Linux lists the features. x86 CPUs are asked for those that Linux leaves out. On other systems
    archspec detects the CPU, once.
    """
    fields = _first_processor()
    features = _features(fields)
    if features is None:
        return _detected()
    name = next((fields[key] for key in _NAMES if key in fields), machine())
    numbers = [fields[key] for key in ("vendor_id", "cpu family", "model") if key in fields]
    # On POWER, the name is for example "POWER10 (raw), altivec supported". Take its first word.
    own = name.split()[0] if machine() == "ppc64le" else name
    processor = " ".join(numbers) or own
    found = frozenset(features)
    if machine() == "x86_64":
        found |= unlisted(processor)
    return Cpu(machine(), name, found, processor)


def _features(fields: Mapping[str, str]) -> Iterable[str] | None:
    """Return the features that Linux reports on this architecture, None if it reports none."""
    if machine() == "ppc64le":
        return _power_features()
    if machine() == "riscv64":
        return _riscv_features(fields.get("isa"))
    said = fields.get("flags") or fields.get("Features")
    if said is None:
        return None
    return [*said.split(), *(name for name, has in thread_features().items() if has)]


def thread_features() -> dict[str, bool]:
    """Return, for features that differ between threads, whether this thread has them.

    These are vector lengths: of SVE on AArch64, also in SME's streaming mode, and of V on RISC-V.
    """
    if machine() not in ("aarch64", "riscv64"):
        return {}
    from tilewright.targets import detection

    known = detection.ARM if machine() == "aarch64" else detection.RISCV
    segments = {word: vector_bytes(asked) // _SEGMENT for word, asked in known.varying.items()}
    own = {name: bit for name, bit in known.bits.items() if bit.word in known.varying}
    return {name: bit.bit == segments[bit.word] for name, bit in own.items()}


def vector_bytes(question: int) -> int:
    """Return the bytes of this thread's vectors if the architecture allows several lengths, else 0.

    ``question`` is the number of Linux' ``prctl`` call for these vectors
    (include/uapi/linux/prctl.h).
    """
    if machine() == "riscv64":
        return _riscv_vector_bytes() if "v" in _riscv_extensions() else 0
    import ctypes

    found: int = ctypes.CDLL(None).prctl(question, 0, 0, 0, 0)
    return found & 0xFFFF if found > 0 else 0


def _riscv_features(isa: str | None) -> Iterator[str]:
    """Yield the features of a RISC-V CPU that Linux reports.

    They are read from ``isa`` if ``hwprobe`` fails. Before Linux 6.4, "v" in ``isa`` may mean a
    draft of V.
    """
    found = _riscv_extensions()
    if not found and isa is not None:
        letters, *names = isa.lower().split("_")
        yield from letters.removeprefix("rv64")
        yield from names
    yield from found
    yield from (name for name, has in thread_features().items() if has)


@cache
def _riscv_extensions() -> frozenset[str]:
    """Return the extensions that the system call ``hwprobe`` reports; none if the call fails."""
    import ctypes

    from tilewright.targets.detection import RISCV

    asked = (ctypes.c_uint64 * 2)(_EXTENSIONS, 0)
    failed = ctypes.CDLL(None).syscall(_HWPROBE, ctypes.byref(asked), 1, 0, None, 0)
    if failed or asked[0] != _EXTENSIONS:
        return frozenset()
    bits = {name: bit.bit for name, bit in RISCV.bits.items() if bit.word not in RISCV.varying}
    return frozenset(name for name, bit in bits.items() if asked[1] >> bit & 1)


def _riscv_vector_bytes() -> int:
    """Return the bytes of a RISC-V vector: run two instructions that read register ``vlenb``.

    The code runs from a mapped file in memory, so the instruction fetch sees what was written.
    """
    import ctypes
    import mmap

    try:
        file = os.memfd_create("vlenb")
        os.write(file, READ_VLENB)
    except OSError:
        return 0
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    read, execute, private = mmap.PROT_READ, mmap.PROT_EXEC, mmap.MAP_PRIVATE
    size, begin = ctypes.c_size_t(len(READ_VLENB)), ctypes.c_long(0)
    at = libc.mmap(None, size, read | execute, private, file, begin)
    os.close(file)
    if at in (None, ctypes.c_void_p(-1).value):
        return 0
    return int(ctypes.CFUNCTYPE(ctypes.c_uint64)(at)())


def _power_features() -> Iterator[str]:
    """Yield the features of a POWER CPU from the auxiliary vector of this process.

    ``/proc/cpuinfo`` does not list them.
    """
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
    """Return the CPU that archspec detects, remembered under the machine's name."""
    here = " ".join(os.uname()) if hasattr(os, "uname") else sys.platform

    def find() -> dict[str, Any]:
        found = _archspec()
        return {"name": found.name, "features": sorted(found.features)}

    return remembered("host.json", here, find, lambda x: _named(x["name"], x["features"]))


def _archspec() -> Cpu:
    import archspec.cpu

    found = archspec.cpu.host()
    return _named(found.name, found.features)


def _named(name: str, features: Iterable[str]) -> Cpu:
    return Cpu(machine(), name, frozenset(features), name)
