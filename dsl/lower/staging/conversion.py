"""What all conversions of an operand share: their move, and the calls of its tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr

from tilewright.ir.nest import Argument, BlockLoop, Call, NestNode
from tilewright.ir.ops import TileProgram
from tilewright.isa.target import Target
from tilewright.plan.operands import Operand
from tilewright.plan.routines.copy import Layout, Move
from tilewright.symbolic import ONE, ZERO, value

#: The number of vectors that one call converts.
VECTORS = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """The conversion of an operand from ``source``, the caller's array, to ``packed``, a buffer.

    A *line* is a row of A or a column of B, and ``line`` is its dimension, m or n. A K group is
    ``k_group`` elements of a line. ``zero_groups`` groups of zeros follow the last group. ``shift``
    is added to each element. ``type`` is the type to which elements are rounded before they are
    stored, "" for the source's type. If ``zero_lines`` is True, the lines that pad a vector are
    stored as zeros; otherwise their values are arbitrary. If ``zero_row_tails`` is True, lines
    contiguous along K are padded with zeros to whole vectors. If ``exact`` is True, nothing is
    written past the last line when the number of lines is known. If ``spills`` is True, elements
    past the last line may be overwritten. If ``shared`` is True, threads share the loops over
    lines. ``lanes`` are those of the vectors that convert. ``slots`` are the run-time sizes that
    tiles may use. ``prefix`` begins the tiles' names.
    """

    target: Target
    source: Operand
    packed: Operand
    line: str
    k_group: int
    shift: int
    lanes: int
    slots: tuple[str, ...]
    prefix: str
    type: str = ""
    zero_lines: bool = False
    zero_row_tails: bool = True
    zero_groups: Expr = ZERO
    exact: bool = False
    spills: bool = False
    shared: bool = False

    @property
    def kind(self) -> str:
        """The type of the elements' values after rounding."""
        return self.type or self.source.type

    def over(
        self, counter: str, trips: Expr, body: tuple[NestNode, ...], work: Expr, note: str = ""
    ) -> BlockLoop:
        """Return a loop over lines or K groups; a trip takes ``work`` vector operations."""
        shared = work if self.shared else None
        return BlockLoop(counter, trips, body, note=note, parallel=self.shared, work=shared)

    @property
    def real(self) -> str:
        """The floating-point type of elements in registers."""
        return "f64" if self.source.type == "f64" else "f32"

    @property
    def move(self) -> Move:
        """The move of the matrix, or of a part of it."""
        source = _layout(self.source, self.line)
        along, group = self.rows, 1 if self.rows else self.k_group
        made = replace(_layout(self.packed, self.line, along=along), group=group, shift=self.shift)
        return Move(
            self.target, source, made, self.source.type, self.kind, ONE, ONE, self.lanes, (1, 1),
            self.slots, spills=self.spills,
        )  # fmt: skip

    @property
    def rows(self) -> bool:
        """True if each line is contiguous along K in the packed form, rather than cut into K
        groups.
        """
        along = value(self.packed.strides.get("k", ONE)) == 1
        return along and value(self.packed.strides[self.line]) != 1


def _layout(operand: Operand, line: str, *, along: bool | None = None) -> Layout:
    """Return the layout of an operand whose lines are along dimension ``line``."""
    line_step, step = operand.strides[line], _step(operand)
    if along is None:
        along = value(step) == 1 and value(line_step) != 1
    apart = not along and value(line_step) != 1
    return Layout(
        operand.buffer, operand.type, line_step if along else step, along,
        across=line_step if apart else None,
    )  # fmt: skip


def call_of(
    c: Conversion, program: TileProgram, at: tuple[Expr, Expr], line: Expr, k: Expr
) -> Call:
    """Return a call of ``program`` that begins at ``line`` and at element ``k`` of K."""
    places = {
        name: Argument(operand.buffer, first + line * operand.strides[c.line] + k * _step(operand))
        for name, operand, first in zip(("x", "out"), (c.source, c.packed), at, strict=True)
    }
    return Call(program.name, tuple(places[p.name] for p in program.parameters if p.name in places))


def _step(operand: Operand) -> Expr:
    """Return the stride along K; 0 for a copied tail, which has no such stride."""
    return operand.strides.get("k", ZERO)
