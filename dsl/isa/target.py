"""A target: an instruction set with its features, its vectors, core and compiler options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from tilewright.errors import TargetError

from .machine import CompilerHints, Core, Detection, Emulation, Mode, VectorLength
from .matrix_unit import MatrixUnit
from .vector import MulAdd, Vector

#: Of a family of compilers of which no version makes a target's code.
NEVER = "none"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feature:
    """An extension of an instruction set that a user names behind a ``+``.

    ``muladd`` are its multiply-adds by name and element of the accumulators' vector, ``vectors``
    those that the target lacks, and that hold their factors. A compiler flag that begins with ``+``
    or ``_`` is appended to the target's ``-march``, whose architecture the feature's own ``-march``
    replaces; ``zig`` is appended to its ``-mcpu``. ``emulation`` and ``core`` take the place of the
    target's; ``products`` are more of its matrix unit's. ``processors`` are those whose core it
    describes (none: any), by vendor, family and model as ``/proc/cpuinfo`` has them, and by name as
    archspec has it elsewhere; ``core_source`` says whose numbers those of the core are.
    ``compilers`` are the least versions that know it, where the target's own will not do.
    ``extend`` gives the target's vectors what they have besides with it, as loads and stores that
    convert.
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
        """The compiler flags of a target with this feature."""
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

    ``cpu_flags`` are the names that ``/proc/cpuinfo`` uses; all are needed. ``machine`` is
    ``platform.machine()`` of CPUs that can run it, "" any; ``detection`` says how a program that
    runs there finds these flags. ``compilers`` are the least versions that know its intrinsics, by
    family, "gcc", "clang" or "zig", NEVER where none does; any will do of one that is not named.
    ``length`` is that of the vectors where a thread has one of several, None where the instruction
    set fixes it; ``mode`` the mode of the processor that its instructions need, None where they
    need none. ``fence`` is the statement behind stores past the caches, which are in no order with
    others before it. ``scalars_apart``: C scalars lie in registers of their own, as many as there
    are of vectors; else they take one of these. ``core_source`` says whose numbers the core's are.
    ``threads`` is how many may share a core: whether they do a virtual machine does not say.
    ``set_aside`` is the matrix unit of a target that is seen without it, for a part of a kernel.
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
        """Shares of time, and what the core is in them: alone, and beside a thread that is busy.

        Such a thread mostly takes operations away, which the core starts at 0.4 of its rate then,
        and now and then loads, as sampled on Emerald Rapids (``docs/maintainers/notebook.md``).
        """
        return _states(self.core)

    @property
    def every_vector(self) -> tuple[Vector, ...]:
        """The vectors, and those that a matrix unit alone has for its factors."""
        return (*self.vectors, *(self.matrix.vectors if self.matrix else ()))

    def of(self, element: str) -> tuple[Vector, ...]:
        """The vectors of an element type, widest first."""
        return _vectors_of(self, element)

    def holding(self, element: str, lanes: int) -> Vector:
        """The vector of ``lanes`` elements of a type; TargetError if there is none."""
        every = (v for v in self.every_vector if v.element == element)
        found = next((v for v in every if v.lanes == lanes), None)
        if found is None:
            raise TargetError(f"target {self.name} has no vector of {lanes} {element}")
        return found

    def having(self, names: Iterable[str]) -> Target:
        """This target and the features called ``names``; TargetError if one is unknown."""
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
    """``target`` with features; the multiply-adds of a later one are preferred."""
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
    """``target`` without the products of a matrix unit whose factors are vectors."""
    blocks = target.matrix is not None and target.matrix.factors == "vectors"
    return replace(target, matrix=None) if blocks else target


@cache
def vectors_alone(target: Target) -> Target:
    """``target`` without its matrix unit."""
    if target.matrix is None:
        return target
    return replace(target, matrix=None, set_aside=target.matrix)


def _has(target: Target, vector: Vector) -> bool:
    """Whether ``target`` has such a vector: features may need the same."""
    return any(v.lanes == vector.lanes for v in target.of(vector.element))


@cache
def uncut(target: Target) -> Target:
    """``target`` without masks and partial accesses: whole vectors, and narrower ones."""
    vectors = (replace(v, mask=None, partial_load={}, partial_store={}) for v in target.vectors)
    return replace(target, vectors=tuple(vectors))
