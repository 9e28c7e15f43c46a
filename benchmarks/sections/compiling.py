"""What compiling a kernel costs in CPU time, stage by stage, for each compiler that is installed.

Each compiler has a cache of its own. A process compiles kernels of all kinds into it; of a second
one, which finds the intrinsics' header and the templates compiled, all its kernels are new.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import MissingError
from benchmarks.measure.options import Options

PROGRAM = Path(__file__).parents[1] / "programs" / "compile_stages.py"
#: Seconds of CPU time, user and system, of the process and the compilers it starts.
FIRST, FURTHER, MANY = 1.0, 0.150, 1.2
#: How much of that a compiler may take.
ALLOWED = {"gcc": 1, "clang": 2, "zig": 2}
COMMANDS = {"gcc": "gcc", "clang": "clang", "zig": f"{sys.executable} -m ziglang cc"}
STAGES = ("plan", "program", "verify", "render", "compiler", "rest", "total")

Stages = Mapping[str, float]


def run(options: Options) -> Section:
    """Measure with every compiler that is there; gcc must be."""
    times = 3 if options.effort.rounds < 10 else 9
    table = Table(title=f"Compiling for {options.target}: CPU milliseconds", title_justify="left")
    for heading in ("compiler", "what", *STAGES):
        table.add_column(heading, justify="left" if heading in ("compiler", "what") else "right")
    figures: list[Figure] = []
    rows: list[dict[str, object]] = []
    for family in COMMANDS:
        if not _installed(family):
            continue
        for what, limit, spent in _found(family, options.target, times):
            table.add_row(family, what, *(f"{1e3 * spent[stage]:.0f}" for stage in STAGES))
            rows.append({"compiler": family, "what": what, **spent})
            if limit is not None:
                allowed = limit * ALLOWED[family]
                figures.append(Figure(f"{family}: {what}", spent["total"], allowed, True, " s"))
    options.console.print(table)
    return Section("compile", tuple(figures), tuple(rows))


def _installed(family: str) -> bool:
    if family == "zig":
        return find_spec("ziglang") is not None
    return family == "gcc" or shutil.which(family) is not None


def _found(family: str, target: str, times: int) -> Iterable[tuple[str, float | None, Stages]]:
    """What was compiled, the most it may take, and what each stage took."""
    with TemporaryDirectory() as cache:
        cold = _stages(family, cache, target, times, k=64)
        warm = _stages(family, cache, target, times, k=64 + 4 * (times + 1))
    yield "the first into an empty cache", None, cold["first"]
    yield "the first of a process", FIRST, warm["first"]
    for kind, found in warm["further"].items():
        yield f"a further one: {kind}", FURTHER, _median(found)
    yield "20 by compile_many", MANY, warm["many"]


def _median(found: Iterable[Stages]) -> Stages:
    """The kernel whose total is the median."""
    totals = {one["total"]: one for one in found}
    return min(totals.items(), key=lambda item: abs(item[0] - median(totals)))[1]


def _stages(family: str, cache: str, target: str, times: int, k: int) -> Any:
    """What the program found in a fresh process with this cache directory.

    As installed, modules are bytecode: an environment that keeps Python from writing it is not
    passed on.
    """
    environment = os.environ | {"TILEWRIGHT_CACHE_DIR": cache, "CC": COMMANDS[family]}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(PROGRAM), target, str(times), str(k)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{PROGRAM.name} fails:\n{done.stderr.strip()}")
    return json.loads(done.stdout)
