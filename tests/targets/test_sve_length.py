"""The length of SVE's vectors: C refuses another one, and a library chooses by it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest

import tilewright as tw
from tilewright import targets
from tilewright.errors import TargetError
from tilewright.generate import plan_for
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_program
from tilewright.runtime.harness import harness
from tilewright.runtime.machine import host

FAMILY = tuple(name for name in targets.NAMES if name.startswith("sve"))
SPEC = tw.Gemm(5, 19, 7, beta=1)


def qemu() -> str:
    """The emulator, or the test is skipped."""
    found = host.find_qemu(targets.load("sve256"))
    if found is None or shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no emulator, or no compiler, for AArch64")
    return found


def options(name: str) -> list[str]:
    """What makes the emulator play a CPU with vectors of that length."""
    return ["-cpu", targets.load(name).emulation.cpu]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A harness for vectors of 256 bits."""
    target = targets.load("sve256")
    qemu()
    compiler = find_compiler(target, emulated=True)
    folder = tmp_path_factory.mktemp("length")
    text = harness(SPEC, target="sve256", name="kernel", cases=1)
    return compile_program([text], target, compiler, folder, "check")


@pytest.mark.parametrize("name", FAMILY)
def test_a_harness_says_which_length_it_is_for(name: str, program: Path) -> None:
    done = subprocess.run(
        [qemu(), *options(name), str(program)], capture_output=True, text=True, check=False
    )
    length = targets.load(name).length
    assert length is not None
    if length.nbytes == 32:
        assert (done.returncode, done.stdout) == (0, "pass: kernel, 1 cases\n")
    else:
        wrong = f"fail: kernel is for vectors of 32 bytes, this thread's have {length.nbytes}\n"
        assert (done.returncode, done.stdout) == (1, wrong)


def test_a_kernel_ends_the_program_rather_than_be_wrong(tmp_path: Path) -> None:
    target = targets.load("sve256")
    qemu()
    text = harness(SPEC, target="sve256", name="kernel", cases=1)
    told, asked, rest = text.partition("    if (svcntb() != 32) {")
    assert asked
    unasked_text = told + rest.partition("    }\n")[2]
    compiler = find_compiler(target, emulated=True)
    unasked = compile_program([unasked_text], target, compiler, tmp_path, "unasked")
    for name, status in (("sve256", 0), ("sve512", None)):
        command = [qemu(), *options(name), str(unasked)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (status == 0)
        assert ("pass" in done.stdout) == (status == 0) and "fail" not in done.stdout


def test_a_library_takes_the_length_that_there_is(tmp_path: Path) -> None:
    emulator = qemu()
    lengths = ["sve256", "sve512"]
    library = tw.library("small", {"product": SPEC}, targets=["neon", *lengths, "sve512+i8mm"])
    assert library.targets == ("sve512+i8mm", "sve512", "sve256", "neon")
    library.write(tmp_path)
    (built,) = library.build(tmp_path, architectures=["aarch64"])
    assert {one.target: one.checked.partition(",")[0] for one in built.targets} == dict.fromkeys(
        library.targets, "pass"
    )
    for name in ("sve128", *lengths):
        program = str(built.folder / "small_selftest")
        said = subprocess.run(
            [emulator, *options(name), program], capture_output=True, text=True, check=False
        ).stdout.splitlines()
        passed = {line.split(", ")[1] for line in said if line.startswith("pass")}
        expected = {one for one in library.targets if one.startswith(name)} | {"neon"}
        assert passed == expected


def test_a_length_is_one_of_the_family() -> None:
    assert FAMILY == ("sve2048", "sve1024", "sve512", "sve256", "sve128")
    for name in FAMILY:
        target = targets.load(name)
        assert target.length is not None and name in target.cpu_flags
        assert max(v.nbytes for v in target.vectors) == target.length.nbytes
    with pytest.raises(TargetError, match="unknown target"):
        targets.load("sve384")
    with pytest.raises(TargetError, match="no feature 'dotprod'"):
        host.resolve("sve256+dotprod")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("type_", ["s8", "bf16"])
@pytest.mark.parametrize("name", FAMILY)
def test_a_packed_b_serves_both_orders_of_c_at_every_length(
    name: str, type_: Literal["s8", "bf16"], order: Literal["C", "F"]
) -> None:
    """Blocks of sums are turned for one of them, for which there must be registers."""
    spec = tw.Gemm(128, 80, 64, a=type_, b=tw.Packed(type_, nb=32), order=order)
    plan = plan_for(spec, tw.Schedule(), host.resolve(f"{name}+i8mm+bf16"))
    assert all(
        v.transposes or not plan.staging.transposed or v.lanes == 1 for v in plan.staging.vectors
    )
