"""What packs elements of few bits in C: the bytes that numpy makes, on every target."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases
from support.compilers import TARGETS

import tilewright as tw
from tilewright.cli.code import spec_of_code
from tilewright.errors import ArgumentError, ScheduleError, SpecError
from tilewright.generate import Request, generate, interpret_kernel
from tilewright.plan.formats.lookup import format_of
from tilewright.runtime.arrays.elements import decode
from tilewright.runtime.call.pack_source import Given, pack_quantized
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.runtime.reference.pack_b import packed_parts
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import ITEMSIZE

from .test_kernels import FORMATS, REALS, drawn

Array = np.ndarray[Any, Any]
Q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
A = tw.Quantize("f32", per=("row", 32))
EVERY = (*FORMATS, *REALS)


def packing(index: int) -> tw.PackQuantized:
    """A format, with blocks of columns and K that are not whole, and every kind of A."""
    form = EVERY[index % len(EVERY)]
    k, n = 2 * (form.along or 40) - 5, (37, 70, 3)[index % 3]
    a: Any = ("bf16", "s8", tw.Quantize("f16", per=form.per), tw.Quantize(zero="s8"))[
        index // 2 % 4
    ]
    a = "f32" if form in REALS else a
    order: Any = "CF"[index % 2]
    nb, zero = (None, 20)[index // 3 % 2], a == "s8" and index % 2 == 0
    return tw.PackQuantized(k, n, form, a=a, nb=nb, order=order, a_zero=zero)


@pytest.mark.parametrize("target", TARGETS)
def test_the_bytes_are_those_of_numpy_on_every_target(target: str, cases: Cases) -> None:
    first = sum(map(ord, target))
    kernels = tw.compile_many([(packing(first + 7 * i), None, target) for i in range(3)])
    for kernel in kernels:
        kernel.verify(cases=2)
    cases.count(target, kernels[0].emulated or "native", 2 * len(kernels))


def test_every_format_is_packed_as_pack_b_packs_it() -> None:
    specs = [packing(index) for index in range(len(EVERY))]
    for spec, packer in zip(specs, tw.compile_many(specs), strict=True):
        b = drawn(spec.type, spec.k, spec.n, 0)
        zero, b_of = -3 if spec.a_zero else None, tw.Packed(spec.type, spec.nb)
        product = tw.Gemm(tw.dim("m"), spec.n, spec.k, a=spec.a, b=b_of, a_zero=zero)
        right = pack_quantized(product, packer.signature.output.format, Given(b))
        got = packer(b)
        assert got.format == right.format and (got.data == right.data).all(), spec


@pytest.mark.parametrize("target", ["avx2", "neon+dotprod+i8mm", "rvv256", "sme", "amx"])
def test_the_program_is_interpreted(target: str, cases: Cases) -> None:
    """The interpreter and numpy write the same bytes; the program is verified before."""
    isa = resolve(target)
    for index in range(sum(map(ord, target)) % 5, len(EVERY), 5):
        spec = packing(index)
        b = drawn(spec.type, spec.k, spec.n, 0)
        parts = [part for part in (b.q, b.scales, b.zeros) if part is not None]
        turned = [np.ascontiguousarray(part.T) if spec.order == "F" else part for part in parts]
        right = packed_parts(spec, isa, parts)
        out = np.full(right.size, 7, np.uint8)
        interpret_kernel(spec, tw.Schedule(), isa, [*(part.reshape(-1) for part in turned), out])
        assert (out == right[0]).all(), spec
        cases.count(target, "interpreted", 1)


@pytest.mark.parametrize(("type_", "scale"), [("u4", "e8m0"), ("f4_e2m1", "f8_e4m3"),
                                              ("f4_e2m1", "f16"), ("f4_e2m1", "bf16")])  # fmt: skip
def test_scales_of_every_kind_are_exact(type_: Any, scale: Any) -> None:
    """All of 8 bits, and of 16 zeros, subnormal numbers, infinity and NaN among others."""
    form = tw.Quantized(type_, scale=scale, block=16)
    bits = np.arange(256) if scale in ("e8m0", "f8_e4m3") else np.arange(0, 65536, 37)
    given = bits.astype(np.uint8 if bits.size == 256 else np.uint16)[None]
    given = given.view(np.float16) if scale == "f16" else given
    spec = tw.PackQuantized(16, given.size, form, a="f32")
    packer = tw.compile(spec)
    made = format_of(spec, packer.isa)
    out = np.zeros((1, made.nbytes), np.uint8)
    packer(np.zeros((16, given.size), np.uint8), given, out)
    held = out[0, made.scales_at :][: ITEMSIZE[made.scale] * given.size]
    got = decode(held.view(DTYPES[made.scale]), made.scale)
    right = 2.0 ** (bits - 127.0) if scale == "e8m0" else decode(given[0], scale)
    right = np.where((scale == "e8m0") & (bits == 255), np.nan, right)
    with np.errstate(invalid="ignore"):  # quiet or not
        right = right * (0.5 if type_ == "f4_e2m1" else 1)
    same = (got == right) | (np.isnan(got) & np.isnan(right))
    assert same.all() and np.isnan(right).any()


@pytest.mark.parametrize("command", ["gcc -std=c11", "clang -std=c11", "g++ -x c++"])
def test_the_c_is_plain(command: str, tmp_path: Path) -> None:
    """Without a warning; C++ takes it too."""
    words = command.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"there is no {words[0]}")
    target = resolve("scalar")
    requests = [Request(f"pack_{i}", packing(i), tw.Schedule(), target) for i in range(len(EVERY))]
    (tmp_path / "pack.c").write_text(generate(requests).text)
    words += ["-Wall", "-Wextra", "-Werror", "-O1", "-c", "pack.c"]
    subprocess.run(words, check=True, cwd=tmp_path)


def test_what_it_is_and_does() -> None:
    packer = tw.compile(tw.PackQuantized(64, 20, Q4, a=A), target="scalar")
    assert packer.c_declaration.startswith("void pack_u4_for_s8_64x20_c_scalar_")
    assert "pack      B 64 x 20 (rows contiguous), u4 with scales for 32 of K" in packer.explain()
    assert spec_of_code(repr(packer.spec)) == packer.spec


# --- what is refused ---------------------------------------------------------------------------

_ANY: Any = tw


@pytest.mark.parametrize(("make", "said"), [
    (lambda: _ANY.PackQuantized(64, 20, "s8", a="f32"), "only elements of few bits"),
    (lambda: _ANY.PackQuantized(tw.dim("k"), 20, Q4, a="f32"), "fixed sizes"),
    (lambda: _ANY.PackQuantized(64, 20, Q4, a="s16"), "does not meet an A of this type"),
    (lambda: _ANY.PackQuantized(64, 20, Q4, a=tw.Quantize(per=("row", 16))), "other lengths"),
    (lambda: _ANY.PackQuantized(64, 20, Q4, a="f32", order="K"), "order"),
])  # fmt: skip
def test_specs_that_mean_nothing(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_what_is_packed_must_fit() -> None:
    packer = tw.compile(tw.PackQuantized(64, 20, Q4, a=A))
    q, scales = np.zeros((64, 20), np.uint8), np.ones((2, 20), np.float16)
    other = tw.Quantized("u4", scale="f16", block=32)
    for given, said in (
        (q, "a tw.QuantizedMatrix of"),
        (QuantizedMatrix(other, q, scales), "another format"),
        (QuantizedMatrix(Q4, q[:32], scales[:1]), "b has the wrong shape"),
    ):
        with pytest.raises(ArgumentError, match=said):
            packer(given)
    with pytest.raises(ScheduleError, match="nothing to schedule"):
        tw.compile(packer.spec, tw.Schedule(threads=2))
