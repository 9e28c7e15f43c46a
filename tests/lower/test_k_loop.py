"""The one K loop: which steps run, and where each reads, followed by a step made for this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from unittest import mock

import pytest
from sympy import Expr, Integer

from tilewright.generate import plan_for, program_for
from tilewright.ir.ops import (
    Advance,
    Load,
    Loop,
    Op,
    Point,
    PointBatch,
    Prefetch,
    TileProgram,
)
from tilewright.lower.nest import calls
from tilewright.lower.tile.assemble import lower_tile
from tilewright.lower.tile.k_loop import KStep, PointerPlan, k_loop
from tilewright.lower.tile.tile import Tile
from tilewright.runtime.machine.host import resolve
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.symbolic import ZERO, evaluate, symbol, value

#: What run-time sizes are when a loop is followed.
LDB, COUNT = 23, 3
STRIDES = {16: Gemm(4, 16, 64), LDB: Gemm(4, 16, 64, ldb=dim("ldb"))}


@dataclass(frozen=True, slots=True)
class Marked(KStep):
    """A step that reads one element of B; so does its tail, of which there is always one."""

    steps: Expr = ZERO
    trip: int = 1
    ahead: bool = False

    @property
    def count(self) -> Expr:
        return self.steps

    @property
    def unroll(self) -> int:
        return self.trip

    @property
    def straight(self) -> bool:
        known = value(self.steps)
        return known is not None and known < 2 * self.trip

    @property
    def prefetched(self) -> PointerPlan | None:
        return self.along[0] if self.ahead else None

    def emit(self, index: int, run: int) -> Iterator[Op]:
        assert 0 <= index < run
        yield self._read(f"step_{self.accumulator_set(index)}", index)

    def tail(self, index: int) -> Iterator[Op]:
        yield self._read("tail", index)

    def _read(self, name: str, index: int) -> Op:
        return Load(self.tile.register(name), self.along[0].address(0, index))


def marked(tile: Tile, steps: Expr, trip: int, *, ahead: bool = False) -> Marked:
    return replace(Marked.of(tile), steps=steps, trip=trip, ahead=ahead)


def tile_of(spec: Gemm, schedule: Schedule | None = None) -> Tile:
    """The first register tile of a kernel."""
    seen: list[Tile] = []

    def note(tile: Tile, name: str) -> TileProgram:
        seen.append(tile)
        return lower_tile(tile, name)

    with mock.patch.object(calls, "lower_tile", note):
        program_for(plan_for(spec, schedule or Schedule(), resolve("avx2")))
    return seen[0]


def followed(
    ops: Iterable[Op], sizes: dict[str, int], at: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """What is read, and how many elements behind the first one of B."""
    for op in ops:
        match op:
            case Loop():
                for trip in range(evaluate(op.trips, sizes)):
                    yield from followed(op.body, {**sizes, op.counter: trip}, at)
            case Point():
                at[op.pointer] = evaluate(op.offset, sizes)
            case PointBatch():
                offset = op.offset + op.stride * sizes[op.index]
                at[op.pointer] = evaluate(offset, sizes)
            case Advance():
                at[op.pointer] += evaluate(op.step, sizes)
            case Load() | Prefetch():
                name = op.dst.name if isinstance(op, Load) else "ahead"
                yield name, at[op.address.pointer] + evaluate(op.address.offset, sizes)


def run(step: Marked, steps: int) -> list[tuple[str, int]]:
    sizes = {"steps": steps, "ldb": LDB, "count": COUNT}
    return list(followed(k_loop(step), sizes, {}))


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("known", [True, False], ids=["known", "of the call"])
@pytest.mark.parametrize("unroll", [1, 2, 3, 4])
def test_each_step_runs_once_where_its_elements_lie_and_the_tail_last(
    stride: int, known: bool, unroll: int
) -> None:
    tile = tile_of(STRIDES[stride])
    for steps in range(14):
        count = Integer(steps) if known else symbol("steps")
        found = run(marked(tile, count, unroll), steps)
        assert [at for _, at in found] == [stride * k for k in range(steps + 1)]
        assert [name for name, _ in found] == ["step_0"] * steps + ["tail"]


@pytest.mark.parametrize("steps", range(9))
def test_fewer_steps_than_two_trips_are_straight_code(steps: int) -> None:
    ops = list(k_loop(marked(tile_of(STRIDES[16]), Integer(steps), 3)))
    loops = [evaluate(op.trips, {}) for op in ops if isinstance(op, Loop)]
    assert loops == ([] if steps < 6 else [2])


@pytest.mark.parametrize("known", [True, False], ids=["known", "of the call"])
def test_every_trip_sums_into_all_accumulator_sets_in_turn(known: bool) -> None:
    tile = tile_of(STRIDES[16], Schedule(k_split=2))
    count = Integer(11) if known else symbol("steps")
    found = run(marked(tile, count, 4), 11)
    sets = [name.removeprefix("step_") for name, _ in found[:8]]
    assert sets == ["0", "1"] * 4


def test_the_batch_loop_stands_around_pointers_and_k_loop() -> None:
    spec = Gemm(4, 16, 64, batch=Strided(dim("count")))
    found = run(marked(tile_of(spec), symbol("steps"), 2), 5)
    matrix = [16 * k for k in range(6)]
    assert [at for _, at in found] == [64 * 16 * i + at for i in range(COUNT) for at in matrix]


@pytest.mark.parametrize("stride", STRIDES)
def test_a_trip_reads_as_many_steps_ahead_as_the_schedule_says(stride: int) -> None:
    tile = tile_of(STRIDES[stride], Schedule(prefetch=5))
    found = run(marked(tile, Integer(11), 4, ahead=True), 11)
    assert [at for name, at in found if name == "ahead"] == [stride * (k + 5) for k in (0, 4, 8)]
