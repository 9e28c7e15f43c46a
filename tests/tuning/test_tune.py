"""Tunings: what is measured, stored and chosen. No test depends on how long a kernel takes."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import fake_worker
from support.processes import python

import tilewright as tw
from tilewright.errors import ArgumentValueError, SpecError, TargetError, TuningError
from tilewright.runtime.machine import host
from tilewright.runtime.tuned import CRASHED, HUNG, MEASURED, REFUSED, WRONG, Database
from tilewright.tuning import search, tune
from tilewright.tuning.child import Child, Failure, Limits
from tilewright.tuning.race import Race, Samples, ranking
from tilewright.tuning.stages import OF_PRODUCT, Staged
from tilewright.tuning.tune import Tuning
from tilewright.tuning.variants import candidates

SPEC = tw.Gemm(16, 16, 16)
FAKE = (sys.executable, fake_worker.__file__)
QUICK = Limits(build=5, check=5, time=0.2)
fake_child = partial(Child, limits=QUICK, command=FAKE)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_ROUNDS", (3, 5))


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The database in force for one test."""
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    return Database()


def tuning(database: Database, seconds: float = 30, **more: object) -> Tuning:
    with pytest.MonkeyPatch.context() as patch:  # what is searched is given below
        patch.setattr(tune, "candidates", lambda *_, **__: [])
        made = Tuning(SPEC, seconds=seconds, search="ranked", child=fake_child, database=database)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def tile(rows: int) -> tw.Schedule:
    return tw.Schedule(tile=(rows, 16), loops="nmk", k_unroll=2, k_split=1, vectorize="n")


class Given:
    """A search that has just these."""

    def __init__(self, *schedules: tw.Schedule) -> None:
        self.left, self.told = list(schedules), dict[tw.Schedule, float | None]()

    def ask(self, count: int) -> list[tw.Schedule]:
        asked, self.left = self.left[:count], self.left[count:]
        return [s for s in asked if s not in self.told]

    def tell(self, schedule: tw.Schedule, ratio: float | None) -> None:
        self.told[schedule] = ratio


# -- the race, on a worker that measures nothing ------------------------------------------------


def test_what_crashes_hangs_or_is_wrong_is_recorded_and_skipped(database: Database) -> None:
    bad = {
        tile(fake_worker.CRASHES): CRASHED,
        tile(fake_worker.HANGS): HUNG,
        tile(fake_worker.WRONG): WRONG,
        tile(fake_worker.REFUSED): REFUSED,
    }
    made = tuning(database, _search=Given(*bad, tile(4), tile(6)))
    said = list(made.steps())
    assert {s: failure.status for s, failure in made.failures.items()} == bad
    assert "SIGSEGV" in made.failures[tile(fake_worker.CRASHES)].said
    assert "0.2 s" in made.failures[tile(fake_worker.HANGS)].said
    assert [one.schedule for one in made.ranking] == [tile(4), tile(6), tw.Schedule()]
    stored = {result.schedule: result.status for result in database.results(made.subject)}
    assert stored == {**bad, **dict.fromkeys((tile(4), tile(6), tw.Schedule()), MEASURED)}
    assert said[-1].failed == 4 and said[-1].measured == 3
    # The next tuning tries none of them again.
    again = tuning(database, _search=Given(*bad))
    list(again.steps())
    assert again._search.told.keys() >= bad.keys()  # type: ignore[attr-defined]


def test_the_winner_is_stored_and_taken_by_compile(database: Database) -> None:
    made = tuning(database, _search=Given(tile(4)))
    list(made.steps())
    kernel, found = made.result()
    assert kernel.requested == tile(4) == found[0].schedule
    assert found[0].ratio == pytest.approx(2) and found[0].uncertainty == pytest.approx(0)
    assert found[0].hot.gflops == pytest.approx(fake_worker.FLOPS / 4e-6 / 1e9)
    assert found[0].hot.of_peak == pytest.approx(1 / 40)
    assert kernel.tuned is None, "the schedule is given"
    taken = tw.compile(SPEC)
    assert taken.requested == tile(4) and taken.tuned is not None
    text = " ".join(taken.explain().split())
    assert "schedule tuned tuned on 20" in text and "2.00 times as fast as the default" in text
    assert host.cpu().name.split()[0] in text
    assert taken.verify().cases == 3
    assert pickle.loads(pickle.dumps(taken)).requested == tile(4)
    assert tw.compile_many([SPEC])[0].requested == tile(4)


def test_a_schedule_or_a_target_that_is_named_does_not_ask_the_database(
    database: Database,
) -> None:
    list(tuning(database, _search=Given(tile(4))).steps())
    assert tw.compile(SPEC, tw.Schedule()).requested == tw.Schedule()
    assert tw.compile(SPEC, tile(2)).requested == tile(2)
    named = tw.compile(SPEC, None, host.resolve("host").name)
    assert named.requested == tw.Schedule() and named.tuned is None
    assert tw.compile(tw.Gemm(16, 16, 17)).tuned is None


def test_the_default_wins_where_nothing_is_faster(database: Database) -> None:
    made = tuning(database, _search=Given(tile(8), tile(10), tile(12)))
    list(made.steps())
    assert made.ranking[0].schedule == tw.Schedule()
    found = tw.compile(SPEC)
    assert found.requested == tw.Schedule()
    assert "nothing was faster than the default" in " ".join(found.explain().split())


def test_hopeless_variants_are_dropped_after_a_round(database: Database) -> None:
    made = tuning(database, _search=Given(*map(tile, (2, 15, 3, 10, 4, 5, 6))))
    list(made.steps())
    held = {r.schedule: len(r.hot) for r in database.results(made.subject)}
    assert held[tile(15)] == held[tile(10)] == 1 < held[tile(2)]
    assert {one.schedule for one in made.ranking[-2:]} == {tile(10), tile(15)}


def test_an_interrupted_tuning_keeps_its_rounds_and_goes_on(database: Database) -> None:
    first = tuning(database, _search=Given(*map(tile, (5, 6, 8))))
    steps = first.steps()
    next(steps)
    steps.close()  # as an interrupt does
    stored = {r.schedule: len(r.hot) for r in database.results(first.subject)}
    assert stored == {tw.Schedule(): 4, tile(5): 1, tile(6): 1, tile(8): 1}
    with pytest.raises(TuningError, match="not come to its end"):
        first.result()
    second = tuning(database, _search=Given(*map(tile, (5, 6, 8, 4))))
    list(second.steps())
    assert {one.schedule for one in second.ranking} == {tw.Schedule(), *map(tile, (4, 5, 6, 8))}
    assert second.ranking[0].schedule == tile(4)


def test_no_winner_without_a_default(database: Database) -> None:
    made = Tuning(
        SPEC, seconds=5, search="ranked", database=database,
        child=partial(Child, limits=QUICK, command=(sys.executable, "-c", "raise SystemExit(3)")),
    )  # fmt: skip
    with pytest.raises(TuningError, match="does not start") as raised:
        list(made.steps())
    assert "status 3" in str(raised.value)
    assert not database.results()


def test_another_tuners_better_winner_stays(database: Database) -> None:
    slow, fast = (tuning(database, _search=Given(tile(rows))) for rows in (6, 2))
    begun = slow.steps()
    next(begun)
    list(fast.steps())  # meanwhile
    list(begun)
    winner = database.winner(slow.subject)
    assert winner is not None and winner.schedule == tile(2)


def test_what_won_before_is_raced_again(database: Database) -> None:
    list(tuning(database, _search=Given(tile(4))).steps())
    made = tuning(database, _search=Given())
    assert [r.schedule for r in database.results(made.subject)] != []
    list(made.steps())
    assert made.ranking[0].schedule == tile(4)


# -- the figures --------------------------------------------------------------------------------


def test_a_clock_that_moves_changes_no_ratio() -> None:
    clock = [1.0, 1.5, 1.0, 1.5, 1.2]
    default = Samples([(8 * c, c) for c in clock], [5.0] * 5)
    own = Samples([(4 * c, c) for c in reversed(clock)], [10.0] * 5)
    found = ranking(tile(4), own, default, 1000, None)
    assert found.in_cache == pytest.approx(2) and found.in_memory == pytest.approx(0.5)
    assert found.ratio == pytest.approx(1) and not found.gains
    assert found.hot.of_peak == pytest.approx(0.25)


def test_a_winner_is_nowhere_slower_than_the_default() -> None:
    default = Samples([(8.0, 1.0)] * 5, [5.0] * 5)
    in_cache, in_memory = (
        Samples([(4.0, 1.0)] * 5, [6.0] * 5),
        Samples([(9.0, 1.0)] * 5, [2.0] * 5),
    )
    for one in (in_cache, in_memory):
        found = ranking(tile(4), one, default, 1000, None)
        assert found.ratio > 1.1 and not found.gains
    assert ranking(tile(4), Samples([(4.0, 1.0)] * 5, [5.1] * 5), default, 1, None).gains is False
    assert ranking(tile(4), Samples([(4.0, 1.0)] * 5, [4.9] * 5), default, 1, None).gains


def test_what_has_no_product_has_bytes_and_no_peak() -> None:
    samples = Samples([(8.0, 1.0)] * 5, [16.0] * 5)
    found = ranking(tile(4), samples, samples, 0, None, 10**9)
    assert found.cold is not None
    assert (found.hot.of_peak, found.hot.gb_per_s, found.cold.gb_per_s) == (None, 1 / 8, 1 / 16)
    product = ranking(tile(4), samples, samples, 1000, None)
    assert (product.hot.of_peak, product.hot.gb_per_s) == (1 / 8, None)


def test_noise_is_uncertainty() -> None:
    default = Samples([(8.0, 1.0)] * 9)
    noisy = Samples([(7.0 + i / 4, 1.0) for i in range(9)])
    found = ranking(tile(4), noisy, default, 1000, None)
    assert found.ratio == pytest.approx(1) and 0.02 < found.uncertainty < 0.1
    fewer = ranking(tile(4), Samples(noisy.hot[::4]), default, 1000, None)
    assert fewer.uncertainty > found.uncertainty


def test_rounds_are_in_random_order() -> None:
    import numpy as np

    order: list[tw.Schedule] = []

    class Listening(Child):
        def hot(self, schedule: tw.Schedule) -> tuple[float, float] | Failure:
            order.append(schedule)
            return fake_worker.seconds(schedule), 1.0

    with Listening(SPEC, "scalar") as child:
        race = Race(child, tw.Schedule(), np.random.default_rng(0))
        schedules = [tile(rows) for rows in range(1, 7)]
        for _ in range(3):
            race.measure(schedules, cold=False)
    rounds = [tuple(order[i : i + 7]) for i in (0, 7, 14)]
    assert len(set(rounds)) == 3 and all(len(set(one)) == 7 for one in rounds)


# -- the search ---------------------------------------------------------------------------------


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    with pytest.raises(TuningError, match="Optuna, which is not installed") as raised:
        tw.tune(SPEC, seconds=1)
    assert "pip install 'matplotlib>=3.8' 'optuna>=4.0'" in str(raised.value)
    assert 'search="ranked"' in str(raised.value)
    assert search.check_method("ranked") == "ranked"


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"spec": tw.Transpose(8, 8)}, SpecError, "a Gemm"),
        ({"seconds": 0}, ArgumentValueError, "positive"),
        ({"search": "luck"}, TuningError, "unknown search"),
        ({"target": "neon"}, TargetError, "emulated|nothing here runs"),
    ],
)
def test_wrong_input_is_refused(wrong: dict, error: type[Exception], match: str) -> None:
    if "target" in wrong and host.is_native(host.resolve("neon")):
        pytest.skip("neon is native here")
    with pytest.raises(error, match=match):
        tw.tune(wrong.pop("spec", SPEC), **{"search": "ranked", **wrong})


def test_optuna_begins_with_the_models_order_and_explores_around_it() -> None:
    pytest.importorskip("optuna")
    variants = list(tw.variants(SPEC, "scalar"))
    seen: list[tw.Schedule] = []
    explorer = search.Explorer(variants, seen.append, seed=0)
    first = explorer.ask(10)
    assert first == variants[:10] == seen
    for schedule in first:  # the fewer rows, the faster
        explorer.tell(schedule, 1 / (schedule.tile or (8, 1))[0])
    explorer.tell(variants[40], 0.5)  # measured by an earlier tuning
    asked = [one for _ in range(5) for one in explorer.ask(12)]
    assert len({*first, *asked}) == len(first) + len(asked), "none is asked for twice"
    assert variants[40] not in asked
    assert set(asked) - set(variants), "some are no variants"


def test_a_schedule_that_cannot_be_planned_is_not_asked_for() -> None:
    pytest.importorskip("optuna")
    variants = list(tw.variants(SPEC, "scalar"))

    def legal(schedule: tw.Schedule) -> None:
        if schedule.tile is None or schedule.tile[0] % 2:
            raise tw.ScheduleError("odd")

    found = search.Explorer(variants, legal, seed=0).ask(20)
    assert found and not [s for s in found if s.tile is not None and s.tile[0] % 2]


# -- real kernels -------------------------------------------------------------------------------


def test_a_tuning_from_end_to_end(database: Database) -> None:
    """What it finds depends on the machine; that the kernel is right, and stored, does not."""
    kernel, found = tw.tune(tw.Gemm(8, 16, 8, beta=1), seconds=0.2, search="ranked")
    assert kernel.verify().cases == 3
    assert found[0].schedule == kernel.requested and len(found) >= 2
    assert all(one.hot.gflops > 0 and one.rounds >= 1 for one in found)
    best = next(one for one in found if one.schedule == tw.Schedule())
    assert best.ratio == pytest.approx(1)
    assert tw.compile(tw.Gemm(8, 16, 8, beta=1)).requested == kernel.requested
    (winner,) = database.winners()
    assert winner.code == repr(kernel.spec) and winner.compiler and winner.version


WEIGHTS = {"a": tw.Tensor("f32", (8, 32)), "b": tw.Tensor("f32", (32, 16))}
NETWORK = tw.network(lambda x, w: tw.relu(x @ w.a) @ w.b).of(x=tw.Tensor("f32", (40, 8)), w=WEIGHTS)


def test_a_network_is_tuned_stages_first_and_then_each_product() -> None:
    target = host.resolve("avx2")
    stages: list[Any] = [one.schedule for one in candidates(NETWORK, "avx2", threads=1)]
    assert any("Stage('a b', rows=" in repr(each) for each in stages)
    found = Staged(stages, NETWORK, target)
    first = found.ask(3)
    assert first == stages[:3]
    fast = next(each for each in stages if "rows=" in repr(each))
    for schedule in stages:
        found.tell(schedule, 2.0 if schedule == fast else None)
    later: list[Any] = found.ask(50)
    assert 2 < len(later) <= OF_PRODUCT
    assert all([*dict(each.products)] == ["a"] for each in later)
    assert all(stage in each.stages for each in later for stage in fast.stages)
    found.tell(later[1], 3.0)
    last: list[Any] = found.ask(50)
    assert all(dict(each.products)["a"] == dict(later[1].products)["a"] for each in last)
    assert last and all("b" in dict(each.products) for each in last)
    assert found.ask(1) == []


def test_a_tuning_of_a_network_from_end_to_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "_TOGETHER", 4)
    kernel, found = tw.tune(NETWORK, seconds=0.2, search="ranked")
    assert kernel.verify().cases >= 3 and found[0].schedule == kernel.requested
    assert sum(isinstance(one.schedule, tw.Stages) for one in found) >= 2
    taken = tw.compile(NETWORK)
    assert taken.tuned is not None and taken.schedule == kernel.schedule
    assert "tuned on 20" in " ".join(taken.explain().split())
    (winner,) = database.winners()
    database.crown(replace(winner, schedule=found[-1].schedule, ratio=9.0))
    assert tw.compile(NETWORK).requested == found[-1].schedule


def test_without_a_database_a_warm_start_takes_one_stat(tmp_path: Path) -> None:
    program = f"""
import os, sys
os.environ["TILEWRIGHT_DATA_DIR"] = {str(tmp_path)!r}
import tilewright as tw
tw.compile(tw.Gemm(8, 8, 8))
print(*(name for name in sys.modules if name in ("sqlite3", "tilewright.runtime.tuned", "optuna")))
"""
    python(program)
    assert python(program).split() == []
