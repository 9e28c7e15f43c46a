"""The files of cores: what they hold, that nothing else is taken, and that none says two things."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from tilewright.errors import TargetError
from tilewright.generate import plan_for
from tilewright.isa.core_file import CoreFile, core_file_of, numbers_of, parse, written_out
from tilewright.isa.machine import Cache, Core, Speed, Width
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import Schedule
from tilewright.targets import NAMES, load
from tilewright.targets.processors import shipped

CORE = Core(
    fma_latency=4,
    fma_units=1,
    loads=1,
    stores=0.5,
    issue=5.5,
    spread=4 / 3,
    widths=(
        Width(bytes=16, fma_units=2, loads=2, stores=1, shuffles=4),
        Width(bytes=32, fma_units=2, loads=1.5, stores=1, shuffles=2),
    ),
    speeds=(
        Speed(mnemonic="dot", bytes=32, cycles=1, latency=6),
        Speed(mnemonic="dot", bytes=64, cycles=2, latency=7),
    ),
    caches=(Cache(49152, 128),),
)
FILE = CoreFile("some", "Some", "a test", ("some", "Vendor 6 1 3-4"), {"avx512": CORE})


def raw(**changes: Any) -> dict[str, Any]:
    return {**json.loads(FILE.text()), **changes}


def numbers(**changes: Any) -> dict[str, Any]:
    return raw(cores={"avx512": {**numbers_of(CORE), **changes}})


def test_what_is_written_is_read() -> None:
    assert parse(FILE.text(), "some.json") == FILE
    assert numbers_of(parse(FILE.text(), "some.json").cores["avx512"]) == numbers_of(CORE)


def test_a_whole_number_has_one_text() -> None:
    assert numbers_of(replace(CORE, loads=1.0)) == numbers_of(CORE)
    assert json.dumps(numbers_of(replace(CORE, loads=1.0))) == json.dumps(numbers_of(CORE))


def test_models_are_numbers_and_ranges() -> None:
    expected = ["some", "Vendor 6 1", "Vendor 6 3", "Vendor 6 4"]
    assert list(FILE.described()) == expected
    assert list(written_out("Vendor 6 1 3-4")) == expected[1:]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "describes no core"),
        ("no", "describes no core"),
        (raw(schema=0), r"(?s)another version.*schema 0.*schema 2"),
        ({k: v for k, v in raw().items() if k != "source"}, "source missing"),
        (raw(speed=3), "speed unknown"),
        (raw(title=""), "are words"),
        (raw(name="not a name"), "as it stands behind the"),
        (raw(name="core12345678"), "as measured cores are called"),
        (raw(processors="Vendor 6 1"), "vendor, family and models"),
        (raw(processors=["Vendor 6 x"]), "vendor, family and models"),
        (raw(processors=["Vendor 6 4-3"]), "vendor, family and models"),
        (raw(processors=[3]), "vendor, family and models"),
        (raw(cores={}), "numbers by target"),
        (raw(cores={"avx512": 3}), r"avx512 are no numbers by name"),
        (numbers(clock=3), r"avx512: clock unknown"),
        (numbers(loads=0), r"(?s)loads is no number.*more than 0"),
        (numbers(loads=True), "loads is no number"),
        (numbers(loads="2"), "loads is no number"),
        (numbers(loads=float("inf")), "loads is no number"),
        (numbers(idle=-1), r"(?s)idle is no number.*0 or more"),
        (numbers(widths=3), "widths is a list"),
        (numbers(widths=[{"bytes": 16}]), "fma_units, loads, stores, shuffles missing"),
        (numbers(speeds=[{"mnemonic": 3}]), "bytes, cycles, latency missing"),
        (numbers(caches=[{"size": 1, "rate": 0}]), "rate is no number"),
    ],
)
def test_what_is_no_core_is_refused(given: Any, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        core_file_of(given, "some.json")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TargetError, match=r"some\.json is no JSON"):
        parse("{", "some.json")


def test_no_number_that_a_core_needs_may_be_missing() -> None:
    given = numbers()
    del given["cores"]["avx512"]["issue"]
    with pytest.raises(TargetError, match="issue missing"):
        core_file_of(given, "some.json")


# -- what a core says of its vectors ------------------------------------------------------------


def test_narrower_vectors_have_their_own_numbers() -> None:
    assert (CORE.at(64).loads, CORE.at(64).stores) == (1, 0.5)
    assert (CORE.at(32).loads, CORE.at(16).loads, CORE.at(4).loads) == (1.5, 2, 2)
    assert (CORE.at(64).spread, CORE.at(32).spread) == (4 / 3, 0)
    plain = Core(fma_latency=4, fma_units=2, loads=2, stores=1, issue=4)
    assert all(plain.at(size) is plain for size in (4, 16, 64))


def test_a_multiply_add_has_the_speed_of_its_vector() -> None:
    assert [CORE.at(size).between("dot", 1) for size in (64, 32, 16)] == [2, 1, 1]
    assert [CORE.at(size).between("fma", 2) for size in (64, 32)] == [2, 1]
    assert CORE.at(64).speed("fma") is None


# -- those that are shipped ---------------------------------------------------------------------


def test_shipped_cores_name_targets_and_no_processor_twice() -> None:
    seen: dict[tuple[str, str], str] = {}
    for core in shipped():
        assert set(core.cores) <= set(NAMES), core.name
        assert core.source
        for processor in core.described():
            for target in core.cores:
                other = seen.setdefault((target, processor), core.name)
                assert other == core.name, f"{processor} is {other} and {core.name}"


@pytest.mark.parametrize(("core", "name"), [(c, name) for c in shipped() for name in c.cores])
def test_a_shipped_core_speaks_of_its_target_and_chooses_a_tile(core: CoreFile, name: str) -> None:
    target = load(name).having(load(name).features)
    unit = target.matrix
    products = chain(
        (op for vector in target.vectors for op in vector.muladd),
        chain.from_iterable(unit.products.values()) if unit is not None else (),
    )
    speeds = core.cores[name].speeds
    assert {speed.mnemonic for speed in speeds} <= {op.mnemonic for op in products}
    found = load(name).having([core.name])
    assert found.core == core.cores[name] and core.title in found.title
    assert plan_for(Gemm(64, 48, 64), Schedule(), found).tiling.tiles


@pytest.mark.parametrize("name", ["avx2", "avx512"])
def test_zen_5_keeps_the_numbers_that_were_fitted_by_hand(name: str) -> None:
    own, core = load(name).core, load(name).having(["zen5"]).core
    expected = replace(
        own, issue=8, shuffles=2, overlap=1 / 48, idle=0.25, strain=1 / 12, hidden=12,
        beside=1 if name == "avx512" else 0.5, shared=0, crossing=1.1,
    )  # fmt: skip
    assert core == replace(expected, caches=core.caches, memory=core.memory)
    assert [cache.size for cache in core.caches] == [48 << 10, 1 << 20, 4 << 20]


def test_zen_3_keeps_the_numbers_that_were_fitted_by_hand() -> None:
    own, core = load("avx2").core, load("avx2").having(["zen3"]).core
    fitted = replace(own, overlap=1 / 48, idle=2, hidden=8, late=3, shared=0)
    assert core == replace(fitted, caches=core.caches)
    assert [cache.size for cache in core.caches] == [32 << 10, 512 << 10, 4 << 20]
