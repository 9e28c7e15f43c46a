"""Programs that time a kernel, or a core, without Python: they compile for every target.

Their figures follow from each other.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.compilers import TARGETS, use

import tilewright as tw
from tilewright.cli import main
from tilewright.errors import TargetError, ToolchainError
from tilewright.runtime.bench.peak_program import peak_program
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_program
from tilewright.runtime.emulate.runner import command_prefix
from tilewright.runtime.harness import harness
from tilewright.runtime.machine import host
from tilewright.targets import load

#: The types that a target's own unit multiplies, where that is not f32.
TYPES: dict[str, Any] = {"amx": ("u8", "s8")}


def shortened(text: str) -> str:
    """A program with few rounds, for emulators: what it prints is the same but for the figures."""
    rounds = "TW_CHAIN_ROUNDS = 12, TW_CHAIN_CALLS = 8"
    assert rounds in text
    return text.replace(rounds, "TW_CHAIN_ROUNDS = 1, TW_CHAIN_CALLS = 1").replace(
        "TW_ROUNDS = 51", "TW_ROUNDS = 3"
    )


def built(
    text: str, target: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...] | None:
    """The command that runs a program; None where nothing here does, once it is compiled."""
    found = load(target)
    try:
        means = host.means(found)
    except TargetError:
        means = "header"
    if means == "header":
        compile_program([text], found, use("gcc", found, monkeypatch), folder, "p", ["-static"])
        return None
    try:
        compiler = find_compiler(found, emulated=means != "native")
    except ToolchainError as error:
        pytest.skip(str(error))
    path = compile_program([text], found, compiler, folder, "p", ["-static", "-O1"])
    return (*command_prefix(found), str(path))


def said(command: tuple[str, ...]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_a_core_is_measured_by_a_program(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shortened(peak_program(target, TYPES.get(target, "f32")))
    command = built(text, target, tmp_path, monkeypatch)
    if command is None:
        return
    lines = said(command).splitlines()
    assert lines[0].startswith(f"target {load(target).name}, products of ")
    rates = [
        float(x)
        for x in re.findall(r"^throughput: .*?: ([\d.]+) GFLOPS", "\n".join(lines), re.MULTILINE)
    ]
    assert len(rates) > 1 and re.search(
        r"^latency: .*: [\d.]+ ns, [\d.]+ cycles$", "\n".join(lines), re.MULTILINE
    )
    assert lines[-1] == f"peak: {max(rates):.3f} GFLOPS"


@pytest.mark.parametrize("target", TARGETS)
def test_a_harness_times_its_kernel_and_the_peak(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = TYPES.get(target, ("f32", "f32"))
    spec = tw.Gemm(8, 16, 8, a=a, b=tw.Packed(b) if target == "amx" else b)
    text = shortened(harness(spec, target=target, name="kernel", cases=1, bench=True))
    command = built(text, target, tmp_path, monkeypatch)
    if command is None:
        return
    passed, timed = said(command).splitlines()
    assert passed == "pass: kernel, 1 cases"
    found = re.fullmatch(
        r"bench: kernel, case 0: least ([\d.]+) us, median ([\d.]+) us, ([\d.]+) GFLOPS, "
        r"([\d.]+) of the peak of ([\d.]+) GFLOPS",
        timed,
    )
    assert found is not None, timed
    least, median, rate, share, peak = map(float, found.groups())
    assert least <= median
    assert rate * median * 1e3 == pytest.approx(2 * 8 * 16 * 8, rel=0.2, abs=median * 2)
    assert share * peak == pytest.approx(rate, rel=0.2, abs=0.001 * peak)


def test_what_does_not_multiply_is_timed_without_a_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = harness(tw.Transpose(8, 8, "f32"), target="scalar", name="kernel", cases=1, bench=True)
    command = built(
        text.replace("TW_ROUNDS = 51", "TW_ROUNDS = 3"), "scalar", tmp_path, monkeypatch
    )
    assert command is not None
    assert re.search(r"bench: kernel, case 0: least [\d.]+ us, median [\d.]+ us\n$", said(command))


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.output


def test_the_commands_write_them(tmp_path: Path) -> None:
    path = tmp_path / "new" / "peak_neon.c"
    assert run("peak", "--emit", "--target", "neon", "-o", str(path))[0] == 0
    assert path.read_text() == peak_program("neon", file="peak_neon.c")
    assert "aarch64-linux-gnu-gcc" in path.read_text() or host.machine() == "aarch64"
    assert run("peak", "--emit", "--target", "neon+dotprod", "--type", "s8,s8")[1].count("dot") > 1
    words = ("emit", "8x8x8", "--target", "neon", "--name", "k")
    timed = run(*words, "--main", "--bench")[1]
    assert timed == harness(tw.Gemm(8, 8, 8), target="neon", name="k", bench=True)
    assert run(*words, "--bench")[0] == 2
    assert run("peak", "-o", str(path))[0] == 2
    assert run("peak", "--emit", "--target", "neon", "--type", "f8_e4m3x")[0] == 1


@pytest.mark.parametrize("words", [("emit", "8x8x8", "--main", "--bench"), ("peak", "--emit")])
def test_what_the_banner_runs_is_what_it_builds(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "on_board.c"
    assert run(*words, "--target", "neon", "-o", str(path))[0] == 0
    banner = path.read_text().partition("*/")[0]
    assert "-o on_board " in banner and "taskset -c 2 ./on_board\n" in banner
