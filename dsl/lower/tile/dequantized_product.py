"""K steps of a quantized B with an A of floating point: its elements become f32 as they are loaded.

A step is one block of K, whose scales are loaded first. An element is a difference of integers,
exact, times its scale; with minima it is one FMA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from tilewright.ir.access import read
from tilewright.ir.ops import (
    Apply,
    Multiply,
    Note,
    Op,
    Splat,
)
from tilewright.ir.values import Register
from tilewright.isa.vector import Vector
from tilewright.spec.quantized import STORED
from tilewright.spec.types import is_integer
from tilewright.symbolic import value

from .scaled_product import BlockSteps, Part

#: A number of f4_e2m1 whose bits stand in f32's fields is so many times too small.
_BIASES = 2.0**127


@dataclass(frozen=True, slots=True)
class DequantizedProduct(BlockSteps):
    """Steps of one block of K, whose products are added to C's as others are."""

    def emit(self, index: int, run: int) -> Iterator[Op]:
        """The block's scales, then its products."""
        yield from self._block(index, self.groups)

    def tail(self, index: int) -> Iterator[Op]:
        """The elements of K that fill no block."""
        left = value(self.tile.k_tail)
        assert left is not None, "the K of a packed B is fixed"
        if left:
            yield Note("The last elements of K, which fill no block.")
            yield from self._block(index, left)

    def _block(self, index: int, count: int) -> Iterator[Op]:
        yield from self.of_columns(index)
        yield from (Splat(register, number) for register, number in self._constants(index))
        yield from self.products(index, count)

    def _constants(self, index: int) -> Iterator[tuple[Register, float]]:
        """What conversions need, by name."""
        form, vector = self.tile.plan.quantized, self.tile.vector
        whole = self._integers
        suffix = f"_k{index}" if index else ""
        for number, plane in enumerate(form.planes if form.fields > 1 else ()):
            yield Register(f"b_mask{number or ''}{suffix}", whole), (1 << plane.bits) - 1
        if STORED[form.type].values:
            yield Register(f"b_sign{suffix}", whole), 8
            yield Register(f"b_magnitude{suffix}", whole), 7
            yield Register(f"b_biases{suffix}", vector), _BIASES
        elif form.bias:
            yield Register(f"b_bias{suffix}", whole), form.bias

    @property
    def _integers(self) -> Vector:
        """As many lanes of s32."""
        return self.tile.plan.target.holding("s32", self.tile.vector.lanes)

    def load(self, column: int, k: int) -> Iterator[Op]:
        """The elements of a step as f32."""
        form, whole = self.tile.plan.quantized, self._integers
        block = k // self.groups
        dst = self.vector(column, k)
        real = replace(dst, name=f"{dst.name}_f32")
        if not is_integer(form.stored):
            at = self.plane_at(column, k, 0)
            yield from read(self.tile.plan.target, real, at, None, form.stored)
            yield from self._scaled(dst, real, column, block)
            return
        constants = {r.name.partition("_k")[0]: r for r, _ in self._constants(block)}
        number = Register(f"{dst.name}_{'field' if form.fields > 1 else 'bytes'}", whole)

        def joined(dst: Register, x: Register, y: Register) -> Op:
            return Apply(dst, "or", (x, y), whole)

        yield from self.numbers(number, column, k, partial(_part, constants), joined)
        if STORED[form.type].values:
            yield from _small_float(real, number, constants)
        else:
            if "b_bias" in constants:
                less = replace(number, name=f"{dst.name}_less")
                yield Apply(less, "sub", (number, constants["b_bias"]), whole)
                number = less
            yield Apply(real, "to_f32", (number,), whole)
        yield from self._scaled(dst, real, column, block)

    def _scaled(self, dst: Register, real: Register, column: int, block: int) -> Iterator[Op]:
        """An element from its number, by what belongs to its block."""
        form = self.tile.plan.quantized
        scale, vector = self.of_block("b_scales", column, block), dst.vector
        if not form.zeros:
            yield Multiply(dst, real, scale)
            return
        zeros = self.of_block("b_zeros", column, block)
        if form.minima:
            yield Apply(dst, "fma", (real, scale, zeros), vector)
            return
        less = replace(real, name=f"{dst.name}_less")
        yield Apply(less, "sub", (real, zeros), vector)
        yield Multiply(dst, less, scale)


def _part(constants: dict[str, Register], part: Part) -> Iterator[Op]:
    """One field of the bytes in the lanes of a register, where its plane has it in numbers."""
    dst, vector, up = part.dst, part.raw.vector, part.plane.up
    low, moved = part.plane.bits * part.field, part.raw
    if low:
        last = low + part.plane.bits == 8 and not up
        moved = dst if last else replace(dst, name=f"{dst.name}_low")
        yield Apply(moved, "ushr", (part.raw, low), vector)
    if moved == dst:
        return
    kept = replace(dst, name=f"{dst.name}_bits") if up else dst
    yield Apply(kept, "and", (moved, constants[f"b_mask{part.number or ''}"]), vector)
    if up:
        yield Apply(dst, "shl", (kept, up), vector)


def _small_float(dst: Register, code: Register, constants: dict[str, Register]) -> Iterator[Op]:
    """f4_e2m1 as f32, in halves: its bits moved into f32's fields, and the bias made f32's."""
    whole, vector = code.vector, dst.vector

    def integer(what: str) -> Register:
        return Register(f"{dst.name}_{what}", whole)

    def real(what: str) -> Register:
        return Register(f"{dst.name}_{what}", vector)

    yield Apply(integer("digits"), "and", (code, constants["b_magnitude"]), whole)
    yield Apply(integer("moved"), "shl", (integer("digits"), 22), whole)
    yield Apply(real("small"), "float", (integer("moved"),), whole)
    yield Multiply(real("large"), real("small"), constants["b_biases"])
    yield Apply(integer("bits"), "bits", (real("large"),), vector)
    yield Apply(integer("sign"), "and", (code, constants["b_sign"]), whole)
    yield Apply(integer("top"), "shl", (integer("sign"), 28), whole)
    yield Apply(integer("signed"), "or", (integer("bits"), integer("top")), whole)
    yield Apply(dst, "float", (integer("signed"),), whole)
