"""What mypy tells users of tilewright: the types of the public names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.source_tree import ROOT

from scripts.typecheck import link, packages

#: Lines of a user's program, each with the type that mypy reveals.
REVEALED = {
    "tw.targets()": "dict[str, str]",
    'tw.targets.load("avx2")': "tilewright.isa.target.Target",
    'package.load("avx2")': "tilewright.isa.target.Target",
    "tw.compile(tw.Gemm(4, 4, 4))": "tilewright.runtime.kernel.Kernel",
    "tw.compile(tw.Transpose(4, 4)).bench()": "tilewright.runtime.bench.timing.Timing",
    'tw.peak("host").gflops': "float",
    "kernel(x, x)": "numpy.ndarray[Any, Any]",
    "kernel(x, x, out=x)": "numpy.ndarray[Any, Any]",
    "kernel([x], [x], x)": "numpy.ndarray[Any, Any]",
    "kernel(tensor, x)": "Any",
    "tw.matmul(x, x)": "numpy.ndarray[Any, Any]",
    "tw.matmul(tensor, x)": "Any",
    "tw.relu": "def (x: tilewright.spec.expression.nodes.Expression | float, "
    "alpha: float =) -> tilewright.spec.expression.nodes.Expression",
    "tw.postop(own)(tw.acc, 2)": "tilewright.spec.expression.nodes.Expression",
}
PROGRAM = """
from typing import Any
import numpy as np
import tilewright as tw
import tilewright.targets as package

def own(x: tw.Expression, alpha: float = 1) -> tw.Expression:
    return x * alpha

kernel, x = tw.compile(tw.Gemm(2, 2, 2)), np.ones((2, 2), np.float32)
tensor: Any = None
result, most = kernel(x, x)
"""


def mypy(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Check a user's program strictly, outside of this repository."""
    tree, program = folder / "tree", folder / "program.py"
    link(packages(), tree)
    program.write_text(text)
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(folder), str(program)],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )


#: What is wrong, each on a line of its own.
REFUSED = (
    'tw.Gemm(4, 4, 4, a="f33")',
    'tw.Gemm(4, 4, 4, b=tw.Packed("int4"))',
    'tw.Gemm(4, 4, 4, order="R")',
    'tw.Schedule(vectorize="x")',
    'tw.Operand("bias", per="columns")',
    'tw.Operand("bias", "f33")',
    'tw.Quantized("u9")',
    'tw.compile(tw.Gemm(4, 4, 4), "avx2")',
)
TAKEN = (
    'tw.Gemm(4, 4, 4, a="float16", b=tw.Matrix(np.float32), d=np.dtype("int8"))',
    'tw.Gemm(4, 4, 4, a="u8", b=tw.Packed("s8", 16), beta="scalar", b_scale="column")',
)


@pytest.mark.skipif(find_spec("mypy") is None, reason="no mypy")
def test_mypy_finds_what_is_no_type_order_or_schedule(tmp_path: Path) -> None:
    lines = ["import numpy as np", "import tilewright as tw", *TAKEN, *REFUSED]
    done = mypy("\n".join(lines) + "\n", tmp_path)
    found = {int(n) for n in re.findall(r"program\.py:(\d+): error", done.stdout)}
    first = len(lines) - len(REFUSED) + 1
    assert found == set(range(first, len(lines) + 1)), done.stdout


@pytest.mark.skipif(find_spec("mypy") is None, reason="no mypy")
def test_users_see_types(tmp_path: Path) -> None:
    lines = [f"reveal_type({expression})" for expression in REVEALED]
    done = mypy(PROGRAM + "\n".join(lines) + "\n", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert dict(zip(REVEALED, revealed, strict=True)) == REVEALED
