"""C in, machine code out: finds a compiler for a target and runs it with the target's flags."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from tilewright.errors import ToolchainError
from tilewright.isa.target import Target
from tilewright.emit.render import render

from tilewright.runtime.machine.host import Means, machine, means, user_compiler

from . import precompiled

Family = Literal["gcc", "clang", "zig"]

#: A fused operation is a node of the program: the compiler must not contract on its own. Nor may
#: it vectorise: gcc 12 turns K loops over four pairs of scalars into loads beyond the operands.
#: A K loop that straddles a cache line took twice as long on Zen 5.
_FLAGS = (
    "-O2", "-std=c11", "-fPIC", "-ffp-contract=off", "-fno-tree-vectorize", "-Wall", "-Wextra",
    "-Werror", "-falign-loops=64", "-fno-unroll-loops",
)  # fmt: skip
#: The order of loads in the source is chosen; gcc would lift them all to the top, and spill.
_GCC_FLAGS = ("-fno-schedule-insns",)
#: Optimising the loop of every intrinsic takes several times as long, and gains little.
_HEADER_FLAGS = ("-O0",)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler for one architecture.

    ``command`` starts it; ``triple`` is what it compiles for; ``means`` how what it makes will
    run: with ``header`` the target's intrinsics come from a header, in plain C.
    """

    command: tuple[str, ...]
    family: Family
    version: str
    triple: str
    means: Means = "native"

    def __str__(self) -> str:
        return f"{self.family} {self.version} ({shlex.join(self.command)})"


def find_compiler(target: Target, *, emulated: bool) -> Compiler:
    """The compiler for ``target``; ``emulated``: for qemu or a header, where not native.

    For this machine's architecture: CC, else gcc, clang, zig. For 64-bit Arm elsewhere:
    TILEWRIGHT_CC_AARCH64, else the cross gcc, zig. Raises ToolchainError.
    """
    how = means(target, emulated=True) if emulated else "native"
    wanted = machine() if how == "header" or not target.machine else target.machine
    found = next(_candidates(wanted, user_compiler(target, how)), None)
    if found is None:
        raise ToolchainError(
            f"there is no C compiler for {target.name} ({wanted})",
            expected=", ".join([*_names(wanted), "or the ziglang package"]),
            hint=f"{sys.executable} -m pip install ziglang, or apt-get install {_package(wanted)}",
        )
    return replace(found, means=how)


def _names(wanted: str) -> tuple[str, ...]:
    return ("gcc", "clang") if wanted == machine() else (f"{wanted}-linux-gnu-gcc",)


def _package(wanted: str) -> str:
    return "gcc" if wanted == machine() else f"gcc-{wanted.replace('_', '-')}-linux-gnu"


def _candidates(wanted: str, named: str | None) -> Iterator[Compiler]:
    if named is not None:
        command = (named,) if shutil.which(named) else _words(named)
        path = shutil.which(command[0]) if command else None
        if path is None:
            raise ToolchainError(
                "the compiler that the environment names is not there",
                got=named,
                hint="unset CC (or TILEWRIGHT_CC_AARCH64), or correct it",
            )
        yield _probe(command, path, wanted)
    for name in _names(wanted):
        if (path := shutil.which(name)) is not None:
            yield _probe((name,), path, wanted)
    if find_spec("ziglang") is not None:
        yield _probe((sys.executable, "-m", "ziglang", "cc"), sys.executable, wanted)


def _words(named: str) -> tuple[str, ...]:
    """The words of a command, as a shell would part them."""
    try:
        return tuple(shlex.split(named))
    except ValueError as error:
        raise ToolchainError(
            "the compiler that the environment names cannot be read as a command",
            got=f"{named} ({error})",
            expected="words, each with as many quotation marks at its end as at its beginning",
            hint="unset CC (or TILEWRIGHT_CC_AARCH64), or correct it",
        ) from None


def _is_zig(command: tuple[str, ...]) -> bool:
    return any(os.path.basename(word) in ("zig", "ziglang", "zig.exe") for word in command)


def _probe(command: tuple[str, ...], path: str, wanted: str) -> Compiler:
    return _asked(command, os.path.realpath(path), os.stat(path).st_mtime_ns, wanted)


@lru_cache(maxsize=32)
def _asked(command: tuple[str, ...], path: str, stamp: int, wanted: str) -> Compiler:
    """What the compiler says of itself, asked once as long as its file stays the same."""
    if _is_zig(command):
        version = _run([*command[:-1], "version"], None).stdout.strip()
        return Compiler(command, "zig", version, _zig_triple(wanted))
    said = _run([*command, "-v"], None)
    rows = (said.stderr + said.stdout).splitlines()
    version = next((row for row in rows if " version " in row), "")
    triple = next((row.split()[1] for row in rows if row.startswith("Target: ")), "")
    if not version or _architecture(triple) != wanted:
        raise ToolchainError(
            "the compiler is of no use here",
            got=f"{shlex.join(command)}: {version or 'no version'}, {triple or 'no target'}",
            expected=f"gcc or clang for {wanted}",
        )
    number = version.partition(" version ")[2].split()[0]
    return Compiler(command, "clang" if "clang" in version else "gcc", number, triple)


def _architecture(triple: str) -> str:
    first = triple.partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(first, first)


def _zig_triple(wanted: str) -> str:
    if sys.platform == "darwin" and wanted == machine():
        return f"{wanted}-macos"
    glibc = hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names
    return f"{wanted}-linux-{'gnu' if glibc and wanted == machine() else 'musl'}"


# --- compiling ---------------------------------------------------------------------------------


def compiler_flags(target: Target, compiler: Compiler) -> tuple[str, ...]:
    """All options with which ``compiler`` compiles for ``target``; they stand in manifests."""
    if compiler.means == "header":
        own = (*_any_cpu(compiler), *_HEADER_FLAGS, f'-DTILEWRIGHT_INTRINSICS="{_header(target)}"')
    else:
        own = target.zig_flags if compiler.family == "zig" else target.compiler_flags
    return (*_common_flags(compiler), *own)


#: What a project of one's own decides: warnings, and whether code may lie anywhere.
_PROJECTS_OWN = ("-fPIC", "-Wall", "-Wextra", "-Werror")


def source_flags(target: Target, family: Family) -> tuple[str, ...]:
    """What C for ``target`` is compiled with by anyone, on any machine: needed, and as measured."""
    flags = compiler_flags(target, Compiler(("",), family, "", ""))
    kept = [flag for flag in flags if flag not in _PROJECTS_OWN]
    if family == "zig":  # who compiles says for which system
        at = kept.index("-target")
        del kept[at : at + 2]
    return tuple(kept)


def flags_notes(target: Target) -> tuple[str, ...]:
    """The lines in which a C file says what it is compiled with, by each family of compilers."""
    flags = {family: " ".join(source_flags(target, family)) for family in get_args(Family)}
    return tuple(f"Flags:     {family} {text}" for family, text in flags.items())


def own_file_notes(target: Target) -> tuple[str, ...]:
    """What the first comment of a C file says that a program compiles and calls by itself."""
    return (*flags_notes(target), "Called by: a program of yours, as it is declared here.")


def program_command(target: Target, source: str, program: str) -> tuple[str, ...]:
    """How gcc makes a static program of one C file, on any machine that has it for ``target``."""
    command = "gcc" if target.machine in ("", machine()) else f"{target.machine}-linux-gnu-gcc"
    flags = compiler_flags(target, Compiler((command,), "gcc", "", ""))
    needed = (flag for flag in flags if flag not in ("-fPIC", "-Werror"))
    return (command, *needed, "-static", source, "-o", program, "-lm", "-pthread")


def _common_flags(compiler: Compiler) -> tuple[str, ...]:
    if compiler.family != "zig":
        return _FLAGS + (_GCC_FLAGS if compiler.family == "gcc" else ())
    return (*_FLAGS, "-target", compiler.triple, "-fno-sanitize=undefined")


def _any_cpu(compiler: Compiler) -> tuple[str, ...]:
    return ("-mcpu=baseline",) if compiler.family == "zig" else ()


def _link_command(compiler: Compiler, extra_flags: Sequence[str]) -> tuple[str, ...]:
    """Without the target's own options, lest zig build a libc for each CPU (30 s)."""
    return (*compiler.command, *_common_flags(compiler), *_any_cpu(compiler), *extra_flags)


def _header(target: Target) -> str:
    return (target.emulation.header or "").rpartition("/")[2].removesuffix(".j2")


def compile_library(
    source: str | Sequence[str],
    target: Target,
    compiler: Compiler,
    directory: Path,
    stem: str,
    extra_flags: Sequence[str] = (),
) -> Path:
    """Compile C text into ``directory/stem.so`` and leave the text beside it as ``stem.c``.

    Several texts are compiled side by side, as ``stem_0.c`` and so on. Raises ToolchainError
    with what the compiler said.
    """
    flags = (*compiler_flags(target, compiler), *extra_flags)
    texts = [source] if isinstance(source, str) else list(source)
    objects = _objects(texts, target, compiler, flags, directory, stem)
    library = directory / f"{stem}.so"
    # The library leaves libc to the process it is loaded into: zig need not build one.
    libraries = ("-nostdlib",) if compiler.family == "zig" else ("-lm", "-pthread")
    stay = ("-Wl,-z,nodelete",) if sys.platform == "linux" else ()  # its threads may sleep in it
    _link((*_link_command(compiler, extra_flags), "-shared"), objects, (*libraries, *stay), library)
    return library


def compile_program(
    sources: Sequence[str],
    target: Target,
    compiler: Compiler,
    directory: Path,
    stem: str,
    extra_flags: Sequence[str] = (),
) -> Path:
    """Compile C texts into the program ``directory/stem``; static where qemu or zig wants it."""
    static = compiler.means == "qemu" or compiler.family == "zig"
    if compiler.family == "zig":
        compiler = replace(compiler, triple=compiler.triple.replace("-gnu", "-musl"))
    flags = (*compiler_flags(target, compiler), *extra_flags)
    objects = _objects(sources, target, compiler, flags, directory, stem)
    program = directory / stem
    options = ("-static", "-lm", "-pthread") if static else ("-lm", "-pthread")
    _link(_link_command(compiler, extra_flags), objects, options, program)
    return program


def _objects(
    texts: Sequence[str],
    target: Target,
    compiler: Compiler,
    flags: tuple[str, ...],
    directory: Path,
    stem: str,
) -> list[Path]:
    if compiler.means == "header":
        text = render(str(target.emulation.header))
        (directory / _header(target)).write_text(text, encoding="utf-8")
    stems = [stem] if len(texts) == 1 else [f"{stem}_{i}" for i in range(len(texts))]
    for name, text in zip(stems, texts, strict=True):
        (directory / f"{name}.c").write_text(text, encoding="utf-8")

    shortcuts = [_shortcut(text, target, compiler, flags) for text in texts]

    def compile_one(name: str, shortcut: Path | None) -> Path:
        _compile(f"{name}.c", f"{name}.o", compiler, flags, shortcut, directory)
        return directory / f"{name}.o"

    if len(stems) == 1:
        return [compile_one(stems[0], shortcuts[0])]
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return list(pool.map(compile_one, stems, shortcuts))


def _compile(
    source: str,
    output: str,
    compiler: Compiler,
    flags: Sequence[str],
    shortcut: Path | None,
    directory: Path,
) -> None:
    """Compile one C file, with the precompiled header ``shortcut`` if that can be used."""
    rest = ["-c", source, "-o", output]
    if shortcut is not None:
        command = [*compiler.command, *flags, *_precompiled(compiler, shortcut), *rest]
        if _succeeds(command, directory):
            return
    _run([*compiler.command, *flags, *rest], directory)
    if shortcut is not None:  # it was not the C text that failed
        precompiled.set_aside(shortcut)


class Unit(NamedTuple):
    """One C file to compile for a target, and the object file that it becomes."""

    source: Path
    output: Path
    target: Target
    flags: tuple[str, ...] = ()


def compile_units(
    units: Sequence[Unit], compiler: Compiler, directory: Path, jobs: int | None = None
) -> list[float]:
    """Compile C files side by side, ``jobs`` at a time; the seconds that each took.

    ``directory`` is where compilers put what they need meanwhile. Raises ToolchainError.
    """

    def compile_one(unit: Unit) -> float:
        begun = time.perf_counter()
        flags = (*compiler_flags(unit.target, compiler), *unit.flags)
        text = unit.source.read_text(encoding="utf-8")
        shortcut = _shortcut(text, unit.target, compiler, flags)
        unit.output.parent.mkdir(parents=True, exist_ok=True)
        _compile(str(unit.source), str(unit.output), compiler, flags, shortcut, directory)
        return time.perf_counter() - begun

    with ThreadPoolExecutor(max_workers=jobs or os.cpu_count() or 1) as pool:
        return list(pool.map(compile_one, units))


def link(
    objects: Sequence[Path], compiler: Compiler, options: Sequence[str], output: Path
) -> None:
    """Link object files into a program or, with the option for it, a shared library."""
    files = [str(path) for path in objects]
    command = [*_link_command(compiler, ()), *files, *options, "-lm", "-pthread", "-o"]
    _run([*command, str(output)], output.parent)


def archive(objects: Sequence[Path], compiler: Compiler, output: Path) -> None:
    """Make a static library of object files; ToolchainError if there is nothing that does."""
    output.unlink(missing_ok=True)  # it would keep what it held
    _run([*_archiver(compiler), "rcs", str(output), *map(str, objects)], output.parent)


def _archiver(compiler: Compiler) -> tuple[str, ...]:
    if compiler.family == "zig":
        return (*compiler.command[:-1], "ar")
    return (_binutil("ar", compiler, "nothing makes static libraries here"),)


def _binutil(name: str, compiler: Compiler, problem: str) -> str:
    """The tool for what ``compiler`` makes: binutils', or LLVM's; ToolchainError with neither."""
    wanted = _architecture(compiler.triple)
    names = [f"{wanted}-linux-gnu-{name}", f"llvm-{name}"]
    if wanted == machine():
        names.insert(0, name)
    found = next(filter(shutil.which, names), None)
    if found is None:
        hint = "apt-get install binutils"
        raise ToolchainError(problem, expected=" or ".join(names), hint=hint)
    return found


def _shortcut(text: str, target: Target, compiler: Compiler, flags: tuple[str, ...]) -> Path | None:
    """Where the precompiled header lies that ``text`` begins with; None if it has none yet.

    Only the headers of compilers' intrinsics are worth it: they have 60,000 lines.
    """
    if compiler.means == "header" or not target.headers:
        return None
    begin = precompiled.preamble(text)
    if not all(f"<{header}>" in begin for header in target.headers):
        return None

    def make(folder: Path) -> None:
        header = ("-x", "c-header", precompiled.PREAMBLE, "-o", precompiled.OUTPUT)
        depends = ("-MD", "-MF", precompiled.READS)
        _run([*compiler.command, *flags, *header, *depends], folder)

    made_by = (*compiler.command, str(compiler), compiler.triple, *flags)
    return precompiled.find(begin, made_by, make)


def _precompiled(compiler: Compiler, folder: Path) -> tuple[str, ...]:
    if compiler.family == "gcc":
        return ("-include", str(folder / precompiled.PREAMBLE), "-Winvalid-pch")
    return ("-include-pch", str(folder / precompiled.OUTPUT))


def _succeeds(command: list[str], directory: Path) -> bool:
    try:
        _run(command, directory)
    except ToolchainError:
        return False
    return True


def _link(
    command: tuple[str, ...], objects: list[Path], options: tuple[str, ...], output: Path
) -> None:
    names = [path.name for path in objects]
    _run([*command, *names, *options, "-o", output.name], output.parent)
    for path in objects:
        path.unlink()


def _run(command: list[str], directory: Path | None) -> subprocess.CompletedProcess[str]:
    """Run a tool, in English and with its temporary files in ``directory``."""
    environment = {**os.environ, "LC_ALL": "C"}
    if directory is not None:
        environment["TMPDIR"] = str(directory)
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise ToolchainError(
            f"{command[0]} cannot be started", got=error.strerror or str(error)
        ) from error
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[:20])
        raise ToolchainError(
            f"{os.path.basename(command[0])} failed with status {done.returncode}",
            got=said or "no message",
            expected=f"success of: {shlex.join(command)}",
        )
    return done


# --- looking at what was made ------------------------------------------------------------------


def disassemble(library: Path, compiler: Compiler, function: str | None = None) -> str:
    """The instructions of ``function``, or of all, as objdump prints them; x86 in Intel syntax."""
    tool = _binutil("objdump", compiler, "there is no disassembler")
    llvm = "llvm" in _run([tool, "--version"], None).stdout.lower()
    options = ["-d", "--no-show-raw-insn"]
    if _architecture(compiler.triple) == "x86_64":
        options += ["--x86-asm-syntax=intel"] if llvm else ["-M", "intel"]
    if function is not None:
        options.append(f"--disassemble{'-symbols' if llvm else ''}={function}")
    return _run([tool, *options, str(library)], None).stdout
