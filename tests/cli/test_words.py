"""Specs and schedules in the words of the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import Result

import tilewright as tw
from tilewright.cli.words import schedule_text, sizes_text, spec_of
from tilewright.targets import load

Run = Callable[..., Result]


def test_a_command_line_says_a_whole_spec(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    monkeypatch.setattr("tilewright.generate.plan_for", lambda *what: seen.extend(what))
    monkeypatch.setattr("tilewright.generate.explain_plan", lambda plan, width: "")
    run(
        "explain", "m%16x48x64", "--type", "f64", "--order", "cfc", "--alpha", "2",
        "--beta", "scalar", "--batch", "offsets:n", "--lda", "70", "--ldc", "ldc",
        "--target", "avx2", "--tile", "16x6", "--loops", "nmmbk", "--block", "m=48",
        "--k-unroll", "4", "--k-split", "2", "--vectorize", "n", "--tails", "mask",
    )  # fmt: skip
    spec, schedule, target = seen
    assert spec == tw.Gemm(
        tw.dim("m", multiple_of=16), 48, 64, a="f64", b=tw.Matrix("f64", "F"), alpha=2,
        beta="scalar", batch=tw.Offsets(tw.dim("n")), lda=70, ldc=tw.dim("ldc"),
    )  # fmt: skip
    assert schedule == tw.Schedule(
        tile=(16, 6), loops="nmmbk", block={"m": 48}, k_unroll=4, k_split=2, vectorize="n",
        tails="mask",
    )  # fmt: skip
    assert target is load("avx2")


def test_a_command_line_says_a_quantised_spec(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr("tilewright.generate.plan_for", lambda *what: seen.extend(what))
    monkeypatch.setattr("tilewright.generate.explain_plan", lambda plan, width: "")
    run(
        "explain", "6x20x13", "--type", "u8", "--b", "packed:s8:8", "--c", "s32", "--d", "s8",
        "--order", "CCF", "--ldd", "9", "--a-scale", "row", "--b-scale", "0.5", "--d-scale",
        "scalar", "--a-zero", "128", "--b-zero", "column", "--d-zero", "-3", "--epilogue", "relu",
    )  # fmt: skip
    assert seen[0] == tw.Gemm(
        6, 20, 13, a="u8", b=tw.Packed("s8", nb=8), c=tw.Matrix("s32", "F"),
        d=tw.Matrix("s8", "F"), ldd=9, a_scale="row", b_scale=0.5, d_scale="scalar", a_zero=128,
        b_zero="column", d_zero=-3, epilogue=tw.relu(tw.acc),
    )  # fmt: skip
    seen.clear()
    run("explain", "8x8x8", "--type", "s8", "--b", "u8")
    assert seen[0] == tw.Gemm(8, 8, 8, a="s8", b="u8", c="s32")
    seen.clear()
    run("explain", "8x8x8", "--type", "bf16", "--c", "bf16")
    assert seen[0] == tw.Gemm(8, 8, 8, a="bf16", b="bf16", c="bf16")


def test_a_command_line_names_containers_of_few_bits(run: Run) -> None:
    found = run("explain", "4x32x64", "--b", "packed:q4_0", "--quantize").output
    assert "quantized first" in found
    assert "u4 less 8" in found
    found = run("explain", "4x32x64", "--b", "packed:mxfp4:48", "--type", "bf16").output
    assert "f4_e2m1" in found
    assert "48 columns" in found
    run("explain", "4x32x64", "--quantize", status=1)


def test_specs_and_schedules_are_shown_as_they_are_said() -> None:
    assert sizes_text(tw.Gemm(tw.dim("m"), 8, 9)) == "mx8x9"
    assert sizes_text(tw.Transpose(8, 9)) == "8x9"
    assert schedule_text(tw.Schedule()) == "schedule chosen by the cost model"
    schedule = tw.Schedule((16, 6), "nmmk", block={"m": 48}, k_unroll=2, tails="mask")
    assert schedule_text(schedule) == "16x6 nmmk m=48 k_unroll=2 tails=mask"


def test_a_transposition_takes_its_leading_dimensions_from_lda_and_ldb() -> None:
    unsaid = dict.fromkeys(("batch", "ldc"))
    spec = spec_of((8, 9), "f64", "CCC", alpha=1.0, beta=0.0, lda=10, ldb=tw.dim("out"), **unsaid)
    assert spec == tw.Transpose(8, 9, "f64", ldx=10, ldout=tw.dim("out"))
