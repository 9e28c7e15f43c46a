"""Where operands are converted: at each load, once beforehand, or a panel of rows at a time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases

from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.nesting import BlockLoop, NestNode, Pack
from tilewright.operands import Matrix, Packed, Strided
from tilewright.plan import Plan
from tilewright.runtime.host import resolve
from tilewright.schedule import Schedule
from tilewright.sizes import dim
from tilewright.spec import Gemm


def plan(spec: Gemm, schedule: Schedule | None = None, target: str = "avx2") -> Plan:
    found = plan_for(spec, schedule or Schedule(), resolve(target))
    assert isinstance(found, Plan)
    return found


def buffers(nodes: tuple[NestNode, ...], loops: str = "") -> dict[str, str]:
    """Each buffer and the counters of the loops around it."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, Pack):
            found |= {node.buffer: loops} | buffers(node.body, loops)
        elif isinstance(node, BlockLoop):
            found |= buffers(node.body, f"{loops}{node.counter} ")
    return found


def bf16(m: Any = 20, n: Any = 48, k: Any = 31, a: Any = "bf16", **more: Any) -> Gemm:
    return Gemm(m, n, k, a=a, b=Packed("bf16"), **more)


def test_rows_of_a_are_converted_just_before_their_tiles() -> None:
    found = plan(bf16(), Schedule(tile=(5, 16)))
    assert (found.outer, found.by_panels) == ("mn", True)
    assert buffers(program_for(found).nest) == {"a_packed": "mt "}


@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        (bf16(), Schedule(loops="nmk")),
        (bf16(batch=Strided(2)), Schedule()),
        (Gemm(20, 48, 32, a=Matrix("u8", "F"), b="s8"), Schedule()),
        (Gemm(20, 300, 300, a="bf16", b=Packed("bf16")), Schedule()),
        (Gemm(20, 48, 31, a="bf16", b=Packed("bf16", 16)), Schedule(loops="mnk")),
    ],
    ids=["nmk", "batch", "groups", "large B", "blocks of columns"],
)
def test_elsewhere_all_of_a_is_converted_first(spec: Gemm, schedule: Schedule) -> None:
    found = plan(spec, schedule)
    assert not found.by_panels
    assert buffers(program_for(found).nest)["a_packed"] == ""


@pytest.mark.parametrize("name", ["scalar", "avx2", "avx512", "neon"])
@pytest.mark.parametrize("m", [13, dim("m")], ids=str)
def test_panels_hold_what_they_should(name: str, m: Any, cases: Cases) -> None:
    spec, rng = Gemm(m, 11, 7, a="bf16", b="f32", beta=1), np.random.default_rng(0)
    a, b, c = (
        rng.integers(-4, 5, size).astype(np.float32) for size in ((13, 7), (7, 11), (13, 11))
    )
    expected = c + a @ b
    assert plan(spec, target=name).by_panels
    given = [a.astype(ml_dtypes.bfloat16), b, c]
    interpret_kernel(spec, Schedule(), resolve(name), given, [] if m == 13 else [13])
    np.testing.assert_array_equal(c, expected)
    cases.count(name, "interpreted")


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize("target", ["avx2", "avx512", "neon"])
def test_few_lines_are_converted_when_loaded(target: str, type_: str) -> None:
    """Those along the vectors; where many lines meet them, once beforehand."""
    few, many, unknown = (
        plan(Gemm(m, 33, 9, a="f32", b=type_), target=target) for m in (12, 13, dim("m"))
    )
    assert "b" not in few.sources
    assert "b" in many.sources
    assert "b" in unknown.sources
