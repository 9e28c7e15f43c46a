"""Cases compiled, many to one program, and run between guard pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tilewright.errors import TargetError, TilewrightError, ToolchainError
from tilewright.generate import Request, generate
from tilewright.isa.target import Target
from tilewright.runtime.build.compilers import Compiler, find_compiler
from tilewright.runtime.emulate.runner import Runner, build, runner_for
from tilewright.runtime.machine.host import is_native, means

from .operands import Kind, Operands, operands
from .space import Case

Flush = Literal["rear", "front"]
#: Every kind of values, and both ends of every operand at a guard page.
RUNS: tuple[tuple[Kind, Flush], ...] = (
    ("integers", "rear"),
    ("integers", "front"),
    ("random", "front"),
    ("special", "rear"),
)


@dataclass(frozen=True)
class Lab:
    """A program that holds kernels, by what it runs, and its process."""

    means: str
    compiler: Compiler
    runner: Runner

    def run(self, case: Case, kind: Kind, flush: Flush = "rear", name: str | None = None) -> None:
        """AssertionError if C is wrong, TargetError if the kernel left its operands."""
        given = operands(case, kind)
        sizes = [value for _, value in case.values]
        writable = [argument is given.c for argument in given.arguments]
        (data,) = self.runner.call(
            name or case.name,
            given.arguments,
            sizes,
            case.scalars,
            writable,
            names=given.names,
            flush=flush,
        )
        given.check(np.frombuffer(data, given.c.dtype))

    def check(self, case: Case, name: str | None = None) -> None:
        """All RUNS of a case."""
        for kind, flush in RUNS:
            try:
                self.run(case, kind, flush, name)
            except AssertionError as error:
                raise AssertionError(f"{kind}: {error}") from None


def lab(
    texts: Sequence[str],
    names: Sequence[str],
    target: Target,
    directory: Path,
    *,
    emulated: bool = False,
    flags: Sequence[str] = (),
) -> Lab:
    """A lab for C texts that define ``names``; the test is skipped where nothing can run it."""
    try:
        how = means(target, emulated=emulated or not is_native(target))
        compiler = find_compiler(target, emulated=how != "native")
    except (TargetError, ToolchainError) as error:
        pytest.skip(str(error))
    program = build(texts, names, target, compiler, directory, "cases", flags)
    return Lab(how, compiler, runner_for(program, target, emulated=how != "native"))


def generated(cases: Sequence[Case], faults: list[str]) -> tuple[list[Case], str]:
    """The cases that can be generated, and their C; what is wrong with others joins ``faults``."""
    good, requests = list(cases), [request(case) for case in cases]
    try:
        return good, generate(requests).text
    except Exception:  # noqa: BLE001, one by one the culprit is found
        good = [case for case in cases if _can_be_generated(case, faults)]
    return good, generate([request(case) for case in good]).text if good else ""


def request(case: Case) -> Request:
    """What the generator is asked for."""
    return Request(case.name, case.spec, case.schedule, case.target)


def _can_be_generated(case: Case, faults: list[str]) -> bool:
    try:
        generate([request(case)])
    except Exception as error:  # noqa: BLE001, it is reported with the case
        faults.append(f"{case}\n    {type(error).__name__}: {error}")
        return False
    return True


def report(check: Callable[[Case], None], cases: Iterable[Case], faults: list[str]) -> int:
    """Check every case; how many passed. What failed is added to ``faults``."""
    passed = 0
    for case in cases:
        try:
            check(case)
        except (AssertionError, TilewrightError) as error:
            faults.append(f"{case}\n    {type(error).__name__}: {error}")
        else:
            passed += 1
    return passed


__all__ = ["RUNS", "Lab", "Operands", "generated", "lab", "report"]
