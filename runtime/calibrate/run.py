"""The function ``calibrate``: measure and store the performance numbers of this machine's core that
the cost model needs.

Each target that runs here is measured in rounds: first loops, then kernels to which the remaining
numbers are fitted. The numbers of one target are stored before the next target begins, so an
interruption loses only one target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic as now

from tilewright.errors import ArgumentTypeError, ArgumentValueError, TargetError
from tilewright.isa.core_file import CoreFile, core_file_of
from tilewright.isa.machine import Core
from tilewright.isa.target import Target
from tilewright.keywords import spelled
from tilewright.runtime.machine import calibrations, host
from tilewright.targets import NAMES, load

from . import ends, memory, threads
from .loops import CLOCK, NOTHING, Function, library, loops_of
from .rounds import Cycles, Timed, in_cycles
from .units import is_rate, units

#: Minimum time limit of a calibration in seconds.
_LEAST = 5.0
#: Shares of the time limit: for timing loops, for timing kernels, and for each reading of memory.
_LOOPS, _KERNELS, _READING = 0.03, 0.1, 0.01
#: The next target is measured only if this share of the time limit is left.
_LEFT = 0.5
#: Maximum spread of the rounds of multiply-adds, relative to their median. If it is larger, the
#: machine counts as disturbed by other programs.
DISTURBED = 0.15
#: Name of a calibration that is not exported.
_NAME = "here"

#: Function that is called with a text about the next step, for example to print it.
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The result of a calibration: the measured performance numbers of this machine's core.

    Attributes
    ----------
    processor, compiler : str
        Name of the processor, and the compiler with its version.
    core : CoreFile
        The measured numbers.
    path : pathlib.Path
        The file that holds them.
    spread : float
        Spread of the rounds of multiply-adds: interquartile range divided by median.
    errors : dict
        For each target, the mean distance between the logarithms of estimated and measured cycles:
        with the new numbers, and with the numbers that ship with the target.
    left_out : tuple of str
        Targets for which no time was left.

    Examples
    --------
    >>> found = tw.calibrate(seconds=30)  # doctest: +SKIP
    >>> found.export("my_core.json")  # doctest: +SKIP
    """

    processor: str
    compiler: str
    core: CoreFile
    path: Path
    spread: float
    errors: dict[str, tuple[float, float]]
    left_out: tuple[str, ...]

    def export(self, path: Path | str) -> None:
        """Write the measured numbers to a new core file, which can be shipped.

        Parameters
        ----------
        path : pathlib.Path or str
            The file's stem becomes the core's name. An existing file is not replaced.

        Raises
        ------
        TargetError
            The stem of ``path`` is not a valid name of a core.
        OSError
            The file exists or cannot be written.
        """
        export(self.core, Path(path))


def export(core: CoreFile, path: Path) -> None:
    """Write ``core`` to a new file that can be shipped, without the measured cost of threads.

    That cost depends on the system, not on the core. The file gets the cost that ships with the
    target.
    """
    cores = {n: replace(each, region=load(n).core.region) for n, each in core.cores.items()}
    title = path.stem.replace("_", " ").capitalize()
    named = replace(core, name=path.stem, title=title, cores=cores)
    # This call raises TargetError if the name is not valid for a core.
    core_file_of(named.raw(), str(path))
    if path.suffix != ".json":
        raise TargetError(
            "a core's file is called by the core's name", got=str(path), expected="NAME.json"
        )
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(named.text())
    except FileExistsError:
        raise TargetError(
            "a calibration replaces no file", got=str(path), hint="another name, or remove it"
        ) from None


@spelled(ArgumentTypeError)
def calibrate(seconds: float = 30, *, say: Say | None = None) -> Calibrated:
    """Measure this machine's core and store the numbers; the target "host" uses them from then on.

    Parameters
    ----------
    seconds : float
        Time limit of the whole calibration.
    say : callable, optional
        Called with the name of what is measured next.

    Returns
    -------
    Calibrated
        The numbers, their file, and how well they were measured.

    Raises
    ------
    TargetError
        Another program disturbs the machine (the old numbers are kept), or no target can be
        measured here.

    Examples
    --------
    The call takes half a minute, so this example is not run with the others.

    >>> tw.calibrate(seconds=30).path  # doctest: +SKIP
    PosixPath('/home/me/.local/share/tilewright/cores/here.json')
    """
    if not seconds >= _LEAST:
        raise ArgumentValueError("seconds are too few to measure a core", got=seconds,
                                 expected=f"{_LEAST:g} or more")  # fmt: skip
    begin, told = now(), say or (lambda what: None)
    found = list(_measurable())
    if not found:
        raise TargetError("no target of this machine can be measured", got=host.cpu().name)
    known = calibrations.of(host.cpu().processor)
    before = None if known is None else core_file_of(dict(known.raw), "the calibration")
    cores: dict[str, Core] = {} if before is None else dict(before.cores)
    errors: dict[str, tuple[float, float]] = {}
    left_out: list[str] = []
    worst, compiler = 0.0, ""
    for number, (target, names) in enumerate(found):
        if number and now() - begin > _LEFT * seconds:
            left_out += names
            continue
        told(f"measuring {target.name}")
        core, spread, errors[names[0]] = _measured(target, seconds, told)
        worst, compiler = max(worst, spread), compiler_of(target)
        cores |= {name: _of_target(name, core) for name in names}
        file = _file(cores, compiler)
        path = calibrations.keep(host.cpu().processor, compiler, file)
    return Calibrated(host.cpu().processor, compiler, file, path, worst, errors, tuple(left_out))


def _measurable() -> Iterator[tuple[Target, list[str]]]:
    """Yield each target to be measured here, and the names of all targets that get its numbers.

    A target with a matrix unit has the vectors and the numbers of the next target.
    """
    names: list[str] = []
    for name in NAMES:
        target = load(name)
        if not host.is_native(target) or target.hints is None:
            continue
        names.append(name)
        if target.matrix is None:
            yield target.having(host.features_here(target)), names
            names = []


def _of_target(name: str, core: Core) -> Core:
    """Return ``core`` without the speeds of instructions that target ``name`` does not have."""
    target = load(name).having(load(name).features)
    known = {op.mnemonic for vector in target.vectors for op in vector.muladd}
    return replace(core, speeds=tuple(each for each in core.speeds if each.mnemonic in known))


def compiler_of(target: Target) -> str:
    """Return the compiler that compiles for ``target`` here, for example ``gcc 12.2.0``."""
    from tilewright.runtime.build.compilers import find_compiler

    found = find_compiler(target, emulated=False)
    return f"{found.family} {found.version}"


def _file(cores: dict[str, Core], compiler: str) -> CoreFile:
    cpu, today = host.cpu(), datetime.now(UTC).date()
    source = f"tilewright calibrate on {cpu.name} ({cpu.processor}), {compiler}, {today}"
    return CoreFile(_NAME, cpu.name, source, (cpu.processor,), cores)


def _measured(target: Target, seconds: float, told: Say) -> tuple[Core, float, tuple[float, float]]:
    """Measure a target. Return its core, the reference loop's spread, and the model's errors.

    The errors are those with the new numbers and with the old ones.
    """
    path = library(target)
    names = [loop.name for loop in loops_of(target)]
    clock = Function(path, CLOCK.name)
    timed = {name: Function(path, name) for name in (*names, NOTHING)}
    found = in_cycles(timed, clock, CLOCK.adds, _LOOPS * seconds)
    spread = check_calm(found, names[0])
    core = units(target, found.cycles, target.core)
    check_clock(core)
    told(f"reading caches and memory with {target.name}")
    reader = memory.reader(target, path, _READING * seconds)
    levels, beyond = memory.caches(reader, *memory.sizes())
    told(f"starting threads with {target.name}")
    price = threads.region(target, core, clock, CLOCK.adds, _LOOPS * seconds)
    core = replace(core, caches=levels, memory=beyond, region=price)
    told(f"compiling kernels for {target.name}")
    samples = ends.samples(target)
    told(f"timing {len(samples)} kernels for {target.name}")
    calls: dict[str, Timed] = {each.kernel.name: ends.Call(each.kernel) for each in samples}
    calls[names[0]] = timed[names[0]]
    times = in_cycles(calls, clock, CLOCK.adds, _KERNELS * seconds)
    spread = max(spread, check_calm(times, names[0]))
    told(f"fitting {target.name}")
    cycles = [times.cycles[sample.kernel.name] for sample in samples]
    call = found.cycles[NOTHING]
    fitted = ends.fitted(core, samples, cycles, call)
    measured = [max(1.0, each - call) for each in cycles]
    both = ends.error(fitted, samples, measured), ends.error(target.core, samples, measured)
    return fitted, spread, both


def check_clock(core: Core) -> None:
    """Raise TargetError if the rate of multiply-adds is impossible, because the clock changed."""
    if not is_rate(core.fma_units):
        raise _disturbed(
            "additions and multiply-adds are not of one clock",
            got=f"{core.fma_units:g} multiply-adds in the time of an addition",
            expected="a whole number of them, or one in whole cycles",
        )


def check_calm(found: Cycles, reference: str) -> float:
    """Return the spread of the reference loop; TargetError if another program disturbed it."""
    spread = found.spread[reference]
    if spread > DISTURBED:
        raise _disturbed(
            "multiply-adds take now longer, now shorter",
            got=f"a spread of {spread:.0%} over {found.rounds} rounds",
            expected=f"at most {DISTURBED:.0%}",
        )
    return spread


def _disturbed(sign: str, got: str, expected: str) -> TargetError:
    return TargetError(
        f"this machine is disturbed: {sign}",
        got=got,
        expected=expected,
        hint="end what else runs, and try again; what was measured before stays in force",
    )
