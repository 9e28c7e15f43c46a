"""Blocks of integers with scales: the same bits on every target, as numpy makes them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases, sampled
from support.compilers import TARGETS
from support.products.fused import Kernels, Trial
from support.products.packed import DTYPES, convert

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError, SpecError
from tilewright.generate import Request, generate
from tilewright.plan.formats.low_bit import QuantizedFormat
from tilewright.plan.formats.named import format_named
from tilewright.plan.formats.quantized_b import quantized_format
from tilewright.runtime.driver import build_many
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.quantized.matrix import QuantizedMatrix, quantized_bytes

Array = np.ndarray[Any, Any]
F32 = np.float32
M = tw.dim("m")
#: Formats that differ in all that a format says.
FORMATS = (
    tw.Quantized("u4", scale="f16", zero=8, block=32),
    tw.Quantized("s4", scale="f32", block=8),
    tw.Quantized("s8", scale="bf16", block=40),
    tw.Quantized("u8", scale="f32", zero=131, block=16),
    tw.Quantized("u4", scale="f32", block=128),
    tw.Quantized("s4", scale="f16", zero=-3, block=72),
    tw.Quantized("u4", scale="f16", zero="u4", block=32),
    tw.Quantized("s4", scale="f32", zero="f16", block=64),
    tw.Quantized("s8", scale="f16", zero="s8", block=24),
    tw.Quantized("u2", scale="f32", zero="bf16", block=16),
    tw.Quantized("s2", scale="f16", zero="s2", block=48),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("f4_e2m1", scale="f8_e4m3", block=16),
    tw.Quantized("f4_e2m1", scale="f16", zero="f32", block=40),
    tw.Quantized("s8", scale="f32"),
    tw.Quantized("u4", scale="f16", zero="u4", block=(32, 24)),
    tw.Quantized("u2", scale="bf16", zero="f16"),
    tw.Quantized("f4_e2m1", scale="e8m0", block=(16, 5)),
    tw.Quantized("u5", scale="f16", zero=16, block=40),
    tw.Quantized("s6", scale="f32", block=16),
    tw.Quantized("u3", scale="f32", zero="f32", block=96),
    tw.Quantized("s5", scale="bf16", zero="s5"),
)
#: Those that an A of floating point alone takes.
REALS = (
    tw.Quantized("f8_e4m3", scale="f32", block=(128, 128)),
    tw.Quantized("f8_e5m2", scale="bf16", zero="f16", block=24),
)
#: Rows, columns and K: tails of tiles, of panels, and of blocks.
SIZES = ((1, 1, 8), (3, 5, 40), (7, 33, 96), (6, 64, 128), (2, 49, 257))


# --- what is right -----------------------------------------------------------------------------


def quantized(a: Array, how: Any, block: int) -> tuple[Array, Array]:
    """Rows as integers less zero points, and scales; each operation in f32."""
    rows, k = a.shape
    count = -(-k // block)
    parts = np.zeros((rows, count * block), F32)
    parts[:, :k] = a
    if not isinstance(how, tw.Quantize):
        return parts.astype(np.int64).reshape(rows, count, block), np.ones((rows, count), F32)
    parts = parts.reshape(rows, 1 if how.per == "row" else count, -1)
    low, high = np.minimum(parts.min(axis=2), 0), np.maximum(parts.max(axis=2), 0)
    with np.errstate(all="ignore"):
        most = high / F32(2) - low / F32(2) if how.zero else np.maximum(high, -low)
        top = F32(127.5 if how.zero else 127)
        least = most < F32(2.0**-119)
        scales, units = most / top, top / most
        scales[least], units[least] = 0, 0
        q = np.rint(parts * units[..., None])
        zeros: Any = np.rint(F32(-128) - low * units)[..., None] if how.zero else 0
        q = np.clip(q + zeros, -128 if how.zero else -127, 127) - zeros
        finite: Any = np.isfinite(parts).all(axis=2)
        scales[~finite] = np.nan
    q = np.where(finite[..., None], q, 0).astype(np.int64)
    return q.reshape(rows, count, block), np.repeat(scales, count // scales.shape[1], axis=1)


def right(a: Array, b: QuantizedMatrix, how: Any, acc: Array | None = None) -> Array:
    """Sums of blocks, scaled and added by FMA in the order of K, from ``acc`` on."""
    form, (k, n) = b.format, b.shape
    unit = 32 if form.stored_name[1:] in ("3", "5") else 16
    block, wide = form.block if isinstance(form.block, tuple) else (form.block or k + -k % unit, 1)
    q, scales = quantized(a, how, block)
    whole = np.zeros((q[0].size, n), np.int64)
    whole[:k] = _F4[b.q] if form.type == "f4_e2m1" else b.q
    columns = 2.0 ** (b.scales.astype(int) - 127) if form.scale == "e8m0" else b.scales
    columns = by_column(columns.astype(F32) / F32(2 if form.type == "f4_e2m1" else 1), wide, n)
    acc = np.zeros((len(a), n), F32) if acc is None else acc
    zeros: Any = None if b.zeros is None else by_column(b.zeros, wide, n)
    with np.errstate(all="ignore"):
        for i in range(q.shape[1]):
            zero: Any = form.zero if isinstance(form.zero, int) else 0
            if form.zero == form.type:
                zero = zeros[i].astype(np.int64)
            part = slice(i * block, (i + 1) * block)
            sums = (q[:, i] @ (whole[part] - zero)).astype(F32)
            acc = fma(sums, scales[:, i, None] * columns[i], acc)
            if form.zero in ("f32", "f16", "bf16"):
                own = q[:, i].sum(axis=1).astype(F32) * scales[:, i]
                acc = fma(own[:, None], zeros[i].astype(F32), acc)
    return acc


def by_column(blocks: Array, wide: int, n: int) -> Array:
    """What blocks of so many columns have, for each of ``n`` columns."""
    return np.stack([blocks[:, column // wide] for column in range(n)], axis=1)


def fma(x: Array, y: Array, z: Array) -> Array:
    """Products have 48 bits at most: they are exact."""
    found: Array = (x.astype(np.longdouble) * y + z).astype(F32)
    return found


#: What the 16 codes of f4_e2m1 stand for, in halves: a sign, two bits of exponent, one of mantissa.
_F4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


def drawn(form: tw.Quantized, k: int, n: int, seed: int) -> QuantizedMatrix:
    """A B of all numbers of its type, with scales of both signs."""
    rng, stored = np.random.default_rng(seed), form.stored
    q = rng.integers(stored.low, stored.high, (k, n), endpoint=True)
    blocks = form.blocks(k, n)
    scales: Array = rng.uniform(-1, 1, blocks).astype(F32)
    scales[rng.random(blocks) < 0.05] = 0
    zeros = None
    if form.zero == form.type:
        zeros = rng.integers(stored.low, stored.high, blocks, endpoint=True)
        zeros = zeros.astype(DTYPES[stored.unpacked])
    elif isinstance(form.zero, str):
        zeros = convert(rng.uniform(-1, 1, blocks).astype(F32), form.zero)
    if form.scale == "e8m0":
        scales = rng.integers(90, 160, blocks).astype(np.uint8)
    else:
        scales = convert(scales, form.scale)
    return QuantizedMatrix(form, q.astype(DTYPES[stored.unpacked]), scales, zeros)


def rows_of(m: int, k: int, seed: int) -> Array:
    """An A with rows of very different sizes, zeros and subnormal numbers among them."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(m, k)) * 2.0 ** rng.integers(-20, 20, (m, 1))
    a[rng.random(a.shape) < 0.1] = 0
    a[:, : k // 3] *= rng.choice([1, 0, 2.0**-130], (m, 1))
    return a.astype(F32)


def same(got: Array, expected: Array) -> bool:
    """Whether all bits agree, but for which NaN it is."""
    return bool(((got == expected) | (np.isnan(got) & np.isnan(expected))).all())


# --- kernels -----------------------------------------------------------------------------------


def kinds(form: tw.Quantized, type_: Any = "f32") -> tuple[Any, ...]:
    """The ways in which A meets a B of this format in integers."""
    pers: Any = (form.per, "row")
    return (
        *(tw.Quantize(type_, per=per, zero=zero) for per in pers for zero in (None, "s8")),
        tw.Matrix("s8"),
    )


def trials(target: str) -> Iterator[tuple[Trial, tw.Quantized]]:
    """Every format with some of the sizes, the other ones on every target."""
    start = sum(map(ord, target))
    for index, form in enumerate(FORMATS):
        for step in (0, 2):
            m, n, k = SIZES[(start + index + step) % len(SIZES)]
            type_: Any = ("f32", "bf16", "f16")[(start + index) % 3]
            a = kinds(form, type_)[(start + 2 * index + step // 2) % 5]
            schedule = tw.Schedule(threads=2) if step else tw.Schedule()
            packed = tw.Packed(form, nb=None if step else 32)
            yield Trial(tw.Gemm(M, n, k, a=a, b=packed), schedule, {"m": m}), form


def agree(
    target: str, every: Sequence[tuple[Trial, tw.Quantized]], tmp_path: Path, cases: Cases
) -> None:
    """Each kernel's results have the bits that numpy makes."""
    kernels = Kernels(target, [trial for trial, _ in every], tmp_path)
    for i, (trial, form) in enumerate(every):
        spec = trial.spec
        assert isinstance(spec.k, int) and isinstance(spec.n, int)
        b = drawn(form, spec.k, spec.n, i)
        a = convert(rows_of(trial.sizes["m"], spec.k, i), spec.a.type)
        got = kernels(i, {"a": a, "b": b}, "rear" if i % 2 else "front")["out"]
        assert same(got, right(a.astype(F32), b, spec.a)), trial
    cases.count(target, kernels.lab.means, len(every))


@pytest.mark.parametrize("target", TARGETS)
def test_results_have_the_same_bits_on_every_target(
    target: str, tmp_path: Path, cases: Cases
) -> None:
    agree(target, sampled(target, trials(target), 6), tmp_path, cases)


@pytest.mark.parametrize("target", TARGETS)
def test_zero_points_of_an_a_of_integers(target: str, tmp_path: Path, cases: Cases) -> None:
    """The bits that numpy makes of A less its zero points, as a literal, of the call, of rows."""
    start, every, zeros = sum(map(ord, target)), [], []
    for index in range(6):
        form = FORMATS[(start + 8 * index) % len(FORMATS)]
        m, n, k = SIZES[(start + index) % len(SIZES)]
        type_: Any = ("s8", "u8")[index > 2]
        literal = -128 if type_ == "s8" else (None, 128, 201)[start % 3]
        given: Any = (literal, "scalar", "row")[(start + index) % 3]
        spec = tw.Gemm(M, n, k, a=type_, b=tw.Packed(form), a_zero=given)
        every.append(Trial(spec, tw.Schedule(), {"m": m}))
        zeros.append(given)
    kernels = Kernels(target, every, tmp_path)
    for i, (trial, given) in enumerate(zip(every, zeros, strict=True)):
        spec, m, rng = trial.spec, trial.sizes["m"], np.random.default_rng(i)
        assert isinstance(spec.k, int) and isinstance(spec.n, int) and spec.quantized is not None
        span = np.iinfo(DTYPES[spec.a.type])
        a = rng.integers(span.min, span.max + 1, (m, spec.k))
        b, zero = drawn(spec.quantized, spec.k, spec.n, i), np.array([given or 0])
        if isinstance(given, str):
            zero = rng.integers(span.min, span.max + 1, 1 if given == "scalar" else m, np.int32)
        arrays = {"a": a.astype(span.dtype), "b": b}
        arrays |= {"a_zero": zero} if isinstance(given, str) else {}
        got = kernels(i, arrays, "rear" if i % 2 else "front")["out"]
        assert same(got, right((a - zero[:, None]).astype(F32), b, spec.a)), trial
    cases.count(target, kernels.lab.means, len(every))


@pytest.mark.parametrize(("type_", "beyond"), [("s8", 128), ("u8", -1)])
def test_zero_points_of_the_call_are_numbers_of_a(type_: Any, beyond: int) -> None:
    """An 8-bit A quantized ahead, with scales and zero points of its rows, as XNNPACK has it."""
    form = tw.Quantized("s8", scale="f32")
    spec = tw.Gemm(M, 5, 20, a=type_, b=tw.Packed(form), a_scale="row", a_zero="row")
    kernel = tw.compile(spec)
    b = kernel.pack_b(drawn(form, 20, 5, 1))
    a, scale = np.ones((2, 20), DTYPES[type_]), np.ones(2, F32)
    assert (kernel(a, b, a_scale=scale, a_zero=np.array([1, 1], np.int32)) == 0).all()
    with pytest.raises(ArgumentError, match=rf"a_zero\[1\] == {beyond}"):
        kernel(a, b, a_scale=scale, a_zero=np.array([1, beyond], np.int32))


#: Orders and types of an A of floating point, with tails of tiles and of blocks.
FLOATS: Any = (
    ("f32", 33, 96), ("bf16", 5, 300), (tw.Matrix("f32", "F"), 40, 129), ("f16", 1, 24),
    ("f8_e4m3", 20, 65),
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_an_a_of_floating_point_is_within_the_bound(target: str, cases: Cases) -> None:
    start, specs = sum(map(ord, target)), []
    for index, form in enumerate((*FORMATS, *REALS)):
        a, n, k = FLOATS[(start + index) % len(FLOATS)]
        d: Any = ("f32", "bf16")[index % 2]
        specs.append(tw.Gemm(M, n, k, a=a, b=tw.Packed(form), d=d))
    requests = [(spec, None, target) for spec in sampled(target, specs, 6)]
    for kernel in build_many(requests, ("-O0",)):
        kernel.verify(cases=2)
        cases.count(target, kernel.emulated or "native", 2)


@pytest.mark.parametrize("target", ["neon", "power10"])
def test_numbers_of_four_bits_become_f32_without_a_subnormal_factor(target: str) -> None:
    """Half of the least one would be, had its bits f32's least exponents; Intel's cores take 150
    cycles for its product.
    """
    spec = tw.Gemm(M, 64, 64, b=tw.Packed(tw.Quantized("f4_e2m1", scale="e8m0", block=32)))
    text = generate([Request("k", spec, tw.Schedule(), resolve(target))]).text
    assert "b0_f32_normal" in text
    assert "0x1p+127" not in text


@pytest.mark.parametrize(
    ("target", "instruction", "looked_up"),
    [
        ("avx512", "_mm512_permutexvar_ps", ("u4", "f4_e2m1", "s2")),
        ("avx2", "_mm256_permutevar8x32_ps", ("f4_e2m1",)),
    ],
)
def test_a_register_of_f32_is_a_table_of_numbers(
    target: str, instruction: str, looked_up: tuple[str, ...]
) -> None:
    """16 of them for bits of one plane, whatever they stand for; eight and a sign for fp4."""
    known: tuple[Any, ...] = ("u4", "f4_e2m1", "s2", "u5")
    for stored in known:
        form = tw.Quantized(stored, scale="f16", block=32)
        spec = tw.Gemm(M, 64, 64, b=tw.Packed(form))
        text = generate([Request("k", spec, tw.Schedule(), resolve(target))]).text
        assert (instruction in text) is (stored in looked_up)


def test_a_row_does_not_depend_on_the_others_beside_it() -> None:
    form = FORMATS[0]
    spec = tw.Gemm(M, 80, 96, a=tw.Quantize(per=("row", 32)), b=tw.Packed(form))
    kernel = tw.compile(spec)
    b, a = kernel.pack_b(drawn(form, 96, 80, 1)), rows_of(29, 96, 2)
    whole = kernel(a, b)
    for first, last in ((0, 1), (3, 7), (11, 29)):
        assert (kernel(a[first:last], b) == whole[first:last]).all()


@pytest.mark.parametrize("target", ["avx2", "avx512+vnni", "scalar"])
def test_many_rows_come_in_blocks_that_a_cache_holds(target: str) -> None:
    """With the bits that numpy makes, whole blocks of rows, a tail of one, and none."""
    form = FORMATS[6]
    spec = tw.Gemm(M, 33, 96, a=tw.Quantize("f32", per=("row", 32)), b=tw.Packed(form))
    kernel = tw.compile(spec, target=target)
    assert (kernel.schedule.loops, dict(kernel.schedule.block)) == ("mnmk", {"m": 128})
    b = drawn(form, 96, 33, 0)
    packed = kernel.pack_b(b)
    for m in (100, 128, 129, 300):
        a = convert(rows_of(m, 96, m), "f32")
        assert same(kernel(a, packed), right(a, b, spec.a)), m
    fixed = [
        tw.compile(tw.Gemm(m, 33, 96, a=spec.a, b=spec.b), target=target).schedule.loops
        for m in (128, 129)
    ]
    assert fixed == ["nmk", "mnmk"]


def test_extremes() -> None:
    """Rows of Inf, NaN and zeros; the least and greatest of both; scales that are no numbers."""
    form = tw.Quantized("s4", scale="f16", block=32)
    q = np.repeat(np.array([[-8, 7, -8, 7]], np.int8), 64, axis=0)
    scales = np.array([[1, 1, 0, np.inf], [2.0**-24, np.nan, 65504, 1]], np.float16)
    a = np.zeros((7, 64), F32)
    a[1], a[2, 0], a[3, 33], a[4], a[5] = 3.4e38, np.inf, np.nan, 1e-44, -2.0
    a[6, ::2] = -3.4e38
    a[6, 1::2] = 3.4e38
    b = QuantizedMatrix(form, q, scales)
    for how in kinds(form)[:-1]:
        kernel = tw.compile(tw.Gemm(M, 4, 64, a=how, b=tw.Packed(form)))
        with np.errstate(all="ignore"):
            assert same(kernel(a, kernel.pack_b(b)), right(a, b, how)), how


def test_a_gated_layer_with_an_epilogue() -> None:
    """Two weights, a bias and bf16: as the steps would be made one by one."""
    form = tw.Quantized("u4", scale="f16", zero=8, block=32)
    bias = tw.Operand("bias", "f32", per="column")
    spec = tw.Gemm(
        M, 48, 64, a=tw.Quantize("bf16", per=("row", 32)), b=tw.Packed(form), b2=tw.Packed(form),
        d="bf16", epilogue=tw.relu(tw.acc + bias) * tw.acc2,
    )  # fmt: skip
    kernel = tw.compile(spec)
    a = rows_of(5, 64, 3).astype(ml_dtypes.bfloat16)
    b, b2 = (drawn(form, 64, 48, seed) for seed in (4, 5))
    added = np.linspace(-1, 1, 48).astype(F32)
    got = kernel(a, kernel.pack_b(b), b2=kernel.pack_b(b2), bias=added)
    wide = a.astype(F32)
    with np.errstate(over="ignore"):
        expected = np.maximum(right(wide, b, spec.a) + added, F32(0))
        expected *= right(wide, b2, spec.a)
    assert (got.view(np.uint16) == expected.astype(ml_dtypes.bfloat16).view(np.uint16)).all()


def test_a_batch_is_summed_in_its_order() -> None:
    form = tw.Quantized("s8", scale="f32", block=16)
    batch = tw.Strided(3)
    a_type = tw.Quantize(per=("row", 16))
    spec = tw.Gemm(4, 20, 40, a=a_type, b=tw.Packed(form), batch=batch)
    kernel = tw.compile(spec)
    a = np.stack([rows_of(4, 40, seed) for seed in range(3)])
    parts = [drawn(form, 40, 20, seed) for seed in range(3)]
    b = QuantizedMatrix(form, np.stack([p.q for p in parts]), np.stack([p.scales for p in parts]))
    expected: Array | None = None
    for matrix, part in zip(a, parts, strict=True):
        expected = right(matrix, part, a_type, expected)
    assert expected is not None and same(kernel(a, kernel.pack_b(b)), expected)


@pytest.mark.parametrize("target", ["avx2", "neon+dotprod", "scalar"])
def test_matrices_by_their_addresses_are_summed_in_their_order(target: str, cases: Cases) -> None:
    for form in (FORMATS[6], FORMATS[13]):
        batch = tw.Addresses(tw.dim("count"))
        spec = tw.Gemm(3, 20, 96, a=tw.Quantize(per=form.per), b=tw.Packed(form), batch=batch)
        kernel = tw.compile(spec, target=target)
        a = [rows_of(3, 96, seed) for seed in range(3)]
        parts = [drawn(form, 96, 20, seed) for seed in range(3)]
        expected = np.zeros((3, 20), F32)
        for matrix, part in zip(a, parts, strict=True):
            expected += right(matrix, part, spec.a)
        packed = [kernel.pack_b(part) for part in parts]
        assert same(kernel(a, packed), expected)
        kernel.verify(cases=2)
        cases.count(target, kernel.emulated or "native", 3)


def test_by_addresses_with_all_around_it() -> None:
    """A second B, C that is added to, threads; and A of floating point."""
    form, count = FORMATS[6], tw.Addresses(tw.dim("count"))
    packed = tw.Packed(form)
    for spec in (
        tw.Gemm(M, 20, 70, a="bf16", b=packed, batch=count, beta=1, c="bf16"),
        tw.Gemm(3, 20, 70, a=tw.Quantize(per=form.per), b=packed, batch=count, b2=packed,
                epilogue=tw.relu(tw.acc) * tw.acc2, d="bf16"),
    ):  # fmt: skip
        tw.compile(spec, tw.Schedule(threads=2)).verify(cases=3)
    with pytest.raises(ScheduleError, match="found once for each matrix"):
        tw.compile(spec, tw.Schedule(loops="nmbk"))


# --- the format --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["avx512+vnni", "neon", "rvv256", "scalar"])
def test_bytes_lie_as_the_format_says(target: str) -> None:
    for index, form in enumerate(FORMATS):
        k, n = 3 * (form.along or 70) - 5, 37
        a = tw.Quantize(per=form.per)
        made = quantized_format(tw.Gemm(M, n, k, a=a, b=tw.Packed(form)), resolve(target))
        assert format_named(made.text) == made
        b = drawn(form, k, n, index)
        data = quantized_bytes(b, made)
        assert data.size == made.nbytes
        for row, column in ((0, 0), (1, 0), (made.group, 1), (k - 1, n - 1), (k // 2, n // 2)):
            assert _element(made, data, row, column) == b.q[row, column]
            unit = 0.5 if form.type == "f4_e2m1" else 1
            scale = float(b.scales[row // form.block_of(k), column // form.columns])
            scale = 2.0 ** (scale - 127) if form.scale == "e8m0" else scale
            assert float(_scale(made, data, row, column)) == scale * unit


def _element(form: QuantizedFormat, data: Array, k: int, n: int) -> int:
    """One element, by the order that the format's docstring states."""
    panel, column = divmod(n, form.nb)
    block, within = divmod(k, form.block)
    group, place = divmod(within, form.group)
    groups, bits = form.block // form.group, int(form.type[1])
    fields = {3: 8, 5: 8, 6: 4}.get(bits, 8 // bits)
    unit, index = divmod(group, fields)
    there = min(fields, groups - unit * fields)
    start = panel * form.block_elements + block * (form.block_elements // form.k_blocks)
    line, field, up = unit * fields * bits // 8, 0, 0
    for width in (w for w in (8, 4, 2, 1) if bits & w):
        byte, part = divmod(index, 8 // width)
        at = start + ((line + byte) * form.nb + column) * form.group + place
        field |= (int(data[at]) >> (width * part) & (1 << width) - 1) << up
        line, up = line + -(-there * width // 8), up + width
    if form.fields == 1 and form.stored == "s8":
        field = int(np.int8(np.uint8(field)))
    return field if form.type == "f4_e2m1" else field - form.shift


def _scale(form: QuantizedFormat, data: Array, k: int, n: int) -> Any:
    block, column = divmod(n, form.nb)
    scales = data[form.scales_at :].view(DTYPES[form.scale])
    return scales[(block * form.k_blocks + k // form.block) * form.nb + column]


def test_a_packed_matrix_is_saved_and_loaded(tmp_path: Path) -> None:
    form = FORMATS[0]
    spec = tw.Gemm(M, 20, 64, a=tw.Quantize(per=("row", 32)), b=tw.Packed(form))
    kernel = tw.compile(spec)
    packed = kernel.pack_b(drawn(form, 64, 20, 0))
    packed.save(tmp_path / "b")
    a = rows_of(3, 64, 0)
    assert (kernel(a, tw.PackedMatrix.load(tmp_path / "b")) == kernel(a, packed)).all()


def test_dequantize() -> None:
    b = drawn(FORMATS[5], 100, 3, 0)
    for row, column in ((0, 0), (71, 1), (72, 2), (99, 0)):
        number = F32(int(b.q[row, column]) + 3) * F32(b.scales[row // 72, column])
        assert b.dequantize()[row, column] == number


# --- what is refused ---------------------------------------------------------------------------

_ANY: Any = tw  # what a type checker refuses, too
_U4 = tw.Packed(tw.Quantized("u4", block=32))
_ZEROS = tw.Packed(tw.Quantized("u8", zero="u8"))
_A = tw.Quantize(per=("row", 32))
_BAD: Any = (
    (lambda: _ANY.Quantized("u7"), "unknown type of stored elements"),
    (lambda: _ANY.Quantized("u4", scale="f64"), "scales cannot have this type"),
    (lambda: _ANY.Quantized("u4", zero=16), "one of their numbers"),
    (lambda: _ANY.Quantized("u4", zero=0.5), "one of their numbers"),
    (lambda: _ANY.Quantized("u4", block=12), "a multiple of 8"),
    (lambda: _ANY.Quantized("u5", block=72), "must be whole bytes"),
    (lambda: _ANY.Quantized("u4", block=1 << 17), "a multiple of 8"),
    (lambda: _ANY.Quantized("u4", block=(32, 0)), "the columns of a block"),
    (lambda: _ANY.Quantized("u4", block=(32, 8, 8)), "elements of K, or those by so many columns"),
    (lambda: _ANY.Quantized("u8", zero="u8", block=520), "too long"),
    (lambda: _ANY.Gemm(2, 2, 32, a=tw.Quantize(), b=tw.Packed(REALS[0])), "numbers of f8_e4m3"),
    (lambda: _ANY.Quantized("f8_e4m3", zero="f8_e4m3"), "unknown type of zeros"),
    (lambda: _ANY.Gemm(2, 2, 520, a=tw.Quantize(), b=_ZEROS), "too long"),
    (lambda: _ANY.Gemm(2, 2, 272, a=tw.Quantize(zero="s8"), b=_ZEROS), "for an A with zero points"),
    (lambda: _ANY.Quantize("s8"), "must be floating point"),
    (lambda: _ANY.Quantize(per=("column", 32)), "a row or to a block of one"),
    (lambda: _ANY.Quantize(zero="u8"), "zero points of A have another type"),
    (lambda: _ANY.Gemm(2, 2, 32, a="u16", b=_U4), "does not meet an A of this type"),
    (lambda: _ANY.Gemm(2, 2, 32, a=tw.Matrix("u8", "F"), b=_U4), "lie in rows"),
    (lambda: _ANY.Gemm(2, 2, 32, b=_U4, a_zero=3), "no zero point beside them"),
    (lambda: _ANY.Gemm(2, 2, 32, a=_A, b=_U4, a_zero="row"), "no zero point beside them"),
    (lambda: _ANY.Gemm(2, 2, 32, a="s8", b=_U4, a_zero=128), "must be a number of A's type"),
    (lambda: _ANY.Gemm(2, 2, 32, a="s8", b=_U4, a_zero=128.0), "must be a number of A's type"),
    (lambda: _ANY.Gemm(2, 2, 32, a="u8", b=_U4, a_zero=-1), "must be a number of A's type"),
    (lambda: _ANY.Gemm(2, 2, 272, a="s8", b=_ZEROS, a_zero=1), "for an A with zero points"),
    (lambda: _ANY.Gemm(2, 2, 272, a="u8", b=_ZEROS), "for an A with zero points"),
    (lambda: _ANY.Gemm(2, 2, 32, a=_A, b="s8"), "A is quantized by the kernel, and B is not"),
    (lambda: _ANY.Gemm(2, 2, 32, a=tw.Quantize(per=("row", 64)), b=_U4), "blocks of other lengths"),
    (lambda: _ANY.Gemm(2, 2, 32, a=_A, b=_U4, b_zero=3), "no zero point beside them"),
    (lambda: _ANY.Gemm(2, 2, 32, a=_A, b=_U4, c=_A), "only A is quantized"),
    (lambda: _ANY.Gemm(2, 2, M, a=_A, b=_U4), "fixed sizes"),
    (lambda: _ANY.Gemm(2, 2, 32, a=_A, b=_U4, c="s32"), "C cannot have this type"),
)


@pytest.mark.parametrize("case", range(len(_BAD)))
def test_specs_that_mean_nothing(case: int) -> None:
    make, said = _BAD[case]
    with pytest.raises(SpecError, match=said):
        make()


def test_sets_of_accumulators_are_refused() -> None:
    with pytest.raises(ScheduleError, match="added in order"):
        tw.compile(tw.Gemm(2, 2, 32, a=_A, b=_U4), tw.Schedule(k_split=2))


def test_what_is_packed_must_fit() -> None:
    kernel = tw.compile(tw.Gemm(M, 5, 64, a=_A, b=_U4))
    q, scales = np.zeros((64, 5), np.uint8), np.ones((2, 5), F32)
    for given, scaled, said in (
        (q, None, "needs its scales"),
        (q.astype(F32), scales, "must be integers"),
        (q + 16, scales, "elements are none of u4"),
        (q, scales.T, "scales have the wrong shape"),
        (q, scales[:1], "one for each 32 elements"),
        (q, scales.astype(np.int32), "scales must be"),
        (q[:32], scales[:1], "b has the wrong shape"),
        (QuantizedMatrix(FORMATS[0], q, scales), None, "in another format"),
    ):
        with pytest.raises(ArgumentError, match=said):
            kernel.pack_b(given, scales=scaled)
    plain = tw.compile(tw.Gemm(M, 5, 64, b=tw.Packed("f32")))
    with pytest.raises(ArgumentError, match="none of its own"):
        plain.pack_b(np.zeros((64, 5), F32), scales=scales)


# --- around the kernels ------------------------------------------------------------------------


def test_the_test_program_of_the_emitted_c_passes(tmp_path: Path) -> None:
    text = tw.harness(tw.Gemm(3, 20, 64, a=_A, b=_U4), target="scalar", cases=2)
    source = tmp_path / "main.c"
    source.write_text(text)
    command = ["gcc", "-std=c11", str(source), "-o", str(tmp_path / "main"), "-lm"]
    subprocess.run(command, check=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pass: ")
