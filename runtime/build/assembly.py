"""Disassemble a kernel: its machine code as text."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tilewright.isa.target import Target

from tilewright.runtime.store.cache import Entry
from .compilers import Compiler, find_compiler
from .toolchain import compile_library, disassemble


def assembly(name: str, target: Target, entry: Entry) -> str:
    """Return the disassembled instructions of kernel ``name``.

    If a C header emulates the target here, the kernel is compiled for the real target first.
    """
    parts = entry.manifest["compiler_parts"]
    if parts["means"] != "header":
        return disassemble(entry.library, Compiler(command=(), **parts), name)
    text = (entry.directory / entry.manifest["text"]).read_text(encoding="utf-8")
    compiler = find_compiler(target, emulated=False)
    with tempfile.TemporaryDirectory() as folder:
        library = compile_library(text, target, compiler, Path(folder), "kernel")
        return disassemble(library, compiler, name)
