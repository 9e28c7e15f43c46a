"""What is known of processors, compilers and emulators of a target, beside its instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Cache:
    """A data cache, as far as one core may count on it.

    ``size`` is in bytes: of a cache that cores share, one core's share. ``rate`` is how many bytes
    a cycle it gives to loads of whole vectors.
    """

    size: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a core does one multiply-add, of vectors up to so many ``bytes``.

    ``mnemonic`` is that of ``MulAdd``. ``cycles`` lie between the starts of two, all that C's
    expression of it takes counted; ``latency`` cycles later its sum is there.
    """

    mnemonic: str
    bytes: int
    cycles: float
    latency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """What a core does per cycle with vectors of up to so many ``bytes``, as ``Core`` says it."""

    bytes: int
    fma_units: float
    loads: float
    stores: float
    shuffles: float
    spread: float = 0
    shared: float = 0


#: The bytes of a vector, one element or more, of every target.
_SIZES = tuple(4 << doubled for doubled in range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What the cost model knows of a core.

    Per cycle: ``fma_units`` multiply-adds start, ``loads`` and ``stores`` of vectors, ``issue``
    instructions in all, and ``shuffles``, which permute a vector. ``fma_latency`` is in cycles,
    ``line`` the length of a cache line in bytes. They are those of the widest vectors; ``widths``
    have those of narrower ones where they differ, narrowest first. ``speeds`` are those of single
    multiply-adds; one without starts as often as the instructions that it takes, with the core's
    latency or its own.

    ``overlap``: the share of its own cycles that each bound of a K step other than the tightest
    adds to the step. ``idle``: what a tile loses between its K loop and its neighbours', in
    latencies of a multiply-add. ``strain``: the share by which a step takes longer if its chains of
    multiply-adds just hide the latency; it falls to 0 at half as many chains again. ``hidden``:
    stores per tile that overlap with multiply-adds. ``late``: cost, in stores, of each further one.
    ``beside``: the share of the time of conversions between tiles that multiply-adds do not hide.
    ``crossing``: the loads that a vector costs besides its own where it reaches into a second line.
    ``contention``: the share by which a step takes longer if such loads and its multiply-adds take
    equally long; it falls to 0 where one takes 0.7 of the other.
    ``spread``: cycles that a multiply-add takes with a factor that an instruction of its own
    broadcasts from memory, where both wait for the same units; 0 where they do not. ``shared``: the
    share of conversions that take a multiply-add's place.

    ``worth``: so many multiply-adds of vectors make one more thread pay. ``caches`` come nearest
    first; ``memory`` is how many bytes a cycle come from beyond them.
    """

    fma_latency: float
    fma_units: float
    loads: float
    stores: float
    issue: float
    shuffles: float = 1
    line: int = 64
    overlap: float = 1 / 16
    idle: float = 3
    strain: float = 0
    hidden: int = 0
    late: float = 1
    beside: float = 1
    crossing: float = 1
    contention: float = 0
    spread: float = 0
    shared: float = 0
    worth: int = 1 << 15
    widths: tuple[Width, ...] = ()
    speeds: tuple[Speed, ...] = ()
    caches: tuple[Cache, ...] = (Cache(32 << 10, 64), Cache(512 << 10, 32), Cache(2 << 20, 10))
    memory: float = 4
    _at: Mapping[int, Core] = field(init=False, repr=False, compare=False)
    _speeds: Mapping[str, Speed] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        narrower = {size: self._narrowed(size) for size in _SIZES if self.widths or self.speeds}
        object.__setattr__(self, "_at", narrower)
        object.__setattr__(self, "_speeds", {speed.mnemonic: speed for speed in self.speeds})

    def _narrowed(self, size: int) -> Core:
        """The core as vectors of ``size`` bytes see it; self where that is no other."""
        speeds = _for_size(self.speeds, size)
        width = next((each for each in self.widths if each.bytes >= size), None)
        if width is None:
            return self if speeds == self.speeds else replace(self, speeds=speeds)
        return replace(
            self,
            widths=(),
            speeds=speeds,
            fma_units=width.fma_units,
            loads=width.loads,
            stores=width.stores,
            shuffles=width.shuffles,
            spread=width.spread,
            shared=width.shared,
        )

    @property
    def second(self) -> Cache:
        """The second cache, or the only one."""
        return self.caches[:2][-1]

    def at(self, size: int) -> Core:
        """What the core does with vectors of ``size`` bytes."""
        return self._at.get(size, self)

    def busy(self, issue: float, loads: float, lines: float) -> Core:
        """The core while another thread of it is at work, by which its rates are divided.

        ``lines`` is that of caches and memory. Multiply-adds keep theirs: few threads start two a
        cycle.
        """
        widths = tuple(replace(each, loads=each.loads / loads) for each in self.widths)
        caches = tuple(replace(each, rate=each.rate / lines) for each in self.caches)
        return replace(
            self,
            issue=self.issue / issue,
            loads=self.loads / loads,
            memory=self.memory / lines,
            widths=widths,
            caches=caches,
        )

    def speed(self, mnemonic: str) -> Speed | None:
        """That of the multiply-add, of the vectors of ``at``; None where none is known."""
        return self._speeds.get(mnemonic)

    def between(self, mnemonic: str, instructions: int) -> float:
        """Cycles between the starts of two multiply-adds of so many instructions."""
        speed = self.speed(mnemonic)
        return instructions / self.fma_units if speed is None else speed.cycles


def _for_size(speeds: tuple[Speed, ...], size: int) -> tuple[Speed, ...]:
    """Of each multiply-add the speed of the narrowest vectors that hold ``size`` bytes."""
    found: dict[str, Speed] = {}
    for speed in sorted(speeds, key=lambda each: -each.bytes):
        if speed.bytes >= size:
            found[speed.mnemonic] = speed
    return tuple(found.values())


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
    ``picked`` is the letter of the registers that such a factor may be in, where those are fewer:
    it is kept there, or gcc moves it and clang spills.
    ``spare`` is the number of vector registers that compilers need for themselves.
    """

    constraint: str
    operands: bool
    pointers: bool
    lanes: bool
    spare: int
    picked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """How a CPU without the target runs it: qemu's user-mode program and its ``-cpu``.

    ``least`` is the oldest version of qemu that computes rightly, "" any.
    That qemu may read ``overread`` bytes behind an array which the CPU would not read; they are
    never used. ``header`` is a template that defines the target's intrinsics in plain C.
    """

    qemu: str | None = None
    cpu: str = "max"
    least: str = ""
    overread: int = 0
    header: str | None = None


@dataclass(frozen=True, slots=True)
class VectorLength:
    """The length of vectors where a CPU and its threads choose it: kernels are for ``nbytes``.

    ``spelling`` is C's expression of the bytes that a thread's vectors have. Among the target's
    ``cpu_flags`` one stands for this length.
    """

    nbytes: int
    spelling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """The mode of the processor in which the target's instructions run, as C functions declare it.

    ``inside`` stands behind the parameters of a function that is called in that mode and left in
    it, ``helper`` behind those of one that serves in any. ``entry`` stands before a function that
    anyone calls: it changes the mode for itself, and so does what other threads run. ``copy`` is
    a function like C's ``memcpy``, which would leave the mode. ``support`` is a template of it, and
    of routines that compilers call for the change, and may not have.
    """

    inside: str
    helper: str
    entry: str
    copy: str
    support: str


@dataclass(frozen=True, slots=True)
class CpuBit:
    """Where a program finds out that a CPU has something: bit ``bit`` of one of the words it reads.

    ``state`` are the bits of the operating system's own word that must be set as well, because it
    saves the registers; 0 where it has no say.
    """

    word: str
    bit: int
    state: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """How C asks a CPU of one architecture, while it runs, what it has.

    ``template`` reads ``words`` into an array, in this order; the operating system's word, if
    there is one, is the last. ``bits`` say where each of a target's ``cpu_flags`` stands; those of
    the words ``varying`` are a thread's own: the length of its vectors, for which Linux is asked by
    this number of ``prctl``, or where it is 0 a register. ``macro`` is what compilers define for
    the architecture, ``processors`` are its names in build systems. ``unlisted`` are flags that
    Linux may leave out of ``/proc/cpuinfo``.
    """

    template: str
    words: tuple[str, ...]
    bits: Mapping[str, CpuBit]
    macro: str
    processors: tuple[str, ...]
    varying: Mapping[str, int] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
