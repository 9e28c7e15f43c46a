"""Products of few bits, summed in lanes of 16 bits first: exactly, however large they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.cases import Cases
from support.products.fused import Kernels, Trial
from support.products.plans import plan_of

import tilewright as tw
from tilewright.generate import program_for
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.quantized import StoredName

#: The products of a lane of 16 bits are two of each group of K.
IN_A_LANE, MOST, LARGEST = 2, 2**15 - 1, 2**7
#: Of each stored type the greatest factor, and so many groups as a lane holds.
RUNS: dict[StoredName, tuple[int, int]] = {
    "u2": (3, 42),
    "s3": (7, 18),
    "u4": (15, 8),
    "s4": (15, 8),
    "f4_e2m1": (24, 5),
}
RUNS |= {"u5": (31, 4), "s6": (63, 2), "u8": (255, 0), "s8": (255, 0)}
#: One run and several, the last of them shorter, and blocks that have a loop of their own.
BLOCKS: tuple[tuple[StoredName, int], ...] = (
    ("u2", 32),
    ("s3", 128),
    ("u4", 32),
    ("u4", 320),
    ("s4", 40),
    ("f4_e2m1", 32),
    ("u5", 64),
    ("s6", 16),
    ("u8", 32),
)


def spec_of(form: tw.Quantized, m: int, n: int, k: int) -> tw.Gemm:
    """An A that was quantized elsewhere: its elements reach -128."""
    return tw.Gemm(m, n, k, a="s8", a_scale="row", b=tw.Packed(form))


@pytest.mark.parametrize("target", ["avx2", "avx512"])
@pytest.mark.parametrize("type_", RUNS)
def test_a_run_is_as_long_as_lanes_hold_it(type_: StoredName, target: str) -> None:
    largest, groups = RUNS[type_]
    form = tw.Quantized(type_, scale="f32", block=32)
    plan = plan_of(spec_of(form, 8, 32, 64), None, target)
    assert plan.staging.product.few == groups
    assert plan.staging.product.mnemonic == ("vpmaddubsw" if groups else "vpmaddwd")
    one = IN_A_LANE * largest * LARGEST
    assert groups * one <= MOST < (groups + 1) * one


def test_where_an_instruction_sums_four_products_there_are_no_runs() -> None:
    form = tw.Quantized("u4", zero=8, block=32)
    for target in ("avx2+vnni", "avx512+vnni", "amx", "neon"):
        assert plan_of(spec_of(form, 8, 32, 64), None, target).staging.product.few == 0


def extreme(form: tw.Quantized, k: int, n: int) -> QuantizedMatrix:
    """Elements that are all the least of their type, or the greatest, in turns of columns."""
    stored = form.stored
    ends = (stored.low, stored.high) if not stored.values else (7, 15)  # codes of 6 and -6
    type_ = np.int8 if stored.low < 0 else np.uint8
    q = np.broadcast_to(np.resize(ends, n).astype(type_), (k, n)).copy()
    return QuantizedMatrix(form, q, np.ones((-(-k // form.block_of(k)), n), np.float32))


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_the_greatest_numbers_are_summed_exactly(target: str, tmp_path: Path, cases: Cases) -> None:
    """Beside rows of -128 and of 127, which are alike all along K."""
    m, n, k = 7, 19, 320
    forms = [tw.Quantized(t, scale="f32", block=block) for t, block in BLOCKS]
    kernels = Kernels(target, [Trial(spec_of(form, m, n, k)) for form in forms], tmp_path)
    a = np.repeat(np.resize((-128, 127, 1), m).astype(np.int8)[:, None], k, axis=1)
    for i, form in enumerate(forms):
        b = extreme(form, k, n)
        got = kernels(i, {"a": a, "b": b, "a_scale": np.ones(m, np.float32)})["out"]
        assert (got == a.astype(np.float64) @ b.dequantize()).all(), form
    cases.count(target, kernels.lab.means, len(forms))


@pytest.mark.parametrize("columns", [16, 32, 48])
@pytest.mark.parametrize("block", [32, 128])
def test_a_tile_that_fits_leaves_a_register_for_the_ones(block: int, columns: int) -> None:
    """Of one run and of several: with more rows, up to the first that do not fit."""
    spec = spec_of(tw.Quantized("u4", scale="f16", zero=8, block=block), 15, 48, 128)
    for rows in range(1, 16):
        schedule = tw.Schedule(tile=(rows, columns))
        try:
            plan = plan_of(spec, schedule, "avx512")
        except tw.ScheduleError:
            assert rows > 1
            return
        program_for(plan)
    pytest.fail("fifteen rows have more sums than there are registers")
