"""Transpositions against numpy: interpreted, and as C between guard pages; plans and messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from support.cases import Cases, sampled
from support.specimens import VECTOR_TARGETS

import tilewright as tw
from tilewright import targets
from tilewright.errors import PlanError, TargetError, ToolchainError
from tilewright.generate import Request, generate, plan_for, program_for
from tilewright.interpret.run import interpret
from tilewright.ir.count import Formulas, formulas
from tilewright.ir.nest import Program
from tilewright.ir.ops import Load, Store
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Vector
from tilewright.plan.routines.transpose import TransposePlan
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.emulate.runner import Alias, build, runner_for
from tilewright.runtime.machine.host import is_native, means
from tilewright.spec.dtypes import DTYPES as NP_DTYPES
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim
from tilewright.spec.transpose import Transpose
from tilewright.symbolic import evaluate

DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("f4"), "f64": np.dtype("f8")}
SIZES = (
    (0, 4), (4, 0), (1, 1), (1, 19), (19, 1), (2, 3), (4, 4), (5, 5), (7, 9), (8, 8), (3, 17),
    (16, 16), (15, 31), (33, 20), (37, 37), (70, 41),
)  # fmt: skip
PADDING = -77.0
TARGETS = [targets.load(name) for name in (*VECTOR_TARGETS, "sme")]
EACH = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@dataclass(frozen=True)
class One:
    """A transposition and the sizes of one call of it."""

    name: str
    spec: Transpose
    rows: int
    cols: int
    ldx: int
    ldout: int

    @property
    def known(self) -> dict[str, int]:
        return {"rows": self.rows, "cols": self.cols, "ldx": self.ldx, "ldout": self.ldout}

    @property
    def sizes(self) -> list[int]:
        return [self.known[slot] for slot, _ in self.spec.runtime_sizes()]

    @property
    def is_square(self) -> bool:
        return self.spec.rows == self.spec.cols and self.rows > 0

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """The memory of x, with its padding, and that of out, not one element longer."""
        dtype = DTYPES[self.spec.type]
        x = np.full(extent(self.rows, self.cols, self.ldx), np.nan, dtype)
        view(x, self.rows, self.cols, self.ldx)[:] = self.numbers()
        return x, np.full(extent(self.cols, self.rows, self.ldout), PADDING, dtype)

    def numbers(self) -> np.ndarray:
        """What is transposed, with a NaN and an infinity in it."""
        values = np.arange(self.rows * self.cols, dtype=float).reshape(self.rows, self.cols)
        values.flat[1:2], values.flat[3:4] = np.nan, -np.inf
        return values

    def check(self, memory: np.ndarray) -> None:
        """What was written is the transpose, and nothing else was."""
        expected = np.full(extent(self.cols, self.rows, self.ldout), PADDING)
        view(expected, self.cols, self.rows, self.ldout)[:] = self.numbers().T
        np.testing.assert_array_equal(memory, expected, str(self))

    def check_in_place(self, memory: np.ndarray) -> None:
        expected = self.operands()[0]
        view(expected, self.rows, self.cols, self.ldx)[:] = self.numbers().T
        np.testing.assert_array_equal(memory, expected, str(self))


def extent(lines: int, line: int, leading: int) -> int:
    return (lines - 1) * leading + line if lines and line else 0


def view(memory: np.ndarray, lines: int, line: int, leading: int) -> np.ndarray:
    item = memory.itemsize
    return as_strided(memory, (lines, line), (leading * item, item))


def ones(element: str) -> list[One]:
    """Every size fixed and tight, fixed with padding, and known only at the call."""
    found = []
    general = Transpose(tw.dim("r"), tw.dim("c"), element, ldx=tw.dim("lx"), ldout=tw.dim("lo"))
    n = tw.dim("n")
    square = Transpose(n, n, element, ldx=tw.dim("lx"), ldout=tw.dim("lo"))
    for rows, cols in SIZES:
        tight, lx, lo = Transpose(rows, cols, element), cols + 3, rows + 2
        found.append(One(f"tight_{rows}x{cols}", tight, rows, cols, cols, rows))
        found.append(One("general", general, rows, cols, lx, lo))
        lo = lx if rows == cols else lo
        padded = Transpose(rows, cols, element, ldx=lx, ldout=lo)
        found.append(One(f"padded_{rows}x{cols}", padded, rows, cols, lx, lo))
        if rows == cols:
            found.append(One("square", square, rows, cols, lx, lx))
    sixteens = Transpose(tw.dim("r", 16), tw.dim("c", 16), element)
    found += [One("sixteens", sixteens, r, c, c, r) for r, c in ((16, 16), (48, 64))]
    return found


# --- interpreted -------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def lowered(target: Target, spec: Transpose) -> tuple[TransposePlan, Program, Formulas]:
    plan = plan_for(spec, Schedule(), target)
    program = program_for(plan)
    return plan, program, formulas(program)


def interpret_one(target: Target, one: One, *, in_place: bool) -> None:
    plan, program, formula = lowered(target, one.spec)
    x, out = one.operands()
    counts = interpret(plan, program, [(x, 0), (x if in_place else out, 0)], one.sizes)
    if in_place:
        one.check_in_place(x)
        return
    one.check(out)
    for name in ("loads", "stores", "bytes_read", "bytes_written"):
        expected = evaluate(getattr(formula, name), one.known)
        assert getattr(counts, name) == expected, f"{one}: {name}"


@EACH
@pytest.mark.parametrize("element", DTYPES)
def test_the_interpreter_agrees_with_numpy(target: Target, element: str, cases: Cases) -> None:
    for one in ones(element):
        interpret_one(target, one, in_place=False)
        if one.is_square:
            interpret_one(target, one, in_place=True)
        cases.count(target.name, "interpreted")


@EACH
@pytest.mark.parametrize("element", ["s8", "bf16"])
def test_elements_of_one_and_two_bytes(target: Target, element: str, cases: Cases) -> None:
    n, lx, lo = tw.dim("n"), tw.dim("lx"), tw.dim("lo")
    for rows, cols in ((0, 3), (1, 1), (7, 9), (37, 37), (70, 41)):
        some = Transpose(rows, cols, element), Transpose(tw.dim("r"), n, element, ldx=lx, ldout=lo)
        square = Transpose(n, n, element, ldx=lx, ldout=lx)
        x = np.random.default_rng(0).integers(0, 100, (rows, cols)).astype(NP_DTYPES[element])
        for spec in some:
            plan, program, _ = lowered(target, spec)
            out = np.zeros((cols, rows), x.dtype)
            sizes = {"rows": rows, "cols": cols, "ldx": max(cols, 1), "ldout": max(rows, 1)}
            interpret(plan, program, [x, out], [sizes[slot] for slot, _ in spec.runtime_sizes()])
            np.testing.assert_array_equal(out, x.T, str(spec))
        if rows == cols:
            plan, program, _ = lowered(target, square)
            expected = x.T.copy()
            interpret(plan, program, [x, x], [rows, rows, rows, rows])
            np.testing.assert_array_equal(x, expected)
        cases.count(target.name, "interpreted")


@pytest.mark.twice
@pytest.mark.parametrize("target", ["host", "avx2", "scalar", "neon"])
def test_bytes_as_c(target: str, cases: Cases) -> None:
    n = tw.dim("n")
    kernel = tw.compile(Transpose(n, n, "u8"), target=target)
    assert kernel.verify(cases=2).max_error == 0
    x = np.random.default_rng(0).integers(0, 255, (77, 77), np.uint8)
    expected = x.T.copy()
    assert kernel(x, out=x) is x
    np.testing.assert_array_equal(x, expected)
    cases.count(target, "compiled")


def invented(lanes: tuple[int, ...], registers: int) -> Target:
    """A target that no machine has."""
    scalar = targets.load("scalar").of("f32")[0]
    muladd = scalar.muladd[0]
    wide = tuple(
        Vector(
            name=f"v{n}", element="f32", lanes=n, ctype="v", zero="", load="", store="",
            broadcast="", splat="", sum_lanes="",
            muladd=(MulAdd(form="broadcast", mnemonic="", spelling="", cols=n),),
            transpose={1 << i: ("", "") for i in range(n.bit_length() - 1)},
            partial_load={1: ""}, partial_store={1: ""},
        )
        for n in lanes
    )  # fmt: skip
    assert muladd.form == "scalar"
    return replace(
        targets.load("scalar"),
        name="invented",
        registers=registers,
        vectors=(*wide, scalar),
        core=Core(fma_latency=9, fma_units=1, loads=1, stores=1, issue=2),
    )


@pytest.mark.parametrize("lanes", [(3,), (8, 4, 2), (8,)])
def test_an_invented_target_gets_a_legal_plan(lanes: tuple[int, ...]) -> None:
    target = invented(lanes, 12)
    for one in ones("f32"):
        interpret_one(target, one, in_place=False)
        if one.is_square:
            interpret_one(target, one, in_place=True)


# --- as C --------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("emulated", [False, True], ids=["", "emulated"])
def test_c_agrees_with_numpy_between_guard_pages(
    target: Target, element: str, emulated: bool, tmp_path: Path, cases: Cases
) -> None:
    if emulated and (not is_native(target) or target.emulation.qemu or not target.emulation.header):
        pytest.skip("run already, or by nothing else")
    every = sampled(target.name, ones(element), 2)
    if emulated:  # in plain C, which compiles slowly
        every = [one for one in every if not one.sizes and one.rows * one.cols <= 256]
    specs = {one.name: one.spec for one in every}
    text = generate([Request(n, s, Schedule(), target) for n, s in specs.items()]).text
    try:
        how = means(target, emulated=emulated or not is_native(target))
        compiler = find_compiler(target, emulated=how != "native")
    except (TargetError, ToolchainError) as error:
        pytest.skip(str(error))
    program = build([text], list(specs), target, compiler, tmp_path, "transpositions", ("-O0",))
    runner = runner_for(program, target, emulated=how != "native")
    for one in every:
        for flush in ("rear", "front"):
            x, out = one.operands()
            (data,) = runner.call(one.name, [x, out], one.sizes, (), [False, True], flush=flush)
            one.check(np.frombuffer(data, x.dtype))
            if one.is_square:
                (data, *_) = runner.call(
                    one.name, [x, Alias(0)], one.sizes, (), [True, True], flush=flush
                )
                one.check_in_place(np.frombuffer(data, x.dtype))
        cases.count(target.name, how)


def test_a_kernel_is_called_on_arrays() -> None:
    kernel = tw.compile(Transpose(8, 8))
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    expected = x.T.copy()
    np.testing.assert_array_equal(kernel(x), expected)
    out = np.empty_like(x)
    assert kernel(x, out) is out
    np.testing.assert_array_equal(out, expected)
    assert kernel(x, out=x) is x
    np.testing.assert_array_equal(x, expected)


def test_views_of_larger_arrays_are_transposed_in_place() -> None:
    n = tw.dim("n")
    kernel = tw.compile(Transpose(n, n, "f64", ldx=tw.dim("ldx"), ldout=tw.dim("ldout")))
    whole = np.random.default_rng(0).random((50, 60))
    expected = whole.copy()
    expected[3:40, 5:42] = expected[3:40, 5:42].T
    part = whole[3:40, 5:42]
    kernel(part, part)
    np.testing.assert_array_equal(whole, expected)


# --- the plan ----------------------------------------------------------------------------------


@EACH
def test_sizes_that_are_multiples_leave_no_tail_code(target: Target) -> None:
    multiple = Transpose(tw.dim("r", 64), tw.dim("c", 64))
    text = generate([Request("t", multiple, Schedule(), target)]).text
    assert "%" not in text
    program = program_for(plan_for(multiple, Schedule(), target))
    accesses = [op for tile in program.tiles for op in tile.end if isinstance(op, (Load, Store))]
    assert all(op.active is None for op in accesses)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
def test_whole_blocks_are_loaded_stored_and_turned_in_registers(name: str) -> None:
    target = targets.load(name)
    plan = plan_for(Transpose(64, 64), Schedule(), target)
    lanes = target.of("f32")[0].lanes
    for tile in program_for(plan).tiles:
        accesses = [op for op in tile.end if isinstance(op, (Load, Store))]
        assert all(op.active is None for op in accesses)
        vectors = {op.dst.vector.lanes for op in accesses if isinstance(op, Load)}
        assert vectors == {lanes}


def test_a_schedule_may_set_the_tile_and_nothing_else() -> None:
    target = targets.load("avx2")
    for tile in ((8, 8), (5, 7), (40, 16), (1, 1)):
        plan = plan_for(Transpose(40, 40), Schedule(tile=tile), target)
        assert plan.tile == tile
        x, out = np.random.default_rng(0).random((2, 40, 40), np.float32)
        interpret(plan, program_for(plan), [x, out])
        np.testing.assert_array_equal(out, x.T)
    for schedule, name in ((Schedule(k_split=2), "k_split"), (Schedule(loops="mn"), "loops")):
        with pytest.raises(tw.ScheduleError, match=f"a transposition has no {name} to schedule"):
            plan_for(Transpose(40, 40), schedule, target)
    with pytest.raises(tw.ScheduleError, match="tile 900x900 is too large"):
        plan_for(Transpose(900, 900), Schedule(tile=(900, 900)), target)


def test_a_rectangle_is_not_transposed_in_place() -> None:
    target = targets.load("avx2")
    assert plan_for(Transpose(8, 9), Schedule(), target).square is None
    assert plan_for(Transpose(8, 8, ldx=9, ldout=10), Schedule(), target).square is None
    assert plan_for(Transpose(8, 8, ldx=Dim("l")), Schedule(), target).square is not None
    kernel, x = tw.compile(Transpose(8, 9)), np.zeros((8, 9), np.float32)
    with pytest.raises(tw.ArgumentError, match="out shares elements with x"):
        kernel(x, x.reshape(9, 8))


def test_the_interpreter_would_see_a_store_outside() -> None:
    one = One("t", Transpose(8, 8), 8, 8, 8, 8)
    plan = plan_for(one.spec, Schedule(), targets.load("avx2"))
    program = program_for(plan_for(Transpose(8, 9), Schedule(), targets.load("avx2")))
    x, out = one.operands()
    with pytest.raises(PlanError, match="outside"):
        interpret(plan, program, [(x, 0), (out, 0)])
