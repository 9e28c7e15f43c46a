"""Run all stages of code generation: requests for kernels in, one C file out.

It also makes plans and programs on their own, for ``explain``, pictures and the interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.emit.layout import folded, pasted
from tilewright.emit.listing import Listing, Macros
from tilewright.emit.parallel import Fork, apart, forks, free, in_regions, joined
from tilewright.emit.render import Defined, Source, render
from tilewright.errors import PlanError, ScheduleError
from tilewright.explain.data import facts
from tilewright.explain.decisions import formula
from tilewright.explain.estimates import Measured
from tilewright.explain.notebook import notebook
from tilewright.explain.picture import picture
from tilewright.explain.text import WIDTH, explain
from tilewright.interpret.memory import Given
from tilewright.interpret.run import Counts, interpret
from tilewright.ir.access import legal
from tilewright.ir.count import stack_bytes
from tilewright.ir.nest import NestNode, Program
from tilewright.ir.nodes import walk
from tilewright.ir.ops import Broadcast, TileProgram
from tilewright.ir.stages import in_order
from tilewright.ir.verify import verify_program
from tilewright.isa.machine import NEXT_THREAD
from tilewright.isa.target import Target
from tilewright.isa.vector import Vector
from tilewright.lower.nest.configure import configured, numbered
from tilewright.plan.estimate.threads import price_of
from tilewright.plan.formats.lookup import formats_of
from tilewright.plan.loops import Decided
from tilewright.plan.routine import routine_for, routine_of
from tilewright.spec.network.stages import Stages
from tilewright.spec.network.value import Network
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import ArrayParameter, Signature, signature
from tilewright.spec.sizes import Spec
from tilewright.spec.types import ITEMSIZE
from tilewright.symbolic import slots

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to generate one kernel: its name, spec, schedule and target.

    If ``stamped``, each call notes the time before each stage, and after the last one.
    """

    name: str
    spec: Spec
    schedule: Schedule
    target: Target
    stamped: bool = False


@dataclass(frozen=True, slots=True)
class KernelText:
    """The data of one kernel that the templates read.

    - ``converts``: true if the kernel uses C functions on bits of elements, such as ``group_of``.
    - ``wide_groups``: true if some K groups have 64 bits.
    - ``unused``: parameters and arrays of offsets that the function's body does not use.
    """

    name: str
    prefix: str
    target: Target
    signature: Signature
    program: Program
    converts: bool
    wide_groups: bool
    static_offsets: tuple[tuple[str, tuple[int, ...]], ...]
    formula: str
    spec_text: str
    asked: Schedule
    resolved: Schedule | None
    listings: tuple[Listing, ...]
    forks: tuple[Fork, ...]
    threads: int
    unused: tuple[str, ...]

    @property
    def stack(self) -> int:
        """Maximum number of bytes of stack that a call needs."""
        return stack_bytes(self.program)

    @property
    def command(self) -> str:
        """The command that writes this kernel's C file again, for example ``tilewright emit
        8x8x8``.
        """
        words = ("tilewright", "emit", "--target", self.target.name, "--name", self.name)
        return pasted(
            (
                (*words, "-o", f"{self.name}.c"),
                ("--schedule", repr(self.asked)),
                ("--spec", self.spec_text),
            )
        )

    def array(self, symbol: str) -> ArrayParameter:
        """Return the array whose name in C is ``symbol``."""
        return next(a for a in self.signature.arrays if a.symbol == symbol)

    def fork(self, node: NestNode) -> Fork:
        """Return the function that holds the bodies of a node's parallel loops."""
        return next(fork for fork in self.forks if fork.node == node)


def plan_for(spec: Spec, schedule: Schedule, target: Target) -> Any:
    """Return the plan of the kernel that computes ``spec`` by ``schedule`` on ``target``.

    Its class depends on the kind of routine: for a ``Gemm``, it is ``Plan``, or ``StackPlan`` for
    a stack.
    """
    if isinstance(schedule, Stages) and not (isinstance(spec, Network) and spec.staged):
        raise ScheduleError(
            "this kernel has no stages to schedule",
            got=schedule,
            expected="tw.Stages for a network with products or views, else tw.Schedule",
        )
    return routine_for(spec).plan(spec, schedule, target)


def program_for(plan: Decided, *, stamped: bool = False) -> Program:
    """Return the program of a plan, after ``verified`` has checked it.

    If ``stamped``, it notes the time between the stages.
    """
    return verified(lowered(plan, stamped=stamped), plan.spec, plan.target)


def lowered(plan: Decided, *, stamped: bool = False) -> Program:
    """Return the program of a plan, not yet verified, with only accesses that the target has."""
    routine = routine_of(plan)
    joint = in_order(routine.stages(plan), stamped=stamped)
    program = configured(joint, keeps=routine.keeps)
    return replace(
        program, tiles=tuple(numbered(legal(tile, plan.target)) for tile in program.tiles)
    )


def verified(program: Program, spec: Spec, target: Target) -> Program:
    """Return ``program`` if it obeys the rules of programs for ``spec``, else raise PlanError."""
    formats = formats_of(spec, target)
    nbytes = {name: None if form.is_open else form.nbytes for name, form in formats.items()}
    verify_program(program, target, signature(spec, formats), nbytes)
    return program


def explain_plan(
    plan: Decided,
    sizes: Mapping[str, int] | None = None,
    measured: Measured | None = None,
    width: int = WIDTH,
) -> str:
    """Return a plan explained as text: formulas, register budgets, bounds, estimates, reasons.

    The estimate is for ``sizes`` of the call, by their names in the signature. ``measured`` is
    shown next to it. Lines have at most ``width`` columns, as far as they can be broken.
    """
    return explain(plan, program_for(plan), sizes, measured, width)


def plan_facts(plan: Decided, sizes: Mapping[str, int] | None = None) -> Any:
    """Return the explanation of a plan as data that JSON can hold."""
    return facts(plan, program_for(plan), sizes)


def plan_html(plan: Decided, name: str, notes: Sequence[str]) -> str:
    """Return a plan explained as HTML for a notebook; ``name`` is the kernel's name.

    ``notes`` are further lines below the formula.
    """
    return notebook(plan, program_for(plan), name, notes)


def draw_plan(plan: Decided, of_peak: float | None = None) -> str:
    """Return a picture of a product's plan in SVG.

    ``of_peak`` is a measured share of the peak, if any.
    """
    return picture(plan, program_for(plan), of_peak)


def interpret_kernel(
    spec: Spec,
    schedule: Schedule,
    target: Target,
    arrays: Sequence[Given],
    sizes: Sequence[int] = (),
    scalars: Sequence[float] = (),
) -> Counts:
    """Run a kernel in the interpreter, and return its counted work.

    ``arrays``, ``sizes`` and ``scalars`` are those of ``interpret``.
    """
    plan = plan_for(spec, schedule, target)
    return interpret(plan, program_for(plan), arrays, sizes, scalars)


def generate(
    requests: Sequence[Request],
    notes: Sequence[str] = (),
    *,
    asks_at_load: bool = True,
    runner: str = "",
) -> Source:
    """Return one C file with every requested kernel. All requests must be for one target.

    ``notes`` are further lines of its first comment. If a kernel needs the operating system's
    consent, the file asks for it when it is loaded. With ``asks_at_load=False`` the caller has to
    ask. ``runner`` is the name of the library whose file of threads runs the parallel loops; by
    default the file has a pool of threads.
    """
    try:
        return _generated(requests, notes, asks_at_load=asks_at_load, runner=runner)
    except RecursionError:
        raise PlanError(
            "a kernel is nested too deeply",
            got=", ".join(repr(request.spec)[:80] for request in requests),
            hint="several kernels, each called with the results of the one before",
        ) from None


def _generated(
    requests: Sequence[Request], notes: Sequence[str], *, asks_at_load: bool, runner: str
) -> Source:
    macros = Macros()
    several = len(requests) > 1
    kernels = [
        _kernel_text(request, f"k{index}_" if several else "", macros)
        for index, request in enumerate(requests)
    ]
    target = requests[0].target
    text = render(
        "kernel/library.c.j2",
        version=VERSION,
        headers=target.headers,
        support=_support(kernels, target),
        hints=target.hints,
        macros=tuple(macros.made.values()),
        mode=target.mode,
        matrix=target.matrix if any(k.program.configurations for k in kernels) else None,
        kernels=kernels,
        threaded=any(kernel.forks for kernel in kernels),
        price=price_of(target.core),
        further=price_of(target.core) // NEXT_THREAD,
        notes=notes,
        asks_at_load=asks_at_load,
        runner=runner,
        threads="threads/elsewhere.c.j2" if runner else "threads/own.c.j2",
        workers=any(kernel.program.worker_scratch != 0 for kernel in kernels),
        shared=any(fork.shared for kernel in kernels for fork in kernel.forks),
        cut=any(part.split for kernel in kernels for fork in kernel.forks for part in fork.parts),
        streaming=_streaming(kernels),
        stamped=any(kernel.program.stamps for kernel in kernels),
    )
    return Source(folded(text), tuple(map(_defined, kernels)))


def _streaming(kernels: Sequence[KernelText]) -> tuple[Vector, ...]:
    """Return the vector types of all stores that may bypass the caches, each once."""
    every = (vector for kernel in kernels for vector in kernel.program.streaming)
    return tuple({(vector.element, vector.lanes): vector for vector in every}.values())


def _support(kernels: Sequence[KernelText], target: Target) -> tuple[str, ...]:
    """Return the templates of C functions that the C code of vector operations calls."""
    elements = {tile.element for kernel in kernels for tile in kernel.program.tiles}
    needed = {vector.support for element in elements for vector in target.of(element)}
    return tuple(sorted(needed - {""}))


def header(requests: Sequence[Request], name: str) -> str:
    """Return the header ``name.h``, for C and C++, of the C file that ``generate`` makes."""
    macros = Macros()
    text = render(
        "kernel/header.h.j2",
        version=VERSION,
        source=f"{name}.c",
        guard=f"{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}_H",
        target=requests[0].target,
        kernels=[_kernel_text(request, "", macros) for request in requests],
    )
    return folded(text)


def _defined(kernel: KernelText) -> Defined:
    """Return the facts about a generated kernel that its caller must know."""
    return Defined(
        name=kernel.name,
        scratch=kernel.program.whole_scratch != 0,
        parallel=bool(kernel.forks),
        configures=bool(kernel.program.configurations),
        stack=kernel.stack,
        formula=kernel.formula,
        schedule=kernel.resolved or kernel.asked,
    )


def _kernel_text(request: Request, prefix: str, macros: Macros) -> KernelText:
    """Return the data of one kernel that templates read.

    The names of its static C functions begin with ``prefix``.
    """
    plan = plan_for(request.spec, request.schedule, request.target)
    routine = routine_of(plan)
    static = routine.static_offsets(plan)
    program = program_for(plan, stamped=request.stamped)
    program = joined(program) if request.target.mode is None else apart(program)
    program = in_regions(program)
    parameters = signature(request.spec, formats_of(request.spec, request.target))
    own = {tile.name for tile in program.tiles}
    if request.name in own or request.name.startswith(("fork", "tiles")):
        prefix = prefix or "k0_"  # so that no static function has the same name as the kernel
    return KernelText(
        name=request.name,
        prefix=prefix,
        target=request.target,
        signature=parameters,
        program=program,
        converts=routine.converts(plan),
        wide_groups=any(map(_has_wide_groups, program.tiles)),
        static_offsets=tuple(sorted(static.items())),
        formula=formula(plan),
        spec_text=repr(request.spec),
        asked=request.schedule,
        resolved=routine.resolved(plan, program),
        listings=tuple(map(macros.listing, program.tiles)),
        forks=forks(program, parameters, prefix),
        threads=request.schedule.threads or 0,
        unused=_unused(program, parameters, static),
    )


def _unused(
    program: Program, parameters: Signature, static: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Return the parameters that the C function's body does not use, to avoid compiler warnings."""
    names = [array.symbol for array in parameters.arrays]
    names += [scalar.name for scalar in parameters.scalars]
    names += [size.slot for size in parameters.sizes]
    names += [f"{name}_offsets" for name in static]
    used = free(program, program.nest) | slots(program.past)
    return tuple(name for name in names if name not in used)


def _has_wide_groups(tile: TileProgram) -> bool:
    """Return True if the C code of a tile broadcasts groups of elements with 64 bits."""
    spread = (op for op in walk((*tile.body, *tile.end)) if isinstance(op, Broadcast))
    wide = (op for op in spread if op.group > 1 and op.group * ITEMSIZE[op.element] == 8)
    return any("{x}" in op.spelling for op in wide)
