"""Bits of deterministic products: those of n, k and the types alone, however operands lie."""

from __future__ import annotations

import itertools
from math import ceil
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.generate import plan_for
from tilewright.plan.plan import Plan
from tilewright.runtime.arrays.elements import encode
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.matmul import constant
from tilewright.runtime.matmul.families import (
    FIXED_STEPS,
    Axes,
    Family,
    Options,
    class_of,
    schedule_of,
    spec_of,
)

Array = np.ndarray[Any, Any]
AXES: list[Axes] = [(1, 1, 1), (1, 0, 1), (0, 1, 1), (0, 1, 0), (1, 1, 0), (0, 0, 0)]
#: n and k: a column, few, and more columns than blocks have at least; K is more than one block.
SIZES = [(1, 700), (5, 700), (140, 700)]


@pytest.mark.twice
@pytest.mark.parametrize(("type_", "n", "k"), [("f4", 140, 700), ("f2", 1, 700)])
def test_rows_have_the_same_bits_however_they_are_computed(type_: str, n: int, k: int) -> None:
    """Numbers of rows, orders and strides of all three arrays, a packed b, stacks, and threads."""
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal(shape).astype(type_) for shape in ((17, k), (k, n)))
    packed, first = tw.pack(b), tw.matmul(a[:1], b, deterministic=True)

    def check(found: Array, how: Any) -> None:
        assert found[..., :1, :].tobytes() == first.tobytes(), how

    for order in ("CCC", "CFF", "FCF", "CPC", "FPF"):
        for m in (1, 2, 17):
            x, y = np.array(a[:m], order=order[0]), packed  # type: ignore[call-overload]
            if order[1] != "P":
                y = np.array(b, order=order[1])  # type: ignore[call-overload]
            out = np.empty((m, n), "f4", order=order[2])  # type: ignore[call-overload]
            for _ in range(2):  # the second is decided in C
                check(tw.matmul(x, y, out, deterministic=True), (order, m))
    apart = np.zeros((34, 2 * k), type_)[::2, ::2]
    apart[...] = a
    spread = np.zeros((17, 2 * n), "f4")[:, ::2]
    check(tw.matmul(apart, b[::-1][::-1], spread, deterministic=True), "strides")
    check(tw.matmul(a, b, deterministic=True, threads=2), "threads")
    (one,) = tw.matmul(a[None, :3], np.stack([b]), deterministic=True)
    check(one, "a stack")
    check(tw.matmul(np.stack([a[:3]] * 3), np.stack([b] * 3), deterministic=True)[2], "stacks")
    check(tw.matmul(a[0], b, deterministic=True)[None], "a vector")


def _cut(plan: Plan, k: int) -> list[int]:
    """How many steps each of the sums has that are added one after the other."""
    most = plan.nest.blocks.get("k", k)
    if "k" in plan.block_sizes:
        assert plan.nest.panel_tile is not None
        equal = ceil(k / ceil(k / most))
        most = ceil(equal / plan.staging.product.step) * plan.staging.product.step
    return [min(most, k - first) for first in range(0, k, most)]


def _sums(plan: Plan, k: int) -> tuple[Any, ...]:
    """What the bits of a sum follow from: its instruction, if it is no chain, and its parts."""
    product, splits = plan.staging.product, {tile.shape.k_split for tile in plan.tiling.tiles}
    instruction = (product.mnemonic, product.step) if product.step > 1 else ""
    return instruction, product.few, plan.problem.vectorize == "k", splits, _cut(plan, k)


def _planned(target: str, types: tuple[str, str, str], n: int, k: int) -> dict[str, list[Any]]:
    """The orders of operands by how they are summed; packed ones begin with "packed"."""
    described, options = resolve(target), Options(deterministic=True, target=target, threads=1)
    found: dict[str, list[Any]] = {}
    for axes in AXES:
        family = Family(types, axes, class_of(1, n, k, types, options, axes), options)
        plan = plan_for(spec_of(family), schedule_of(family), described)
        found.setdefault(str(_sums(plan, k)), []).append(axes)
    if n == 1 and types[0] != types[2]:
        return found  # such a column is unpacked before
    for a, c in itertools.product((0, 1), repeat=2):
        kind = constant._Kind(types, (k, n), a, c, options)
        plan = plan_for(constant._spec(kind), constant._schedule(kind, False), described)
        found.setdefault(str(_sums(plan, k)), []).append(("packed", a, c))
    return found


@pytest.mark.parametrize(
    ("target", "type_"),
    [
        ("avx512", "f32"), ("avx512+vnni+bf16", "bf16"), ("neon", "f8_e5m2"), ("power10", "f64"),
        ("scalar", "f16"), ("neon+dotprod+i8mm+bf16", "bf16"), ("sme", "f16"), ("amx", "bf16"),
    ],
)  # fmt: skip
def test_every_target_sums_in_one_way(target: str, type_: str) -> None:
    types = (type_, type_, "f64" if type_ == "f64" else "f32")
    for n, k in SIZES:
        assert len(found := _planned(target, types, n, k)) == 1, (n, k, found)


@pytest.mark.twice
@pytest.mark.parametrize(
    ("target", "type_"), [("neon+dotprod+i8mm+bf16", "bf16"), ("avx2", "f16"), ("host", "f8_e4m3")]
)
def test_a_packed_column_is_summed_as_an_unpacked_one(target: str, type_: str) -> None:
    """Its elements are read from the packed bytes, which may have a wider type."""
    rng, k = np.random.default_rng(1), 300
    a, b = (encode(rng.standard_normal(shape), type_) for shape in ((2, k), (k, 1)))
    packed = tw.pack(b, target=target)
    asked: dict[str, Any] = {"deterministic": True, "target": target}
    column = packed.unpacked_column()
    assert column is not None
    assert column.tobytes() == b.tobytes()
    right = tw.matmul(a, b, **asked)
    for m in (2, 1):
        assert tw.matmul(a[:m], packed, **asked).tobytes() == right[:m].tobytes()
    with pytest.raises(ArgumentError, match="another target"):
        tw.matmul(a, packed, deterministic=True, target="scalar")
    for wide in (tw.pack(np.ones((k, 1), np.float32)), tw.pack(np.ones((k, 1), np.int8))):
        assert wide.unpacked_column() is None


@pytest.mark.parametrize("m", [0, 1, 5, 5000])
@pytest.mark.parametrize("types", [("f32",) * 3, ("bf16", "bf16", "f32")])
def test_classes_follow_from_n_and_k(m: int, types: tuple[str, str, str]) -> None:
    options = Options(deterministic=True)
    for n, k in ((1, 5), (31, 500), (140, FIXED_STEPS), (500, 500)):
        assert len({class_of(x, n, k, types, options, axes) for x in (m, 7) for axes in AXES}) == 1
