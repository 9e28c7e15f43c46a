"""Lanes of one register: those of a tail filled up, and all of them folded into one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.specimens import VECTOR_TARGETS
from sympy import Integer

from tilewright import targets
from tilewright.elementwise.builder import Argument
from tilewright.elementwise.functions import lower_function
from tilewright.interpret.memory import Memory, flat, fresh_buffer
from tilewright.interpret.tile import Counts, Surroundings, Tile
from tilewright.ir.access import filled, legal, load
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import fold_lanes
from tilewright.ir.ops import MakeMask, Op, Parameter, Store, TileProgram
from tilewright.ir.values import Active, Address, MaskRegister
from tilewright.ir.verify import verify_tile
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.symbolic import ONE, ZERO

#: Partial results of a row, in registers of any length, and how many of them there are in memory.
PARTIAL, EXISTING = 32, 27
Both = Callable[[Any, Any], Any]
#: How two results become one, in a program and in numpy, and what fills the tail.
FOLDS: dict[str, tuple[str, Both, float]] = {
    "sum": ("add", np.add, 0.0),
    "maximum": ("maximum", np.maximum, -np.inf),
    "the lesser, the second of two zeros": ("min", lambda x, y: np.where(x < y, x, y), 1.0),
}


def vector_of(target: Target, element: str) -> Vector:
    return next(v for v in target.of(element) if v.lanes <= PARTIAL)


def folded(target: Target, element: str, fold: str, memory: str) -> TileProgram:
    """A program that folds ``EXISTING`` elements, as if ``PARTIAL`` there were."""
    vector = vector_of(target, element)
    fn, _, fill = FOLDS[fold]
    emitter = Emitter(target, vector.lanes, "", element)

    def both(x: Argument, y: Argument) -> Argument:
        b = emitter.builder
        return lower_function(b, fn, x, y) if fn == "maximum" else b(fn, x, y)

    def loaded() -> Iterator[Argument]:
        for at in range(0, PARTIAL, vector.lanes):
            existing = min(EXISTING - at, vector.lanes)
            active: Active = existing if existing < vector.lanes else None
            if existing <= 0:
                yield fill
                continue
            if active is not None and vector.mask is not None:
                active = MaskRegister("mask", vector, Integer(existing))
                emitter.add(MakeMask(active))
            found = load(emitter, Address("x", at * ONE), active, memory, f"x{at}")
            yield filled(emitter, found, active, fill)

    values = list(loaded())
    while len(values) > 1:
        half = len(values) // 2
        values = [both(x, y) for x, y in zip(values[:half], values[half:], strict=True)]
    total = fold_lanes(emitter, values[0], both, "total")
    spread = emitter.register(emitter.spread(total, "everywhere"))
    ops: tuple[Op, ...] = (*emitter.emit(), Store(Address("out", ZERO), spread))
    parameters = Parameter("x", "in", memory), Parameter("out", "out", element)
    return legal(TileProgram("fold", element, parameters, (), ops, ""), target)


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize(("element", "memory"), [("f32", "f32"), ("f32", "bf16"), ("f64", "f64")])
@pytest.mark.parametrize("name", VECTOR_TARGETS)
def test_lanes_are_folded_in_one_order_on_every_target(
    name: str, element: str, memory: str, fold: str
) -> None:
    target, (_, both, fill) = targets.load(name), FOLDS[fold]
    dtype = np.float64 if element == "f64" else np.float32
    values = np.random.default_rng(EXISTING).normal(size=EXISTING).astype(dtype)
    values = np.where(np.arange(EXISTING) % 5, values, np.copysign(dtype(0), values))
    if memory == "bf16":
        values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16) if memory == "bf16" else values
    program = folded(target, element, fold, memory)
    verify_tile(program, target)
    tile = Tile(Surroundings(Memory({}, {}), {}, {}, Counts()), program)
    out = fresh_buffer("out", element, 256)
    x = flat("x", memory, stored, EXISTING, role="in")
    for parameter, segment in zip(program.parameters, (x, out), strict=True):
        tile.bind(parameter, segment, 0, cast=False)
    with np.errstate(all="ignore"):
        tile.compiled()()
    total = np.concatenate([values, np.full(PARTIAL - EXISTING, fill, dtype)])
    while len(total) > 1:
        total = both(total[: len(total) // 2], total[len(total) // 2 :]).astype(dtype)
    lanes = vector_of(target, element).lanes
    assert out.values[:lanes].tobytes() == total.repeat(lanes).tobytes()
