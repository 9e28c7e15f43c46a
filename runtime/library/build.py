"""Compile a library for each architecture that has a compiler here, and run its self-test."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import TargetError, ToolchainError
from tilewright.runtime.build.compilers import Compiler, find_compiler
from tilewright.runtime.build.toolchain import Unit, archive, compile_units, link
from tilewright.runtime.emulate.runner import command_prefix
from tilewright.runtime.machine.host import machine
from tilewright.targets import load

from .choice import Choice, machines
from .files import Described

#: Name of the target for which C files that belong to no target are compiled.
_ANY = "scalar"
_LINE = re.compile(r"(pass|fail|skip): \w+, ([\w+]+)(?:, (\d+) kernels, (\d+) calls|: (.*))")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Facts about the compiled kernels of one target.

    ``seconds`` is the sum over all compiler runs, ``bytes`` the size of the objects. ``checked`` is
    the self-test's verdict: "pass", "fail", or the reason why it was not run.
    """

    target: str
    machine: str
    seconds: float
    bytes: int
    checked: str


@dataclass(frozen=True, slots=True)
class Built:
    """The result of compiling a library for one architecture.

    Attributes
    ----------
    machine : str
        The architecture.
    folder : pathlib.Path
        The folder of the compiled files.
    compiler : str
        The compiler with its version.
    targets : tuple of Compiled
        The kernels of each target.
    static, shared : pathlib.Path or None
        The libraries, None if nothing was compiled.
    seconds : float
        Time of the whole build.
    output : str
        Text that the self-test printed.
    missing : str
        Reason why nothing was compiled, "" otherwise.
    """

    machine: str
    folder: Path
    compiler: str
    targets: tuple[Compiled, ...]
    static: Path | None
    shared: Path | None
    seconds: float
    output: str = ""
    missing: str = ""

    @property
    def passed(self) -> bool:
        """True if the self-test ran to its end and found no error."""
        return not any(line.startswith("fail") for line in self.output.splitlines())


def build(
    told: Described,
    folder: Path,
    *,
    architectures: Sequence[str] | None = None,
    selftest: bool = True,
    jobs: int | None = None,
) -> tuple[Built, ...]:
    """Compile the files in ``folder`` into ``folder/build`` for each architecture; see ``Built``.

    Raise ToolchainError if a compiler fails, or if this machine and its targets have no compiler.
    Raise TargetError if the library has no target for one of ``architectures``.
    """
    known = dict(_architectures(told.choices))
    asked = list(known) if architectures is None else list(architectures)
    for wanted in asked:
        if wanted not in known:
            raise TargetError(
                f"{told.library.name} has no target for this architecture",
                got=wanted,
                expected=f"of {', '.join(known)}",
            )
    return tuple(_build_for(told, folder, each, known[each], selftest, jobs) for each in asked)


def _architectures(found: Sequence[Choice]) -> Iterator[tuple[str, tuple[Choice, ...]]]:
    """Yield each architecture with its targets, including those for any architecture."""
    groups = {name: members for name, _, members in machines(found)}
    anywhere = groups.pop("", ())
    for name, members in groups.items() or [(machine(), ())]:
        yield name, (*members, *anywhere)


def _build_for(
    told: Described,
    folder: Path,
    wanted: str,
    members: tuple[Choice, ...],
    selftest: bool,
    jobs: int | None,
) -> Built:
    begun = time.perf_counter()
    out = folder.resolve() / "build" / wanted
    try:
        compiler = find_compiler(members[0].target, emulated=False)
    except ToolchainError as error:
        if wanted == machine():
            raise
        return Built(wanted, out, "", (), None, None, 0.0, missing=error.brief)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as part:
        work = _Work(told, folder.resolve(), out, Path(part), compiler, members, jobs)
        compiled = work.compile_kernels()
        static, shared = work.libraries()
        output = work.selftest() if selftest else ""
    checked = _checked(output) if selftest else {}
    return Built(
        machine=wanted,
        folder=out,
        compiler=str(compiler),
        targets=tuple(
            Compiled(choice.name, wanted, seconds, size, checked.get(choice.name, "not run"))
            for choice, seconds, size in compiled
        ),
        static=static,
        shared=shared,
        seconds=time.perf_counter() - begun,
        output=output,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The build of a library for one architecture.

    The sources are in ``folder``. Object files go to ``part``, and libraries to ``out``.
    """

    told: Described
    folder: Path
    out: Path
    part: Path
    compiler: Compiler
    members: tuple[Choice, ...]
    jobs: int | None

    @property
    def name(self) -> str:
        """The library's name."""
        return self.told.library.name

    def _flags(self) -> tuple[str, ...]:
        left_out = {each.label for each in self.told.choices if each not in self.members}
        without = sorted(f"-D{self.told.library.macro}_WITHOUT_{each.upper()}" for each in left_out)
        return (f"-I{self.folder / 'include'}", *without)

    def _objects(self, choice: Choice) -> list[Unit]:
        return [
            Unit(
                self.folder / choice.source(each.field),
                self.part / choice.label / f"{each.field}.o",
                choice.target,
            )
            for each in self.told.functions
        ]

    def compile_kernels(self) -> list[tuple[Choice, float, int]]:
        """Compile all kernels and the dispatch; return the seconds and bytes of each target."""
        source = self.folder / "src" / f"{self.name}.c"
        units = [Unit(source, self.part / f"{self.name}.o", load(_ANY), self._flags())]
        by_target = {choice.label: self._objects(choice) for choice in self.members}
        units += [unit for each in by_target.values() for unit in each]
        took = dict(
            zip(units, compile_units(units, self.compiler, self.part, self.jobs), strict=True)
        )
        return [
            (
                choice,
                sum(took[unit] for unit in by_target[choice.label]),
                sum(unit.output.stat().st_size for unit in by_target[choice.label]),
            )
            for choice in self.members
        ]

    def libraries(self) -> tuple[Path, Path]:
        """Make the static and the shared library, and return their paths."""
        objects = sorted(self.part.rglob("*.o"))
        library = self.told.library
        static = self.out / f"lib{library.name}.a"
        archive(objects, self.compiler, static)
        shared = self.out / f"lib{library.name}.so.{library.version}"
        soname = f"lib{library.name}.so.{library.major}"
        script = self.folder / f"{library.name}.map"
        options = ("-shared", f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}")
        link(objects, self.compiler, (*options, "-Wl,-z,nodelete"), shared)
        for alias in (soname, f"lib{library.name}.so"):
            place = self.out / alias
            place.unlink(missing_ok=True)
            place.symlink_to(shared.name)
        return static, shared

    def selftest(self) -> str:
        """Compile and run the self-test; return its output, or the reason why it was not run.

        For another architecture the self-test runs in an emulator, once for each CPU that a target
        needs.
        """
        include = f"-I{self.folder / 'include'}"
        units = [
            Unit(path, self.part / "selftest" / f"{path.stem}.o", load(_ANY), (include,))
            for path in sorted((self.folder / "selftest").glob("*.c"))
        ]
        compile_units(units, self.compiler, self.part, self.jobs)
        program = self.out / f"{self.name}_selftest"
        objects = [*(unit.output for unit in units), self.out / f"lib{self.name}.a"]
        foreign = self.members[0].machine not in ("", machine())
        link(objects, self.compiler, ("-static",) if foreign else (), program)
        own = (each.target for each in self.members if each.machine) if foreign else ()
        try:
            prefixes = dict.fromkeys(command_prefix(target, emulated=True) for target in own)
        except TargetError as error:
            return f"skip: {self.name}: {error.problem}\n"
        return "".join(_run_selftest((*prefix, str(program))) for prefix in prefixes or [()])


def _run_selftest(command: tuple[str, ...]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode < 0 or not done.stdout:
        ended = f"fail: the self-test ended with status {done.returncode}"
        return f"{done.stdout}{ended}\n{done.stderr}"
    return done.stdout


def _checked(output: str) -> dict[str, str]:
    """Return the self-test's verdict for each target, the worst one if it ran several times."""
    found: dict[str, str] = {}
    for line in output.splitlines():
        if (said := _LINE.fullmatch(line)) is not None:
            word, target, kernels, calls, reason = said.groups()
            if found.get(target) == "fail" or (target in found and not kernels):
                continue
            found[target] = word if kernels else f"not run: {reason}"
            if word == "pass":
                found[target] = f"pass, {calls} calls"
    return found
