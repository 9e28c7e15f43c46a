"""The words a target speaks: vectors, multiply-add forms, masks, and how C spells them.

Spellings are format strings. ``{p}`` is a pointer, ``{v}`` a vector, ``{x}`` and ``{y}``
operands, ``{acc}`` an accumulator, ``{mask}`` a mask, ``{count}`` a number of active lanes,
``{lane}`` a constant. A spelling of a load or of arithmetic is an expression; of a store, a
statement without its semicolon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tilewright.errors import TargetError
from tilewright.spec.types import ITEMSIZE, other_sign

Form = Literal["broadcast", "memory", "lane", "scalar", "matrix", "block"]
#: Depth, and the element types of the factors along and across the vectors ("": the accumulator's).
Factors = tuple[int, str, str]
ALIKE: Factors = (1, "", "")
#: A square of as many registers leaves none to transpose it with.
MOST_ROWS = 32
#: The numbers of a table that fields look up.
TABLE = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MulAdd:
    """One multiply-accumulate form: ``acc += x * y`` over rows x cols x depth elements.

    ``form`` says how the operand that does not lie along the vector arrives: ``broadcast`` in a
    register of equal lanes, ``memory`` from memory inside the instruction (C spells it as a
    broadcast used once, or of the pointer ``{p}``), ``lane`` as one lane of a vector, ``scalar`` as
    a C scalar.

    ``x`` and ``y`` are the element types of the factors in registers, "" that of the accumulator.
    With a depth, each lane of the accumulator sums the products of ``depth`` elements of x with
    as many of y: a group of 16, 32 or 64 bits. With ``rows``, a lane is an element of a block of
    ``rows`` x ``cols``, row by row; x holds one group for each column, y one for each row.
    ``instructions`` is how many C's expression takes; ``product`` is the part of it that a second
    one adds, if that is a vector like the accumulator. ``mnemonic`` is "" where the compiler
    chooses them: a product of floating point is then rounded before it is added. ``latency`` is in
    cycles, 0 that of the core's multiply-add.

    A register holds so many ``lanes`` of which the form ``lane`` takes one, 0: as many as there
    are; where it has more, they repeat, as ``Vector.repeats`` of y's own type fills it. Such a
    register is one of the first ``within``, 0: any. A block's
    columns may lie in ``segments`` of the register, each with its part of all rows; y's groups then
    repeat in each.

    The forms ``matrix`` and ``block`` are a matrix unit's, whose registers hold the sums. Of
    ``matrix`` the factors are matrices there, too: a row of y holds up to ``depth`` elements of K;
    a row of x one group of ``group`` elements for each column. Of ``block`` they are vectors, of
    a group for each column and each row.
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
    lanes: int = 0
    within: int = 0
    segments: int = 1

    def __repr__(self) -> str:
        return f"<{self.mnemonic} by {self.form}>"

    @property
    def factors(self) -> Factors:
        """What it multiplies."""
        return self.depth, self.x, self.y

    @property
    def groups(self) -> int:
        """The groups of K in a register of y: one for each row of a block, or for each lane."""
        return self.rows * self.segments if self.rows > 1 else self.cols

    @property
    def fused(self) -> bool:
        """Whether a product of floating point is rounded with the sum alone."""
        return bool(self.mnemonic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """Predicated access to the first ``{count}`` lanes; ``registers`` are vector registers.

    ``loads`` and ``stores`` are accesses of elements of another type, as those of ``Vector``; what
    is not there goes by way of the stack. ``loose`` are the same accesses where zeros in the other
    lanes cost something and nobody asks for them: its loads leave anything there. ``zeros`` are the
    registers that zeros in these lanes cost, beside those loaded. ``groups`` are loads of the first
    elements of which so many fill a lane, by a mask of a vector of such elements. ``fewer`` are
    loads where no more than so many lanes are known to be asked for, fewest first: of a part of the
    register, which reaches into a second line less often.
    """

    ctype: str
    make: str
    load: str
    store: str
    registers: int
    loads: Mapping[str, str] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)
    loose: Mask | None = None
    zeros: int = 0
    groups: Mapping[int, str] = field(default_factory=dict)
    fewer: tuple[tuple[int, str], ...] = ()

    def loading(self, lanes: int | None) -> str:
        """The load of so many lanes, None where only the call knows how many."""
        found = (load for most, load in self.fewer if lanes is not None and lanes <= most)
        return next(found, self.load)


class Masked(NamedTuple):
    """The lanes of an access by a mask: how many, None where only the call knows."""

    lanes: int | None


@dataclass(frozen=True, slots=True)
class Spread:
    """A broadcast of one element of another type, converted on the way.

    ``shuffles`` of its instructions permute a vector.
    """

    spelling: str
    shuffles: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """``count`` elements, converted where they are of another type, repeated over a register.

    ``shuffles`` of its instructions permute a vector. ``pick`` broadcasts element ``{lane}`` of the
    repeated ones in ``{v}``; those of the vector's own type are not picked, but multiplied by lane.
    """

    count: int
    spelling: str
    shuffles: int = 0
    pick: str = ""


@dataclass(frozen=True, slots=True)
class Several:
    """A load of ``count`` whole vectors that lie side by side in memory.

    They are of one C type, ``ctype``; ``part`` is vector ``{lane}`` of such a ``{v}``, or with
    ``apart``, a statement that fills an array ``{dst}`` from it, of that array.
    """

    count: int
    ctype: str
    load: str
    part: str
    apart: str = ""


class _Ways(NamedTuple):
    """The spellings of a vector's loads, or of its stores."""

    whole: str
    others: Mapping[str, str]
    masked: str
    masked_others: Mapping[str, str]
    masked_groups: Mapping[int, str]
    partial: Mapping[int, str]
    grouped: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table of ``TABLE`` numbers, and how vectors look them up by the bits of integers.

    ``spelling`` is one of type ``ctype``, "" the vector's, of the elements whose bits are the
    integers ``{numbers}``. ``found[type]`` are, for each field of the low byte of lanes of ``{v}``,
    the numbers in such a ``{table}`` that it counts; those lanes are of ``codes``, as many as the
    vector's.
    """

    spelling: str
    codes: str
    found: Mapping[str, tuple[str, ...]]
    ctype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Vector:
    """A register's view as ``lanes`` elements, and its operations.

    It takes ``registers`` of the target's, more than one where the instruction set groups them.

    ``partial_load`` and ``partial_store`` map a constant number of active lanes to the access of
    exactly that many elements (the rest of the register is zero); beside a mask, such a store is
    preferred to a masked one. ``transpose[h]`` is the pair of 2x2 block transpositions of two
    registers with blocks of ``h`` elements: the first gives the even blocks of ``{x}`` and ``{y}``
    interleaved, the second the odd ones; ``unzip[h]`` the pair that gives the even blocks of
    ``{x}`` and then those of ``{y}``, and the odd ones.

    ``broadcast_shuffles`` instructions of a broadcast permute a vector, on a multiply-add's unit.

    ``loads[type]`` reads ``lanes`` elements of another type from memory and converts them,
    ``spreads[type]`` one element, ``repeats[type]`` a few; ``stores[type]`` converts and writes
    them. ``ops`` are the elementary operations by name, of ``{x}``, ``{y}`` and ``{z}``. A vector
    without ``muladd`` only holds factors; its ``group`` is a register full of the ``{bits}`` bits
    ``{x}``, an integer in C; ``fields[type]`` are the numbers of a stored type in each field of
    the low byte of the lanes of ``{v}``, of s32 for floating point, the lowest field first: of u2
    and u4, and those of f4_e2m1 in halves, with 12 added in unsigned lanes; ``u1<<4`` fields of one
    bit, moved up by four;
    ``join`` is the bits of ``{x}`` and those of ``{y}``; ``numbers`` is how it looks up
    elements by fields of bytes; ``flip`` is ``{v}``, integers of the other sign, with half of
    their range added to each or subtracted, so that the values are its own.
    ``few`` is a multiply-add whose sums its lanes hold of few products alone: a vector with twice
    their bits adds those sums up, by its own multiply-add with ones.
    ``several`` are loads of more than one vector, those of most first.
    ``load_group`` and ``store_group`` move ``{bytes}`` bytes as the one lane that there is.
    ``stream`` stores all lanes past the caches, at an address that is a multiple of their bytes.
    ``support`` is a template of the C that its spellings use besides intrinsics; what stands in for
    these has it as well.
    """

    name: str
    element: str
    lanes: int
    ctype: str
    load: str
    store: str = ""
    zero: str = ""
    broadcast: str = ""
    broadcast_shuffles: int = 0
    splat: str = ""
    add: str = ""
    mul: str = ""
    muladd: tuple[MulAdd, ...] = ()
    few: MulAdd | None = None
    sum_lanes: str = ""
    group: str = ""
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    join: str = ""
    numbers: Numbers | None = None
    flip: str = ""
    load_group: str = ""
    store_group: str = ""
    loads: Mapping[str, str] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    repeats: Mapping[str, Repeat] = field(default_factory=dict)
    several: tuple[Several, ...] = ()
    stores: Mapping[str, str] = field(default_factory=dict)
    ops: Mapping[str, str] = field(default_factory=dict)
    mask: Mask | None = None
    partial_load: Mapping[int, str] = field(default_factory=dict)
    partial_store: Mapping[int, str] = field(default_factory=dict)
    transpose: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    unzip: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    registers: int = 1
    stream: str = ""
    support: str = ""

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise TargetError(f"vector {self.name}: lanes must be positive", got=self.lanes)
        if self.muladd and not any(op.form in ("broadcast", "scalar") for op in self.muladd):
            raise TargetError(
                f"vector {self.name} needs a multiply-add with a broadcast or scalar operand"
            )
        for op in self.products:
            if op.rows * op.cols != self.lanes:
                raise TargetError(
                    f"{op.mnemonic} computes {op.rows}x{op.cols}", expected=f"{self.lanes} elements"
                )

    def __repr__(self) -> str:
        return f"<{self.name}: {self.lanes} {self.element}>"

    # --- which spelling an access has; "" where the vector has none ----------------------------

    def loading(
        self, memory: str, group: int, lanes: int | Masked | None, *, loose: bool = False
    ) -> str:
        """The expression that loads ``lanes``, None for all; see ``ir.ops.Load``."""
        if memory and memory == self.flips and not group:
            found = self.loading("", 0, lanes, loose=loose)
            return found and self.flip.replace("{v}", found)
        mask = self.mask and ((loose and self.mask.loose) or self.mask)
        masked, others = ("", {}) if mask is None else (mask.load, mask.loads)
        if mask is not None and isinstance(lanes, Masked):
            masked = mask.loading(lanes.lanes)
        parts = mask.groups if mask is not None else {}
        partial = self.partial_load
        ways = _Ways(self.load, self.loads, masked, others, parts, partial, self.load_group)
        return self._way(ways, memory, group, lanes)

    def storing(self, memory: str, group: int, lanes: int | Masked | None) -> str:
        """The statement that stores ``lanes``, None for all; see ``ir.ops.Store``."""
        masked, others = (self.mask.store, self.mask.stores) if self.mask is not None else ("", {})
        partial = self.partial_store
        ways = _Ways(self.store, self.stores, masked, others, {}, partial, self.store_group)
        return self._way(ways, memory, group, lanes)

    def _way(self, ways: _Ways, memory: str, group: int, lanes: int | Masked | None) -> str:
        if isinstance(lanes, Masked):
            if not memory:
                return ways.masked
            if not group:
                return ways.masked_others.get(memory, "")
            filled = group * ITEMSIZE[memory] == ITEMSIZE[self.element]
            return ways.masked_groups.get(group, "") if filled else ""
        if lanes is not None and memory:
            return ""
        if lanes is not None:
            return ways.partial.get(lanes, "")
        seen = self.seen_as(memory, group)
        if group and not seen:
            return ways.grouped
        type_ = seen or memory
        return ways.whole if type_ in ("", self.element) else ways.others.get(type_, "")

    def seen_as(self, memory: str, group: int) -> str:
        """The type as which lanes read or write groups of ``memory``; "" if not as another one."""
        if not group or self.lanes == 1:
            return ""
        return {1: "u8", 2: "u16", 4: "s32"}[group * ITEMSIZE[memory]]

    def broadcasting(self, memory: str, group: int) -> str:
        """The expression that broadcasts a factor; see ``ir.ops.Broadcast``."""
        repeat = self.repeating(memory or self.element, group)
        if repeat is not None:
            return repeat.spelling
        if memory in self.spreads:
            return self.spreads[memory].spelling
        if group > 1 and memory and memory == self.flips:
            return self.flip.replace("{v}", self.group)
        return self.broadcast if group == 1 else self.group

    def repeating(self, memory: str, group: int) -> Repeat | None:
        """How ``group`` elements of type ``memory`` are repeated; None where they are not."""
        repeat = self.repeats.get(memory)
        return repeat if repeat is not None and repeat.count == group > 1 else None

    @property
    def flips(self) -> str:
        """The integers of the other sign that it flips as it reads them; "" of none."""
        return other_sign(self.element) if self.flip else ""

    @property
    def products(self) -> tuple[MulAdd, ...]:
        """Its multiply-adds, that of few products among them."""
        return self.muladd if self.few is None else (*self.muladd, self.few)

    # --- what can be asked of it ---------------------------------------------------------------

    def cuts(self, active: int) -> bool:
        """Whether ``active`` lanes, a constant, can be loaded and stored alone."""
        return self.mask is not None or active in self.partial_load

    @property
    def nbytes(self) -> int:
        """Bytes of a register of it."""
        return self.lanes * ITEMSIZE[self.element]

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
        """Whether square blocks of vectors can be transposed, and fit the registers."""
        blocks = {1 << i for i in range(self.lanes.bit_length() - 1)}
        fits = self.lanes * self.registers < MOST_ROWS
        return fits and self.lanes & (self.lanes - 1) == 0 and blocks <= set(self.transpose)

    @property
    def fma(self) -> MulAdd:
        """The multiply-add of three registers of this vector's elements, or of three elements."""
        own = {op.form: op for op in reversed(self.muladd) if op.factors == ALIKE}
        return own["broadcast" if "broadcast" in own else "scalar"]
