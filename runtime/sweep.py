"""Random products made, run and compared with numpy, many at a time in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from tilewright.errors import TilewrightError, ToolchainError, VerificationError

from .cases import CASES, Case, draw
from .driver import compile_many
from .kernel import Kernel

Verdict = Literal["passed", "failed", "refused"]
#: Kernels that are compiled into one library.
BATCH = 32


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case, and why if it did not pass."""

    index: int
    verdict: Verdict
    reason: str = ""


@dataclass(slots=True)
class Tally:
    """Outcomes counted, of all cases and of each level of each axis."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    levels: dict[str, dict[str, Counter[Verdict]]] = field(default_factory=dict)

    def add(self, case: Case, outcome: Outcome) -> None:
        """Count one case."""
        self.verdicts[outcome.verdict] += 1
        for axis, level in case.levels.items():
            self.levels.setdefault(axis, {}).setdefault(level, Counter())[outcome.verdict] += 1


# --- one process -------------------------------------------------------------------------------


def made(cases: Sequence[Case], target: str) -> Iterator[tuple[Case, Kernel | Outcome]]:
    """Each case's kernel, or why there is none; one that cannot be made is found by halving."""
    try:
        kernels = compile_many([(case.spec(), case.schedule, target) for case in cases])
    except Exception as error:  # noqa: BLE001, whatever it is, it is this case's outcome
        if len(cases) == 1:
            yield cases[0], Outcome(cases[0].index, _verdict(error), said(error))
            return
        half = len(cases) // 2
        yield from made(cases[:half], target)
        yield from made(cases[half:], target)
    else:
        yield from zip(cases, kernels, strict=True)


def verified(case: Case, kernel: Kernel) -> Outcome:
    """What becomes of a case that has its kernel."""
    try:
        kernel.verify(cases=CASES, seed=case.index)
    except Exception as error:  # noqa: BLE001, as above
        return Outcome(case.index, "failed", said(error))
    return Outcome(case.index, "passed")


def _verdict(error: Exception) -> Verdict:
    """Refused is what tilewright itself says no to."""
    wrong = isinstance(error, (ToolchainError, VerificationError))
    return "refused" if isinstance(error, TilewrightError) and not wrong else "failed"


def said(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- many processes ----------------------------------------------------------------------------


def sweep(
    target: str, cases: int, seed: int, *, first: int = 0, jobs: int = 1
) -> Iterator[tuple[Case, Outcome]]:
    """Cases ``first`` and on of ``seed``, in order; ``jobs`` processes at a time.

    A process makes and checks ``BATCH`` of them. What ends or outlasts it is that case's outcome.
    """
    batches = [range(i, min(i + BATCH, first + cases)) for i in range(first, first + cases, BATCH)]
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-sweep-") as cache,
        ThreadPoolExecutor(jobs) as pool,
    ):
        work = pool.map(lambda batch: list(_batch(target, seed, batch, cache)), batches)
        for outcomes in work:
            for outcome in outcomes:
                yield draw(seed, outcome.index), outcome


def _batch(target: str, seed: int, batch: range, cache: str) -> Iterator[Outcome]:
    """The outcomes of a batch; what is left when a process ends is for the next."""
    left = batch
    while left:
        command = [sys.executable, "-m", "tilewright.runtime.sweep_process"]
        with subprocess.Popen(
            [*command, target, str(seed), str(left.start), str(left.stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TILEWRIGHT_CACHE_DIR": cache},
            text=True,
        ) as process:
            output, errors = process.communicate()
        started, outcomes = _read(output)
        yield from outcomes
        left = range(left.start + len(outcomes), left.stop)
        if not left:
            return
        if started != left.start and len(left) > 1:  # it ended while it made the kernels
            half = left.start + len(left) // 2
            yield from _batch(target, seed, range(left.start, half), cache)
            left = range(half, left.stop)
            continue
        yield Outcome(left.start, "failed", _ended(process.returncode, errors))
        left = left[1:]


def _read(output: str) -> tuple[int | None, list[Outcome]]:
    """The case that was begun last, and the outcomes."""
    started, outcomes = None, []
    for line in output.splitlines():
        said: Mapping[str, Any] = json.loads(line)
        if "started" in said:
            started = said["started"]
        else:
            outcomes.append(Outcome(**said))
    return started, outcomes


def _ended(status: int, errors: str) -> str:
    last = (errors.strip().splitlines() or [""])[-1]
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"the process ended: {how} {last}".strip()
