"""Turn the loops' cycles into a core's numbers: operations per cycle, and latencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from tilewright.errors import TargetError
from tilewright.isa.machine import Core, Speed, Width
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector

from .loops import MULADDS_BESIDE, OFFSET, Loop, loops_of

#: A measured number of cycles counts as an entry of ``_STARTS`` if the quotient measured / entry is
#: between these two factors. The upper factor is farther from 1, because disturbances only add
#: cycles.
_ABOVE, _BELOW = 1.12, 0.96
#: Possible numbers of cycles between two starts of an instruction. Hardware starts several
#: instructions in one cycle, or one in several cycles.
_STARTS = (1 / 6, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 1, 4 / 3, 3 / 2, 2, 5 / 2, 3, 4, 6, 8)


def starts(cycles: float) -> float:
    """Return the entry of ``_STARTS`` that is nearest to ``cycles``, a measured number of cycles.

    If no entry is near, the result is ``cycles`` with two digits.
    """
    near = [each for each in _STARTS if _BELOW <= cycles / each <= _ABOVE]
    return min(near, key=lambda each: abs(each - cycles), default=float(f"{cycles:.2g}"))


def is_rate(instructions: float) -> bool:
    """Return True if this number of instructions per cycle is possible in hardware."""
    return instructions in map(rate, _STARTS)


def rate(cycles: float) -> float:
    """Return the instructions per cycle, given the measured cycles of one instruction."""
    return float(f"{1 / starts(cycles):.3g}")


def latency(cycles: float) -> float:
    """Return a measured latency as a whole number of cycles, at least 1."""
    return max(1, round(cycles))


def units(target: Target, cycles: Mapping[str, float], kept: Core) -> Core:
    """Return a Core whose numbers come from the measured ``cycles``, a dict by the loops' names.

    Numbers that were not measured are taken from ``kept``.
    """
    each = {(loop.kind, loop.vector): (cycles[loop.name] / loop.count) for loop in _plain(target)}
    vectors = [vector for vector in target.of("f32") if vector.lanes > 1]
    widths = sorted((_width(vector, each, kept) for vector in vectors), key=lambda w: w.bytes)
    widest = widths[-1]
    speeds = tuple(sorted(_speeds(target, cycles), key=lambda s: (s.mnemonic, s.bytes)))
    own = target.of("f32")[0].fma.mnemonic
    fma = next((s for s in speeds if s.mnemonic == own and s.bytes == widest.bytes), None)
    if fma is None:
        raise TargetError(f"{target.name} has no multiply-add of f32 that can be measured")
    issued = max(
        loop.count / cycles[loop.name] for loop in loops_of(target) if loop.kind == "issue"
    )
    special = {s.mnemonic for s in speeds if not _is_usual(s, target, widths, fma.latency)}
    return replace(
        kept,
        fma_latency=fma.latency,
        fma_units=widest.fma_units,
        loads=widest.loads,
        stores=widest.stores,
        shuffles=widest.shuffles,
        spread=widest.spread,
        shared=widest.shared,
        issue=float(f"{issued:.2g}"),
        crossing=_crossing(vectors[0], each, kept.line),
        widths=tuple(width for width in widths[:-1] if _differs(width, widest)),
        speeds=_different([s for s in speeds if s.mnemonic in special]),
    )


def _plain(target: Target) -> Iterator[Loop]:
    """Yield the loops on f32 vectors with the default multiply-add, without instruction mixes."""
    for loop in loops_of(target):
        if loop.vector.element == "f32" and loop.op is loop.vector.fma and loop.kind != "issue":
            yield loop


def _width(vector: Vector, each: Mapping[tuple[str, Vector], float], kept: Core) -> Width:
    shuffle = each.get(("shuffle", vector))
    return Width(
        bytes=vector.nbytes,
        fma_units=rate(each["muladd", vector]),
        loads=rate(each["load", vector]),
        stores=rate(each["store", vector]),
        shuffles=kept.shuffles if shuffle is None else rate(shuffle),
        spread=_spread(each, vector),
        shared=_shared(each, vector),
    )


def _shared(each: Mapping[tuple[str, Vector], float], vector: Vector) -> float:
    """Return the share of conversions that take the place of a multiply-add.

    The share is computed from a loop with a few multiply-adds for each conversion.
    """
    together = each.get(("shared", vector))
    if together is None:
        return 0
    place = each["muladd", vector]
    taken = together / place - MULADDS_BESIDE
    return min(1.0, round(taken, 1)) if taken > _ABOVE - 1 else 0


def _spread(each: Mapping[tuple[str, Vector], float], vector: Vector) -> float:
    """Return the cycles of a multiply-add with a broadcast factor, 0 if the two overlap fully."""
    both = starts(each["spread", vector])
    alone = max(starts(each[kind, vector]) for kind in ("muladd", "broadcast"))
    return both if both > _ABOVE * alone else 0


def _differs(one: Width, other: Width) -> bool:
    names = ("fma_units", "loads", "stores", "shuffles", "spread", "shared")
    return any(getattr(one, name) != getattr(other, name) for name in names)


def _crossing(vector: Vector, each: Mapping[tuple[str, Vector], float], line: int) -> float:
    """Return how many extra loads it costs to load a vector across two cache lines."""
    size = vector.nbytes
    share = (size - gcd(OFFSET, size)) / line
    more = each["unaligned", vector] / each["load", vector] - 1
    return float(f"{max(0.0, more / share):.2g}") if share else 1.0


def _speeds(target: Target, cycles: Mapping[str, float]) -> Iterator[Speed]:
    """Yield the measured speed of each multiply-add instruction for each vector size."""
    loops = [loop for loop in loops_of(target) if loop.kind in ("muladd", "latency")]
    found: dict[tuple[str, int], dict[str, float]] = {}
    for loop in loops:
        key = loop.op.mnemonic, loop.vector.nbytes
        each = cycles[loop.name] / loop.count
        found.setdefault(key, {})[loop.kind] = each
    for (mnemonic, size), both in found.items():
        between = starts(both["muladd"])
        yield Speed(
            mnemonic=mnemonic,
            bytes=size,
            cycles=between,
            latency=latency(both["latency"]),
        )


def _is_usual(speed: Speed, target: Target, widths: list[Width], usual: float) -> bool:
    """Return True if a multiply-add is as fast as the core's general numbers say.

    These are the rate of the core's multiply-add units, and the latency in the description of the
    instruction.
    """
    width = next(width for width in widths if width.bytes >= speed.bytes)
    ops = (op for v in target.vectors for op in v.muladd if op.mnemonic == speed.mnemonic)
    op = next(ops)
    between = op.instructions / width.fma_units
    return speed.cycles == between and speed.latency == (op.latency or usual)


def _different(speeds: list[Speed]) -> tuple[Speed, ...]:
    """Return the speeds without those that equal the speed on the next wider vector."""
    kept: list[Speed] = []
    for speed in reversed(speeds):
        wider = kept[-1] if kept and kept[-1].mnemonic == speed.mnemonic else None
        same = wider and (wider.cycles, wider.latency) == (speed.cycles, speed.latency)
        if not same:
            kept.append(speed)
    return tuple(reversed(kept))
