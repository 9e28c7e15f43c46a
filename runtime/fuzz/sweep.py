"""Make random kernels, run them, and compare with numpy, in processes that work side by side.

In go a target, a seed and a number of cases. Out come the cases, each with its outcome.
"""

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
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np

from tilewright.errors import TilewrightError, ToolchainError, VerificationError
from tilewright.runtime.arrays.dtypes import preferred
from tilewright.runtime.call.pack_source import Given, pack_for
from tilewright.runtime.driver import build_many
from tilewright.runtime.kernel import Kernel
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network
from tilewright.spec.operands import Packed
from tilewright.spec.pack import Pack, PackQuantized

from .cases import CASES
from .drawing import AnyCase, draw, numbers

Verdict = Literal["passed", "failed", "refused"]
#: Number of kernels that are compiled into one library.
BATCH = 32
#: Number of libraries that a process loads before a new process replaces it.
_LIBRARIES = 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict of a case, and the reason if it did not pass."""

    index: int
    verdict: Verdict
    reason: str = ""


@dataclass(slots=True)
class Tally:
    """Counts of outcomes: over all cases, and for each value (level) of each axis."""

    verdicts: Counter[Verdict] = field(default_factory=Counter)
    levels: dict[str, dict[str, Counter[Verdict]]] = field(default_factory=dict)

    def add(self, case: AnyCase, outcome: Outcome) -> None:
        """Count the outcome of one case."""
        self.verdicts[outcome.verdict] += 1
        for axis, level in case.levels.items():
            self.levels.setdefault(axis, {}).setdefault(level, Counter())[outcome.verdict] += 1


# --- one process -------------------------------------------------------------------------------


def made(
    cases: Sequence[AnyCase], target: str, flags: Sequence[str] = ()
) -> Iterator[tuple[AnyCase, Kernel | Outcome]]:
    """Yield each case with its kernel, or with an outcome if the kernel could not be made.

    If a library of many cases cannot be made, the cases are halved until the faulty one is found.
    """
    try:
        specs = [case.spec() for case in cases]
        asked = [(spec, case.schedule, target) for spec, case in zip(specs, cases, strict=True)]
        kernels = build_many(asked, flags)
        build_many([(packs, None, target) for spec in specs for packs in _packs(spec)])
    except Exception as error:  # noqa: BLE001, whatever it is, it is this case's outcome
        if len(cases) == 1:
            yield cases[0], Outcome(cases[0].index, _verdict(error), said(error))
            return
        half = len(cases) // 2
        yield from made(cases[:half], target, flags)
        yield from made(cases[half:], target, flags)
    else:
        yield from zip(cases, kernels, strict=True)


def _packs(spec: Gemm | Network) -> Iterator[Pack | PackQuantized]:
    """Yield the specs of the kernels that pack B when the kernel of ``spec`` is verified."""
    if isinstance(spec, Network):
        yield from map(spec.packing, spec.packed)
    if isinstance(spec, Gemm) and isinstance(spec.b, Packed) and spec.quantized is None:
        assert isinstance(spec.k, int) and isinstance(spec.n, int)
        b = np.empty((*[1] * spec.packs_stack, spec.k, spec.n), preferred(spec.b.type))
        yield pack_for(spec, Given(b))[0]


def verified(case: AnyCase, kernel: Kernel) -> Outcome:
    """Verify a case's kernel and return the outcome."""
    try:
        kernel.verify(cases=CASES, seed=case.index)
    except Exception as error:  # noqa: BLE001, as above
        return Outcome(case.index, "failed", said(error))
    return Outcome(case.index, "passed")


def _verdict(error: Exception) -> Verdict:
    """Return "refused" if tilewright refused the case by a TilewrightError, else "failed"."""
    wrong = isinstance(error, (ToolchainError, VerificationError))
    return "refused" if isinstance(error, TilewrightError) and not wrong else "failed"


def said(error: Exception) -> str:
    """Return an error's type and message as one line of text."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- many processes ----------------------------------------------------------------------------


def sweep(
    target: str,
    cases: int,
    seed: int,
    *,
    first: int = 0,
    having: Mapping[str, str] | None = None,
    jobs: int = 1,
    flags: Sequence[str] = (),
) -> Iterator[tuple[AnyCase, Outcome]]:
    """Run cases of a seed and yield each with its outcome, in order.

    Parameters
    ----------
    target : str
        The target's name.
    cases, seed, first : int
        Number of cases, the seed they are drawn from, and the number of the first case.
    having : mapping
        Values (levels) that axes must have. Other cases are skipped and do not count.
    jobs : int
        Number of processes. Each compiles ``BATCH`` cases into one library, then checks them. If a
        process crashes or hangs, the case that it was running counts as failed.
    flags : sequence of str
        Flags for the C compiler.

    Raises
    ------
    SpecError
        ``having`` names an unknown axis or level, or no case has all of its levels. No case runs
        then.
    """
    chosen = list(islice(numbers(seed, first, having or {}), cases))
    batches = [chosen[i : i + BATCH] for i in range(0, len(chosen), BATCH)]
    workers = SimpleQueue[_Worker]()

    def outcomes(batch: list[int]) -> list[Outcome]:
        worker = workers.get()
        try:
            return list(worker.outcomes(batch))
        finally:
            workers.put(worker)

    with tempfile.TemporaryDirectory(prefix="tilewright-sweep-") as cache:
        started = [_Worker(target, seed, flags, Path(cache), str(job)) for job in range(jobs)]
        for worker in started:
            workers.put(worker)
        try:
            with ThreadPoolExecutor(jobs) as pool:
                for found in pool.map(outcomes, batches):
                    for outcome in found:
                        yield draw(seed, outcome.index), outcome
        finally:
            for worker in started:
                worker.end()


class _Worker:
    """A process that checks one batch after another. When it ends, a new process takes its
    place.
    """

    def __init__(
        self, target: str, seed: int, flags: Sequence[str], cache: Path, name: str
    ) -> None:
        self._command = [sys.executable, "-m", "tilewright.runtime.fuzz.worker"]
        self._command += [target, str(seed), *flags]
        self._environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(cache / "kernels")}
        self._errors = cache / f"errors_{name}"
        self._process: subprocess.Popen[str] | None = None
        self._libraries = 0

    def outcomes(self, batch: list[int]) -> Iterator[Outcome]:
        """Yield the outcomes of a batch. Cases left over when a process ends go to the next
        process.
        """
        left = batch
        while left:
            started, found = self._ask(left)
            yield from found
            left = left[len(found) :]
            if not left:
                return
            how = self.end()
            # If the process ended while it compiled the kernels, each half of the cases is tried.
            if started != left[0] and len(left) > 1:
                half = len(left) // 2
                yield from self.outcomes(left[:half])
                left = left[half:]
                continue
            yield Outcome(left[0], "failed", f"the process ended: {how}")
            left = left[1:]

    def _ask(self, batch: list[int]) -> tuple[int | None, list[Outcome]]:
        """Send a batch; return the number of the case begun last, and the outcomes received."""
        if self._libraries >= _LIBRARIES:
            self.end()
        process = self._process = self._process or self._start()
        self._libraries += 1
        assert process.stdin is not None and process.stdout is not None
        started, outcomes = None, list[Outcome]()
        try:
            print(*batch, file=process.stdin, flush=True)
        except BrokenPipeError:
            return started, outcomes
        for line in process.stdout:
            told: Mapping[str, Any] = json.loads(line)
            if "started" in told:
                started = told["started"]
                continue
            outcomes.append(Outcome(**told))
            if len(outcomes) == len(batch):
                break
        return started, outcomes

    def _start(self) -> subprocess.Popen[str]:
        with self._errors.open("w") as errors:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                text=True,
            )

    def end(self) -> str:
        """End the process if there is one, and return how it ended."""
        process, self._process, self._libraries = self._process, None, 0
        if process is None:
            return ""
        process.communicate()
        last = (self._errors.read_text(errors="replace").strip().splitlines() or [""])[-1]
        status = process.returncode
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"{how} {last}".strip()
