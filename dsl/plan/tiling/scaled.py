"""Steps that are a block of K: what they are to a tile, and what bounds their cycles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.isa.machine import Core

if TYPE_CHECKING:
    from .tile_shape import TileShape

#: Registers, and operations for each vector, in which elements of few bits become f32.
UNPACKING = 4
#: What scales the sums of a block and adds them: a product, a conversion, an FMA.
SCALING = 3
#: What adds sums of a run to those of a block.
WIDENING = 2
#: What part of operations on vectors beside products takes the units of these.
SHARED = 1 / 3


@dataclass(frozen=True, slots=True)
class Scaled:
    """A step of a block of K: its K ``groups``, of which ``fields`` share the bytes of a load.

    Numbers have so many ``bits``, in so many ``planes``.

    ``zeros``: it has zero points of its own beside the scales. ``apart``: its sums have registers
    of their own; else elements are scaled before they are multiplied. ``converting`` operations
    make factors of bytes that hold numbers alone. ``runs`` of its groups are summed in narrower
    lanes first, 0 where none are.
    """

    groups: int
    fields: int
    bits: int
    planes: int
    zeros: bool
    apart: bool
    converting: int = 0
    runs: int = 0

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


def of_block(shape: TileShape, core: Core, group: dict[str, float]) -> dict[str, float]:
    """The bounds of a block of K from those of a K group."""
    scaled = shape.scaled
    assert scaled is not None
    if not scaled.apart:
        operations = shape.arithmetic + shape.loads + UNPACKING * shape.vectors
        whole = {name: cycles * scaled.groups for name, cycles in group.items()}
        return whole | {"issue": scaled.groups * operations / core.issue}
    unpacking = shape.vectors * scaled.groups * scaled.parts
    loads = shape.vectors * scaled.lines + shape.bands * (scaled.groups + 2)
    ends = (SCALING + WIDENING * scaled.runs) * shape.outputs
    arithmetic = shape.arithmetic * scaled.groups + ends + unpacking
    products = group["multiply-add units"] * scaled.groups
    beside = ends - shape.outputs + SHARED * unpacking
    return {
        "multiply-add units": products,
        "products, unpacking and scaling": products + beside * core.between("", 1),
        "loads": loads / core.loads,
        "issue": (arithmetic + loads) / core.issue,
        "latency": group["latency"] * scaled.groups + SCALING * core.fma_latency,
        "broadcasts": group["broadcasts"] * scaled.groups,
    }


def of_matrices(shape: TileShape, core: Core, part: dict[str, float]) -> dict[str, float]:
    """The bounds of a block of K from those of a part of it that matrices hold.

    B's elements are stored before, and sums after: rows of these are loaded, scaled, and added to
    others in memory.
    """
    scaled = shape.scaled
    assert scaled is not None
    parts, unpacked = scaled.groups / shape.groups, shape.vectors * scaled.groups
    loads = part["loads"] * core.loads * parts + 2 * (shape.outputs + shape.rows)
    loads += shape.vectors * scaled.lines
    stores = unpacked + 2 * shape.outputs
    arithmetic = unpacked * scaled.parts + SCALING * shape.outputs
    return {
        "multiply-add units": part["multiply-add units"] * parts,
        "scaling": arithmetic * core.between("", 1),
        "loads": loads / core.loads,
        "stores": stores / core.stores,
        "issue": (arithmetic + loads + stores) / core.issue,
        "latency": part["latency"],
    }
