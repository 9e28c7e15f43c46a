"""What decides about a product and only a target's description tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.machine.host import identify, resolve
from tilewright.runtime.matmul import target_facts
from tilewright.runtime.matmul.target_facts import few_along_k, second_cache
from tilewright.spec.schedule import FEW_ALONG_K, FEW_BESIDE_UNIT


def test_facts_are_those_of_the_target() -> None:
    assert few_along_k("bf16", "bf16", "amx") == FEW_BESIDE_UNIT
    assert few_along_k("bf16", "bf16", "avx512") == FEW_ALONG_K
    for name in ("avx2", "avx512+emeraldrapids", "neon"):
        assert second_cache(name) == resolve(name).core.second.size


def test_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process asks neither the planner nor the description."""
    target = identify("avx2").name
    asked = few_along_k("bf16", "bf16", target), few_along_k("u16", "u16", target)
    size = second_cache(target)
    target_facts._fact.cache_clear()

    def written(*given: str) -> None:
        raise AssertionError(given)

    monkeypatch.setattr(Path, "write_text", written)
    assert (few_along_k("bf16", "bf16", target), few_along_k("u16", "u16", target)) == asked
    assert asked == (16, 0)
    assert second_cache(target) == size
