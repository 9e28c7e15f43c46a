"""``tilewright targets``: show which targets compile and run here, and how."""

from __future__ import annotations

from typing import Any

import click

from tilewright.errors import TargetError, ToolchainError
from tilewright.isa.target import Target
from tilewright.settings import settings

from .screen import console, json_option, show_json, table, working

#: For each mode of the dispatcher: how the arrays of a call are checked, as text.
_MODES = {
    "api": "in C, by an extension module",
    "abi": "in C, by a library without Python.h, which was not found",
    "python": "in Python, which is slow: no compiler here built the checks in C",
}


def compiler_of(target: Target) -> str:
    """Return the compiler for ``target`` on this machine, for example ``gcc 12.2.0``, or "none"."""
    from tilewright.runtime.build import compilers
    from tilewright.runtime.machine import host

    try:
        found = compilers.find_compiler(target, emulated=not host.is_native(target))
    except (TargetError, ToolchainError):
        return "none"
    return f"{found.family} {found.version}"


def missing(target: Target) -> list[str]:
    """Return messages that say what must be installed to compile for ``target`` and to run it."""
    from tilewright.runtime.build import compilers
    from tilewright.runtime.machine import host

    try:
        host.means(target)
        compilers.find_compiler(target, emulated=not host.is_native(target))
    except (TargetError, ToolchainError) as error:
        said = error.brief if isinstance(error, ToolchainError) else error.problem
        return [f"{said}: {error.hint}" if error.hint else said]
    return []


def _data(name: str, means: str) -> dict[str, Any]:
    """Return the facts for ``--json`` about a target on this machine."""
    from tilewright.targets import load

    target = load(name)
    return {
        "name": name,
        "instructions": target.title,
        "features": list(target.features),
        "runs_by": means,
        "compiler": compiler_of(target),
        "registers": target.registers,
        "missing": missing(target),
    }


@click.command("targets")
@json_option
def command(as_json: bool) -> None:
    """Show every target: how it runs here, what compiles for it, and its registers."""
    from tilewright.runtime.call import dispatch
    from tilewright.runtime.machine import host
    from tilewright.runtime.machine.means import survey
    from tilewright.runtime.threads.words import choice
    from tilewright.targets import load

    best = host.resolve("host")
    if as_json:
        found = [_data(name, means) for name, means in survey().items()]
        limit = settings().max_target
        said: dict[str, Any] = {"host": best.name, "limit": limit, "calls": dispatch.mode()}
        said["threads"] = choice()._asdict()
        show_json({**said, "targets": found})
        return
    shown = table(host.describe(), "target", "instructions", "runs by", "compiler", "registers")
    notes: list[str] = []
    with working("asking the compilers"):
        for name, means in survey().items():
            target = load(name)
            widest = target.vectors[0]
            shown.add_row(
                f"{name} (host)" if name == best.name.partition("+")[0] else name,
                target.title,
                means,
                compiler_of(target),
                f"{target.registers} vector registers of {widest.lanes} {widest.element}",
            )
            notes += missing(target)
        mode = dispatch.mode()
    screen = console()
    screen.print(shown)
    screen.print(f"Host: {best.name} ({best.title}).")
    if (limit := settings().max_target) is not None:
        screen.print(f"TILEWRIGHT_MAX_TARGET={limit} limits what host may be.")
    screen.print(f"Calls: the arrays of a call are checked {_MODES[mode]}.")
    screen.print(f"Threads: {choice()}.")
    for note in dict.fromkeys(notes):
        screen.print(note)
