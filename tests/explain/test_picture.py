"""Plans as pictures: well-formed, escaped, and C covered exactly."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import tilewright as tw
from tilewright import targets
from tilewright.explain.cover import cover
from tilewright.explain.picture import roof
from tilewright.explain.svg import FILLS, document, text
from tilewright.generate import draw_plan, plan_for
from tilewright.plan.plan import Plan

AMX = tw.Gemm(64, 64, 128, a="bf16", b="bf16")
CASES = [
    (tw.Gemm(64, 50, 64), tw.Schedule(tile=(8, 48)), "avx512"),
    (tw.Gemm(200, 190, 64), tw.Schedule(loops="nkmnk", block={"n": 96, "k": 32}), "avx2"),
    (tw.Gemm(50, 70, 64), tw.Schedule(loops="mnk", pack="b"), "neon"),
    (tw.Gemm(13, 5, 7, order="F", beta=1), tw.Schedule(), "avx2"),
    (tw.Gemm(tw.dim("m"), 48, 64), tw.Schedule(), "avx2"),
    (tw.Gemm(24, 20, 16, batch=tw.Strided(3)), tw.Schedule(loops="bnmk"), "neon"),
    (tw.Gemm(8, 8, 100, b=tw.Matrix("f32", "F")), tw.Schedule(vectorize="k"), "avx2"),
    (AMX, tw.Schedule(), "amx"),
    (tw.Gemm(tw.dim("m"), tw.dim("n"), tw.dim("k")),
     tw.Schedule(loops="nkmnmk", block={"m": 24, "n": 48, "k": 32}, pack="ab"), "avx2"),
    (tw.Gemm(64, 128, 64, a="u8", b=tw.Packed("s8", 32), d="u8", d_scale=0.5), tw.Schedule(),
     "avx512"),
]  # fmt: skip


def planned(spec: tw.Gemm, schedule: tw.Schedule, target: str) -> Plan:
    found = plan_for(spec, schedule, targets.load(target))
    assert isinstance(found, Plan)
    return found


@pytest.mark.parametrize(("spec", "schedule", "target"), CASES, ids=lambda value: str(value)[:40])
def test_a_picture_is_well_formed_and_shows_all_parts(
    spec: tw.Gemm, schedule: tw.Schedule, target: str
) -> None:
    plan = planned(spec, schedule, target)
    drawn = ET.fromstring(draw_plan(plan, of_peak=0.5))
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    words = " ".join(node.text or "" for node in drawn.iter())
    for part in ("in register tiles", "Registers: ", "Loops", "Roofline", "estimate", "measured"):
        assert part in words
    fills = {node.get("fill") for node in drawn.iter()}
    assert FILLS[0] in fills


@pytest.mark.parametrize(("spec", "schedule", "target"), CASES, ids=lambda value: str(value)[:40])
def test_tiles_cover_c_and_leave_no_gap(spec: tw.Gemm, schedule: tw.Schedule, target: str) -> None:
    m, n = (size if isinstance(size, int) else 64 for size in (spec.m, spec.n))
    times = np.zeros((m, n), np.int64)
    for one in cover(planned(spec, schedule, target)):
        rows, columns = one.down * one.mr, one.right * one.nr
        times[one.row : one.row + rows, one.column : one.column + columns] += 1
        assert one.row + rows <= m and one.column + columns <= times.shape[1]
    assert (times == 1).all()


@pytest.mark.parametrize(("spec", "schedule", "target"), CASES, ids=lambda value: str(value)[:40])
def test_the_estimate_lies_below_the_roof(
    spec: tw.Gemm, schedule: tw.Schedule, target: str
) -> None:
    plan = planned(spec, schedule, target)
    drawn = roof(plan)
    assert 0 < drawn.expected <= drawn.peak * 1.01
    assert list(drawn.slopes)[-1] == "memory"


def test_a_size_of_the_call_is_said() -> None:
    spec, schedule, target = CASES[4]
    assert "m of the call drawn as 64" in draw_plan(planned(spec, schedule, target))


def test_nothing_to_draw_is_said() -> None:
    drawn = draw_plan(planned(tw.Gemm(0, 8, 8), tw.Schedule(), "avx2"))
    assert ET.fromstring(drawn) is not None and "nothing to draw" in drawn


def test_words_are_escaped() -> None:
    drawn = document(10, 10, "a < b & 'c'", [text(0, 0, "<script>\"&'")])
    assert ET.fromstring(drawn)[0].text == "a < b & 'c'"
    assert "<script>" not in drawn


def test_a_kernel_in_a_notebook() -> None:
    kernel = tw.compile(tw.Gemm(8, 8, 8), target="scalar")
    shown = kernel._repr_html_()
    assert kernel.c_declaration.partition("(")[0] in shown and "of peak, bound by" in shown
    drawn = ET.fromstring(shown)
    assert drawn.tag == "div" and "Decisions" in "".join(drawn.itertext())
    known = "div|p|br|svg|title|rect|text|path|polyline|circle|details|summary|pre"
    assert not re.search(rf"<(?!/?({known}))", shown)
    flipped = tw.compile(tw.Transpose(8, 8), target="scalar")._repr_html_()
    assert "<svg" not in flipped and "details open" in flipped
