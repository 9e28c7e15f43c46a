"""What is known of processors, compilers and emulators of a target, beside its instructions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the cost model knows of the core: per cycle, unless it is a latency in cycles.

    ``line`` is the length of a cache line in bytes; ``shuffles`` are permutations of vectors.
    ``overlap`` is what a bound of a K step that is not the tightest still costs, as a share of
    itself; ``idle`` the latencies of a multiply-add that a tile loses between its K loop and those
    of its neighbours. A step whose chains only just hide the latency takes longer by ``strain``, a
    share of it, and less of that the more there are, up to half as many again. The first ``hidden``
    vectors of a tile's results are stored while others multiply, each further one holds them up for
    ``late`` stores. ``beside`` is the share of the time of conversions between tiles that the
    tiles' multiply-adds do not hide.
    """

    fma_latency: int
    fma_units: int
    loads: int
    stores: int
    issue: int
    shuffles: int = 1
    line: int = 64
    overlap: float = 1 / 16
    idle: float = 3
    strain: float = 0
    hidden: int = 0
    late: float = 1
    beside: float = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How to keep compilers from moving accumulators between registers.

    ``constraint`` is the letter of a vector register in GNU inline assembly. With ``operands`` the
    factors are held too, while they are used again: else gcc and clang overwrite them with the
    sum (a copy each step), or read them from memory once per use. With ``pointers`` the addresses
    of a tile are not known outside of it: where loads of parts of a vector take no offset, clang
    else computes every address ahead of the loop over tiles, and spills them. With ``lanes`` a
    factor of which one element multiplies counts as changed by each multiply-add: gcc else spreads
    an element that is used again over a register of its own. ``spare`` is the number of vector
    registers that compilers need for themselves all the same.
    """

    constraint: str
    operands: bool
    pointers: bool
    lanes: bool
    spare: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """How a CPU without the target runs it: qemu's user-mode program and its ``-cpu``.

    ``overread`` bytes behind an array may be read by that qemu though the CPU would not; they
    are never used. ``header`` is a template that defines the target's intrinsics in plain C.
    """

    qemu: str | None = None
    cpu: str = "max"
    overread: int = 0
    header: str | None = None
