"""Sizes that are known to be multiples leave no code for what is left over."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.specimens import VECTOR_TARGETS, code

from tilewright import targets
from tilewright.generate import Request, generate
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim

#: What the C of a tail holds: a remainder, a condition, one more tile. (Another is about vectors.)
TAIL = re.compile(r"%|\bif\b(?! \((svcntb|__riscv_vlenb))|static inline")


def scheduled(target: str, type_: str = "f32") -> Schedule:
    """A tile that was asked for, one vector wide."""
    lanes = targets.load(target).of(type_)[0].lanes
    return Schedule(tile=(4, lanes), k_unroll=4, stores="cached")


def text_of(target: str, multiple: int, schedule: Schedule, **more: object) -> str:
    m, n, k = (Dim(name, multiple_of=multiple) for name in ("M", "N", "K"))
    spec = Gemm(m, n, k, **more)  # type: ignore[arg-type]
    return generate([Request("kernel", spec, schedule, targets.load(target))]).text


def body(text: str) -> str:
    """The nest and all tiles but the first, without what the library begins and ends with."""
    return code(text.partition("static inline")[2].partition("void kernel_invoke")[0])


def tails(text: str) -> list[str]:
    """The lines that only a tail needs."""
    return [line.strip() for line in text.splitlines() if TAIL.search(line)]


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_multiples_of_sixteen_need_no_tail(target: str, beta: float, type_: Any) -> None:
    for more in ({}, {"c": Matrix(type_, "F")}, {"b": Matrix(type_, "F")}):
        text = text_of(target, 16, Schedule(stores="cached"), a=type_, beta=beta, **more)
        assert not tails(body(text)), f"with {more}"
    schedule = scheduled(target, type_)
    assert schedule.tile is not None
    multiple = max(16, schedule.tile[1])
    assert not tails(body(text_of(target, multiple, schedule, a=type_, beta=beta)))


@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_the_test_sees_tails(target: str) -> None:
    text = body(text_of(target, 1, scheduled(target)))
    assert any("%" in line for line in tails(text))
