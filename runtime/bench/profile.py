"""Measure how the time of a call is divided among the stages of a network.

In go a kernel, and the same kernel with C code that notes the time between the stages. Out comes
the time of each stage, beside the cost model's estimate.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tilewright.errors import ArgumentValueError
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.reference.arguments import Sampled

from .peak import clock
from .timing import copies

if TYPE_CHECKING:
    from pathlib import Path

    from tilewright.plan.routine import StageFacts

#: Minimum and maximum number of measured calls, and the calls before them.
_CALLS, _FIRST = (5, 10_000), 2
_TITLES = ("stage", "measured", "share", "estimated", "GFLOPS", "GB/s", "read", "written")


@dataclass(frozen=True, slots=True)
class StageTime:
    """The time of one stage of a network in a call, or of several stages in one loop over blocks.

    Attributes
    ----------
    names : tuple of str
        The names of the stages, as ``kernel.explain()`` prints them.
    seconds : float
        Median of the measured times, in seconds.
    share : float
        ``seconds`` divided by those of all stages.
    estimate : float or None
        Seconds that the cost model expects. None if it has no estimate of a stage.
    gflops : float
        Speed of the products in GFLOPS; 0 if the stage has none.
    gbs : float
        Bytes read and written, in GB per second.
    read, written : int
        Bytes of the inputs, weights and tensors of other stages. Each byte counts once.

    Examples
    --------
    >>> gram = tw.network(lambda x: tw.relu(x @ x.T))
    >>> net = tw.compile(gram.of(x=tw.Tensor("f32", (8, 8))))
    >>> (stage,) = net.profile(seconds=0.01)
    >>> stage.names, stage.share, stage.read, stage.written
    (('product0',), 1.0, 256, 256)
    """

    names: tuple[str, ...]
    seconds: float
    share: float
    estimate: float | None
    gflops: float
    gbs: float
    read: int
    written: int


@dataclass(frozen=True, slots=True, repr=False)
class Profile(Sequence[StageTime]):
    """The times of the stages of a network, in the order in which they run. It prints as a table.

    Attributes
    ----------
    stages : tuple of StageTime
        The stages. A profile is a sequence of them: ``profile[0]``, ``len(profile)``.
    calls : int
        Number of calls that were measured.

    Examples
    --------
    >>> double = tw.network(lambda x, w: tw.nn.softmax(x @ w.up))
    >>> up = tw.Tensor("f32", (64, 64))
    >>> net = tw.compile(double.of(x=tw.Tensor("f32", (tw.dim("rows"), 64)), w={"up": up}))
    >>> profile = net.profile(seconds=0.01, rows=16)
    >>> [stage.names for stage in profile]
    [('up',), ('softmax0',)]
    """

    stages: tuple[StageTime, ...]
    calls: int

    @property
    def seconds(self) -> float:
        """Seconds of a call: the sum over all stages."""
        return sum(stage.seconds for stage in self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, place: int | slice) -> StageTime | tuple[StageTime, ...]:  # type: ignore[override]
        return self.stages[place]

    def __iter__(self) -> Iterator[StageTime]:
        return iter(self.stages)

    def __repr__(self) -> str:
        from tilewright.explain.estimates import bytes_text, time_text

        rows: list[tuple[str, ...]] = [_TITLES]
        for each in self.stages:
            rows.append(
                (
                    " ".join(each.names),
                    time_text(each.seconds),
                    f"{each.share:.0%}",
                    "" if each.estimate is None else time_text(each.estimate),
                    f"{each.gflops:.1f}" if each.gflops else "",
                    f"{each.gbs:.1f}",
                    bytes_text(each.read),
                    bytes_text(each.written),
                )
            )
        rows.append(("all", time_text(self.seconds), *[""] * 6))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(lines)


class Stamped(Sampled, Protocol):
    """A kernel that notes the times of its stages."""

    @property
    def library(self) -> Path:
        """The file with its machine code."""


def profile(
    kernel: Stamped, facts: Sequence[StageFacts], seconds: float, sizes: Mapping[str, int]
) -> Profile:
    """Return the times of the stages of ``kernel``, measured for about ``seconds``.

    ``facts`` are the numbers of its stages for a call of these ``sizes``.
    """
    if not seconds > 0:
        raise ArgumentValueError("seconds must be positive", got=seconds)
    programs = [list(stages) for _, stages in groupby(facts, attrgetter("program"))]
    times = _measured(kernel, len(programs), seconds, sizes)
    medians = np.median(times, axis=0) / 1e9
    hertz = clock(kernel.isa)
    total = float(medians.sum())
    every = zip(programs, map(float, medians), strict=True)
    return Profile(tuple(_time(stages, own, total, hertz) for stages, own in every), len(times))


def _measured(kernel: Stamped, count: int, seconds: float, sizes: Mapping[str, int]) -> Array:
    """Return the nanoseconds of ``count`` programs in several calls, a row for each call."""
    (held,) = copies(kernel, 1, 1, sizes)
    frame = kernel.frame(**held.named(kernel))
    frame.own_scratch()
    run = dispatch.dispatcher().run
    place = dispatch.symbol(kernel.library, f"{kernel.name}_stamps")
    stamps = np.ctypeslib.as_array((ctypes.c_int64 * (count + 1)).from_address(place))
    rows: list[Array] = []
    least, most = _CALLS
    begin = perf_counter()
    while len(rows) < least + _FIRST or (len(rows) < most and perf_counter() - begin < seconds):
        if run(frame.address) != dispatch.DONE:
            raise MemoryError("no memory for the kernel's scratch buffer")
        rows.append(np.diff(stamps))
    return np.array(rows[_FIRST:])


def _time(stages: Sequence[StageFacts], seconds: float, total: float, hertz: float) -> StageTime:
    cycles = [each.cycles for each in stages if each.cycles is not None]
    read, written = (sum(getattr(each, name) for each in stages) for name in ("read", "written"))
    spent = max(seconds, 1e-9)
    return StageTime(
        names=tuple(each.name for each in stages),
        seconds=seconds,
        share=seconds / total if total else 1 / len(stages),
        estimate=sum(cycles) / hertz if len(cycles) == len(stages) else None,
        gflops=sum(each.flops for each in stages) / spent / 1e9,
        gbs=(read + written) / spent / 1e9,
        read=read,
        written=written,
    )
