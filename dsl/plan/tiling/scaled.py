"""Describe tiles whose K step is a block of K with its own scale: contents and extra operations."""

from __future__ import annotations

from dataclasses import dataclass

#: Converting low-bit elements to f32 takes this number of registers, and this number of operations
#: for each vector.
UNPACKING = 4
#: Converting elements that are selected from a table, bit by bit, takes this number of registers.
CHOOSING = 7
#: The sums of a block are scaled and added by this number of operations: multiply, convert, FMA.
SCALING = 3
#: If sums are f32 and A has no scales, a single FMA scales a sum and adds it.
ADDING = 1
#: The sums of a run are added to the sums of a block by this number of operations.
WIDENING = 2
#: ``SHARED``: this share of other vector operations takes time from the multiply-add units.
#: ``NARROWING`` replaces it for converting bytes to bf16, if conversions use these units. It is
#: larger than 1, because such a conversion has several operations.
SHARED, NARROWING = 1 / 3, 1.5


@dataclass(frozen=True, slots=True)
class Scaled:
    """A K step that is a block of K with ``groups`` K groups; ``fields`` of them share the bytes of
    a load.

    A number has ``bits`` bits in ``planes`` planes. ``zeros`` is True if the block has zero points
    besides scales. ``apart`` is True if its sums have separate registers; otherwise elements are
    scaled before they are multiplied. ``converting`` is the number of operations that convert whole
    bytes to factors. ``runs`` is the number of runs that are first summed in narrower lanes, 0 if
    there are none. A block's sum is added by ``scaling`` operations. Elements become f32 in
    ``unpacking`` registers.
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
        """The registers for each vector of C: its sums, those of a block, and those of a run."""
        return 1 + self.apart + (self.runs > 1)

    @property
    def parts(self) -> float:
        """The operations that extract the factors of a K group in a vector from their bytes."""
        return 3 * self.planes - 1 - 1 / self.fields if self.fields > 1 else self.converting

    @property
    def lines(self) -> float:
        """The loads of a block's bytes and scales for one vector of columns."""
        return self.groups * self.bits / 8 + 1
