"""Perceptrons and a transformer layer beside PyTorch, Inductor, ONNX Runtime and OpenVINO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.rounds import rounds

from .models import Array, Model, model
from .peers import Function, peers
from .transformers import WIDTH, Transformer, transformer

NAME = "tilewright"
SMALL, LARGE = (13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1)
#: Widths, rows, type, and the goal for one thread: times the speed of the best peer.
CASES = (
    (SMALL, 32, "f32", 1.10), (SMALL, 32, "bf16", 1.12), (SMALL, 32, "int8", 1.5),
    (SMALL, 128, "f32", 1.0), (SMALL, 128, "bf16", 0.97), (SMALL, 128, "int8", 1.2),
    (SMALL, 512, "f32", 1.0), (SMALL, 512, "bf16", 0.97), (SMALL, 512, "int8", 1.2),
    (LARGE, 128, "f32", 1.0), (LARGE, 128, "bf16", None), (LARGE, 128, "int8", 1.05),
)  # fmt: skip
#: Batch, tokens, and the goal as above, of a layer of BERT in f32.
LAYERS = ((1, 128, 1.04), (4, 128, 1.04), (1, 384, 1.04))


@dataclass(frozen=True, slots=True)
class Row:
    """One model: the seconds of a call of each library, and the rate of ours."""

    model: str
    rows: int
    type: str
    threads: int
    seconds: dict[str, float]
    gflops: float
    goal: float | None

    @property
    def to_best(self) -> float:
        """The speed relative to the best peer."""
        return min(s for name, s in self.seconds.items() if name != NAME) / self.seconds[NAME]

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "model": self.model, "rows": self.rows, "type": self.type, "threads": self.threads,
            "us": {name: 1e6 * taken for name, taken in self.seconds.items()},
            "gflops": self.gflops, "to_best": self.to_best,
        }  # fmt: skip


def run(options: Options, threads: int = 1) -> Section:
    """Measure all models on this processor."""
    rng = np.random.default_rng(options.seed)
    found: list[Row] = []
    for widths, rows, type_, goal in CASES:
        made = model(widths, type_, rng)
        if options.wants(f"{made.name} {rows} {type_}"):
            found.append(_row(options, made, rows, threads, goal if threads == 1 else None, rng))
    for batch, tokens, goal in LAYERS:
        layer = transformer(batch, tokens, rng)
        if options.wants(layer.name):
            x = rng.standard_normal((batch, tokens, WIDTH)).astype(np.float32)
            calls = {NAME: layer.ours(x, threads)} | dict(layer.peers(x, threads))
            right, goal = layer.right(x), goal if threads == 1 else None
            found.append(
                _measured(options, layer, layer.rows, threads, goal, calls, right, layer.flops)
            )
    _print(options, found)
    figures = [
        Figure(
            f"{row.model}, {row.rows} rows of {row.type}, to the best peer", row.to_best, row.goal
        )
        for row in found
        if row.goal is not None
    ]
    kept = tuple(figures) if options.only is None else ()
    name = "networks" if threads == 1 else f"networks on {threads} threads"
    return Section(name, kept, tuple(row.record() for row in found))


def _row(
    options: Options, made: Model, rows: int, threads: int, goal: float | None,
    rng: np.random.Generator,
) -> Row:  # fmt: skip
    x = rng.standard_normal((rows, made.widths[0])).astype(np.float32)
    calls: dict[str, Function] = {NAME: _ours(made, x, threads)}
    calls |= dict(peers(made, x, threads))
    flops = made.flops(rows)
    return _measured(options, made, rows, threads, goal, calls, made.right(x), flops)


def _measured(
    options: Options, made: Model | Transformer, rows: int, threads: int, goal: float | None,
    calls: dict[str, Function], right: Array, flops: int,
) -> Row:  # fmt: skip
    for name, call in calls.items():
        _check(name, call(), made, right)
    taken = map(float, rounds(list(calls.values()), options.effort))
    seconds = dict(zip(calls, taken, strict=True))
    rate = flops / seconds[NAME] / 1e9
    return Row(made.name, rows, made.type, threads, seconds, rate, goal)


def _ours(made: Model, x: Array, threads: int) -> Function:
    net, packed = made.kernel(threads)
    given: Any = x
    if made.type == "bf16":
        import ml_dtypes

        given = x.astype(ml_dtypes.bfloat16)
    out = net(given, packed)
    return lambda: net(given, packed, out=out)


def _check(name: str, found: Any, made: Model | Transformer, right: Array) -> None:
    """Compare a result with float64."""
    given = found.float().numpy() if hasattr(found, "numpy") else found
    near = {"f32": 1e-4, "bf16": 3e-2, "int8": 3e-2}[made.type]
    error = np.abs(given.astype(np.float64) - right).max() / np.abs(right).mean()
    if not error <= near * 5:
        raise WrongResultError(f"{name}: {made.name} of {made.type} is off by {error:.3g}")


def _print(options: Options, found: list[Row]) -> None:
    threads = {row.threads for row in found}
    table = Table(title=f"Networks, threads: {threads}; us of a call", title_justify="left")
    names = list(dict.fromkeys(name for row in found for name in row.seconds))
    for heading in ("model", "rows", "type", *names, "GFLOPS", "to the best", "goal"):
        table.add_column(heading, justify="right" if heading in names else "left")
    for row in found:
        taken = [f"{1e6 * row.seconds[name]:.1f}" if name in row.seconds else "" for name in names]
        goal = "" if row.goal is None else f"{row.goal:.2f}"
        rate = f"{row.gflops:.0f}"
        said = (row.model, str(row.rows), row.type, *taken, rate, f"{row.to_best:.2f}", goal)
        table.add_row(*said)
    options.console.print(table)
