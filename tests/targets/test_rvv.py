"""Machine code of RISC-V V's kernels, and what keeps them from a CPU of another length."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.compilers import use
from support.machine_code import block_cycles

import tilewright as tw
from benchmarks.measure.spills import Function, Region, functions
from tilewright.generate import Request, generate, plan_for
from tilewright.isa.target import Target
from tilewright.plan.tiling.tiles import grids_of
from tilewright.runtime.build.toolchain import compile_library, compile_program, disassemble
from tilewright.runtime.emulate.runner import command_prefix
from tilewright.runtime.harness import program
from tilewright.runtime.machine.host import find_qemu, resolve
from tilewright.runtime.machine.processor import READ_VLENB

TYPES: dict[str, tuple[Any, ...]] = {
    "rvv128": ("f32", "f64", "s8"),
    "rvv256": ("f32", "f64", "s8"),
    "rvv256+zvfh": ("f16",),
    "rvv512+zvfh+zvfbfwma": ("bf16", "f16"),
}
#: Instructions of a tile of 7 rows of vectors of 4 registers, at most.
MOST = 24 / 7
#: A loop of fewer multiply-adds is of a tail.
LEAST = 6
#: LLVM's name of a core with such registers, and the cycles of a multiply-add by target and type:
#: on the first half of one for each register of its factors, on the second two and one more.
PACE: dict[str, tuple[str, dict[Any, float]]] = {
    "rvv128": ("sifive-p670", {"f32": 2, "f64": 2, "bf16": 2, "s8": 1}),
    "rvv128+zvfh": ("sifive-p670", {"f16": 1}),
    "rvv512": ("sifive-x280", {"f32": 9, "f64": 9, "bf16": 9, "s8": 3}),
}
SLACK = 1.05


def k_loops(
    name: str, specs: Sequence[tw.Gemm], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Function, Region]]:
    """The K loops of kernels for a target."""
    target = resolve(name)
    compiler = use("clang", target, monkeypatch)
    made = [Request(f"kernel{i}", spec, tw.Schedule(), target) for i, spec in enumerate(specs)]
    library = compile_library(generate(made).text, target, compiler, folder, "kernels")
    for function in functions(disassemble(library, compiler)):
        yield from ((function, region) for region in function.regions() if region.looped)


def products(function: Function, region: Region) -> int:
    """How many multiply-adds a loop has."""
    return sum(map(function.multiplies, region.instructions))


@pytest.mark.parametrize("name", TYPES)
def test_k_loops_spill_nothing_and_are_short(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [tw.Gemm(64, 64, 64, a=t, b=t) for t in TYPES[name]]
    cut = [tw.Gemm(63, 61, 64, a=t, b=t) for t in TYPES[name]]
    found = list(k_loops(name, whole + cut, tmp_path, monkeypatch))
    assert sum(products(*loop) >= LEAST for loop in found) >= 2 * len(TYPES[name])
    for function, region in found:
        assert function.spills_in(region) == []
        if (count := products(function, region)) >= LEAST:
            assert len(region.instructions) <= MOST * count


def test_k_loops_of_several_vectors_or_steps_spill_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 registers all can be used only while one vector is loaded at a time."""
    target = resolve("rvv128")
    compiler = use("clang", target, monkeypatch)
    cases = [
        (tw.Gemm(30, 31, 16, a="f16", b="f16", order="F"), tw.Schedule()),
        (tw.Gemm(30, 48, 16, a="f16"), tw.Schedule(tile=(14, 4))),
        (tw.Gemm(64, 64, 64), tw.Schedule(k_unroll=4)),
        (tw.Gemm(33, 31, 65, order="F"), tw.Schedule(k_unroll=2)),
        (tw.Gemm(15, 16, 32, a="f64", b="f64"), tw.Schedule(k_unroll=4)),
    ]
    made = [Request(f"kernel{i}", *case, target) for i, case in enumerate(cases)]
    library = compile_library(generate(made).text, target, compiler, tmp_path, "kernels")
    found = functions(disassemble(library, compiler))
    loops = [(one, each) for one in found for each in one.regions() if each.looped]
    assert len(loops) >= len(cases)
    assert [str(spill) for one, loop in loops for spill in one.spills_in(loop)] == []


@pytest.mark.parametrize("name", ["rvv128", "rvv256"])
def test_vectors_along_k_spill_nothing_where_k_ends(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads of a part of a vector take zeros, which the tile leaves room for."""
    target, along = resolve(name), tw.Schedule(vectorize="k")
    specs = [
        tw.Gemm(*size, a=tw.Matrix(t, "C"), b=tw.Matrix(t, "F"), order="F")
        for t in ("f32", "f64")
        for size in ((5, 5, 17), (5, 33, 131), (33, 3, 257))
    ]
    made = [Request(f"kernel{i}", spec, along, target) for i, spec in enumerate(specs)]
    compiler = use("clang", target, monkeypatch)
    library = compile_library(generate(made).text, target, compiler, tmp_path, "kernels")
    found = functions(disassemble(library, compiler))
    assert sum(map(len, (function.regions() for function in found))) >= 2 * len(made)
    assert [str(spill) for function in found for spill in function.spills()] == []


@pytest.mark.parametrize("name", PACE)
def test_k_loops_are_as_fast_as_their_multiply_adds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, types = PACE[name]
    for type_, cycles in types.items():
        specs = [tw.Gemm(m, 64, 64, a=type_, b=type_) for m in (64, 63)]
        for function, region in k_loops(name, specs, tmp_path, monkeypatch):
            first = region.instructions[0].address
            before = (one for one in function.instructions if one.address < first)
            (*_, length) = (one for one in before if one.mnemonic.startswith("vset"))
            lines = [f"{o.mnemonic} {o.operands}" for o in (length, *region.instructions[:-1])]
            bound = cycles * products(function, region)
            assert block_cycles(lines, "riscv64", core) <= SLACK * bound


def test_the_model_chooses_how_many_registers_a_vector_takes() -> None:
    def widest(*size: int) -> str:
        plan = plan_for(tw.Gemm(*size), tw.Schedule(), resolve("rvv256"))
        return next(iter(grids_of(plan.tiling.passes["whole"]))).tile.shape.vector.name

    assert [widest(64, n, 64) for n in (64, 16, 8)] == ["m4", "m2", "m1"]


def test_a_program_refuses_registers_of_another_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = resolve("rvv256"), resolve("rvv512")
    if find_qemu(target) is None:
        pytest.skip("no qemu-riscv64")
    compiler = use("clang", target, monkeypatch, emulated=True)
    text = program(Request("kernel", tw.Gemm(3, 5, 7), tw.Schedule(), target))
    made = compile_program([text], target, compiler, tmp_path, "kernel", ())
    said = {}
    for each in (target, other):
        command = [*command_prefix(each, emulated=True), str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said[each.name] = done.returncode, done.stdout
    assert said["rvv256"][0] == 0 and said["rvv256"][1].startswith("pass")
    assert said["rvv512"][0] == 1 and "this thread's have 64" in said["rvv512"][1]


#: What Python executes to learn the length, as a function of C.
ASKS = """
#include <stdio.h>
__asm__(".globl ask\\nask:\\n.4byte %#x\\n.4byte %#x\\n");
unsigned long ask(void);
int main(void)
{
    printf("%%lu", ask());
    return 0;
}
"""


@pytest.mark.parametrize("name", ["rvv128", "rvv1024"])
def test_the_length_is_what_the_cpu_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = resolve(name)
    if find_qemu(target) is None:
        pytest.skip("no qemu-riscv64")
    compiler = use("clang", target, monkeypatch, emulated=True)
    text = ASKS % struct.unpack("<2I", READ_VLENB)
    made = compile_program([text], target, compiler, tmp_path, "ask", ())
    command = [*command_prefix(target, emulated=True), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert target.length is not None and int(done.stdout) == target.length.nbytes


def test_a_register_group_counts_as_its_registers() -> None:
    target = resolve("rvv256")
    with pytest.raises(tw.TilewrightError, match="needs 36 vector registers"):
        plan_for(tw.Gemm(8, 32, 64), tw.Schedule(tile=(8, 32), k_split=1), wide_only(target))


def wide_only(target: Target) -> Target:
    """With vectors of 4 registers, and single elements, alone."""
    return replace(target, vectors=tuple(v for v in target.vectors if v.name in ("m4", "scalar")))


def test_weights_of_two_planes_are_unpacked_where_registers_are_groups() -> None:
    """Nine vectors are alive there, which of four registers each are more than there are."""
    weights = tw.Quantized("s6", scale="f32", zero="f16", block=16)
    spec = tw.Gemm(32, 64, 33, a=tw.Matrix("f32", "F"), b=tw.Packed(weights))
    text = generate([Request("kernel", spec, tw.Schedule(), resolve("rvv256"))]).text
    assert "unpack_b_16x16(" in text
