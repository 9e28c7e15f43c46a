"""The garbage collector pauses while kernels are generated, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

import tilewright as tw
from tilewright import generate
from tilewright.runtime.build import toolchain
from tilewright.runtime.store.collector import uncollected


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("fresh")
def test_no_collection_while_c_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    active: dict[str, bool] = {}

    def watch(module: Any, name: str) -> None:
        original = getattr(module, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            active[name] = gc.isenabled()
            return original(*arguments, **named)

        monkeypatch.setattr(module, name, watched)

    watch(generate, "generate")
    watch(toolchain, "run_tool")
    tw.compile(tw.Gemm(2, 3, 5), target="scalar")
    assert active == {"generate": False, "run_tool": True}
    assert gc.isenabled()


def test_blocks_may_overlap() -> None:
    first, second = uncollected(), uncollected()
    with first:
        second.__enter__()
        assert not gc.isenabled()
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()


def test_errors_end_the_pause() -> None:
    with pytest.raises(ValueError), uncollected():
        raise ValueError
    assert gc.isenabled()


def test_new_objects_are_old_and_frozen_ones_stay_frozen() -> None:
    with uncollected():
        kept: list[list[int]] = [[] for _ in range(10)]
    assert not any(each is kept for each in gc.get_objects(generation=0))
    gc.freeze()
    frozen = gc.get_freeze_count()
    with uncollected():
        pass
    assert gc.get_freeze_count() == frozen > 0
