"""``tails="bounce"``: whole vectors everywhere, and a buffer for those of which a part exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.products.operands import operands
from support.products.space import LEVELS, Case, case
from support.products.trial import generated, lab, report
from support.specimens import VECTOR_TARGETS, code

from tilewright import targets
from tilewright.errors import PlanError, ScheduleError
from tilewright.generate import Request, explain_plan, generate, plan_for, program_for
from tilewright.interpret.run import interpret
from tilewright.ir.count import counted, formulas, is_counted
from tilewright.ir.nest import Program
from tilewright.ir.nodes import walk
from tilewright.ir.ops import (
    Load,
    MakeMask,
    Op,
    Parameter,
    StackBuffer,
    Store,
    TileProgram,
    Zero,
)
from tilewright.ir.values import Address, Register
from tilewright.ir.verify import verify_tile
from tilewright.isa.target import Target
from tilewright.plan.plan import Plan
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim
from tilewright.symbolic import ZERO, evaluate

every_target = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"bounce-{name}"))
        for name in VECTOR_TARGETS
    ],
)
BOUNCE = Schedule(tails="bounce")
SIZES = ((13, 21, 7), (3, 5, 9), (33, 18, 4), (1, 1, 3), (16, 16, 5))
#: Tiles and blocks that end within a vector, other operands packed, sums that pass through C.
SCHEDULES = (
    BOUNCE,
    Schedule(tile=(3, 3), tails="bounce"),
    Schedule(tile=(5, 2), vectorize="m", tails="bounce"),
    Schedule(loops="nmnk", block={"n": 5}, tails="bounce"),
    Schedule(loops="mnmk", block={"m": 6}, vectorize="m", tails="bounce"),
    Schedule(loops="knm", k_unroll=3, pack="ab", tails="bounce"),
    Schedule(vectorize="n", k_split=2, tails="bounce"),
    Schedule(vectorize="m", tails="bounce"),
)


def dealt(target: Target) -> Iterator[Case]:
    """All orders with every beta; sizes, types and schedules vary with them."""
    for index, (orders, beta) in enumerate(product(LEVELS["orders"], (0, 1, 0.5))):
        type_: Any = ("f32", "f64", "f32")[index // 2 % 3]
        a, b, c = (Matrix(type_, order) for order in orders)
        spec = Gemm(
            *SIZES[index % len(SIZES)],
            a=a,
            b=b,
            c=c,
            alpha=(1, 2, -1)[index % 3] if index % 4 else 1,
            beta=beta,
            lda=Dim("lda"),
            ldb=Dim("ldb"),
            ldc=Dim("ldc"),
        )
        values = (("lda", 40), ("ldb", 37), ("ldc", 41))
        schedule = SCHEDULES[index * 3 % len(SCHEDULES)]
        yield Case(f"bounce_{index}", target, spec, schedule, values, ())


def drawn(target: Target) -> Iterator[Case]:
    """Random cases of the space, where they can bounce."""
    for index in range(12):
        one = case(target, 5, index)
        vectorize = one.schedule.vectorize if one.schedule.vectorize != "k" else None
        chosen = {f.name: getattr(one.schedule, f.name) for f in fields(Schedule)}
        chosen |= {"tails": "bounce", "vectorize": vectorize, "block": dict(one.schedule.block)}
        bounced = replace(one, schedule=Schedule(**chosen))
        try:
            program_of(bounced)
        except ScheduleError:
            continue
        if work(bounced) < 4000:
            yield bounced


def work(one: Case) -> int:
    m, n, k = (one.size(slot, getattr(one.spec, slot)) for slot in "mnk")
    return m * n * k // one.target.of(one.spec.type)[0].lanes


def program_of(one: Case) -> Program:
    return made(one.spec, one.schedule, one.target.name)[1]


@cache
def made(spec: Gemm, schedule: Schedule, target: str) -> tuple[Plan, Program]:
    """Several tests take the same cases."""
    plan = plan_for(spec, schedule, targets.load(target))
    return plan, program_for(plan)


def interpreted(one: Case) -> None:
    """The right C, no element read that was not written, and as many operations as told."""
    plan, program = made(one.spec, one.schedule, one.target.name)
    sizes = dict(one.values)
    found = formulas(program) if is_counted(program) else counted(program, sizes).formulas
    for kind in ("integers", "special"):
        given = operands(one, kind)
        arguments = [
            [flat for flat, _ in argument] if isinstance(argument, list) else argument
            for argument in given.arguments
        ]
        counts = interpret(plan, program, arguments, [*sizes.values()], one.scalars)
        given.check(given.c)
        for field in fields(found):
            told = evaluate(getattr(found, field.name), sizes)
            assert told == getattr(counts, field.name), field.name


@every_target
@pytest.mark.parametrize("draw", [dealt, drawn])
def test_the_interpreter_agrees_with_numpy(name: str, draw: object) -> None:
    faults: list[str] = []
    assert callable(draw)
    assert report(interpreted, draw(targets.load(name)), faults) >= 3
    assert not faults, "\n".join(faults)


@every_target
def test_compiled_kernels_agree_with_numpy(name: str, tmp_path: Path) -> None:
    """Between guard pages, with NaN between the lines of A and B."""
    target, faults = targets.load(name), list[str]()
    good, text = generated(list(dealt(target)), faults)
    bench = lab([text], [one.name for one in good], target, tmp_path, flags=("-O0",))
    report(bench.check, good, faults)
    assert not faults, "\n".join(faults)


@every_target
def test_nothing_is_masked_or_cut(name: str) -> None:
    target = targets.load(name)
    for one in dealt(target):
        for op in (op for tile in program_of(one).tiles for op in walk(tile.body + tile.end)):
            assert not isinstance(op, MakeMask)
            assert not isinstance(op, (Load, Store)) or op.active is None
        text = generate([Request(one.name, one.spec, one.schedule, target)]).text
        assert not re.search(r"__mmask|mask[z_]*(load|store)", code(text)), one


def buffers(spec: Gemm, name: str) -> list[StackBuffer]:
    program = program_for(plan_for(spec, BOUNCE, targets.load(name)))
    ops = (op for tile in program.tiles for op in walk(tile.body + tile.end))
    return [op for op in ops if isinstance(op, StackBuffer)]


@pytest.mark.parametrize("name", ["avx512", "avx2", "neon"])
def test_only_what_is_cut_has_a_buffer(name: str) -> None:
    lanes = targets.load(name).of("f32")[0].lanes
    assert not buffers(Gemm(4, 3 * lanes, 8), name)
    (buffer,) = buffers(Gemm(2, 2 * lanes - 1, 8), name)
    assert buffer.elements == 2 * lanes


def test_scalars_have_no_tails() -> None:
    assert not buffers(Gemm(5, 7, 3), "scalar")


@every_target
def test_explain_tells_of_the_buffer(name: str) -> None:
    text = explain_plan(plan_for(Gemm(3, 21, 5), BOUNCE, targets.load(name)))
    assert "a buffer on the stack" in " ".join(text.split())
    assert "padded to whole vectors" in text


@pytest.mark.parametrize(
    ("spec", "schedule", "says"),
    [
        (Gemm(4, 5, 8), {"vectorize": "k"}, "vectors along m or n"),
        (Gemm(Dim("m"), Dim("n"), 8), {}, "known when it is compiled"),
        (Gemm(4, Dim("n"), 8), {"vectorize": "n"}, "known when it is compiled"),
        (Gemm(4, 5, 8, batch=Strided(2)), {"loops": "nmbk"}, "left of m and n"),
    ],
)
def test_what_cannot_bounce_is_refused(spec: Gemm, schedule: dict[str, str], says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        plan_for(spec, Schedule(tails="bounce", **schedule), targets.load("avx2"))  # type: ignore[arg-type]


def test_accesses_stay_within_the_buffer() -> None:
    target = targets.load("avx2")
    register = Register("x", target.of("f32")[0])

    def tile(*ops: Op) -> TileProgram:
        return TileProgram("tile", "f32", (Parameter("c", "out"),), ops, (), "")

    buffer, zero = StackBuffer("buffer", "f32", 8), Zero(register)
    verify_tile(tile(buffer, zero, Store(Address("buffer", ZERO), register)), target)
    with pytest.raises(PlanError, match="not inside of the 8 elements"):
        verify_tile(tile(buffer, zero, Store(Address("buffer", ZERO + 1), register)), target)
    with pytest.raises(PlanError, match="buffer is no pointer"):
        verify_tile(tile(zero, Store(Address("buffer", ZERO), register)), target)
    with pytest.raises(PlanError, match="defines buffer twice"):
        verify_tile(tile(buffer, buffer), target)
