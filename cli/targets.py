"""``tilewright targets``: what can be compiled and run here, and by what means."""

from __future__ import annotations

from dataclasses import dataclass

import click

from tilewright.errors import TargetError, ToolchainError
from tilewright.isa import Target

from .screen import console, table, working

_MODES = {
    "api": "checked in C, an extension module",
    "abi": "checked in C, a library: Python.h was not found",
    "python": "checked in Python, slow: there was no compiler to build the dispatcher",
}


@dataclass(frozen=True, slots=True)
class Means:
    """How a target runs here, and what compiles for it; what is missing stands in its place."""

    runs: str
    compiler: str
    notes: tuple[str, ...]


def means_of(target: Target) -> Means:
    """By what means ``target`` runs and is compiled here."""
    from tilewright.runtime import host, toolchain

    notes = []
    try:
        means = host.means(target)
        runs = {"native": "native", "qemu": str(host.find_qemu(target)), "header": "header"}[means]
    except TargetError as error:
        runs = "interpreter only"
        notes.append(f"{error.problem}: {error.hint}" if error.hint else error.problem)
    try:
        emulated = not host.is_native(target)
        found = toolchain.find_compiler(target, emulated=emulated)
        compiler = f"{found.family} {found.version}"
    except (TargetError, ToolchainError) as error:
        compiler = "none"
        if isinstance(error, ToolchainError):
            notes.append(f"{error.problem}: {error.hint}")
    return Means(runs, compiler, tuple(notes))


@click.command("targets")
def command() -> None:
    """Show every target: how it runs here, what compiles for it, and its registers."""
    from tilewright.runtime import dispatch, host
    from tilewright.targets import NAMES, load

    best = host.resolve("host").name
    shown = table(host.describe(), "target", "instructions", "runs by", "compiler", "registers")
    notes: list[str] = []
    with working("asking the compilers"):
        for name in NAMES:
            target = load(name)
            means = means_of(target)
            notes += means.notes
            widest = target.vectors[0]
            shown.add_row(
                f"{name} (host)" if name == best else name,
                target.title,
                means.runs,
                means.compiler,
                f"{target.registers} of {widest.lanes} {widest.element}",
            )
        mode = dispatch.mode()
    screen = console()
    screen.print(shown)
    screen.print(f"Calls: {mode} dispatcher ({_MODES[mode]}).")
    for note in dict.fromkeys(notes):
        screen.print(note)
