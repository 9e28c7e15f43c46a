"""K loops copy nothing between registers that is used in place as well, nor by way of the stack."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.compilers import FAMILIES, use

import tilewright as tw
from benchmarks.measure.spills import functions, spills
from benchmarks.sections.kloops import machine_code
from tilewright.generate import Request, plan_for, program_for
from tilewright.ir.nodes import walk
from tilewright.ir.ops import MultiplyAdd
from tilewright.isa.target import Target
from tilewright.runtime.machine.host import resolve

#: An element spread over a register of its own; a vector register copied, in either syntax.
SPREAD = re.compile(r"dup v\d+\.4s, v\d+\.s\[\d\]")
COPY = re.compile(r"v?mov\w+ %?[xyz]mm\d+,\s*%?[xyz]mm\d+$")
#: A whole vector stored.
STORE = re.compile(r"vmov\w+ ZMMWORD PTR \[.*\],\s*zmm\d+$")


def k_loops(spec: tw.Gemm, target: Target) -> list[str]:
    """The instructions, as the compiler that the environment names makes them."""
    code = machine_code([Request("kernel", spec, tw.Schedule(), target)], target)
    return [
        f"{instruction.mnemonic} {instruction.operands}"
        for function in functions(code)
        for region in function.regions()
        if region.looped
        for instruction in region.instructions
    ]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [(64, 64, 64), (64, 48, 64), (16, 6, 64), (37, 37, 37)])
def test_neon_multiplies_by_elements_in_place(
    size: tuple[int, int, int], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve("neon")
    use(family, target, monkeypatch)
    found = k_loops(tw.Gemm(*size), target)
    assert sum(one.startswith("fmla") for one in found) >= 16
    assert not [one for one in found if SPREAD.match(one)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", [("u8", "s8"), ("s8", "s8")], ids="-".join)
def test_sums_of_products_are_added_in_place(
    types: tuple[Any, Any], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve("avx2")
    use(family, target, monkeypatch)
    spec = tw.Gemm(64, 60, 64, a=types[0], b=tw.Packed(types[1]))
    found = k_loops(spec, target)
    assert sum(one.startswith("vpmaddwd") for one in found) >= 10
    assert not [one for one in found if COPY.match(one)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["avx2+vnni", "avx512+vnni", "neon+dotprod"])
def test_a_group_of_three_bytes_does_not_pass_through_the_stack(
    name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    use(family, target, monkeypatch)
    types: Any = ("u8", "u8") if target.machine == "aarch64" else ("u8", "s8")
    spec = tw.Gemm(4, 16, 67, a=types[0], b=tw.Packed(types[1]))
    code = machine_code([Request("kernel", spec, tw.Schedule(), target)], target)
    runs = [region for function in functions(code) for region in function.regions()]
    assert any(not region.looped for region in runs)
    assert spills(code) == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [64, 128, 256])
def test_all_that_tiles_load_is_stored_before(
    block: int, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers may not know that an instruction on tiles reads memory, and drop the stores of all
    parts of a block but the last, or make them later.
    """
    target = resolve("amx")
    use(family, target, monkeypatch)
    form = tw.Quantized("u4", scale="f16", zero=8, block=block)
    spec = tw.Gemm(16, 16, block, a=tw.Quantize("f32", per="row"), b=tw.Packed(form))
    request = Request("kernel", spec, tw.Schedule(unpack_rows=1), target)
    stored = []
    for function in functions(machine_code([request], target)):
        since = 0
        for one in function.instructions:
            since += bool(STORE.match(f"{one.mnemonic} {one.operands}"))
            if one.mnemonic.startswith("tdp"):
                stored.append(since)
                since = 0
    assert min(stored) >= 16, stored  # 64 of K in groups of four


def test_products_have_no_register_where_none_is_left() -> None:
    target = resolve("avx2")
    spec = tw.Gemm(26, 3, 64, a="s8", b="s8", c="s32")
    for tile, expected in (((13, 3), False), ((12, 3), True)):
        plan = plan_for(spec, tw.Schedule(tile=tile, vectorize="n"), target)
        tiles = program_for(plan).tiles
        made = [op for tile in tiles for op in walk(tile.body) if isinstance(op, MultiplyAdd)]
        assert made and all((op.product is not None) is expected for op in made)
