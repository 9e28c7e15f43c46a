"""Find the best schedule of a spec for this CPU by measuring.

The input is a spec and a time limit. A search proposes schedules for the spec. A child process
compiles them, checks their results, and times them in turns. The output is the fastest kernel. The
results are stored in the database of ``runtime/tuned.py``, from which ``compile`` takes the winner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    SpecError,
    TargetError,
    TuningError,
)
from tilewright.generate import VERSION
from tilewright.keywords import spelled
from tilewright.plan.by_rows import plan_product
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.driver import compile_many, tuning_subject
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.machine import host
from tilewright.runtime.tuned import MEASURED, Database, Result, Subject, Winner
from tilewright.spec.gemm import Gemm
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule

from .child import Child, Failure
from .race import Race, Ranking, Samples, not_measured, ranking
from .search import Explorer, Ranked, Search, check_method
from .stages import Staged
from .variants import candidates
from .workbench import moved

#: Share of the time limit that is reserved for the last comparison, and the maximum number of
#: variants that are compared there with the default.
FINAL, FINALISTS = 0.25, 6
#: Minimum and maximum number of rounds of measurements in the last comparison.
_ROUNDS = (5, 48)
#: Minimum number of rounds before the progress may show a variant as the best so far.
_TRUSTED = 3
#: Maximum and minimum number of variants that are compiled and timed together.
_TOGETHER, _LEAST = 24, 4


class Tuned(NamedTuple):
    """Result of ``tune``: the winner's kernel, and all measured variants, the winner first."""

    kernel: Kernel
    ranking: tuple[Ranking, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a tuning.

    ``phase`` is the name of the current phase. ``spent`` of the ``seconds`` have passed.
    ``measured`` and ``failed`` are numbers of variants. ``best`` is the speed of the best
    variant so far divided by the speed of the default.
    """

    phase: str
    spent: float
    seconds: float
    measured: int
    failed: int
    best: float

    @property
    def expected(self) -> int:
        """Estimated number of variants at the end of the tuning, if the rate stays the same."""
        return int(self.measured * max(1.0, self.seconds / max(self.spent, 1e-3)))


@spelled(ArgumentTypeError)
def tune(
    spec: Gemm | Network,
    *,
    target: str = "host",
    seconds: float = 60,
    search: str = "optuna",
    threads: int = 1,
    store: bool = True,
) -> Tuned:
    """Measure schedules of a product or a network, and store the fastest one for this CPU.

    From then on ``tw.compile(spec)`` takes the winner. Results are stored after each round. If a
    call is interrupted, the next call continues from the stored results. Before a variant is timed,
    its result is compared with numpy's, in a separate process. Stored results are in the directory
    ``TILEWRIGHT_DATA_DIR``, or else in the user's data directory. ``tilewright tune --forget``
    removes them.

    Parameters
    ----------
    spec : Gemm or Network
        The computation.
    target : str
        "host", or a target that this CPU runs natively. Default: "host".
    seconds : float
        Approximate duration of the tuning. Default: 60.
    search : {"optuna", "ranked"}
        "optuna", the default, explores the schedules of ``tw.variants`` and similar ones. "ranked"
        measures only the schedules of ``tw.variants``, in the cost model's order. For a network
        with products both try stages first, then schedules of each product in the best stages.
    threads : int
        Maximum number of threads of a variant. Default: 1, like the default schedule.
    store : bool
        If False, stored results are neither read nor written. Default: True.

    Returns
    -------
    Tuned
        The winner's kernel, and all measured variants, the winner first.

    Raises
    ------
    SpecError
        The spec is neither a ``tw.Gemm`` nor a ``tw.Network``.
    TargetError
        The target does not run natively here.
    TuningError
        The search or the child process does not start, or no variant could be measured.

    Examples
    --------
    >>> kernel, ranking = tw.tune(tw.Gemm(5, 5, 5), seconds=1, search="ranked")
    >>> kernel.requested == ranking[0].schedule
    True
    >>> tw.compile(tw.Gemm(5, 5, 5)).tuned is not None
    True
    """
    options: dict[str, Any] = {"target": target, "seconds": seconds, "search": search}
    with _database(store) as database:
        tuning = Tuning(spec, **options, threads=threads, database=database)
        for _ in tuning.steps():
            pass
        return tuning.result()


@contextmanager
def _database(store: bool) -> Iterator[Database]:
    """Return the user's database if ``store`` is True, else an empty temporary database."""
    if store:
        yield Database()
        return
    with TemporaryDirectory() as folder:
        yield Database(Path(folder) / "trial.sqlite3")


class Tuning:
    """The tuning of one spec. ``steps`` runs it, and yields its state after each round."""

    def __init__(
        self,
        spec: Gemm | Network,
        *,
        target: str = "host",
        seconds: float = 60,
        search: str = "optuna",
        threads: int = 1,
        child: Callable[[Gemm | Network, str], Child] = Child,
        database: Database | None = None,
    ) -> None:
        if not isinstance(spec, Gemm | Network):
            raise SpecError("what is tuned is a Gemm or a Network", got=spec)
        if not seconds > 0:
            raise ArgumentValueError("seconds must be positive", got=seconds)
        method = check_method(search)
        self.spec, self.seconds = spec, seconds
        self.target = host.resolve(target)
        if host.means(self.target) != "native":
            raise TargetError(
                f"{self.target.name} cannot be tuned here: its kernels would be emulated",
                got=f"{host.cpu().name}, {host.means(self.target)}",
                expected=f"a CPU with {self.target.title}",
                hint="target='host'",
            )
        self.database = database or Database()
        self.subject: Subject = tuning_subject(spec, self.target.name)
        self.failures: Mapping[Schedule, Failure] = {}
        self.ranking: tuple[Ranking, ...] = ()
        self._child, self._begun = child, time.monotonic()
        ranked = candidates(spec, self.target.name, threads=threads)
        self._cycles = {one.schedule: one.cycles for one in ranked}
        self._search = self._made(method, [one.schedule for one in ranked])
        self._compiler = str(find_compiler(self.target, emulated=False))
        self._flops, self._moved = 0, moved(spec)
        self._stored: set[Schedule] = set()

    def _made(self, method: str, variants: Sequence[Schedule]) -> Search:
        spec = self.spec
        if isinstance(spec, Network) and spec.staged:
            return Staged(variants, spec, self.target)
        if method == "ranked" or not variants or isinstance(spec, Network):
            return Ranked(variants)
        product: Gemm = spec
        return Explorer(
            variants, lambda schedule: plan_product(product, schedule, self.target).nests[0], seed=0
        )

    def steps(self) -> Generator[Progress]:
        """Search until a quarter of the time is left, then compare the best variants again.

        Yield the state of the tuning after each round of measurements.
        """
        rng, self._begun = np.random.default_rng(), time.monotonic()
        with self._child(self.spec, self.target.name) as child:
            race = Race(child, Schedule(), rng)
            self.failures = race.failures
            self._recall(race)
            self._begin(race)
            count = _LEAST  # the first batch is measured even if the time limit is very short
            while count > 0:
                begun, asked = self._spent(), self._search.ask(count)
                batch = race.admit(asked)
                self._store_failures(race)
                if not batch:
                    break
                yield from self._raced(race, batch)
                count = self._affordable((self._spent() - begun) / len(asked))
            yield from self._final(race)

    def result(self) -> Tuned:
        """Return the winner's kernel and the ranking.

        Raise TuningError if ``steps`` has not ended.
        """
        if not self.ranking:
            raise TuningError("the tuning has not come to its end", hint="go through steps()")
        chosen = self.ranking[0].schedule
        return Tuned(compile_many([(self.spec, chosen, self.target.name)])[0], self.ranking)

    # --- parts of a tuning ---------------------------------------------------------------------

    def _spent(self) -> float:
        return time.monotonic() - self._begun

    def _affordable(self, each: float) -> int:
        """Return the number of variants for the next batch, if a variant takes ``each`` seconds.

        The number is 0 if no time is left for the search.
        """
        left = (1 - FINAL) * self.seconds - self._spent()
        if left <= 0:
            return 0
        return min(_TOGETHER, max(_LEAST, int(left / each)))

    def _is_over(self, share: float) -> bool:
        return self._spent() >= share * self.seconds

    def _recall(self, race: Race) -> None:
        """Load the stored results of this spec, CPU and version of tilewright into ``race``."""
        for result in self.database.results(self.subject):
            if result.status != MEASURED:
                race.failures[result.schedule] = Failure(result.status, result.said)
            elif result.hot:
                race.samples[result.schedule] = Samples([*result.hot], [*result.cold])
        self._stored.update(race.failures)
        race.failures.pop(race.default, None)  # try again: others are compared to it

    def _begin(self, race: Race) -> None:
        """Measure the default schedule, the stored winner, and winners of other CPUs or versions.

        Then report all results so far to the search.
        """
        stored = self.database.winner(self.subject)
        known = [] if stored is None else [stored.schedule]
        first = race.admit(
            dict.fromkeys([race.default, *known, *self.database.earlier(self.subject)])
        )
        if race.default not in first:
            raise not_measured(race.failures[race.default])
        self._flops = race.flops
        for _ in range(3):
            self._store(race, race.measure(first, cold=True))
        for schedule in race.failures:
            self._search.tell(schedule, None)
        for schedule in race.samples:
            self._search.tell(schedule, 1 / race.pace(schedule))

    def _raced(self, race: Race, batch: Sequence[Schedule]) -> Iterator[Progress]:
        for measured in race.halving(batch):
            self._store(race, measured)
            yield self._progress("searching", race)
            if self._is_over(1 - FINAL):
                break
        for schedule in batch:
            failed = schedule in race.failures
            self._search.tell(schedule, None if failed else 1 / race.pace(schedule))

    def _final(self, race: Race) -> Iterator[Progress]:
        """Compare the best variants with the default again, rank them, and store the winner.

        The ranking of these variants uses only the measurements of this comparison.
        """
        best = sorted(race.samples, key=race.pace)[:FINALISTS]
        finalists = race.admit(dict.fromkeys([race.default, *best]))
        rounds, (least, most) = 0, _ROUNDS
        while rounds < most and (rounds < least or not self._is_over(1)):
            measured = race.measure(finalists, cold=True)
            finalists = [s for s in finalists if s not in race.failures]
            self._store(race, measured)
            self._store_failures(race)
            rounds += 1
            yield self._progress("comparing the best", race)
        self.ranking = self._ranked(race, finalists, rounds)
        self._crown(self.ranking[0])

    def _ranked(
        self, race: Race, finalists: Sequence[Schedule], rounds: int
    ) -> tuple[Ranking, ...]:
        """Return the ranking of all variants.

        Figures of finalists are from the last ``rounds`` rounds, those of other variants from all
        of their rounds. The order: finalists that are faster than the default, then the default,
        then the other finalists, then the other variants.
        """
        default = race.samples[race.default]
        first = [
            ranking(
                s, race.samples[s].last(rounds), default.last(rounds), self._flops,
                self._cycles.get(s), self._moved,
            )
            for s in finalists
        ]  # fmt: skip
        others = [
            ranking(s, samples, default, self._flops, self._cycles.get(s), self._moved)
            for s, samples in race.samples.items()
            if s not in finalists and samples.hot
        ]
        first.sort(key=lambda one: (not one.gains, one.schedule != race.default, -one.ratio))
        return (*first, *sorted(others, key=lambda one: -one.ratio))

    def _crown(self, best: Ranking) -> None:
        """Store ``best`` as the winner.

        A winner that another process stored is kept if its ratio is larger and this tuning did not
        compare it at the end.
        """
        raced = {one.schedule for one in self.ranking[: FINALISTS + 1]}
        there = self.database.winner(self.subject)
        if there is not None and there.schedule not in raced and there.ratio > best.ratio:
            return
        self.database.crown(
            Winner(
                subject=self.subject,
                schedule=best.schedule,
                code=repr(self.spec),
                ratio=best.ratio,
                uncertainty=best.uncertainty,
                spread=best.hot.spread,
                gflops=best.hot.gflops,
                compiler=self._compiler,
                version=VERSION,
                at=time.time(),
            )
        )

    # --- stored results ------------------------------------------------------------------------

    def _store(self, race: Race, measured: Sequence[Schedule]) -> None:
        self.database.put(
            self._result(s, MEASURED, "", race.samples[s]) for s in measured if s in race.samples
        )

    def _store_failures(self, race: Race) -> None:
        new = {s: f for s, f in race.failures.items() if s not in self._stored}
        self._stored.update(new)
        self.database.put(
            self._result(s, failure.status, failure.said, Samples()) for s, failure in new.items()
        )

    def _result(self, schedule: Schedule, status: str, said: str, samples: Samples) -> Result:
        return Result(
            subject=self.subject,
            schedule=schedule,
            code=repr(self.spec),
            status=status,
            said=said,
            compiler=self._compiler,
            version=VERSION,
            cycles=self._cycles.get(schedule),
            flops=self._flops,
            hot=tuple(samples.hot),
            cold=tuple(samples.cold),
            at=time.time(),
        )

    def _progress(self, phase: str, race: Race) -> Progress:
        known = (s for s, held in race.samples.items() if len(held.hot) >= _TRUSTED)
        best = min(map(race.pace, known), default=1.0)
        return Progress(
            phase, self._spent(), self.seconds, len(race.samples), len(race.failures), 1 / best
        )
