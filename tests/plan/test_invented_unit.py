"""A matrix unit of a machine that does not exist, described here alone: all of it is data."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.generate import interpret_kernel, plan_for, program_for
from tilewright.isa.machine import Speed
from tilewright.isa.matrix_unit import MatrixUnit
from tilewright.isa.target import Target
from tilewright.isa.vector import MulAdd, Vector
from tilewright.spec.expression import acc
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Order
from tilewright.spec.postops import relu
from tilewright.spec.schedule import Schedule
from tilewright.targets import load

#: Registers of 8 rows of 4 sums in f32, five of them, in place of no vectors, read by lines. What
#: has a row's factor in each lane is no vector of the target.
_ROWS = Vector(name="rows", element="f32", lanes=8, ctype="rows", load="load({p})")
_PRODUCT = MulAdd(form="block", mnemonic="product", spelling="", rows=8, cols=4)
UNIT = MatrixUnit(
    name="invented",
    registers={"f32": 5},
    rows=8,
    row_bytes=16,
    products={"f32": (_PRODUCT,)},
    zero="zero({dst})",
    factors="vectors",
    latency=6,
    vectors=(_ROWS,),
    read="row({src}, {row})",
)


def invented() -> Target:
    """Vectors of 128 bits, with the unit beside them."""
    base = load("neon")
    speeds = (Speed(mnemonic="product", bytes=16, cycles=1, latency=6),)
    return replace(base, name="invented", matrix=UNIT, core=replace(base.core, speeds=speeds))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("what", [{}, {"beta": 1}, {"epilogue": relu(acc)}], ids=str)
def test_products_of_a_unit_that_no_file_knows(order: Order, what: dict[str, Any]) -> None:
    rng, target = np.random.default_rng(5), invented()
    for m, n, k in ((16, 16, 8), (13, 11, 9), (40, 24, 16), (8, 4, 1), (9, 5, 3)):
        spec = Gemm(m, n, k, order=order, **what)
        tiles = program_for(plan_for(spec, Schedule(), target)).tiles
        assert any("invented accumulators" in tile.summary for tile in tiles)
        a, b, c = (
            np.asarray(rng.integers(-4, 5, shape), np.float32, order=order)
            for shape in ((m, k), (k, n), (m, n))
        )
        expected = a.astype(np.int64) @ b.astype(np.int64) + what.get("beta", 0) * c
        interpret_kernel(spec, Schedule(), target, [a, b, c])
        np.testing.assert_array_equal(
            c, np.maximum(expected, 0) if "epilogue" in what else expected
        )


def test_operands_of_any_order_meet_in_it() -> None:
    rng = np.random.default_rng(6)
    all_orders: tuple[Order, ...] = ("C", "F")
    for orders in product(all_orders, repeat=3):
        a, b, c = (
            np.asarray(rng.integers(-4, 5, shape), np.float32, order=order)
            for shape, order in zip(((11, 6), (6, 10), (11, 10)), orders, strict=True)
        )
        made: dict[str, Any] = {x: Matrix("f32", o) for x, o in zip("abc", orders, strict=True)}
        interpret_kernel(Gemm(11, 10, 6, **made), Schedule(), invented(), [a, b, c])
        np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64))
