"""Data classes for a target's vectors, multiply-adds and masks, and their C code.

The C code of an operation is called its spelling. It is a format string, in which ``{p}`` is a
pointer, ``{v}`` a vector, ``{x}`` and ``{y}`` are operands, ``{acc}`` is an accumulator, ``{mask}``
a mask, ``{count}`` a number of active lanes, ``{lane}`` a constant. The spelling of a load or of
arithmetic is an expression, for example ``_mm256_loadu_ps({p})``. The spelling of a store is a
statement without its semicolon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tilewright.errors import TargetError
from tilewright.spec.types import ITEMSIZE, other_sign

Form = Literal["broadcast", "memory", "lane", "scalar", "matrix", "block"]
#: (depth, type of x, type of y) of a multiply-add. The depth is the number of products that are
#: added to one sum. A type of "" means the type of the sums.
Factors = tuple[int, str, str]
ALIKE: Factors = (1, "", "")
#: A square block of vectors is transposed in registers only if it has fewer vectors than this,
#: because the transposition needs further registers.
MOST_ROWS = 32
#: Number of entries of a lookup table; a field of 4 bits selects one entry.
TABLE = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MulAdd:
    """One multiply-add instruction: ``acc += x * y`` over rows x cols x depth elements.

    - ``form``: source of the factor y, which does not vary along the vector. ``broadcast``: a
      register of equal lanes. ``memory``: memory, read inside the instruction; C spells it as a
      broadcast that is used once, or with the pointer ``{p}``. ``lane``: one lane of a vector.
      ``scalar``: a C scalar. ``matrix`` and ``block`` belong to a matrix unit, whose registers hold
      the sums.
    - ``mnemonic``: the instruction; "" if the compiler chooses it. A floating-point product is then
      rounded before it is added.
    - ``x``, ``y``: element types of the factors in registers, "" for the type of the sums.
    - ``depth``: number of products that are added to one sum. The ``depth`` elements of x or y are
      called a group. It has 8 to 64 bits, for example 4 elements of s8.
    - ``rows``, ``cols``: block of C that one register of sums holds, row by row. x holds one group
      for each column, y one for each row.
    - ``segments``: number of parts of the register among which a block's columns are divided. Each
      part has all rows, and the groups of y repeat in each part.
    - ``instructions``: number of instructions of the C expression.
    - ``product``: the part of the expression that computes the products, if a second instruction
      adds them to the sums and they are a vector of the same type.
    - ``group``: elements of x for one column, if ``form`` is ``matrix``. A row of y then holds up
      to ``depth`` elements of K.
    - ``latency``: cycles, 0 for the latency of the core's multiply-add.
    - ``lanes``: groups in a register from which form ``lane`` selects one; 0 for as many as the
      vector has. If the register has more lanes, the groups repeat (``Vector.repeats`` of y's
      type).
    - ``within``: the register of form ``lane`` must be one of the first ``within``; 0 for any.
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
        """Depth and types of the factors, for example ``(4, "u8", "s8")``; plans select by them."""
        return self.depth, self.x, self.y

    @property
    def groups(self) -> int:
        """Number of K groups in a register of y: one for each row of a block, or for each lane."""
        return self.rows * self.segments if self.rows > 1 else self.cols

    @property
    def fused(self) -> bool:
        """True if products and sum are rounded together, once."""
        return bool(self.mnemonic)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mask:
    """The C code by which the first ``{count}`` lanes of a vector are loaded and stored by a mask.

    - ``make``: C expression of type ``ctype`` that makes the mask. ``load``, ``store``: the
      accesses.
    - ``registers``: vector registers that a mask occupies.
    - ``loads``, ``stores``: accesses of elements of another type, as in ``Vector``. Elements of
      types that are missing here are copied through a stack buffer.
    - ``loose``: cheaper accesses whose loads leave any values in the inactive lanes.
    - ``zeros``: registers that the zeros in inactive lanes need, besides the loaded ones.
    - ``groups``: masked loads of groups. The key is the number of elements in a lane; the mask is
      that of the vector of these elements.
    - ``fewer``: loads for a limited number of active lanes, smallest limit first. They read a
      narrower part of memory, so they cross a cache line less often.
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
        """Return the C code that loads ``lanes`` active lanes; None means an unknown number."""
        found = (load for most, load in self.fewer if lanes is not None and lanes <= most)
        return next(found, self.load)


class Masked(NamedTuple):
    """The number of active lanes of a masked access; None if it is known only at the call."""

    lanes: int | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The C code that broadcasts an element of another type, and converts it.

    ``shuffles`` is the number of instructions of the broadcast that permute a vector.
    """

    spelling: str
    shuffles: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """The C code that loads ``count`` elements, and repeats them until they fill a register.

    Elements of another type are converted.

    - ``shuffles``: number of instructions of the load that permute a vector.
    - ``pick``: expression that broadcasts element ``{lane}`` of the loaded register ``{v}``. It is
      "" for elements of the vector's own type, which multiply-adds select by lane.
    """

    count: int
    spelling: str
    shuffles: int = 0
    pick: str = ""


@dataclass(frozen=True, slots=True)
class Several:
    """The C code that loads ``count`` vectors that are adjacent in memory.

    - ``ctype``: C type of the loaded value.
    - ``part``: expression for vector number ``{lane}`` of a loaded value ``{v}``.
    - ``apart``: a statement that copies the value into an array ``{dst}``, if there is one.
      ``part`` then selects from that array.
    """

    count: int
    ctype: str
    load: str
    part: str
    apart: str = ""


class _Ways(NamedTuple):
    """The C code of all loads that a vector has, or of all its stores."""

    whole: str
    others: Mapping[str, str]
    masked: str
    masked_others: Mapping[str, str]
    masked_groups: Mapping[int, str]
    partial: Mapping[int, str]
    grouped: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table of ``TABLE`` numbers in a register, and the C code that looks numbers up in it.

    - ``spelling``: C expression for a table of type ``ctype`` ("" for the vector's), whose elements
      have the bits of the integers ``{numbers}``.
    - ``codes``: element type of the vector ``{v}`` that holds the fields; it has as many lanes.
    - ``found[type]``: for each field of the low byte of a lane, lowest first, the numbers of
      ``{table}`` that these fields select.
    - ``several``: True if a look-up takes several instructions. Only numbers that arithmetic cannot
      make of their codes are then looked up.
    """

    spelling: str
    codes: str
    found: Mapping[str, tuple[str, ...]]
    ctype: str = ""
    several: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Vector:
    """A register that holds ``lanes`` elements of type ``element``, and its operations.

    Memory:

    - ``load``, ``store``: all lanes. ``zero``: a register of zeros. ``splat``: a C scalar in all
      lanes.
    - ``broadcast``: one element from memory in all lanes. ``broadcast_shuffles`` of its
      instructions permute a vector, on the unit that also multiplies.
    - ``loads[type]``, ``stores[type]``: all lanes from or to elements of another type, with
      conversion. Lanes of 32 bits load f64 to nearest even; s32 saturates, and NaN becomes 0.
    - ``spreads[type]``, ``repeats[type]``: one element, or a few, of another type.
    - ``several``: loads of more than one vector, largest first.
    - ``mask``: access to some lanes by a mask.
    - ``fill``: the active lanes of ``{v}``, and the other lanes of ``{other}``. ``{mask}`` is the
      mask of the active lanes if the vector has masks, ``{count}`` their number.
    - ``partial_load``, ``partial_store``: access to the first lanes without a mask; the key is the
      number of lanes. A load zeroes the others. If there is a mask too, a partial store is
      preferred.
    - ``load_group``, ``store_group``: move ``{bytes}`` bytes as the only lane.
    - ``stream``: store of all lanes that bypasses the caches. The address must be a multiple of
      ``nbytes``.

    Arithmetic:

    - ``muladd``: multiply-adds, preferred first. A vector without any only holds factors.
    - ``few``: a multiply-add whose narrow sums overflow after few products. These sums are then
      added to a vector with lanes of twice the bits, by its multiply-add with ones.
    - ``ops``: elementary operations by name, of ``{x}``, ``{y}`` and ``{z}``.
    - ``transpose[h]``: two instructions that transpose 2x2 blocks of two registers, in units of
      ``h`` elements. The first interleaves the even units of ``{x}`` and ``{y}``, the second the
      odd ones.
    - ``mixes[bits]``: the same in units of 8 or 16 bits, for lanes of 32 bits.
    - ``first``: lane 0 of ``{v}`` as the vector of one lane. ``down[h]``: lanes h to 2h - 1 of
      ``{v}`` as the first lanes, if this is cheaper than the odd half of ``transpose[h]``.
    - ``unzip[h]``: two instructions. The first gives the even units of ``{x}`` and then those of
      ``{y}``, the second the odd ones.

    Low-bit types:

    - ``group``: a register filled with the ``{bits}`` bits of the C integer ``{x}``.
    - ``fields[type]``: expressions that extract the numbers of a stored type from the low byte of
      each lane of ``{v}``, one for each field, lowest field first. Lanes are s32 for floating
      point. Types are u2, u4 and f4_e2m1. Numbers of f4_e2m1 are in units of one half, and unsigned
      lanes have 12 added. ``u1<<4`` are fields of one bit, shifted left by four.
    - ``join``: bitwise or of ``{x}`` and ``{y}``. ``numbers``: lookups of elements by fields.
    - ``flip``: converts integers ``{v}`` of the other signedness (such as u8 to s8) by adding or
      subtracting half of their range.

    ``registers`` is the number of target registers that the vector takes; RISC-V groups several.
    ``support`` is a template of C functions that the spellings use besides intrinsics. ``nbytes``
    are the bytes of the vector.
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
    fill: str = ""
    partial_load: Mapping[int, str] = field(default_factory=dict)
    partial_store: Mapping[int, str] = field(default_factory=dict)
    transpose: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    mixes: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    first: str = ""
    down: Mapping[int, str] = field(default_factory=dict)
    unzip: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    registers: int = 1
    stream: str = ""
    support: str = ""
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise TargetError(f"vector {self.name}: lanes must be positive", got=self.lanes)
        object.__setattr__(self, "nbytes", self.lanes * ITEMSIZE[self.element])
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

    # --- spelling of an access; "" if the vector has none ---------------------------------------

    def loading(
        self, memory: str, group: int, lanes: int | Masked | None, *, loose: bool = False
    ) -> str:
        """Return the C expression that loads ``lanes`` lanes (None: all); "" if there is none.

        The arguments are those of ``ir.ops.Load``.
        """
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
        """Return the C statement that stores ``lanes`` lanes (None: all); "" if there is none.

        The arguments are those of ``ir.ops.Store``.
        """
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

    @property
    def fill_by_count(self) -> str:
        """The C code of ``fill`` that makes the mask from ``{count}``, if it needs one."""
        return self.fill if self.mask is None else self.fill.replace("{mask}", self.mask.make)

    def taking(self, first: int) -> str:
        """Return the C expression for ``ir.ops.TakeLanes`` from lane ``first``; "" if none."""
        if first == 0 or first in self.down:
            return self.down.get(first, self.first)
        _, odd = self.transpose.get(first, ("", ""))
        return odd.replace("{x}", "{v}").replace("{y}", "{v}")

    def seen_as(self, memory: str, group: int) -> str:
        """Return the type as which a load reads groups of ``memory`` elements; "" if there is none.

        For example, groups of 4 elements of s8 are read as s32.
        """
        if not group or self.lanes == 1:
            return ""
        return {1: "u8", 2: "u16", 4: "s32"}[group * ITEMSIZE[memory]]

    def broadcasting(self, memory: str, group: int) -> str:
        """Return the C expression for an ``ir.ops.Broadcast`` of this ``memory`` and ``group``."""
        repeat = self.repeating(memory or self.element, group)
        if repeat is not None:
            return repeat.spelling
        if memory in self.spreads:
            return self.spreads[memory].spelling
        if group > 1 and memory and memory == self.flips:
            return self.flip.replace("{v}", self.group)
        return self.broadcast if group == 1 else self.group

    def repeating(self, memory: str, group: int) -> Repeat | None:
        """Return the load that repeats ``group`` elements of ``memory``; None if there is none."""
        repeat = self.repeats.get(memory)
        return repeat if repeat is not None and repeat.count == group > 1 else None

    @property
    def flips(self) -> str:
        """The type with the other signedness that loads can convert, such as u8 for s8; else ""."""
        return other_sign(self.element) if self.flip else ""

    @property
    def products(self) -> tuple[MulAdd, ...]:
        """All multiply-adds of the vector, ``few`` included."""
        return self.muladd if self.few is None else (*self.muladd, self.few)

    # --- capabilities ----------------------------------------------------------------------------

    def cuts(self, active: int) -> bool:
        """Return True if exactly the first ``active`` lanes can be loaded and stored."""
        return self.mask is not None or active in self.partial_load

    @property
    def cuts_any(self) -> bool:
        """True if any number of lanes can be loaded and stored without touching the others."""
        return all(self.cuts(active) for active in range(1, self.lanes))

    @property
    def prefers_overlap(self) -> bool:
        """True if a tail is cheaper as a whole vector that overlaps the one before it."""
        return self.lanes > 1 and (self.mask is None or self.mask.registers > 0)

    @property
    def transposes(self) -> bool:
        """True if a square block of vectors can be transposed, and fits the registers."""
        blocks = {1 << i for i in range(self.lanes.bit_length() - 1)}
        fits = self.lanes * self.registers < MOST_ROWS
        return fits and self.lanes & (self.lanes - 1) == 0 and blocks <= set(self.transpose)

    @property
    def fma(self) -> MulAdd:
        """The multiply-add of three registers, or of three scalars, of this element type."""
        own = {op.form: op for op in reversed(self.muladd) if op.factors == ALIKE}
        return own["broadcast" if "broadcast" in own else "scalar"]
