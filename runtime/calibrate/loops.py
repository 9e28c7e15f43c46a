"""Loops that measure a core: multiply-adds, and each other operation of a kernel by itself.

A template generates the loops as C code with the target's own instructions. All loops are compiled
into one library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Vector
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.abi import loaded
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.damaged import kept

#: Number of independent chains of multiply-adds. They hide any latency, and fit into 16 registers.
CHAINS = 12
#: Approximate number of operations in a loop's body, and in one call.
_BODY, _CALL = 48, 4096
#: Number of multiply-adds for each conversion in the loop that shows if conversions delay them.
MULADDS_BESIDE = 3
#: Size in bytes of each array that loops read and write. The arrays fit into L1.
_BYTES = 8192
#: Offset in bytes of the pointers in loops that measure unaligned loads.
OFFSET = 4
#: One operation of a loop's body: its kind, and the chain, register or address that it uses.
Step = tuple[str, int]
#: Mixes of instructions that keep the CPU's front end busy: in each, the numbers of multiply-adds,
#: loads and integer additions.
_MIXES = ((1, 1, 2), (2, 2, 4), (2, 2, 6), (1, 2, 3), (1, 1, 4))


class Clock(NamedTuple):
    """The C function of dependent integer additions, each of which takes one cycle."""

    name: str = "calibrate_clock"
    unroll: int = 32
    trips: int = 128

    @property
    def adds(self) -> int:
        """Number of additions in one call."""
        return self.unroll * self.trips


class Stream(NamedTuple):
    """The C function that reads memory in whole vectors, ``unroll`` of them per trip."""

    name: str = "calibrate_stream"
    unroll: int = 8


@dataclass(frozen=True, slots=True)
class Loop:
    """A C function that is timed. It repeats ``body``, which has ``counted`` measured operations.

    ``kind`` is what is measured: a kind of operation, ``latency``, ``unaligned`` or ``issue``.
    ``x`` and ``y`` are the vectors that hold the factors of ``op``, None if the sums' vector holds
    them.
    """

    name: str
    kind: str
    title: str
    vector: Vector
    op: MulAdd
    chains: int
    body: tuple[Step, ...]
    counted: int
    x: Vector | None = None
    y: Vector | None = None
    offset: int = 0
    through: str = "destination"

    @property
    def trips(self) -> int:
        """Number of repetitions of the loop's body in one call."""
        return max(1, _CALL // len(self.body))

    @property
    def count(self) -> int:
        """Number of measured operations in one call."""
        return self.trips * self.counted


CLOCK, STREAM = Clock(), Stream()
NOTHING, SCRATCH = "calibrate_nothing", "calibrate_scratch_bytes"


@cache
def loops_of(target: Target) -> tuple[Loop, ...]:
    """Return all loops for the vectors of ``target``. The first is the reference: f32
    multiply-adds.
    """
    found: list[Loop] = []
    for vector in target.vectors:
        if vector.lanes > 1 and vector.muladd:
            found += _muladds(target, vector)
    for vector in target.of("f32"):
        if vector.lanes > 1:
            found += _others(vector)
    first = next(loop for loop in found if loop.op is target.of("f32")[0].fma)
    return (first, *(loop for loop in found if loop is not first))


def _muladds(target: Target, vector: Vector) -> Iterator[Loop]:
    """Yield loops that measure rate and latency of a vector's multiply-add instructions."""
    known: set[str] = set()
    for op in vector.muladd:
        if op.form in ("memory", "scalar", "lane") or op.mnemonic in known or not op.mnemonic:
            continue
        known.add(op.mnemonic)
        x = target.holding(op.x, op.cols * op.depth) if op.x else None
        y = target.holding(op.y, op.groups * op.depth) if op.y else None
        for kind, chains in (("muladd", CHAINS), ("latency", 1)):
            steps = max(1, _BODY // chains) * chains
            body = tuple(("muladd", i % chains) for i in range(steps))
            name = f"calibrate_{vector.element}_{vector.name}_{len(known)}_{kind}"
            title = f"{chains} chains of {op.mnemonic} on {vector.name}"
            yield Loop(name, kind, title, vector, op, chains, body, steps, x, y)


def _others(vector: Vector) -> Iterator[Loop]:
    """Yield loops that measure loads, stores and all other operations on a vector of f32."""
    kinds = {"load": 0, "unaligned": OFFSET, "store": 0, "broadcast": 0}
    kinds |= {"shuffle": 0} if 1 in vector.transpose else {}
    kinds |= {"convert": 0} if "f16" in vector.loads else {}
    places = _BYTES // 2 // vector.nbytes
    for kind, offset in kinds.items():
        operation = "load" if kind == "unaligned" else kind
        body = tuple((operation, i % places) for i in range(_BODY))
        name = f"calibrate_{vector.name}_{kind}"
        title = f"{kind} of {vector.name}"
        yield Loop(name, kind, title, vector, vector.fma, 0, body, _BODY, offset=offset)
    body = tuple(("spread", i) for i in range(CHAINS))
    title = f"{CHAINS} chains of {vector.fma.mnemonic} on {vector.name}, each factor broadcast"
    name = f"calibrate_{vector.name}_spread"
    yield Loop(name, "spread", title, vector, vector.fma, CHAINS, body, CHAINS)
    if "f16" in vector.loads:
        yield _beside_conversions(vector)
    for number, mix in enumerate(_MIXES):
        yield _mixed(vector, number, mix)


def _beside_conversions(vector: Vector) -> Loop:
    """Return a loop that shows if conversions delay multiply-adds: it alternates both."""
    body: list[Step] = []
    turns = 2 * CHAINS // MULADDS_BESIDE
    for turn in range(turns):
        body += [("muladd", (turn * MULADDS_BESIDE + i) % CHAINS) for i in range(MULADDS_BESIDE)]
        body += [("convert", turn)]
    title = f"{vector.fma.mnemonic} and conversions on {vector.name}"
    name = f"calibrate_{vector.name}_shared"
    return Loop(name, "shared", title, vector, vector.fma, CHAINS, tuple(body), turns)


def _mixed(vector: Vector, number: int, mix: tuple[int, int, int]) -> Loop:
    """Return a loop of multiply-adds, loads and additions, to measure instructions per cycle.

    The two instructions that control the loop count too.
    """
    muladds, loads, adds = mix
    body: list[Step] = []
    for turn in range(2 * CHAINS // muladds):
        body += [("muladd", (turn * muladds + i) % CHAINS) for i in range(muladds)]
        body += [("load", turn * loads + i) for i in range(loads)]
        body += [("add", (turn * adds + i) % 6) for i in range(adds)]
    name = f"calibrate_{vector.name}_issue{number}"
    title = f"{muladds} multiply-adds, {loads} loads, {adds} additions in turn on {vector.name}"
    return Loop(name, "issue", title, vector, vector.fma, CHAINS, tuple(body), len(body) + 2)


# --- the library -------------------------------------------------------------------------------


def source(target: Target) -> str:
    """Return the C text of all loops that measure a target."""
    from tilewright.generate import VERSION
    from tilewright.runtime.store.compiled import render

    return render(
        "peak/calibrate.c.j2",
        version=VERSION,
        target=target,
        clock=CLOCK,
        nothing=NOTHING,
        scratch=SCRATCH,
        stream=STREAM,
        loops=loops_of(target),
    )


def library(target: Target) -> Path:
    """Return the path of the compiled loops, from the cache if they are in it."""
    named = host.user_compiler(target, "native")
    key = store.key("calibrate", target.name, *([] if named is None else [named]))
    return kept(key, lambda folder: _build(target, folder), loaded)


def _build(target: Target, folder: Path) -> Mapping[str, Any]:
    from tilewright.runtime.build.compilers import find_compiler
    from tilewright.runtime.build.toolchain import compile_library

    compiler = find_compiler(target, emulated=False)
    built = compile_library(source(target), target, compiler, folder, "calibrate")
    return {"library": built.name, "source": "calibrate.c", "compiler": str(compiler)}


class Function:
    """A C function of the library of loops with its arrays, which can be timed in a C loop."""

    def __init__(self, path: Path, name: str, given: tuple[Array, ...] | None = None) -> None:
        self._memory = given or tuple(_aligned(_BYTES, 1.0) for _ in range(3))
        self._pointers = np.array([dispatch.address(each) for each in self._memory], np.int64)
        self._words = np.array(
            [
                dispatch.symbol(path, f"{name}_invoke"),
                dispatch.symbol(path, SCRATCH),
                dispatch.address(self._pointers),
                0,
                0,
            ],
            np.int64,
        )

    def seconds(self, calls: int) -> float:
        """Return the seconds of a call, averaged over ``calls``."""
        return dispatch.timer("a calibration")(dispatch.address(self._words), 1, calls) / calls


def _aligned(nbytes: int, value: float) -> Array:
    """Return an f32 array that begins at a page, with ``value`` in every element."""
    page = 4096
    memory = np.zeros(nbytes + page, np.uint8)
    skip = -memory.ctypes.data % page
    found: Array = memory[skip : skip + nbytes].view(np.float32)
    found[:] = value
    return found
