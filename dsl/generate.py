"""The driver of the pipeline: requests in, one C file out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .isa import Target
from .nest import make_program
from .plan import BatchPlan, Plan, make_plan
from .program import Program
from .render import Source, render
from .schedule import Schedule
from .signature import Signature, signature
from .spec import Spec
from .verify import verify_program

VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel to generate."""

    name: str
    spec: Spec
    schedule: Schedule
    target: Target


@dataclass(frozen=True, slots=True)
class KernelText:
    """What the templates read of one kernel."""

    name: str
    target: Target
    element: str
    signature: Signature
    program: Program
    batch: BatchPlan | None
    static_offsets: tuple[tuple[str, tuple[int, ...]], ...]
    spec_text: str
    schedule_text: str


def plan_for(spec: Spec, schedule: Schedule, target: Target) -> Plan:
    """The plan of a kernel."""
    return make_plan(spec, schedule, target)


def program_for(plan: Plan) -> Program:
    """The checked program of a plan."""
    program = make_program(plan)
    verify_program(program, plan.target)
    return program


def generate(requests: Sequence[Request]) -> Source:
    """One C file with every requested kernel. All requests must be for one target."""
    kernels = [_kernel_text(request) for request in requests]
    headers = requests[0].target.headers
    text = render("library.c.j2", version=VERSION, headers=headers, kernels=kernels)
    return Source(text, tuple(request.name for request in requests))


def _kernel_text(request: Request) -> KernelText:
    plan = plan_for(request.spec, request.schedule, request.target)
    static = plan.batch.static if plan.batch else {}
    return KernelText(
        name=request.name,
        target=request.target,
        element=plan.element,
        signature=signature(request.spec),
        program=program_for(plan),
        batch=plan.batch,
        static_offsets=tuple(sorted(static.items())),
        spec_text=repr(request.spec),
        schedule_text=repr(request.schedule),
    )
