"""How products of two types are summed: by which multiply-add, its factors in which types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tilewright.errors import SpecError
from tilewright.isa.target import Target
from tilewright.isa.vector import Factors, Form, MulAdd, Vector
from tilewright.spec.types import FORMATS, accumulator, is_integer

#: What an element of the first type becomes in a register of the second without loss.
_WIDENS = {
    **dict.fromkeys(FORMATS, ("f32",)),
    **dict.fromkeys(("s8", "u8"), ("s16", "s32")),
}
#: What is added to an element of the first type to make one of the second.
_SHIFTS = {("s8", "u8"): 128, ("u8", "s8"): -128}


@dataclass(frozen=True, slots=True)
class Product:
    """A multiply-add's factors.

    ``along`` and ``across`` are the element types in registers of what lies along the vectors and
    of the other one; a lane sums ``depth`` products. ``shifts`` is what is added to each of A and
    B so that its elements are of those types: what that adds to the sums is subtracted again.
    ``rows`` is how many rows of C one multiply-add computes a block of. ``group`` elements of K
    stand together where operands are packed. ``unit`` is the matrix unit's multiply-add, if it is
    one: then ``depth`` is what each step takes.
    """

    accumulator: str
    depth: int
    along: str
    across: str
    mnemonic: str
    rows: int
    shifts: Mapping[str, int] = field(hash=False)
    group: int
    unit: MulAdd | None = None

    @property
    def factors(self) -> Factors:
        """As multiply-adds say it."""
        if self.unit is not None:
            return self.unit.factors
        same = self.depth == 1 and self.along == self.across == self.accumulator
        return (1, "", "") if same else (self.depth, self.along, self.across)

    def form(self, vector: Vector, *forms: Form) -> MulAdd | None:
        """The multiply-add of the first of ``forms`` that ``vector`` has for these factors."""
        if self.unit is not None:
            return self.unit if vector.lanes == self.unit.cols else None
        return vector.form(*forms, factors=self.factors)

    def in_steps(self, k: int | None) -> Product:
        """With steps of K no deeper than as many of them need, where K is known."""
        if self.unit is None or not k:
            return self
        groups = -(-k // self.group)
        steps = -(-k // self.unit.depth)
        return replace(self, depth=self.group * -(-groups // steps))

    def held(self, target: Target, vector: Vector, side: str) -> Vector:
        """What holds the factor of that ``side``, "along" or "across", beside ``vector``."""
        element = self.along if side == "along" else self.across
        if element == vector.element and self.depth == 1:
            return vector
        lines = vector.lanes
        if self.rows > 1:
            lines = self.rows if side == "across" else lines // self.rows
        return target.holding(element, lines * self.depth)


def choose_product(
    target: Target,
    types: Mapping[str, str],
    along: str,
    *,
    packed: bool = False,
    flat: bool = False,
) -> Product:
    """The best multiply-add of ``target`` for A and B of ``types``, with ``along`` of them along.

    The deepest first, then the one that shifts the fewest operands, then the target's order. Where
    B is ``packed`` ahead, A is shifted rather than B: B's sums are then known, A's are not.
    ``flat``: one whose lanes are elements of one line of C, not of a block.
    """
    across = "b" if along == "a" else "a"
    held = accumulator(types["a"], types["b"])
    found = list(_products(target, held, (types[along], types[across]), along))
    found = [product for product in found if product.rows == 1 or not flat]
    if not found:
        raise SpecError(
            f"{target.name} has no product of these types",
            got=f"a={types['a']}, b={types['b']}",
            hint="another target",
        )
    shifted = "b" if packed else ""
    return min(
        found,
        key=lambda p: (-p.depth, sum(map(bool, p.shifts.values())), p.shifts.get(shifted, 0) != 0),
    )


def _products(target: Target, held: str, types: tuple[str, str], along: str) -> Iterator[Product]:
    across = "b" if along == "a" else "a"
    vectors = target.of(held)
    matrices = target.matrix.products.get(held, ()) if target.matrix else ()
    for op in (*matrices, *(vectors[0].muladd if vectors else ())):
        x, y = op.x or held, op.y or held
        shifts = _reach(types[0], x), _reach(types[1], y)
        if None in shifts or (op.group and (x, y) != types):
            continue
        both = {k: v or 0 for k, v in zip((along, across), shifts, strict=True)}
        unit = op if op.group else None
        group = op.group or op.depth
        yield Product(held, op.depth, x, y, op.mnemonic, op.rows, both, group, unit)


def _reach(type_: str, element: str) -> int | None:
    """What is added to ``type_`` to hold it as ``element``; None if that cannot be."""
    if type_ == element or element in _WIDENS.get(type_, ()):
        return 0
    return _SHIFTS.get((type_, element))


def converts(type_: str, element: str) -> bool:
    """Whether elements change their bits on the way into a register."""
    return type_ != element and not (is_integer(type_) and (type_, element) in _SHIFTS)
