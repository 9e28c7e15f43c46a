"""Generated programs under the sanitizers of addresses and of undefined behaviour.

Harnesses, ``--main`` and self-tests of every kind of batch in both orders compute what numpy says
is right, and touch no memory but their own.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tilewright as tw
from tilewright.cli import main
from tilewright.errors import ToolchainError
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.harness import harness
from tilewright.targets import load

SANITIZERS = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COUNT = tw.dim("count")
#: Every kind of batch; with gaps between the matrices of C, and with matrices that interleave.
BATCHES: dict[str, dict[str, Any]] = {
    "one": {},
    "sum": {"batch": tw.Strided(3)},
    "shared": {"batch": tw.Strided(COUNT, b=0)},
    "stack": {"batch": tw.Strided(3, c=None)},
    "gaps": {"batch": tw.Strided(COUNT, c=tw.dim("stride_c")), "beta": 1, "ldc": 9},
    "interleaved": {"batch": tw.Strided(2, c=8), "ldc": 17},
    "converted": {"batch": tw.Strided(3, c=None), "d": "bf16", "epilogue": tw.relu(tw.acc)},
    "offsets": {"batch": tw.Offsets(COUNT)},
    "static": {"batch": tw.Offsets(2, a=[3, 0], b=[0, 5])},
    "addresses": {"batch": tw.Addresses(COUNT)},
}
SPECS = {
    f"{name}_{order.lower()}": tw.Gemm(5, 7, 3, order=order, **more)
    for name, more in BATCHES.items()
    for order in ("C", "F")
}


def ran(sources: Sequence[Path], folder: Path, *flags: str) -> tuple[int, str]:
    """Compile a program with the sanitizers and run it: its status, and what it said."""
    try:
        compiler = find_compiler(load("scalar"), emulated=False)
    except ToolchainError as error:
        pytest.skip(str(error))
    if compiler.family == "zig":
        pytest.skip("zig has no sanitizer of addresses")
    strict = ("-std=c11", "-Wall", "-Wextra", "-Werror", *SANITIZERS, *flags)
    ends = ("-lm", "-pthread", "-o", str(folder / "program"))
    command = [*compiler.command, *strict, *map(str, sources), *ends]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if re.search(r"cannot find.*[al]san", made.stderr):
        pytest.skip("the compiler has no sanitizers")
    assert made.returncode == 0, made.stderr
    done = subprocess.run([folder / "program"], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_harnesses_are_right_and_stay_in_their_memory(tmp_path: Path) -> None:
    """All in one program, since linking it takes longer than compiling one of them."""
    for name, spec in SPECS.items():
        text = harness(spec, target="scalar", name=name)
        assert "\nint main(void)\n" in text
        own = f"\nint main_{name}(void);\nint main_{name}(void)\n"
        (tmp_path / f"{name}.c").write_text(text.replace("\nint main(void)\n", own))
    declared = "".join(f"int main_{name}(void);\n" for name in SPECS)
    calls = " + ".join(f"main_{name}()" for name in SPECS)
    (tmp_path / "main.c").write_text(f"{declared}int main(void)\n{{\n    return {calls};\n}}\n")
    status, said = ran(sorted(tmp_path.glob("*.c")), tmp_path)
    assert status == 0, said
    assert sorted(said.splitlines()) == sorted(f"pass: {name}, 2 cases" for name in SPECS)


@pytest.mark.parametrize("name", ["stack_c", "gaps_f"])
def test_so_is_a_program_of_emit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.c"
    words = ["emit", "--main", "--target", "scalar", "--name", "kernel", "-o", str(path)]
    done = CliRunner().invoke(main, [*words, "--spec", repr(SPECS[name])], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert ran([path], tmp_path) == (0, "pass: kernel, 2 cases\n")


def test_so_is_a_self_test(tmp_path: Path) -> None:
    kernels = {"large": tw.Gemm(30, 20, 3, order="F"), **SPECS}
    folder = tw.library("lib", kernels, targets=["scalar"]).write(tmp_path)
    sources = sorted((*folder.glob("src/**/*.c"), *folder.glob("selftest/*.c")))
    status, said = ran(sources, tmp_path, f"-I{folder / 'include'}")
    assert status == 0 and said.startswith(f"pass: lib, scalar, {len(kernels)} kernels,"), said


@pytest.mark.parametrize(
    ("order", "element", "said"),
    [
        ("C", 2 * 6 + 4, r"c\[2, 1, 1\] is "),
        ("F", 2 * 6 + 4, r"c\[2, 0, 2\] is "),
        ("C", -1, "byte -4 of c changed"),
        ("F", 18, "byte 72 of c changed"),
    ],
)
def test_what_is_wrong_in_a_stack_is_named(
    order: Any, element: int, said: str, tmp_path: Path
) -> None:
    spec = tw.Gemm(2, 3, 4, order=order, batch=tw.Strided(3, c=None))
    text = harness(spec, target="scalar", name="kernel", cases=1)
    at = text.index("{", text.index("void kernel_invoke(", text.index("kernel_invoke(") + 9))
    end = text.index("\n}\n", at)
    changed = f"{text[:end]}\n    ((float *)arrays[2])[{element}] = 1e6f;{text[end:]}"
    (tmp_path / "kernel.c").write_text(changed)
    status, told = ran([tmp_path / "kernel.c"], tmp_path)
    assert status == 1 and re.match(f"fail: case 0: {said}", told), told
