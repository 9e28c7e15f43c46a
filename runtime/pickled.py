"""What a pickled kernel carries beside its spec, schedule and target, and the kernel made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.errors import SpecError
from tilewright.runtime.machine import calibrations
from tilewright.runtime.machine.calibrations import Measured
from tilewright.spec.gemm import Gemm, Spec


def parts(
    remake: Callable[..., Any], said: tuple[Any, ...], spec: Spec, target: str
) -> tuple[Any, ...]:
    """A kernel for pickle: a function and its arguments.

    ``remake`` makes the kernel of what was ``said``. The meanings of post-ops of the user's own,
    and the measured numbers of the target's core, go with it where there are any.
    """
    more = own_programs_of(spec), _measured_of(target)
    return (_remade, (remake, said, *more)) if any(more) else (remake, said)


def own_programs_of(spec: Spec) -> tuple[str, ...]:
    """The programs of a spec's expressions that use post-ops of the user's own, as texts."""
    if not isinstance(spec, Gemm) or not spec.expressions:
        return ()
    from tilewright.elementwise.functions import own_programs

    return own_programs(spec.expressions, "f64" if spec.type == "f64" else "f32")


def _remade(
    remake: Callable[..., Any],
    said: tuple[Any, ...],
    programs: tuple[str, ...],
    numbers: Measured | None,
) -> Any:
    """A kernel that was pickled; SpecError where a post-op has another meaning here.

    The measured ``numbers`` of its target's core are known from then on.
    """
    if numbers is not None:
        calibrations.carry(numbers)
    spec = said[0]
    if own_programs_of(spec) != programs:
        raise SpecError(
            "a post-op of this kernel is defined otherwise in this process",
            got=", ".join(map(repr, spec.expressions)) if isinstance(spec, Gemm) else spec,
            hint="both processes must define it alike: put it into a module that both import",
        )
    return remake(*said)


def _measured_of(target: str) -> Measured | None:
    """The measured numbers that a target's name names."""
    name = target.rpartition("+")[2]
    return calibrations.called(name) if calibrations.is_measured(name) else None
