"""The loops that measure a core: multiply-adds, and what else a kernel does, each by itself.

They are written in C by a template, in the words of the target, and compiled into one library.
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

#: Chains of multiply-adds side by side: they hide the latency of any, and fit 16 registers.
CHAINS = 12
#: Operations in a loop's body and in a call, about.
_BODY, _CALL = 48, 4096
#: Multiply-adds beside a conversion, where it is measured whether it takes one's place.
MULADDS_BESIDE = 3
#: Bytes that loops read and write, all in the first cache; and what unaligned pointers are off by.
_BYTES, OFFSET = 8192, 4
#: What stands in a body: the kind of an operation, and which chain, register or place it takes.
Step = tuple[str, int]
#: A few multiply-adds, loads and additions of integers, which together keep the front end busy.
_MIXES = ((1, 1, 2), (2, 2, 4), (2, 2, 6), (1, 2, 3), (1, 1, 4))


class Clock(NamedTuple):
    """The function of dependent additions, a cycle each."""

    name: str = "calibrate_clock"
    unroll: int = 32
    trips: int = 128

    @property
    def adds(self) -> int:
        """Additions of a call."""
        return self.unroll * self.trips


class Stream(NamedTuple):
    """The function that reads memory, in whole vectors, so many of them a trip."""

    name: str = "calibrate_stream"
    unroll: int = 8


@dataclass(frozen=True, slots=True)
class Loop:
    """A function that is measured: ``trips`` of ``body``, in which ``counted`` operations matter.

    ``kind`` is what is measured: a kind of operation, ``latency``, ``unaligned`` or ``issue``.
    ``x`` and ``y`` hold the factors of ``op``, None where they are held as the sums are.
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
        """Repetitions of the body."""
        return max(1, _CALL // len(self.body))

    @property
    def count(self) -> int:
        """Operations of a call that are counted."""
        return self.trips * self.counted


CLOCK, STREAM = Clock(), Stream()
NOTHING, SCRATCH = "calibrate_nothing", "calibrate_scratch_bytes"


@cache
def loops_of(target: Target) -> tuple[Loop, ...]:
    """Every loop for the vectors of ``target``; the first is the reference, f32 multiply-adds."""
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
    """Rate and latency of each multiply-add of a vector, once."""
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
    """What else is done with a vector of f32."""
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
    """A few multiply-adds, and a conversion, in turn."""
    body: list[Step] = []
    turns = 2 * CHAINS // MULADDS_BESIDE
    for turn in range(turns):
        body += [("muladd", (turn * MULADDS_BESIDE + i) % CHAINS) for i in range(MULADDS_BESIDE)]
        body += [("convert", turn)]
    title = f"{vector.fma.mnemonic} and conversions on {vector.name}"
    name = f"calibrate_{vector.name}_shared"
    return Loop(name, "shared", title, vector, vector.fma, CHAINS, tuple(body), turns)


def _mixed(vector: Vector, number: int, mix: tuple[int, int, int]) -> Loop:
    """Multiply-adds, loads and additions in turn; the loop's own two instructions count too."""
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
    """The C text of all loops."""
    from tilewright.emit.render import render
    from tilewright.generate import VERSION

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
    """The compiled loops, from the cache if they are there."""
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
    """A function of the library on memory of its own, or ``given``, as the timer takes it."""

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
        """Seconds of one of so many calls."""
        return dispatch.timer("a calibration")(dispatch.address(self._words), 1, calls) / calls


def _aligned(nbytes: int, value: float) -> Array:
    """Numbers of f32 that begin a page."""
    page = 4096
    memory = np.zeros(nbytes + page, np.uint8)
    skip = -memory.ctypes.data % page
    found: Array = memory[skip : skip + nbytes].view(np.float32)
    found[:] = value
    return found
