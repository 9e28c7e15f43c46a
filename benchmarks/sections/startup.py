"""What starting costs: importing cached kernels, a first product, compiling, rendering variants.

Each is measured in processes of its own with a cache of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import MissingError
from benchmarks.measure.options import Options

PROGRAMS = Path(__file__).parents[1] / "programs"
IMPORT_MS, FIRST_MS, COMPILE_S, RENDER_S = 60.0, 1.0, 4.0, 20.0


def run(options: Options) -> Section:
    """Run the four programs; those that are short are repeated."""
    times = 5 if options.effort.rounds < 10 else 15
    with TemporaryDirectory() as cache:
        compiled = _seconds("new_kernels", cache, options.target)
    with TemporaryDirectory() as cache:
        _seconds("cached_kernels", cache, options.target)
        warm = [_seconds("cached_kernels", cache, options.target) for _ in range(times)]
        _seconds("first_product", cache, options.target)
        first = [_seconds("first_product", cache, options.target) for _ in range(times)]
        rendered = _seconds("many_variants", cache, options.target)
    figures = (
        Figure(
            "import of 20 cached kernels", 1e3 * statistics.median(warm), IMPORT_MS, True, " ms"
        ),
        Figure(
            "first tw.matmul of a process", 1e3 * statistics.median(first), FIRST_MS, True, " ms"
        ),
        Figure("20 new kernels of a family", compiled, COMPILE_S, True, " s"),
        Figure("1000 variants planned and rendered", rendered, RENDER_S, True, " s"),
    )
    table = Table(title="Starting", title_justify="left")
    table.add_column("what")
    table.add_column("took", justify="right")
    for figure in figures:
        table.add_row(figure.name, f"{figure.value:.2f}{figure.unit}")
    options.console.print(table)
    return Section("startup", figures)


def _seconds(program: str, cache: str, target: str) -> float:
    """What the program says that it took, in a fresh process with this cache directory.

    As installed, modules are bytecode: an environment that keeps Python from writing it is not
    passed on.
    """
    environment = os.environ | {"TILEWRIGHT_CACHE_DIR": cache, "CC": "gcc"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), target]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingError(f"{program}.py fails:\n{done.stderr.strip()}")
    return float(done.stdout)
