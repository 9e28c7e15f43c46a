"""A kind of routine that tilewright does not have: this module alone adds it.

It copies a matrix, then multiplies the copy: two stages, with a buffer between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright.errors import PlanError
from tilewright.generate import explain_plan, plan_facts, plan_for, program_for
from tilewright.interpret.run import interpret
from tilewright.ir.nest import Argument, Bind, BlockLoop, Bound, Call, Name, Pack, Program
from tilewright.ir.ops import Load, Op, Parameter, Store, TileProgram
from tilewright.ir.stages import STACK_BYTES, Buffer, Stage, embedded, in_order
from tilewright.ir.values import Address, Register
from tilewright.isa.target import Target
from tilewright.plan.loops import Decided, Decision
from tilewright.plan.plan import Plan
from tilewright.plan.routine import Routine, register, routine_for, routine_of
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.arguments import Sample
from tilewright.runtime.reference.gemm import Expected
from tilewright.runtime.reference.verify import results_of, right_results
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import Parameters, Signature, parameters_of, signature
from tilewright.spec.sizes import Dim, Size, Spec, sizes_word
from tilewright.symbolic import ONE, evaluate, size_expr, slots, symbol

#: The buffer that holds the copy.
COPY = Name("copy")


@dataclass(frozen=True, slots=True)
class CopiedProduct(Spec):
    """``C = copy(A) B`` in f32, all in C order; m may be a size of the call."""

    routine: ClassVar[str] = __name__

    m: Size
    n: int
    k: int

    @property
    def product(self) -> tw.Gemm:
        """The product of the copy and B."""
        return tw.Gemm(self.m, self.n, self.k)

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        return self.product.runtime_sizes()

    def words(self) -> list[str]:
        return ["copied", sizes_word(("m", self.m), ("n", self.n), ("k", self.k))]


@parameters_of(CopiedProduct)
def _parameters(spec: CopiedProduct, formats: Mapping[str, Any]) -> Parameters:
    return Parameters(signature(spec.product).arrays, allocates=True)


@results_of(CopiedProduct)
def _right(
    spec: CopiedProduct, target: Target, parameters: Signature, held: Sample
) -> dict[str, Expected]:
    return right_results(spec.product, target, parameters, held)


@dataclass(frozen=True, slots=True, repr=False)
class CopiedPlan(Decided):
    """The plan of the product; a row is copied by the widest vectors, then by narrower ones."""

    spec: CopiedProduct
    target: Target
    product: Plan
    decisions: tuple[Decision, ...]


class Copied(Routine[CopiedProduct, CopiedPlan]):
    """Copy A, then multiply the copy."""

    sizes = ("m",)

    def plan(self, spec: CopiedProduct, schedule: Schedule, target: Target) -> CopiedPlan:
        product = routine_for(spec.product).plan(spec.product, schedule, target)
        copied = Decision("copy", "rows of A", "asked for")
        return CopiedPlan(spec, target, product, (copied, *product.decisions))

    def stages(self, plan: CopiedPlan) -> tuple[Stage, ...]:
        rows, k = size_expr("m", plan.spec.m), plan.spec.k
        at = symbol("row") * k
        call = Call("copy_row", (Argument(Name("a"), at), Argument(COPY, at)))
        copy = Program((BlockLoop("row", rows, (call,)),), (_copy_row(plan.target, k),))
        one = in_order(routine_of(plan.product).stages(plan.product))
        return (
            Stage(copy, (Buffer(COPY, "f32", rows * k),)),
            Stage(embedded(one, "product_", {"a": COPY})),
        )

    def head(self, plan: CopiedPlan) -> Iterator[str]:
        yield "copied    C = copy(A) B, f32"

    def estimate(self, plan: CopiedPlan, sizes: Mapping[str, int], *, cold: bool) -> Any:
        return routine_of(plan.product).estimate(plan.product, sizes, cold=cold)


def _copy_row(target: Target, length: int) -> TileProgram:
    ops: list[Op] = []
    at = 0
    for vector in target.of("f32"):
        while length - at >= vector.lanes:
            register = Register(f"x{at}", vector)
            ops.append(Load(register, Address("x", at * ONE)))
            ops.append(Store(Address("out", at * ONE), register))
            at += vector.lanes
    parameters = (Parameter("x", "in"), Parameter("out", "out"))
    return TileProgram("copy_row", "f32", parameters, tuple(ops), (), f"{length} elements")


register(CopiedProduct, CopiedPlan, Copied())

M = tw.dim("m")
SPECS = (CopiedProduct(7, 19, 13), CopiedProduct(M, 19, 13), CopiedProduct(200, 40, 50))


def operands(spec: CopiedProduct) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    m = 9 if isinstance(spec.m, Dim) else spec.m
    shapes = (m, spec.k), (spec.k, spec.n)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in shapes)
    return a, b


@pytest.mark.parametrize("target", ["scalar", "avx2", "sve256", "rvv256"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_it_is_verified_and_interpreted(spec: CopiedProduct, target: str, cases: Cases) -> None:
    plan = plan_for(spec, Schedule(), resolve(target))
    a, b = operands(spec)
    c = np.full((len(a), spec.n), np.nan, np.float32)
    interpret(plan, program_for(plan), [a, b, c], [9] if isinstance(spec.m, Dim) else [])
    np.testing.assert_array_equal(c, a @ b)
    cases.count(target, "interpreted")


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_it_is_compiled_and_run(spec: CopiedProduct, cases: Cases) -> None:
    kernel = tw.compile(spec, target="avx2")
    a, b = operands(spec)
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    assert kernel.name.startswith("copied_") and kernel.verify().cases >= 3
    cases.count("avx2", "native")


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_its_buffer_is_on_the_stack_if_it_is_small(spec: CopiedProduct) -> None:
    program = program_for(plan_for(spec, Schedule(), resolve("avx2")))
    (filled,) = program.nest
    assert isinstance(filled, Pack) and filled.buffer == COPY
    small = isinstance(spec.m, int) and 4 * spec.m * spec.k <= STACK_BYTES
    assert (filled.scratch is None) == small == (program.scratch == 0)


def test_it_is_explained() -> None:
    plan = plan_for(SPECS[1], Schedule(), resolve("avx2"))
    text = explain_plan(plan, {"m": 100})
    assert text.startswith("copied    C = copy(A) B, f32\n")
    for said in ("copy       rows of A", "fill copy, 13 * m elements", "product_tile0", "in cache"):
        assert said in text
    facts = plan_facts(plan, {"m": 100})
    assert facts["sizes"] == {"m": 100} and facts["estimate"]["in cache"]["cycles"] > 0


def test_stages_share_scratch_memory_and_buffers_follow_it(cases: Cases) -> None:
    """The packed B of the second stage is not where the copy is."""
    spec, schedule = CopiedProduct(M, 40, 512), Schedule(pack="b", vectorize="n")
    plan = plan_for(spec, schedule, resolve("avx2"))
    alone = program_for(plan.product).scratch
    assert evaluate(alone, {"m": 90}) >= 4 * 40 * 512
    assert evaluate(program_for(plan).scratch, {"m": 90}) == evaluate(alone, {}) + 4 * 90 * 512
    kernel = tw.compile(spec, schedule, target="avx2")
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((90, 512), (512, 40)))
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    cases.count("avx2", "native")


def test_a_stage_takes_its_sizes_and_operands_from_the_routine() -> None:
    """``m`` of the product is twice ``rows`` of the routine."""
    plan = plan_for(tw.Gemm(M, 3, 4), Schedule(), resolve("avx2"))
    made = embedded(program_for(plan), "one_", {"c": COPY}, {"m": 2 * symbol("rows")})
    (bound,) = made.nest
    assert isinstance(bound, Bind) and bound.bound == (Bound("m", 2 * symbol("rows")),)
    assert made.named == {"a", "b", "copy"}
    assert all(tile.name.startswith("one_") for tile in made.tiles)


def test_a_stage_does_not_decide_about_streaming_by_its_own_sizes() -> None:
    plan = plan_for(tw.Gemm(M, 4096, 4), Schedule(), resolve("avx512"))
    program = program_for(plan)
    assert slots(program.past) == {"m"} and embedded(program, "one_").tiles
    with pytest.raises(PlanError, match="cannot decide by a size of its own"):
        embedded(program, "one_", sizes={"m": symbol("rows")})
