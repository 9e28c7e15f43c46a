"""Steps of a tile that are a block of K: what they hold, and the operations beside products."""

from __future__ import annotations

from dataclasses import dataclass

#: Registers, and operations for each vector, in which elements of few bits become f32.
UNPACKING = 4
#: Registers in which they are chosen among the numbers of a table, bit by bit of their codes.
CHOOSING = 7
#: What scales the sums of a block and adds them: a product of scales, a conversion, an FMA.
SCALING = 3
#: What does so with sums of f32 where A has no scales: an FMA.
ADDING = 1
#: What adds sums of a run to those of a block.
WIDENING = 2
#: What part of operations on vectors beside products takes the units of these; and of those that
#: make bytes bf16 where conversions have no units of their own: the one that narrows takes several.
SHARED, NARROWING = 1 / 3, 1.5


@dataclass(frozen=True, slots=True)
class Scaled:
    """A step of a block of K: its K ``groups``, of which ``fields`` share the bytes of a load.

    Numbers have so many ``bits``, in so many ``planes``.

    ``zeros``: it has zero points of its own beside the scales. ``apart``: its sums have registers
    of their own; else elements are scaled before they are multiplied. ``converting`` operations
    make factors of bytes that hold numbers alone. ``runs`` of its groups are summed in narrower
    lanes first, 0 where none are. A block's sum is added by ``scaling`` operations. Elements become
    f32 in ``unpacking`` registers.
    """

    groups: int
    fields: int
    bits: int
    planes: int
    zeros: bool
    apart: bool
    converting: int = 0
    runs: int = 0
    scaling: int = SCALING
    unpacking: int = UNPACKING

    @property
    def sets(self) -> int:
        """Registers for each vector of C: its sums, those of a block, and those of a run of it."""
        return 1 + self.apart + (self.runs > 1)

    @property
    def parts(self) -> float:
        """Operations that take the factors of a K group in a vector out of their bytes."""
        return 3 * self.planes - 1 - 1 / self.fields if self.fields > 1 else self.converting

    @property
    def lines(self) -> float:
        """Loads of the bytes in a vector of a block's columns, and of its scales."""
        return self.groups * self.bits / 8 + 1
