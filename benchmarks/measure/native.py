"""The C side: builds the benchmark's sources and times calls in interleaved rounds."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import numpy.typing as npt

PROGRAMS = Path(__file__).parents[1] / "programs"
#: The arguments of every function that is timed.
POINTERS = 6


class MissingError(Exception):
    """Something that the run needs is absent; the text says what and how to install it."""


class _Call(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("operands", ctypes.c_void_p * POINTERS),
        ("calls", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Call:
    """A function at an address with pointers as arguments; ``keep`` lives as long as it does.

    ``begin`` is the address of what is called, without arguments, before each turn of calls; 0 for
    nothing.
    """

    name: str
    function: int
    operands: tuple[int, ...]
    flops: int
    keep: tuple[Any, ...] = ()
    begin: int = 0

    def once(self) -> None:
        """Call it a single time, untimed."""
        _loop().bench_call(_structures([self], [1]), 1)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: rounds, quanta of each call in a round, seconds in a quantum."""

    rounds: int = 21
    repeats: int = 5
    quantum: float = 200e-6


@dataclass(frozen=True, slots=True)
class Timed:
    """``seconds[round, call]`` for one call of each."""

    calls: tuple[Call, ...]
    seconds: npt.NDArray[np.float64]

    def gflops(self, name: str) -> float:
        """Median over the rounds."""
        at = self._at(name)
        return float(np.median(self.calls[at].flops / self.seconds[:, at])) * 1e-9

    def ratios(self, name: str, to: str) -> npt.NDArray[np.float64]:
        """Per round: the speed of ``name`` in flops a second, divided by that of ``to``."""
        one, other = self._at(name), self._at(to)
        work = self.calls[one].flops / self.calls[other].flops
        ratios: npt.NDArray[np.float64] = work * self.seconds[:, other] / self.seconds[:, one]
        return ratios

    def ratio(self, name: str, to: str) -> float:
        """Median of the per-round ratios."""
        return float(np.median(self.ratios(name, to)))

    def spread(self, name: str, to: str) -> float:
        """Half the distance between the quartiles of the per-round ratios."""
        low, high = np.percentile(self.ratios(name, to), (25, 75))
        return float(high - low) / 2

    def _at(self, name: str) -> int:
        return [call.name for call in self.calls].index(name)


def measure(calls: Sequence[Call], effort: Effort) -> Timed:
    """Time all calls in interleaved rounds, and what tells whether a neighbour disturbs them."""
    from .neighbour import note, witnesses

    watched = (*calls, *witnesses())
    short = effort.quantum / 4
    quanta = [*[effort.quantum] * len(calls), *[short] * len(witnesses())]
    counts = [calls_in(call, quantum) for call, quantum in zip(watched, quanta, strict=True)]
    seconds = np.empty((effort.rounds, len(watched)))
    _loop().bench_rounds(
        _structures(watched, counts),
        *(ctypes.c_int64(n) for n in (len(watched), effort.rounds, effort.repeats)),
        seconds.ctypes.data_as(ctypes.c_void_p),
    )
    note(seconds[:, len(calls) :])
    return Timed(tuple(calls), seconds[:, : len(calls)])


def seconds(call: Call, count: int) -> float:
    """Seconds of one call, of so many in a row; threads may ask for it side by side."""
    return float(_loop().bench_time(_structures([call], [count]), count)) / count


def compiler() -> list[str]:
    """The C compiler for the benchmark's own sources."""
    command = shlex.split(os.environ.get("CC", "")) or ["gcc"]
    if shutil.which(command[0]) is None:
        raise MissingError(f"no C compiler {command[0]!r}: apt-get install gcc, or set CC")
    return command


@cache
def library(name: str, *flags: str) -> ctypes.CDLL:
    """The shared library made of ``benchmarks/programs/<name>.c``."""
    return built(PROGRAMS / f"{name}.c", *flags)


def built(source: Path, *flags: str) -> ctypes.CDLL:
    """The shared library made of a file in C."""
    path = _directory() / f"{source.stem}.so"
    command = [*compiler(), "-O2", "-std=gnu11", "-fPIC", "-shared", "-Wall", "-Wextra"]
    done = subprocess.run(
        [*command, str(source), "-o", str(path), *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise MissingError(f"{source.name} does not compile:\n{done.stderr.strip()}")
    return ctypes.CDLL(str(path))


def address(function: Any) -> int:
    """The address of a ctypes function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _directory() -> Path:
    import atexit

    path = Path(mkdtemp(prefix="tilewright-benchmarks-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def _loop() -> ctypes.CDLL:
    loop = library("loop")
    loop.bench_time.restype = ctypes.c_double
    loop.bench_call.argtypes = loop.bench_time.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    return loop


def _structures(calls: Sequence[Call], counts: Sequence[int]) -> ctypes.Array[_Call]:
    array = (_Call * len(calls))()
    for slot, call, count in zip(array, calls, counts, strict=True):
        slot.function, slot.calls, slot.begin = call.function, count, call.begin
        slot.operands[:] = (*call.operands, *(0,) * (POINTERS - len(call.operands)))
    return array


def calls_in(call: Call, quantum: float) -> int:
    """How many calls fill the quantum, from a trial that doubles until it lasts half of it."""
    one = _structures([call], [1])
    count = 1
    taken = 0.0
    while taken < quantum / 2:
        count *= 2
        taken = min(float(_loop().bench_time(one, count)) for _ in range(3))
    return max(1, round(count * quantum / taken))
