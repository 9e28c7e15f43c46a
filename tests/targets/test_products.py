"""Which multiply-add sums the products of two types, and how targets with features are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.errors import TargetError
from tilewright.isa.machine import Speed
from tilewright.plan.contraction import choose_product
from tilewright.runtime.machine.host import resolve
from tilewright.targets import load

ALL = "neon+dotprod+i8mm+bf16+fp16fml"


@pytest.mark.parametrize(
    ("name", "along", "across", "mnemonic", "shifts"),
    [
        ("neon", "s8", "s8", "smull, sadalp", (0, 0)),
        ("neon", "u8", "u8", "umull, uadalp", (0, 0)),
        ("neon", "u8", "s8", "smull, sadalp", (-128, 0)),
        ("neon", "s8", "u8", "smull, sadalp", (0, -128)),
        ("neon", "s16", "s8", "smlal", (0, 0)),
        ("neon", "u16", "u8", "umlal", (0, 0)),
        ("neon", "s16", "u16", "smlal", (0, -(2**15))),
        ("neon", "u16", "s8", "mla v.4s by element", (0, 0)),
        ("neon+dotprod", "s8", "s8", "sdot", (0, 0)),
        ("neon+dotprod", "u8", "u8", "udot", (0, 0)),
        ("neon+dotprod", "u8", "s8", "sdot", (-128, 0)),
        (ALL, "s8", "s8", "smmla", (0, 0)),
        (ALL, "u8", "s8", "smmla", (-128, 0)),
        (ALL, "s8", "u8", "usmmla", (0, 0)),
        ("neon", "bf16", "bf16", "fmla v.4s by element", (0, 0)),
        (ALL, "bf16", "bf16", "bfmmla", (0, 0)),
        (ALL, "f16", "f16", "fmlal", (0, 0)),
        (ALL, "bf16", "f16", "fmla v.4s by element", (0, 0)),
        (ALL, "f8_e4m3", "f32", "fmla v.4s by element", (0, 0)),
    ],
)
def test_the_best_multiply_add_is_chosen(
    name: str, along: str, across: str, mnemonic: str, shifts: tuple[int, int]
) -> None:
    product = choose_product(resolve(name), {"a": across, "b": along}, "b")
    assert product.mnemonic == mnemonic
    assert (product.shifts["b"], product.shifts["a"]) == shifts


@pytest.mark.parametrize(
    ("name", "type_", "b_moved", "a_moved"),
    [("avx2+vnni", "s8", 128, 128), ("avx512+vnni", "s8", 128, 128), ("neon", "u8", 0, 0)],
)
def test_of_two_signs_a_packed_b_keeps_its_own(
    name: str, type_: str, b_moved: int, a_moved: int
) -> None:
    types, target = dict.fromkeys("ab", type_), resolve(name)
    assert choose_product(target, types, "b").shifts == {"a": 0, "b": b_moved}
    assert choose_product(target, types, "b", packed=True).shifts == {"a": a_moved, "b": 0}


@pytest.mark.parametrize("name", ["neon", *(f"neon+{name}" for name in load("neon").features)])
def test_narrower_vectors_have_the_forms_of_wide_ones(name: str) -> None:
    target = resolve(name)
    for element in ("f32", "s32"):
        widest, *narrower = target.of(element)
        factors = {op.factors for op in widest.muladd if op.rows == 1}
        assert all(factors == {op.factors for op in v.muladd} for v in narrower)


def test_features_have_one_order_and_one_architecture() -> None:
    target = resolve("neon+bf16 + dotprod")
    assert target.name == "neon+dotprod+bf16"
    assert target.compiler_flags == ("-march=armv8.2-a+dotprod+bf16",)
    assert target.zig_flags == ("-mcpu=generic+dotprod+bf16",)
    assert target.cpu_flags == ("asimd", "asimddp", "bf16")
    assert load("neon").compiler_flags == ("-march=armv8-a",)


def test_an_unknown_feature_is_refused() -> None:
    with pytest.raises(TargetError, match="neon has no feature 'vnni'"):
        resolve("neon+vnni")


def test_a_dot_product_that_is_slower_than_converting_is_not_taken() -> None:
    types = {"a": "bf16", "b": "bf16"}
    slow = choose_product(resolve("avx512+bf16+emeraldrapids"), types, "b")
    assert slow.mnemonic == "vfmadd231ps"
    assert slow.instead == "vdpbf16ps would take 1.6 times as long on this core"
    for name in ("avx512+bf16", "avx512+bf16+zen5", "avx512+bf16+zen4"):
        fast = choose_product(resolve(name), types, "b")
        assert (fast.mnemonic, fast.instead) == ("vdpbf16ps", "")


@pytest.mark.parametrize(("cycles", "depth"), [(1.0, 2), (1.2, 2), (1.3, 1)])
def test_converting_is_worth_a_quarter(cycles: float, depth: int) -> None:
    target = resolve("avx512+bf16")
    speed = Speed(mnemonic="vdpbf16ps", bytes=64, cycles=cycles, latency=6)
    changed = replace(target, core=replace(target.core, speeds=(speed,)))
    assert choose_product(changed, {"a": "bf16", "b": "bf16"}, "b").depth == depth
