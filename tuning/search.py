"""Choose the next schedules to try: in the model's order, or by Optuna from the results so far.

Optuna's sampler (a tree-structured Parzen estimator) begins with the schedules that the cost model
ranks first. The sampler learns from the measurements. It can combine tiles, loops and unrolling in
ways that ``tw.variants`` does not yield.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from math import log
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tilewright.errors import TilewrightError, TuningError, install
from tilewright.spec.schedule import Schedule

if TYPE_CHECKING:
    import optuna

Method = Literal["optuna", "ranked"]
#: Number of schedules that Optuna tries first: those that the cost model ranks first.
BEGIN = 32
#: Maximum number of suggestions that Optuna makes for one batch. Suggestions that are illegal, or
#: that were tried before, count too. A batch without a new legal schedule ends the search.
_TRIES = 400
#: Steps of K in one iteration of the K loop, divided by the number of accumulator sets.
_UNROLLS = (1, 2, 4, 8)
_PREFETCHES = (None, 2, 4, 8, 16)


class Search(Protocol):
    """A source of schedules to measure. It is told the results, and may learn from them."""

    def ask(self, count: int) -> list[Schedule]:
        """Return at most ``count`` new schedules; none if the search is exhausted."""

    def tell(self, schedule: Schedule, ratio: float | None) -> None:
        """Take the result of a schedule.

        ``ratio`` is its speed divided by the speed of the default schedule, None if it failed.
        """


class Ranked:
    """A search that returns the variants in the cost model's order, and learns nothing."""

    def __init__(self, variants: Sequence[Schedule]) -> None:
        self._left, self._known = iter(variants), set[Schedule]()

    def ask(self, count: int) -> list[Schedule]:
        """Return at most ``count`` further variants; none if all were returned."""
        found = []
        for schedule in self._left:
            if schedule in self._known:
                continue
            self._known.add(schedule)
            found.append(schedule)
            if len(found) == count:
                break
        return found

    def tell(self, schedule: Schedule, ratio: float | None) -> None:
        """Record that a schedule was measured, so that ``ask`` skips it. Its speed is ignored."""
        self._known.add(schedule)


class Explorer:
    """A search in which Optuna chooses each part of a schedule.

    The parts are the tile, the loops around it, accumulator sets, unrolling and prefetching.
    ``legal`` raises a TilewrightError for a schedule that cannot be planned.
    """

    def __init__(
        self, variants: Sequence[Schedule], legal: Callable[[Schedule], object], seed: int
    ) -> None:
        self._space, self._legal = _Space(variants), legal
        self._study = _study(seed)
        self._pending: dict[Schedule, optuna.trial.Trial] = {}
        self._known: set[Schedule] = set()
        for schedule in variants[:BEGIN]:
            self._study.enqueue_trial(dict(self._space.parts(schedule)), skip_if_exists=True)

    def ask(self, count: int) -> list[Schedule]:
        """Return at most ``count`` new schedules; results of earlier ones may still be missing."""
        found: list[Schedule] = []
        for schedule, trial in self._suggested():
            self._pending[schedule] = trial
            found.append(schedule)
            if len(found) == count:
                break
        return found

    def _suggested(self) -> Iterator[tuple[Schedule, optuna.trial.Trial]]:
        import optuna

        for _ in range(_TRIES):
            trial = self._study.ask(self._space.distributions)
            try:
                schedule = self._space.schedule(trial.params)
                if schedule not in self._known:
                    self._known.add(schedule)
                    self._legal(schedule)
                    yield schedule, trial
                    continue
            except TilewrightError:
                pass
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)

    def tell(self, schedule: Schedule, ratio: float | None) -> None:
        """Learn from a schedule that ``ask`` returned, or that an earlier tuning measured."""
        import optuna

        self._known.add(schedule)
        trial = self._pending.pop(schedule, None)
        if trial is not None:
            state = None if ratio else optuna.trial.TrialState.FAIL
            self._study.tell(trial, log(ratio) if ratio else None, state=state)
        elif ratio and (parts := self._space.parts(schedule)):
            made = optuna.trial.create_trial(
                params=dict(parts), distributions=dict(self._space.distributions), value=log(ratio)
            )
            self._study.add_trial(made)


def check_method(method: str) -> Method:
    """Return ``method`` if that search is available.

    Raise TuningError if the method is unknown or Optuna is not installed.
    """
    if method == "ranked":
        return "ranked"
    if method != "optuna":
        raise TuningError(
            "unknown search", got=method, expected='"optuna", or "ranked": the model\'s order'
        )
    if find_spec("optuna") is None:
        raise TuningError(
            "the search needs Optuna, which is not installed",
            hint=f'{install("tune")}; or search="ranked", which measures the '
            "variants in the cost model's order and explores nothing around them",
        )
    return "optuna"


def _study(seed: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=True, n_startup_trials=8
        )
    return optuna.create_study(direction="maximize", sampler=sampler)


class _Space:
    """Schedules as parameters that Optuna can vary.

    Each parameter is an index into a list of values that the variants have. Rows and columns of
    tiles are sorted, so that neighbouring indices mean similar tiles. A nest (loops, blocks,
    packing, threads) is one value.
    """

    def __init__(self, variants: Sequence[Schedule]) -> None:
        import optuna

        tiles = [schedule.tile for schedule in variants if schedule.tile is not None]
        self._rows = sorted({rows for rows, _ in tiles})
        self._columns = sorted({columns for _, columns in tiles})
        self._splits = sorted({schedule.k_split or 1 for schedule in variants})
        self._axes = _distinct(schedule.vectorize for schedule in variants)
        self._nests = _distinct(map(_nest, variants))
        integer, choice = (
            optuna.distributions.IntDistribution,
            optuna.distributions.CategoricalDistribution,
        )
        self.distributions: Mapping[str, Any] = {
            "rows": integer(0, len(self._rows) - 1),
            "columns": integer(0, len(self._columns) - 1),
            "split": integer(0, len(self._splits) - 1),
            "unroll": integer(0, len(_UNROLLS) - 1),
            "axis": choice(range(len(self._axes))),
            "nest": choice(range(len(self._nests))),
            "prefetch": choice(range(len(_PREFETCHES))),
        }

    def schedule(self, parts: Mapping[str, int]) -> Schedule:
        """Return the schedule with these parameters; raise ScheduleError if it is not legal."""
        split = self._splits[parts["split"]]
        loops, block, pack, threads = self._nests[parts["nest"]]
        return Schedule(
            tile=(self._rows[parts["rows"]], self._columns[parts["columns"]]),
            loops=loops,
            block=block,
            k_unroll=split * _UNROLLS[parts["unroll"]],
            k_split=split,
            vectorize=self._axes[parts["axis"]],
            pack=pack,
            prefetch=_PREFETCHES[parts["prefetch"]],
            threads=threads,
        )

    def parts(self, schedule: Schedule) -> Mapping[str, int]:
        """Return the parameters of ``schedule``; empty if they cannot represent it."""
        try:
            rows, columns = schedule.tile or (0, 0)
            split = schedule.k_split or 0
            return {
                "rows": self._rows.index(rows),
                "columns": self._columns.index(columns),
                "split": self._splits.index(split),
                "unroll": _UNROLLS.index((schedule.k_unroll or 0) // max(1, split)),
                "axis": self._axes.index(schedule.vectorize),
                "nest": self._nests.index(_nest(schedule)),
                "prefetch": _PREFETCHES.index(schedule.prefetch),
            }
        except ValueError:
            return {}


def _nest(schedule: Schedule) -> tuple[Any, ...]:
    return schedule.loops, schedule.block, schedule.pack, schedule.threads


def _distinct(found: Iterable[Any]) -> list[Any]:
    """Return each element once, in the order of its first occurrence."""
    return list(dict.fromkeys(found))
