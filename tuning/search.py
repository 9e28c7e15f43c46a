"""Choose the next schedules to try: in the model's order, or by Optuna from the results so far.

Optuna's sampler (a tree-structured Parzen estimator) begins with the variants that the model ranks
first. The sampler learns from the measurements. It can combine tiles, loops and unrolling in ways
that no variant has.
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
#: Number of the model's best variants that Optuna begins with.
BEGIN = 32
#: A search counts as exhausted after this many suggestions that are illegal or were tried before.
_TRIES = 400
#: Steps of K in one iteration of the K loop, as multiples of the number of accumulator sets.
_UNROLLS = (1, 2, 4, 8)
_PREFETCHES = (None, 2, 4, 8, 16)


class Search(Protocol):
    """A source of schedules that learns from results."""

    def ask(self, count: int) -> list[Schedule]:
        """Return at most ``count`` new schedules; none if the search is exhausted."""

    def tell(self, schedule: Schedule, ratio: float | None) -> None:
        """Report a schedule's speed relative to the default, None if it failed."""


class Ranked:
    """The variants in the model's order."""

    def __init__(self, variants: Sequence[Schedule]) -> None:
        self._left, self._known = iter(variants), set[Schedule]()

    def ask(self, count: int) -> list[Schedule]:
        """Return the next variants."""
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
        """Mark a schedule as known; its speed is ignored."""
        self._known.add(schedule)


class Explorer:
    """Search by Optuna over tile, loops around it, accumulator sets, unrolling and prefetching.

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
        """Return at most ``count`` schedules to try; earlier ones may still be measured."""
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
        """Learn from a schedule that was asked for, or that an earlier tuning measured."""
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
    """Return the name of an available search; TuningError if it is unknown or not installed."""
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
    """Schedules as parts that Optuna can vary.

    The extents of the variants' tiles are numbered in order, so that neighbours are similar. Nests
    (loops, blocks, packing, threads) are those of the variants.
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
        """Return the schedule of these parts; raise ScheduleError if it is not legal."""
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
        """Return the parts that make ``schedule``, none if it is outside of the space."""
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
    """Return each element once, in the model's order."""
    return list(dict.fromkeys(found))
