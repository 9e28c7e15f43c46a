"""Products whose D is stored packed, as the A of the next product; formats that a spec gives."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cases import Cases
from support.products.interpreted import Interpreted

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError, TargetError, VerificationError
from tilewright.plan.formats.lookup import format_of_a, formats_of
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.arguments import samples
from tilewright.runtime.reference.packed_d import packed_expected
from tilewright.runtime.reference.verify import right_results
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Packed, Strided
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim

M, N, K = dim("m"), dim("n"), dim("k")
BIAS = tw.Operand("bias", "f32", per="column")
ROWS, U4 = tw.Quantize(), tw.Quantized("u4", scale="f16", zero=8, block=32)
MINIMA = tw.Quantized("u4", zero="f16", block=32)
F32 = "f32 as f32, any size in groups of 1 along k, panels of 4 rows"
PAIRS, SIZED = F32.replace("of 1", "of 2"), F32.replace("any size", "9x5")
#: Every kind of group, sums of rows, shifts, tails, and of nests: rows in blocks or not, with K in
#: blocks, in panels, shared by threads; and everything that may follow the sums.
CASES: Any = (
    ("scalar", Gemm(37, 20, 33, d=Packed("f32", mb=5)), {}),
    ("avx2", Gemm(M, 19, K, a="bf16", d=Packed("bf16"), beta=1, epilogue=tw.acc + BIAS), {}),
    ("avx2", Gemm(100, 41, 50, d=Packed("f32")), {"tails": "bounce"}),
    ("avx2+vnni", Gemm(M, N, 33, a="s8", d=Packed("s8"), a_zero=3, d_scale="scalar"), {}),
    ("avx512+vnni+bf16", Gemm(M, N, K, a=Packed("bf16"), b=Packed("bf16"), d=Packed("bf16")), {}),
    ("avx512", Gemm(50, 20, 10, d=Packed("f32"), outputs={"top": tw.row_absmax(tw.acc)}), {}),
    ("avx512", Gemm(9, 20, 0, d=Packed("f32", mb=8), batch=Strided(3)), {}),
    ("avx512", Gemm(M, N, 9, a="u8", d=Packed("u8", b="s8")), {"threads": 2}),
    ("avx512", Gemm(40, 40, 50, d=Packed("f32")),
     {"loops": "nkMmnk", "pack": "ab", "block": {"m": 16, "n": 16, "k": 20}}),
    ("avx512", Gemm(64, 40, 50, a="bf16", d=Packed("bf16", mb=8)),
     {"loops": "Mnkmnk", "block": {"m": 16, "n": 16, "k": 20}}),
    ("avx512+fp16", Gemm(M, 41, 50, a="f16", c="f16", d=Packed("f16")), {"loops": "NMk"}),
    ("amx", Gemm(40, 33, 128, a="bf16", d=Packed("f32")), {}),
    ("neon", Gemm(37, 20, K, a="s8", d=Packed("s8", mb=4), d_scale=3), {}),
    ("neon+i8mm", Gemm(M, N, 20, a="u8", b="s8", d=Packed("u8"), d_scale=0.5), {}),
    ("sve256", Gemm(M, 20, 33, b=tw.Matrix("f32", "F"), d=Packed("f32")), {}),
    ("sme", Gemm(37, 40, K, a="bf16", d=Packed("bf16")), {}),
    ("power10", Gemm(M, N, 20, d=Packed("f32"), order="F"), {}),
    ("rvv256", Gemm(M, 20, 64, a=tw.Quantize("f16"), b=Packed(U4), d=Packed("f16")), {}),
    ("avx2", Gemm(M, 72, 9, d=Packed(tw.Quantize("bf16", per=("row", 32)), b=U4)), {}),
    ("avx512+vnni", Gemm(M, 64, K, d=Packed(tw.Quantize(zero="s8"), b=MINIMA)), {"threads": 2}),
    ("neon+i8mm", Gemm(9, 64, 64, a=ROWS, b=Packed(U4), d=Packed(ROWS, b=U4)), {}),
)  # fmt: skip


@pytest.mark.parametrize(("target", "spec", "schedule"), CASES, ids=str)
def test_a_packed_d_is_interpreted(
    target: str, spec: Gemm, schedule: dict[str, Any], cases: Cases
) -> None:
    """Elements are numpy's, and all other bytes are those that ``pack_a`` writes."""
    kernel = Interpreted(spec, Schedule(**schedule), resolve(target))
    for held in samples(spec, kernel.signature, 2, 1):
        kernel.run(held)
    cases.count(target, "interpreted")


@pytest.mark.twice
def test_the_next_kernel_takes_a_packed_d() -> None:
    """Integers with the sums of rows, sizes of the call, and threads; floats after an epilogue."""
    rng = np.random.default_rng(0)
    a, b, w = (rng.integers(-4, 5, size).astype(np.int8) for size in ((301, 33), (33, 20), (20, 7)))
    last = tw.compile(Gemm(M, 7, K, a=Packed("u8"), b="s8"))
    first = tw.compile(
        Gemm(M, 20, 33, a="s8", d=Packed("u8", format=last.formats["a"]), d_zero=90),
        Schedule(threads=2),
    )
    hidden = first(a, b)
    plain = (a.astype(int) @ b + 90).clip(0, 255).astype(np.uint8)
    right = last.pack_a(plain)
    assert isinstance(hidden, tw.PackedMatrix) and hidden.shape == (301, 20)
    assert hidden.format == right.format and (hidden.data == right.data).all()
    assert (last(hidden, w) == plain.astype(int) @ w).all()
    out = np.zeros((1, right.nbytes), np.uint8)
    assert first(a, b, out=out) is out and (out[0] == right.data).all()
    with pytest.raises(ArgumentError, match="d has the wrong shape"):
        first(a, b, out=out[:, 1:].copy())
    with pytest.raises(SpecError, match="numba cannot check the bytes"):
        _ = first.numba
    again = pickle.loads(pickle.dumps(first))
    assert (again(a, b).data == right.data).all()
    relu, rows, reads = tw.compile_many([
        Gemm(37, 20, 33, a="bf16", d=Packed("bf16"), epilogue=tw.relu(tw.acc), beta=1,
             outputs={"top": tw.row_max(tw.acc)}),
        Gemm(M, 64, 33, a="s8", d=Packed(ROWS, b=U4)),
        Gemm(M, 9, 64, a=Packed(ROWS), b=Packed(U4)),
    ])  # fmt: skip
    b = rng.integers(-4, 5, (33, 64)).astype(np.int8)
    assert (rows(a, b).data == reads.pack_a(a.astype(np.float32) @ b).data).all()
    assert relu.verify(cases=2).cases == 2
    assert "D packed" in relu.explain()
    halves = [np.ones(size, ml_dtypes.bfloat16) for size in ((37, 33), (33, 20))]
    other, _ = relu(*halves, c=np.ones((37, 20), np.float32))
    with pytest.raises(ArgumentError, match=r"another format(?s:.*)bf16 as (?s:.*)expected: u8 as"):
        last(other, w)


@pytest.mark.twice
def test_a_packed_d_runs_in_an_emulator(cases: Cases) -> None:
    spec = Gemm(M, 20, 33, a="u8", b="s8", d=Packed("u8"), d_scale=0.5)
    kernel = tw.compile(spec, target="neon+dotprod")
    kernel.verify(cases=2)
    cases.count("neon", "qemu" if kernel.emulated else "native", 2)


def test_a_format_is_given() -> None:
    """Two kernels agree by the text of a format, or are refused with both formats."""
    target = resolve("avx512+vnni+bf16")
    last = Gemm(37, 5, 20, a=Packed("u8"), b="s8")
    form = format_of_a(last, target)
    for given in (form.text, form.family.text):
        assert formats_of(Gemm(37, 20, 9, d=Packed("u8", format=given)), target)["d"] == form
        assert (
            formats_of(Gemm(37, 5, 20, a=Packed("u8", format=given), b="s8"), target)["a"] == form
        )
    assert formats_of(Gemm(37, 20, 9, d=Packed("u8", b="s8")), target)["d"] == form
    assert formats_of(Gemm(M, 20, 9, d=Packed("u8", format=form.text)), target)["d"] == form.family
    assert formats_of(Gemm(37, 20, 9, d=Packed("u8")), target)["d"] != form
    assert repr(Packed("u8", format=form.text)) == f"Packed('u8', format={form.text!r})"
    weights = formats_of(Gemm(4, 40, 33, a="u8", b=Packed("s8")), target)["b"]
    assert (
        formats_of(Gemm(9, 40, 33, a="u8", b=Packed("s8", format=weights.text)), target)["b"]
        == weights
    )


def test_wrong_bytes_are_found() -> None:
    """In elements, in padding, and in sums; the bytes that C programs compare are right ones."""
    spec, target = (
        Gemm(5, 3, 4, a="u8", b="s8", d=Packed("u8", mb=4, b="s8")),
        resolve("avx512+vnni"),
    )
    kernel = Interpreted(spec, Schedule(), target)
    held = next(samples(spec, kernel.signature, 1, 0))
    kernel.run(held)
    right, got = right_results(spec, target, kernel.signature, held)["d"], held.arrays[-1]
    form: Any = formats_of(spec, target)["d"]
    assert not right.wrong(got).any()
    inner: Any = right.elements  # type: ignore[attr-defined]
    for byte in (form.offset(3, 0), form.sums_at, form.sums_at + 4 * 7):
        wrong = got.copy()
        wrong[0, byte] += 1
        assert right.wrong(wrong).sum() == 1
        with pytest.raises(VerificationError, match="of a packed D is wrong"):
            packed_expected(inner, spec, target).shown(wrong)


def _compiled(spec: Gemm, target: str) -> Any:
    return tw.compile(spec, target=target)


REFUSED: Any = (
    (lambda: Gemm(4, 4, 4, d=Packed("f32", 8)), "D is packed in panels of rows"),
    (lambda: Gemm(4, 4, 4, d=Packed(U4)), "D is packed in panels of rows"),
    (lambda: Gemm(4, 4, 4, a="u8", b="s8", d=Packed("s32")), "cannot have this type"),
    (lambda: Gemm(4, 4, 4, d=Packed("f32"), ldd=8), "d is packed"),
    (lambda: Gemm(4, 4, 4, d=Packed("f32"), epilogue=tw.acc + tw.dst), "only written"),
    (lambda: Gemm(4, 4, 4, d=Packed("f32"), batch=Strided(2, c=None)), "of one product"),
    (lambda: Gemm(4, 4, 4, a=Packed("f32", b="f32")), "the product decides"),
    (lambda: Gemm(4, 32, 4, d=Packed(ROWS)), "packed row by row, for a B with block scales"),
    (lambda: Gemm(4, N, 4, d=Packed(ROWS, b=U4)), "fixed number of columns"),
    (lambda: Packed("f32", format="f32 as f32"), "no packed format without scales(?s:.*)for f32"),
    (
        lambda: Packed("f64", format=F32),
        r'of f64, but its format holds elements of f32(?s:.*)expected: "f64 as f64',
    ),
    (lambda: Packed("f32", mb=8, format=F32), "says all of its sizes"),
    (lambda: _compiled(Gemm(4, 4, 4, d=Packed("f32", b="f64")), "avx2"), "no product has an A"),
    (
        lambda: _compiled(Gemm(4, 4, 4, d=Packed("f32", format=PAIRS)), "avx2"),
        r"D is packed in another format(?s:.*)groups of 2(?s:.*)expected: (?s:.*)groups of 1 ",
    ),
    (
        lambda: _compiled(Gemm(4, 4, 4, a=Packed("f32", format=SIZED)), "avx2"),
        r"A is packed in another format(?s:.*)9x5(?s:.*)expected: (?s:.*)4x4",
    ),
    (
        lambda: _compiled(Gemm(M, 4, 4, d=Packed("f32", format=SIZED)), "avx2"),
        r"D is packed in another format(?s:.*)9x5",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("make", "says"), REFUSED, ids=[each[1] for each in REFUSED])
def test_what_makes_no_sense_is_refused(make: Any, says: str) -> None:
    with pytest.raises((SpecError, TargetError), match=says):
        make()
