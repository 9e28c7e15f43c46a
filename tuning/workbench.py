"""The worker's side of tuning: compile, check and time kernels of one spec and target."""

from __future__ import annotations

from tilewright.errors import TilewrightError
from tilewright.plan.network.chosen import TYPICAL, near
from tilewright.runtime.bench.peak import AtPeak
from tilewright.runtime.bench.timing import Filler, Timed, copies, flops, multiplied, traffic
from tilewright.runtime.driver import compile, compile_many
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.reference.arguments import Sample, call_sizes
from tilewright.runtime.reference.verify import Case, cases_of
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import signature
from tilewright.spec.sizes import Spec

#: Number of random calls in which each variant must compute the right results.
CASES = 2
#: Maximum number of copies of the arrays for calls on data in memory, and maximum number of bytes
#: that all copies have together.
_COPIES, _COPIED = 16, 128 << 20


class Bench:
    """Kernels of one spec and target, one for each schedule. All are timed on the same arrays."""

    def __init__(self, spec: Spec, target: str) -> None:
        self._spec, self._target = spec, target
        self._kernels: dict[Schedule, Kernel] = {}
        self._timed: dict[Schedule, Timed] = {}
        self._cases: list[Case] = []
        self._samples: list[Sample] = []
        self._filler: Filler | None = None
        self._at_peak: AtPeak | None = None

    def build(self, schedules: list[Schedule]) -> dict[Schedule, str | None]:
        """Compile kernels for all schedules into one library.

        If that fails, compile each kernel separately to find the faulty one. Return the error
        message for each schedule, None if its kernel compiled.
        """
        try:
            made = compile_many([(self._spec, schedule, self._target) for schedule in schedules])
            self._kernels.update(zip(schedules, made, strict=True))
        except TilewrightError:
            return {schedule: self._alone(schedule) for schedule in schedules}
        return dict.fromkeys(schedules)

    def _alone(self, schedule: Schedule) -> str | None:
        try:
            self._kernel(schedule)
        except TilewrightError as error:
            return str(error)
        return None

    def _kernel(self, schedule: Schedule) -> Kernel:
        if schedule not in self._kernels:
            self._kernels[schedule] = compile(self._spec, schedule, self._target)
        return self._kernels[schedule]

    def check(self, schedule: Schedule) -> int:
        """Compare a variant's results with the right ones.

        Return the number of floating-point operations in a call.
        """
        kernel = self._kernel(schedule)
        if not self._cases:
            self._cases = list(cases_of(kernel, CASES, seed=0))
        for case in self._cases:
            case.run(kernel)
        return flops(kernel, self._arguments(kernel)[0])

    def hot(self, schedule: Schedule) -> tuple[float, float]:
        """Time calls on one copy of the arrays, which stays in cache.

        Return the seconds of a call, and the seconds that it would take at the core's peak. See
        ``AtPeak`` for a spec without a product.
        """
        timed = self._ready(schedule)
        if self._at_peak is None:
            work = multiplied(self._spec, self._samples[0])
            self._at_peak = AtPeak(self._kernel(schedule).isa, work)
        before = self._at_peak.seconds()
        taken = timed.hot()
        # The clock rate may change during the calls.
        return taken, (before + self._at_peak.seconds()) / 2

    def cold(self, schedule: Schedule) -> float:
        """Fill the caches with other data, then time one call on each copy of the arrays."""
        timed = self._ready(schedule)
        if self._filler is None:
            self._filler = Filler()
        self._filler.fill()
        return timed.cold()

    def _ready(self, schedule: Schedule) -> Timed:
        if schedule not in self._timed:
            kernel = self._kernel(schedule)
            self._timed[schedule] = Timed(kernel, self._arguments(kernel))
        return self._timed[schedule]

    def _arguments(self, kernel: Kernel) -> list[Sample]:
        """Return several copies of the arrays, on which all variants are timed."""
        if not self._samples:
            self._samples = copies(kernel, _COPIED, _COPIES, _usual(self._spec))
        return self._samples


def moved(spec: Spec) -> int:
    """Return the bytes that a timed call reads and writes; 0 if the spec has a product."""
    if not isinstance(spec, Network):
        return 0
    found = signature(spec)
    numbers = call_sizes(found, _usual(spec))
    sizes = {each.dim.name: number for each, number in zip(found.sizes, numbers, strict=True)}
    return 0 if spec.work(sizes) else traffic(found, sizes)


def _usual(spec: Spec) -> dict[str, int]:
    """Return the size of the call with which a network with products is timed, if it has one."""
    sizes = spec.runtime_sizes() if isinstance(spec, Network) and spec.staged else ()
    return {slot: near(TYPICAL, dim) for slot, dim in sizes} if len(sizes) == 1 else {}
