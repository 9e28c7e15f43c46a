"""Costs of a network besides its arithmetic: compilation, a warm start, a call, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.table import Table

import tilewright as tw
from benchmarks.measure.figures import Figure
from benchmarks.measure.native import MissingError
from benchmarks.measure.options import Options
from benchmarks.measure.rounds import rounds

PROGRAM = "benchmarks.programs.network_costs"
#: Goals for a layer of BERT, in CPU seconds: the whole compilation; its imports, trace and plan;
#: and a warm start, with the layer in the cache.
COMPILE, PLAN, WARM = 3.0, 0.6, 0.020
#: Goals: microseconds of a call beyond its kernels; bytes of the arena relative to the least
#: possible; bytes of packed weights relative to the given weights.
CALL, ARENA, WEIGHTS = 1.0, 1.1, 1.05
NAME = "compile and memory"


def figures(options: Options) -> Iterator[Figure]:
    """Measure, and print a table."""
    if not options.wants(NAME):
        return
    times = 3 if options.effort.rounds < 10 else 7
    table = Table(title="A layer of BERT, 1x128: CPU ms, MiB", title_justify="left")
    headings = (
        "type", "imports", "trace", "plan", "program", "render", "compiler", "total", "warm start",
        "arena", "least", "weights", "packed",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "type" else "right")
    for type_ in ("f32", "bf16", "int8"):
        with TemporaryDirectory() as cache:
            cold, _ = _found(type_, "cold", cache), _found(type_, "warm", cache)
            warm = median(_found(type_, "warm", cache)["total"] for _ in range(times))
        spent = [cold[stage] for stage in headings[1:8]]
        taken = [cold["taken"], *(cold[name] for name in ("least", "weights", "packed"))]
        table.add_row(
            type_, *(f"{1e3 * each:.0f}" for each in (*spent, warm)),
            *(f"{each / 2**20:.2f}" for each in taken),
        )  # fmt: skip
        name, planned = f"BERT layer in {type_}", cold["imports"] + cold["trace"] + cold["plan"]
        yield Figure(f"{name}: compile", cold["total"], COMPILE, True, " s")
        yield Figure(f"{name}: import, trace and plan", planned, PLAN, True, " s")
        yield Figure(f"{name}: warm start", 1e3 * warm, 1e3 * WARM, True, " ms")
        yield Figure(f"{name}: arena to the least", cold["taken"] / cold["least"], ARENA, True)
        yield Figure(f"{name}: packed weights", cold["packed"] / cold["weights"], WEIGHTS, True)
    options.console.print(table)
    yield Figure("smallest network: call beyond kernels", 1e6 * _call(options), CALL, True, " us")


def _call(options: Options) -> float:
    """Return the seconds of a call of a small network beyond those that its C function takes."""
    rng = np.random.default_rng(options.seed)
    weights = {name: rng.standard_normal((8, 8)).astype(np.float32) for name in ("up", "down")}
    x = tw.Tensor("f32", (1, 8))
    net = tw.compile(tw.network(lambda x, w: tw.relu(x @ w.up) @ w.down).of(x=x, w=weights))
    packed, array = net.pack(weights), rng.standard_normal((1, 8)).astype(np.float32)
    out = net(array, packed)
    (seconds,) = rounds([lambda: net(array, packed, out=out)], options.effort)
    return float(seconds) - net.bench().median


def _found(type_: str, mode: str, cache: str) -> Any:
    """What the program prints in a fresh process with this cache directory, and without tunings.

    As installed, modules are bytecode: an environment that keeps Python from writing it is not
    passed on.
    """
    folders = {"TILEWRIGHT_CACHE_DIR": cache, "TILEWRIGHT_DATA_DIR": cache}
    environment = os.environ | folders | {"CC": "gcc"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, type_, mode], env=environment, capture_output=True,
        text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    if done.returncode:
        raise MissingError(f"{PROGRAM} fails:\n{done.stderr.strip()}")
    return json.loads(done.stdout)
