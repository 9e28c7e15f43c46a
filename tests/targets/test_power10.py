"""POWER10's kernels: their machine code, what is refused of blocks, and the CPU that is missing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.compilers import COMPILERS, FAMILIES, use
from support.machine_code import block_cycles
from sympy import Integer

import tilewright as tw
from tilewright.errors import PlanError
from tilewright.generate import Request, generate, plan_for
from tilewright.ir.ops import (
    MultiplyBlock,
    Op,
    Parameter,
    ReadRows,
    TileProgram,
    Zero,
    ZeroMatrix,
)
from tilewright.ir.values import MatrixRegister, Register
from tilewright.ir.verify import verify_tile
from tilewright.plan.tiling.tiles import grids_of
from tilewright.runtime.build.toolchain import compile_library, disassemble
from tilewright.runtime.machine import host
from tilewright.symbolic import ONE, ZERO
from tilewright.targets import load

POWER10 = load("power10")
UNIT = POWER10.matrix
assert UNIT is not None

# -- machine code --------------------------------------------------------------------------------

#: Specs of whole tiles, and the product that sums them.
SPECS = {
    "f32": (tw.Gemm(64, 64, 64), "xvf32gerpp"),
    "f64": (tw.Gemm(64, 64, 64, a="f64", b="f64"), "xvf64gerpp"),
    "bf16": (tw.Gemm(64, 64, 64, a="bf16", b=tw.Packed("bf16")), "xvbf16ger2pp"),
    "f16": (tw.Gemm(64, 64, 64, a="f16", b=tw.Packed("f16")), "xvf16ger2pp"),
    "s8": (tw.Gemm(64, 64, 64, a="s8", b=tw.Packed("u8")), "xvi8ger4pp"),
}
#: For 8 products of a K loop: half as many loads as factors, a step's share of two pointers and the
#: branch, and gcc's moves of what it loaded by pairs. Four rows of f64 are a pair, but one factor.
MOST, OF_F64 = 14.5, 17


def k_loop(text: str, product: str) -> list[str]:
    """The instructions of the innermost loop that has ``product``."""
    lines = re.findall(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$", text, flags=re.MULTILINE)
    loops = []
    for at, (address, mnemonic, operands) in enumerate(lines):
        if not mnemonic.startswith("b") or not (to := re.search(r"\b([0-9a-f]+) <", operands)):
            continue
        begin = next((i for i, line in enumerate(lines) if line[0] == to[1]), at)
        body = [" ".join(line[1:]) for line in lines[begin : at + 1]]
        if int(to[1], 16) < int(address, 16) and any(product in line for line in body):
            loops.append(body)
    return min(loops, key=len)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SPECS)
def test_a_k_loop_has_little_beside_its_products(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(COMPILERS["ppc64le"]["gcc"]) is None:
        pytest.skip("no linker for POWER")
    compiler = use(family, POWER10, monkeypatch)
    spec, product = SPECS[name]
    text = generate([Request("gemm", spec, tw.Schedule(), POWER10)]).text
    library = compile_library(text, POWER10, compiler, tmp_path, "kernel")
    loop = k_loop(disassemble(library, compiler), product)
    products = sum(product in line for line in loop)
    assert products % 8 == 0
    assert len(loop) <= (OF_F64 if name == "f64" else MOST) * products / 8
    assert not [line for line in loop if line.startswith(("stx", "std", "xxmf", "xxmt"))], "a spill"
    bare = (re.sub(r"^dm|\b(vs|cr|r|a)(?=\d)|<.*", "", line) for line in loop[:-1])
    bare = (re.sub(r"^xxmr (\S+?),(\S+)", r"xxlor \1,\2,\2", line) for line in bare)
    cycles = block_cycles(bare, "powerpc64le", "pwr10")
    assert cycles <= 1.1 * products / 2, "two products in a cycle"


# -- which product sums --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "schedule", "product"),
    [
        (tw.Gemm(64, 64, 64), tw.Schedule(), "xvf32gerpp"),
        (tw.Gemm(3, 64, 64), tw.Schedule(), "xvf32gerpp"),
        (tw.Gemm(2, 64, 64), tw.Schedule(), "xvmaddasp"),  # half of a block would be empty
        (tw.Gemm(64, 1, 64), tw.Schedule(), "xvmaddasp"),
        (tw.Gemm(64, 64, 64), tw.Schedule(pack="b"), "xvmaddasp"),  # of one operand
        (tw.Gemm(64, 64, 64, b=tw.Matrix("f32", "F")), tw.Schedule(vectorize="k"), "xvmaddasp"),
        (tw.Gemm(8, 8, 8, a="u8", b="u8"), tw.Schedule(), "xvi8ger4pp"),
    ],
)
def test_blocks_are_taken_where_they_are_worth_it(
    spec: tw.Gemm, schedule: tw.Schedule, product: str
) -> None:
    plan = plan_for(spec, schedule, POWER10)
    assert plan.staging.product.mnemonic == product
    held = {grid.tile.shape.sums for grid in grids_of(plan.tiling.passes["whole"])}
    assert held == {UNIT if "ger" in product else None}


def test_there_are_no_more_than_eight_accumulators() -> None:
    for size in (4, 8, 12, 16, 24, 40):
        plan = plan_for(tw.Gemm(size, 64, 64), tw.Schedule(), POWER10)
        for grid in grids_of(plan.tiling.passes["whole"]):
            assert 1 <= grid.tile.shape.budget.accumulators <= 8
    with pytest.raises(tw.ScheduleError, match="needs 16 matrix registers on power10"):
        plan_for(tw.Gemm(16, 16, 64), tw.Schedule(tile=(16, 16)), POWER10)


# -- what is refused of blocks -------------------------------------------------------------------

VSX = POWER10.of("f32")[0]
ACC = MatrixRegister("s0", UNIT, "f32", Integer(4), 4)
X, Y, ROW = (Register(name, VSX) for name in "xyr")
NARROW = Register("n", POWER10.of("f64")[0])
F32, BF16 = UNIT.products["f32"][:2]
KNOWN = (ZeroMatrix(ACC), Zero(X), Zero(Y))
REFUSED: list[tuple[tuple[Op, ...], Op, str]] = [
    (KNOWN[1:], MultiplyBlock(F32, ACC, X, Y), "reads s0 undefined"),
    (KNOWN, MultiplyBlock(BF16, ACC, X, Y), "multiplies <vsx: 4 f32>"),
    (KNOWN, MultiplyBlock(VSX.muladd[0], ACC, X, Y), "by <xvmaddasp by broadcast>"),
    ((), ReadRows((ROW,), ACC, ZERO), "reads s0 undefined"),
    (KNOWN, ReadRows(tuple(Register(f"r{i}", VSX) for i in range(5)), ACC, ZERO), "reads 5 rows"),
    (KNOWN, ReadRows((ROW,), ACC, ONE), "reads 1 rows"),
    (KNOWN, ReadRows((NARROW,), ACC, ZERO), "into <vsx: 2 f64>"),
]


@pytest.mark.parametrize(("before", "op", "says"), REFUSED)
def test_an_operation_on_blocks_is_refused(before: tuple[Op, ...], op: Op, says: str) -> None:
    parameters = (Parameter("c", "out"),)
    with pytest.raises(PlanError) as refused:
        verify_tile(TileProgram("tile0", "f32", parameters, (*before, op), (), ""), POWER10)
    assert says in str(refused.value)


# -- where it runs -------------------------------------------------------------------------------


@pytest.mark.skipif(host.machine() == "ppc64le", reason="the CPU may have it")
def test_elsewhere_it_runs_in_an_emulator_or_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "find_qemu", lambda target: None)
    with pytest.raises(tw.TargetError, match="nothing here runs power10") as refused:
        host.means(POWER10)
    assert "qemu" in str(refused.value)
