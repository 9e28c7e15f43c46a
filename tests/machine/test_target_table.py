"""What a warm start knows of targets agrees with their descriptions, and is verified."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import pytest

from tilewright.errors import TargetError
from tilewright.isa.target import Target
from tilewright.runtime.machine import host
from tilewright.runtime.machine import target_table as identity
from tilewright.runtime.store import cache
from tilewright.targets import NAMES, load


def subsets(name: str) -> list[str]:
    """The target called ``name`` with every set of its features."""
    features = list(load(name).features)
    sizes = range(len(features) + 1)
    return ["+".join([name, *some]) for n in sizes for some in combinations(features, n)]


def words(target: Target | identity.Identity) -> tuple[object, ...]:
    """All that kernels' keys, names and means have of a target."""
    return target.name, target.machine, target.cpu_flags, host.is_native(target), target.title


@pytest.mark.parametrize("base", NAMES)
def test_an_identity_is_its_target_s(base: str) -> None:
    for name in subsets(base):
        known, target = host.identify(name), host.resolve(name)
        assert words(known) == words(target)
        assert known.description is target
        assert known.emulation == target.emulation
        unit = target.matrix
        assert (known.unit, known.consent) == ((unit.name, unit.consent) if unit else ("", ()))


def test_features_have_one_order() -> None:
    assert host.identify("avx512 + bf16+vnni").name == "avx512+vnni+bf16"
    assert host.identify("avx512+vnni+vnni").name == "avx512+vnni"


def test_the_host_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.identify("host").name == host.resolve("host").name
    flags = {*load("avx512").cpu_flags, "avx512_bf16"}
    monkeypatch.setattr(host, "cpu", lambda: host.Cpu("x86_64", "a CPU", frozenset(flags), "X"))
    assert host.identify("host").name == host.resolve("host").name == "avx512+bf16"
    zen3 = host.Cpu("x86_64", "a CPU", frozenset(load("avx2").cpu_flags), "AuthenticAMD 25 1")
    monkeypatch.setattr(host, "cpu", lambda: zen3)
    assert host.identify("host").name == host.resolve("host").name == "avx2+zen3"


@pytest.mark.parametrize("name", ["avx1024", "", "host+vnni", "avx2+warp", None])
def test_what_is_no_target_is_said_alike(name: str) -> None:
    with pytest.raises(TargetError) as expected:
        host.resolve(name)
    with pytest.raises(TargetError) as got:
        host.identify(name)
    assert (got.value.problem, got.value.expected) == (
        expected.value.problem,
        expected.value.expected,
    )


# -- the entry of the cache ---------------------------------------------------------------------


@pytest.fixture
def table(fresh: Path) -> Path:
    """The file that a fresh cache holds once a target was asked for."""
    host.identify("host")
    return next((fresh / "entries").glob("*/targets.json"))


def test_the_table_is_read_from_the_cache(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity._identities.cache_clear()
    monkeypatch.setattr(cache, "publish", None)
    assert host.identify("avx2").cpu_flags == load("avx2").cpu_flags
    assert [row["name"] for row in json.loads(table.read_text())] == list(NAMES)


@pytest.mark.parametrize("by", ["flags", "length"])
def test_an_altered_table_is_made_anew(table: Path, by: str) -> None:
    text = table.read_text()
    table.write_text(text.replace('"avx2"', '"sse2"') if by == "flags" else text[:-1])
    identity._identities.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"set aside: targets\.json (was altered|has)"):
        assert host.identify("avx2").cpu_flags == load("avx2").cpu_flags
    assert table.read_text() == text


def test_other_sources_have_another_table(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "sources_digest", lambda: "those of another version")
    identity._identities.cache_clear()
    assert host.identify("avx2").cpu_flags == load("avx2").cpu_flags
    assert len(list(table.parent.parent.glob("*/targets.json"))) == 2
