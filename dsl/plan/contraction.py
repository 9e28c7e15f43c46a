"""How products of two types are summed: by which multiply-add, its factors in which types."""

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

#: What an element of the first type becomes in a register of the second without loss.
_WIDENS = {
    **dict.fromkeys(FORMATS, ("f32",)),
    "s8": ("s16", "s32", "s64", "bf16", "f16", "f32"),
    "u8": ("s16", "u16", "s32", "s64", "bf16", "f16", "f32"),
    "s16": ("s32", "s64", "f32"),
    "u16": ("s32", "s64", "f32"),
    "u4": ("s8", "u8", "s16", "u16", "s32"),
    "s5": ("s8", "s16", "s32"),
}
#: What is added to an element of the first type to make one of the second.
_SHIFTS = {
    ("s8", "u8"): 2**7,
    ("u8", "s8"): -(2**7),
    ("s16", "u16"): 2**15,
    ("u16", "s16"): -(2**15),
    ("s5", "u8"): 12,
}


@dataclass(frozen=True, slots=True)
class Product:
    """The multiply-add that sums products of A and B, and what its factors are.

    ``op`` is that of the widest vector, or of the matrix unit, ``ops`` the same one in each form
    that each vector has of it. A lane sums ``depth`` products; of a matrix unit it is what each
    step takes. ``shifts`` is what is added to each of A and B so that its elements are of the
    types that are multiplied: what that adds to the sums is subtracted again. ``instead`` says of
    which deeper multiply-add it takes the place, and why, "" of none.

    With a ``block`` it sums so many elements of K in registers of type ``partial``; such a sum is
    scaled, and added to those of type ``accumulator``, whose vectors ``ops`` names.

    The products of ``few`` groups of K, where that is not 0, are summed in lanes half as wide, by
    the ``few`` of their vectors, before they are added to sums: ``op`` stands for both.
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
        """The element type of what the multiply-add sums into."""
        return self.partial or self.accumulator

    @property
    def step(self) -> int:
        """The elements of K that a step of the K loop takes."""
        return self.block or self.depth

    @property
    def along(self) -> str:
        """The element type in registers of what lies along the vectors."""
        return self.op.x or self.summed

    @property
    def across(self) -> str:
        """The element type in registers of what does not."""
        return self.op.y or self.summed

    @property
    def mnemonic(self) -> str:
        """What the instruction is called, "" where the compiler chooses it."""
        return self.op.mnemonic

    @property
    def rows(self) -> int:
        """How many rows of C one multiply-add computes a block of."""
        return self.op.rows

    @property
    def group(self) -> int:
        """The elements of K that stand together where operands are packed."""
        return self.op.group or self.op.depth

    @property
    def unit(self) -> MulAdd | None:
        """The multiply-add, if it is a matrix unit's whose factors are matrices."""
        return self.op if self.op.form == "matrix" else None

    @property
    def blocks(self) -> bool:
        """Whether blocks of C are multiplied from vectors that both hold groups of K."""
        return self.op.rows > 1 and self.unit is None

    @property
    def alike(self) -> bool:
        """Whether single elements of the accumulators' type are multiplied."""
        return self.depth == 1 and self.along == self.across == self.accumulator

    def form(self, vector: Vector, *forms: Form) -> MulAdd | None:
        """The multiply-add in the first of ``forms`` that ``vector`` has it in."""
        ops = self.ops.get(vector, ())
        if self.op.form in ("matrix", "block"):
            return next(iter(ops), None)
        return next((op for form in forms for op in ops if op.form == form), None)

    def in_steps(self, k: int | None) -> Product:
        """With K, where it is known, split into as few, equally deep steps as possible."""
        if self.unit is None or self.block or not k:
            return self
        groups = -(-k // self.group)
        steps = -(-k // self.unit.depth)
        return replace(self, depth=self.group * -(-groups // steps))

    def held(self, target: Target, vector: Vector, side: str) -> Vector:
        """What holds the factor of that ``side``, "along" or "across", beside ``vector``."""
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
    """The best multiply-add of ``target`` for A and B of ``types``, with ``along`` of them along.

    Sums are of type ``held``, "" for the one of these types; see ``held_as``.

    The one that takes the fewest cycles on the target's core, then the deepest, then the one that
    shifts the fewest operands, then the target's order. Where B is ``packed`` ahead, A is shifted
    rather than B: B's sums are then known, A's are not. Else ``keeps`` is rather not shifted.
    ``flat``: one whose lanes are elements of one line of C, not of a block or a matrix. What is
    ``fixed``, "a" or "b", is not shifted at all. ``deep``: the deepest one, however many cycles it
    takes; ``shallow``: one that takes elements one by one, where there is one.
    """
    both = types["a"], types["b"]
    sums = held or accumulator(*both)
    return _chosen(target, both, sums, along, "b" if packed else keeps, flat, fixed, deep, shallow)


@lru_cache(maxsize=1024)
def held_as(target: Target, a: str, b: str, asked: str) -> str:
    """The type of the accumulators for A and B where sums may be ``asked``, as the spec says.

    That is a smaller type than the one of A and B where the target adds in it, and faster so.
    """
    wide = accumulator(a, b)
    if asked == "s64":  # which no sums of 32 bits are within
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


#: What products take longer where an element is converted before it is multiplied.
CONVERTING = 5 / 4


def _cycles(target: Target, product: Product, types: Mapping[str, str], along: str) -> float:
    """Cycles for each product of two elements, as the core's multiply-adds bound them."""
    op = product.op
    products = op.rows * op.cols * op.depth
    if product.unit is not None:  # a cycle for each row
        return op.rows / products
    across = "b" if along == "a" else "a"
    converted = converts(types[along], product.along) or converts(types[across], product.across)
    core = target.core.at(target.of(product.accumulator)[0].nbytes)
    each = core.between(op.mnemonic, op.instructions) / products
    return each * CONVERTING if converted else each


def _products(target: Target, held: str, types: Mapping[str, str], along: str) -> Iterator[Product]:
    """Every multiply-add whose factors A and B can be, as the widest vector has it."""
    across = "b" if along == "a" else "a"
    vectors = target.of(held)
    matrices = target.matrix.products.get(held, ()) if target.matrix else ()
    for op in (*matrices, *(vectors[0].muladd if vectors else ())):
        x, y = op.x or held, op.y or held
        shifts = _reach(types[along], x), _reach(types[across], y)
        given = types[along], types[across]
        if None in shifts or (op.form == "matrix" and (x, y) != given and not mixes(*given)):
            continue
        if held == "s64" and any(shifts):  # sums of lines, which undo shifts, are s32
            continue
        both = {k: v or 0 for k, v in zip((along, across), shifts, strict=True)}
        yield Product(held, op, op.depth, both, {})


def _forms(target: Target, product: Product) -> Iterator[tuple[Vector, tuple[MulAdd, ...]]]:
    """Each vector with the forms that it has the multiply-add in."""
    factors = product.op.factors
    for vector in target.of(product.accumulator):
        if product.op.form not in ("matrix", "block"):
            yield vector, tuple(op for op in vector.muladd if op.factors == factors)
        elif vector.lanes == product.op.cols:
            yield vector, (product.op,)


def _reach(type_: str, element: str) -> int | None:
    """What is added to ``type_`` to hold it as ``element``; None if that cannot be."""
    if type_ == element or element in _WIDENS.get(type_, ()):
        return 0
    return _SHIFTS.get((type_, element))


#: What lanes hold at most, and the greatest magnitude of an s8.
MOST_IN, LARGEST_S8 = {"s16": 2**15 - 1}, 2**7


class Few(NamedTuple):
    """Sums of few products in lanes of ``vector``: what makes them, what adds them up, and both."""

    vector: Vector
    first: MulAdd
    then: MulAdd
    whole: MulAdd


@lru_cache(maxsize=256)
def few_of(target: Target, vector: Vector) -> Few | None:
    """The sums of few products that ``vector`` adds up, if it does."""
    for then in (op for op in vector.muladd if op.x == op.y and op.x in MOST_IN):
        for held in target.of(then.x):
            if held.few is not None and held.lanes == vector.lanes * then.depth:
                first, depth = held.few, held.few.depth * then.depth
                whole = replace(first, cols=vector.lanes, depth=depth, spelling="", product="")
                return Few(held, first, then, whole)
    return None


def in_few(target: Target, product: Product, largest: int) -> Product | None:
    """``product`` with sums of few products first, if that takes fewer cycles; None if not.

    Its factors along the vectors are numbers without sign up to ``largest``, those across s8.
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
    """The lanes of vectors that convert operands where sums are of type ``sums``."""
    return target.of("s32" if sums == "s64" else sums)[0].lanes


def loads_as(target: Target, type_: str, element: str) -> bool:
    """Whether the vectors of ``element`` read elements of ``type_`` by themselves.

    One element alone is read and converted in steps where there is no such load.
    """
    return type_ == element or all(type_ in v.loads for v in _wide(target, element))


def reads_as(target: Target, type_: str, element: str) -> bool:
    """Whether vectors of ``element`` are read from elements of ``type_``: by a load, or, where f32
    is of integers, by one of s32 that are then converted.
    """
    if loads_as(target, type_, element):
        return True
    through = element == "f32" and is_integer(type_)
    words = (target.holding("s32", v.lanes) for v in _wide(target, element)) if through else ()
    return through and all(type_ in v.loads for v in words)


def _wide(target: Target, element: str) -> tuple[Vector, ...]:
    """The vectors of ``element`` with several lanes, or the one of one lane where it is alone."""
    vectors = target.of(element)
    return tuple(v for v in vectors if v.lanes > 1) or vectors


#: How many times as fast as f32 a smaller type must be multiplied, so that rounding to it pays.
ROUNDING_PAYS = 1.5


def check_math(spec: Gemm, target: Target) -> None:
    """TargetError if ``math`` asks for rounding that does not pay on ``target``."""
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
    """Whether elements change their bits on the way into a register."""
    return type_ != element and not (is_integer(type_) and (type_, element) in _SHIFTS)
