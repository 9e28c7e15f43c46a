"""Every spelling of a target, compiled by gcc and clang and run, against numpy bit for bit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.compilers import FAMILIES, use
from support.spellings.spelling_checks import checks, products
from support.spellings.spellings import faults

from tilewright.elementwise.operations import OPERATIONS, OPTIONAL
from tilewright.runtime.machine.host import is_native, resolve
from tilewright.targets import load

WHOLE = ("neon", "sve256", "sme", "rvv256", "power10", "scalar")
#: What qemu does otherwise: of two zeros POWER's xsmaxcdp and xsmincdp give the first one, where C,
#: whose choice between two scalars gcc and clang compile to them, has the second.
EMULATED = re.compile(r"scalar of 1 f(32|64): m(ax|in): .*got np.float\d+\(-?0.0\)")
#: Their features are tried together and, for their compiler flags, alone.
FEATURES = (
    "neon+dotprod+i8mm+bf16+fp16fml",
    *(f"neon+{name}" for name in load("neon").features),
    "sve256+sve2+i8mm+bf16",
    *("rvv256+zvfh", "rvv512+zvfbfwma"),
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", WHOLE)
def test_every_spelling_does_as_it_says(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    compiler = use(family, target, monkeypatch, emulated=not is_native(target))
    found = faults(checks(target), target, compiler, tmp_path)
    found = [fault for fault in found if is_native(target) or not EMULATED.match(fault)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", FEATURES)
def test_every_product_does_as_it_says(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    compiler = use(family, target, monkeypatch, emulated=not is_native(target))
    found = faults(products(target), target, compiler, tmp_path)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", WHOLE)
def test_every_sum_has_all_elementary_operations(name: str) -> None:
    for vector in load(name).vectors:
        if vector.muladd:
            needed = {fn for fn, op in OPERATIONS.items() if vector.element in op.elements}
            assert needed - OPTIONAL <= set(vector.ops), f"{vector.name} of {vector.element}"


#: Words of neon's C, and others that do not the same.
WRONG = {
    "vbslq_f32(vcltq_f32(x, y), x, y)": "vminq_f32(x, y)",
    "vfmaq_f32(z, x, y)": "vaddq_f32(z, vmulq_f32(x, y))",
    "vcvtnq_s32_f32": "vcvtq_s32_f32",
    "vmmlaq_s32(acc, y, x)": "vmmlaq_s32(acc, x, y)",
    "vbfdotq_laneq_f32(acc, x, y, 3)": "vbfdotq_laneq_f32(acc, x, y, 2)",
    "vld1q_lane_f32(in0, vdupq_n_f32(0.0f), 0)": "vld1q_f32(in0)",
    "vst1_f32(out, vget_low_f32(x))": "vst1q_f32(out, x)",
}


def test_a_wrong_spelling_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = resolve(FEATURES[0])
    compiler = use("gcc", target, monkeypatch, emulated=not is_native(target))
    changed = []
    for check in checks(target):
        text = "\n".join(check.statements)
        for right, wrong in WRONG.items():
            if right in text:
                changed.append(replace(check, statements=[text.replace(right, wrong)]))
    assert len(changed) >= len(WRONG)
    assert len(faults(changed, target, compiler, tmp_path)) == len(changed)
