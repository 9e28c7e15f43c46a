"""Cycles of machine code, as LLVM's models of cores have them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

import pytest

#: What stands before instructions as the disassembler prints them.
_SYNTAX = {"x86_64": (".intel_syntax noprefix",)}
#: A half that an instruction on 512 bits reads and spreads, as binutils and as LLVM write it.
_SPREAD = re.compile(r"WORD BCST (\[.*?\])"), r"WORD PTR \1{1to32}"


def analyser() -> str | None:
    """LLVM's analyser of machine code; before version 19 it does not know SVE's cycles."""
    return next(filter(None, map(shutil.which, ("llvm-mca-19", "llvm-mca-20"))), None)


def block_cycles(lines: Iterable[str], triple: str, core: str) -> float:
    """Cycles of a loop's trip, its branch left out, when nothing has to be waited for.

    The test is skipped without the analyser.
    """
    if (found := analyser()) is None:
        pytest.skip("no llvm-mca of version 19")
    command = [found, f"-mtriple={triple}", f"-mcpu={core}", "-iterations=20"]
    text = "".join(f"{line}\n" for line in (*_SYNTAX.get(triple, ()), *lines))
    text = _SPREAD[0].sub(_SPREAD[1], text)
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    cycles = re.search(r"Block RThroughput: +([\d.]+)", said)
    assert cycles is not None, said
    return float(cycles[1])
