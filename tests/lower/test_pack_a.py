"""Products with an A that is packed ahead: its format, the calls, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError, SpecError
from tilewright.plan.formats.lookup import format_of_a
from tilewright.plan.formats.named import format_named
from tilewright.plan.formats.quantized_a import rows_format
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.arguments import samples
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim

M, N, K = dim("m"), dim("n"), dim("k")
ROWS, U4 = tw.Quantize(), tw.Quantized("u4", scale="f16", zero=8, block=32)
ZEROS, U8 = tw.Quantized("u4", zero="u4", block=32), tw.Quantized("u8", zero=100, block=64)
MINIMA = tw.Quantized("u4", zero="f16", block=32)
#: A and B packed or not, sizes of the call or not, shifts, groups, sums, and heights of all kinds.
CASES: Any = (
    ("scalar", Gemm(37, 20, 33, a=Packed("f32", mb=5))),
    ("avx2", Gemm(M, N, K, a=Packed("f32", mb=6), b=Packed("f32"))),
    ("avx2", Gemm(M, 19, K, a=Packed("bf16"), b="bf16", beta=1)),
    ("avx2+vnni", Gemm(M, N, 33, a=Packed("s8"), b="s8", a_zero=3, b_zero="column")),
    ("avx512+vnni+bf16", Gemm(37, 50, 33, a=Packed("s8"), b=Packed("s8"), d="u8", b_zero=2)),
    ("avx512+vnni+bf16", Gemm(M, N, K, a=Packed("bf16"), b=Packed("bf16"))),
    ("neon", Gemm(37, 20, K, a=Packed("s8", mb=4), b="s8")),
    ("neon+dotprod", Gemm(M, N, K, a=Packed("u8"), b=Packed("s8"))),
    ("avx2", Gemm(M, N, K, a=Packed("f32"), b="s8")),
    ("avx512+vnni+bf16", Gemm(M, N, K, a=Packed("f32"), b=Packed("f32"), math="bf16")),
    ("sve256", Gemm(M, 20, 33, a=Packed("f32"), b=tw.Matrix("f32", "F"))),
    ("neon+i8mm", Gemm(M, N, K, a=Packed("u8"), b=Packed("s8"))),
    ("sme", Gemm(37, 40, K, a=Packed("bf16"), b="bf16")),
    ("sme", Gemm(M, N, 33, a=Packed("s8"), b=Packed("s8"), a_zero=3)),
    ("power10", Gemm(M, N, K, a=Packed("f32"), b=Packed("f32"))),
    ("scalar", Gemm(3, 5, 40, a=Packed(ROWS), b=Packed(tw.Quantized("s8")))),
    ("avx2", Gemm(M, 20, 72, a=Packed(tw.Quantize("bf16", per=("row", 32))), b=Packed(U4))),
    ("avx512+vnni", Gemm(M, 19, 64, a=Packed(tw.Quantize(zero="s8")), b=Packed(MINIMA))),
    ("avx512+vnni", Gemm(5, 19, 64, a=Packed(ROWS), b=Packed(ZEROS), epilogue=tw.relu(tw.acc))),
    ("amx", Gemm(M, 33, 128, a=Packed(tw.Quantize(per=("row", 64))), b=Packed(U8), beta=1)),
    ("amx", Gemm(M, N, K, a=Packed("u8"), b=Packed("s8"), d="u8", a_zero=3, b_zero="column")),
    ("amx", Gemm(37, 33, 70, a=Packed("bf16"), b="bf16", d=Packed("bf16"))),
    ("avx2+vnni", Gemm(5, 9, 33, a=Packed("s8", mb=1), b="s8", b_zero="column")),
    ("neon+dotprod+i8mm", Gemm(7, 20, 64, a=Packed(ROWS), b=Packed(ZEROS))),
    ("sve256+i8mm", Gemm(M, 20, 64, a=Packed(ROWS), b=Packed(U4))),
    ("rvv256", Gemm(M, 9, 64, a=Packed(tw.Quantize("f16", zero="s8")), b=Packed(U4))),
)  # fmt: skip


@pytest.mark.parametrize(("target", "spec"), CASES, ids=str)
def test_a_packed_a_is_interpreted(target: str, spec: Gemm, cases: Cases) -> None:
    kernel = Interpreted(spec, Schedule(), resolve(target))
    for held in samples(spec, kernel.signature, 3, 1):
        kernel.run(held)
    cases.count(target, "interpreted")


@pytest.mark.twice
def test_a_packed_a_serves_all_kernels_of_its_format() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, size).astype(np.float32) for size in ((37, 70), (70, 101)))
    kernel = tw.compile(Gemm(M, N, K, a=Packed("f32", mb=8)))
    packed = kernel.pack_a(a)
    assert packed.shape == (37, 70)
    assert packed.format == "f32 as f32, 37x70 in groups of 1 along k, panels of 8 rows"
    assert (kernel(packed, b) == a @ b).all()
    fixed = tw.compile(Gemm(37, 101, 70, a=Packed("f32", mb=8), b=Packed("f32")))
    assert (fixed(packed, fixed.pack_b(b)) == a @ b).all()
    assert fixed.pack_a(np.asfortranarray(a)).format == packed.format
    assert kernel.verify(cases=4).cases >= 4
    with pytest.raises(ArgumentError, match="a is packed in another format"):
        fixed(kernel.pack_a(a[:36]), fixed.pack_b(b))
    with pytest.raises(ArgumentError, match="b has the wrong shape"):
        kernel(packed, b[:69])
    with pytest.raises(ArgumentError, match="a has the wrong shape"):
        fixed.pack_a(a.T)
    halves = tw.compile(Gemm(4, 3, 5, a=Packed("bf16"), b="bf16"))
    one = np.ones((4, 5), np.float32)
    ones = np.ones((5, 3), ml_dtypes.bfloat16)
    assert (halves(halves.pack_a(one), ones) == 5).all()


@pytest.mark.twice
def test_a_quantized_a_serves_all_kernels_of_its_format(tmp_path: Any) -> None:
    """The kernel reads what it would have made itself, so the bits are the same."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((9, 64)).astype(np.float32)
    w = tw.quantize(rng.standard_normal((64, 20)).astype(np.float32), U4)
    own = tw.compile(Gemm(M, 20, 64, a=ROWS, b=Packed(U4)))
    ahead, fixed = (tw.compile(Gemm(m, 20, 64, a=Packed(ROWS), b=Packed(U4))) for m in (M, 9))
    packed, b = ahead.pack_a(a), own.pack_b(w)
    assert packed.format == rows_format(fixed.spec, resolve("host")).text  # type: ignore[arg-type]
    assert packed.shape == (9, 64)
    packed.save(tmp_path / "a")
    packed = tw.PackedMatrix.load(tmp_path / "a")
    assert (ahead(packed, b) == own(a, b)).all() and (fixed(packed, b) == own(a, b)).all()
    assert (fixed.pack_a(np.asfortranarray(a)).data == packed.data).all()
    assert "packed before" in ahead.explain()
    assert tw.compile(tw.QuantizeRows(M, 64, ROWS, U4)).verify().max_error == 0
    others = tw.compile(Gemm(M, 20, 64, a=Packed(tw.Quantize(per=("row", 32))), b=Packed(U4)))
    with pytest.raises(ArgumentError, match="a is packed in another format"):
        others(packed, b)
    with pytest.raises(ArgumentError, match="a is packed in another format"):
        fixed(fixed.pack_b(w), b)
    for call, says in (
        (lambda: ahead.pack_a(a[:, :63]), "a has the wrong shape"),
        (lambda: ahead.pack_a(a.astype(float)), "pack_a takes an array of A's type"),
        (lambda: ahead(a, b), r"kernel\.pack_a\(a\)"),
        (lambda: own(packed, b), r"a=tw\.Packed\("),
        (lambda: tw.matmul(packed, b), "whose pack_a or pack_b made it"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()


def test_a_format_of_a_is_a_value() -> None:
    """It depends on target, types, m, k and mb alone, and its text gives it back."""
    target = resolve("avx512+vnni+bf16")
    one = format_of_a(Gemm(37, 5, 70, a=Packed("s8"), b="s8"), target)
    assert one == format_of_a(Gemm(37, N, 70, a=Packed("s8", mb=one.nb), b=Packed("s8")), target)
    assert one.text.endswith("in groups of 4 along k, panels of 8 rows and their sums")
    assert one == format_named(one.text)
    assert one.family == format_of_a(Gemm(M, N, K, a=Packed("s8"), b="s8"), target)
    assert one != format_of_a(Gemm(37, 5, 70, a=Packed("s8", mb=4), b="s8"), target)
    rows = rows_format(Gemm(37, 5, 64, a=Packed(tw.Quantize(zero="s8")), b=Packed(MINIMA)), target)
    assert rows == format_named(rows.text)
    assert rows.family == format_named(rows.text.replace("37x", "any mx"))
    assert rows.text == (
        "s8 rows with f32 scales and s32 zeros for each row, scaled sums, blocks of 32, 37x64"
    )


def test_a_large_b_is_packed_in_panels_beside_a_packed_a() -> None:
    """By default, and in a schedule; with sums that C cannot hold, and with tails of all kinds."""
    bias = tw.Operand("bias", "f32", per="column")
    spec = Gemm(129, 301, 1003, a=Packed("f32"), d="bf16", epilogue=tw.acc + bias)
    kernel = tw.compile(spec, target="avx2")
    assert (kernel.schedule.loops, dict(kernel.schedule.block)) == ("nkmnk", {"n": 48, "k": 256})
    assert kernel.verify(cases=1).cases == 1
    small = Gemm(13, 21, 33, a=Packed("f32", mb=5), b=tw.Matrix("f32", "F"), beta=1)
    panels = Schedule(loops="nkmnk", pack="b", block={"n": 8, "k": 16})
    one = Interpreted(small, panels, resolve("avx2"))
    one.run(one.sample(0, whole=True))


REFUSED: Any = (
    (lambda: Gemm(4, 4, 4, a=Packed("f32", 8)), SpecError, "A is packed in panels of rows"),
    (lambda: Gemm(4, 4, 4, a=Packed("f32"), batch=Strided(2)), SpecError, "that of one product"),
    (lambda: Gemm(4, 4, 4, c=Packed("f32")), SpecError, "A, B and D can be packed, not C"),  # type: ignore[arg-type]
    (lambda: Gemm(4, 4, 4, b=Packed("f32", mb=8)), SpecError, "B is packed in blocks of columns"),
    (
        lambda: Gemm(4, 4, 4, a=Packed("f32"), b="s8", b_zero=1),
        SpecError, "b_zero multiplies sums of A",
    ),
    (lambda: tw.Copy(4, 4, Packed("f32", mb=4)), SpecError, "in panels of rows"),
    (lambda: Gemm(4, 4, 32, a=Packed(ROWS, mb=4), b=Packed(U4)), SpecError, "row by row"),
    (lambda: Gemm(4, 4, 32, a=Packed(ROWS)), SpecError, "quantized by the kernel, and B is not"),
    (lambda: Gemm(4, 4, 32, a=Packed("f32"), b=Packed(U4)), SpecError, "B has block scales"),
    (lambda: Gemm(4, 4, 32, b=Packed(ROWS)), SpecError, "B is packed in blocks"),
    (lambda: Packed("f32", mb=0), SpecError, "mb, the rows of a panel"),
    (
        lambda: tw.compile(Gemm(32, 32, 64, a=Packed("bf16", mb=4), b="bf16"), target="amx"),
        SpecError, "reads a packed A row by row",
    ),
    (
        lambda: tw.compile(Gemm(32, 32, 64, a=Packed("s8", mb=6), b="s8"), target="neon+i8mm"),
        SpecError, "4 rows of A at a time",
    ),
    (
        lambda: tw.compile(Gemm(64, 8, 8, a=Packed("f32", mb=8)),
                           Schedule(loops="mnmk", block={"m": 12})),
        ScheduleError, "panels of rows of a packed A would be cut",
    ),
    (lambda: tw.compile(Gemm(4, 4, 4)).pack_a(np.eye(4)), SpecError, "takes no packed A"),
)  # fmt: skip


@pytest.mark.parametrize(("make", "error", "says"), REFUSED, ids=[each[2] for each in REFUSED])
def test_what_makes_no_sense_is_refused(make: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        make()
