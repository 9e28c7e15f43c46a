"""What every post-op is held to, whether it is tilewright's or a user's: read from its entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from support.spellings.floats import between, everywhere, same
from support.spellings.scalar_c import compiled
from tilewright.elementwise.builder import Value, live, run
from tilewright.elementwise.operations import DTYPES
from tilewright.elementwise.simplify import simplify
from tilewright.errors import SpecError
from tilewright.runtime.reference.epilogue import evaluate
from tilewright.runtime.reference.interval import Interval
from tilewright.spec.expression import (
    REGISTRY,
    Call,
    Expression,
    Number,
    PostOp,
    acc,
    dst,
)
from tilewright.spec.expression.checks import check_functions

from .epilogues import BIAS, lowered

#: What an entry's operands are tried with.
LEAVES = (acc, dst, BIAS)
#: Where functions bend, and all of f32.
SAMPLE = np.concatenate(
    [everywhere(4), *(between(-edge, edge, 500, seed=i) for i, edge in enumerate((2, 15, 110)))]
)
#: Functions whose steps overflow before their result does: how large operands may be.
LARGEST = {"pow": 2.0**63}


def uses(entry: PostOp) -> list[Call]:
    """The entry applied with each of its samples, and with the parameters that are usual."""
    found = []
    usual = [default for _, default in entry.parameters]
    for sample in dict.fromkeys(entry.samples):
        values = [*sample, *usual[len(sample) :]]
        if None not in values:
            numbers = tuple(Number(value) for value in values if value is not None)
            operands = LEAVES[: len(entry.operands)]
            found.append(Call(entry.name, (*operands, *numbers), entry if entry.own else None))
    return found


def check_text(one: Call, names: dict[str, Any]) -> None:
    """What is printed is the Python that makes the expression."""
    known = {"acc": acc, "dst": dst, "Operand": tw.Operand, **names}
    assert eval(repr(one), {"__builtins__": {"float": float}}, known) == one  # noqa: S307
    assert one.entry.body.__doc__, "what the function is"


def check_program(one: Call) -> None:
    """There is no step that is not needed, and each result is one that the reference allows."""
    _check_element(one, "f32")
    if has_f64(one):
        _check_element(one, "f64")


def has_f64(one: Call) -> bool:
    """Whether it may be used where sums are f64."""
    try:
        check_functions(one, "f64")
    except SpecError:
        return False
    return True


@np.errstate(invalid="ignore")  # signalling NaN
def _check_element(one: Call, element: str) -> None:
    b, inputs, result = lowered(one, element)
    assert isinstance(result, Value)
    assert live(b.steps, [result]) == tuple(b.steps)
    arrays = _arrays(one, element)
    given = {inputs[leaf]: array for leaf, array in arrays.items()}
    found = {**given, **run(b.steps, given, b.real)}[result]
    assert found.dtype == DTYPES[element]
    right = _right(one, arrays, element)
    inside = (right.low <= found) & (found <= right.high)
    nan = np.isnan(found) & np.isnan(right.value)
    wrong = np.flatnonzero(~(inside | nan | right.unsure))
    assert not wrong.size, (one, [(a[wrong[0]], found[wrong[0]]) for a in arrays.values()])


def _arrays(one: Call, element: str) -> dict[Expression, Any]:
    count = len(one.entry.operands)
    shuffled = [np.random.default_rng(i).permutation(SAMPLE) for i in range(1, count)]
    arrays = [SAMPLE, *shuffled]
    most = LARGEST.get(one.fn, np.inf)
    arrays = [np.where(np.isfinite(x) & (abs(x) > most), np.float32(1), x) for x in arrays]
    return {
        leaf: array.astype(DTYPES[element]) for leaf, array in zip(LEAVES, arrays, strict=False)
    }


@np.errstate(all="ignore")
def _right(one: Call, arrays: dict[Expression, Any], element: str) -> Interval:
    wide = np.float64 if element == "f32" else np.longdouble
    sums = {"acc": Interval.exactly(arrays[acc].astype(wide), element)}
    given = {"d": arrays.get(dst), "bias": arrays.get(BIAS)}
    return evaluate(one, sums, {k: v for k, v in given.items() if v is not None})


def check_c(one: Call, directory: Path) -> None:
    """C computes the same bits as numpy."""
    b, inputs, result = lowered(one)
    assert isinstance(result, Value)
    arrays = {inputs[leaf]: array for leaf, array in _arrays(one, "f32").items()}
    found = compiled(b, list(arrays), result, directory)(*arrays.values())
    assert same(found, run(b.steps, arrays)[result]).all()


def check_algebra(one: Call) -> None:
    """Sympy takes it, and gives it back where there is nothing to shorten; it shortens around."""
    twice = one - one + acc
    assert simplify(twice) == acc
    assert simplify(Call("mul", (one, BIAS))) == Call("mul", (one, BIAS)) or one.entry.sympy


def check_kernel(found: list[Call]) -> None:
    """Kernels of it are right, in f32 and where results are stored as bf16."""
    specs = [tw.Gemm(5, 18, 7, d=d, epilogue=one) for one in found for d in ("f32", "bf16")]
    for kernel in tw.compile_many(specs):
        kernel.verify()


def names() -> dict[str, Any]:
    """The functions of the registry that are tilewright's, as users call them."""
    own = {name for name, entry in REGISTRY.items() if entry.own}
    return {name: getattr(tw, name) for name in tw.__all__ if name in REGISTRY and name not in own}
