"""K loops of x86 and Neon: no spill, few instructions, and the pace of their multiply-adds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.compilers import FAMILIES, use
from support.machine_code import block_cycles

import tilewright as tw
from benchmarks.measure.spills import functions
from tilewright.generate import Request, generate
from tilewright.runtime.build.toolchain import compile_library, disassemble
from tilewright.runtime.machine.host import resolve

WHOLE = tw.Gemm(64, 64, 64)
BYTES = tw.Gemm(64, 64, 64, a="u8", b=tw.Packed("s8"))
SIGNED = tw.Gemm(64, 64, 64, a="s8", b=tw.Packed("s8"))
BF16 = tw.Gemm(64, 64, 64, a="bf16", b=tw.Packed("bf16"))
HALVES = tw.Gemm(64, 96, 256, a="f16", b=tw.Packed("f16"), c="f16")
#: Targets, LLVM's name of a core, instructions for each multiply-add at most, and of each spec the
#: cycles that one takes there.
PACE: tuple[tuple[str, str, float, dict[tw.Gemm, float]], ...] = (
    ("avx2", "znver3", 2.1, {WHOLE: 1 / 2, tw.Gemm(64, 48, 64): 1 / 2, BF16: 1 / 2}),
    ("avx2+zen3", "znver3", 3.4, {SIGNED: 1 / 2}),
    ("avx2+vnni", "alderlake", 2.6, {BYTES: 1 / 2, SIGNED: 1 / 2}),
    ("avx512", "sapphirerapids", 1.7, {WHOLE: 1, tw.Gemm(64, 48, 64): 1, BF16: 1}),
    ("avx512", "sapphirerapids", 2.8, {BYTES: 1, SIGNED: 1}),
    ("avx512+vnni+bf16", "sapphirerapids", 1.9, {BYTES: 1, BF16: 2}),
    ("avx512+fp16", "sapphirerapids", 1.3, {HALVES: 1}),
    ("neon", "neoverse-n1", 1.7, {WHOLE: 1 / 2, tw.Gemm(64, 48, 64): 1 / 2, BF16: 1 / 2}),
    ("neon", "neoverse-n1", 3.4, {SIGNED: 1}),
    ("neon+dotprod+i8mm+bf16", "neoverse-v1", 1.8, {SIGNED: 1 / 4, BYTES: 1 / 4, BF16: 1 / 4}),
)
#: A loop of fewer multiply-adds is of a tail; how far another may be above their cycles.
LEAST, SLACK = 8, 1.2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("name", "core", "most", "specs"), PACE)
def test_k_loops_keep_the_pace_of_their_multiply_adds(
    name: str,
    core: str,
    most: float,
    specs: dict[tw.Gemm, float],
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = resolve(name)
    compiler = use(family, target, monkeypatch)
    for spec, cycles in specs.items():
        text = generate([Request("kernel", spec, tw.Schedule(), target)]).text
        library = compile_library(text, target, compiler, tmp_path, "kernel")
        # A tile is a function of its own where it is not a part of the kernel's.
        found = functions(disassemble(library, compiler))
        own = (one for one in found if re.match(r"kernel$|(kernel_)?tile", one.name))
        loops = [(one, region) for one in own for region in one.regions() if region.looped]
        judged = 0
        for function, loop in loops:
            assert function.spills_in(loop) == []
            products = sum(map(function.multiplies, loop.instructions))
            if products < LEAST:
                continue
            judged += 1
            assert len(loop.instructions) <= most * products
            lines = (re.sub("<.*>", "", f"{o.mnemonic} {o.operands}") for o in loop.instructions)
            taken = block_cycles(list(lines)[:-1], target.machine, core)
            assert taken <= SLACK * products * cycles, f"{spec}: {taken}"
        assert judged
