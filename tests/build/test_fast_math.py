"""-ffast-math of CC or of a project changes no result: it is undone, or refused."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ToolchainError
from tilewright.generate import Request
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library, source_flags
from tilewright.runtime.edited import own_file
from tilewright.runtime.harness import harness
from tilewright.targets import load

SCALAR = load("scalar")
#: Each of these functions is another one with a part of -ffast-math.
TEXT = """
int is_nan(float x);
int is_nan(float x) { return x != x; }
float rest(float x, float y);
float rest(float x, float y) { return (x + y) - x; }
float third(float x);
float third(float x) { return x / 3; }
"""
FLAGS = ("-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations")
KEPT = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(5e-324 * float(sys.argv[2]))"


def program(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    return name


@pytest.mark.parametrize("family", ["gcc", "clang"])
@pytest.mark.parametrize("flag", FLAGS)
def test_what_cc_says_is_undone(
    family: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"{program(family)} {flag}")
    compiler = find_compiler(SCALAR, emulated=False)
    try:
        path = compile_library(TEXT, SCALAR, compiler, tmp_path, "odd")
    except ToolchainError as error:  # clang 14 says that two options are at odds, and ends
        assert family == "clang" and "overriding" in str(error)
        return
    # In a process of its own: code linked with it may change how all of that process computes.
    ran = subprocess.run(
        [sys.executable, "-c", KEPT, path, "2"], capture_output=True, text=True, check=True
    )
    assert float(ran.stdout) == 1e-323
    library = ctypes.CDLL(str(path))
    one = ctypes.c_float
    library.rest.restype = library.third.restype = one
    assert library.is_nan(one(float("nan"))) == 1
    assert library.rest(one(1e8), one(1)) == 0
    assert library.third(one(5)) == ctypes.c_float(5 / 3).value


@pytest.mark.twice
def test_kernels_keep_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of low-bit weights in a fixed order, and NaN through relu and a conversion."""
    monkeypatch.setenv("CC", f"{program('gcc')} -ffast-math -ffinite-math-only")
    quantized = tw.Packed(tw.Quantized("u4", scale="f16", block=32, zero=8))
    specs = [
        tw.Gemm(8, 32, 64, b=quantized),
        tw.Gemm(4, 8, 3, d="f16", epilogue=tw.relu(tw.acc)),
    ]
    exact, halves = tw.compile_many([(spec, None, "host") for spec in specs])
    assert exact.verify(cases=2).cases == 2
    a = np.full((4, 3), np.nan, np.float32)
    assert np.isnan(halves(a, np.ones((3, 8), np.float32))).all()


@pytest.mark.parametrize("flag", FLAGS)
def test_files_that_are_compiled_elsewhere_refuse_it(flag: str, tmp_path: Path) -> None:
    """Unless the flags that are written into them come last."""
    spec = tw.Gemm(2, 3, 4)
    made = tw.library("lib", {"small": spec}, targets=["scalar"], jobs=1).write(tmp_path)
    (tmp_path / "kernel.c").write_text(own_file([Request("k", spec, tw.Schedule(), SCALAR)]).text)
    (tmp_path / "harness.c").write_text(harness(spec, target="scalar", name="k"))
    files = [tmp_path / "kernel.c", tmp_path / "harness.c", made / "src/scalar/small_scalar.c"]
    files.append(made / "selftest/selftest.c")
    for file in files:
        command = [program("gcc"), "-O2", flag, f"-I{made / 'include'}", "-fsyntax-only", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "change this file's results" in done.stderr, file
        command[3:3] = source_flags(SCALAR, "gcc")
        assert subprocess.run(command, check=False).returncode == 0, file
