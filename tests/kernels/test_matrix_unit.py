"""Products in the registers of a matrix unit: shapes, steps of K, configurations, their state."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.products.interpreted import Interpreted, small_cases

import tilewright as tw
from tilewright.errors import PlanError, ScheduleError, TargetError
from tilewright.generate import Request, explain_plan, generate, plan_for, program_for, verified
from tilewright.ir.count import formulas
from tilewright.ir.nest import Configure, NestNode, Program
from tilewright.ir.nodes import inside, walk
from tilewright.ir.ops import LoadMatrix, MultiplyMatrices, TileProgram
from tilewright.plan.plan import Plan
from tilewright.plan.routine import routine_of
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library, compile_program
from tilewright.runtime.call import session
from tilewright.runtime.call.session import Session, ask_consent
from tilewright.runtime.harness import harness
from tilewright.runtime.machine.host import is_native, machine, resolve
from tilewright.targets import load

AMX = load("amx")
M, N, K = tw.dim("m"), tw.dim("n"), tw.dim("k")


def program_of(spec: tw.Gemm, schedule: tw.Schedule | None = None) -> Program:
    return program_for(plan_for(spec, schedule or tw.Schedule(), AMX))


def tiles_of(program: Program) -> list[TileProgram]:
    return [tile for tile in program.tiles if tile.numbers]


def changes(nodes: tuple[NestNode, ...]) -> Iterator[int]:
    for node in nodes:
        if isinstance(node, Configure):
            yield node.index
        yield from changes(inside(node))


# -- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "mnemonic"),
    [
        (("s8", "s8"), "tdpbssd"), (("s8", "u8"), "tdpbsud"), (("u8", "s8"), "tdpbusd"),
        (("u8", "u8"), "tdpbuud"), (("bf16", "bf16"), "tdpbf16ps"),
    ],
)  # fmt: skip
def test_every_pair_of_signs_has_its_instruction(types: tuple[Any, Any], mnemonic: str) -> None:
    a, b = types
    for spec in (tw.Gemm(16, 16, 64, a=a, b=b), tw.Gemm(16, 16, 64, a=a, b=tw.Packed(b))):
        plan = plan_for(spec, tw.Schedule(), AMX)
        assert plan.staging.product.mnemonic == mnemonic
        assert not any(plan.staging.product.shifts.values())
    swapped = plan_for(tw.Gemm(16, 16, 64, a=a, b=b), tw.Schedule(vectorize="m"), AMX)
    assert swapped.staging.product.mnemonic == f"tdpb{mnemonic[5]}{mnemonic[4]}d" or a == "bf16"


def test_f16_needs_the_feature() -> None:
    spec = tw.Gemm(16, 16, 32, a="f16")
    assert plan_for(spec, tw.Schedule(), AMX).staging.product.unit is None
    with_it = plan_for(spec, tw.Schedule(), AMX.having(["fp16"]))
    assert with_it.staging.product.mnemonic == "tdpfp16ps"
    assert "_tile_dpfp16ps(" in generate([Request("k", spec, tw.Schedule(), with_it.target)]).text


@pytest.mark.parametrize(
    ("m", "n", "shape"),
    [
        (64, 64, (2, 2)), (16, 64, (1, 4)), (64, 16, (4, 1)), (16, 48, (1, 3)), (48, 16, (3, 1)),
        (5, 64, (1, 4)), (128, 128, (2, 2)),
    ],
)  # fmt: skip
def test_the_cost_model_chooses_square_and_thin_tiles(
    m: int, n: int, shape: tuple[int, int]
) -> None:
    (tile,) = plan_for(tw.Gemm(m, n, 512, a="s8"), tw.Schedule(), AMX).tiling.tiles
    assert (tile.shape.bands, tile.shape.columns) == shape


@pytest.mark.parametrize(("k", "steps"), [(34, 2), (32, 1), (33, 2), (40, 2), (64, 2), (97, 4)])
def test_k_takes_as_few_steps_as_its_depth_allows(k: int, steps: int) -> None:
    program = program_of(tw.Gemm(16, 16, k, a="bf16"))
    (tile,) = tiles_of(program)
    assert formulas(program).multiply_adds == steps
    loads = [op for op in walk(tile.body) if isinstance(op, LoadMatrix)]
    whole = k % loads[0].dst.columns == 0 if loads else True
    copied = any(op.address.pointer == "pa_tail" for op in loads)
    depth = max(op.dst.columns for op in loads if op.dst.name.startswith("a"))
    assert copied == (k % depth != 0), whole


def test_blocks_of_k_become_whole_steps() -> None:
    spec, schedule = tw.Gemm(16, 16, 256, a="s8"), tw.Schedule(loops="knmk", block={"k": 32})
    plan = plan_for(spec, schedule, AMX)
    assert plan.nest.blocks["k"] == 64
    assert any(d.what == "block k" and "64" in d.reason for d in plan.decisions)


# -- configurations -------------------------------------------------------------------------------


def test_one_configuration_is_loaded_before_the_kernel() -> None:
    program = program_of(tw.Gemm(64, 64, 512, a="u8", b=tw.Packed("s8")))
    (only,) = program.configurations
    assert [(int(rows), size) for rows, size in only.shapes] == [(16, 64)] * 8
    assert not list(changes(program.nest))


def test_shapes_that_fit_share_a_configuration() -> None:
    """Two bands and a tail of 5 rows: the tail's registers stand beside the others."""
    schedule = tw.Schedule(tile=(16, 16))
    program = program_of(tw.Gemm(37, 16, 64, a="s8"), schedule)
    assert len(tiles_of(program)) == 2
    (only,) = program.configurations
    assert len(only.shapes) <= 8
    assert {int(rows) for rows, _ in only.shapes} == {16, 5}


def test_rows_known_at_the_call_are_configured_where_there_are_such() -> None:
    program = program_of(tw.Gemm(M, 16, 64, a="s8"))
    moving = [i for i, c in enumerate(program.configurations) if not c.fixed]
    assert len(moving) == 1
    text = generate([Request("k", tw.Gemm(M, 16, 64, a="s8"), tw.Schedule(), AMX)]).text
    before = text[: text.index("/* rows of each register */ {(uint8_t)(m % 16)")]
    assert before.rstrip().splitlines()[-3].strip().startswith("const struct tiles tiles")
    assert "(m % 16 + 15) / 16" in before.splitlines()[-6] + before.splitlines()[-5] + before


def test_illegal_matrices_are_refused() -> None:
    spec = tw.Gemm(16, 16, 64, a="s8")
    program = program_of(spec)
    (tile,) = tiles_of(program)
    (product,) = [op for op in tile.body if isinstance(op, MultiplyMatrices)]
    for wrong in (replace(product, y=replace(product.y, rows=product.y.rows - 1)),):
        body = tuple(wrong if op is product else op for op in tile.body)
        with pytest.raises(PlanError, match=r"two shapes|do not match"):
            verified(replace(program, tiles=(replace(tile, body=body),)), spec, AMX)
    with pytest.raises(PlanError, match="matrix registers on avx512"):
        verified(program, spec, load("avx512"))


def test_tiles_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"needs \d+ matrix registers on amx.*it has 8"):
        program_of(tw.Gemm(64, 64, 64, a="s8"), tw.Schedule(tile=(48, 32)))


# -- numbers --------------------------------------------------------------------------------------


def test_random_products_on_the_interpreter(cases: Cases) -> None:
    """Every access is checked: nothing is read that lies outside, or was not written."""
    done = 0
    for index, (spec, schedule) in enumerate(small_cases(11, 105)):
        plan = plan_for(spec, schedule, AMX)
        nests = routine_of(plan).nests(plan)
        if not nests or nests[0].staging.product.unit is None:
            continue
        interpreted = Interpreted(spec, schedule, AMX)
        for whole in (True, False):
            interpreted.run(interpreted.sample(index, whole=whole))
        cases.count("amx", "interpreted", 2)
        done += 1
    assert done > 20


@pytest.mark.parametrize("factors", [("scalar", 0), (1, "scalar"), ("scalar", "scalar"), (2, 3)])
def test_factors_are_known_where_rows_are_taken(factors: tuple[Any, Any], cases: Cases) -> None:
    alpha, beta = factors
    spec = tw.Gemm(16, 24, 64, a="bf16", alpha=alpha, beta=beta)
    interpreted = Interpreted(spec, tw.Schedule(k_split=1), AMX)
    interpreted.run(interpreted.sample(0, whole=True))
    cases.count("amx", "interpreted")


# -- state ----------------------------------------------------------------------------------------

STATE = """
import ctypes, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
rng = np.random.default_rng(0)
def operands(m, n, k):
    a = rng.integers(-128, 128, (m, k)).astype(np.int8)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    return a, b, np.empty((m, n), np.int32)
def call(function, a, b, c):
    c[:] = 0
    getattr(library, function)(*(x.ctypes.data_as(ctypes.c_void_p) for x in (a, b, c)))
    assert (c == a.astype(np.int32) @ b.astype(np.int32)).all(), function
one, other = operands(64, 64, 64), operands(7, 20, 70)
"""
RIGHT = {
    "without a session": "call('one', *one); call('other', *other); call('one', *one)",
    "another kernel within a session": (
        "library.one_configure(); call('one_inner', *one); call('other', *other); "
        "call('one_inner', *one); call('one', *one); call('one_inner', *one); "
        "library.one_release(); call('other', *other)"
    ),
    "a kernel with several configurations within its own session": (
        "library.other_configure(); call('other', *other); call('one', *one); "
        "call('other_inner', *other); library.other_release()"
    ),
    "threads": """
import threading
def many(name, operands):
    for _ in range(20):
        call(name, *operands)
library.one_configure()
threads = [threading.Thread(target=many, args=(n, (*o[:2], o[2].copy())))
           for n, o in (("one", one), ("other", other))]
[t.start() for t in threads]; [t.join() for t in threads]
call('one_inner', *one)
""",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels in a library of plain C, through the header."""
    specs = {"one": tw.Gemm(64, 64, 64, a="s8"), "other": tw.Gemm(7, 20, 70, a="s8")}
    text = generate([Request(n, spec, tw.Schedule(), AMX) for n, spec in specs.items()]).text
    compiler = find_compiler(AMX, emulated=True)
    if compiler.means != "header":
        compiler = replace(compiler, means="header")
    return compile_library(text, AMX, compiler, tmp_path_factory.mktemp("state"), "state")


def ran(library: Path, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STATE + program, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", RIGHT)
def test_configurations_are_kept_and_put_back(name: str, library: Path) -> None:
    done = ran(library, RIGHT[name])
    assert done.returncode == 0, done.stderr


def test_without_a_configuration_the_inner_kernel_faults(library: Path) -> None:
    for program in (
        "call('one_inner', *one)",
        "library.one_configure(); library.one_release(); call('one_inner', *one)",
    ):
        done = ran(library, program)
        assert done.returncode < 0 and "#UD" in done.stderr, done


def test_sessions_within_sessions_load_what_is_around_them_again() -> None:
    seen: list[str] = []

    def kept(name: str) -> Session:
        return Session(lambda: seen.append(f"load {name}"), lambda: seen.append(f"release {name}"))

    with kept("a"), Session(None, None):
        with kept("b"):
            assert seen == ["load a", "load b"]
        assert seen[2:] == ["release b", "load a"]
    assert seen[4:] == ["release a"]


def test_a_session_of_what_configures_nothing_changes_nothing() -> None:
    kernel = tw.compile(tw.Gemm(3, 4, 5), target="scalar")
    a, b = np.ones((3, 5), np.float32), np.ones((5, 4), np.float32)
    with kernel.session():
        assert (kernel(a, b) == 5).all()


def test_refused_consent_is_an_error() -> None:
    assert AMX.matrix is not None
    unknown = (*AMX.matrix.consent[:2], 63)
    if not hasattr(ctypes.CDLL(None), "syscall"):
        pytest.skip("no system call of Linux")
    with pytest.raises(TargetError, match=r"(?s)does not let this process use.*avx512"):
        ask_consent(AMX.matrix.name, unknown)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.ENOSPC, "larger stacks where sigaltstack is called"), (errno.EINVAL, "Linux 5.16")],
)
def test_a_refusal_says_why(number: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert AMX.matrix is not None
    asked, answers = [], [number, number, 0]

    def answer(words: tuple[int, ...]) -> int:
        asked.append(words)
        return answers.pop(0)

    monkeypatch.setattr(session, "_system_call", answer)
    unit, consent = "tiles of this test", (number, *AMX.matrix.consent)
    for _ in range(2):
        with pytest.raises(TargetError, match=f"(?s)error {number} .*{expected}"):
            ask_consent(unit, consent)
    ask_consent(unit, consent)
    ask_consent(unit, consent)
    assert asked == [consent] * 3, "it is asked again after refusals, and once more for good"


#: Stands before the kernel's C, and refuses it the tiles until it is told not to.
SYSTEM = """
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <unistd.h>
int one_refused(void);
static int answer = ENOSPC, asked;
long syscall(long number, ...)
{
    asked += number == 158;
    errno = answer;
    return answer ? -1 : 0;
}
int main(void)
{
    const int loading = asked, first = one_refused(), second = one_refused();
    answer = 0;
    const int third = one_refused();
    printf("%d %d %d %d %d\\n", loading, first == ENOSPC, second == ENOSPC, third, asked);
    return 0;
}
"""


def test_c_says_what_the_system_refuses(tmp_path: Path) -> None:
    """Asked while it is loaded, and each time that it is asked for: stacks may have grown."""
    if machine() != "x86_64":
        pytest.skip("compiles for x86")
    text = generate([Request("one", tw.Gemm(16, 16, 64, a="s8"), tw.Schedule(), AMX)]).text
    compiler = find_compiler(AMX, emulated=False)
    program = compile_program([text, SYSTEM], AMX, compiler, tmp_path, "refused")
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "1 1 1 0 4\n"


def test_a_program_says_that_it_is_refused(tmp_path: Path) -> None:
    """On a processor without tiles the system refuses them, and the kernel is not called."""
    if machine() != "x86_64" or not is_native(resolve("avx512+vnni+bf16")):
        pytest.skip("needs all of AMX but the tiles")
    if is_native(AMX):
        pytest.skip("the processor has tiles")
    text = harness(tw.Gemm(16, 16, 64, a="s8"), target="amx")
    compiler = find_compiler(AMX, emulated=False)
    program = compile_program([text], AMX, compiler, tmp_path, "refused")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "fail: the system refuses the registers that gemm_" in done.stdout
    plain = harness(tw.Gemm(3, 4, 5), target="amx")
    assert "refused" not in plain


def test_the_header_refuses_nothing(library: Path) -> None:
    done = ran(library, "assert library.one_refused() == 0")
    assert done.returncode == 0, done


@pytest.mark.parametrize("types", [("s8", "s8"), ("bf16", "bf16")])
def test_steps_to_prefetch_are_refused_where_matrices_are_read(types: tuple[Any, Any]) -> None:
    spec = tw.Gemm(64, 64, 64, a=types[0], b=types[1])
    with pytest.raises(ScheduleError, match=r"(?s)prefetch counts steps.*prefetch=4.*tdpb.*leave"):
        program_of(spec, tw.Schedule(prefetch=4))
    text = generate([Request("k", tw.Gemm(8, 32, 64), tw.Schedule(prefetch=4), AMX)]).text
    assert "prefetch" in text


def test_emulated_kernels_have_sessions_too(cases: Cases) -> None:
    kernel: Any = tw.compile(tw.Gemm(20, 33, 34, a="bf16", d="bf16"), target="amx")
    with kernel.session():
        kernel.verify()
    cases.count("amx", kernel.emulated or "native", 3)


def test_a_block_of_rows_stays_in_the_second_cache() -> None:
    """B lies in blocks of a tile's columns; rows are cut where no near cache would hold A."""

    def planned(m: Any, k: int, d: Any = None) -> tuple[str, Plan]:
        spec = tw.Gemm(m, 512, k, a="bf16", b=tw.Packed("bf16"), d=d)
        plan = plan_for(spec, tw.Schedule(), AMX)
        assert isinstance(plan, Plan)
        return plan.nest.outer + plan.nest.inner, plan

    for rows, k in ((64, 512), (256, 1024), (512, 512)):
        assert planned(rows, k)[0] == "nmk", (rows, k)
    cut: tuple[Any, ...] = (
        (2048, 512, 1024),
        (1024, 1024, 512),
        (512, 4096, 128),
        (tw.dim("m"), 2048, 256),
    )
    for m, k, rows in cut:
        for d in (None, "bf16"):
            loops, plan = planned(m, k, d)
            assert (loops, plan.nest.blocks["m"]) == ("mnmk", rows), (m, k, d)
            text = " ".join(explain_plan(plan).split())
            assert "stays in the second cache" in text and "blocks of 32 columns" in text
    loops, plan = planned(512, 16384)
    assert (loops, plan.nest.blocks["k"]) == ("mknmk", 8192)
    assert planned(512, 16384, "bf16")[0] == "mnmk", "C holds no sums of a part of K"


def test_a_square_tile_waits_least_for_the_second_cache() -> None:
    """79 rows by 16 columns read 95 rows for 79 cycles of products, 32 by 32 read 64 for 64."""
    plan = plan_for(tw.Gemm(1024, 1024, 1024, a="bf16", b=tw.Packed("bf16")), tw.Schedule(), AMX)
    assert {(tile.mr, tile.nr) for tile in plan.tiling.tiles} == {(32, 32)}


# -- blocks that are copied, and converted, on the way ---------------------------------------------

ACROSS, ALONG, BOTH, IN_K, FEW = (
    tw.Schedule(loops="mnmk", block={"m": 32}, pack="a"),
    tw.Schedule(loops="nmnk", block={"n": 32}, pack="ab"),
    tw.Schedule(loops="mnmnk", block={"m": 32, "n": 48}, pack="ab"),
    tw.Schedule(loops="kmnmk", block={"k": 64, "m": 32}, pack="a"),
    tw.Schedule(loops="knmnk", block={"k": 64, "n": 32}, pack="ab"),
)
RELU = tw.relu(tw.acc + tw.Operand("bias", "f32", per="column"))


@pytest.mark.twice
@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        (tw.Gemm(70, 50, 83, a="bf16"), BOTH),
        (tw.Gemm(70, 50, 130, a="u8", b="s8", beta=1), ACROSS),
        (tw.Gemm(33, 70, 65, a="s8", a_zero=3, b_zero=-2), IN_K),
        (tw.Gemm(33, 70, 65, a="s8", b="u8", a_zero=3), ALONG),
        (tw.Gemm(40, 50, 70, a="bf16", d="bf16", epilogue=RELU), BOTH),
        (tw.Gemm(70, 40, 33, a=tw.Matrix("bf16", "F"), b="bf16"), ALONG),
        (tw.Gemm(70, 40, 33, a="bf16", b=tw.Matrix("bf16", "F")), BOTH),
        (tw.Gemm(M, N, K, a="bf16", ldc=tw.dim("ldc")), ACROSS),
        (tw.Gemm(M, N, K, a="u8", b="s8"), BOTH),
        (tw.Gemm(70, 48, 100, a="bf16", b=tw.Packed("bf16")), ACROSS),
        (tw.Gemm(49, 50, 150, a="s8", b="s8", a_zero=3, b_zero=-2, beta=1), FEW),
        (tw.Gemm(tw.dim("m", max=127), N, K, a="bf16", b="bf16", ldc=tw.dim("ldc")), FEW),
        (tw.Gemm(40, 50, 170, a="bf16", b="bf16", d="bf16", epilogue=RELU), FEW),
    ],
    ids=str,
)
def test_blocks_are_copied_and_converted(spec: tw.Gemm, schedule: tw.Schedule) -> None:
    assert tw.compile(spec, schedule, "amx").verify().cases == 3


def test_products_of_any_size_in_blocks() -> None:
    rng = np.random.default_rng(5)
    for m, n, k in ((130, 300, 70), (5, 400, 90), (1100, 270, 33), (33, 300, 1100)):
        a, b = rng.integers(0, 9, (m, k), np.uint8), rng.integers(-9, 9, (k, n), np.int8)
        found = tw.matmul(a, b, threads=1, target="amx")
        np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32))
