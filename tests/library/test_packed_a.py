"""Libraries with a packed A: what packs it in C, and a product that stores its D packed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.library.make import Library
from tilewright.runtime.machine.host import machine
from tilewright.runtime.reference.quantized import packed_rows

pytestmark = pytest.mark.xdist_group("library of a packed A")
M = tw.dim("m")
ROWS, U4 = tw.Quantize(), tw.Quantized("u4", scale="f16", zero=8, block=32)
LAST = tw.Gemm(M, 7, 20, a=tw.Packed("u8"), b="s8")
QUANTIZED = tw.Gemm(M, 9, 64, a=tw.Packed(ROWS), b=tw.Packed(U4))
KERNELS: dict[str, Any] = {
    "first": tw.Gemm(M, 20, 33, a="s8", d=tw.Packed("u8", b="s8"), d_zero=90),
    "last": LAST,
    "quantized": QUANTIZED,
    "rows": tw.Gemm(5, 64, 20, d=tw.Packed(ROWS, b=U4)),
}
#: Packs 5 rows of bytes, which are 2 elements apart from each other, and multiplies them. The first
#: product writes the same bytes as its D.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ahead.h"
int main(void)
{
    static int8_t a[5 * 33], b[33 * 20], w[20 * 7];
    static uint8_t plain[5 * 22];
    static int32_t c[5 * 7], again[5 * 7];
    static float rows[5 * 64];
    for (int i = 0; i < 5 * 33; i++)
        a[i] = (int8_t)(i % 5 - 2);
    for (int i = 0; i < 33 * 20; i++)
        b[i] = (int8_t)(i % 7 - 3);
    for (int i = 0; i < 20 * 7; i++)
        w[i] = (int8_t)(i % 11 - 5);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 20; j++) {
            int sum = 90;
            for (int k = 0; k < 33; k++)
                sum += a[i * 33 + k] * b[k * 20 + j];
            plain[i * 22 + j] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
        }
    for (int i = 0; i < 5 * 64; i++)
        rows[i] = 0.5f * (float)(i % 13 - 6);
    const size_t bytes = (size_t)ahead_last_pack_a_packed_bytes(5);
    void *const packed = aligned_alloc(64, bytes), *const hidden = aligned_alloc(64, bytes);
    memset(packed, 255, bytes);
    memset(hidden, 255, bytes);
    ahead_last_pack_a(plain, packed, 5, 22);
    ahead_last(packed, w, c, 5);
    ahead_first(a, b, hidden, 5, malloc((size_t)ahead_first_scratch_bytes(5)));
    ahead_last(hidden, w, again, 5);
    if ((size_t)ahead_first_packed_bytes(5) != bytes || memcmp(packed, hidden, bytes)
        || strcmp(ahead_first_format(), ahead_last_pack_a_format()) || memcmp(c, again, sizeof c))
        return 1;
    fwrite(c, 1, sizeof c, stdout);
    const size_t of_rows = (size_t)ahead_quantized_pack_a_packed_bytes(5);
    void *const quantized = aligned_alloc(64, of_rows);
    ahead_quantized_pack_a(rows, quantized, 5, 64);
    fwrite(quantized, 1, of_rows, stdout);
    return 0;
}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return tw.library("ahead", KERNELS, targets=["scalar"], jobs=1)


def test_a_program_packs_a_and_stores_d_packed(library: Library, tmp_path: Path) -> None:
    (built,) = library.build(tmp_path, architectures=[machine()])
    assert built.passed, built.output
    (tmp_path / "main.c").write_text(PROGRAM)
    static = str(tmp_path / "build" / machine() / "libahead.a")
    words = [
        "gcc",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{tmp_path / 'include'}",
        "main.c",
    ]
    subprocess.run([*words, static, "-o", "main", "-lm", "-pthread"], check=True, cwd=tmp_path)
    got = subprocess.run([str(tmp_path / "main")], check=True, capture_output=True).stdout
    a, b, w = (
        (np.arange(rows * cols) % size - size // 2).reshape(rows, cols)
        for rows, cols, size in ((5, 33, 5), (33, 20, 7), (20, 7, 11))
    )
    right = (a @ b + 90).clip(0, 255) @ w
    assert (np.frombuffer(got[: right.size * 4], np.int32).reshape(5, 7) == right).all()
    rows = 0.5 * (np.arange(5 * 64) % 13 - 6).reshape(5, 64).astype(np.float32)
    spec, target = tw.QuantizeRows(M, 64, ROWS, U4), tw.compile(QUANTIZED, target="scalar").isa
    assert got[right.size * 4 :] == packed_rows(spec, target, rows).tobytes()


def test_the_selftest_finds_a_wrong_packing(library: Library, tmp_path: Path) -> None:
    """In the packing of A, and in the product that stores D packed: its zero point."""
    files = dict(library.files)
    for name, old, new in (("first", "90", "91"), ("last_pack_a", "+ 4 *", "+ 3 *")):
        path = f"src/scalar/{name}_scalar.c"
        assert old in files[path], files[path]
        files[path] = files[path].replace(old, new)
    (built,) = replace(library, files=files).build(tmp_path, architectures=[machine()])
    assert not built.passed
    assert "fail: ahead_first" in built.output and "fail: ahead_last" in built.output
