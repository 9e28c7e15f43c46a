"""The protocol of routines: what a kind of routine must define so that everything else serves it.

A routine is one C function. Its spec says what it computes; its plan holds every choice; its stages
are the programs that run in order.

A new kind needs no edit of other modules. Its own module has four definitions and a registration::

    @dataclass(frozen=True, slots=True)
    class Doubled(Spec):                       # spec/sizes.py: what users write, and its name
        routine: ClassVar[str] = __name__      # the module that calls ``register``
        size: Size
        def runtime_sizes(self): ...           # sizes of the call, in the order of C's parameters
        def words(self): return ["doubled", sizes_word(("size", self.size))]

    @parameters_of(Doubled)                    # spec/signature.py: arrays, their order and roles
    def _parameters(spec, formats): return Parameters((x, out), allocates=True)

    @dataclass(frozen=True, slots=True, repr=False)
    class DoubledPlan(Decided):                # every choice; any further fields
        spec: Doubled
        target: Target
        decisions: tuple[Decision, ...]

    class DoubledRoutine(Routine[Doubled, DoubledPlan]):
        def plan(self, spec, schedule, target): ...
        def stages(self, plan): return (Stage(Program(nest, tiles)),)
        def head(self, plan): yield "doubled   OUT = 2 X, f32"

    register(Doubled, DoubledPlan, DoubledRoutine())

``ir/stages.py`` joins stages, puts buffers between them, and makes a program of another kind a
stage. ``results_of`` (runtime/reference/verify.py) registers the right results, with which
``kernel.verify`` compares. ``tests/routines/test_new_routine.py`` has a complete example.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from sympy import Expr

from tilewright.ir.nest import Program
from tilewright.ir.stages import Stage
from tilewright.isa.target import Target
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import Spec
from tilewright.symbolic import ZERO

from .estimate.kernel import Estimate
from .loops import Decided
from .plan import Plan

S = TypeVar("S", bound=Spec)
P = TypeVar("P", bound=Decided)
#: A decision of a plan as three texts: its subject, the choice, and the reason.
Row = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class StageFacts:
    """Numbers of one stage of a call, for explanations and profiles.

    - ``name``: the stage's name. ``program``: the index in ``Routine.stages`` of its program, in
      which further stages may be.
    - ``runs``: how often it runs in the call, for another block of rows each time.
    - ``result``, ``arrays``: bytes of its result, and of all its arrays, in one run.
    - ``read``, ``written``: bytes of arrays that other stages, or the call, also use. Each byte
      counts once.
    - ``alone``: bytes that its operators read and write if each runs alone.
    - ``flops``: floating-point operations of its product.
    - ``cycles``, ``bound``: estimated time of all runs on the schedule's threads, and what limits
      it. None and "" if there is no estimate.
    """

    name: str
    program: int
    runs: int
    result: int
    arrays: int
    read: int
    written: int
    alone: int
    flops: int
    cycles: float | None
    bound: str


class Routine(Generic[S, P]):
    """One kind of routine. A subclass defines the first three methods, and others as it needs."""

    #: Names of sizes of the call, for example "m". If an explanation is given values for them, it
    #: shows numbers instead of formulas.
    sizes: ClassVar[tuple[str, ...]] = ()
    #: True if the plan has a picture: C cut into register tiles.
    drawn: ClassVar[bool] = False
    #: True if one configuration of a matrix unit is kept through all stages, as far as they share
    #: it.
    keeps: ClassVar[bool] = False

    def plan(self, spec: S, schedule: Schedule, target: Target) -> P:
        """Return the plan; raise ScheduleError if ``schedule`` asks for what is not possible."""
        raise NotImplementedError

    def stages(self, plan: P) -> tuple[Stage, ...]:
        """Return the programs that run in order. ``generate`` joins and verifies them."""
        raise NotImplementedError

    def head(self, plan: P) -> Iterator[str]:
        """Yield the first lines of an explanation. The first one is the formula."""
        raise NotImplementedError

    # --- explanations ----------------------------------------------------------------------------

    def decisions(self, plan: P, program: Program) -> Iterator[Row]:
        """Yield subject, choice and reason for each decision."""
        yield from ((each.what, each.choice, each.reason) for each in plan.decisions)

    def shown(self, plan: P) -> tuple[str, ...]:
        """Return the names of sizes for which an explanation of ``plan`` shows given values."""
        return self.sizes

    def nests(self, plan: P) -> tuple[Plan, ...]:
        """Return the plans of the product's nests, whose register tiles are those of the program.

        There is none if the routine has no product.
        """
        return ()

    def flops(self, plan: P) -> Expr:
        """Return the additions and multiplications that the spec asks for; 0 shows none."""
        return ZERO

    def estimate(self, plan: P, sizes: Mapping[str, int], *, cold: bool) -> Estimate | None:
        """Return the estimated time of a call; None if the cost model has no estimate.

        ``sizes`` are those of the call by name. Data are in memory if ``cold``, else in cache.
        """
        return None

    def facts(self, plan: P, sizes: Mapping[str, int]) -> Iterator[StageFacts]:
        """Yield numbers of the stages of a call with these ``sizes``, in order."""
        yield from ()

    def resolved(self, plan: P, program: Program) -> Schedule | None:
        """Return a complete schedule that leads to the same plan, if there is one."""
        return None

    # --- generated C -----------------------------------------------------------------------------

    def converts(self, plan: P) -> bool:
        """Return True if the C uses functions on the bits of elements, such as ``group_of``."""
        return False

    def static_offsets(self, plan: P) -> Mapping[str, tuple[int, ...]]:
        """Return the arrays of batch offsets that are constants in the C code, by operand name."""
        return {}


_BY_SPEC: dict[type[Spec], Routine[Any, Any]] = {}
_BY_PLAN: dict[type[Decided], Routine[Any, Any]] = {}


def register(spec: type[S] | None, plan: type[P], routine: Routine[S, P]) -> None:
    """Add a kind of routine: its class of specs, its class of plans.

    ``spec`` is None if another kind's ``plan`` makes these plans, as a stack is a kind of Gemm.
    """
    if spec is not None:
        _BY_SPEC[spec] = routine
    _BY_PLAN[plan] = routine


def routine_for(spec: Spec) -> Routine[Any, Any]:
    """Return the kind of routine that computes ``spec``."""
    import_module(spec.routine)
    return _BY_SPEC[type(spec)]


def routine_of(plan: Decided) -> Routine[Any, Any]:
    """Return the kind of routine that made ``plan``."""
    import_module(plan.spec.routine)
    return _BY_PLAN[type(plan)]
