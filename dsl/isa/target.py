"""Data classes for a target: an instruction set with features, vectors, core and compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from tilewright.errors import TargetError

from .machine import CompilerHints, Core, Detection, Emulation, Mode, VectorLength
from .matrix_unit import MatrixUnit
from .vector import MulAdd, Vector

#: As a version in ``Target.compilers``, this means that no version of the compiler is suitable.
NEVER = "none"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feature:
    """An extension of an instruction set, named after a ``+``: ``vnni`` in ``avx512+vnni``.

    - ``muladd``: the feature's multiply-adds, by name and element of the vector of sums.
    - ``vectors``: further vectors, which hold only factors.
    - ``extend``: function that adds operations to the target's vectors, for example loads that
      convert.
    - ``products``: further multiply-adds of the target's matrix unit.
    - ``cpu_flags``: names in ``/proc/cpuinfo`` that the feature needs.
    - ``compiler_flags``: options for gcc and clang. An option that begins with ``+`` or ``_`` is
      appended to the target's ``-march``. A ``-march`` here replaces the target's architecture.
    - ``zig``: text appended to the target's ``-mcpu`` for zig.
    - ``compilers``: oldest versions that know the feature, if newer than the target's.
    - ``emulation``, ``core``: replace the target's. ``core_source`` says who measured the core.
    - ``processors``: processors whose core the feature describes, none for any. Each is vendor,
      family and model as in ``/proc/cpuinfo``, or a name as archspec has it.
    """

    title: str
    cpu_flags: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    zig: str = ""
    muladd: Mapping[tuple[str, str], tuple[MulAdd, ...]] = field(default_factory=dict)
    vectors: tuple[Vector, ...] = ()
    extend: Callable[[Vector], Vector] | None = None
    emulation: Emulation | None = None
    products: Mapping[str, tuple[MulAdd, ...]] = field(default_factory=dict)
    core: Core | None = None
    core_source: str = ""
    processors: tuple[str, ...] = ()
    compilers: Mapping[str, str] = field(default_factory=dict)

    def compiler(self, flags: tuple[str, ...]) -> tuple[str, ...]:
        """Return a target's compiler flags with this feature; ``flags`` are those without it."""
        added = "".join(flag for flag in self.compiler_flags if flag[0] in "+_")
        march = next((flag for flag in self.compiler_flags if flag.startswith("-march=")), None)
        plain = tuple(flag for flag in self.compiler_flags if flag[0] not in "+_" and flag != march)

        def extended(flag: str) -> str:
            base, plus, extensions = flag.partition("+")
            return f"{march or base}{plus}{extensions}{added}"

        return (*(extended(f) if f.startswith("-march=") else f for f in flags), *plain)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """An instruction set: its registers, vectors (widest first), core, and compiler options.

    - ``machine``: ``platform.machine()`` of CPUs that can run the target, "" for any.
    - ``cpu_flags``: names in ``/proc/cpuinfo``; a CPU must have all of them.
    - ``detection``: C code that finds these flags at run time.
    - ``compilers``: oldest versions of "gcc", "clang" and "zig" that know the target's intrinsics.
      NEVER means that no version does. A compiler that is not named may have any version.
    - ``compiler_flags``: options for gcc and clang. ``zig_flags``: options for zig.
    - ``registers``: number of vector registers.
    - ``scalars_apart``: true if C scalars have their own registers, as many as there are vector
      registers. Otherwise a scalar takes a vector register.
    - ``length``: length of vectors, if threads may choose it; None if the instruction set fixes it.
    - ``mode``: processor mode that the instructions need, None if they need none.
    - ``fence``: statement after stores that bypass the caches. Without it, later stores may
      overtake these.
    - ``core_source``: who measured the core's numbers.
    - ``threads``: number of threads that may share a core; virtual machines do not report it.
    - ``set_aside``: the matrix unit, if part of a kernel is planned without the unit.
    """

    name: str
    title: str
    machine: str
    cpu_flags: tuple[str, ...]
    compiler_flags: tuple[str, ...]
    zig_flags: tuple[str, ...]
    headers: tuple[str, ...]
    registers: int
    vectors: tuple[Vector, ...]
    core: Core
    emulation: Emulation = field(default_factory=Emulation)
    detection: Detection | None = None
    compilers: Mapping[str, str] = field(default_factory=dict)
    matrix: MatrixUnit | None = None
    set_aside: MatrixUnit | None = None
    length: VectorLength | None = None
    mode: Mode | None = None
    fence: str = ""
    features: Mapping[str, Feature] = field(default_factory=dict)
    hints: CompilerHints | None = None
    core_source: str = "the target's own numbers"
    scalars_apart: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        if self.registers < 4:
            raise TargetError(f"target {self.name} needs 4 registers or more", got=self.registers)
        for element in sorted({v.element for v in self.vectors}):
            lanes = [v.lanes for v in self.of(element)]
            held = not any(v.muladd for v in self.of(element))
            if lanes != sorted(set(lanes), reverse=True) or (lanes[-1] != 1 and not held):
                raise TargetError(
                    f"target {self.name}: vectors of {element} must get narrower down to 1 lane",
                    got=lanes,
                )
        elements = {vector.element for vector in self.vectors}
        for op in (op for vector in self.vectors for op in vector.products):
            if missing := {op.x, op.y} - {"", *elements}:
                raise TargetError(
                    f"target {self.name}: {op.mnemonic} multiplies {op.x} by {op.y}, "
                    "which no vector holds",
                    got=f"vectors of {', '.join(sorted(elements))}",
                    expected=f"one of {', '.join(sorted(missing))} as well",
                )

    @property
    def states(self) -> tuple[tuple[float, Core], ...]:
        """Pairs (share of time, core): the core alone, and while its second thread is busy.

        The second thread mostly lowers the rate of instructions, to 0.4 of the full rate, and
        sometimes the rate of loads. This was sampled on Emerald Rapids
        (``docs/maintainers/notebook.md``).
        """
        return _states(self.core)

    @property
    def every_vector(self) -> tuple[Vector, ...]:
        """The target's vectors, then the vectors for factors that only its matrix unit has."""
        return (*self.vectors, *(self.matrix.vectors if self.matrix else ()))

    def of(self, element: str) -> tuple[Vector, ...]:
        """Return the vectors of an element type, widest first."""
        return _vectors_of(self, element)

    def holding(self, element: str, lanes: int) -> Vector:
        """Return the vector of ``lanes`` elements of a type; TargetError if there is none."""
        every = (v for v in self.every_vector if v.element == element)
        found = next((v for v in every if v.lanes == lanes), None)
        if found is None:
            raise TargetError(f"target {self.name} has no vector of {lanes} {element}")
        return found

    def having(self, names: Iterable[str]) -> Target:
        """Return this target with the features called ``names``; TargetError if one is unknown."""
        asked = set(names)
        for name in sorted(asked - set(self.features)):
            raise TargetError(
                f"target {self.name} has no feature {name!r}",
                expected=f"of its features: {', '.join(self.features) or 'none'}",
            )
        return _extended(self, tuple(name for name in self.features if name in asked))


@cache
def _states(core: Core) -> tuple[tuple[float, Core], ...]:
    operates, loads = core.busy(2.5, 1.1, 1.5), core.busy(1.3, 2, 1.5)
    return (0.5, core), (0.4, operates), (0.1, loads)


@cache
def _vectors_of(target: Target, element: str) -> tuple[Vector, ...]:
    return tuple(v for v in target.vectors if v.element == element)


@cache
def _extended(target: Target, names: tuple[str, ...]) -> Target:
    """Return ``target`` with the features ``names``; later features' multiply-adds come first."""
    for name in names:
        feature = target.features[name]
        vectors = tuple(
            replace(v, muladd=(*feature.muladd.get((v.name, v.element), ()), *v.muladd))
            for v in map(feature.extend or _as_it_is, target.vectors)
        )
        target = replace(
            target,
            name=f"{target.name}+{name}",
            title=f"{target.title}, {feature.title}",
            cpu_flags=(*target.cpu_flags, *feature.cpu_flags),
            compiler_flags=feature.compiler(target.compiler_flags),
            zig_flags=tuple(flag + feature.zig for flag in target.zig_flags),
            vectors=(*vectors, *(v for v in feature.vectors if not _has(target, v))),
            core=feature.core or target.core,
            core_source=feature.core_source or target.core_source,
            emulation=feature.emulation or target.emulation,
            compilers={**target.compilers, **feature.compilers},
            matrix=target.matrix and target.matrix.with_products(feature.products),
        )
    return target


def _as_it_is(vector: Vector) -> Vector:
    return vector


@cache
def without_blocks(target: Target) -> Target:
    """Return ``target`` without its matrix unit if the unit's factors are vectors, as in SME."""
    blocks = target.matrix is not None and target.matrix.factors == "vectors"
    return replace(target, matrix=None) if blocks else target


@cache
def vectors_alone(target: Target) -> Target:
    """Return ``target`` without its matrix unit, which is kept in ``set_aside``."""
    if target.matrix is None:
        return target
    return replace(target, matrix=None, set_aside=target.matrix)


def _has(target: Target, vector: Vector) -> bool:
    """Return True if ``target`` already has a vector of this element and number of lanes."""
    return any(v.lanes == vector.lanes for v in target.of(vector.element))


@cache
def on_core(target: Target, core: Core) -> Target:
    """Return ``target`` with ``core`` as its core, for estimates."""
    return target if core is target.core else replace(target, core=core)


@cache
def uncut(target: Target) -> Target:
    """Return ``target`` without masked and partial accesses: only whole vectors are accessed."""
    vectors = (
        replace(v, mask=None, fill=v.fill_by_count, partial_load={}, partial_store={})
        for v in target.vectors
    )
    return replace(target, vectors=tuple(vectors))
