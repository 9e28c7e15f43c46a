"""The words a target speaks: vectors, multiply-add forms, masks, and how C spells them.

Spellings are format strings. ``{p}`` is a pointer, ``{v}`` a vector, ``{x}`` and ``{y}``
operands, ``{acc}`` an accumulator, ``{mask}`` a mask, ``{count}`` a number of active lanes,
``{lane}`` a constant. A spelling of a load or of arithmetic is an expression; of a store, a
statement without its semicolon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from .core import Core, Emulation, Hold
from .errors import TargetError

Form = Literal["broadcast", "memory", "lane", "scalar", "matrix"]
#: Depth, and the element types of the factors along and across the vectors ("": the accumulator's).
Factors = tuple[int, str, str]
ALIKE: Factors = (1, "", "")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MulAdd:
    """One multiply-accumulate form: ``acc += x * y`` over rows x cols x depth elements.

    ``form`` says how the operand that does not lie along the vector arrives: ``broadcast`` in a
    register of equal lanes, ``memory`` from memory inside the instruction (C spells it as a
    broadcast used once), ``lane`` as one lane of a vector, ``scalar`` as a C scalar.

    ``x`` and ``y`` are the element types of the factors in registers, "" that of the accumulator.
    With a depth, each lane of the accumulator sums the products of ``depth`` elements of x with
    as many of y: a group of 16, 32 or 64 bits. With ``rows``, a lane is an element of a block of
    ``rows`` x ``cols``, row by row; x holds one group for each column, y one for each row.
    ``instructions`` is how many C's expression takes; ``product`` is the part of it that a second
    one adds, if that is a vector like the accumulator. ``mnemonic`` is "" where the compiler
    chooses them: a product of floating point is then rounded before it is added. ``latency`` is in
    cycles, 0 that of the core's multiply-add.

    The form ``matrix`` is a matrix unit's: all three are matrices in its registers. A row of y
    holds up to ``depth`` elements of K; a row of x one group of ``group`` elements for each column.
    """

    form: Form
    mnemonic: str
    spelling: str
    cols: int
    rows: int = 1
    depth: int = 1
    x: str = ""
    y: str = ""
    instructions: int = 1
    product: str = ""
    group: int = 0
    latency: int = 0

    def __repr__(self) -> str:
        return f"<{self.mnemonic} by {self.form}>"

    @property
    def factors(self) -> Factors:
        """What it multiplies."""
        return self.depth, self.x, self.y

    @property
    def fused(self) -> bool:
        """Whether a product of floating point is rounded with the sum alone."""
        return bool(self.mnemonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """Predicated access to the first ``{count}`` lanes; ``registers`` are vector registers."""

    ctype: str
    make: str
    load: str
    store: str
    registers: int


@dataclass(frozen=True, slots=True)
class Spread:
    """One element of another type in all lanes, converted; of its steps ``shuffles`` permute."""

    spelling: str
    shuffles: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many elements of another type, converted and repeated over a register.

    Of its steps ``shuffles`` permute. ``pick`` spreads the element ``{lane}`` of ``{v}``.
    """

    count: int
    spelling: str
    shuffles: int
    pick: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Vector:
    """A register's view as ``lanes`` elements, and its operations.

    ``partial_load`` and ``partial_store`` map a constant number of active lanes to the access of
    exactly that many elements (the rest of the register is zero); beside a mask, such a store is
    preferred to a masked one. ``transpose[h]`` is the pair of 2x2 block transpositions of two
    registers with blocks of ``h`` elements: the first gives the even blocks of ``{x}`` and ``{y}``
    interleaved, the second the odd ones.

    ``loads[type]`` reads ``lanes`` elements of another type from memory and converts them,
    ``spreads[type]`` one element, ``repeats[type]`` a few; ``stores[type]`` converts and writes
    them. ``ops`` are the elementary operations by name, of ``{x}``, ``{y}`` and ``{z}``. A vector
    without ``muladd`` only holds factors; its ``group`` is a register full of the ``{bits}`` bits
    ``{x}``, an integer in C.
    """

    name: str
    element: str
    lanes: int
    ctype: str
    load: str
    store: str = ""
    zero: str = ""
    broadcast: str = ""
    splat: str = ""
    add: str = ""
    mul: str = ""
    muladd: tuple[MulAdd, ...] = ()
    sum_lanes: str = ""
    group: str = ""
    loads: Mapping[str, str] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    repeats: Mapping[str, Repeat] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, str] = field(default_factory=dict)
    mask: Mask | None = None
    partial_load: Mapping[int, str] = field(default_factory=dict)
    partial_store: Mapping[int, str] = field(default_factory=dict)
    transpose: Mapping[int, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise TargetError(f"vector {self.name}: lanes must be positive", got=self.lanes)
        if self.muladd and not any(op.form in ("broadcast", "scalar") for op in self.muladd):
            raise TargetError(
                f"vector {self.name} needs a multiply-add with a broadcast or scalar operand"
            )
        for op in self.muladd:
            if op.rows * op.cols != self.lanes:
                raise TargetError(
                    f"{op.mnemonic} computes {op.rows}x{op.cols}", expected=f"{self.lanes} elements"
                )

    def __repr__(self) -> str:
        return f"<{self.name}: {self.lanes} {self.element}>"

    def cuts(self, active: int) -> bool:
        """Whether ``active`` lanes, a constant, can be loaded and stored alone."""
        return self.mask is not None or active in self.partial_load

    @property
    def cuts_any(self) -> bool:
        """Whether any number of lanes can be loaded and stored alone."""
        return all(self.cuts(active) for active in range(1, self.lanes))

    @property
    def prefers_overlap(self) -> bool:
        """Whether a tail costs less as a whole vector that ends at the edge than cut."""
        return self.lanes > 1 and (self.mask is None or self.mask.registers > 0)

    @property
    def transposes(self) -> bool:
        """Whether square blocks of registers can be transposed."""
        blocks = {1 << i for i in range(self.lanes.bit_length() - 1)}
        return self.lanes & (self.lanes - 1) == 0 and blocks <= set(self.transpose)

    def form(self, *forms: Form, factors: Factors = ALIKE) -> MulAdd | None:
        """The multiply-add of the first of ``forms`` that this vector has for ``factors``."""
        return _muladd_of(self, forms, factors)


@cache
def _muladd_of(vector: Vector, forms: tuple[Form, ...], factors: Factors) -> MulAdd | None:
    asked = [(form, factors) for form in forms]
    found = (op for wanted in asked for op in vector.muladd if (op.form, op.factors) == wanted)
    return next(found, None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatrixUnit:
    """Registers that hold matrices, and the instructions that multiply them.

    Each of ``registers`` has up to ``rows`` rows of ``row_bytes`` bytes; which part of it is in
    use is said by a configuration, which ``template`` declares, loads and puts back, with what the
    C library's ``headers`` have; ``consent`` is the system call that asks for its use. ``products``
    are those of each accumulators' type. ``{dst}``, ``{src}``, ``{acc}``, ``{x}`` and ``{y}`` are
    registers, ``{p}`` is a pointer, ``{stride}`` the bytes from row to row. ``latency`` is in
    cycles; a multiply-add takes a cycle for each row of y, a load or store one for each row.
    """

    name: str
    registers: int
    rows: int
    row_bytes: int
    products: Mapping[str, tuple[MulAdd, ...]]
    zero: str
    load: str
    store: str
    consent: tuple[int, ...]
    headers: tuple[str, ...]
    template: str
    latency: int

    def with_products(self, more: Mapping[str, tuple[MulAdd, ...]]) -> MatrixUnit:
        """This unit with ``more`` products; those of each type are preferred to its own."""
        names = {*self.products, *more}
        both = {n: (*more.get(n, ()), *self.products.get(n, ())) for n in sorted(names)}
        return replace(self, products=both) if more else self


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feature:
    """An extension of an instruction set that a user names behind a ``+``.

    ``muladd`` are its multiply-adds by name and element of the accumulators' vector, ``vectors``
    what holds their factors. A compiler flag that begins with ``+`` is appended to the target's
    ``-march``, whose architecture the feature's own ``-march`` replaces; ``zig`` is appended to
    its ``-mcpu``. ``emulation`` and ``core`` take the place of the target's; ``products`` are more
    of its matrix unit's. ``processors`` are those whose core it describes (none: any), by vendor,
    family and model as ``/proc/cpuinfo`` has them, and by name as archspec has it elsewhere.
    """

    title: str
    cpu_flags: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    zig: str = ""
    muladd: Mapping[tuple[str, str], tuple[MulAdd, ...]] = field(default_factory=dict)
    vectors: tuple[Vector, ...] = ()
    emulation: Emulation | None = None
    products: Mapping[str, tuple[MulAdd, ...]] = field(default_factory=dict)
    core: Core | None = None
    processors: tuple[str, ...] = ()

    def compiler(self, flags: tuple[str, ...]) -> tuple[str, ...]:
        """The compiler flags of a target with this feature."""
        added = "".join(flag for flag in self.compiler_flags if flag.startswith("+"))
        march = next((flag for flag in self.compiler_flags if flag.startswith("-march=")), None)
        plain = tuple(flag for flag in self.compiler_flags if flag[0] != "+" and flag != march)

        def extended(flag: str) -> str:
            base, plus, extensions = flag.partition("+")
            return f"{march or base}{plus}{extensions}{added}"

        return (*(extended(f) if f.startswith("-march=") else f for f in flags), *plain)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Target:
    """An instruction set: its registers, vectors (widest first), core, and compiler options.

    ``cpu_flags`` are the names that ``/proc/cpuinfo`` uses; all are needed. ``machine`` is
    ``platform.machine()`` of CPUs that can run it, "" any.
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
    matrix: MatrixUnit | None = None
    features: Mapping[str, Feature] = field(default_factory=dict)
    hold: Hold | None = None

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

    def of(self, element: str) -> tuple[Vector, ...]:
        """The vectors of an element type, widest first."""
        return _vectors_of(self, element)

    def holding(self, element: str, lanes: int) -> Vector:
        """The vector of ``lanes`` elements of a type; TargetError if there is none."""
        found = next((v for v in self.of(element) if v.lanes == lanes), None)
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
def _vectors_of(target: Target, element: str) -> tuple[Vector, ...]:
    return tuple(v for v in target.vectors if v.element == element)


@cache
def _extended(target: Target, names: tuple[str, ...]) -> Target:
    """``target`` with features; the multiply-adds of a later one are preferred."""
    for name in names:
        feature = target.features[name]
        vectors = tuple(
            replace(v, muladd=(*feature.muladd.get((v.name, v.element), ()), *v.muladd))
            for v in target.vectors
        )
        target = replace(
            target,
            name=f"{target.name}+{name}",
            title=f"{target.title}, {feature.title}",
            cpu_flags=(*target.cpu_flags, *feature.cpu_flags),
            compiler_flags=feature.compiler(target.compiler_flags),
            zig_flags=tuple(flag + feature.zig for flag in target.zig_flags),
            vectors=(*vectors, *feature.vectors),
            core=feature.core or target.core,
            emulation=feature.emulation or target.emulation,
            matrix=target.matrix and target.matrix.with_products(feature.products),
        )
    return target


@cache
def uncut(target: Target) -> Target:
    """``target`` without masks and partial accesses: whole vectors, and narrower ones."""
    vectors = (replace(v, mask=None, partial_load={}, partial_store={}) for v in target.vectors)
    return replace(target, vectors=tuple(vectors))
