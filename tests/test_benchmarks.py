"""The sections of the benchmarks that need no other library."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.__main__ import SECTIONS
from benchmarks.measure.figures import Section
from benchmarks.measure.native import Effort, MissingError, compiler
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import Shape, odd_shapes
from benchmarks.measure.typed import LARGEST, Operands, Product
from benchmarks.peers.typed import grouped_blocks
from benchmarks.sections import compiling, epilogue, estimate, low, peaks, tails, threads, tuned
from tilewright import targets
from tilewright.runtime.bench.peak import Form, Peak
from tilewright.runtime.machine.host import is_native


def measurable() -> bool:
    try:
        return bool(compiler()) and is_native(targets.load("avx2"))
    except MissingError:
        return False


here = pytest.mark.skipif(not measurable(), reason="no gcc, or no processor with figures")


def options(only: str = "") -> tuple[Options, io.StringIO]:
    said, effort = io.StringIO(), Effort(1, 1, 1e-4)
    return Options(Console(file=said, width=200), 0, effort, "avx2", re.compile(only)), said


def test_all_are_sections() -> None:
    assert {"low", "ukernel", "epilogue", "tails", "threads", "peaks", "compile"} <= set(SECTIONS)


# -- compile ------------------------------------------------------------------------------------


@here
def test_stages_of_a_compile_are_told_apart(tmp_path: Path) -> None:
    found = compiling._stages("gcc", str(tmp_path), "avx2", 1, k=64)
    assert len(found["further"]) > 3 and all(len(one) == 1 for one in found["further"].values())
    kernels = [found["first"], found["many"], *(one[0] for one in found["further"].values())]
    for stages in kernels:
        assert tuple(stages) == compiling.STAGES
        parts = sum(stages[stage] for stage in compiling.STAGES if stage != "total")
        assert parts == pytest.approx(stages["total"])
        assert stages["compiler"] > 0 and stages["render"] > 0
    again = compiling._stages("gcc", str(tmp_path), "avx2", 1, k=64)
    assert again["first"]["compiler"] == 0 == again["many"]["plan"]


# -- tune -----------------------------------------------------------------------------------------


@here
def test_default_and_winner_are_measured_in_turns() -> None:
    """A smoke call: the least time, one shape."""
    pytest.importorskip("optuna")
    chosen, said = options("^13x5x7$")
    (row,) = tuned.run(chosen, seconds=0.1).rows
    assert row["shape"] == "13x5x7" and float(str(row["ratio"])) > 0
    assert "Schedule(" in said.getvalue() and not list(tuned._figures(chosen, []))


# -- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("product", "cores", "met"), [(1.9, 1.95, [True]), (1.2, 1.95, [False]), (1.2, 1.4, [])]
)
def test_threads_must_gain_what_the_cores_do(product: float, cores: float, met: list[bool]) -> None:
    gain, (_, said) = threads.Gain(product, cores, 2), options()
    assert [figure.met for figure in gain.figures] == met
    gain.tell(Console(file=said, width=200), "avx2")
    assert f"{product:.2f} times as fast on 2 threads" in said.getvalue()
    assert ("nothing is demanded" in said.getvalue()) == (not met)


@here
def test_threads_are_measured_beside_the_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, said = options("^32x32x32$")
    monkeypatch.setattr(threads, "QUANTUM", 1e-3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    section = threads.run(chosen)
    row, *chosen_by_size = section.rows
    assert [(each["types"], each["shape"]) for each in chosen_by_size] == [
        ("f32", "32x32x32"), ("f64", "32x32x32"),
    ]  # fmt: skip
    for name in ("product", "cores"):
        gain = row[name]
        assert isinstance(gain, float)
        assert gain > 0
    assert "(2 CPUs)" in said.getvalue()


def test_one_cpu_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, said = options()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert threads.run(chosen) == Section("threads", ())
    assert "nothing is measured, this process may use 1 CPU" in said.getvalue()


# -- tails --------------------------------------------------------------------------------------


@here
def test_every_way_with_tails_is_measured() -> None:
    """Of 127x127x127 the packed operand lies in memory that the caller gives."""
    chosen, said = options("13x5x7|127x")
    section = tails.run(chosen)
    assert [row["shape"] for row in section.rows] == ["13x5x7", "127x127x127"]
    for row in section.rows:
        speeds = row["gflops"]
        assert isinstance(speeds, dict)
        assert speeds.keys() == {"auto", "mask", "narrow", "bounce"}
        assert min(speeds.values()) > 0
    assert "n, b" in said.getvalue()


# -- low precision ------------------------------------------------------------------------------


@here
def test_types_are_measured_beside_their_instructions() -> None:
    chosen, said = options("64x48x64")
    section = low.run(chosen)
    for row in section.rows:
        speeds, of_peak = row["gflops"], row["of_peak"]
        assert isinstance(speeds, dict)
        assert isinstance(of_peak, dict)
        assert speeds.keys() == of_peak.keys() == {"f32", "f16", "bf16", "u8 x s8", "s8 x s8"}
        assert min(of_peak.values()) > 0
    assert any(figure.name.startswith("bf16") for figure in section.figures)
    assert "u8 x s8" in said.getvalue()


@here
def test_epilogues_are_measured_beside_the_plain_product() -> None:
    chosen, said = options()
    section = epilogue.run(chosen)
    assert {figure.name.split(",")[0] for figure in section.figures} == {
        "time with relu",
        "time with bias + gelu_erf",
    }
    assert all(figure.at_most for figure in section.figures)
    assert "gelu_erf" in said.getvalue()


# -- the peak -----------------------------------------------------------------------------------


@here
def test_the_forms_of_the_peak_are_measured() -> None:
    chosen, said = options()
    section = peaks.run(chosen)
    names = [figure.name for figure in section.figures]
    assert {figure.limit for figure in section.figures if "of tw.peak" in figure.name} == {
        0.3,
        1.01,
    }
    assert names[0] == "widest form to the best"
    assert any("latency, sum to factor" in name for name in names)
    assert min(figure.value for figure in section.figures) > 0
    assert "cycles, factor" in said.getvalue()


def test_a_peak_that_is_none_misses_its_figures() -> None:
    """A form through whose sum a chain takes longer than through a factor, and a wide one slow."""
    wide = Form("fma", "wide", 8, 20.0, 10, 2.0, 4.0, 4.0, 8.0)
    narrow = Form("fma", "narrow", 1, 40.0, 1, 2.0, 2.0, 4.0, 4.0)
    found = Peak("made up", "f32", 40.0, 2.0, (wide, narrow))
    missed = {figure.name for figure in peaks.form_figures(found) if not figure.met}
    assert missed == {
        "widest form to the best",
        "fma (wide): latency, sum to factor",
        "fma (narrow): best to its chains alone",
    }


def test_random_sizes_have_odd_k_and_odd_n_among_them() -> None:
    for seed in range(20):
        shapes = odd_shapes(seed)
        assert len(shapes) == 20
        assert sum(shape.k % 2 for shape in shapes) >= 5
        assert sum(shape.n % 2 for shape in shapes) >= 5


def test_integers_of_b_never_saturate_sums_of_two_products() -> None:
    drawn = Operands.random(Product(Shape(9, 9, 99), "u8", "s8"), np.random.default_rng(0))
    assert drawn.a.max() == 255
    assert abs(drawn.b.astype(int)).max() == LARGEST
    assert 2 * 255 * LARGEST < 2**15


def test_a_wrong_product_is_found() -> None:
    drawn = Operands.random(Product(Shape(3, 4, 5), "u8", "s8"), np.random.default_rng(0))

    class Wrong:
        name = "wrong"

        def once(self) -> None:
            drawn.c[...] = (drawn.a.astype(int) @ drawn.b.astype(int)).sum(0)
            drawn.c[1, 2] += 1

    with pytest.raises(WrongResultError, match="wrong, u8 x s8, 3x4x5: an element is off by 1"):
        drawn.check(Wrong())  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "group"), [(np.int8, 4), (np.uint16, 2)])
def test_groups_of_k_in_blocks_of_columns(dtype: type[np.generic], group: int) -> None:
    """For ``[block][count][k / group][columns][group]``, where an element lies."""
    count, k, n = 2, 7, 70
    b = np.arange(count * k * n).reshape(count, k, n).astype(dtype)
    packed, groups = grouped_blocks(b), -(-k // group)
    assert packed.size == count * groups * group * (64 + 16)
    for at, row, column in ((0, 0, 0), (1, 6, 63), (0, 5, 64), (1, 3, 69)):
        first, width = (0, 64) if column < 64 else (count * groups * group * 64, 16)
        place = first + at * groups * group * width
        place += (row // group * width + column % 64) * group + row % group
        assert packed[place] == b[at, row, column]


# -- estimate -----------------------------------------------------------------------------------


def test_ranks_are_correlated_whatever_the_values_are() -> None:
    one = np.array([1.0, 2.0, 30.0, 4e5])
    assert estimate.rank_correlation(one, np.log(one)) == pytest.approx(1)
    assert estimate.rank_correlation(one, -one) == pytest.approx(-1)
    assert estimate.rank_correlation(one, np.array([1.0, 1.0, 2.0, 2.0])) == pytest.approx(
        0.894, abs=1e-3
    )


def test_twenty_products_in_four_types_are_estimated() -> None:
    found = estimate.specs()
    assert len(found) * estimate.COUNT == 300
    assert {spec.a.type for spec in found.values()} >= {"f32", "f64", "bf16", "s8"}
