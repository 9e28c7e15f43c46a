"""Unpack blocks of a quantized B into panels, so that tiles of many rows share the work.

A call unpacks some elements of K for one vector of columns. They become f32 by the scales of their
block, which the call loads once. Or they become numbers of A's type, and the tiles scale their
sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sympy import Expr

from tilewright.ir.access import read
from tilewright.ir.nest import Argument, Call, Name, NestNode, repeated
from tilewright.ir.ops import Note, Op, Parameter, Store, TileProgram
from tilewright.ir.values import Address, Register
from tilewright.isa.vector import Vector
from tilewright.lower.tile.dequantize import Bytes, Dequantizer, Numbers
from tilewright.plan.formats.low_bit import QuantizedFormat
from tilewright.plan.operands import Operand
from tilewright.plan.plan import Plan
from tilewright.plan.tiling.parts import panel_parts
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import ONE, ZERO, div, mod, symbol

from .buffers import Filled
from .pack import in_panels


def unpack(
    plan: Plan, buffer: Operand, extents: Mapping[str, Expr], origin: Mapping[str, Expr]
) -> Filled:
    """Unpack into ``buffer`` the block of B that begins at ``origin``."""
    width, each = plan.panel("b"), plan.staging.k_unit
    assert width is not None, "B is unpacked in panels"
    unpacking = _unpacking(plan, width)
    columns, depth, lanes = extents["n"], extents["k"], unpacking.columns
    tile, nodes = unpacking.tile(), list[NestNode]()
    for part in panel_parts(columns, width):
        first = part.at("pp")
        wide, deep = div(part.size + (lanes - 1), lanes), div(depth + (each - 1), each)
        column = ZERO if wide == 1 else lanes * symbol("vp")
        k = ZERO if deep == 1 else each * symbol("kp")
        out = first * depth + k * width + column * unpacking.form.group
        there = origin["n"] + first + column, origin["k"] + k
        call = Call(tile.name, tuple(unpacking.arguments(buffer, out, *there)))
        vectors = repeated("vp", wide, (call,))
        nodes += in_panels("pp", part, repeated("kp", deep, vectors, "unpack B"))
    # The buffer is longer than the panels: a call may write past the end of K, and a tile may load
    # columns past the end of a panel.
    behind = max((each - 1) * width, plan.staging.lanes - width)
    elements = div(columns + (width - 1), width) * width * depth + behind
    return Filled(buffer, elements, tuple(nodes), (tile,))


#: The most registers in use when bits of two planes become elements with a scale and a minimum.
_ALIVE = 12


def _unpacking(plan: Plan, width: int) -> _Unpacking:
    """Return the unpacking by the widest suitable vector type.

    It must leave enough registers and divide a panel and a block of packed B's columns.
    """
    sizes, target = (width, plan.staging.quantized.nb), plan.target
    whole = [v for v in target.of("f32") if not any(size % v.lanes for size in sizes)]
    if plan.staging.product.partial:
        sums = next(v for v in whole if v in plan.staging.product.ops)
        return _ToNumbers(plan, width, plan.staging.product.held(target, sums, "along"))
    vector = next(v for v in whole if v.registers * _ALIVE <= target.registers)
    return _Unpacking(plan, width, vector)


@dataclass(frozen=True, slots=True)
class _Unpacking:
    """Unpacks one vector of columns at a time into panels of ``width`` columns, as f32."""

    plan: Plan
    width: int
    vector: Vector

    @property
    def form(self) -> QuantizedFormat:
        """The packed format of B."""
        return self.plan.staging.quantized

    @property
    def columns(self) -> int:
        """The columns in a vector."""
        return self.vector.lanes // self.form.group

    def arguments(self, buffer: Operand, out: Expr, column: Expr, k: Expr) -> Iterator[Argument]:
        """Yield the arguments of a call: elements from (k, column) on, and values of their
        block.
        """
        form, b = self.form, Name("b")
        block, inside = div(column, form.nb), mod(column, form.nb)
        line = div(k * form.lines(form.block // form.group), form.block)
        first = block * form.block_elements + (line * form.nb + inside) * form.group
        yield Argument(b, first, self.plan.staging.recast("b"))
        row = block * form.k_blocks + div(k, form.block)
        for _, at, type_ in self.of_blocks():
            yield Argument(b, at + ITEMSIZE[type_] * (row * form.nb + inside), cast=True)
        yield Argument(buffer.buffer, out)

    def tile(self) -> TileProgram:
        """Return the tile program of a call."""
        return TileProgram(
            name=f"unpack_b_{self.plan.staging.k_unit}x{self.columns}",
            element=self.vector.element,
            parameters=(
                Parameter("x", "in", self.form.stored),
                *(Parameter(name, "in", type_) for name, _, type_ in self.of_blocks()),
                Parameter("out", "out", self.vector.element),
            ),
            body=tuple(self.ops()),
            end=(),
            summary=f"{self.plan.staging.k_unit} elements of K of {self.columns} columns",
        )

    def of_blocks(self) -> Iterator[tuple[str, int, str]]:
        """Yield the values that each block of K has: name, first byte in packed B, and type."""
        yield "b_scales", self.form.scales_at, self.form.scale
        if self.form.zeros:
            yield "b_zeros", self.form.zeros_at, self.form.zeros

    def ops(self) -> Iterator[Op]:
        """Load the values of the block, then unpack its elements."""
        target, vector = self.plan.target, self.vector
        own = {name: Register(f"{name}0", vector) for name, *_ in self.of_blocks()}
        yield Note("What belongs to the block, then its elements one after the other.")
        for name, _, type_ in self.of_blocks():
            yield from read(target, own[name], Address(name, ZERO), None, type_)
        made = Dequantizer(target, self.form, vector, own)
        yield from made.constants()
        yield from self.elements(made)

    def elements(self, made: Dequantizer | Numbers) -> Iterator[Op]:
        """Unpack the K groups of a call, one vector each."""
        group = self.form.group
        for k in range(self.plan.staging.k_unit // group):
            element = Register(f"b{k}", self.vector)
            yield from made.element(element, self._stored(k))
            yield Store(Address("out", k * self.width * group * ONE), element)

    def _stored(self, k: int) -> Bytes:
        """Return the bytes of one K group of a call, for each column."""
        form = self.form
        return Bytes(
            target=self.plan.target,
            form=form,
            index=k,
            at=lambda plane: Address("x", form.place(k, plane)[0] * form.nb * form.group * ONE),
            name=lambda back, plane: f"b{k - back}_bytes{plane or ''}",
        )


@dataclass(frozen=True, slots=True)
class _ToNumbers(_Unpacking):
    """Unpacks numbers of A's type, in K groups."""

    def of_blocks(self) -> Iterator[tuple[str, int, str]]:
        """Yield nothing: tiles scale the sums of a block."""
        yield from ()

    def ops(self) -> Iterator[Op]:
        """Unpack the numbers of the K groups, one after the other."""
        made = Numbers(self.plan.target, self.form, self.vector)
        yield from made.table()
        yield from self.elements(made)
