"""The space of cases: specs, schedules and run-time values, dealt so that every level occurs.

A case is made from (seed, target, index) alone: ``--case avx2_017 --seed 0`` runs it again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.ir.nodes import walk
from tilewright.ir.ops import TileProgram
from tilewright.isa.target import Target
from tilewright.lower.nest import calls as tile_set
from tilewright.lower.nest.build import make_program
from tilewright.lower.tile.assemble import lower_tile
from tilewright.lower.tile.tile import Tile
from tilewright.plan.by_rows import plan_product
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Addresses, Batch, Matrix, Offsets, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Dim, Size

Rng = np.random.Generator

#: Every factor's levels; each is dealt equally often over the cases of a target.
LEVELS: dict[str, tuple[Any, ...]] = {
    "orders": ("CCC", "CCF", "CFC", "CFF", "FCC", "FCF", "FFC", "FFF"),
    "type": ("f32", "f64", "f32"),
    "sizes": ("any", "any", "small", "long k", "row", "round", "round", "zero"),
    "dims": ("", "", "", "m", "n", "k", "mn", "nk", "mnk", "mk"),
    "multiple": (1, 1, 4, 16, 6),
    "leading": ("tight", "tight", "literal", "runtime", "mixed"),
    "alpha": (1.0, 1.0, -1.0, 2.0, 0.0, "scalar"),
    "beta": (0.0, 0.0, 1.0, 1.0, -0.5, "scalar"),
    "batch": ("none", "none", "none", "strided", "offsets", "addresses"),
    "count": (3, 1, "runtime", 2, "runtime", 0, 5),
    "strides": ("tight", "zero", "literal", "runtime", "overlapping"),
    "schedule": (
        "default", "default", "tile", "loops", "blocks", "unroll", "tails", "overlap", "all",
    ),
    "tails": ("auto", "mask", "narrow", "bounce"),
    "pack": (None, None, None, "a", "b", "ab"),
    "vectorize": (None, None, None, None, None, "m", "n", "k"),
}  # fmt: skip
LOOPS = (
    "nmk", "mnk", "knm", "kmn", "nkm", "mkn", "nm", "knmk", "nkmk", "mnmk", "nmnk", "mnkmnk",
    "nkmnmk", "mknmk",
)  # fmt: skip
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16)
COLUMNS = (1, 3, 4, 5, 6, 8, 12, 16, 16, 24, 32, 48)
#: Kinds of schedules that say what becomes of tails.
TAILED = ("tails", "tile", "all")
#: Run-time alpha and beta: dyadic, so that integer-valued inputs give exact results.
SCALARS = (1.0, 0.0, -1.5, 2.0, 0.25)
#: Operations of a program that takes long to compile, and shows no more than others do.
LARGE = 1500
ROUND = (4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and the run-time sizes and scalars it is called with."""

    name: str
    target: Target
    spec: Gemm
    schedule: Schedule
    values: tuple[tuple[str, int], ...]
    scalars: tuple[float, ...]

    def __str__(self) -> str:
        spec, at = self.spec, dict(self.values)
        orders = "".join(getattr(spec, name).order for name in "abc")
        shape = "x".join(str(self.size(slot, getattr(spec, slot))) for slot in "mnk")
        told = {"alpha": spec.alpha, "beta": spec.beta, "batch": spec.batch}
        told |= {ld: getattr(spec, ld) for ld in ("lda", "ldb", "ldc")}
        plain = Schedule()
        chosen = {
            f.name: getattr(self.schedule, f.name)
            for f in fields(self.schedule)
            if getattr(self.schedule, f.name) != getattr(plain, f.name)
        }
        return f"{self.name}: {spec.type} {shape} {orders} {told} {chosen} at run time {at}"

    def size(self, slot: str, given: Size | None) -> int:
        """The number that ``given``, the spec's entry for ``slot``, stands for in this call."""
        if isinstance(given, Dim):
            return dict(self.values)[slot]
        assert given is not None
        return given


def rng_of(*key: object) -> Rng:
    """A generator that depends on the key alone, on every machine and Python."""
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


@cache
def case(target: Target, seed: int, index: int) -> Case:
    """Case ``index`` of ``target``; over the indices every factor's levels occur equally often."""
    hand = {
        factor: _dealt(levels, index, (seed, target.name, factor))
        for factor, levels in LEVELS.items()
    }
    return _case(target, f"{target.name.replace('.', '_')}_{index:03}", hand, seed)


def _dealt(levels: Sequence[Any], index: int, key: tuple[object, ...]) -> Any:
    deal, card = divmod(index, len(levels))
    return levels[rng_of(*key, deal).permutation(len(levels))[card]]


def _case(target: Target, name: str, hand: dict[str, Any], seed: int) -> Case:
    rng = rng_of(seed, name)
    if hand["schedule"] == "overlap":  # legal for few specs only
        fixed = hand["dims"].translate(str.maketrans("", "", "mn"))
        hand |= {"beta": 0.0, "dims": fixed, "sizes": "round" if rng.random() < 0.3 else "any"}
    if hand["tails"] == "bounce" and hand["schedule"] in TAILED:
        hand |= _bouncing(hand, rng)
    if hand["vectorize"] == "k" and not hand["pack"]:
        hand["orders"] = f"CF{hand['orders'][2]}"
    spec, values = _spec(hand, rng)
    scalars = tuple(
        float(rng.choice(SCALARS)) for factor in (spec.alpha, spec.beta) if factor == "scalar"
    )
    schedule = _legal(spec, target, _schedules(spec, hand, rng))
    return Case(name, target, spec, schedule, tuple(values.items()), scalars)


def _bouncing(hand: dict[str, Any], rng: Rng) -> dict[str, Any]:
    """What makes tails='bounce' legal: vectors along m or n, of a size known when compiled."""
    dims = hand["dims"]
    if {*"mn"} <= {*dims}:
        dims = dims.replace(str(rng.choice(list("mn"))), "")
    along = [letter for letter in "mn" if letter not in dims]
    return {"dims": dims, "vectorize": str(rng.choice(["", *along])) or None}


# --- specs -------------------------------------------------------------------------------------


def _spec(hand: dict[str, Any], rng: Rng) -> tuple[Gemm, dict[str, int]]:
    """A spec and the values of its run-time sizes."""
    values: dict[str, int] = {}
    actual, declared = _sizes(hand, rng, values)
    orders = dict(zip("abc", hand["orders"], strict=True))
    leading = _leading(hand["leading"], orders, actual, rng, values)
    matrices = {name: Matrix(hand["type"], order) for name, order in orders.items()}
    options: dict[str, Any] = {**declared, **matrices, **leading}
    spec = Gemm(
        **options,
        alpha=hand["alpha"],
        beta=hand["beta"],
        batch=_batch(hand, actual, rng, values),
    )
    slots = [slot for slot, _ in spec.runtime_sizes()]
    return spec, {slot: values[slot] for slot in slots}


def _sizes(
    hand: dict[str, Any], rng: Rng, values: dict[str, int]
) -> tuple[dict[str, int], dict[str, Size]]:
    m, n, k = (int(x) for x in rng.integers(1, 71, 3))
    match hand["sizes"]:
        case "small":
            m, n, k = (int(x) for x in rng.integers(1, 13, 3))
        case "long k":
            m, n, k = m % 10 + 1, n % 20 + 1, 60 + k % 11
        case "row":
            m, n = (1, n) if k % 2 else (m, 1)
        case "round":
            m, n, k = (int(x) for x in rng.choice(ROUND, 3))
    actual = {"m": m, "n": n, "k": k}
    if hand["sizes"] == "zero":
        actual[str(rng.choice(list("mnk")))] = 0
    declared: dict[str, Size] = dict(actual)
    for slot in hand["dims"]:
        multiple = hand["multiple"] if rng.random() < 0.7 else 1
        actual[slot] = -(-actual[slot] // multiple) * multiple
        most = 96 if rng.random() < 0.2 else None
        declared[slot] = Dim(slot.upper(), multiple, most)
        values[slot] = actual[slot]
    return actual, declared


def _leading(
    kind: str, orders: dict[str, str], actual: dict[str, int], rng: Rng, values: dict[str, int]
) -> dict[str, Size | None]:
    leading: dict[str, Size | None] = {}
    lines = {"a": ("m", "k"), "b": ("k", "n"), "c": ("m", "n")}
    for name, order in orders.items():
        each = str(rng.choice(["tight", "literal", "runtime"])) if kind == "mixed" else kind
        tight = actual[lines[name][order == "C"]]
        ld, slot = max(1, tight) + int(rng.choice([0, 1, 3, 8])), f"ld{name}"
        fixed = each == "literal" and lines[name][order == "C"] not in values
        leading[slot] = ld if fixed else None
        if each == "runtime":
            leading[slot], values[slot] = Dim(slot), ld
    return leading


def _batch(
    hand: dict[str, Any], actual: dict[str, int], rng: Rng, values: dict[str, int]
) -> Batch | None:
    kind, count = hand["batch"], hand["count"]
    if kind == "none":
        return None
    if count == "runtime":
        values["count"] = int(rng.choice([0, 1, 2, 4, 7]))
        count = Dim("batch")
    if kind == "addresses":
        return Addresses(count)
    if kind == "strided":
        return Strided(count, *(_stride(hand["strides"], s, actual, rng, values) for s in "ab"))
    if hand["strides"] in ("runtime", "tight") or not isinstance(count, int):
        return Offsets(count)
    offsets = [tuple(int(x) for x in rng.integers(0, 200, count)) for _ in "ab"]
    return Offsets(count, offsets[0], offsets[1] if hand["strides"] != "zero" else None)


def _stride(
    kind: str, name: str, actual: dict[str, int], rng: Rng, values: dict[str, int]
) -> Size | None:
    elements = actual["m" if name == "a" else "n"] * actual["k"]
    apart = elements * 2 + int(rng.integers(0, 9))
    match kind:
        case "zero":
            return 0 if name == "a" or rng.random() < 0.5 else None
        case "literal":
            return apart
        case "overlapping":
            return int(rng.integers(1, 9))
        case "runtime":
            values[f"stride_{name}"] = apart if rng.random() < 0.7 else 0
            return Dim(f"stride_{name}")
    return None


# --- schedules ---------------------------------------------------------------------------------


class _LargeError(Exception):
    """A program with more than ``LARGE`` operations, which are not counted to their end."""


def operations(spec: Gemm, schedule: Schedule, target: Target) -> int:
    """How many there are in the program: what it costs to compile."""
    return _counted(spec, schedule, target, None)


def _counted(spec: Gemm, schedule: Schedule, target: Target, most: int | None) -> int:
    """The number of operations; _LargeError as soon as its tiles have more than ``most``."""
    made, lower = 0, lower_tile

    def count(tile: Tile, name: str) -> TileProgram:
        nonlocal made
        program = lower(tile, name)
        made += sum(1 for _ in walk(program.body + program.end))
        if most is not None and made > most:
            raise _LargeError
        return program

    with mock.patch.object(tile_set, "lower_tile", count):
        program = make_program(plan_product(spec, schedule, target))
    return sum(1 for tile in program.tiles for _ in walk(tile.body + tile.end))


def _legal(spec: Gemm, target: Target, schedules: Iterator[Schedule]) -> Schedule:
    """The first that is not refused and makes no large program; the default one must be legal."""
    for schedule in schedules:
        try:
            if _counted(spec, schedule, target, LARGE) > LARGE:
                continue
        except (ScheduleError, _LargeError):
            continue
        except Exception:  # noqa: BLE001, the test that compiles the case will show it
            return schedule
        return schedule
    return Schedule()


def _schedules(spec: Gemm, hand: dict[str, Any], rng: Rng) -> Iterator[Schedule]:
    kind = hand["schedule"]
    for attempt in range(40 if kind != "default" else 0):
        simpler = attempt >= 25
        chosen: dict[str, Any] = {}
        if kind in ("tile", "overlap", "all") and not simpler:
            most = (spec.m, spec.n) if kind == "overlap" else (70, 70)
            chosen["tile"] = (_up_to(ROWS, most[0], rng), _up_to(COLUMNS, most[1], rng))
        if kind in ("loops", "blocks", "all"):
            chosen |= _loops(spec, rng, blocks=kind == "blocks")
        if kind in ("unroll", "all"):
            chosen |= _unroll(rng)
        if kind in TAILED:
            chosen["tails"] = hand["tails"]
        if kind == "overlap" and not simpler:
            chosen["tails"] = "overlap"
        if kind != "overlap" and attempt < 15:
            chosen["pack"] = hand["pack"]
        if attempt < 20:
            chosen["vectorize"] = hand["vectorize"]
        if rng.random() < 0.1:
            chosen["prefetch"] = int(rng.integers(1, 9))
        yield Schedule(**chosen)


def _up_to(levels: tuple[int, ...], most: Size, rng: Rng) -> int:
    return int(rng.choice([level for level in levels if isinstance(most, int) and level <= most]))


def _loops(spec: Gemm, rng: Rng, *, blocks: bool) -> dict[str, Any]:
    several = [loops for loops in LOOPS if any(loops.count(x) > 1 for x in "mnk")]
    loops = str(rng.choice(several if blocks else LOOPS))
    if spec.batch is not None:
        at = int(rng.integers(0, len(loops) + 1))
        if loops.endswith("k") and at == len(loops):
            at -= 1
        loops = f"{loops[:at]}b{loops[at:]}"
    sizes = {"m": (3, 8, 16, 30), "n": (5, 16, 24, 32), "k": (1, 5, 8, 24)}
    block = {x: int(rng.choice(sizes[x])) for x in "mnk" if loops.count(x) == 2}
    return {"loops": loops, "block": block}


def _unroll(rng: Rng) -> dict[str, Any]:
    split = int(rng.choice([1, 2, 3, 4]))
    times = int(rng.choice([1, 2, 3]))
    either = rng.random()
    if either < 0.3:
        return {"k_unroll": int(rng.choice([1, 2, 3, 5, 8]))}
    return {"k_split": split} if either < 0.6 else {"k_split": split, "k_unroll": split * times}
