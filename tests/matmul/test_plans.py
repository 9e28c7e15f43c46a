"""Each product of ``tw.matmul`` has a plan and a program, on every target: none is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from support.products.families import family

import tilewright as tw
from tilewright import targets
from tilewright.errors import TilewrightError
from tilewright.generate import plan_for, program_for
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.matmul.families import (
    Axes,
    Family,
    Options,
    class_of,
    schedule_of,
    spec_of,
    stack_class_of,
)

FEATURES = ("avx512+vnni+bf16", "avx512+fp16", "avx2+vnni", "neon+dotprod+i8mm+bf16")
NAMES = (*targets.NAMES, *FEATURES)


def has_program(made: Family) -> None:
    """Fail with what makes the family unless it has a verified program."""
    try:
        spec, schedule = spec_of(made), schedule_of(made)
        program_for(plan_for(spec, schedule, resolve(made.options.target)))
    except TilewrightError as refused:
        pytest.fail(f"{made}: {refused}")


@pytest.mark.parametrize("name", NAMES)
def test_random_families_have_programs(name: str, pytestconfig: pytest.Config) -> None:
    """``--families 500 --seed 1`` draws more of them, and others."""
    random = Random(f"{name} {pytestconfig.option.seed}")
    for _ in range(pytestconfig.option.families):
        has_program(family(random, name)[0])


def of(
    sizes: tuple[int, int, int], types: tuple[str, str, str], axes: Axes, target: str, **asked: Any
) -> Family:
    """The family of one product."""
    options = Options(target=target, **asked)
    return Family(types, axes, class_of(*sizes, types, options, axes), options)


@pytest.mark.parametrize("type_", ["f32", "f64"])
@pytest.mark.parametrize("name", ["avx2", "avx512", "neon", "scalar"])
def test_a_large_product_by_columns_has_an_epilogue(name: str, type_: str) -> None:
    """Its vectors lie along columns of D: the block of B is what a thread has room for."""
    made = of((330, 330, 330), (type_,) * 3, (1, 1, 0), name, epilogue=tw.relu(tw.acc))
    assert made.sizes.shape == "blocks"
    has_program(made)
    plan = plan_for(spec_of(made), schedule_of(made), resolve(name))
    assert plan.problem.vectorize == "m"


NARROWED: list[tuple[Any, ...]] = [
    ("avx512+vnni", (420, 420, 420), ("s8", "s8", "s8"), (1, 1, 0)),
    ("avx2+vnni", (420, 420, 420), ("u8", "s8", "u8"), (1, 1, 0)),
    ("amx", (420, 420, 420), ("s8", "s8", "s8"), (1, 1, 0)),
    ("scalar", (2048, 1000, 3000), ("f8_e4m3",) * 3, (1, 1, 1)),
    ("avx2", (243, 852, 462), ("f8_e4m3", "f8_e4m3", "u8"), (1, 1, 1)),
    ("sve256", (420, 420, 420), ("bf16", "bf16", "bf16"), (1, 1, 1)),
    ("rvv256", (428, 377, 2563), ("f32", "f16", "f32"), (0, 1, 1)),
]


@pytest.mark.parametrize(("name", "sizes", "types", "axes"), NARROWED)
def test_tiles_that_fit_while_they_sum_fit_while_they_finish(
    name: str, sizes: tuple[int, int, int], types: tuple[str, str, str], axes: Axes
) -> None:
    """A tile that only converts sums to D converts nothing of A and B."""
    asked: dict[str, Any] = {"epilogue": tw.relu(tw.acc), "scaled": True}
    has_program(of(sizes, types, axes, name, **asked))


@pytest.mark.parametrize("name", ["power10", "avx2", "neon", "scalar"])
def test_a_stack_of_many_products_is_shared_by_threads(name: str) -> None:
    """Also where a target's vectors have to pack an operand of each of them."""
    options, types = Options(target=name), ("f64", "f64", "f64")
    sizes = stack_class_of(40, 40, 40, 200, types, options, 1, tight=True)
    assert sizes is not None
    assert sizes.parallel
    has_program(Family(types, (1, 0, 1), sizes, options))
