"""Libraries with a B of few bits: what packs it in C, how it is checked, and what is said of it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.plan.formats.quantized_b import quantized_format
from tilewright.runtime.call.pack_source import Given, pack_quantized
from tilewright.runtime.library.make import Library
from tilewright.runtime.machine.host import machine, resolve

pytestmark = pytest.mark.xdist_group("library of few bits")
COUNT = tw.dim("count")
FP4 = tw.Quantized("f4_e2m1", scale="f16", zero="bf16", block=16)
S8 = tw.Quantized("s8", scale="e8m0", zero="s8", block=(16, 5))
Q4 = tw.Quantized("u4", scale="f32", zero=8, block=32)
ROWS = tw.Quantize("f32", per=("row", 16))
KERNELS: dict[str, Any] = {
    "gated": tw.Gemm(2, 9, 24, a="f32", b=tw.Packed(FP4), b2=tw.Packed(FP4),
                     epilogue=tw.relu(tw.acc) * tw.acc2),
    "batch": tw.Gemm(2, 9, 24, a=ROWS, b=tw.Packed(S8), batch=tw.Strided(COUNT)),
    "pointers": tw.Gemm(2, 9, 24, a="bf16", b=tw.Packed(S8), batch=tw.Addresses(COUNT)),
    "layers": [tw.Gemm(1, 40, 70, a="f32", b=tw.Packed(Q4)),
               tw.Gemm(tw.dim("m"), 40, 70, a="f32", b=tw.Packed(Q4))],
    "turned": tw.PackQuantized(70, 40, Q4, a="f32", order="F"),
}  # fmt: skip
#: B of 70 x 40, each element of which is a number of its place, packed from rows and from columns.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "few.h"
int main(void)
{
    static uint8_t q[70 * 40], columns[70 * 40];
    static float scales[3 * 40], turned[3 * 40];
    const size_t bytes = (size_t)few_layers_1x40x70_pack_b_packed_bytes();
    void *const one = aligned_alloc(64, bytes), *const other = aligned_alloc(64, bytes);
    for (int k = 0; k < 70; k++)
        for (int n = 0; n < 40; n++)
            columns[n * 70 + k] = q[k * 40 + n] = (uint8_t)((7 * k + 3 * n) % 16);
    for (int k = 0; k < 3; k++)
        for (int n = 0; n < 40; n++)
            turned[n * 3 + k] = scales[k * 40 + n] = 0.25f * (float)(k - n);
    few_layers_1x40x70_pack_b(q, scales, one);
    few_turned(columns, turned, other);
    if (memcmp(one, other, bytes))
        return 1;
    fwrite(one, 1, bytes, stdout);
    return few_layers_1x40x70_pack_b_q_bytes() != sizeof q;
}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return tw.library("few", KERNELS, targets=["scalar"], jobs=1)


@pytest.fixture(scope="module")
def folder(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    (built,) = library.build(folder, architectures=[machine()])
    assert built.passed, built.output
    assert "pass: few, scalar, 11 kernels, 26 calls" in built.output
    return folder


@pytest.mark.parametrize("compiler", ["gcc -std=c11", "g++ -std=c++17 -x c++"])
def test_a_program_packs_what_python_packs(compiler: str, folder: Path) -> None:
    (folder / "main.c").write_text(PROGRAM)
    static = str(folder / "build" / machine() / "libfew.a")
    words = [*compiler.split(), "-Wall", "-Wextra", "-Werror", f"-I{folder / 'include'}", "main.c"]
    words += ["-x", "none", static, "-o", "main", "-lm", "-pthread"]
    subprocess.run(words, check=True, cwd=folder)
    got = subprocess.run([str(folder / "main")], check=True, capture_output=True).stdout
    k, n = np.indices((70, 40))
    scales = 0.25 * np.subtract(*np.indices((3, 40))).astype(np.float32)
    b = tw.QuantizedMatrix(Q4, ((7 * k + 3 * n) % 16).astype(np.uint8), scales)
    product = KERNELS["layers"][0]
    right = pack_quantized(product, quantized_format(product, resolve("scalar")).text, Given(b))
    assert got == right.data.tobytes()


def test_the_selftest_finds_a_wrong_packing(library: Library, tmp_path: Path) -> None:
    path = "src/scalar/layers_1x40x70_pack_b_scalar.c"
    text = library.files[path]
    assert " << 4)" in text
    files = {**library.files, path: text.replace(" << 4)", " << 3)")}
    (built,) = replace(library, files=files).build(tmp_path, architectures=[machine()])
    assert not built.passed
    for name in ("few_layers_1x40x70_pack_b", "few_layers_1x40x70", "few_layers_1x40x70, by few_"):
        assert f"fail: {name}" in built.output
    assert "fail: few_gated" not in built.output


def test_header_and_manifest_say_what_is_packed(library: Library) -> None:
    header = library.files["include/few.h"]
    for line in (
        "q: 24 x 9 u8, rows contiguous; codes of f4_e2m1",
        "zeros: 2 x 9 bf16, rows contiguous; one minimum for each 16 of K and column",
        "scales: 2 x 2 u8, rows contiguous; one for each 16 of K and 5 columns, as bytes of e8m0",
        "zeros: 2 x 2 s8, rows contiguous; one zero point for each 16 of K and 5 columns",
        "q: 70 x 40 u8, columns contiguous; numbers of u4",
        "void few_gated_pack_b(const uint8_t *q, const uint16_t *scales, const uint16_t *zeros, "
        "void *out);",
        "void few_turned(const uint8_t *q, const float *scales, void *out);",
    ):
        assert line in header, line
    kernels = {each["name"]: each for each in json.loads(library.files["manifest.json"])["kernels"]}
    form = quantized_format(KERNELS["gated"], resolve("scalar"))
    packed = {"scalar": {"format": form.text, "bytes": form.nbytes}}
    assert kernels["gated_pack_b"]["packed"] == packed and "packed" not in kernels["gated"]
