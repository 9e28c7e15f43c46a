"""The bounds of a K step of a register tile: the cycles that each unit of a core needs for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tilewright.isa.machine import Core
from tilewright.isa.vector import ALIKE, MulAdd, Vector
from tilewright.spec.types import is_integer

from .scaled import NARROWING, SHARED, UNPACKING, WIDENING
from .tile_shape import TileShape

#: From the unpacking of factors until vectors use the sums of a matrix unit, this many times the
#: latency of its multiply-add passes, because factors and sums go through memory. For example, it
#: takes 109 cycles on Granite Rapids, where the latency is 52 cycles.
THROUGH = 2
#: If sums are scaled, this share of a matrix unit's products does not overlap with stores, scaling
#: and loads from L2.
TURNS = 0.5
#: If elements are converted between multiply-adds, ``strain`` is at least this number. For example,
#: 8 chains just hide the latency of AVX2 on Zen 4. f16 then has 0.86 times the speed of f32; with
#: 10 chains it has 0.96 times the speed, and with 12 chains 0.99 times.
_CONVERTING = 1 / 8
#: Multiply-adds and line-crossing loads delay each other only if the shorter of their two times is
#: more than this share of the longer one. It was measured on an Intel core with AMX.
_APART = 0.7
#: The assumed size of a C scalar in bytes. The rate of its loads depends on it.
_SCALAR = 4
#: Line crossings slow a tile down fully only if they take at least this share of its load time, as
#: they do in tiles of two or more vectors. A tile of one vector hardly ever waits, because most of
#: its loads are single elements, one for each multiply-add.
_CROSSING = 0.2


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates and latencies of a core for the multiply-add instruction of a tile.

    - ``core``: the core with its rates for the width of the tile's vectors.
    - ``between``: cycles from the start of one multiply-add to the start of the next.
    - ``latency``: cycles until a multiply-add has its sum.
    - ``chains``: number of chains of multiply-adds that hide this latency.
    - ``scalars``: number of C scalars that the core loads in a cycle.
    """

    core: Core
    between: float
    latency: float
    chains: int
    scalars: float


def rates(shape: TileShape, core: Core) -> Rates:
    """Return the rates and latencies of ``core`` for the multiply-adds of a tile."""
    return _rates(core, shape.vector, shape.op, shape.latency)


@lru_cache(maxsize=4096)
def _rates(core: Core, vector: Vector, op: MulAdd, latency: int) -> Rates:
    scalars, core = core.at(_SCALAR).loads, core.at(vector.nbytes)
    speed, between = core.speed(op.mnemonic), core.between(op.mnemonic, op.instructions)
    waits = (latency or core.fma_latency) if speed is None else speed.latency
    started = core.fma_units if speed is None else 1 / speed.cycles
    chains = max(1, ceil(waits * started - 0.01))  # 6.01 is 6
    return Rates(core, between, waits, chains, scalars)


def chains_wanted(shape: TileShape, core: Core) -> int:
    """Return the number of chains of multiply-adds that hides the latency of one."""
    if shape.unit is not None:
        return -(-shape.unit.latency * shape.bands // shape.rows)
    return rates(shape, core).chains


def step_cycles(shape: TileShape, core: Core, own: Rates | None = None) -> float:
    """Return the cycles of a K step, from the bounds of units, loads, issue and latency.

    ``together`` combines the bounds. ``own`` are the tile's ``rates`` if the caller has them.
    """
    own = own or rates(shape, core)
    return together(bounds(shape, core, own), shape, core, own)


def together(
    bounds: dict[str, float], shape: TileShape, core: Core, own: Rates | None = None
) -> float:
    """Return the cycles of a K step, given the cycles that each bound allows.

    These are the cycles of the largest bound, plus a small share of the others. A core rarely
    reaches two nearly equal bounds at once, least of all multiply-adds and line-crossing loads. A
    step also takes longer if there are just enough chains to hide the latency.
    """
    each = bounds.values()
    most = max(each)
    cycles = most + (sum(each) - most) * core.overlap
    if core.contention and (crossing := 1 - shape.loads / shape.touched(core)):
        less, more = sorted((bounds["multiply-add units"], bounds["loads"]))
        share = min(1.0, crossing / _CROSSING)
        cycles *= 1 + core.contention * share * max(0.0, (less / more - _APART) / (1 - _APART))
    wanted = chains_wanted(shape, core) if own is None or shape.unit else own.chains
    chains = shape.multiply_adds * shape.k_split / wanted
    strain = max(core.strain, _CONVERTING if shape.shuffles else 0)
    return cycles * (1 + strain * min(1, max(0, 3 - 2 * chains)))


def bounds(shape: TileShape, core: Core, own: Rates | None = None) -> dict[str, float]:
    """Return lower bounds of the cycles of a K step, by the part of the core that limits it."""
    if shape.unit is not None:
        found = {
            "multiply-add units": float(shape.rows * shape.columns),
            "loads": shape.loads / core.loads,
            "latency": shape.unit.latency / shape.k_split,
        }
        return found if shape.scaled is None else _of_matrices(shape, core, found)
    own, converting = own or rates(shape, core), shape.bands * shape.shuffles
    whole, core, narrow = core, own.core, shape.narrow_loads
    found = {
        "multiply-add units": shape.multiply_adds * own.between
        + converting * core.shared / core.fma_units,
        "loads": (shape.touched(whole) - narrow) / core.loads + narrow / own.scalars,
        "issue": (shape.issued + converting) / core.issue,
        "latency": own.latency / shape.k_split,
    }
    if shape.scaled is not None:
        return _of_block(shape, whole, found)
    if shape.form == "broadcast":
        shuffled = shape.arithmetic + shape.bands * shape.vector.broadcast_shuffles
        pairs = max(_pairs(shape) * core.spread / 2, shuffled / core.fma_units)
        if pairs > found["multiply-add units"]:
            # Broadcasts use the multiply-add units, too. The bound of both together is larger.
            found["broadcasts"] = pairs
    return found | {"conversions": converting / core.shuffles} if converting else found


def _pairs(shape: TileShape) -> int:
    """Return the number of multiply-adds and broadcasts that compete for the same units.

    They compete only in f32 and f64. Integers and groups of elements are broadcast by a load alone
    (``vpbroadcastd``), so the result is 0.
    """
    alone = shape.op.factors == ALIKE and not is_integer(shape.vector.element)
    return shape.multiply_adds + shape.bands if alone and shape.form == "broadcast" else 0


def _of_block(shape: TileShape, whole: Core, group: dict[str, float]) -> dict[str, float]:
    """Return the bounds of a block of K, given the bounds of a K group.

    Vectors that are shorter than the widest occupy a unit for the same time.
    """
    scaled, core = shape.scaled, whole.at(shape.vector.nbytes)
    assert scaled is not None
    if not scaled.apart:
        shorter = core.between("", 1) / whole.between("", 1)
        group = group | {"broadcasts": _pairs(shape) * whole.spread / 2 * shorter}
        operations = shape.arithmetic + shape.loads + UNPACKING * shape.vectors
        found = {name: cycles * scaled.groups for name, cycles in group.items()}
        return found | {"issue": scaled.groups * operations / core.issue}
    unpacking = shape.vectors * scaled.groups * scaled.parts
    loads = shape.vectors * scaled.lines + shape.bands * (scaled.groups + 2)
    ends = (scaled.scaling + WIDENING * scaled.runs) * shape.outputs
    arithmetic = shape.arithmetic * scaled.groups + ends + unpacking
    products = group["multiply-add units"] * scaled.groups
    # Integer products hide one FMA of each output, so it takes no time.
    hidden = shape.outputs if scaled.scaling > 1 else 0
    bytes_alone = scaled.fields == 1 and scaled.converting
    share = SHARED + (core.shared * (NARROWING - SHARED) if bytes_alone else 0)
    beside = ends - hidden + share * unpacking
    return {
        "multiply-add units": products,
        "products, unpacking and scaling": products + beside * core.between("", 1),
        "loads": loads / core.loads,
        "issue": (arithmetic + loads) / core.issue,
        "latency": group["latency"] * scaled.groups + scaled.scaling * core.fma_latency,
    }


def _of_matrices(shape: TileShape, core: Core, part: dict[str, float]) -> dict[str, float]:
    """Return the bounds of a block of K on a matrix unit, given those of a part of the block.

    Elements of B are stored before the products, and sums after them. Rows of sums are then loaded,
    scaled, and added to other sums in memory. Stores, vector work, and loads of A's rows from L2 do
    not overlap with each other, nor with the share ``TURNS`` of the products. This was measured on
    Granite Rapids.
    """
    scaled = shape.scaled
    assert scaled is not None
    parts, unpacked = scaled.groups / shape.groups, shape.vectors * scaled.groups
    loads = part["loads"] * core.loads * parts + 2 * (shape.outputs + shape.rows)
    loads += shape.vectors * scaled.lines
    stores = unpacked + 2 * shape.outputs
    arithmetic = unpacked * scaled.parts + scaled.scaling * shape.outputs
    products, rows = part["multiply-add units"] * parts, shape.rows * parts
    arrive = rows * core.line / core.second.rate
    return {
        "multiply-add units": products,
        "stores, scaling, and rows of A": stores / core.stores
        + arithmetic * core.between("", 1)
        + TURNS * products
        + arrive,
        "loads": loads / core.loads,
        "issue": (arithmetic + loads + stores) / core.issue,
        "latency": THROUGH * part["latency"] * parts + unpacked / core.stores,
    }


def tightest(each: dict[str, float]) -> str:
    """Return the name of the largest bound."""
    return max(each, key=lambda name: each[name])
