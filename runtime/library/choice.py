"""The targets of a library: the order in which they are chosen, and what each needs of a CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.errors import TargetError
from tilewright.isa.machine import CpuBit, Detection
from tilewright.isa.target import Target
from tilewright.runtime.machine.host import resolve
from tilewright.targets import NAMES


@dataclass(frozen=True, slots=True)
class Choice:
    """One target of a library, with its names in the C code."""

    target: Target
    rank: int

    @property
    def name(self) -> str:
        """The target's name with its features, such as "avx512+vnni"."""
        return self.target.name

    @property
    def label(self) -> str:
        """The target's name in C identifiers and paths, for example ``avx512_vnni``."""
        return self.target.name.replace("+", "_").replace(".", "_")

    def source(self, kernel: str) -> str:
        """Return the path of a kernel's C file, for example ``src/avx512/layer_avx512.c``."""
        return f"src/{self.label}/{kernel}_{self.label}.c"

    @property
    def machine(self) -> str:
        """The architecture that the target is compiled for, for example x86_64; "" for any."""
        return self.target.machine

    @property
    def detection(self) -> Detection | None:
        """The C code that detects the CPU's features, None if the target needs no features."""
        return self.target.detection

    @property
    def needs(self) -> tuple[tuple[str, CpuBit], ...]:
        """The CPU flags that the target needs, each with its bit in the words that C code reads."""
        if self.detection is None:
            return ()
        return tuple((flag, self.detection.bits[flag]) for flag in self.target.cpu_flags)


def choices(names: Sequence[str]) -> tuple[Choice, ...]:
    """Return the targets called ``names``, best first: a CPU uses the first that it supports.

    This is the order of ``tilewright.targets.NAMES``, best first. Of two targets with one base, the
    one that needs more features comes first. Raise TargetError for unknown targets, and for two
    targets that need the same features.
    """
    if isinstance(names, str) or not names:
        raise TargetError(
            "a library is for a list of targets", got=names or "none", hint='targets=["avx2"]'
        )
    found = sorted(map(resolve, names), key=_order)
    by_needs: dict[tuple[str, frozenset[str]], Target] = {}
    for target in found:
        _check_detected(target)
        needed = target.machine, frozenset(target.cpu_flags)
        if needed in by_needs:
            raise TargetError(
                "two targets of a library need the same of a CPU: one would never be chosen",
                got=f"{by_needs[needed].name} and {target.name}",
                expected="targets that need different features",
            )
        by_needs[needed] = target
    return tuple(Choice(target, rank) for rank, target in enumerate(found))


def _order(target: Target) -> tuple[int, int]:
    return NAMES.index(target.name.partition("+")[0]), -len(set(target.cpu_flags))


def _check_detected(target: Target) -> None:
    """Raise TargetError unless the C code can detect whether a CPU has the target's features."""
    known = {} if target.detection is None else target.detection.bits
    unknown = [flag for flag in target.cpu_flags if flag not in known]
    if unknown:
        raise TargetError(
            f"a program cannot find out whether its CPU has {target.name}",
            got=", ".join(unknown),
            expected="where each flag stands, in the target's detection",
        )


def machines(found: Sequence[Choice]) -> Iterator[tuple[str, Detection | None, tuple[Choice, ...]]]:
    """Yield each architecture, how its features are detected, and its targets; "" (any) is last."""
    for machine in sorted({each.machine for each in found}, key=lambda name: (not name, name)):
        members = tuple(each for each in found if each.machine == machine)
        yield machine, members[0].detection, members
