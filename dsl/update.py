"""Registers on their way out: ``C = alpha * acc + beta * C``, or what else is made of the sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .finish import Output, finished
from .isa import Vector
from .lower import Tile
from .program import Add, Address, Load, Multiply, MultiplyAdd, Op, Register, Room, Splat, Store
from .symbolic import ONE


def factors(tile: Tile) -> Iterator[Op]:
    """Alpha and beta in registers, where they are not 1 or 0."""
    spec = tile.plan.spec
    if tile.plan.finishes:
        return
    alpha = "alpha" if spec.alpha == "scalar" else spec.alpha
    beta = "beta" if spec.beta == "scalar" else spec.beta
    for vector in _updated(tile):
        if alpha != 1:
            yield Splat(_factor(tile, "alpha", vector), alpha)
        if not tile.accumulate and beta not in (0, 1):
            yield Splat(_factor(tile, "beta", vector), beta)


def _updated(tile: Tile) -> Iterator[Vector]:
    """The vectors in which C is updated: those that are whole, and single elements."""
    plan, shape = tile.plan, tile.region.shape
    single = plan.target.of(plan.element)[-1]
    if plan.dot:
        yield single if plan.sum_along is None else tile.vector
        return
    if not plan.bounces:
        yield tile.vector
        return
    if plan.transposed:
        whole, cut = divmod(shape.rows, tile.vector.lanes)
    else:
        cut = int(tile.region.active is not None)
        whole = shape.vectors - cut
    yield from (tile.vector,) if whole else ()
    yield from (single,) if cut else ()


def _factor(tile: Tile, name: str, vector: Vector) -> Register:
    single = tile.plan.bounces and vector.lanes < tile.vector.lanes
    return Register(f"{name}_s" if single else f"{name}_v", vector)


def write(tile: Tile, outputs: Sequence[Output]) -> Iterator[Op]:
    """``C = alpha * acc + beta * C``: C is read whole before any of it is written.

    A masked store cannot be forwarded to a load that overlaps its full width, and rows of a
    narrow C overlap so: read row by row, each would wait for the one before.
    """
    if tile.stage == "sum":
        yield from _add_to_sums(tile, outputs)
        return
    if tile.plan.finishes:
        yield from finished(tile, outputs)
        return
    stores = []
    if tile.plan.bounces:
        bounce, outputs = _bounced(tile, outputs)
        yield from bounce
    for output in outputs:
        yield from updated(tile, output)
        stores.append(Store(output.at(tile.written), output.acc, output.active))
    yield from stores


def _add_to_sums(tile: Tile, outputs: Sequence[Output]) -> Iterator[Op]:
    """Add to the partial sums, or begin these."""
    for output in outputs:
        acc, address = output.acc, output.at(tile.written)
        if tile.accumulate:
            old = Register(f"old_{acc.name}", acc.vector)
            yield Load(old, address, output.active)
            yield Add(acc, acc, old)
        yield Store(address, acc, output.active)


def from_sums(tile: Tile, output: Output) -> Iterator[Op]:
    """An output whose sums are all there: what exists of it, as the last line may end with it."""
    if tile.stage == "finish":
        yield Load(output.acc, output.at(tile.plan.operands["sums"]), output.active)


def _bounced(tile: Tile, outputs: Sequence[Output]) -> tuple[list[Op], list[Output]]:
    """Vectors of which a part exists, as its elements: read from a buffer that holds them whole."""
    cut = [output for output in outputs if output.active is not None]
    if not cut:
        return [], [*outputs]
    single, lanes = tile.plan.target.of(tile.plan.element)[-1], tile.vector.lanes
    room = Room(f"bounce_{cut[0].acc.name}", tile.plan.element, len(cut) * lanes)
    result = [output for output in outputs if output.active is None]
    stores: list[Op] = []
    loads: list[Op] = []
    for first, output in zip(range(0, room.elements, lanes), cut, strict=True):
        assert isinstance(output.active, int)
        stores.append(Store(Address(room.name, first * ONE), output.acc))
        for lane in range(output.active):
            element = Register(f"{output.acc.name}_lane{lane}", single)
            loads.append(Load(element, Address(room.name, (first + lane) * ONE)))
            result.append(output.lane(lane, element))
    return [room, *stores, *loads], result


def updated(tile: Tile, output: Output) -> Iterator[Op]:
    """One register of the result; a later partial sum adds to C as it is."""
    spec, acc, vector = tile.plan.spec, output.acc, output.acc.vector
    if spec.alpha != 1:
        yield Multiply(acc, acc, _factor(tile, "alpha", vector))
    if not tile.accumulate and spec.beta == 0:
        return
    old = Register(f"old_{acc.name}", vector)
    yield Load(old, output.at(tile.written), output.active)
    if tile.accumulate or spec.beta == 1:
        yield Add(acc, acc, old)
        return
    op = vector.form("broadcast", "scalar")
    assert op is not None
    yield MultiplyAdd(op, acc, old, _factor(tile, "beta", vector))
