"""Sums of nothing, trees without sums, every tail: compiled without a warning, and right."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import FAMILIES, use

import tilewright as tw
from tilewright.errors import ScheduleError, TargetError
from tilewright.generate import Request, generate, plan_for, program_for
from tilewright.ir.nodes import walk
from tilewright.ir.ops import LoadMatrix, MultiplyAdd, MultiplyMatrices
from tilewright.isa.target import Target
from tilewright.runtime.build.toolchain import compiler_flags
from tilewright.runtime.driver import build_many
from tilewright.runtime.fuzz.cases import draw
from tilewright.runtime.machine import host
from tilewright.spec.gemm import Gemm

TARGETS = ("scalar", "avx2", "avx512+vnni+bf16", "amx", "neon+dotprod+i8mm+bf16")
TYPES: Any = (
    ("f32", "f32"), ("f64", "f64"), ("f16", "f16"), ("bf16", "bf16"), ("f8_e4m3", "f8_e5m2"),
    ("s8", "s8"), ("u8", "s8"), ("s16", "u16"), ("f32", "bf16"), ("bf16", "f32"), ("f16", "f32"),
)  # fmt: skip
EACH, ROW = tw.Operand("s", per="column"), tw.Operand("r", per="row")
Made = tuple[Gemm, tw.Schedule]
every_target = pytest.mark.parametrize("target", TARGETS)


def empty() -> Iterator[Made]:
    """Each type with nothing along one dimension, in turn with packed B and kinds of batches."""
    sizes = {"m": 7, "n": 20, "k": 19}
    for i, (a, b) in enumerate(TYPES):
        for j, slot in enumerate(("m", "n", "k", "count")):
            count = 0 if slot == "count" else 3
            batches = (None, tw.Strided(count), tw.Addresses(count), tw.Offsets(count))
            batch = batches[1 + (i + j) % 3] if slot == "count" else batches[(i + j) % 4]
            given: dict[str, Any] = {**sizes, "a": a, "b": b, "batch": batch}
            given |= {} if slot == "count" else {slot: 0}
            if i % 2 and not isinstance(batch, tw.Offsets):
                given["b"] = tw.Packed(b, 8 if j % 2 else None)
            if a != "f64" and j % 2:
                given |= {"d": "bf16", "epilogue": tw.relu(tw.acc) + EACH, "beta": 1}
            if a == "u8":
                given |= {"a_zero": 3, "b_zero": "column"}
            yield Gemm(**given), tw.Schedule()


def without_sums() -> Iterator[Made]:
    """Epilogues and outputs that do not read ``tw.acc``, in D of each kind of type."""
    trees = (tw.relu(EACH), EACH + ROW, tw.where(1, EACH, tw.acc), tw.dst, ROW * 0 + 1.5)
    for i, tree in enumerate(trees):
        for d in ("f32", "bf16", "f16", "s8"):
            yield Gemm(13, 21, 5, d=d, epilogue=tree), tw.Schedule()
        yield Gemm(13, 21, 5, a="bf16", d="bf16", epilogue=tree, beta=1, order="F"), tw.Schedule()
        outputs = {"o": tw.row_max(EACH * ROW), "p": tw.row_sum(tw.acc if i % 2 else EACH)}
        blocked = tw.Schedule(loops="knmk", block={"k": 4})
        yield Gemm(6, 40, 9, a="u8", b="s8", epilogue=tree, outputs=outputs), blocked
        yield Gemm(64, 40, 9, epilogue=tree), tw.Schedule(tails="narrow")


def tails(kind: str) -> Iterator[Made]:
    """Every kind of end that a tile can have, with these tails."""
    schedule = tw.Schedule(tails=kind)
    bias = tw.relu(tw.acc + EACH)
    for m, n in ((13, 21), (16, 32)):
        for given in (
            {}, {"beta": 0.5, "alpha": 2}, {"order": "F", "beta": 1},
            {"epilogue": bias}, {"epilogue": bias, "d": "f16"}, {"epilogue": bias, "d": "s8"},
            {"epilogue": tw.acc + tw.dst}, {"epilogue": EACH + ROW},
            {"outputs": {"o": tw.row_absmax(tw.acc)}}, {"b2": "f32", "epilogue": tw.acc * tw.acc2},
            {"k": 0}, {"a": "bf16", "epilogue": bias}, {"a": "u8", "b": "s8", "a_zero": 3},
        ):  # fmt: skip
            yield Gemm(**{"m": m, "n": n, "k": 18, **given}), schedule  # type: ignore[arg-type]


def random(seed: int, first: int, count: int) -> Iterator[Made]:
    """Kernels of the sweep's space."""
    for index in range(first, first + count):
        one = draw(seed, index)
        yield one.spec(), one.schedule


def requests(made: Sequence[Made], target: Target) -> list[Request]:
    return [Request(f"kernel_{i}", *one, target) for i, one in enumerate(made)]


def legal(made: Iterator[Made], target: Target) -> list[Made]:
    """Without what a schedule refuses, each for a reason of its own."""
    found, reasons = list[Made](), list[str]()
    for spec, schedule in made:
        try:
            program_for(plan_for(spec, schedule, target))
        except ScheduleError as error:
            reasons.append(str(error))
        else:
            found.append((spec, schedule))
    assert all("tails" in reason or "packed" in reason for reason in reasons), reasons
    return found


def check_warnings(
    made: Sequence[Made], name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AssertionError with what ``family`` says of the C, under all its warnings."""
    target = host.resolve(name)
    compiler = use(family, target, monkeypatch)
    flags = [flag for flag in compiler_flags(target, compiler) if flag != "-O2"]
    assert {"-Wall", "-Wextra", "-Werror"} <= {*flags}
    done = subprocess.run(
        [*compiler.command, *flags, "-O0", "-fsyntax-only", "-x", "c", "-"],
        input=generate(requests(made, target)).text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@every_target
@pytest.mark.parametrize("family", FAMILIES)
def test_no_compiler_has_a_warning(
    target: str, family: str, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Random kernels: other ones for each target, and others again with ``--seed``."""
    first = 5 * TARGETS.index(target)
    made = list(random(pytestconfig.option.seed, 10_000 + first, 5))
    check_warnings(made, target, family, monkeypatch)


@every_target
@pytest.mark.parametrize("kind", ["empty", "without sums"])
def test_what_sums_nothing_is_compiled(
    target: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = empty() if kind == "empty" else without_sums()
    made = list(found)[TARGETS.index(target) % 3 :: 3]
    check_warnings(made, target, "gcc", monkeypatch)


def verify(made: Sequence[Made], target: str, cases: Cases) -> None:
    """By what runs ``target`` here, or the test is skipped."""
    try:
        means = host.means(host.resolve(target))
    except TargetError as error:
        pytest.skip(str(error))
    for kernel in build_many([(*one, target) for one in made], ("-O0",)):
        kernel.verify(cases=2)
        cases.count(target, means, 2)


@pytest.mark.twice
@pytest.mark.parametrize("target", ["scalar", "avx512"])
def test_what_sums_nothing_is_right(target: str, cases: Cases) -> None:
    verify([*list(empty())[::5], *list(without_sums())[::5]], target, cases)


@every_target
def test_sums_that_nothing_reads_are_not_made(target: str) -> None:
    plan = plan_for(
        Gemm(13, 21, 5, a="bf16", epilogue=tw.relu(EACH)), tw.Schedule(), host.resolve(target)
    )
    program = program_for(plan)
    ops = [op for tile in program.tiles for op in walk((*tile.body, *tile.end))]
    assert ops
    assert not any(isinstance(op, (MultiplyAdd, MultiplyMatrices, LoadMatrix)) for op in ops)
    assert not plan.staging.sources


@pytest.mark.twice
@pytest.mark.parametrize(
    ("kind", "target"),
    [("bounce", "avx512"), ("overlap", "avx512"), ("bounce", "avx2"), ("narrow", "amx")],
)
def test_tails_are_right_with_every_end(kind: str, target: str, cases: Cases) -> None:
    made = legal(tails(kind), host.resolve(target))
    assert len(made) >= 4
    verify(made[:: 3 if target == "amx" else 2], target, cases)


@pytest.mark.parametrize("a", ["bf16", "u8"])
@pytest.mark.parametrize("tile", [None, (16, 32), (32, 20)])
def test_a_matrix_unit_is_told_what_a_narrow_tail_has(a: Any, tile: Any) -> None:
    spec = Gemm(37, 20, 34, a=a, b="s8" if a == "u8" else None)
    plan = plan_for(spec, tw.Schedule(tile=tile, tails="narrow"), host.resolve("amx"))
    ops = [op for one in program_for(plan).tiles for op in walk((*one.body, *one.end))]
    assert any(isinstance(op, MultiplyMatrices) for op in ops)


def test_a_stack_that_reads_only_its_old_values_has_no_unused_parameter() -> None:
    spec = tw.Gemm(3, 4, tw.dim("k"), d="f32", batch=tw.Strided(2, c=None), epilogue=tw.dst)
    old = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    a, b = np.ones((2, 3, 5), np.float32), np.ones((2, 5, 4), np.float32)
    got = tw.compile(spec, target="scalar")(a, b, d=old.copy())
    np.testing.assert_array_equal(got, old)
