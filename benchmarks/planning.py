"""What Python does to make a kernel: calls and CPU time, from the spec to the C and the kernel.

Each number is the median of several processes, each with an empty cache of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import MissingError
from benchmarks.measure.options import Options

PROGRAM = Path(__file__).parent / "programs" / "planning.py"
#: What is measured, by the program's names: its title, the most that it may be, its unit.
FIGURES: Mapping[str, tuple[str, float, str]] = {
    "calls": ("Gemm(64, 48, 64), spec to C", 40_000, " calls"),
    "plan": ("plan of Gemm(64, 48, k)", 8, " ms"),
    "in place": ("plan of tw.matmul's kernel for small matrices", 30, " ms"),
    "in blocks": ("plan of tw.matmul's kernel for large matrices", 30, " ms"),
    "kernel": ("a further new kernel, without the compiler", 20, " ms"),
    "first": ("first tw.matmul with an empty cache, without the compiler", 650, " ms"),
}


def run(options: Options) -> Section:
    """Run the program in fresh processes, and print the medians."""
    times = 3 if options.effort.rounds < 10 else 7
    found: dict[str, list[float]] = {name: [] for name in FIGURES}
    for _ in range(times):
        for mode in ("further", "first"):
            for name, value in _numbers(mode, options.target).items():
                found[name].append(value)
    table = Table(title=f"Planning for {options.target}", title_justify="left")
    for heading in ("what", "median", "least"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    figures: list[Figure] = []
    for name, (title, limit, unit) in FIGURES.items():
        values = found[name]
        table.add_row(title, f"{median(values):.1f}{unit}", f"{min(values):.1f}")
        figures.append(Figure(title, median(values), limit, True, unit))
    options.console.print(table)
    return Section("planning", tuple(figures))


def _numbers(mode: str, target: str) -> Any:
    """Return what the program prints in a fresh process with an empty cache."""
    with TemporaryDirectory() as cache:
        environment = os.environ | {"TILEWRIGHT_CACHE_DIR": cache, "CC": "gcc"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed, modules are bytecode
        command = [sys.executable, str(PROGRAM), target, mode]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{PROGRAM.name} fails:\n{done.stderr.strip()}")
    return json.loads(done.stdout)
