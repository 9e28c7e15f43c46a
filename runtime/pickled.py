"""Pickle kernels: collect what another process needs besides spec, schedule and target.

In goes a kernel's spec and target. Out comes a function with arguments, from which pickle makes the
kernel again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import SpecError
from tilewright.runtime.machine import calibrations
from tilewright.runtime.machine.calibrations import Measured
from tilewright.spec.gemm import Spec


def parts(
    remake: Callable[..., Any], said: tuple[Any, ...], spec: Spec, target: str
) -> tuple[Any, ...]:
    """Return a function and its arguments, from which pickle makes a kernel again.

    ``remake`` makes the kernel from ``said``. If the spec uses post-ops that the user defined,
    their operations are added. If the target's core has measured numbers, they are added too.
    """
    more = own_programs_of(spec), _measured_of(target)
    return (_remade, (remake, said, *more)) if any(more) else (remake, said)


def own_programs_of(spec: Spec) -> tuple[str, ...]:
    """Return the operations of the spec's expressions that use the user's post-ops, as texts."""
    if not spec.expressions:
        return ()
    from tilewright.elementwise.functions import own_programs

    return own_programs(spec.expressions, spec.real)


def _remade(
    remake: Callable[..., Any],
    said: tuple[Any, ...],
    programs: tuple[str, ...],
    numbers: Measured | None,
) -> Any:
    """Return the unpickled kernel; SpecError if one of its post-ops is defined differently here.

    The measured ``numbers`` of the target's core are registered in this process.
    """
    if numbers is not None:
        calibrations.carry(numbers)
    spec = said[0]
    if own_programs_of(spec) != programs:
        raise SpecError(
            "a post-op of this kernel is defined otherwise in this process",
            got=", ".join(map(repr, spec.expressions)),
            hint="both processes must define it alike: put it into a module that both import",
        )
    return remake(*said)


def _measured_of(target: str) -> Measured | None:
    """Return the measured numbers of a core to which a target's name refers, or None."""
    name = target.rpartition("+")[2]
    return calibrations.called(name) if calibrations.is_measured(name) else None
