"""Machine code of SVE's kernels: no spill in a K loop, few instructions, the units' own pace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.compilers import FAMILIES, use
from support.machine_code import block_cycles

import tilewright as tw
from benchmarks.measure.spills import Function, Instruction, functions
from tilewright.generate import Request, generate
from tilewright.runtime.build.toolchain import compile_library, disassemble
from tilewright.runtime.machine.host import resolve

TYPES = {
    "f32": tw.Gemm(64, 64, 64),
    "f32 of whole tiles": tw.Gemm(64, 48, 64),
    "f64": tw.Gemm(64, 64, 64, a="f64", b="f64"),
    "s8": tw.Gemm(64, 64, 64, a="s8", b="s8"),
    "bf16": tw.Gemm(64, 64, 64, a="bf16", b="bf16"),
}
#: LLVM's names of cores, a target with what each has, and multiply-adds a cycle.
CORES = {
    "neoverse-v1": ("sve256+i8mm+bf16+neoversev1", 2),
    "neoverse-v2": ("sve128+sve2+i8mm+bf16+neoversev2", 4),
    "a64fx": ("sve512+a64fx", 2),
}
#: Instructions for each multiply-add of f32 or f64 at most, and of 2x2 blocks: gcc has 46 for 24
#: that are spread over vectors, and clang in one of the kernels an address more.
MOST, BLOCKS = 47 / 24, 39 / 24
#: A loop of fewer multiply-adds is of a tail.
LEAST = 16
#: How far a loop may be above the cycles of its multiply-adds: gcc moves a factor here and there.
SLACK = 1.1


@dataclass(frozen=True)
class KLoop:
    """A K loop and its function."""

    function: Function
    instructions: tuple[Instruction, ...]

    @property
    def products(self) -> int:
        """How many multiply-adds it has."""
        return sum(map(self.function.multiplies, self.instructions))

    def cycles(self, core: str) -> float:
        """Cycles of a trip when nothing has to be waited for, as LLVM's model of ``core`` says."""
        lines = (f"{one.mnemonic} {one.operands}" for one in self.instructions[:-1])
        return block_cycles(lines, "aarch64", core)


def k_loops(
    name: str,
    family: str,
    requests: Sequence[tuple[tw.Gemm, tw.Schedule]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[KLoop]:
    """The K loops of kernels for a target, all of which are free of spills."""
    target = resolve(name)
    compiler = use(family, target, monkeypatch)
    made = [Request(f"kernel{i}", *each, target) for i, each in enumerate(requests)]
    library = compile_library(generate(made).text, target, compiler, folder, "kernels")
    for function in functions(disassemble(library, compiler)):
        for region in function.regions():
            if region.looped:
                assert function.spills_in(region) == []
                found = KLoop(function, region.instructions)
                if found.products >= LEAST:
                    yield found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("core", CORES)
def test_k_loops_are_as_fast_as_their_multiply_adds(
    core: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, units = CORES[core]
    requests = [(spec, tw.Schedule()) for spec in TYPES.values()]
    found = list(k_loops(name, family, requests, tmp_path, monkeypatch))
    assert len(found) >= len(TYPES)
    for loop in found:
        if any(one.mnemonic == "fmla" for one in loop.instructions):
            assert len(loop.instructions) <= MOST * loop.products
    slow = [loop for loop in found if loop.cycles(core) > SLACK * loop.products / units]
    assert [f"{loop.function.name}: {loop.cycles(core)}" for loop in slow] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_take_few_instructions(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model chooses tiles of 4 x 6 blocks by itself."""
    whole = tw.Gemm(64, 48, 64, a="s8", b=tw.Packed("s8")), tw.Schedule()
    found = list(k_loops("sve256+i8mm", family, [whole], tmp_path, monkeypatch))
    blocks = [o for loop in found for o in loop.instructions if o.mnemonic == "smmla"]
    assert blocks
    for loop in found:
        assert len(loop.instructions) <= BLOCKS * loop.products
