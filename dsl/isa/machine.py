"""What is known of processors, compilers and emulators of a target, beside its instructions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cache:
    """A data cache, as far as one core may count on it.

    ``size`` is in bytes: of a cache that cores share, one core's share. ``rate`` is how many bytes
    a cycle it gives to loads of whole vectors.
    """

    size: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the cost model knows of a core.

    Per cycle: ``fma_units`` multiply-adds start, ``loads`` and ``stores`` of vectors, ``issue``
    instructions in all, and ``shuffles``, which permute a vector. ``fma_latency`` is in cycles,
    ``line`` the length of a cache line in bytes.

    ``overlap``: the share of its own cycles that each bound of a K step other than the tightest
    adds to the step. ``idle``: what a tile loses between its K loop and its neighbours', in
    latencies of a multiply-add. ``strain``: the share by which a step takes longer if its chains of
    multiply-adds just hide the latency; it falls to 0 at half as many chains again. ``hidden``:
    stores per tile that overlap with multiply-adds. ``late``: cost, in stores, of each further one.
    ``beside``: the share of the time of conversions between tiles that multiply-adds do not hide.

    ``caches`` come nearest first; ``memory`` is how many bytes a cycle come from beyond them.
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
    caches: tuple[Cache, ...] = (Cache(32 << 10, 64), Cache(512 << 10, 32), Cache(2 << 20, 10))
    memory: float = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerHints:
    """How to keep compilers from moving accumulators between registers.

    ``constraint`` is the letter of a vector register in GNU inline assembly. ``operands``: factors
    are kept in their registers too while they are used again; otherwise gcc and clang overwrite
    them with the sum, at the cost of a copy each step, or read them from memory once per use.
    ``pointers``: the addresses of a tile are hidden from the code around it; otherwise clang
    computes them all ahead of the loop over tiles, where partial loads take no offset, and spills
    them. ``lanes``: a factor of which one element multiplies counts as changed by each
    multiply-add; otherwise gcc broadcasts an element that is used again to a register of its own.
    ``spare`` is the number of vector registers that compilers need for themselves.
    """

    constraint: str
    operands: bool
    pointers: bool
    lanes: bool
    spare: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """How a CPU without the target runs it: qemu's user-mode program and its ``-cpu``.

    That qemu may read ``overread`` bytes behind an array which the CPU would not read; they are
    never used. ``header`` is a template that defines the target's intrinsics in plain C.
    """

    qemu: str | None = None
    cpu: str = "max"
    overread: int = 0
    header: str | None = None
