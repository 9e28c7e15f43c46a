"""Write the measurement of the peak as a C program, for boards and simulators without Python."""

from __future__ import annotations

import shlex
from typing import Any

from tilewright.generate import VERSION
from tilewright.runtime.build.toolchain import program_commands, versioned
from tilewright.runtime.machine import host
from tilewright.runtime.store.compiled import render

from .peak import program_context, types_of


def peak_program(target: str = "host", type: Any = "f32", *, file: str = "peak.c") -> str:
    """Return the C text of a static program that measures what ``peak`` measures.

    ``type`` is as in ``peak``. ``file`` is the name that the program's file will have. The target
    need not run on this machine. Raise TargetError if the target has no products of the type.
    """
    found = host.resolve(target)
    stem = file.removesuffix(".c")
    commands = program_commands(found, file, stem)
    return render(
        "peak/program.c.j2",
        version=VERSION,
        commands={
            versioned(found, family): shlex.join(command) for family, command in commands.items()
        },
        pinned=shlex.join(["taskset", "-c", "2", f"./{stem}"]),
        versions=bool(found.compilers),
        length=found.length,
        **program_context(found, types_of(type), alone=True),
    )
