"""Compile C with a target's flags into libraries and programs, and disassemble the result."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, get_args

from tilewright.runtime.store.compiled import render
from tilewright.errors import ToolchainError
from tilewright.isa.target import NEVER, Target
from tilewright.runtime.machine.host import machine

from . import precompiled
from .compilers import (
    Compiler,
    Family,
    TooSlowError,
    architecture_of,
    binutil,
    binutils,
    gnu_name,
    run_tool,
)

#: Flags that undo -ffast-math and its parts. They come after the user's flags, and before
#: -ffp-contract, which clang sets together with -ffast-math. ``_GCC_EXACT`` also keeps gcc from
#: linking code that flushes denormals of the whole process.
_EXACT = ("-fno-fast-math",)
_GCC_EXACT = ("-fno-unsafe-math-optimizations",)
#: Flags for all compilers.
#:
#: - -ffp-contract=off: multiply-adds are fused only if the generated C says so.
#: - -fno-tree-vectorize: gcc 12 would turn some K loops into loads beyond the operands.
#: - -fno-strict-aliasing: clang 19 would drop some SVE stores.
#: - -falign-loops: a K loop across two cache lines took twice as long on Zen 5.
_FLAGS = (
    "-O2", "-std=c11", "-fPIC", *_EXACT, "-ffp-contract=off", "-fno-strict-aliasing", "-fno-tree-vectorize", "-Wall", "-Wextra",
    "-Werror", "-falign-loops=64", "-fno-unroll-loops",
)  # fmt: skip
#: gcc would move all loads to the top of a loop and spill registers. The generated order must stay.
_GCC_FLAGS = (*_GCC_EXACT, "-fno-schedule-insns")
#: Flags for headers that emulate intrinsics by loops. With optimisation, compiling takes several
#: times as long, and the code is hardly faster.
_HEADER_FLAGS = ("-O0",)


# --- compiling ---------------------------------------------------------------------------------


def compiler_flags(target: Target, compiler: Compiler) -> tuple[str, ...]:
    """Return all options with which ``compiler`` compiles C for ``target``."""
    if compiler.means == "header":
        own = (*_any_cpu(compiler), *_HEADER_FLAGS, f'-DTILEWRIGHT_INTRINSICS="{_header(target)}"')
    else:
        own = target.zig_flags if compiler.family == "zig" else target.compiler_flags
    return (*_common_flags(compiler), *own)


#: Flags that a user's project chooses itself: warnings, and position-independent code.
_PROJECTS_OWN = ("-fPIC", "-Wall", "-Wextra", "-Werror")


def source_flags(target: Target, family: Family) -> tuple[str, ...]:
    """Return the flags that a user's own build needs for code as fast as ``tw.compile``'s."""
    flags = compiler_flags(target, Compiler(("",), family, "", ""))
    kept = [flag for flag in flags if flag not in _PROJECTS_OWN]
    # The user's own build names the system, so the option -target is left out.
    if family == "zig":
        at = kept.index("-target")
        del kept[at : at + 2]
    return tuple(kept)


def exact_flags(family: Family) -> tuple[str, ...]:
    """Return flags that undo -ffast-math and -Ofast, for example -fno-fast-math, to compile and
    link.
    """
    return ("-O2", *_EXACT, *(_GCC_EXACT if family == "gcc" else ()))


def flags_notes(target: Target) -> tuple[str, ...]:
    """Return the lines at the top of a C file that list the flags for each compiler family."""
    able = _families(target)
    flags = {family: source_flags(target, family) for family in able}
    shared = [flag for flag in flags[able[0]] if all(flag in given for given in flags.values())]
    notes = [f"Flags:     {' '.join(shared)}"]
    for family, given in flags.items():
        if own := [flag for flag in given if flag not in shared]:
            notes.append(f"    {family} also: {' '.join(own)}")
    since = [versioned(target, family) for family in able if family in target.compilers]
    if since:
        notes.append(f"Compilers: {', '.join(since)}")
    return tuple(notes)


def _families(target: Target) -> tuple[Family, ...]:
    """Return the compiler families, for example "gcc", that can compile for the target."""
    return tuple(one for one in get_args(Family) if target.compilers.get(one) != NEVER)


def versioned(target: Target, family: Family) -> str:
    """Return a compiler family and its minimum version, for example "gcc 13 or later"."""
    least = target.compilers.get(family)
    return family if least is None else f"{family} {least} or later"


def own_file_notes(target: Target) -> tuple[str, ...]:
    """Return the notes at the top of a C file that a user compiles into a program of their own."""
    return (*flags_notes(target), "Called by: your program.")


def program_commands(target: Target, source: str, program: str) -> dict[Family, tuple[str, ...]]:
    """Return the commands with which gcc and clang compile one C file into a static program.

    If the target needs no minimum version, only gcc's command is returned: any version works.
    """
    own, gnu = target.machine in ("", machine()), f"{gnu_name(target.machine)}-linux-gnu"
    commands: dict[Family, tuple[str, ...]] = {
        "gcc": ("gcc",) if own else (f"{gnu}-gcc",),
        "clang": ("clang",) if own else ("clang", f"--target={gnu}"),
    }
    able = [family for family in _families(target) if family in commands]
    return {
        family: _program_command(target, commands[family], family, source, program)
        for family in (able if target.compilers else able[:1])
    }


def _program_command(
    target: Target, command: tuple[str, ...], family: Family, source: str, program: str
) -> tuple[str, ...]:
    flags = compiler_flags(target, Compiler(command, family, "", ""))
    needed = (flag for flag in flags if flag not in ("-fPIC", "-Werror"))
    return (*command, *needed, "-static", source, "-o", program, "-lm", "-pthread")


def _common_flags(compiler: Compiler) -> tuple[str, ...]:
    if compiler.family != "zig":
        return _FLAGS + (_GCC_FLAGS if compiler.family == "gcc" else ())
    return (*_FLAGS, "-target", compiler.triple, "-fno-sanitize=undefined")


def _any_cpu(compiler: Compiler) -> tuple[str, ...]:
    return ("-mcpu=baseline",) if compiler.family == "zig" else ()


def _link_command(compiler: Compiler, extra_flags: Sequence[str]) -> tuple[str, ...]:
    """Return the link command without options for the target's CPU.

    With such options, zig would build a libc for each CPU, which takes 30 s.
    """
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
    """Compile C text into ``directory/stem.so`` and keep the text as ``stem.c``.

    Several texts are compiled at the same time, as ``stem_0.c`` and so on. ToolchainError holds the
    compiler's own message.
    """
    flags = (*compiler_flags(target, compiler), *extra_flags)
    texts = [source] if isinstance(source, str) else list(source)
    objects = _objects(texts, target, compiler, flags, directory, stem)
    library = directory / f"{stem}.so"
    # The library takes libc from the process that loads it, so that zig need not build one.
    libraries = ("-nostdlib",) if compiler.family == "zig" else ("-lm", "-pthread")
    # The library is never unloaded, because sleeping threads may need its code.
    stay = ("-Wl,-z,nodelete",) if sys.platform == "linux" else ()
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
    """Compile C texts into the program ``directory/stem``, which is static for qemu and zig."""
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
    """Compile one C file, with the precompiled header ``shortcut`` if the compiler accepts it."""
    rest = ["-c", source, "-o", output]
    if shortcut is not None:
        command = [*compiler.command, *flags, *_precompiled(compiler, shortcut), *rest]
        if _succeeds(command, directory):
            return
    run_tool([*compiler.command, *flags, *rest], directory)
    # Compiling failed only with the precompiled header, so the header is removed.
    if shortcut is not None:
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
    """Compile C files, ``jobs`` at the same time. Return the seconds that each file took.

    Compilers put temporary files into ``directory``. Raises ToolchainError.
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
    """Link object files into a program, or into a shared library if ``options`` say so."""
    files = [str(path) for path in objects]
    command = [*_link_command(compiler, ()), *files, *options, "-lm", "-pthread", "-o"]
    run_tool([*command, str(output)], output.parent)


def archive(objects: Sequence[Path], compiler: Compiler, output: Path) -> None:
    """Make a static library of object files; ToolchainError if there is no archiver."""
    # The archiver would keep the members of an existing archive.
    output.unlink(missing_ok=True)
    run_tool([*_archiver(compiler), "rcs", str(output), *map(str, objects)], output.parent)


def _archiver(compiler: Compiler) -> tuple[str, ...]:
    if compiler.family == "zig":
        return (*compiler.command[:-1], "ar")
    return (binutil("ar", compiler, "nothing makes static libraries here"),)


def _shortcut(text: str, target: Target, compiler: Compiler, flags: tuple[str, ...]) -> Path | None:
    """Return the folder of the precompiled header for ``text``, None if there is none yet.

    Only headers of intrinsics are precompiled: they have 60,000 lines.
    """
    if compiler.means == "header" or not target.headers:
        return None
    begin = precompiled.preamble(text)
    if not all(f"<{header}>" in begin for header in target.headers):
        return None

    def make(folder: Path) -> None:
        header = ("-x", "c-header", precompiled.PREAMBLE, "-o", precompiled.OUTPUT)
        depends = ("-MD", "-MF", precompiled.READS)
        run_tool([*compiler.command, *flags, *header, *depends], folder)

    made_by = (*compiler.command, str(compiler), compiler.triple, *flags)
    return precompiled.find(begin, made_by, make)


def _precompiled(compiler: Compiler, folder: Path) -> tuple[str, ...]:
    if compiler.family == "gcc":
        return ("-include", str(folder / precompiled.PREAMBLE), "-Winvalid-pch")
    return ("-include-pch", str(folder / precompiled.OUTPUT))


def _succeeds(command: list[str], directory: Path) -> bool:
    try:
        run_tool(command, directory)
    except TooSlowError:
        raise
    except ToolchainError:
        return False
    return True


def _link(
    command: tuple[str, ...], objects: list[Path], options: tuple[str, ...], output: Path
) -> None:
    names = [path.name for path in objects]
    run_tool([*command, *names, *options, "-o", output.name], output.parent)
    for path in objects:
        path.unlink()


# --- looking at what was made ------------------------------------------------------------------


def disassemble(library: Path, compiler: Compiler, function: str | None = None) -> str:
    """Return the disassembly of ``function``, or of the whole library, as objdump prints it.

    The syntax on x86 is Intel's.

    The first disassembler that knows all of the instructions is used.
    """
    tools = binutils("objdump", compiler, "there is no disassembler")
    texts = [_disassembled(tools[0], library, compiler, function)]
    for tool in tools[1:]:
        if _UNKNOWN.search(texts[-1]) is None:
            break
        texts.append(_disassembled(tool, library, compiler, function))
    return texts[-1] if _UNKNOWN.search(texts[-1]) is None else texts[0]


#: Pattern of lines that a disassembler prints for an instruction that it does not know.
_UNKNOWN = re.compile(r"\t(\.4byte|\.inst|\.word|<unknown>|\(bad\))")


def _disassembled(tool: str, library: Path, compiler: Compiler, function: str | None) -> str:
    llvm = "llvm" in run_tool([tool, "--version"], None).stdout.lower()
    options = ["-d", "--no-show-raw-insn"]
    if architecture_of(compiler.triple) == "x86_64":
        options += ["--x86-asm-syntax=intel"] if llvm else ["-M", "intel"]
    if function is not None:
        options.append(f"--disassemble{'-symbols' if llvm else ''}={function}")
    return run_tool([tool, *options, str(library)], None).stdout
