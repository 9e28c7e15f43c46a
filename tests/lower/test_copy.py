"""Copies between layouts and types: interpreted on each target, compiled, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.specimens import VECTOR_TARGETS
from support.spellings.arithmetic import halfway

import tilewright as tw
from tilewright.errors import ScheduleError, SpecError
from tilewright.generate import interpret_kernel, plan_for
from tilewright.plan.formats.lookup import formats_of
from tilewright.runtime.arrays.elements import INTEGERS, decode, encode
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.copy import copied
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.operands import Matrix, Packed
from tilewright.spec.pack import Copy
from tilewright.spec.schedule import Schedule
from tilewright.spec.types import ITEMSIZE, is_integer

FLOATS, WHOLES = ("f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"), ("s8", "u8", "s16", "u16", "s32")
EVERY = (*VECTOR_TARGETS, "sme")


#: The conversions from and to types of 64 bits.
WIDE = [("f64", made) for made in ("f32", *WHOLES)]
WIDE += [(source, "f64") for source in (*FLOATS, *WHOLES)]
WIDE += [("s64", made) for made in WHOLES] + [(source, "s64") for source in WHOLES]


def layouts(type_: Any) -> list[Any]:
    least = max(32, 8 * ITEMSIZE[type_])
    plain = Matrix(type_), Matrix(type_, "F")
    return [*plain, Packed(type_, bits=least), Packed(type_, 16, bits=64)]


def specs() -> list[Copy]:
    """Each type from each layout to each other one; and each pair of types once or more."""
    found = []
    pairs = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)]
    pairs += [(0, 0), (1, 1), (0, 3), (3, 0), (3, 3)]
    sizes = [(11, 21), (64, 48), (1, 5), (33, 16), (70, 3)]
    types = (*FLOATS, *WHOLES)
    for index, (one, other) in enumerate((a, d) for a in types for d in types):
        some = pairs if one == other else [pairs[index % len(pairs)]]
        for number, (source, made) in enumerate(some):
            rows, cols = sizes[(index + number) % len(sizes)]
            found.append(Copy(rows, cols, layouts(one)[source], layouts(other)[made]))
    for number, (one, other) in enumerate(WIDE):
        source, made = pairs[number % len(pairs)]
        rows, cols = sizes[(number + source) % len(sizes)]
        found.append(Copy(rows, cols, layouts(one)[source], layouts(other)[made]))
    wide = [Copy(9, 14, Matrix("f64", order), Matrix("f64")) for order in ("C", "F")]
    wide += [Copy(9, 14, Matrix("s64", "F"), Packed("s64", 8, bits=64))]
    wide += [Copy(9, 14, "f32", Packed("bf16")), Copy(9, 21, "s8", Packed("s8"))]
    return [*found, *wide, Copy(90, 1, "u8", Packed("u8"))]


def given(spec: Copy, forms: Any, rng: np.random.Generator) -> Any:
    """The elements of A: some beyond the range of D. A packed A has anything for padding."""
    type_ = spec.type_of("a")
    if "a" in forms:
        form = forms["a"]
        values = rng.integers(0, 100, (1, form.nbytes // form.itemsize))
        return encode(values, form.stored).view(np.uint8)
    assert isinstance(spec.a, Matrix)
    shape: Any = (spec.rows, spec.cols)
    if is_integer(type_):
        low, high = INTEGERS[type_]
        most = 2**33 if type_ == "s64" else 70000
        values = rng.integers(max(low, -most), min(high, most), shape, endpoint=True)
    else:
        high = 20 if isinstance(spec.d, Matrix) else 4  # the bits of a NaN are not compared
        values = rng.standard_normal(shape) * np.exp2(rng.integers(-12, high, shape))
        if type_ == "f64" and isinstance(spec.d, Matrix):
            values = np.where(values < 0, values, rng.choice(halfway(), shape))
    return np.array(encode(values, type_).view(DTYPES[type_]), order=spec.a.order)


@pytest.mark.parametrize("name", EVERY)
def test_the_interpreter_agrees_with_numpy(name: str, cases: Cases) -> None:
    target, rng = resolve(name), np.random.default_rng(0)
    every = specs()
    first = EVERY.index(name) % 4
    for spec in every[first::4]:
        forms = formats_of(spec, target)
        a, type_ = given(spec, forms, rng), spec.type_of("d")
        right = copied(spec, target, a)
        if "d" in forms:
            d = np.full((1, forms["d"].nbytes), 0xA5, np.uint8)
            interpret_kernel(spec, Schedule(), target, [a, d])
            np.testing.assert_array_equal(d, right, str(spec))
        else:
            d = np.zeros(right.shape, DTYPES[type_], order=spec.d.order)  # type: ignore[union-attr]
            interpret_kernel(spec, Schedule(), target, [a, d])
            np.testing.assert_array_equal(decode(d, type_), decode(right, type_), str(spec))
        cases.count(target.name, "interpreted")


def nibbles(values: Any, order: str) -> Any:
    """The bytes that hold ``values``, two in each; the high bits of a last one are all 1."""
    lines = values if order == "C" else values.T
    odd = lines.shape[1] % 2
    lines = np.pad(lines, ((0, 0), (0, odd)), constant_values=15).astype(np.uint8) & 15
    held = lines[:, ::2] | lines[:, 1::2] << 4
    return np.ascontiguousarray(held) if order == "C" else np.asfortranarray(held.T)


MADE: list[Any] = [
    Matrix("s8"), Matrix("u8", "F"), Matrix("f32"), Matrix("f16", "F"), Matrix("s32"),
    Packed("s8", bits=32), Packed("bf16", 16, bits=64), Packed("f32", 8, bits=32), Packed("u8"),
    Packed("s8"), Packed("s8", 32), Packed("bf16"),
]  # fmt: skip
NIBBLES = [(type_, order, made) for made in MADE for type_ in ("s4", "u4") for order in "CF"]


@pytest.mark.parametrize("name", EVERY)
def test_nibbles_are_converted_like_bytes(name: str, cases: Cases) -> None:
    target, rng = resolve(name), np.random.default_rng(0)
    for index, (type_, order, made) in enumerate(NIBBLES):
        if (index // 4 + index + EVERY.index(name)) % 4:
            continue
        rows, cols = [(37, 51), (1, 7), (90, 1), (64, 96)][index // 3 % 4]
        low, plain = (-8, "s8") if type_ == "s4" else (0, "u8")
        values = rng.integers(low, low + 16, (rows, cols)).astype(DTYPES[plain])
        spec = Copy(rows, cols, Matrix(type_, order), made)  # type: ignore[arg-type]
        a, forms = nibbles(values, order), formats_of(spec, target)
        whole = Matrix(plain, order)  # type: ignore[arg-type]
        right = copied(Copy(rows, cols, whole, made), target, values)
        np.testing.assert_array_equal(copied(spec, target, a), right)
        d = np.ones(right.shape, right.dtype, order=getattr(made, "order", "C"))
        interpret_kernel(spec, Schedule(), target, [a, d])
        held = "u8" if "d" in forms else spec.type_of("d")
        np.testing.assert_array_equal(decode(d, held), decode(right, held), str(spec))
        cases.count(target.name, "interpreted")


M, N, LD = tw.dim("m"), tw.dim("n"), tw.dim("lda")
COMPILED = [
    ("host", Copy(37, 70, "u8", Matrix("u8", "F"))),
    ("host", Copy(M, N, Matrix("bf16", "F"), "f32", lda=LD)),
    ("avx2", Copy(M, N, "s16", Matrix("s8", "F"))),
    ("avx2", Copy(8, 24, Packed("s8"), "s8")),
    ("avx2", Copy(90, 1, "u8", Packed("u8"), lda=3)),
    ("neon", Copy(19, 21, Matrix("f16", "F"), Packed("f16", 8, bits=64))),
    ("scalar", Copy(5, 6, Packed("s8", bits=32), "u8")),
    ("host", Copy(M, 70, "s4", "f32", lda=80)),
    ("avx2", Copy(33, 50, Matrix("u4", "F"), Packed("s8"))),
    ("neon", Copy(19, 21, "s4", Packed("f16", 8, bits=64))),
    ("host", Copy(M, N, Matrix("f16", "F"), "f64", lda=LD)),
    ("avx2", Copy(19, 50, Packed("f64", 8, bits=64), Matrix("s8", "F"))),
    ("scalar", Copy(M, 7, "s64", "u8")),
]


@pytest.mark.twice
@pytest.mark.parametrize(("target", "spec"), COMPILED, ids=str)
def test_compiled_copies(target: str, spec: Copy, cases: Cases) -> None:
    kernel = tw.compile(spec, target=target)
    assert kernel.verify(cases=2).max_error == 0
    cases.count(target, "compiled")


@pytest.mark.twice
@pytest.mark.parametrize("target", ["avx512", "avx2", "scalar", "neon", "rvv256"])
def test_doubles_are_rounded_once(target: str, cases: Cases) -> None:
    x = halfway()[:4500].reshape(90, 50)
    narrow: Any = tw.compile(Copy(90, 50, Matrix("f64", "F"), "f32"), target=target)(
        np.asfortranarray(x)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        right = x.astype(np.float32)
    same = (narrow.view(np.uint32) == right.view(np.uint32)) | (np.isnan(narrow) & np.isnan(right))
    assert same.all(), x[~same][:4]
    assert np.isinf(right).any() and np.isnan(right).any() and (np.abs(right) < 1e-38).any()
    cases.count(target, "compiled")


@pytest.mark.twice
def test_a_copy_there_and_back() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (33, 50)).astype(np.int8)
    packed = tw.compile(Copy(33, 50, "s8", Packed("s8", 16, bits=32)))(x)
    assert isinstance(packed, tw.PackedMatrix)
    assert packed.format == "s8 as s8, 33x50 in groups of 4 along k, blocks of 16 columns"
    back = tw.compile(Copy(33, 50, packed.format, Matrix("f32", "F")))
    y = back(packed)
    np.testing.assert_array_equal(x, y)
    assert y.flags.f_contiguous and back(packed, out=y) is y
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(back))(packed), x)
    assert "A (packed)" in back.explain() and back.bench(seconds=0.01).median > 0
    with pytest.raises(tw.ArgumentError, match="packed in another format"):
        back(tw.compile(Copy(33, 50, "s8", Packed("s8", bits=32)))(x))


def test_copy_to_the_format_of_a_product_is_pack_b() -> None:
    x = np.random.default_rng(0).integers(-128, 128, (33, 50)).astype(np.int8)
    kernel = tw.compile(tw.Gemm(4, 50, 33, a="u8", b=Packed("s8")))
    packed = kernel.pack_b(x)
    again: Any = tw.compile(Copy(33, 50, "s8", packed.format))(x)
    assert again.format == packed.format
    np.testing.assert_array_equal(again.data, packed.data)


REFUSED: list[tuple[Any, str]] = [
    (lambda: Copy(4, 4, "f64", "bf16"), "of 64 bits does not exist.*f64 to bf16.*rounds twice"),
    (lambda: Copy(4, 4, "s64", "f32"), "of 64 bits does not exist.*s64 to f32.*s32 first"),
    (lambda: Copy(4, M, "s8", Packed("s8", bits=32)), "a packed matrix has fixed sizes"),
    (lambda: Copy(4, 4, "s8", Packed("s8", bits=32), ldd=8), "ldd is given, but d is packed"),
    (lambda: Copy(4, 5, lda=4), "lda is smaller"),
    (lambda: Copy(4, 4, "s8 as s8, 4x5 in groups of 4 along k, a column"), "that of another size"),
    (lambda: Copy(4, 4, "no format"), "is no packed format"),
    (lambda: Copy(4, 4, Packed(tw.Quantized("u4", scale="f32", block=8))), "low-bit matrix"),
    (lambda: Copy(4, 4, "s8", "u4"), "only the input of a copy is a matrix of nibbles"),
    (lambda: Copy(4, N, "u4"), "lines of nibbles have a fixed length"),
    (lambda: Copy(N, 4, "u4", lda=5), "lines of nibbles begin at whole bytes"),
    (lambda: tw.Gemm(4, 4, 4, d=Matrix("u4")), "cannot be a matrix of nibbles.*tw.Copy reads"),
    (lambda: Packed("f64", bits=32), "a group of elements cannot have these bits"),
    (lambda: tw.Gemm(4, 4, 4, b=Packed("f32", bits=32)), "bits are for tw.Copy"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){says}"):
        make()


def test_a_copy_has_no_schedule_and_sums_need_a_plain_source() -> None:
    target = resolve("avx2")
    with pytest.raises(ScheduleError, match="a copy has nothing to schedule"):
        plan_for(Copy(4, 4), Schedule(tile=(4, 4)), target)
    with pytest.raises(SpecError, match="blocks of an odd number of columns"):
        plan_for(Copy(4, 14, "u4", Packed("s8", 7, bits=32)), Schedule(), target)
    with pytest.raises(SpecError, match="not packed again with the sums"):
        plan_for(Copy(8, 8, Packed("s8", bits=32), Packed("s8")), Schedule(), target)
