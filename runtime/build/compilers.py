"""Find the compilers and binary tools for a target, ask for their versions, and run them."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tilewright.errors import ToolchainError
from tilewright.isa.target import NEVER, Target
from tilewright.settings import settings
from tilewright.runtime.machine.host import Means, machine, means, numbers_of, user_compiler

Family = Literal["gcc", "clang", "zig"]

#: GNU's names of architectures, by Python's name (``platform.machine()``), where the two differ.
_GNU = {"ppc64le": "powerpc64le"}
#: Version numbers in names of compilers such as "clang-19", newest first.
_NUMBERS = range(30, 12, -1)

@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler for one architecture.

    Attributes
    ----------
    command : tuple of str
        The words of the command.
    family, version : str
        "gcc", "clang" or "zig", and its version.
    triple : str
        The system for which it compiles, for example "x86_64-linux-gnu".
    means : str
        How compiled code runs: "native", "qemu" or "header". With "header", a header in plain C
        implements the intrinsics.
    """

    command: tuple[str, ...]
    family: Family
    version: str
    triple: str
    means: Means = "native"

    def __str__(self) -> str:
        return f"{self.family} {self.version} ({shlex.join(self.command)})"


def find_compiler(target: Target, *, emulated: bool) -> Compiler:
    """Return the compiler for ``target``.

    Parameters
    ----------
    target : Target
        The target.
    emulated : bool
        True to compile for qemu or a header, False for a native run.

    Returns
    -------
    Compiler
        The first compiler that is new enough. For this machine's architecture: the value of ``CC``,
        else gcc, clang, zig. For another: the value of ``TILEWRIGHT_CC_AARCH64`` (or ``_RISCV64``
        ...), else the cross gcc, clang, zig.

    Raises
    ------
    ToolchainError
        There is no such compiler.
    """
    how = means(target, emulated=True) if emulated else "native"
    wanted = machine() if how == "header" or not target.machine else target.machine
    least = {} if how == "header" else target.compilers
    named = user_compiler(target, how)
    if named is not None:
        found = _named(named, wanted)
        if not _new_enough(found, least):
            never = least.get(found.family) == NEVER
            raise ToolchainError(
                "the compiler that the environment names "
                f"{'makes no code for' if never else 'is too old for'} {target.name}",
                got=str(found),
                expected=_wish(wanted, least),
                hint=f"unset {_variable(wanted)}, or name another",
            )
        return replace(found, means=how)
    for found in _installed(wanted):
        if _new_enough(found, least):
            return replace(found, means=how)
    raise ToolchainError(
        f"there is no C compiler for {target.name} ({wanted})",
        expected=_wish(wanted, least),
        hint=f"{sys.executable} -m pip install ziglang, or apt-get install {_package(wanted)}",
    )


def _new_enough(found: Compiler, least: Mapping[str, str]) -> bool:
    wanted = least.get(found.family, "0")
    return wanted != NEVER and numbers_of(found.version) >= numbers_of(wanted)


def _wish(wanted: str, least: Mapping[str, str]) -> str:
    def said(name: str, family: str) -> str:
        return f"{name} {least[family]} or later" if family in least else name

    gcc = "gcc" if wanted == machine() else f"{gnu_name(wanted)}-linux-gnu-gcc"
    names = {"gcc": gcc, "clang": "clang"}
    able = [said(name, family) for family, name in names.items() if least.get(family) != NEVER]
    return f"{', '.join(able)}, or the ziglang package"


def _variable(wanted: str) -> str:
    return "CC" if wanted == machine() else f"TILEWRIGHT_CC_{wanted.upper()}"


def gnu_name(architecture: str) -> str:
    """Return GNU's name of an architecture, for example ``powerpc64le`` for ``ppc64le``."""
    return _GNU.get(architecture, architecture)


def _package(wanted: str) -> str:
    return "gcc" if wanted == machine() else f"gcc-{gnu_name(wanted).replace('_', '-')}-linux-gnu"


def _named(named: str, wanted: str) -> Compiler:
    """Return the compiler for the command in ``CC`` or ``TILEWRIGHT_CC_...``."""
    command = (named,) if shutil.which(named) else _words(named, wanted)
    path = shutil.which(command[0]) if command else None
    if path is None:
        raise ToolchainError(
            "the compiler that the environment names is not there",
            got=named,
            hint=f"unset {_variable(wanted)}, or correct it",
        )
    return _probe(command, path, wanted)


def _installed(wanted: str) -> Iterator[Compiler]:
    """Yield the installed compilers for an architecture, preferred ones first."""
    native = wanted == machine()
    target = f"{gnu_name(wanted)}-linux-gnu"
    gcc, options = ("gcc", ()) if native else (f"{target}-gcc", (f"--target={target}",))
    for name, more in ((gcc, ()), ("clang", options)):
        for numbered in (name, *(f"{name}-{number}" for number in _NUMBERS)):
            if (path := shutil.which(numbered)) is not None:
                yield _probe((numbered, *more), path, wanted)
    if find_spec("ziglang") is not None:
        yield _probe((sys.executable, "-m", "ziglang", "cc"), sys.executable, wanted)


def _words(named: str, wanted: str) -> tuple[str, ...]:
    """Split a command as a shell does, for example ``ccache gcc`` into two words."""
    try:
        return tuple(shlex.split(named))
    except ValueError as error:
        raise ToolchainError(
            "the compiler that the environment names cannot be read as a command",
            got=f"{named} ({error})",
            expected="words, each with as many quotation marks at its end as at its beginning",
            hint=f"unset {_variable(wanted)}, or correct it",
        ) from None


def _is_zig(command: tuple[str, ...]) -> bool:
    return any(os.path.basename(word) in ("zig", "ziglang", "zig.exe") for word in command)


def _probe(command: tuple[str, ...], path: str, wanted: str) -> Compiler:
    return _asked(command, os.path.realpath(path), os.stat(path).st_mtime_ns, wanted)


@lru_cache(maxsize=32)
def _asked(command: tuple[str, ...], path: str, stamp: int, wanted: str) -> Compiler:
    """Return the compiler with its version, which is asked again only if its file changes."""
    if _is_zig(command):
        version = run_tool([*command[:-1], "version"], None).stdout.strip()
        return Compiler(command, "zig", version, _zig_triple(wanted))
    said = run_tool([*command, "-v"], None)
    rows = (said.stderr + said.stdout).splitlines()
    version = next((row for row in rows if " version " in row), "")
    triple = next((row.split()[1] for row in rows if row.startswith("Target: ")), "")
    if not version or architecture_of(triple) != wanted:
        raise ToolchainError(
            "the compiler is of no use here",
            got=f"{shlex.join(command)}: {version or 'no version'}, {triple or 'no target'}",
            expected=f"gcc or clang for {wanted}",
        )
    number = version.partition(" version ")[2].split()[0]
    return Compiler(command, "clang" if "clang" in version else "gcc", number, triple)


def architecture_of(triple: str) -> str:
    """Return the architecture of a triple, for example ``aarch64`` for ``aarch64-linux-gnu``."""
    first = triple.partition("-")[0]
    names = {"amd64": "x86_64", "arm64": "aarch64", **{gnu: name for name, gnu in _GNU.items()}}
    return names.get(first, first)


def _zig_triple(wanted: str) -> str:
    if sys.platform == "darwin" and wanted == machine():
        return f"{wanted}-macos"
    glibc = hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names
    return f"{gnu_name(wanted)}-linux-{'gnu' if glibc and wanted == machine() else 'musl'}"


def binutil(name: str, compiler: Compiler, problem: str) -> str:
    """Return the command of a binutils or LLVM tool, for example objdump, that fits ``compiler``.

    Raises ToolchainError if there is none.
    """
    return binutils(name, compiler, problem)[0]


def binutils(name: str, compiler: Compiler, problem: str) -> list[str]:
    """Return the commands of all installed tools ``name`` that fit ``compiler``, best first.

    Raises ToolchainError if there is none.
    """
    wanted = architecture_of(compiler.triple)
    names = [f"{gnu_name(wanted)}-linux-gnu-{name}", f"llvm-{name}"]
    names += [f"llvm-{name}-{number}" for number in _NUMBERS]
    if wanted == machine():
        names.insert(0, name)
    found = [tool for tool in names if shutil.which(tool)]
    if not found:
        hint = "apt-get install binutils"
        raise ToolchainError(problem, expected=" or ".join(names[:2]), hint=hint)
    return found


#: Maximum number of lines of a tool's output in an error message.
_LINES = 20


class TooSlowError(ToolchainError):
    """A tool took longer than its time limit."""


def run_tool(command: list[str], directory: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a tool with English messages, and with its temporary files in ``directory``.

    Raises TooSlowError if it takes longer than ``TILEWRIGHT_COMPILE_SECONDS``.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    if directory is not None:
        environment["TMPDIR"] = str(directory)
    try:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # The group lets us end children too, such as gcc's cc1, which keep the pipes open.
            process_group=0,
        )
    except OSError as error:
        raise ToolchainError(
            f"{command[0]} cannot be started", got=error.strerror or str(error)
        ) from error
    output, errors = _ended(process, command)
    if process.returncode != 0:
        status = process.returncode
        how = f"failed with status {status}" if status > 0 else f"was ended by signal {-status}"
        raise ToolchainError(
            f"{os.path.basename(command[0])} {how}",
            got=_telling(f"{errors}\n{output}") or "no message",
            expected=f"success of: {shlex.join(command)}",
        )
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _telling(text: str) -> str:
    """Return the part of a tool's output for an error message: its start, or the first error."""
    lines = text.strip().splitlines()
    error = next((at for at, line in enumerate(lines) if "error" in line), 0)
    first = 0 if error < _LINES else error
    return "\n".join(lines[first : first + _LINES])


def _ended(process: subprocess.Popen[str], command: list[str]) -> tuple[str, str]:
    """Wait for a process and return its output. Kill it and its children after the time limit."""
    limit = settings().compile_seconds
    with process:
        try:
            return process.communicate(timeout=limit)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise TooSlowError(
                f"{os.path.basename(command[0])} did not end within {limit:g} s",
                got=f"no end of: {shlex.join(command)}",
                hint="set CC to another compiler, or ask for a smaller tile; where it is only slow, "
                "set TILEWRIGHT_COMPILE_SECONDS to more",
            ) from None
