"""SME's kernels: machine code, the mode of the processor, vectors' length, lines of matrices."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.compilers import use
from sympy import Integer

import tilewright as tw
from benchmarks.measure.spills import functions
from tilewright.errors import PlanError, ToolchainError
from tilewright.generate import Request, generate, interpret_kernel, plan_for, program_for
from tilewright.ir.interleaving import transpose
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Load,
    LoadSeveral,
    Loop,
    Op,
    ReadRows,
    TileProgram,
    WriteRow,
    Zero,
    ZeroMatrix,
)
from tilewright.ir.values import MatrixRegister, Register
from tilewright.ir.verify import verify_tile
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import (
    compile_library,
    compile_program,
    disassemble,
    flags_notes,
    program_commands,
)
from tilewright.runtime.harness import harness
from tilewright.runtime.machine import host
from tilewright.symbolic import ONE, ZERO, symbol
from tilewright.targets import load

SME = load("sme")

# -- machine code --------------------------------------------------------------------------------

#: Specs of whole tiles, and how many sums of a tile there are at once.
SPECS = {
    "f32": (tw.Gemm(64, 64, 64), 4),
    "f32 of any K": (tw.Gemm(64, 64, tw.dim("k")), 4),
    "f64": (tw.Gemm(64, 64, 64, a="f64", b="f64"), 8),
    "bf16": (tw.Gemm(64, 64, 64, a="bf16", b=tw.Packed("bf16")), 4),
    "f16": (tw.Gemm(64, 64, 64, a="f16", b="f16"), 4),
    "s8": (tw.Gemm(64, 64, 64, a="s8", b=tw.Packed("s8")), 4),
    "u8s8": (tw.Gemm(64, 64, 64, a="u8", b="s8"), 4),
}
#: Instructions for each product of a loop: of 4 products with as many loads, two pointers, a count
#: and its branch, where bytes are addressed by one count more; and with loads of several vectors.
MOST = {"sme+f64": (12 / 4, 13 / 4), "sme+sme2+f64": (28 / 16, 28 / 16)}


@pytest.mark.parametrize("base", MOST)
@pytest.mark.parametrize("name", SPECS)
def test_a_k_loop_has_little_beside_its_products(
    name: str, base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = host.resolve(base)
    compiler = use("clang", target, monkeypatch)
    (spec, most), each = SPECS[name], MOST[base]["s8" in name]
    text = generate([Request("gemm", spec, tw.Schedule(), target)]).text
    library = compile_library(text, target, compiler, tmp_path, "kernel")
    found = functions(disassemble(library, compiler))
    every = [one.mnemonic for function in found for one in function.instructions]
    assert not [m for m in every if re.match(r"[fus]mmla|bfmmla|ld1ro|ldff", m)], "illegal here"
    (function,) = (f for f in found if f.name == "gemm")
    loops = (region for region in function.regions() if region.looped)
    loop = max(loops, key=lambda region: len(region.instructions))  # not that of the steps left
    products = [one for one in loop.instructions if one.mnemonic.endswith("mopa")]
    assert len({one.operands.partition(",")[0] for one in products}) == most
    assert len(loop.instructions) <= each * len(products)
    assert function.spills_in(loop) == []


@pytest.mark.parametrize(
    ("size", "loads"),
    [
        ((32, 32, 8), {2: 8}),  # two on either side of each of four steps, twice
        ((16, 64, 8), {4: 4, 1: 4}),
        ((16, 48, 8), {2: 4, 1: 8}),
        ((20, 52, 8), {}),  # cut where it ends
    ],
)
def test_whole_vectors_side_by_side_are_loaded_together(
    size: tuple[int, int, int], loads: dict[int, int]
) -> None:
    (m, n, k), rng = size, np.random.default_rng(0)
    spec = tw.Gemm(m, n, k, a=tw.Matrix("f32", "F"))
    target = host.resolve("sme+sme2")
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    c = np.empty((m, n), np.float32)
    interpret_kernel(spec, tw.Schedule(), target, [np.asfortranarray(a), b, c])
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-5)
    every = [op for tile in program_for(plan_for(spec, tw.Schedule(), target)).tiles
             for op in walk(tile.body)]  # fmt: skip
    found = Counter(len(op.dst) for op in every if isinstance(op, LoadSeveral))
    found[1] = sum(isinstance(op, Load) for op in every)
    assert not loads or +found == loads


def test_a_factor_that_its_load_converts_is_loaded_alone() -> None:
    a, b = tw.Matrix("bf16", "F"), tw.Matrix("f8_e4m3", "C")
    spec = tw.Gemm(32, 5, 129, a=a, b=b, order="F")
    plan = plan_for(spec, tw.Schedule(), host.resolve("sme+sme2"))
    every = [op for tile in program_for(plan).tiles for op in walk(tile.body)]
    assert (
        plan.staging.product.mnemonic == "fmopa za.s" and plan.staging.input_of("m").type == "bf16"
    )
    assert not any(isinstance(op, LoadSeveral) for op in every)


@pytest.mark.parametrize(
    ("spec", "schedule", "product"),
    [
        (tw.Gemm(64, 64, 64), tw.Schedule(), "fmopa za.s"),
        (tw.Gemm(2, 64, 64), tw.Schedule(), "fmopa za.s"),
        (tw.Gemm(1, 64, 64), tw.Schedule(), "fmla z.s"),
        (tw.Gemm(64, 64, 64), tw.Schedule(pack="b"), "fmla z.s"),
        (tw.Gemm(64, 64, 64, b=tw.Matrix("f32", "F")), tw.Schedule(vectorize="k"), "fmla z.s"),
        (tw.Gemm(64, 64, 64, a="f64", b="f64"), tw.Schedule(), "fmla z.d"),  # without its feature
    ],
)
def test_blocks_are_taken_where_they_are_worth_it(
    spec: tw.Gemm, schedule: tw.Schedule, product: str
) -> None:
    assert plan_for(spec, schedule, SME).staging.product.mnemonic == product


# -- the mode ------------------------------------------------------------------------------------

#: Rows of the matrix registers, 64 bytes each, that a caller left there: they are saved when the
#: kernel takes the registers, as the procedure call standard has it.
LAZY = """
#include <stdio.h>
static unsigned char saved[64 * 64 + 16];
static struct {{ void *to; uint16_t rows; uint8_t reserved[6]; }} block = {{saved, 64, {{0}}}};

int main(void)
{{
    static float a[64 * 64], b[64 * 64], c[64 * 64];
    uint64_t state, left;
    for (int i = 0; i < 64 * 64; i++)
        a[i] = 1, b[i] = 1;
    __asm__ volatile(
        ".arch_extension sme\\n smstart za\\n"
        "mov w12, wzr\\n"
        "1: ldr za[w12, 0], [%0]\\n add w12, w12, #1\\n cmp w12, #64\\n b.ne 1b\\n"
        "msr TPIDR2_EL0, %1\\n" : : "r"(a), "r"(&block) : "w12", "cc", "memory");
    kernel(a, b, c);
    __asm__ volatile("mrs %0, TPIDR2_EL0\\n mrs %1, SVCR\\n" : "=r"(left), "=r"(state));
    for (int i = 0; i < 64 * 64 / 4; i++)
        if (((float *)saved)[i] != 1)
            return puts("not saved"), 1;
    for (int i = 0; i < 64 * 64; i++)
        if (c[i] != 64)
            return puts("wrong"), 1;
    if (left || state || saved[64 * 64])
        return puts("left in a mode, or written behind"), 1;
    return puts("right"), 0;
}}
"""


def test_what_a_caller_has_in_the_matrix_registers_is_saved(tmp_path: Path) -> None:
    qemu()
    kernel = generate([Request("kernel", tw.Gemm(64, 64, 64), tw.Schedule(), SME)]).text
    text = kernel + LAZY.format()
    program = compile_program([text], SME, find_compiler(SME, emulated=True), tmp_path, "lazy")
    done = subprocess.run([qemu(), "-cpu", SME.emulation.cpu, str(program)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.returncode) == ("right\n", 0)


def test_threads_are_asked_from_outside_of_the_mode() -> None:
    """What a thread runs changes the mode for itself; the entry and its pool do not."""
    schedule = tw.Schedule(threads=2)
    text = generate([Request("gemm", tw.Gemm(64, 64, 64, a="s8", b="s8"), schedule, SME)]).text
    assert SME.mode is not None
    heads = [line for line in text.splitlines() if re.search(r"\b(fork\d+|gemm)\(.*\w+ \*", line)]
    entered = {bool(re.search("fork", line)): SME.mode.entry in line for line in heads[1:]}
    assert entered == {True: True, False: False}
    spec = tw.Gemm(64, 64, 64, batch=tw.Strided(4))
    apart = generate([Request("gemm", spec, tw.Schedule(loops="bMnk"), SME)]).text
    assert "by one thread, in a separate function" in apart
    alone = generate([Request("gemm", tw.Gemm(64, 64, 64), tw.Schedule(), SME)]).text
    assert f"{SME.mode.entry} void gemm(" in alone and "memcpy(to" not in alone


# -- its length ----------------------------------------------------------------------------------


def qemu() -> str:
    """The emulator, or the test is skipped."""
    found = host.find_qemu(SME)
    if found is None or shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no emulator, or no linker, for AArch64")
    return found


def test_vectors_of_another_length_are_refused(tmp_path: Path) -> None:
    qemu()
    spec = tw.Gemm(5, 19, 7, beta=1)
    text = harness(spec, target="sme", name="kernel", cases=1)
    program = compile_program([text], SME, find_compiler(SME, emulated=True), tmp_path, "check")
    said = {}
    for bits in (512, 256):
        cpu = f"max,sme{bits}=on,sme_fa64=off,sme-default-vector-length={bits // 8}"
        command = [qemu(), "-cpu", cpu, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said[bits] = done.returncode, done.stdout
    assert said[512] == (0, "pass: kernel, 1 cases\n")
    wrong = "fail: kernel is for vectors of 64 bytes, this thread's have 32\n"
    assert said[256] == (1, wrong)


# -- compilers -----------------------------------------------------------------------------------


def test_gcc_is_refused_and_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no gcc for AArch64")
    monkeypatch.setenv("TILEWRIGHT_CC_AARCH64", "aarch64-linux-gnu-gcc")
    with pytest.raises(ToolchainError, match="makes no code for sme") as raised:
        find_compiler(SME, emulated=False)
    assert raised.value.expected == "clang 19 or later, or the ziglang package"
    *flags, compilers = flags_notes(SME)
    assert [note.split()[0] for note in flags[1:]] == ["clang", "zig"]
    assert compilers == "Compilers: clang 19 or later, zig 0.14 or later"
    ((family, command),) = program_commands(SME, "a.c", "a").items()
    assert family == "clang" and command[:2] == ("clang", "--target=aarch64-linux-gnu")


# -- lines of matrices ---------------------------------------------------------------------------

_VECTOR = SME.of("f32")[0]


def sums(rows: int = 16) -> MatrixRegister:
    """A matrix of the unit."""
    assert SME.matrix is not None
    return MatrixRegister("s", SME.matrix, "f32", Integer(rows), 16)


def read(**changed: object) -> ReadRows:
    """A read of the line that a loop counts."""
    one = ReadRows((Register("r", _VECTOR),), sums(), symbol("row"))
    return replace(one, **changed)  # type: ignore[arg-type]


def tile(*ops: Op) -> TileProgram:
    """A program of these operations."""
    return TileProgram("t", "f32", (), ops, (), "a test's")


def test_lines_are_counted_by_a_loop() -> None:
    verify_tile(tile(ZeroMatrix(sums()), Loop("row", 16 * ONE, (read(),))), SME)
    verify_tile(tile(ZeroMatrix(sums()), Loop("row", 16 * ONE, (read(columns=True),))), SME)


@pytest.mark.parametrize(
    ("trips", "rows", "changed", "problem"),
    [
        (17, 16, {}, "reads line row of 17"),
        (9, 8, {}, "reads line row of 9"),
        (16, 8, {"columns": True}, "into"),
        (4, 16, {"first": symbol("other")}, "depends on other"),
    ],
)
def test_a_line_that_is_not_there_is_refused(
    trips: int, rows: int, changed: dict[str, object], problem: str
) -> None:
    op = replace(read(**changed), src=sums(rows))
    with pytest.raises(PlanError, match=problem):
        verify_tile(tile(ZeroMatrix(sums(rows)), Loop("row", Integer(trips), (op,))), SME)


def test_rows_are_written_and_columns_read() -> None:
    """So a square is turned; the rows are those that there are, of the type of the sums."""
    rows = [Register(f"x{i}", _VECTOR) for i in range(3)]
    ops, turned = transpose(SME, rows, 16, "t")
    assert [op.kind for op in ops] == ["write_row"] * 3 + ["read_rows"] * 16
    assert all(op.columns for op in ops if isinstance(op, ReadRows)) and len(turned) == 16
    zeros = (Zero(row) for row in rows)
    verify_tile(tile(*zeros, *ops), SME)
    square = sums(8)
    for op, problem in (
        (WriteRow(square, rows[0], 8), "writes row 8"),
        (WriteRow(replace(square, columns=8), rows[0], 0), "takes <z: 16 f32>"),
    ):
        with pytest.raises(PlanError, match=problem):
            verify_tile(tile(Zero(rows[0]), op), SME)
    held = Register("v", load("power10").of("f32")[0])
    unit = load("power10").matrix
    assert unit is not None
    op = WriteRow(MatrixRegister("s", unit, "f32", Integer(4), 4), held, 0)
    with pytest.raises(PlanError, match="writes a row of acc"):
        verify_tile(tile(Zero(held), op), load("power10"))


def test_columns_are_refused_where_the_unit_gives_rows() -> None:
    power10 = load("power10")
    assert power10.matrix is not None
    held = MatrixRegister("s", power10.matrix, "f32", Integer(4), 4)
    op = ReadRows((Register("r", power10.of("f32")[0]),), held, ZERO, columns=True)
    with pytest.raises(PlanError, match="reads a column of acc"):
        verify_tile(tile(ZeroMatrix(held), op), power10)


@pytest.mark.parametrize("target", ["sme", "sve256+bf16", "neon+bf16", "power10", "rvv256"])
def test_elements_that_are_stored_in_groups_are_read_one_by_one(target: str) -> None:
    """An array of 16-bit elements is written in words: clang 19 took it for never written."""
    a, b = tw.Matrix("bf16", "F"), tw.Packed("bf16")
    for k in (4, 65):
        spec = tw.Gemm(1, 16, k, a=a, b=b, batch=tw.Strided(1))
        assert tw.compile(spec, target=target).verify(cases=2).cases == 2
