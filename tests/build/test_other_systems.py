"""The C of kernels compiles for systems on which nothing was run: zig knows their headers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.generate import Request, generate
from tilewright.runtime.machine.host import resolve

LAYER = tw.Gemm(
    16, 32, 64, a="u8", b="s8", d="u8", b_scale="column", d_zero=3, epilogue=tw.gelu_erf(tw.acc)
)
PRODUCT, PARALLEL = tw.Gemm(64, 48, 64), tw.Schedule(loops="NMk")


@pytest.mark.parametrize(
    ("triple", "target", "spec", "schedule"),
    [
        ("aarch64-macos", "neon", PRODUCT, PARALLEL),  # with threads
        ("aarch64-macos", "neon+dotprod+i8mm+bf16", LAYER, tw.Schedule()),
        ("x86_64-windows-gnu", "avx2", PRODUCT, tw.Schedule()),  # which has no pthreads
        ("x86_64-windows-gnu", "avx512+vnni", LAYER, tw.Schedule()),
    ],
)
def test_a_kernel_compiles_for_another_system(
    triple: str, target: str, spec: tw.Gemm, schedule: tw.Schedule, tmp_path: Path
) -> None:
    pytest.importorskip("ziglang")
    found = resolve(target)
    (tmp_path / "kernel.c").write_text(generate([Request("kernel", spec, schedule, found)]).text)
    command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, *found.zig_flags]
    command += ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-c", "kernel.c"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
