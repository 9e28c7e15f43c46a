"""The compilers that generated C is held to, for each target."""

from __future__ import annotations

import shutil

import pytest

from tilewright import targets
from tilewright.errors import ToolchainError
from tilewright.isa.target import Target
from tilewright.runtime.build.compilers import Compiler, find_compiler
from tilewright.runtime.machine.host import machine

#: Commands by the machine they compile for.
COMPILERS = {
    "x86_64": {"gcc": "gcc", "clang": "clang --target=x86_64-linux-gnu"},
    "aarch64": {"gcc": "aarch64-linux-gnu-gcc", "clang": "clang --target=aarch64-linux-gnu"},
}
FAMILIES = ("gcc", "clang")
#: Targets with vectors of their own.
VECTORS = tuple(name for name in targets.NAMES if targets.load(name).machine)


def use(
    family: str, target: Target, monkeypatch: pytest.MonkeyPatch, *, emulated: bool = False
) -> Compiler:
    """The compiler of that family for ``target``; the test is skipped without it.

    ``emulated``: for what stands in for the CPU, else as if the CPU were here.
    """
    wanted = target.machine or machine()
    native = wanted == machine()
    command = COMPILERS.get(wanted, {}).get(family, family)
    if native and shutil.which(family):
        command = family
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"no {command.split()[0]}")
    monkeypatch.setenv("CC" if native else "TILEWRIGHT_CC_AARCH64", command)
    try:
        return find_compiler(target, emulated=emulated)
    except ToolchainError as error:
        if "too old" not in error.problem:
            raise
        pytest.skip(f"{command} is too old for {target.name}")
