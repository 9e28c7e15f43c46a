"""The bound of row programs, which ``python -m benchmarks rows`` prints."""

from __future__ import annotations

import tilewright as tw
from benchmarks.rows.bound import bound
from tilewright import nn
from tilewright.plan.rows.plan import plan_rows
from tilewright.runtime.machine.host import resolve


def test_the_bound_has_the_multiplications_and_the_busiest_unit_of_each_loop() -> None:
    """Softmax has 12 multiplications in exp, one for the result, and one division for each row."""
    spec = tw.network(nn.softmax).of(x=tw.Tensor("f32", (8, 640)))
    found = bound(plan_rows(spec, tw.Schedule(), resolve("avx512+zen5")))
    vectors = 640 // 16
    assert found.multiplications == 8 * (13 * vectors + 1)
    # The maximum: two of it and an "or", by four units. Then exp, by two. Then one store a cycle.
    assert found.loops == 2 * 8 * vectors * (3 / 4 + 12 / 2 + 1)
