"""Measure the peak speed of one core: its multiply-adds per second, without loads or stores.

In goes a target with the types of A and B. Out come, for each multiply-add instruction, the
throughput of many independent chains and the latency of a single chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError, TargetError
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import ALIKE, MulAdd, Vector
from tilewright.keywords import spelled
from tilewright.plan.contraction import choose_product
from tilewright.runtime.call import dispatch, session
from tilewright.runtime.call.abi import loaded
from tilewright.runtime.call.bound_sizes import Array
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.damaged import kept
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import accumulator, is_integer, type_name

#: Numbers of independent chains of multiply-adds that are tried. The registers must hold one sum
#: for each chain, and two factors.
CHAINS = (8, 10, 12, 14, 16, 20, 24)
#: Operands through which multiply-adds of a chain depend on each other: the sum (``destination``),
#: or a factor (``source``) for compilers that do not keep the sum in one register. The faster
#: chain counts.
_THROUGH = ("source", "destination")
#: Approximate number of multiply-adds in a loop's body, and in one call.
_BODY, _CALL = 32, 1 << 14
_ROUNDS, _CALLS = 12, 8
_ADDS = 1 << 14


@dataclass(frozen=True, slots=True)
class Form:
    """Throughput and latencies of one multiply-add instruction.

    Attributes
    ----------
    mnemonic, vector : str
        The instruction, and the vector register that it works on.
    lanes : int
        Elements of a vector.
    gflops : float
        Throughput of the best number of chains, in GFLOPS.
    chains : int
        The best number of independent chains.
    source, destination : float
        Latency in nanoseconds from a factor, or from the sum, to the result. ``source`` is NaN if
        factors are held in registers of another type.
    source_cycles, destination_cycles : float
        The same latencies in cycles of the measured clock.
    """

    mnemonic: str
    vector: str
    lanes: int
    gflops: float
    chains: int
    source: float
    destination: float
    source_cycles: float
    destination_cycles: float


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak speed of one core with a target's multiply-add instructions.

    Attributes
    ----------
    target, type : str
        The target, and the types of A and B.
    gflops : float
        Throughput of the fastest form, in GFLOPS.
    clock : float
        Estimate of the clock in GHz, from a chain of integer additions of one cycle each.
    forms : tuple of Form
        Each multiply-add instruction that was measured.
    """

    target: str
    type: str
    gflops: float
    clock: float
    forms: tuple[Form, ...]


class Loop(NamedTuple):
    """A generated C function that is timed: a loop with ``chains`` independent chains of ``op``.

    ``x`` and ``y`` are the vectors that hold the factors, None if the sums' vector holds them.
    """

    name: str
    vector: Vector
    op: MulAdd
    chains: int
    through: str
    x: Vector | None = None
    y: Vector | None = None

    @property
    def unroll(self) -> int:
        """Number of multiply-adds of each chain in the loop's body."""
        return max(1, _BODY // self.chains)

    @property
    def trips(self) -> int:
        """Number of repetitions of the loop's body in one call."""
        return _CALL // (self.unroll * self.chains)

    @property
    def steps(self) -> int:
        """Number of multiply-adds of each chain in one call."""
        return self.trips * self.unroll

    @property
    def flops(self) -> int:
        """Floating-point operations of one call."""
        return 2 * self.op.rows * self.op.cols * self.op.depth * self.chains * self.steps


class Clock(NamedTuple):
    """The generated C function of dependent integer additions, from which the clock is
    estimated.
    """

    name: str = "peak_clock"
    unroll: int = _BODY
    adds: int = _ADDS

    @property
    def trips(self) -> int:
        """Number of repetitions of the loop's body in one call."""
        return self.adds // self.unroll


#: Types of A and B, then the type of the sums if it is not the default for A and B.
Types = tuple[str, ...]

_CLOCK = Clock()
_cached: dict[tuple[str, Types], Peak] = {}


@spelled(ArgumentTypeError)
def peak(target: str = "host", type: Any = "f32", *, cached: bool = False) -> Peak:
    """Measure the peak of one core with a target's multiply-adds; takes about 0.1 s.

    Multiply-adds are measured without conversions, loads and stores. The peak is that of the
    fastest instruction.

    Parameters
    ----------
    target : str
        Name of a target that this CPU runs natively.
    type : str or tuple
        Type of A and B. Or a pair, such as ``("u8", "s8")``. Or a triple whose last entry is the
        type of the sums, such as ``("s16", "s16", "s64")``.
    cached : bool
        If True, return an earlier measurement of this process if there is one.

    Returns
    -------
    Peak
        Throughput in GFLOPS, the clock in GHz, and each instruction's figures.

    Raises
    ------
    TargetError
        The CPU cannot run the target, the target cannot multiply the types, or kernels are called
        through Python (no compiled timer).

    Examples
    --------
    >>> found = tw.peak(type=("u8", "s8"))
    >>> found.gflops > 0, [form.mnemonic for form in found.forms]
    (True, [...])
    """
    found, types = _measurable(target), types_of(type)
    key = found.name, types
    if not cached or key not in _cached:
        _cached[key] = _measure(found, types)
    return _cached[key]


def types_of(given: Any) -> Types:
    """Return the types of A and B that ``given`` names, and the sums' type if not the default."""
    some = given if isinstance(given, (tuple, list)) and len(given) in (2, 3) else (given, given)
    names = tuple(type_name(each) for each in some)
    default = accumulator(*names[:2])
    return names[:2] if names[2:] in ((), (default,)) else names


def title_of(types: Types) -> str:
    """Return the types as a text for people, for example "u8 x s8"."""
    title = types[0] if types[0] == types[1] else " x ".join(types[:2])
    return title + (f", sums in {types[2]}" if len(types) > 2 else "")


def _sums(types: Types) -> str:
    """Return the type of the sums of products of A and B."""
    return types[2] if len(types) > 2 else accumulator(*types)


def _measure(target: Target, types: Types) -> Peak:
    loops = list(_loops(target, types))
    seconds = _seconds(target, types, [_CLOCK.name, *(loop.name for loop in loops)])
    clock = _CLOCK.adds / seconds[_CLOCK.name] / 1e9
    groups: dict[tuple[str, str], list[Loop]] = {}
    for loop in loops:
        groups.setdefault((loop.vector.name, loop.op.mnemonic), []).append(loop)
    forms = tuple(_form(group, seconds, clock) for group in groups.values())
    return Peak(target.name, title_of(types), max(form.gflops for form in forms), clock, forms)


def _form(loops: list[Loop], seconds: Mapping[str, float], clock: float) -> Form:
    best = max(loops, key=lambda loop: loop.flops / seconds[loop.name])
    single = {
        loop.through: seconds[loop.name] / loop.steps * 1e9 for loop in loops if loop.chains == 1
    }
    source, destination = single.get("source", nan), single["destination"]
    return Form(
        mnemonic=best.op.mnemonic,
        vector=best.vector.name,
        lanes=best.vector.lanes,
        gflops=best.flops / seconds[best.name] / 1e9,
        chains=best.chains,
        source=source,
        destination=destination,
        source_cycles=source * clock,
        destination_cycles=destination * clock,
    )


def _seconds(target: Target, types: Types, names: Iterable[str]) -> dict[str, float]:
    """Return the least time of a call of each C function, in seconds.

    Each round times all functions once.
    """
    timed = dispatch.timer("the peak")
    frames = {name: _frame(target, types, name) for name in names}
    least = dict.fromkeys(frames, float("inf"))
    for _ in range(_ROUNDS):
        for name, frame in frames.items():
            taken = timed(dispatch.address(frame.words), 1, _CALLS) / _CALLS
            least[name] = min(least[name], taken)
    return least


def clock(target: Target) -> float:
    """Return an estimate of the clock of this CPU in Hz, from a loop of integer additions."""
    return _CLOCK.adds / _seconds(target, types_of("f32"), [_CLOCK.name])[_CLOCK.name]


def _measurable(target: str) -> Target:
    found = host.resolve(target)
    if host.means(found) != "native":
        raise TargetError(
            f"the peak of {found.name} cannot be measured here",
            got=f"{host.cpu().name}, {host.means(found)}",
            expected=f"a CPU with {found.title}",
            hint="target='host'",
        )
    return found


# --- measured beside other things --------------------------------------------------------------


class PeakCall(NamedTuple):
    """The fastest loop of multiply-adds as a C function that other benchmarks can call.

    The function at ``address`` has the parameters ``(const void *, const void *, void *)``.
    ``flops`` are the operations of one call. ``operands`` are the addresses of three arrays, which
    ``keep`` holds alive.
    """

    address: int
    flops: int
    operands: tuple[int, int, int]
    keep: tuple[Any, ...]


def peak_call(target: str = "host", type: Any = "f32") -> PeakCall:
    """Return the fastest loop of multiply-adds as a C function, to be timed in turns with kernels.

    Raise TargetError for the same reasons as ``peak``.
    """
    found, types = _measurable(target), types_of(type)
    loop = _best_loop(found, types)
    frame = _frame(found, types, loop.name)
    first, second, third = (dispatch.address(memory) for memory in frame.memory)
    address = dispatch.symbol(_library(found, types), loop.name)
    return PeakCall(address, loop.flops, (first, second, third), frame.memory)


class Meter:
    """Measures the peak of a native target, again in each round of a benchmark.

    ``type`` is the argument of ``peak``.
    """

    def __init__(self, target: Target, type: Any) -> None:
        types = types_of(type)
        self.loop = _best_loop(target, types)
        self._frame = _frame(target, types, self.loop.name)

    def seconds(self) -> float:
        """Return the time of one call of the fastest loop, in seconds."""
        timed = dispatch.timer("the peak")
        return timed(dispatch.address(self._frame.words), 1, _CALLS) / _CALLS


class AtPeak:
    """Measures how long the multiply-adds of a call take at the peak of a native target.

    ``work`` has their floating-point operations, by the types of A and B. If it is empty, one call
    of a loop of multiply-adds in f32 is measured: it tells only the clock rate.
    """

    def __init__(self, target: Target, work: Mapping[Types, int]) -> None:
        if work:
            meters = [(Meter(target, types), flops) for types, flops in work.items()]
            self._shares = [(meter, flops / meter.loop.flops) for meter, flops in meters]
        else:
            self._shares = [(Meter(target, "f32"), 1.0)]

    def seconds(self) -> float:
        """Return the seconds at the peak, measured now."""
        return sum(share * meter.seconds() for meter, share in self._shares)


@cache
def _best_loop(target: Target, types: Types) -> Loop:
    """Return the loop with the most flops per second. The choice is made once per process."""
    loops = [loop for loop in _loops(target, types) if loop.chains > 1]
    seconds = _seconds(target, types, [loop.name for loop in loops])
    return max(loops, key=lambda loop: loop.flops / seconds[loop.name])


# --- the library of chains ---------------------------------------------------------------------


def _loops(target: Target, types: Types) -> Iterator[Loop]:
    """Yield loops for each multiply-add instruction, without those that read memory."""
    held = _sums(types)
    if not target.of(held):
        raise TargetError(f"{target.name} has no vectors of {held}")
    given = dict(zip("ab", types, strict=False))
    products = {choose_product(target, given, along, held=held).op for along in "ab"}
    forms = {op.form for op in products}
    if forms == {"matrix"}:
        yield from _matrix_loops(target, held, products)
        return
    if forms == {"block"}:
        yield from _block_loops(target, held, products)
        return
    factors = {op.factors for op in products}
    for vector in target.of(held):
        known: set[str] = set()
        for op in vector.muladd:
            if op.form == "memory" or op.mnemonic in known or op.factors not in factors:
                continue
            known.add(op.mnemonic)
            x, y = _holding(target, op)
            stem = f"peak_{vector.name}_{op.form}{len(known)}"
            alike = x is None or x.ctype == vector.ctype
            for chains, through in _chains(target, vector, alike=alike):
                yield Loop(f"{stem}_{through}_{chains}", vector, op, chains, through, x, y)


def _block_loops(target: Target, held: str, products: set[MulAdd]) -> Iterator[Loop]:
    """Yield loops for a matrix unit that multiplies vectors, one for each number of chains."""
    assert target.matrix is not None
    asked = (op for op in target.matrix.products[held] if op in products)
    for number, op in enumerate(asked):
        vector = target.holding(held, op.cols)
        x, y = (
            target.holding(element or held, lines * op.depth)
            for element, lines in ((op.x, op.cols), (op.y, op.rows))
        )
        for chains in range(1, target.matrix.registers[held] + 1):
            yield Loop(f"peak_block{number}_{chains}", vector, op, chains, "destination", x, y)


def _matrix_loops(target: Target, held: str, products: set[MulAdd]) -> Iterator[Loop]:
    """Yield loops for a matrix unit, one for each number of chains; two registers hold A and B."""
    assert target.matrix is not None
    for op in (op for op in target.matrix.products[held] if op in products):
        vector = replace(target.of(held)[0], name=target.matrix.name, muladd=())
        for chains in range(1, target.matrix.registers[held] - 1):
            yield Loop(f"peak_{op.mnemonic}_{chains}", vector, op, chains, "destination")


def _chains(target: Target, vector: Vector, *, alike: bool) -> Iterator[tuple[int, str]]:
    """Yield numbers of chains, each with the operand through which the chain's steps depend.

    A chain goes through a factor only if the factor's register has the type of the sums. If a
    vector occupies several registers, fewer chains fit.
    """
    for chains in dict.fromkeys((1, *(chains // vector.registers for chains in CHAINS))):
        for through in _THROUGH if alike else _THROUGH[1:]:
            fits = (chains + 2) * vector.registers <= target.registers
            if chains == 1 or (fits and (through == "destination" or not target.hints)):
                yield chains, through


def _holding(target: Target, op: MulAdd) -> tuple[Vector | None, Vector | None]:
    """Return the vector types that hold the two factors, None if they are those of the sums."""
    if op.factors == ALIKE:
        return None, None
    return target.holding(op.x, op.cols * op.depth), target.holding(op.y, op.groups * op.depth)


@cache
def _library(target: Target, types: Types) -> Path:
    named = host.user_compiler(target, "native")
    key = store.key("peak", target.name, *types, *([] if named is None else [named]))
    return kept(key, lambda folder: _build(target, types, folder), loaded)


def _build(target: Target, types: Types, folder: Path) -> Mapping[str, Any]:
    from tilewright.runtime.build.compilers import find_compiler
    from tilewright.runtime.build.toolchain import compile_library

    compiler = find_compiler(target, emulated=False)
    library = compile_library(peak_source(target, types), target, compiler, folder, "peak")
    return {"library": library.name, "source": "peak.c", "compiler": str(compiler)}


def peak_source(target: Target, types: Types) -> str:
    """Return the C text of all loops that measure a target's peak for A and B of ``types``."""
    from tilewright.generate import VERSION
    from tilewright.runtime.store.compiled import render

    return render(
        "peak/peak.c.j2",
        version=VERSION,
        target=target,
        mode=target.mode,
        clock=_CLOCK,
        loops=list(_loops(target, types)),
        matrix=_unit(target, types),
        called=True,
    )


def program_context(target: Target, types: Types, *, alone: bool) -> dict[str, Any]:
    """Return template variables for the loops. Unless ``alone``, single chains are left out."""
    held = _sums(types)
    loops = [loop for loop in _loops(target, types) if alone or loop.chains > 1]
    return {
        "target": target,
        "mode": target.mode,
        "clock": _CLOCK,
        "loops": loops,
        "matrix": _unit(target, types),
        "called": False,
        "held": held,
        "factor": 1 if is_integer(held) else 0.5,
        "elements": _elements(target, held),
        "title": title_of(types),
    }


def _elements(target: Target, held: str) -> int:
    """Return how many elements each of a loop's three arrays must have."""
    return max(CHAINS) * target.of(held)[0].lanes * (target.matrix.rows if target.matrix else 1)


def _unit(target: Target, types: Types) -> MatrixUnit | None:
    """Return the matrix unit if it multiplies ``types``, else None."""
    matrices = any(loop.op.form == "matrix" for loop in _loops(target, types))
    return target.matrix if matrices else None


class _Frame(NamedTuple):
    """The C ``struct tw_frame`` of one call, and the arrays that it points to."""

    words: Array
    memory: tuple[Array, ...]
    pointers: Array


def _frame(target: Target, types: Types, name: str) -> _Frame:
    library = _library(target, types)
    held = _sums(types)
    if (unit := _unit(target, types)) is not None:
        session.ask_consent(unit.name, unit.consent)
    size = _elements(target, held)
    memory = tuple(np.full(size, 1 if is_integer(held) else 0.5, DTYPES[held]) for _ in range(3))
    pointers = np.array([dispatch.address(block) for block in memory], np.int64)
    words = [
        dispatch.symbol(library, f"{name}_invoke"),
        dispatch.symbol(library, "peak_scratch_bytes"),
        dispatch.address(pointers),
        0,
        0,
    ]
    return _Frame(np.array(words, np.int64), memory, pointers)
