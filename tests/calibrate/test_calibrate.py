"""Calibration on machines that are made up: what is measured is what was put in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tilewright as tw
from tilewright.errors import ArgumentValueError, TargetError
from tilewright.generate import plan_for
from tilewright.isa.core_file import CoreFile, parse
from tilewright.isa.machine import Cache, Core, Speed, Width
from tilewright.isa.target import Target
from tilewright.plan.plan import Plan
from tilewright.runtime.calibrate import ends, loops, memory, rounds, threads, units
from tilewright.runtime.calibrate import run as driver
from tilewright.runtime.machine import calibrations, host
from tilewright.targets import load

Run = Callable[..., Result]
AVX512 = load("avx512").having(["vnni", "bf16"])

# -- rounds -------------------------------------------------------------------------------------


@dataclass
class Fake:
    """A function of so many cycles on a core whose clock changes all the time."""

    machine: Machine
    cycles: float
    every: int = 0

    def seconds(self, calls: int) -> float:
        """As ``Timed``: each call advances the machine's time."""
        self.machine.calls += 1
        slow = 3 if self.every and self.machine.calls % self.every == 0 else 1
        return self.machine.spend(self.cycles * slow * calls) / calls


@dataclass
class Machine:
    """Its time, and how long a cycle takes: another length every so many calls."""

    time: float = 0
    calls: int = 0

    def spend(self, cycles: float) -> float:
        seconds = cycles * (1e-9 if self.calls // 500 % 2 else 1.5e-9)
        self.time += seconds
        return seconds

    def now(self) -> float:
        return self.time


def measured(machine: Machine, seconds: float = 0.02, **cycles: float) -> rounds.Cycles:
    functions = {name: Fake(machine, each) for name, each in cycles.items()}
    return rounds.in_cycles(functions, Fake(machine, 4096), 4096, seconds, machine.now)


def test_cycles_do_not_depend_on_the_clock() -> None:
    found = measured(Machine(), one=10_000, other=50)
    assert found.cycles == pytest.approx({"one": 10_000, "other": 50}, rel=0.01)


def test_rounds_take_the_time_that_is_given() -> None:
    few, many = (measured(Machine(), seconds, one=1000).rounds for seconds in (0.001, 0.1))
    assert rounds.ROUNDS <= few < many / 5


def test_what_disturbs_a_few_rounds_counts_little() -> None:
    machine = Machine()
    functions = {"one": Fake(machine, 1000), "often": Fake(machine, 1000, every=3)}
    found = rounds.in_cycles(functions, Fake(machine, 4096), 4096, 0.05, machine.now)
    assert found.cycles["often"] == pytest.approx(1000, rel=0.02)
    assert found.spread["one"] < driver.DISTURBED < found.spread["often"]
    assert driver.check_calm(found, "one") == found.spread["one"]
    with pytest.raises(TargetError, match=r"(?s)disturbed.*stays in force"):
        driver.check_calm(found, "often")


def test_a_clock_that_moved_is_a_disturbance() -> None:
    """Additions once took 1.28 times as long as multiply-adds saw cycles: 2.56 of these each."""
    core = load("avx2").core
    for units_, moved in ((2, False), (0.667, False), (2.56, True), (1.78, True)):
        if moved:
            with pytest.raises(TargetError, match=r"(?s)one clock.*stays in force"):
                driver.check_clock(replace(core, fma_units=units_))
        else:
            driver.check_clock(replace(core, fma_units=units_))


# -- units --------------------------------------------------------------------------------------


def test_what_hardware_has_is_recognised() -> None:
    assert [units.starts(each) for each in (1.03, 0.51, 1.1, 0.67, 2.05)] == [1, 0.5, 1, 2 / 3, 2]
    assert units.starts(1.2) == 1.2
    assert [units.rate(each) for each in (1.05, 0.5, 2.0, 0.265)] == [1, 2, 0.5, 4]
    assert [units.latency(each) for each in (3.97, 4.2, 0.6)] == [4, 4, 1]


def cycles_of(target: Target, core: Core) -> Iterator[tuple[str, float]]:
    """What every loop of ``target`` would take on ``core``, as hardware that has its numbers."""
    for loop in loops.loops_of(target):
        at = core.at(loop.vector.nbytes)
        speed = at.speed(loop.op.mnemonic)
        latency = loop.op.latency or core.fma_latency
        each = {
            "muladd": at.between(loop.op.mnemonic, loop.op.instructions),
            "latency": latency if speed is None else speed.latency,
            "load": 1 / at.loads,
            "unaligned": (1 + core.crossing * (loop.vector.nbytes - 4) / 64) / at.loads,
            "store": 1 / at.stores,
            "broadcast": 1 / at.loads,
            "shuffle": 1 / at.shuffles,
            "convert": 1,
            "shared": (loops.MULADDS_BESIDE + at.shared) / at.fma_units,
            "spread": at.spread or 1 / min(at.loads, at.fma_units),
            "issue": 1 / core.issue,
        }[loop.kind]
        yield loop.name, each * loop.count


def test_what_a_core_does_is_found_again() -> None:
    own = AVX512.core
    core = replace(
        own,
        fma_units=1,
        loads=1,
        stores=0.5,
        issue=5,
        crossing=0.5,
        spread=4 / 3,
        shared=1,
        widths=(
            Width(bytes=16, fma_units=2, loads=2, stores=1, shuffles=4),
            Width(bytes=32, fma_units=2, loads=2, stores=1, shuffles=2, shared=0.5),
        ),
        speeds=(
            Speed(mnemonic="vdpbf16ps", bytes=32, cycles=1, latency=8),
            Speed(mnemonic="vdpbf16ps", bytes=64, cycles=2, latency=8),
            Speed(mnemonic="vpmaddwd", bytes=64, cycles=2, latency=1),
            Speed(mnemonic="vpmulld", bytes=64, cycles=4, latency=9),
        ),
    )  # fmt: skip
    assert units.units(AVX512, dict(cycles_of(AVX512, core)), own) == core


def test_a_core_as_its_target_says_has_no_speeds_of_its_own() -> None:
    two = load("avx2")
    core = replace(two.core, shuffles=2, crossing=1)
    assert units.units(two, dict(cycles_of(two, core)), two.core) == core


def test_every_loop_has_a_name_of_its_own() -> None:
    for name in ("avx512", "avx2", "neon"):
        target = load(name).having(host.features_here(load(name)))
        found = loops.loops_of(target)
        assert len({loop.name for loop in found}) == len(found)
        assert (found[0].kind, found[0].op) == ("muladd", target.of("f32")[0].fma)
        text = loops.source(target)
        assert all(f"void {loop.name}(" in text for loop in found)


@pytest.mark.twice
def test_loops_and_streams_run() -> None:
    target = next(target for target, _ in driver._measurable())
    path = loops.library(target)
    for loop in loops.loops_of(target):
        assert loops.Function(path, loop.name).seconds(1) > 0
    reader = memory.reader(target, path, 0.001)
    assert reader(1 << 14) > 0


# -- caches -------------------------------------------------------------------------------------


def levels(*sizes: int, memory: float = 5) -> Callable[[int], float]:
    """Reads of a machine with caches of ``sizes``, each half as fast as the one before."""

    def read(size: int) -> float:
        return next((64 / 2**n for n, each in enumerate(sizes) if size <= each), memory)

    return read


def test_caches_are_found_as_the_system_tells_them() -> None:
    sizes = 32 << 10, 1 << 20, 16 << 20
    found, beyond = memory.caches(levels(*sizes), sizes, 16 << 20)
    assert found == (Cache(sizes[0], 64), Cache(sizes[1], 32), Cache(sizes[2], 16))
    assert beyond == 5


def test_less_is_found_of_a_cache_that_others_use() -> None:
    told, there = (32 << 10, 1 << 20, 32 << 20), (32 << 10, 1 << 20, 8 << 20)
    found, _ = memory.caches(levels(*there), told, 64 << 20)
    assert found[2].size == 16 << 20, "half of it is read as fast as the cache"
    assert found[2].rate == 16


def test_the_shares_of_this_machine_s_caches_are_no_more_than_these() -> None:
    whole, shares = host.caches(), host.cache_shares()
    assert shares.keys() == whole.keys()
    assert all(0 < shares[level] <= whole[level] for level in whole)


# -- what a tile's end costs --------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A kernel that is not compiled."""

    plan: Any


@pytest.mark.parametrize(
    "true",
    [
        {"overlap": 1 / 24, "strain": 1 / 48, "idle": 0.5, "hidden": 8, "late": 2.0}
        | {"crossing": 2.0, "contention": 0.15},
        {"overlap": 1 / 48, "strain": 1 / 6, "idle": 2.0, "hidden": 0, "late": 0.5}
        | {"crossing": 1.5, "contention": 0.0},
    ],
)
def test_the_numbers_behind_times_are_found_again(true: Mapping[str, float]) -> None:
    target = load("avx2")
    samples = []
    for spec, schedule in ends._requests(8, 16):
        plan = plan_for(spec, schedule, target)
        assert isinstance(plan, Plan)
        samples.append(ends._sample(Planned(plan)))  # type: ignore[arg-type]
    assert len(samples) > 50
    core = replace(target.core, **true)  # type: ignore[arg-type]
    times = [sample.estimate(core) + 20 for sample in samples]
    found = ends.fitted(target.core, samples, times, 20)
    assert ends.error(found, samples, [each - 20 for each in times]) < 0.005
    same = "idle", "hidden", "crossing", "contention"
    assert {name: getattr(found, name) for name in same} == {name: true[name] for name in same}


# -- the whole ----------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory, and a processor with AVX-512 on which nothing is measured."""
    flags = frozenset(load("avx512").cpu_flags)
    monkeypatch.setenv("TILEWRIGHT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(host, "cpu", lambda: host.Cpu("x86_64", "a CPU", flags, "Nobody 1 2"))
    monkeypatch.setattr(driver, "compiler_of", lambda target: "gcc 14")
    monkeypatch.setattr(driver, "_measured", found_at_once)
    return tmp_path


def found_at_once(target: Target, seconds: float, told: driver.Say) -> tuple[Core, float, Any]:
    told(f"measuring nothing of {target.name}")
    return replace(target.core, idle=seconds), 0.01, (0.1, 0.4)


@pytest.mark.usefixtures("data")
def test_what_is_measured_is_what_host_uses() -> None:
    said: list[str] = []
    found = tw.calibrate(7, say=said.append)
    assert said[:2] == ["measuring avx512", "measuring nothing of avx512"]
    assert {name: core.idle for name, core in found.core.cores.items()} == {"avx512": 7, "avx2": 7}
    assert (found.processor, found.compiler, found.left_out) == ("Nobody 1 2", "gcc 14", ())
    assert found.path == calibrations.path_of("Nobody 1 2")
    target = host.resolve("host")
    assert target.core == found.core.cores["avx512"]
    assert "calibrate on a CPU (Nobody 1 2), gcc 14" in target.core_source


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("error", [KeyboardInterrupt, TargetError("disturbed")])
def test_an_interruption_loses_what_is_being_measured(
    monkeypatch: pytest.MonkeyPatch, error: Any
) -> None:
    tw.calibrate(7)

    def interrupted(target: Target, seconds: float, told: driver.Say) -> Any:
        if target.name == "avx2":
            raise error
        return found_at_once(target, seconds, told)

    monkeypatch.setattr(driver, "_measured", interrupted)
    with pytest.raises((KeyboardInterrupt, TargetError)):
        tw.calibrate(8)
    known = calibrations.of("Nobody 1 2")
    assert known is not None
    assert {name: each.numbers["idle"] for name, each in known.cores.items()} == {
        "avx512": 8, "avx2": 7,
    }  # fmt: skip


@pytest.mark.usefixtures("data")
def test_time_that_is_spent_leaves_targets_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((0.0, 29.0))
    monkeypatch.setattr(driver, "now", lambda: next(ticks))
    found = tw.calibrate()
    assert (found.left_out, list(found.core.cores)) == (("avx2",), ["avx512"])


def test_a_matrix_unit_s_target_has_the_numbers_of_its_vectors(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = frozenset(load("amx").cpu_flags)
    monkeypatch.setattr(host, "cpu", lambda: host.Cpu("x86_64", "a CPU", flags, "Nobody 1 3"))
    found = tw.calibrate()
    assert list(found.core.cores) == ["amx", "avx512", "avx2"]
    assert found.core.cores["amx"] == found.core.cores["avx512"]
    assert host.resolve("host").name.startswith("amx+core")


@pytest.mark.parametrize("seconds", [0, 4.9, -1, float("nan")])
def test_seconds_are_enough(seconds: float) -> None:
    with pytest.raises(ArgumentValueError, match="too few"):
        tw.calibrate(seconds)


def test_what_is_exported_is_a_shipped_core_s_file(data: Path) -> None:
    found = tw.calibrate()
    found.export(data / "some5.json")
    read = parse((data / "some5.json").read_text(), "some5.json")
    assert read == replace(found.core, name="some5", title="Some5")
    with pytest.raises(TargetError, match="replaces no file"):
        found.export(data / "some5.json")
    for name in ("core12345678.json", "not a name.json", "some5.txt"):
        with pytest.raises(TargetError):
            found.export(data / name)
        assert not (data / name).exists()


def test_the_command_shows_and_exports(data: Path, run: Run) -> None:
    shown = run("calibrate", "--export", str(data / "some.json")).output
    for word in ("avx512", "avx2", "fma_units", "overlap", "L1", "from 40.0%", "to 10.0%"):
        assert word in shown
    assert json.loads((data / "some.json").read_text())["name"] == "some"
    assert (
        "replaces no file" in run("calibrate", "--export", str(data / "some.json"), status=2).output
    )


def test_the_command_forgets(data: Path, run: Run) -> None:
    run("calibrate")
    path = calibrations.path_of("Nobody 1 2")
    assert path.exists() and host.resolve("host").name.startswith("avx512+core")
    assert f"{path}: removed" in run("calibrate", "--forget").output
    assert not path.exists() and "core" not in host.resolve("host").name
    assert "no calibration to remove" in run("calibrate", "--forget").output


@pytest.mark.usefixtures("data")
def test_the_command_says_what_was_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter((0.0, 29.0, 0.0, 29.0))
    monkeypatch.setattr(driver, "now", lambda: next(ticks))
    said = run("calibrate").output
    assert "Not measured, for want of time: avx2." in said and "--seconds 60" in said
    assert json.loads(run("calibrate", "--json").stdout)["left_out"] == ["avx2"]


@pytest.mark.usefixtures("data")
def test_a_disturbed_machine_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(*_: object) -> None:
        raise TargetError("this machine is disturbed")

    monkeypatch.setattr("tilewright.runtime.calibrate.run._measured", disturbed)
    assert "this machine is disturbed" in run("calibrate", status=1).output
    assert calibrations.of("Nobody 1 2") is None


def test_one_processor_says_nothing_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cpus", lambda: 1)
    clock = Fake(Machine(), 4096)
    assert threads.region(AVX512, AVX512.core, clock, 4096, 0.01) == AVX512.core.region
    assert [threads.nearest_power(each) for each in (1, 1000, 1 << 15)] == [1, 1024, 1 << 15]


@pytest.mark.parametrize(
    ("awake", "asleep", "price"),
    [(9000, 1000, 1 << 13), (1000, 30000, 1 << 15), (-5000, 0, threads.LEAST)],
)
def test_the_price_of_a_region_is_the_larger_of_both(
    awake: float, asleep: float, price: int
) -> None:
    """Two threads take half of one and the price; threads that sleep cost their caller."""
    alone = 100_000.0
    cycles = {"alone": alone, "together": alone / 2 + awake}
    cycles |= {"alone later": 1.2 * alone, "together later": 1.2 * alone + asleep}
    assert threads.price(cycles) == price


def test_a_file_keeps_what_it_was_given() -> None:
    core = CoreFile("here", "Here", "a test", ("x",), {"avx2": load("avx2").core})
    assert parse(core.text(), "here.json") == core
