"""What x86 CPUs say of themselves that Linux does not list."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.runtime.machine import cpuid, host, processor
from tilewright.targets.detection import X86

#: Leaf and subleaf to the registers of a CPU with all of it.
ALL = {
    (0, 0): (0x24, 0, 0, 0),
    (7, 0): (1, 0, 0, 0),
    (7, 1): (1 << 4 | 1 << 21, 0, 0, 1 << 4 | 1 << 10 | 1 << 19),
    (0x1E, 1): (1 << 4, 0, 0, 0),
    (0x24, 0): (0, 2, 0, 0),
}
FLAGS = "fpu avx2 fma f16c avx512f avx512bw avx512dq avx512vl avx512cd avx512_vnni avx512_bf16"


def said(leaves: dict[tuple[int, int], tuple[int, int, int, int]]) -> set[str]:
    """The unlisted features of a CPU that answers so."""
    words = cpuid.words(lambda leaf, subleaf: leaves.get((leaf, subleaf), (0, 0, 0, 0)))
    assert words.keys() <= set(X86.words)
    return {name for name in X86.unlisted if words[X86.bits[name].word] >> X86.bits[name].bit & 1}


def test_each_bit_is_found() -> None:
    assert said(ALL) == set(X86.unlisted)
    assert said({**ALL, (0, 0): (6, 0, 0, 0)}) == set(), "leaves that there are not"
    assert said({**ALL, (7, 0): (0, 0, 0, 0)}) == {"amx_fp8"}, "no subleaf 1"


@pytest.mark.parametrize(("version", "has"), [(0, False), (1, False), (2, True), (3, True)])
def test_avx10_has_a_version(version: int, has: bool) -> None:
    assert ("avx10_2" in said({**ALL, (0x24, 0): (0, version, 0, 0)})) == has


@pytest.fixture
def asked(
    tmp_path: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[int]]:
    """How often CPUID is asked by a CPU that lists ``FLAGS``."""
    file, calls = tmp_path / "cpuinfo", list[int]()
    file.write_text(f"vendor_id : V\ncpu family : 6\nmodel : 1\nmodel name : X\nflags : {FLAGS}\n")
    monkeypatch.setattr(processor, "_CPUINFO", file)
    for module in (processor, host):
        monkeypatch.setattr(module, "machine", lambda: "x86_64")

    def answer() -> Iterator[str]:
        calls.append(1)
        yield from ("avx_vnni", "avx_vnni_int8", "avx10_2")

    monkeypatch.setattr(cpuid, "_asked", answer)
    host.cpu.cache_clear()
    yield calls
    host.cpu.cache_clear()


def test_the_cpu_is_asked_once(asked: list[int], empty_cache: Path) -> None:
    assert host.cpu().features == {*FLAGS.split(), "avx_vnni", "avx_vnni_int8", "avx10_2"}
    assert host.resolve("host").name == "avx10.2"
    assert list(host.features_here(host.resolve("avx2"))) == ["vnni", "vnniint8"]
    host.cpu.cache_clear()
    assert "avx10_2" in host.cpu().features and len(asked) == 1
    file = empty_cache / "cpuid.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "here": "another machine"}))
    host.cpu.cache_clear()
    assert "avx10_2" in host.cpu().features and len(asked) == 2
    file.write_text("{")
    host.cpu.cache_clear()
    assert "avx10_2" in host.cpu().features and len(asked) == 3
