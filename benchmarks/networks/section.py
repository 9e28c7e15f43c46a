"""Networks beside PyTorch, Inductor, ONNX Runtime and OpenVINO, on a number of threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from rich.table import Table

from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.rounds import rounds
from tilewright.runtime.bench.peak import Meter
from tilewright.runtime.machine.host import resolve

from . import blocks, costs
from .graphs import Array
from .models import model
from .peers import Function
from .transformers import transformer

NAME = "tilewright"
SMALL, LARGE = (13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1)
#: Widths, rows, type, and the goal for one thread: times the speed of the best peer.
CASES = (
    (SMALL, 32, "f32", 1.10), (SMALL, 32, "bf16", 1.12), (SMALL, 32, "int8", 1.5),
    (SMALL, 128, "f32", 1.0), (SMALL, 128, "bf16", 0.97), (SMALL, 128, "int8", 1.2),
    (SMALL, 512, "f32", 1.0), (SMALL, 512, "bf16", 0.97), (SMALL, 512, "int8", 1.2),
    (LARGE, 128, "f32", 1.0), (LARGE, 128, "bf16", None), (LARGE, 128, "int8", 1.05),
)  # fmt: skip
#: The goals of a layer of BERT by type, and its batches and tokens.
LAYERS = {"f32": 1.04, "bf16": 0.95, "int8": None}
SEQUENCES = ((1, 128), (4, 128), (1, 384))
BLOCKS = ((blocks.mixer, 1.08), (blocks.dlrm, 1.12), (blocks.chain, 1.5))
#: A layer of BERT must be at least this many times as fast on two threads as on one.
GAIN = 1.9
#: The largest error that counts as rounding. For int8 it is the root mean square of the errors,
#: relative to that of the result, because peers choose other scales. For other types it is the
#: maximum error, relative to the result's maximum.
NEAR = {"f32": 5e-4, "bf16": 0.15, "int8": 0.15}


class Case(Protocol):
    """A network with weights, and the same network in the peers."""

    @property
    def name(self) -> str:
        """The name in the table."""

    @property
    def rows(self) -> int:
        """The rows of a call."""

    @property
    def type(self) -> str:
        """The type of the arithmetic."""

    @property
    def flops(self) -> Mapping[str, int]:
        """Additions and multiplications of all products, by the type of their operands."""

    def given(self, rng: np.random.Generator) -> dict[str, Array]:
        """Return random inputs in f32."""

    def right(self, given: Mapping[str, Array]) -> Array:
        """Return the result in float64."""

    def ours(self, given: Mapping[str, Array], threads: int) -> Function:
        """Return a call of the compiled network."""

    def peers(
        self, given: Mapping[str, Array], threads: int
    ) -> Iterator[tuple[str, Function | str]]:
        """Yield each peer, with a call that returns the result, or why it cannot run this."""


@dataclass(frozen=True, slots=True)
class Row:
    """One network: the seconds of a call of each library, and why others have none.

    ``bound`` is the time of all products at the peak of one core, for each thread; 0 without
    products.
    """

    case: Case
    threads: int
    seconds: dict[str, float]
    absent: dict[str, str]
    bound: float
    goal: float | None

    @property
    def to_best(self) -> float:
        """The speed relative to the best peer."""
        return min(s for name, s in self.seconds.items() if name != NAME) / self.seconds[NAME]

    @property
    def of_peak(self) -> float:
        """The part of the time that the products would take at peak."""
        return self.bound / self.seconds[NAME]

    @property
    def figure(self) -> Figure | None:
        """The speed and its goal, if there is one."""
        case, goal = self.case, self.goal
        name = f"{case.name}, {case.rows} rows of {case.type}, to the best peer"
        return None if goal is None else Figure(name, self.to_best, goal)

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        case = self.case
        return {
            "model": case.name, "rows": case.rows, "type": case.type, "threads": self.threads,
            "us": {name: 1e6 * taken for name, taken in self.seconds.items()},
            "absent": self.absent, "of_peak": self.of_peak, "to_best": self.to_best,
        }  # fmt: skip


def run(options: Options, threads: int = 1) -> Section:
    """Measure all networks on this processor."""
    found, figures = list[Row](), list[Figure]()
    for case, goal in _cases(options):
        found.append(_row(options, case, threads, goal if threads == 1 else None))
        if threads > 1 and case.name.startswith("BERT"):
            figures.append(_gain(options, case, threads))
    if found:
        _print(options, found, threads)
    figures += [figure for row in found if (figure := row.figure) is not None]
    if threads == 1:
        figures += costs.figures(options)
    name = "networks" if threads == 1 else f"networks on {threads} threads"
    return Section(name, tuple(figures), tuple(row.record() for row in found))


def _cases(options: Options) -> Iterator[tuple[Case, float | None]]:
    """Yield the networks that are wanted, and their goals for one thread."""
    rng = np.random.default_rng(options.seed)
    for widths, rows, type_, goal in CASES:
        made = model(widths, rows, type_, rng)
        if options.wants(f"{made.name} {rows} {type_}"):
            yield made, goal
    for type_, goal in LAYERS.items():
        for batch, tokens in SEQUENCES:
            if options.wants(f"BERT layer {batch}x{tokens} {type_}"):
                yield transformer(batch, tokens, type_, rng), goal
    for make, goal in BLOCKS:
        block = make(rng)
        if options.wants(block.name):
            yield block, goal


def _row(options: Options, case: Case, threads: int, goal: float | None) -> Row:
    given = case.given(np.random.default_rng(options.seed))
    calls, absent = {NAME: case.ours(given, threads)}, dict[str, str]()
    for name, call in case.peers(given, threads):
        if isinstance(call, str):
            absent[name] = call
        else:
            calls[name] = call
    right = case.right(given)
    for name, call in calls.items():
        _check(name, call(), case, right)
    taken = map(float, rounds(list(calls.values()), options.effort))
    seconds = dict(zip(calls, taken, strict=True))
    bound = sum(flops / _peak(type_) for type_, flops in case.flops.items()) / threads
    return Row(case, threads, seconds, absent, bound, goal)


def _gain(options: Options, case: Case, threads: int) -> Figure:
    """Measure how much faster several threads are, with nothing else between the calls."""
    given = case.given(np.random.default_rng(options.seed))
    one, several = rounds([case.ours(given, each) for each in (1, threads)], options.effort)
    name = f"{case.name} of {case.type}: {threads} threads to one"
    return Figure(name, float(one / several), GAIN)


def _peak(type_: str) -> float:
    """The operations of one core in a second, in products of this type."""
    meter = _meter(type_)
    return meter.loop.flops / min(meter.seconds() for _ in range(9))


@cache
def _meter(type_: str) -> Meter:
    return Meter(resolve("host"), ("u8", "s8") if type_ == "int8" else type_)


def _check(name: str, found: Any, case: Case, right: Array) -> None:
    """Compare a result with float64."""
    given = found.float().numpy() if hasattr(found, "numpy") else found
    errors = given.astype(np.float64) - right
    error = np.abs(errors).max() / np.abs(right).mean()
    if case.type == "int8":
        error = np.sqrt(np.square(errors).mean() / np.square(right).mean())
    if not error <= NEAR[case.type]:
        raise WrongResultError(f"{name}: {case.name} of {case.type} is off by {error:.3g}")


def _print(options: Options, found: list[Row], threads: int) -> None:
    table = Table(title=f"Networks, {threads} thread(s); us of a call", title_justify="left")
    names = list(dict.fromkeys(name for row in found for name in row.seconds))
    for heading in ("network", "rows", "type", *names, "of peak", "to the best", "asked", ""):
        table.add_column(heading, justify="right" if heading in names else "left")
    for row in found:
        case, figure = row.case, row.figure
        taken = [f"{1e6 * row.seconds[name]:.1f}" if name in row.seconds else "-" for name in names]
        said = [f"{row.of_peak:.2f}" if row.bound else "", f"{row.to_best:.2f}"]
        goal = (
            ("", "")
            if figure is None
            else (f"{figure.limit:.2f}", "met" if figure.met else "missed")
        )
        table.add_row(case.name, str(case.rows), case.type, *taken, *said, *goal)
    options.console.print(table)
    absent = {(name, row.case.type, why) for row in found for name, why in row.absent.items()}
    for name, type_, why in sorted(absent):
        options.console.print(f"no {name} in {type_}: {why}")
