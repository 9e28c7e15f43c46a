"""Run a program on numpy, operation by operation, to test the results of every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import PlanError
from tilewright.ir.nest import (
    Bind,
    BlockLoop,
    Call,
    Configure,
    Lookup,
    NestNode,
    Pack,
    Program,
    SelectBatch,
    Stamp,
    When,
    WhenSame,
    passed,
)
from tilewright.plan.formats.lookup import formats_of
from tilewright.plan.loops import Decided
from tilewright.spec.signature import signature
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import evaluate

from .memory import Given, fresh_buffer, lay_out
from .tile import Counts, Run, Surroundings, Tile, entry, pointer_to


def interpret(
    plan: Decided,
    program: Program,
    arrays: Sequence[Given],
    sizes: Sequence[int] = (),
    scalars: Sequence[float] = (),
) -> Counts:
    """Run ``program`` on ``arrays``, which are changed, and count its work.

    ``arrays``, ``sizes`` and ``scalars`` are in the order of the spec's signature. An array is a
    ``Buffer`` (flat values and the index of the first element), or a numpy array with positive
    strides. For ``tw.Addresses`` it is a sequence of these. Offsets are int64. A packed B is an
    array of its bytes. Every access is checked: PlanError names the operand and the element, if the
    element is outside the operand or was not written before.
    """
    formats = formats_of(plan.spec, plan.target)
    parameters = signature(plan.spec, formats)
    slots = [s.slot for s in parameters.sizes]
    known = dict(zip(slots, map(int, sizes), strict=True))
    numbers = dict(zip((s.name for s in parameters.scalars), map(float, scalars), strict=True))
    by_dim = {size.dim.name: known[size.slot] for size in parameters.sizes}
    memory = lay_out(parameters, arrays, by_dim, formats)
    around = Surroundings(memory, known, numbers, Counts())
    with np.errstate(all="ignore"):
        _Machine(program, around).run(program.nest, known, dict(memory.segments))
    return around.counts


class _Machine:
    """Runs a nest. A tile program is turned into closures at its first call with new sizes."""

    def __init__(self, program: Program, around: Surroundings) -> None:
        self.program, self.around = program, around
        self.tiles: dict[tuple[str | int, ...], tuple[Tile, Run]] = {}

    def run(
        self, nodes: Sequence[NestNode], env: Mapping[str, int], operands: Mapping[str, Any]
    ) -> None:
        """Run ``nodes`` with the sizes and counters ``env``, on the memory in ``operands``."""
        for node in nodes:
            match node:
                case Call():
                    self._call(node, env, operands)
                case BlockLoop():
                    for trip in range(node.first, evaluate(node.trips, env)):
                        self.run(node.body, {**env, node.counter: trip}, operands)
                case Bind():
                    inside = dict(env)
                    for bound in node.bound:
                        inside[bound.name] = evaluate(bound.value, inside)
                    self.run(node.body, inside, operands)
                case Lookup():
                    self.run(node.body, {**env, node.name: _found(node, env, operands)}, operands)
                case SelectBatch():
                    self.run(node.body, env, self._select(node, env, operands))
                case When():
                    positive = evaluate(node.count, env) > 0
                    self.run(node.body if positive else node.otherwise, env, operands)
                case Pack():
                    elements = self._elements(node, env)
                    name = str(node.buffer)
                    within = {**operands, name: fresh_buffer(name, node.element, elements)}
                    self.run(node.fill, env, within)
                    self.run(node.body, env, within)
                case Configure() | Stamp():
                    pass  # the interpreter needs no configuration of the matrix unit, and no times
                case WhenSame():
                    same = self.around.memory.same(str(node.one), str(node.other))
                    self.run(node.body if same else node.otherwise, env, operands)

    def _elements(self, node: Pack, env: Mapping[str, int]) -> int:
        """Return the number of a buffer's elements; PlanError if its scratch memory has no room."""
        elements = evaluate(node.elements, env)
        if node.scratch is not None:
            room = self.program.worker_scratch if node.of_worker else self.program.scratch
            end = evaluate(node.scratch, env) + elements * ITEMSIZE[node.element]
            if end > (most := evaluate(room, env)):
                raise PlanError(
                    f"{node.buffer} does not fit the scratch memory",
                    got=f"{elements} elements of {node.element} that end at byte {end}",
                    expected=f"at most {most} bytes",
                )
        return elements

    def _select(
        self, node: SelectBatch, env: Mapping[str, int], operands: Mapping[str, Any]
    ) -> dict[str, Any]:
        memory, index = self.around.memory, evaluate(node.index, env)
        chosen = dict(operands)
        for selected in node.selected:
            name, whole = str(selected.chosen), memory.segments[str(selected.name)]
            if selected.batch == "addresses":
                chosen[name] = pointer_to(entry(whole, index, str(selected.name)))
                continue
            segment, at = pointer_to(whole)
            matrix = index
            if selected.batch == "offsets":
                matrix = entry(memory.offsets[selected.offsets], index, selected.offsets)
            at += matrix * evaluate(selected.stride, env)
            chosen[name] = segment, at
        return chosen

    def _call(self, call: Call, env: Mapping[str, int], operands: Mapping[str, Any]) -> None:
        program = self.program.tile(call.program)
        sizes = {p.name: env[p.name] for p in program.parameters if p.role == "size"}
        key: tuple[str | int, ...] = (call.program, *sizes.values())
        if key not in self.tiles:
            tile = Tile(replace(self.around, sizes={**self.around.sizes, **sizes}), program)
            self.tiles[key] = tile, tile.compiled()
        tile, run = self.tiles[key]
        tile.pointers.clear()
        tile.registers.clear()
        for parameter, argument in zip(passed(tile.program), call.arguments, strict=True):
            offset = evaluate(argument.offset, env)
            tile.bind(parameter, operands.get(argument.symbol), offset, argument.cast)
        run()


def _found(node: Lookup, env: Mapping[str, int], operands: Mapping[str, Any]) -> int:
    """Return the number that a node reads, limited to those below its count."""
    segment, start = pointer_to(operands[str(node.indices)])
    count = evaluate(node.count, env)
    (given,) = segment.read(start + evaluate(node.at, env), 1, segment.element, "the nest")
    counted = int(given) + (count if given < 0 else 0)
    return max(0, min(counted, count - 1))


__all__ = ["Counts", "interpret"]
