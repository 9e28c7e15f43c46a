"""Stored types of one's own: seven bits in blocks of 40, and a table of any numbers."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS

import tilewright as tw
from tilewright.cli.code import spec_of_code
from tilewright.errors import ArgumentError, SpecError
from tilewright.runtime.driver import build_many
from tilewright.spec.quantized import STORED, Plane, integers

M = tw.dim("m")


@pytest.fixture
def seven(monkeypatch: pytest.MonkeyPatch) -> tw.Quantized:
    """Numbers from 0 to 127, of which 50 stands for 0."""
    monkeypatch.setitem(STORED, "u7", integers(7, signed=False))
    name: Any = "u7"
    return tw.Quantized(name, scale="f16", zero=50, block=40)


def test_its_bits_lie_in_three_planes(seven: tw.Quantized) -> None:
    """A block of 40 takes 35 bytes of each column."""
    assert seven.stored.planes == (Plane(4, 0), Plane(2, 4), Plane(1, 6))
    kernel = tw.compile(tw.Gemm(M, 16, 400, b=tw.Packed(seven)), target="scalar")
    rng = np.random.default_rng(0)
    q, scales = rng.integers(0, 128, (400, 16), np.uint8), np.ones((10, 16), np.float16)
    packed = kernel.pack_b(q, scales=scales)
    elements = 10 * 16 * 35
    assert packed.data.nbytes == elements + -elements % 64 + 2 * 160 + 64
    assert (packed.dequantize() == q.astype(np.float32) - 50).all()


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_have_it(target: str, seven: tw.Quantized, cases: Cases) -> None:
    """In integers and in floating point, K and columns that fill no block."""
    b = tw.Packed(seven, nb=32)
    types: tuple[Any, ...] = (tw.Quantize("bf16", per=("row", 40)), "f32")
    requests = [(tw.Gemm(M, 41, 130, a=a, b=b), None, target) for a in types]
    for kernel in build_many(requests, ("-O0",)):
        kernel.verify(cases=2)
        cases.count(target, kernel.emulated or "native", 2)


def test_c_packs_it(seven: tw.Quantized) -> None:
    """Three planes, of which no block fills whole bytes, and the sums of blocks."""
    a = tw.Quantize("bf16", per=("row", 40), zero="s8")
    tw.compile(tw.PackQuantized(130, 41, seven, a=a, nb=32)).verify(cases=2)


# --- a table of one's own ------------------------------------------------------------------------

#: Numbers of no regular distance: some are not exact in bf16.
OWN = (-127.25, -88, -67, -50, -36.5, -23, -12, 0, 10, 20, 31, 43, 56.125, 71, 92, 127.75)
TABLE = tw.Quantized(tw.Table(np.array(OWN) / 128), scale="f32", block=32)
FOUR = tw.Quantized(tw.Table((0.5, -3, 7.25, 0.1)), scale="f16", block=32)


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_look_its_numbers_up(target: str, cases: Cases) -> None:
    """With an A of floating point, also where bf16 has dot products."""
    pairs: tuple[Any, ...] = (("f32", TABLE), ("bf16", TABLE), ("f32", FOUR))
    requests = [
        (tw.Gemm(M, 41, 130, a=a, b=tw.Packed(form, nb=32)), None, target) for a, form in pairs
    ]
    for kernel in build_many(requests, ("-O0",)):
        kernel.verify(cases=2)
        cases.count(target, kernel.emulated or "native", 2)


@pytest.mark.parametrize("a", [tw.Quantize("f32", per=("row", 32)), "s8"])
def test_integers_do_not_multiply_its_numbers(a: Any) -> None:
    """Products and the specs that pack their B are refused; shipped tables as well."""
    for form in (TABLE, tw.Quantized("nf4", block=32), tw.Quantized("iq4_nl", block=32)):
        problem = re.escape(f"integers do not multiply the numbers of {form.type}")
        with pytest.raises(SpecError, match=problem):
            tw.Gemm(M, 16, 64, a=a, b=tw.Packed(form))
        with pytest.raises(SpecError, match=problem):
            tw.PackQuantized(64, 16, form, a=a)
    tw.Gemm(M, 16, 64, a=a, b=tw.Packed(tw.Quantized("f4_e2m1", block=32)))


@pytest.mark.parametrize("count", [4, 16])
def test_products_are_those_of_numpy(count: int) -> None:
    """Random numbers in random order; tw.matmul, a network and kernels multiply them alike."""
    rng = np.random.default_rng(count)
    numbers = rng.normal(size=count)
    form = tw.Quantized(tw.Table(numbers), scale="f32", block=16)
    w, a = rng.normal(size=(75, 20)).astype(np.float32), rng.normal(size=(3, 75)).astype(np.float32)
    b = tw.quantize(w, form)
    scales = np.repeat(b.scales.astype(np.float64), 16, axis=0)[:75]
    each = numbers.astype(np.float32).astype(np.float64)
    assert (b.q == np.abs(w[..., None] - scales[..., None] * each).argmin(axis=-1)).all()
    right = a.astype(np.float64) @ (scales * each[b.q])

    layer = tw.network(lambda x, w: x @ w.up).of(
        x=tw.Tensor("f32", (M, 75)), w={"up": tw.Tensor(form, (75, 20))}
    )
    kernel, net = tw.compile(tw.Gemm(M, 20, 75, b=tw.Packed(form))), tw.compile(layer)
    packed = kernel.pack_b(b)
    found = (kernel(a, packed), net(a, net.pack({"up": b})), tw.matmul(a, tw.pack(b, a="f32")))
    bound = 80 * 2.0**-24 * (np.abs(a) @ np.abs(scales * each[b.q]))
    assert all((np.abs(c - right) <= bound).all() for c in found)
    back = kernel.unpack_b(packed)
    assert (back.q == b.q).all() and (back.scales == b.scales).all() and back.format == form
    assert spec_of_code(repr(kernel.spec)) == kernel.spec and spec_of_code(repr(layer)) == layer


@pytest.mark.parametrize("target", ["host", "scalar", "neon"])
def test_a_shipped_table_given_as_ones_own_has_the_same_bits(target: str) -> None:
    rng = np.random.default_rng(0)
    w, a = rng.normal(size=(64, 20)).astype(np.float32), rng.normal(size=(3, 64)).astype(np.float32)
    results = []
    for type_ in ("nf4", tw.Table(STORED["nf4"].values)):
        form = tw.Quantized(type_, scale="f16", block=32)
        kernel = tw.compile(tw.Gemm(M, 20, 64, b=tw.Packed(form)), target=target)
        packed = kernel.pack_b(tw.quantize(w, form))
        results.append((kernel(a, packed), packed.data))
    assert all((one == other).all() for one, other in zip(*results, strict=True))


def test_two_tables_share_no_kernel_and_no_matrix(tmp_path: Path) -> None:
    """Tables that differ in the last bit of one number; equal ones are one."""
    numbers = np.array(OWN, np.float32)
    near = numbers.copy()
    near[3] = np.nextafter(near[3], np.float32(0))
    tables = [tw.Table(each) for each in (numbers, near)]
    forms = [tw.Quantized(each, block=32) for each in tables]
    one, other = (tw.compile(tw.Gemm(M, 5, 32, b=tw.Packed(form))) for form in forms)
    assert one.name != other.name and len({*tables, *pickle.loads(pickle.dumps(tables))}) == 2
    packed = one.pack_b(tw.quantize(np.eye(32, 5, dtype=np.float32), forms[0]))
    packed.save(tmp_path / "b")
    again = tw.PackedMatrix.load(tmp_path / "b")
    assert (again.dequantize() == packed.dequantize()).all()
    with pytest.raises(ArgumentError, match="b is packed in another format"):
        other(np.ones((1, 32), np.float32), again)
    assert tw.Quantized(tables[1].text, block=32) == forms[1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((1.0, 2.0), "2 numbers"),
        (range(8), "8 numbers"),
        (range(32), "32 numbers"),
        ((0, 1, float("nan"), 2), "the number of code 2 .*\n.*nan"),
        ((0, 1, 2, float("-inf")), "the number of code 3 .*\n.*-inf"),
        ((0, 1e39, 2, 3), "the number of code 1 .*\n.*1e[+]39"),
        ((0, 1e-60, 2, 3), "the number of code 1 .*\n.*1e-60"),
        ((0, "1", 2, 3), "the number of code 1 "),
        ((3,) * 4, "all numbers of a table are equal"),
        ("0123", "a table has several numbers"),
    ],
)
def test_what_is_no_table_is_refused(numbers: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        tw.Table(numbers)


def test_numbers_of_one_sign_have_minima_or_are_refused_for_the_other() -> None:
    form = tw.Table((1, 2, 4, 8))
    w = np.random.default_rng(0).uniform(-3, 2, (64, 3)).astype(np.float32)
    with pytest.raises(ArgumentError, match="no number of this sign") as refused:
        tw.quantize(w, tw.Quantized(form, block=16))
    assert 'zero="f32"' in str(refused.value)
    b = tw.quantize(w, tw.Quantized(form, zero="f32", block=16))
    assert np.abs(b.dequantize() - w).max() <= np.ptp(w) * 4 / 7 / 2 + 1e-6
    half = tw.quantize(np.abs(w) + 1, tw.Quantized(form, block=16))  # 1 to 8 times the scale
    assert (half.scales == ((np.abs(w) + 1) / 8).reshape(4, 16, 3).max(axis=1)).all()


def test_shipped_tables_are_those_of_their_projects() -> None:
    """The smallest and the largest number, and how many there are; nf4 is rounded to f32."""
    nf4, iq4_nl = STORED["nf4"].values, STORED["iq4_nl"].values
    assert (nf4[0], nf4[7], nf4[15], len(nf4)) == (-1, 0, 1, 16)
    assert (iq4_nl[0], iq4_nl[8], iq4_nl[15], len(iq4_nl)) == (-127, 1, 113, 16)
    assert all(float(np.float32(value)) == value for value in nf4)
    for type_ in ("nf4", "iq4_nl"):
        spec = tw.Gemm(2, 33, 64, b=tw.Packed(tw.Quantized(type_, scale="f16", block=32)))
        tw.compile(spec, target="avx2").verify(cases=2)
