"""Any schedule, for any product, has a program; or else it is refused in words, by a named error.

The random products of ``test_sweep.py`` are computed, by schedules that mean something to them.
These are planned and verified, no more, and so may ask for what contradicts itself.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import pytest

import tilewright as tw
from tilewright import targets
from tilewright.errors import PlanError, ScheduleError, SpecError, TargetError
from tilewright.generate import plan_for, program_for
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.sizes import Size
from tilewright.spec.types import TypeName

#: How many products each test draws; a different one draws others.
EACH = 40
NAMES = (*targets.NAMES, "avx512+vnni+bf16", "avx2+vnni", "neon+dotprod+i8mm+bf16")
TYPES: tuple[tuple[TypeName, TypeName], ...] = (
    ("f32", "f32"), ("f64", "f64"), ("bf16", "bf16"), ("f16", "f16"), ("u8", "s8"), ("s8", "s8"),
    ("s8", "u8"), ("f32", "bf16"), ("bf16", "f32"), ("f16", "f32"),
)  # fmt: skip
ORDERS: tuple[Literal["C", "F"], ...] = ("C", "F")
SIZES = (1, 1, 2, 3, 5, 8, 13, 16, 17, 31, 48, 64, 70, 129, 333, 1000)
LOOPS = ("nmk", "mnk", "knmk", "NMk", "nkMmnk", "nmnmk", "mnmnk", "nkmmnk", "mknnmk")
REFUSALS = (ScheduleError, SpecError, TargetError)


def size(random: Random, name: str) -> Size:
    """A number, or one that only the call knows, with or without bounds."""
    if random.random() < 0.7:
        return random.choice(SIZES)
    return tw.dim(name, multiple_of=random.choice((1, 1, 8)), max=random.choice((None, 40, 1000)))


def product(random: Random) -> Gemm:
    """A product of any types, orders, batch and sizes."""
    a, b = random.choice(TYPES)
    said: dict[str, Any] = {
        "a": tw.Matrix(a, random.choice(ORDERS)),
        "b": tw.Matrix(b, random.choice(ORDERS)),
        "order": random.choice(ORDERS),
        "beta": random.choice((0, 0, 1, 0.5, "scalar")),
        "batch": random.choice((None, None, None, tw.Strided(3), tw.Addresses(tw.dim("count")))),
    }
    if said["batch"] is None and random.random() < 0.2:
        said["ldc"] = tw.dim("ldc")
    if a in ("bf16", "f16") and random.random() < 0.3:
        said["c"] = a
    return Gemm(*(size(random, name) for name in "mnk"), **said)


def schedule(random: Random) -> tw.Schedule:
    """Some of what may be asked for, whether it goes together or not."""
    choices: dict[str, tuple[Any, ...]] = {
        "threads": (2,),
        "loops": LOOPS,
        "pack": ("a", "b", "ab"),
        "vectorize": ("n", "m", "k"),
        "tile": ((4, 8), (6, 16), (4, 4), (14, 32), (1, 5), (5, 24)),
        "tails": ("overlap", "bounce", "mask", "narrow"),
    }
    return tw.Schedule(
        **{name: random.choice(of) for name, of in choices.items() if random.random() < 0.15}
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_has_no_program_is_refused_in_words(seed: int) -> None:
    random, made = Random(seed), 0
    for number in range(EACH):
        target = resolve(NAMES[(seed * EACH + number) % len(NAMES)])
        try:
            spec, asked = product(random), schedule(random)
            program = program_for(plan_for(spec, asked, target))
        except REFUSALS:
            continue
        except PlanError as wrong:
            pytest.fail(f"{spec!r}, {asked!r} on {target.name}: {wrong}")
        made += 1
        assert program.tiles
    assert made > EACH // 4
