"""Choose how products of A and B are summed: the multiply-add instruction and its operand types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from tilewright.errors import SpecError, TargetError
from tilewright.isa.target import Target
from tilewright.isa.vector import Form, MulAdd, Vector
from tilewright.spec.gemm import Gemm
from tilewright.spec.types import FORMATS, accumulator, is_integer, mixes

#: For each element type: the types that represent all of its values exactly.
_WIDENS = {
    **dict.fromkeys(FORMATS, ("f32",)),
    "s8": ("s16", "s32", "s64", "bf16", "f16", "f32"),
    "u8": ("s16", "u16", "s32", "s64", "bf16", "f16", "f32"),
    "s16": ("s32", "s64", "f32"),
    "u16": ("s32", "s64", "f32"),
    "u4": ("s8", "u8", "s16", "u16", "s32"),
    "s5": ("s8", "s16", "s32"),
}
#: For each pair (type, other type): the number that is added to elements of the type so that the
#: other type represents them.
_SHIFTS = {
    ("s8", "u8"): 2**7,
    ("u8", "s8"): -(2**7),
    ("s16", "u16"): 2**15,
    ("u16", "s16"): -(2**15),
    ("s5", "u8"): 12,
}


@dataclass(frozen=True, slots=True)
class Product:
    """The multiply-add that sums products of A and B, and the types of its operands.

    ``op`` is the instruction for the widest vector type, or for the matrix unit. ``ops`` has its
    forms for each vector type. One instruction sums ``depth`` products in each lane; for a matrix
    unit, ``depth`` is the number of elements of K in a step. ``shifts`` is added to the elements of
    A and B so that they have the types that the instruction multiplies; the effect on the sums is
    subtracted later. ``instead`` names a deeper instruction that was not chosen, and why, or is "".

    With a ``block``, that many elements of K are summed in registers of type ``partial``. Each such
    sum is scaled and added to the accumulators of type ``accumulator``; ``ops`` has their vector
    types.

    If ``few`` is not 0, the products of that many K groups are first summed in lanes of half the
    width (``few`` of the vector type). ``op`` then stands for both instructions.
    """

    accumulator: str
    op: MulAdd
    depth: int
    shifts: Mapping[str, int] = field(hash=False)
    ops: Mapping[Vector, tuple[MulAdd, ...]] = field(hash=False)
    instead: str = ""
    partial: str = ""
    block: int = 0
    few: int = 0

    @property
    def summed(self) -> str:
        """The element type of the sums that the multiply-add adds to."""
        return self.partial or self.accumulator

    @property
    def step(self) -> int:
        """The elements of K in a step of the K loop."""
        return self.block or self.depth

    @property
    def along(self) -> str:
        """The element type, in registers, of the operand along the vectors."""
        return self.op.x or self.summed

    @property
    def across(self) -> str:
        """The element type, in registers, of the operand across the vectors."""
        return self.op.y or self.summed

    @property
    def mnemonic(self) -> str:
        """The name of the instruction; "" if the compiler chooses it."""
        return self.op.mnemonic

    @property
    def rows(self) -> int:
        """The number of rows of C in the block that one multiply-add computes."""
        return self.op.rows

    @property
    def group(self) -> int:
        """The number of consecutive elements of K in a K group of a packed operand."""
        return self.op.group or self.op.depth

    @property
    def unit(self) -> MulAdd | None:
        """The multiply-add if its operands are matrices in registers of a matrix unit,
        else None.
        """
        return self.op if self.op.form == "matrix" else None

    @property
    def blocks(self) -> bool:
        """True if a multiply-add computes a block of C from two vectors that each hold K groups."""
        return self.op.rows > 1 and self.unit is None

    @property
    def alike(self) -> bool:
        """True if single elements of the accumulators' type are multiplied."""
        return self.depth == 1 and self.along == self.across == self.accumulator

    def form(self, vector: Vector, *forms: Form) -> MulAdd | None:
        """Return the multiply-add in the first of ``forms`` that ``vector`` supports."""
        ops = self.ops.get(vector, ())
        if self.op.form in ("matrix", "block"):
            return next(iter(ops), None)
        return next((op for form in forms for op in ops if op.form == form), None)

    def in_steps(self, k: int | None) -> Product:
        """Return the product with a known K split into as few steps as possible, of equal depth."""
        if self.unit is None or self.block or not k:
            return self
        groups = -(-k // self.group)
        steps = -(-k // self.unit.depth)
        return replace(self, depth=self.group * -(-groups // steps))

    def held(self, target: Target, vector: Vector, side: str) -> Vector:
        """Return the vector type for the operand on ``side``, used together with ``vector``."""
        element = self.along if side == "along" else self.across
        lines, depth = vector.lanes, self.depth if self.unit is None else self.group
        if self.blocks:
            lines = self.op.groups if side == "across" else self.op.cols
        if element == vector.element and lines * depth == vector.lanes:
            return vector
        return target.holding(element, lines * depth)


def choose_product(
    target: Target,
    types: Mapping[str, str],
    along: str,
    *,
    packed: bool = False,
    flat: bool = False,
    keeps: str = "",
    held: str = "",
    fixed: str = "",
    deep: bool = False,
    shallow: bool = False,
) -> Product:
    """Return the best multiply-add of ``target`` for operands of ``types``, with ``along`` along
    vectors.

    Sums have type ``held``; "" means the usual type for these operands (see ``held_as``).

    The best instruction takes the fewest cycles on the target's core. Ties are decided by the
    greater depth, then by fewer shifted operands, then by the target's order. If B is ``packed``
    ahead, A is shifted rather than B, because B's column sums are known. Otherwise the operand
    ``keeps`` is preferably not shifted. The operand ``fixed``, "a" or "b", is never shifted.
    ``flat`` excludes instructions that compute blocks or matrices of C. ``deep`` takes the greatest
    depth regardless of cycles. ``shallow`` takes an instruction for single elements if there is
    one.
    """
    both = types["a"], types["b"]
    sums = held or accumulator(*both)
    return _chosen(target, both, sums, along, "b" if packed else keeps, flat, fixed, deep, shallow)


@lru_cache(maxsize=1024)
def held_as(target: Target, a: str, b: str, asked: str) -> str:
    """Return the type of the accumulators for elements of types A and B.

    The spec allows sums of type ``asked``. This type is taken if the target can add in it and is
    faster with it than with the usual, wider type.
    """
    wide = accumulator(a, b)
    if asked == "s64":
        # s64 is the widest type of sums, so it holds the sums of all types.
        return asked
    if asked == wide or not any(vector.muladd for vector in target.of(asked)):
        return wide
    types = {"a": a, "b": b}
    products = (choose_product(target, types, "b", held=held) for held in (asked, wide))
    narrow, other = (_cycles(target, product, types, "b") for product in products)
    return asked if narrow < other else wide


@lru_cache(maxsize=1024)
def _chosen(
    target: Target,
    types: tuple[str, str],
    held: str,
    along: str,
    keeps: str,
    flat: bool,
    fixed: str,
    deep: bool,
    shallow: bool,
) -> Product:
    found = list(_products(target, held, dict(zip("ab", types, strict=True)), along))
    found = [product for product in found if not (flat and (product.blocks or product.unit))]
    found = [product for product in found if not product.shifts.get(fixed)]
    if shallow and (single := [product for product in found if product.depth == 1]):
        found = single
    if not found:
        raise SpecError(
            f"{target.name} has no product of these types",
            got=f"a={types[0]}, b={types[1]}, sums in {held}",
            hint="another target",
        )

    def rank(product: Product) -> tuple[float, ...]:
        shifts = product.shifts
        wrong = shifts.get(keeps, 0) != 0
        return -product.depth, sum(map(bool, shifts.values())), wrong

    given = dict(zip("ab", types, strict=True))
    cycles = [_cycles(target, product, given, along) for product in found]
    deepest = min(range(len(found)), key=lambda i: rank(found[i]))
    cheapest = min(range(len(found)), key=lambda i: (cycles[i], *rank(found[i])))
    best = deepest if deep else cheapest
    chosen, instead = found[best], ""
    if chosen.depth < found[deepest].depth:
        slower = cycles[deepest] / cycles[best]
        instead = f"{found[deepest].mnemonic} would take {slower:.2g} times as long on this core"
    return replace(chosen, ops=dict(_forms(target, chosen)), instead=instead)


#: A product whose operands are converted first is assumed to take this many times the cycles of its
#: multiply-adds.
CONVERTING = 5 / 4


def _cycles(target: Target, product: Product, types: Mapping[str, str], along: str) -> float:
    """Return the cycles of the multiply-add units for one product of two elements."""
    op = product.op
    products = op.rows * op.cols * op.depth
    if product.unit is not None:
        # A matrix unit computes one row of its block of C in a cycle.
        return op.rows / products
    across = "b" if along == "a" else "a"
    converted = converts(types[along], product.along) or converts(types[across], product.across)
    core = target.core.at(target.of(product.accumulator)[0].nbytes)
    each = core.between(op.mnemonic, op.instructions) / products
    return each * CONVERTING if converted else each


def _products(target: Target, held: str, types: Mapping[str, str], along: str) -> Iterator[Product]:
    """Yield every multiply-add for whose operand types elements of A and B can be converted.

    Only the matrix unit and the widest vector type are considered.
    """
    across = "b" if along == "a" else "a"
    vectors = target.of(held)
    matrices = target.matrix.products.get(held, ()) if target.matrix else ()
    for op in (*matrices, *(vectors[0].muladd if vectors else ())):
        x, y = op.x or held, op.y or held
        shifts = _reach(types[along], x), _reach(types[across], y)
        given = types[along], types[across]
        if None in shifts or (op.form == "matrix" and (x, y) != given and not mixes(*given)):
            continue
        # Shifts are corrected by sums of rows and columns. These are s32, so s64 excludes shifts.
        if held == "s64" and any(shifts):
            continue
        both = {k: v or 0 for k, v in zip((along, across), shifts, strict=True)}
        yield Product(held, op, op.depth, both, {})


def _forms(target: Target, product: Product) -> Iterator[tuple[Vector, tuple[MulAdd, ...]]]:
    """Yield each vector type with the forms of the multiply-add that it supports."""
    factors = product.op.factors
    for vector in target.of(product.accumulator):
        if product.op.form not in ("matrix", "block"):
            yield vector, tuple(op for op in vector.muladd if op.factors == factors)
        elif vector.lanes == product.op.cols:
            yield vector, (product.op,)


def _reach(type_: str, element: str) -> int | None:
    """Return the number to add to elements of ``type_`` so that ``element`` represents them.

    It is 0 if ``element`` represents all of them unchanged, and None if there is no such number.
    """
    if type_ == element or element in _WIDENS.get(type_, ()):
        return 0
    return _SHIFTS.get((type_, element))


#: ``MOST_IN`` has the largest integer that a lane of each type holds. ``LARGEST_S8`` is the largest
#: magnitude of an s8. Both limit how many products are summed in narrow lanes.
MOST_IN, LARGEST_S8 = {"s16": 2**15 - 1}, 2**7


class Few(NamedTuple):
    """The instructions that sum a few products in narrow lanes first, then in wider lanes.

    ``first`` multiplies and adds in narrow lanes of type ``vector``. ``then`` adds these sums to
    the wider sums. ``whole`` describes both as one multiply-add.
    """

    vector: Vector
    first: MulAdd
    then: MulAdd
    whole: MulAdd


@lru_cache(maxsize=256)
def few_of(target: Target, vector: Vector) -> Few | None:
    """Return the instructions that sum a few products in narrow lanes first; None without them."""
    for then in (op for op in vector.muladd if op.x == op.y and op.x in MOST_IN):
        for held in target.of(then.x):
            if held.few is not None and held.lanes == vector.lanes * then.depth:
                first, depth = held.few, held.few.depth * then.depth
                whole = replace(first, cols=vector.lanes, depth=depth, spelling="", product="")
                return Few(held, first, then, whole)
    return None


def in_few(target: Target, product: Product, largest: int) -> Product | None:
    """Return ``product`` with sums in narrow lanes first if this takes fewer cycles, else None.

    The operand along the vectors has unsigned integers up to ``largest``; the operand across the
    vectors has type s8.
    """
    vectors = target.of(product.accumulator)
    found = {vector: both for vector in vectors if (both := few_of(target, vector))}
    if vectors[0] not in found:
        return None
    _, first, then, whole = found[vectors[0]]
    few = MOST_IN[then.x] // (first.depth * largest * LARGEST_S8)
    if not few:
        return None
    core = target.core.at(vectors[0].nbytes)
    each = core.between(first.mnemonic, first.instructions)
    each += core.between(then.mnemonic, then.instructions) / few
    if each / (whole.cols * whole.depth) >= _cycles(target, product, {"a": "s8", "b": "u8"}, "b"):
        return None
    ops = {vector: (both.whole,) for vector, both in found.items()}
    return replace(product, op=whole, depth=whole.depth, ops=ops, few=few, instead="")


def converting_lanes(target: Target, sums: str) -> int:
    """Return the number of lanes of the vectors that convert operands to be summed in ``sums``."""
    return target.of("s32" if sums == "s64" else sums)[0].lanes


def loads_as(target: Target, type_: str, element: str) -> bool:
    """True if vectors of ``element`` have a load that converts elements of ``type_``.

    A single element is converted in several operations if there is no such load.
    """
    return type_ == element or all(type_ in v.loads for v in _wide(target, element))


def reads_as(target: Target, type_: str, element: str) -> bool:
    """True if vectors of ``element`` can be loaded from elements of ``type_``.

    Either one load converts them. Or integers are loaded as s32 and then converted to f32.
    """
    if loads_as(target, type_, element):
        return True
    through = element == "f32" and is_integer(type_)
    words = (target.holding("s32", v.lanes) for v in _wide(target, element)) if through else ()
    return through and all(type_ in v.loads for v in words)


def _wide(target: Target, element: str) -> tuple[Vector, ...]:
    """Return the vector types of ``element`` with more than one lane.

    If there are none, return the scalar type.
    """
    vectors = target.of(element)
    return tuple(v for v in vectors if v.lanes > 1) or vectors


#: Operands are rounded to a smaller type only if it is multiplied at least this many times as fast
#: as f32.
ROUNDING_PAYS = 1.5


def check_math(spec: Gemm, target: Target) -> None:
    """Raise TargetError if ``math`` asks for rounding that does not pay on ``target``."""
    if spec.math is None or isinstance(spec.math, tuple):
        return
    chosen = [choose_product(target, dict(zip("ab", types, strict=True)), "b")
              for types in (spec.factors, spec.rounded)]  # fmt: skip
    alike = ({"b": product.along, "a": product.across} for product in chosen)
    given, rounded = (
        _cycles(target, product, types, "b") for product, types in zip(chosen, alike, strict=True)
    )
    if given >= ROUNDING_PAYS * rounded and "bf16" in (chosen[1].along, chosen[1].across):
        return
    times = f"{given / rounded:.2g} times as fast as f32"
    raise TargetError(
        f"rounding operands to {spec.math} does not pay on {target.name}",
        got=f"math={spec.math!r}, and {chosen[1].mnemonic or 'a product'} multiplies {times}",
        expected=f"a target that multiplies {spec.math} {ROUNDING_PAYS} times as fast, or more",
        hint=f"leave math out, or math=({spec.math!r}, 'always') to round all the same",
    )


def converts(type_: str, element: str) -> bool:
    """True if loading elements of ``type_`` as ``element`` changes their bits."""
    return type_ != element and not (is_integer(type_) and (type_, element) in _SHIFTS)
