"""Specs and schedules in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from click.testing import Result

import tilewright as tw
from tilewright.cli.code import spec_of_code
from tilewright.cli.words import schedule_text, sizes_text, spec_of, spec_text
from tilewright.errors import SpecError
from tilewright.spec.sizes import Spec
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


@pytest.mark.parametrize(("spec", "text"), [
    (tw.Gemm(4, 4, 4, beta=1), "4x4x4 beta=1"),
    (tw.Copy(64, 48, "f32", tw.Matrix("f32", "F"), lda=tw.dim("lda")), "copy f32 64x48 cf lda=lda"),
    (tw.Transpose(8, 9, "u8", ldx=12), "transpose u8 8x9 ldx=12"),
    (tw.Pack(8, 9, "f32", nb=16), "pack f32 for f32 8x9 c nb=16"),
    (tw.QuantizeRows(8, 64, tw.Quantize(), tw.Quantized("s8")), "quantize f32 for s8 8x64"),
])  # fmt: skip
def test_each_kind_of_spec_has_a_short_text(spec: Spec, text: str) -> None:
    assert spec_text(spec) == text


@pytest.mark.parametrize("module", ["tw", "tilewright"])
@pytest.mark.parametrize("spec", [
    tw.Gemm(tw.dim("m"), 8, 9, epilogue=tw.relu(tw.acc)),
    tw.Copy(64, 48),
    tw.network(lambda x: tw.nn.sum(x) + 1).of(x=tw.Tensor("f32", (2, 3))),
])  # fmt: skip
def test_code_of_specs_may_name_the_module(spec: Spec, module: str) -> None:
    """As pages write it: names of classes, of functions, and of the module of networks."""
    names = r"\b(Gemm|dim|relu|acc|Copy|Matrix|network|nn|Tensor)\b"
    text = re.sub(names, rf"{module}.\1", repr(spec))
    assert spec_of_code(text) == spec
    with pytest.raises(SpecError, match=r"compile\(1\) makes no spec"):
        spec_of_code(f"{module}.compile(1)")


def test_a_transposition_takes_its_leading_dimensions_from_lda_and_ldb() -> None:
    unsaid = dict.fromkeys(("batch", "ldc"))
    spec = spec_of((8, 9), "f64", "CCC", alpha=1.0, beta=0.0, lda=10, ldb=tw.dim("out"), **unsaid)
    assert spec == tw.Transpose(8, 9, "f64", ldx=10, ldout=tw.dim("out"))
