"""Reduce rows while a tile is finished: in registers first, then combined with memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Integer

from tilewright.elementwise.builder import Argument
from tilewright.elementwise.reductions import OUTPUTS
from tilewright.ir.access import filled, load, store
from tilewright.ir.emitter import Emitter
from tilewright.ir.interleaving import fold_registers
from tilewright.ir.ops import MakeMask
from tilewright.ir.values import Active, Address, MaskRegister
from tilewright.symbolic import ONE


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a register's lanes: along ``line``, from row ``m`` on; ``active`` lanes
    exist.
    """

    line: str
    m: int
    active: Active


class Reducer:
    """Reduces values that an emitter computes to one output: ``fn`` of each row."""

    def __init__(self, emitter: Emitter, fn: str, pointer: str) -> None:
        self.emitter = emitter
        self.pointer, self.how = pointer, OUTPUTS[fn]
        self.said = {"row_max": "The greatest", "row_sum": "The sum"}.get(
            fn, "The greatest magnitude"
        )
        self.said += " of a row"
        self.partial: dict[tuple[str, int], Argument] = {}
        self.active: dict[tuple[str, int], Active] = {}

    def add(self, value: Argument, place: Place) -> None:
        """Include the lanes of ``value`` in the reduction."""
        value = self.how.of(self.emitter.builder, value)
        if place.line == "n":
            value = filled(self.emitter, value, place.active, self.how.start)
        key = place.line, place.m
        if key in self.partial:
            value = self._both(self.partial[key], value)
        self.partial[key], self.active[key] = value, place.active

    def flush(self) -> None:
        """Combine the reduced values with the values in memory."""
        for (line, m), value in self.partial.items():
            if line == "m":
                self._combine(value, m, self.active[line, m])
        for rows in self._runs():
            total = fold_registers(self.emitter, [self.partial["n", m] for m in rows], self._both)
            self._combine(total, rows[0], self._rows_active(len(rows)))

    def _both(self, x: Argument, y: Argument) -> Argument:
        return self.how.both(self.emitter.builder, x, y)

    def _combine(self, value: Argument, m: int, active: Active) -> None:
        address = Address(self.pointer, m * ONE)
        old = load(self.emitter, address, active, "f32", f"{self.pointer}{m}")
        b = self.emitter.builder
        total = self.how.result(b, self._both(self.how.of(b, old), value))
        store(self.emitter, total, "f32", address, active, "f32")

    def _runs(self) -> Iterator[list[int]]:
        """Yield runs of consecutive rows, at most as many as a vector has lanes."""
        rows = sorted(m for line, m in self.partial if line == "n")
        run: list[int] = []
        for m in rows:
            if run and (m != run[-1] + 1 or len(run) == self.emitter.lanes):
                yield run
                run = []
            run.append(m)
        if run:
            yield run

    def _rows_active(self, rows: int) -> Active:
        vector = self.emitter.vector("f32")
        if rows == vector.lanes:
            return None
        if vector.mask is None:
            return rows
        mask = MaskRegister(f"{self.emitter.prefix}{self.pointer}rows{rows}", vector, Integer(rows))
        self.emitter.add(MakeMask(mask))
        return mask
