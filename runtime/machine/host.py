"""The host: which targets this machine runs, natively or emulated, and which is the best."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from tilewright.errors import TargetError
from tilewright.settings import cross_compiler, settings
from tilewright.targets import NAMES, load

from . import calibrations, processor
from .processor import Cpu, cpu, machine
from .quota import own_quota
from .target_table import Extension, Identity, identities

if TYPE_CHECKING:
    from tilewright.isa.machine import Emulation
    from tilewright.isa.target import Feature, Target

    #: Type variable for a target: a Target with its full description, or an Identity without it.
    Found = TypeVar("Found", Target, Identity)

__all__ = [
    "Cpu",
    "Means",
    "cache_shares",
    "caches",
    "cpu",
    "describe",
    "features_here",
    "find_qemu",
    "identify",
    "is_native",
    "machine",
    "means",
    "numbers_of",
    "qemu_version",
    "resolve",
    "usable_cpus",
    "user_compiler",
]

Means = Literal["native", "qemu", "header"]


def describe() -> str:
    """Return the CPU's name and level, for example ``AMD EPYC (x86_64_v4)``."""
    import archspec.cpu

    return f"{cpu().name} ({archspec.cpu.host().name})"


def caches() -> dict[str, int]:
    """Return bytes of the first core's data caches by level, such as ``{"L1": 32768}``; {} if
    unknown.
    """
    sizes: dict[str, int] = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        if kind != "Instruction":
            units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
            sizes[f"L{level}"] = int(size.rstrip("KMG")) * units.get(size[-1], 1)
    return sizes


def cache_shares() -> dict[str, int]:
    """Return one core's share of each cache when all cores use them, in bytes; {} if unknown."""
    found: dict[str, int] = {}
    threads = 0
    for level, size in caches().items():
        users = _users(level)
        # L1 belongs to one core, so its users are the threads of that core.
        threads = threads or users
        found[level] = size // max(1, users // max(1, threads))
    return found


def _users(level: str) -> int:
    """Return how many CPUs share the first core's cache of a level."""
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        told = f"L{(index / 'level').read_text().strip()}", (index / "type").read_text().strip()
        if told[0] == level and told[1] != "Instruction":
            mask = (index / "shared_cpu_map").read_text().replace(",", "")
            return int(mask, 16).bit_count()
    return 1


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity and its control groups' quotas."""
    cpus = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    limit = own_quota()
    return cpus if limit is None else min(cpus, limit)


def is_native(target: Target | Identity) -> bool:
    """Return True if this CPU has the features that ``target`` needs."""
    return target.machine in ("", cpu().machine) and cpu().features.issuperset(target.cpu_flags)


def check_thread(target: Identity) -> None:
    """Raise TargetError if this thread's vectors have another length than ``target`` needs."""
    own = processor.thread_features()
    lacking = [flag for flag in target.cpu_flags if not own.get(flag, True)]
    if lacking:
        raise TargetError(
            f"this thread's vectors are not as long as {target.name} needs them",
            got=", ".join(flag for flag, has in own.items() if has) or "none of a known length",
            expected=", ".join(lacking),
            hint="the target that is got here, or host; a thread's length is set by prctl",
        )


def resolve(target: str) -> Target:
    """Return the target called ``target``; "host" is the best target that this CPU runs
    natively.
    """
    return _called(target, load)


def identify(target: str) -> Identity:
    """Return the Identity of a target, like ``resolve`` but without the full description."""
    return _called(target, identities())


def _called(target: str, known: Callable[[str], Found]) -> Found:
    if not isinstance(target, str):
        raise TargetError("a target is named by a string", got=target)
    if target == "host":
        return _here(known)
    base, *features = [part.strip() for part in target.split("+")]
    numbers = [name for name in features if calibrations.is_measured(name)]
    found = known(base).having(name for name in features if name not in numbers)
    if len(numbers) > 1:
        raise TargetError("a target has the numbers of one core", got=target)
    return _scheduled(found, numbers[0]) if numbers else found


def _here(known: Callable[[str], Found]) -> Found:
    """Return the best target that this CPU runs, with features and the core's performance numbers.

    If ``TILEWRIGHT_MAX_TARGET`` names a lesser target, only the features in that name are used.
    """
    limit = settings().max_target
    best, allowed = (NAMES[0], None) if limit is None else _limit(limit, known)
    names = NAMES[NAMES.index(best) :]
    found = next(found for found in map(known, names) if is_native(found))
    features = list(features_here(found))
    if allowed is not None and found.name == best:
        features = [name for name in features if name in allowed]
    return for_this_core(found, features)


def _limit(limit: str, known: Callable[[str], Found]) -> tuple[str, list[str]]:
    """Return name and features of the best target that the user allows.

    Raises TargetError unless it is a target for this machine's architecture.
    """
    best, *features = [part.strip() for part in limit.split("+")]
    legal = [name for name in NAMES if known(name).machine in ("", cpu().machine)]
    if best not in legal:
        raise TargetError(
            "TILEWRIGHT_MAX_TARGET names no target of this machine",
            got=limit,
            expected=f"one of {', '.join(legal)}, with or without features, as avx2+vnni",
        )
    # This call raises an error that names the features that the target lacks.
    known(best).having(features)
    return best, features


def for_this_core(base: Found, features: Iterable[str] = ()) -> Found:
    """Return ``base`` with ``features`` and the performance numbers of this CPU's core.

    The numbers are those of a calibration, else of a shipped core, else the target's own.
    """
    calibration = calibrations.of(cpu().processor)
    numbers = None if calibration is None else calibration.cores.get(base.name)
    if numbers is not None:
        return _scheduled(base.having(features), numbers.name)
    known: Mapping[str, Feature | Extension] = base.features
    cores: list[str] = [name for name, each in known.items() if cpu().processor in each.processors]
    return base.having([*features, *cores])


def _scheduled(found: Found, name: str) -> Found:
    if isinstance(found, Identity):
        return found.scheduled(name)
    return calibrations.scheduled(found, name)


def features_here(target: Target | Identity) -> Iterator[str]:
    """Yield the features of ``target`` that this CPU has, except those that name a kind of core."""
    features: Mapping[str, Feature | Extension] = target.features
    for name, feature in features.items():
        if not feature.processors and is_native(target.having([name])):
            yield name


def means(target: Target | Identity, *, emulated: bool | None = None) -> Means:
    """Return how ``target`` runs here: natively, in qemu, or through a header.

    ``emulated=True`` asks for the emulator. If the target cannot run here, raise TargetError with
    what to install.
    """
    if emulated is False or (emulated is None and _runs_natively(target)):
        return "native"
    emulation = target.emulation
    path = find_qemu(target)
    version = qemu_version(path) if path is not None and emulation.least else ""
    if path is not None and numbers_of(version) >= numbers_of(emulation.least):
        return "qemu"
    if emulation.header is not None:
        return "header"
    wanted = f"{emulation.qemu or 'an emulator'} on PATH"
    raise TargetError(
        f"nothing here runs {target.name}",
        got=f"{cpu().name} ({machine()}){f', and {path} of version {version}' if version else ''}",
        expected=f"{target.title}, or {wanted}"
        + (f", of version {emulation.least} or later" if emulation.least else ""),
        hint=_install(emulation) if emulation.qemu else None,
    )


def _install(emulation: Emulation) -> str:
    if emulation.least:
        return (
            f"install qemu's user-mode emulators of version {emulation.least} or later "
            "(Debian: qemu-user from backports, or from a later release)"
        )
    return "install qemu's user-mode emulators (Debian, Ubuntu: apt-get install qemu-user)"


def _runs_natively(target: Target | Identity) -> bool:
    """Return True if the CPU has what ``target`` needs and the user does not ask for an
    emulator.
    """
    if not is_native(target) or not settings().emulate:
        return is_native(target)
    return target.emulation.qemu is None and target.emulation.header is None


def find_qemu(target: Target | Identity) -> str | None:
    """Return the path of the emulator, for example ``/usr/bin/qemu-aarch64``; None if there is
    none.
    """
    import shutil

    name = target.emulation.qemu
    return None if name is None else shutil.which(name) or shutil.which(f"{name}-static")


@cache
def qemu_version(path: str) -> str:
    """Return the version of the emulator at ``path``, "" if the emulator does not print it."""
    import re
    import subprocess

    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+(\.\d+)*)", said)
    return found[1] if found else ""


def numbers_of(version: str) -> tuple[int, ...]:
    """Return a version's numbers for comparison. Text after the digits of a part is dropped."""
    import re

    parts = (re.match(r"\d+", part) for part in version.split("."))
    return tuple(int(part[0]) for part in parts if part)


def user_compiler(target: Target | Identity, means: Means) -> str | None:
    """Return the compiler that the environment names for ``target``; it is part of a kernel's
    key.
    """
    if means == "header" or target.machine in ("", machine()):
        return settings().compiler
    return cross_compiler(target.machine)
