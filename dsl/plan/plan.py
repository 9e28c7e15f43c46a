"""The plan of a product: four values with every choice, the reasons, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sympy import Expr

from tilewright.isa.target import Target
from tilewright.spec.gemm import Gemm
from tilewright.spec.schedule import LINES
from tilewright.symbolic import div, value

from .loops import Decided, Decision
from .problem import Problem, Staging
from .tiling.tiles import Grid, Tiling


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops around the register tiles, and the sizes of their blocks.

    ``outer`` are the loops over blocks, ``inner`` those around the accumulators; upper-case letters
    are parallel loops. ``blocks`` are the sizes of blocks by dimension.

    ``panel_tile`` is the register tile (mr, nr) whose size is the width of packed panels; the call
    then computes the sizes of blocks. None if there are no panels. ``summed`` has the most rows or
    columns whose sums over all of K are completed before the next ones; dimensions left out are in
    blocks already. None if C holds partial sums. Stores of C bypass the caches if ``streams`` is
    positive; None means never.
    """

    outer: str
    inner: str
    blocks: Mapping[str, int] = field(hash=False)
    panel_tile: tuple[int, int] | None = None
    summed: Mapping[str, int] | None = field(default=None, hash=False)
    streams: Expr | None = None

    @property
    def sum_sizes(self) -> dict[str, str]:
        """The names of the sizes of the part of C that is summed over all of K at once."""
        return {d: f"sum_{d}c" for d in self.summed or {}}

    def parallel(self, d: str) -> bool:
        """True if threads share the last loop over dimension ``d`` of C."""
        return self.outer[self.outer.lower().rfind(d) :][:1].isupper()

    def in_rows(self, across: str) -> bool:
        """True if the loop over tiles in dimension ``across`` is outside the other one."""
        letters, along = self.outer.lower(), "n" if across == "m" else "m"
        return 0 <= letters.rfind(across) < letters.rfind(along)

    def order(self) -> list[str]:
        """Return "m" and "n", the dimension of the outer loop over tiles first."""
        return sorted("mn", key=self.outer.lower().rfind)


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Decided):
    """A product with every choice: its staged operands, its loops, its tiles, and the reasons."""

    staging: Staging
    nest: Nest
    decisions: tuple[Decision, ...]
    tiling: Tiling = field(default_factory=Tiling)

    @property
    def problem(self) -> Problem:
        """The sizes, the target and the orientation."""
        return self.staging.problem

    @property
    def spec(self) -> Gemm:
        """The product to compute, which every kind of plan has."""
        return self.problem.spec

    @property
    def target(self) -> Target:
        """The target, which every kind of plan has."""
        return self.problem.target

    @property
    def nests(self) -> tuple[Plan, ...]:
        """The plans of all nests: this one."""
        return (self,)

    @property
    def conditions(self) -> tuple[Expr, ...]:
        """The conditions of nests after the first one: none."""
        return ()

    @property
    def unpack_rows(self) -> int | None:
        """The rows of C from which a quantized B is unpacked first; None if loops decide it."""
        return self.staging.unpack_rows

    @property
    def asked_tile(self) -> tuple[int, int] | None:
        """The tile (mr, nr) of the schedule or of panels, as extents across and along the
        vectors.
        """
        tile = self.problem.schedule.tile or self.nest.panel_tile
        if tile is None:
            return None
        mr, nr = tile
        return (mr, nr) if self.problem.across == "m" else (nr, mr)

    def panel(self, name: str) -> int | None:
        """Return the rows or columns in a panel of packed operand ``name``; None without panels."""
        if self.nest.panel_tile is None or name not in self.staging.packs:
            return None
        return self.nest.panel_tile[0 if name == "a" else 1]

    @property
    def shared(self) -> bool:
        """True if threads share the loops of one product."""
        return self.problem.batch is None and self.nest.outer != self.nest.outer.lower()

    @property
    def block_sizes(self) -> dict[str, str]:
        """The names of block sizes that the call computes, by dimension: mc, nc, kc.

        Without panels it is only kc, for a K known only at the call: one tile then serves whole
        blocks and the last one. Blocks of at most ``LINES`` steps are excluded, because their tiles
        have a constant number of steps. With a matrix unit or a quantized B, only panels have such
        names. If a quantized B is unpacked, only dimensions known only at the call have.
        """
        sizes, blocks = self.problem.sizes, self.nest.blocks
        if self.nest.panel_tile is None:
            vectors = self.staging.product.unit is None and self.spec.quantized is None
            long = value(sizes["k"]) is None and blocks.get("k", 0) > LINES
            return {"k": "kc"} if long and vectors else {}
        unpacks = self.staging.unpacks
        known = [d for d in "mnk" if d in blocks and (not unpacks or value(sizes[d]) is None)]
        return {d: f"{d}c" for d in known}

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of all sizes that tiles may depend on: the call's, then those of blocks."""
        own = self.block_sizes.values(), self.nest.sum_sizes.values()
        return (*self.problem.slots, *own[0], *own[1])

    @property
    def partial(self) -> bool:
        """True if sums stay in a buffer until they are complete, because C cannot hold them.

        A correction for zero points alone needs no buffer if there are panels: the first block of K
        stores sums with the correction, and the other blocks add to them.
        """
        corrects = self.staging.corrects and self.nest.panel_tile is None
        apart = self.staging.remakes or corrects or self.staging.unpacks
        return apart and bool(set(self.nest.outer.lower()) & {"b", "k"})

    @property
    def by_panels(self) -> bool:
        """True if A is converted one panel of rows at a time, while the previous panel is
        multiplied.

        Multiply-adds then hide the conversion. It needs a nest with rows outside and no other
        loops. A matrix unit may read rows that do not exist.
        """
        staging, problem = self.staging, self.problem
        alone = problem.batch is None and not self.partial and self.spec.b2 is None
        alone = alone and not staging.product.block
        in_rows = "a" in staging.sources and value(staging.operands["a"].strides["k"]) == 1
        whole = alone and staging.columns is None and staging.product.unit is None
        return whole and in_rows and self.nest.outer == "mn" and problem.across == "m"

    def side_by_side(self, grids: Sequence[Grid]) -> list[tuple[Grid, ...]]:
        """Return ``grids`` in groups. The grids of a group share the loop in dimension ``across``.

        If that loop is the outer one, the adjacent tiles of all grids run one after another. The
        operand across the vectors then stays in cache, and rows of C are written in order.
        Otherwise each grid is its own group. With a matrix unit each grid is its own group, too,
        because the unit would change its configuration too often.
        """
        apart = not self.nest.in_rows(self.problem.across) or self.staging.product.unit is not None
        if apart or self.nest.parallel(self.problem.along):
            return [(grid,) for grid in grids]
        found: dict[object, tuple[Grid, ...]] = {}
        for index, grid in enumerate(grids):
            key: object = index if grid.across.given else grid.across
            found[key] = (*found.get(key, ()), grid)
        return list(found.values())


@dataclass(frozen=True, slots=True, repr=False)
class ByRows(Decided):
    """A product with two nests: the second one is for at least ``unpack_rows`` rows of C."""

    spec: Gemm
    target: Target
    decisions: tuple[Decision, ...]
    unpack_rows: int
    nests: tuple[Plan, ...]

    @property
    def conditions(self) -> tuple[Expr, ...]:
        """The formula that is positive if the second nest runs."""
        return (div(self.nests[0].problem.sizes["m"], self.unpack_rows),)
