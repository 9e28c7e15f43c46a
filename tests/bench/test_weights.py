"""The figures of weights of few bits: what they are made of, and of calls that take long."""

from __future__ import annotations

from time import sleep

import pytest

from benchmarks.measure.figures import Figure
from benchmarks.measure.native import Effort
from benchmarks.measure.rounds import rounds
from benchmarks.weights import section
from benchmarks.weights.memory import READS, FromMemory

SIZE = 16, 4096, 4096
#: Operations a second of all that is timed, and bytes that are stored in one.
RATES = {
    "q4_0": 700.0, "q4, zeros of 128": 800.0, "mxfp4": 650.0, "q8_0": 600.0, "q4_0 x bf16": 400.0,
    "q8_0 x bf16": 300.0, "w8a16": 350.0, "q4_0, A ready": 721.0, "bf16": 500.0,
    "q4_0 x f32": 240.0, "f32": 250.0, "f32 peak": 250.0,
    "int8 peak": 1000.0, "bf16 peak": 500.0, "stores": 2.0, "ggml q4_0 repacked": 200.0,
    "ggml mxfp4": 100.0,
}  # fmt: skip


def found(rates: dict[str, float], size: tuple[int, int, int] = SIZE) -> dict[str, Figure]:
    return {figure.name: figure for figure in section._figures({size: rates})}


def test_shares_and_ratios_are_those_of_the_rates() -> None:
    figures = found(RATES)
    values = {name: figure.value for name, figure in figures.items()}
    assert values["to ggml, 16 rows and more: least"] == pytest.approx(3.5)
    assert values["to ggml, 16 rows and more: geometric mean"] == pytest.approx((3.5 * 6.5) ** 0.5)
    assert values["of the int8 peak, 16 rows and more: least"] == pytest.approx(0.6)
    assert values["of the bf16 peak, 16 rows and more: least"] == pytest.approx(0.6)
    assert values["of the f32 peak, 16 rows and more: least"] == pytest.approx(0.96)
    assert values["quantizing A, n of 4096: times as long, most"] == pytest.approx(1.03)
    assert not figures["of the int8 peak, 16 rows and more: least"].met
    assert figures["quantizing A, n of 4096: times as long, most"].met


def test_a_b_that_is_unpacked_first_costs_its_stores() -> None:
    """Of bf16 two bytes each: 2 / 2 beside 2 * 16 / 500 for one element of B."""
    least = found(RATES)["to unpacking all of B first: least"].value
    assert least == pytest.approx(300 * (2 / 2 + 32 / 500) / 32)
    stored = RATES | {"stores": 1e9}
    assert found(stored)["to unpacking all of B first: least"].value == pytest.approx(0.6)


def test_few_rows_are_held_to_nothing_but_unpacking_and_one_row_to_ggml() -> None:
    assert [*found(RATES, (4, 4096, 4096))] == [
        f"to unpacking all of B first: {what}" for what in ("geometric mean", "least")
    ]
    assert "to ggml, one row: least" in found(RATES, (1, 4096, 4096))


def test_one_row_is_held_to_plain_reads() -> None:
    far = [
        FromMemory((64, 64), threads, {READS: 40.0, "q4_0": rate})
        for threads, rate in ((1, 36.0), (2, 30.0))
    ]
    values = {figure.name: figure.value for figure in section._of_memory(far)}
    assert values["one row from memory, of plain reads, 1 thread: least"] == pytest.approx(0.9)
    assert values["one row from memory, of plain reads, 2 threads: least"] == pytest.approx(0.75)


def test_calls_that_take_long_are_timed_less_often() -> None:
    times: list[float] = []

    def call() -> None:
        times.append(0.0)
        sleep(0.3)

    seconds = rounds([call, lambda: None], Effort(rounds=7, repeats=3))
    assert len(times) <= 5 and seconds[0] >= 0.3 and 0 < seconds[1] < 0.3
