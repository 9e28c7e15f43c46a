"""Row programs on one thread: softmax, and layer_norm followed by gelu, beside the peers.

The bound is the longer of two times. One is that of the program's loops, each as long as its
busiest unit (``bound.py``), at the clock of ``tw.peak``. The other is that of a copy of the same
number of bytes. All are measured in turns. A second share is that of the multiplications and
multiply-adds alone at the rate of ``tw.peak``, as if all else happened beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

import tilewright as tw
from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import calls_in, seconds
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.peak import peak
from benchmarks.measure.rounds import rounds
from tilewright.errors import install
from tilewright.generate import plan_for

from .bound import bound as bound_of
from .peers import EPS, NORM, SOFTMAX, Function, Tensors, openvino, peers, torch

NAME, COPY, PEAK = "tilewright", "copy", "peak"
SIZES = ((512, 768), (4096, 1024))
TYPES = ("f32", "bf16")
#: Times the speed of the best peer; and of the bound.
GOAL, SHARE = 1.5, 0.8


@dataclass(frozen=True, slots=True)
class Row:
    """One program: the seconds of a call of each library and of a copy.

    ``arithmetic`` and ``multiplications`` are the bounds in seconds.
    """

    program: str
    size: str
    type: str
    seconds: dict[str, float]
    arithmetic: float
    multiplications: float

    @property
    def to_best(self) -> float:
        """The speed relative to the best peer."""
        own = (NAME, COPY)
        return min(taken for name, taken in self.seconds.items() if name not in own) / self.own

    @property
    def own(self) -> float:
        """Seconds of tilewright's call."""
        return self.seconds[NAME]

    @property
    def share(self) -> float:
        """The bound, as a share of the time taken."""
        return max(self.arithmetic, self.seconds[COPY]) / self.own

    @property
    def bound(self) -> str:
        """What bounds the program."""
        return "memory" if self.seconds[COPY] > self.arithmetic else "arithmetic"

    def record(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "program": self.program, "size": self.size, "type": self.type,
            "us": {name: 1e6 * taken for name, taken in self.seconds.items()},
            "to_best": self.to_best, "bound": self.bound, "of_bound": self.share,
            "of_multiplications": self.multiplications / self.own,
        }  # fmt: skip


def run(options: Options) -> Section:
    """Measure all programs on this processor."""
    torch().manual_seed(options.seed)
    if openvino() is None:
        options.console.print(f"[red]absent:[/] OpenVINO: {install('openvino')}")
    rows = [
        _row(options, program, size, type_)
        for program in (SOFTMAX, NORM)
        for size in SIZES
        for type_ in TYPES
        if options.wants(f"{size[0]}x{size[1]}")
    ]
    _print(options, rows)
    figures = [
        Figure(
            f"{program} to the best of PyTorch, Inductor, OpenVINO",
            geometric_mean(row.to_best for row in rows if row.program == program),
            GOAL,
        )
        for program in (SOFTMAX, NORM)
    ]
    figures.append(Figure("row programs: least share of the bound", _least(rows), SHARE))
    return Section("rows", tuple(figures) if options.only is None else (), _records(rows))


def _least(rows: Sequence[Row]) -> float:
    return min((row.share for row in rows), default=float("nan"))


def _records(rows: Sequence[Row]) -> tuple[dict[str, object], ...]:
    return tuple(row.record() for row in rows)


def _row(options: Options, program: str, size: tuple[int, int], type_: str) -> Row:
    found = torch()
    dtype = {"f32": found.float32, "bf16": found.bfloat16}[type_]
    x, weight, bias = (
        found.randn(*shape).to(dtype) for shape in (size, size[1:], size[1:])
    )  # fmt: skip
    given = Tensors(x, weight, bias, found.empty_like(x))
    kernel = _kernel(program, size, type_)
    arrays = (x,) if program == SOFTMAX else (x, weight, bias)
    calls: dict[str, Function] = {NAME: lambda: kernel(*arrays, out=given.out)}
    calls |= dict(peers(program, given))
    for name, call in calls.items():
        _check(name, call, program, given)
    copied, fma = found.empty_like(x), peak(options.target)
    calls[COPY] = lambda: copied.copy_(x)
    count = calls_in(fma, 0.5e-3)
    calls[PEAK] = lambda: seconds(fma, count)
    taken = dict(zip(calls, map(float, rounds(list(calls.values()), options.effort)), strict=True))
    plan = plan_for(kernel.spec, kernel.schedule, kernel.isa)
    most = bound_of(plan)
    once = taken.pop(PEAK) / count * 2 * plan.vector.lanes / fma.flops
    bounds = once * most.loops, once * most.multiplications
    return Row(program, f"{size[0]}x{size[1]}", type_, taken, *bounds)


def _kernel(program: str, size: tuple[int, int], type_: Any) -> tw.Kernel:
    x, column = tw.Tensor(type_, size), tw.Tensor(type_, size[1:])
    if program == SOFTMAX:
        return tw.compile(tw.network(tw.nn.softmax).of(x=x))

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        return tw.gelu_erf(tw.nn.layer_norm(x.astype("f32"), weight, bias, EPS)).astype(type_)

    return tw.compile(tw.network(norm).of(x=x, weight=column, bias=column))


def _check(name: str, call: Function, program: str, given: Tensors) -> None:
    """Compare a result with PyTorch's in f64."""
    found = torch()
    x, weight, bias = (each.double() for each in (given.x, given.weight, given.bias))
    functional = found.nn.functional
    if program == SOFTMAX:
        wanted = functional.softmax(x, -1)
    else:
        wanted = functional.gelu(functional.layer_norm(x, x.shape[1:], weight, bias, EPS))
    given.out.fill_(float("nan"))
    call()
    near = {"f32": 2e-5, "bf16": 2e-2}[given.type]
    error = (given.out.double() - wanted).abs() / (near * (wanted.abs() + wanted.abs().mean()))
    if not (error <= 1).all():
        raise WrongResultError(f"{name}: {program} of {given.type} is off by {error.max():.3g}")


def _print(options: Options, rows: Sequence[Row]) -> None:
    table = Table(title="Row programs, one thread: us", title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    for heading in (
        "program",
        "size",
        "type",
        *names,
        "to the best",
        "of the bound",
        "of mul, fma",
    ):
        table.add_column(heading, justify="right" if heading in names else "left")
    for row in rows:
        taken = [f"{1e6 * row.seconds[name]:.1f}" if name in row.seconds else "" for name in names]
        bound = f"{100 * row.share:.0f}% of {row.bound}"
        alone = f"{100 * row.multiplications / row.own:.0f}%"
        table.add_row(row.program, row.size, row.type, *taken, f"{row.to_best:.2f}", bound, alone)
    options.console.print(table)
