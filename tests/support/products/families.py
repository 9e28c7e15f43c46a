"""Random families of ``tw.matmul``: types, layouts, sizes, epilogues and options at will."""

from __future__ import annotations

from random import Random

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.runtime.matmul.families import Axes, Family, Options, class_of, stack_class_of
from tilewright.spec.expression import Expression, operands_of
from tilewright.spec.types import INPUTS, TYPES, TypeName, accumulator, type_name

#: Sizes at which something changes: of tiles, of vectors and of blocks.
EDGES = (0, 1, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64)


def size(random: Random) -> int:
    """An edge, or any size up to 8192, small ones as often as large ones."""
    return random.choice(EDGES) if random.random() < 0.2 else int(2 ** random.uniform(0, 13))


def types(random: Random) -> tuple[str, str, str]:
    """Those of a, of b and of what is written, which mostly is that of the sums."""
    while True:
        a = random.choice(INPUTS)
        b = a if random.random() < 0.6 else random.choice(INPUTS)
        try:
            sums = accumulator(a, b)
        except SpecError:
            continue
        written = sums if random.random() < 0.5 else random.choice(tuple(TYPES))
        legal = written != "s64" or sums == "s32"
        if legal and (written == "f64") == (sums == "f64"):
            return a, b, written


def epilogue(random: Random, sums: str) -> Expression | None:
    """None, or an expression of each kind of operand, and of what is written."""
    type_: TypeName = "f64" if sums == "f64" else "f32"
    column, row = (tw.Operand(name, type_, per=name) for name in ("column", "row"))
    others = [type_name(name) for name in INPUTS if name != "f64"]
    full = tw.Operand("full", type_ if sums == "f64" else random.choice(others), per="full")
    one = tw.Operand("one", type_)
    curved = tw.acc * one if sums == "f64" else tw.gelu_tanh(tw.acc + column)
    choices = (
        None, None, None, tw.relu(tw.acc), tw.relu(tw.acc + column), curved, tw.acc + tw.dst,
        tw.acc * row + full, tw.clip(tw.acc * one, -1, 2), tw.where(tw.acc < row, tw.acc, column),
        tw.acc + 3 if type_ == full.type else tw.tanh(tw.acc),
    )  # fmt: skip
    return random.choice(choices)


def family(random: Random, target: str) -> tuple[Family, tuple[int, int, int]]:
    """A family of ``target``, and m, n and k of a product that is one of it."""
    while True:
        given = types(random)
        made = epilogue(random, accumulator(*given[:2]))
        if given[2] == "s64" and made is not None:
            continue
        reads = random.random() < 0.3
        options = Options(
            scaled=reads or random.random() < 0.2,
            reads=reads,
            epilogue=made,
            threads=random.choice((None, None, 1, 2)),
            deterministic=random.random() < 0.15,
            target=target,
        )
        sizes = size(random), size(random), size(random)
        axes: Axes = (random.randrange(2), random.randrange(2), random.randrange(2))
        chosen = class_of(*sizes, given, options, axes)
        if random.random() < 0.2:
            full = made is not None and any(x.per == "full" for x in operands_of(made))
            count, tight = int(2 ** random.uniform(0, 10)), random.random() < 0.6
            stacked = stack_class_of(*sizes, count, given, options, axes[2], tight=tight)
            if stacked is None or full:
                continue
            chosen = stacked
        return Family(given, axes, chosen, options), sizes
