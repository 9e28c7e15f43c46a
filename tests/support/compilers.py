"""The compilers that generated C is held to, for each target."""

from __future__ import annotations

import shutil

import pytest

from tilewright import targets
from tilewright.errors import TargetError, ToolchainError
from tilewright.isa.target import Target
from tilewright.runtime.build.compilers import Compiler, find_compiler
from tilewright.runtime.machine.host import machine

#: Commands by the machine they compile for.
COMPILERS = {
    "x86_64": {"gcc": "gcc", "clang": "clang --target=x86_64-linux-gnu"},
    "aarch64": {"gcc": "aarch64-linux-gnu-gcc", "clang": "clang --target=aarch64-linux-gnu"},
    "ppc64le": {
        "gcc": "powerpc64le-linux-gnu-gcc",
        "clang": "clang --target=powerpc64le-linux-gnu",
    },
    "riscv64": {"gcc": "riscv64-linux-gnu-gcc", "clang": "clang-19 --target=riscv64-linux-gnu"},
}
FAMILIES = ("gcc", "clang")
#: Of the targets that differ in the length of vectors alone, the one in bytes that all tests take.
LENGTH = 32


def _alone(name: str) -> bool:
    length = targets.load(name).length
    others = [other for other in targets.NAMES if _family(other) == _family(name)]
    return length is None or len(others) == 1 or length.nbytes == LENGTH


def _family(name: str) -> str:
    """What targets are called that differ in the length of vectors alone."""
    return name.rstrip("0123456789")


#: Every target; of those that differ in the length of their vectors one.
TARGETS = tuple(filter(_alone, targets.NAMES))
#: Targets with vectors of their own.
VECTORS = tuple(name for name in TARGETS if targets.load(name).machine)


def use(
    family: str, target: Target, monkeypatch: pytest.MonkeyPatch, *, emulated: bool = False
) -> Compiler:
    """The compiler of that family for ``target``; the test is skipped without one new enough.

    ``emulated``: for what stands in for the CPU, else as if the CPU were here.
    """
    wanted = target.machine or machine()
    native = wanted == machine()
    command = COMPILERS.get(wanted, {}).get(family, family)
    if native and shutil.which(family):
        command = family
    newer = command.replace("clang", "clang-19", 1) if "clang-" not in command else command
    problem = f"no {command.split()[0]}"
    for each in dict.fromkeys((command, newer)):
        if shutil.which(each.split()[0]) is None:
            continue
        monkeypatch.setenv("CC" if native else f"TILEWRIGHT_CC_{wanted.upper()}", each)
        try:
            return find_compiler(target, emulated=emulated)
        except ToolchainError as error:
            problem = error.problem
            if "too old" not in problem and "makes no code" not in problem:
                raise
        except TargetError as error:  # no emulator, or one that is too old
            problem = str(error)
    pytest.skip(problem)
