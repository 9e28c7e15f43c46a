"""Data classes for a target's processor cores, compilers and emulators.

The cost model reads the cores. Code generation and the search for a compiler read the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

#: A parallel region with two threads costs ``Core.region`` cycles. Each further thread adds
#: ``Core.region`` divided by this number.
NEXT_THREAD = 8


@dataclass(frozen=True, slots=True)
class Cache:
    """The part of a data cache that one core may use.

    - ``size``: bytes; if cores share the cache, the share of one core.
    - ``rate``: bytes per cycle that it delivers to loads of whole vectors.
    """

    size: int
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one multiply-add instruction on a core.

    - ``mnemonic``: the instruction, as in ``MulAdd.mnemonic``.
    - ``bytes``: the widest vectors, in bytes, for which this entry holds.
    - ``cycles``: cycles from the start of one multiply-add to the start of the next. They include
      all instructions of the C expression.
    - ``latency``: cycles from the start until the sum is available.
    """

    mnemonic: str
    bytes: int
    cycles: float
    latency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """Rates of a core for vectors of up to ``bytes`` bytes; its fields are those of ``Core``."""

    bytes: int
    fma_units: float
    loads: float
    stores: float
    shuffles: float
    spread: float = 0
    shared: float = 0


#: Sizes in bytes that a vector of any target may have: 4 to 512.
_SIZES = tuple(4 << doubled for doubled in range(8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A processor core, as the cost model sees it.

    Rates per cycle, for the widest vectors:

    - ``fma_units``: multiply-adds started.
    - ``loads``, ``stores``: vectors loaded and stored.
    - ``shuffles``: instructions that permute a vector.
    - ``issue``: instructions of any kind.

    Latency, sizes and other vectors:

    - ``fma_latency``: cycles from the start of a multiply-add to its sum.
    - ``line``: bytes of a cache line.
    - ``widths``: rates for narrower vectors if they differ, narrowest first.
    - ``speeds``: speeds of single multiply-add instructions. An instruction without an entry takes
      ``instructions / fma_units`` cycles. Its latency is ``MulAdd.latency``, or the core's.
    - ``caches``: nearest to the core first. ``second``: L2, or the only one. ``memory``: bytes per
      cycle from main memory.

    Corrections of the estimate:

    - ``overlap``: a K step takes the cycles of its busiest resource, plus this share of the cycles
      of every other resource.
    - ``idle``: cycles lost between the K loops of two tiles, in latencies of a multiply-add.
    - ``strain``: share by which a step takes longer if there are just enough accumulators to hide
      the latency. It falls to 0 at one and a half times as many accumulators.
    - ``hidden``: stores per tile that overlap with multiply-adds.
    - ``late``: cost of each further store, in units of one store.
    - ``beside``: share of the time of conversions between tiles that multiply-adds do not hide.
    - ``crossing``: extra loads that a vector costs if it crosses a cache line.
    - ``contention``: share by which a step takes longer if line-crossing loads take as long as the
      step's multiply-adds. It falls to 0 if one of the two takes 0.7 times as long as the other.
    - ``spread``: cycles of a multiply-add whose factor a separate instruction broadcasts from
      memory, if both use the same units; 0 if they do not.
    - ``shared``: share of conversion instructions that take the place of a multiply-add.
    - ``region``: cycles that a parallel region costs with two threads: handing the work over,
      waiting for the other thread, and waking it. Further threads cost less (``NEXT_THREAD``).
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
    region: int = 1 << 14
    widths: tuple[Width, ...] = ()
    speeds: tuple[Speed, ...] = ()
    caches: tuple[Cache, ...] = (Cache(32 << 10, 64), Cache(512 << 10, 32), Cache(2 << 20, 10))
    memory: float = 4
    _at: Mapping[int, Core] = field(init=False, repr=False, compare=False)
    _speeds: Mapping[str, Speed] = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)
    second: Cache = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = self.fma_latency, self.fma_units, self.issue, self.loads, self.memory, self.caches
        object.__setattr__(self, "_hash", hash(numbers))
        narrower = {size: self._narrowed(size) for size in _SIZES if self.widths or self.speeds}
        object.__setattr__(self, "_at", narrower)
        object.__setattr__(self, "second", self.caches[:2][-1])
        object.__setattr__(self, "_speeds", {speed.mnemonic: speed for speed in self.speeds})

    def __hash__(self) -> int:
        """Return the hash of a few fields, computed once because cores are keys of caches."""
        return self._hash

    def _narrowed(self, size: int) -> Core:
        """Return this core with its rates for ``size``-byte vectors; ``self`` if none differs."""
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

    def at(self, size: int) -> Core:
        """Return the core with its rates for vectors of ``size`` bytes."""
        return self._at.get(size, self)

    def rate(self, size: int) -> float:
        """Return the bytes per cycle at which arrays of ``size`` bytes in all are read again."""
        return next((each.rate for each in self.caches if size <= each.size), self.memory)

    def busy(self, issue: float, loads: float, lines: float) -> Core:
        """Return the core with the lower rates that it has while its second thread is busy.

        Each argument divides a rate: ``issue`` that of instructions, ``loads`` that of loads,
        ``lines`` those of caches and memory. Multiply-adds keep their rate, because a second thread
        rarely starts two in each cycle.
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
        """Return the speed of a multiply-add instruction; None if it is not known."""
        return self._speeds.get(mnemonic)

    def between(self, mnemonic: str, instructions: int) -> float:
        """Return the cycles between the starts of two multiply-adds ``mnemonic``.

        If the core has no speed for this mnemonic, the cycles follow from ``instructions``.
        """
        speed = self.speed(mnemonic)
        return instructions / self.fma_units if speed is None else speed.cycles


def _for_size(speeds: tuple[Speed, ...], size: int) -> tuple[Speed, ...]:
    """Return one speed per instruction: for the narrowest vectors of ``size`` bytes or more."""
    found: dict[str, Speed] = {}
    for speed in sorted(speeds, key=lambda each: -each.bytes):
        if speed.bytes >= size:
            found[speed.mnemonic] = speed
    return tuple(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilerHints:
    """Settings that keep compilers from moving accumulators between registers.

    - ``constraint``: letter of a vector register in GNU inline assembly.
    - ``operands``: keep factors in their registers while they are used again. Otherwise gcc and
      clang overwrite them with the sum, which costs a copy in each step, or load them once per use.
    - ``pointers``: hide the addresses of a tile from the code around it. Otherwise, if partial
      loads take no offset, clang computes all addresses before the loop over tiles and spills them.
    - ``lanes``: treat a factor that is indexed by lane as changed by each multiply-add. Otherwise
      gcc broadcasts an element that is used again into an additional register.
    - ``picked``: constraint letter of the registers that may hold a factor indexed by lane, if only
      some may. The factor is kept there. Otherwise gcc moves it, and clang spills it.
    - ``spare``: number of vector registers that compilers need for themselves.
    """

    constraint: str
    operands: bool
    pointers: bool
    lanes: bool
    spare: int
    picked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """The emulator for programs of a target, used if the CPU lacks the target's instructions.

    - ``qemu``: qemu's user-mode program, None if there is none. ``cpu`` is its ``-cpu`` option.
    - ``least``: oldest version of qemu that computes correctly, "" for any.
    - ``overread``: bytes after an array that this qemu may read although the CPU would not. Their
      values are never used.
    - ``header``: template that defines the target's intrinsics in plain C, None if there is none.
    """

    qemu: str | None = None
    cpu: str = "max"
    least: str = ""
    overread: int = 0
    header: str | None = None


@dataclass(frozen=True, slots=True)
class VectorLength:
    """The length of vectors, if it differs among CPUs or threads; a kernel is made for one length.

    - ``nbytes``: bytes of a vector.
    - ``spelling``: C expression for the bytes of the running thread's vectors.

    One of the target's ``cpu_flags`` names this length.
    """

    nbytes: int
    spelling: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """C code that enters and leaves the processor mode that a target's instructions need.

    - ``inside``: attribute of a function that is called in the mode and stays in it.
    - ``helper``: attribute of a function that works in any mode.
    - ``entry``: prefix of a function that any code may call. The function enters and leaves the
      mode. Functions that other threads run have this prefix too.
    - ``copy``: a function like C's ``memcpy``; ``memcpy`` itself would leave the mode.
    - ``support``: template that defines ``copy``, and routines that compilers call for the change
      of mode and may lack.
    """

    inside: str
    helper: str
    entry: str
    copy: str
    support: str


@dataclass(frozen=True, slots=True)
class CpuBit:
    """The place where a program reads whether a CPU has a feature: bit ``bit`` of word ``word``.

    ``state`` are further bits that must be set, in the word that tells which registers the
    operating system saves. It is 0 if the system is not involved.
    """

    word: str
    bit: int
    state: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """C code that asks a CPU of one architecture at run time which features it has.

    - ``template``: code that reads ``words`` into an array, in this order. The operating system's
      word, if there is one, is the last.
    - ``bits``: the bit of each of a target's ``cpu_flags``.
    - ``macro``: macro that compilers define for the architecture.
    - ``processors``: names of the architecture in build systems.
    - ``varying``: words that may differ between threads, for example the length of vectors. The
      value is the number of Linux's ``prctl`` that returns the word, or 0 if a register holds it.
    - ``unlisted``: flags that Linux may leave out of ``/proc/cpuinfo``.
    """

    template: str
    words: tuple[str, ...]
    bits: Mapping[str, CpuBit]
    macro: str
    processors: tuple[str, ...]
    varying: Mapping[str, int] = field(default_factory=dict)
    unlisted: tuple[str, ...] = ()
