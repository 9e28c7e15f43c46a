"""The command line: what each command prints, leaves behind, and says when it is wrong."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import Result

import tilewright as tw
from tilewright.cli import main
from tilewright.cli.screen import duration, percent, size
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.machine import host
from tilewright.runtime.store import cache
from tilewright.targets import NAMES, load

Run = Callable[..., Result]


def rows(text: str) -> list[list[str]]:
    """A table's lines as words."""
    return [line.split() for line in text.splitlines() if line.strip()]


# -- the group ----------------------------------------------------------------------------------


def test_help_names_every_command(run: Run) -> None:
    text = run("--help").stdout
    for command in ("demo", "targets", "explain", "emit", "bench", "cache"):
        assert f"\n  {command} " in text
        assert "Usage: tilewright" in run(command, "--help").stdout


def test_an_unknown_command_is_refused(run: Run) -> None:
    assert "No such command 'jump'" in run("jump", status=2).stderr


# -- targets ------------------------------------------------------------------------------------


def test_targets_says_how_each_runs(run: Run) -> None:
    table = {row[0]: row for row in rows(run("targets").stdout)}
    for name in NAMES:
        words = " ".join(table[name])
        assert load(name).title.split()[0] in words
        if host.is_native(load(name)):
            assert "native" in words
    best = host.resolve("host").name
    assert table[best.partition("+")[0]][1] == "(host)"
    assert table["Host:"][1] == best
    assert "checked" in table["Calls:"]


def test_targets_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = next(name for name in ("neon", "avx2") if not host.is_native(load(name)))
    run("targets")  # the dispatcher is there
    monkeypatch.setenv("PATH", "/nonexistent")
    text = run("targets").stdout
    line = next(line for line in text.splitlines() if line.startswith(f" {foreign} "))
    assert " interpreter " in line
    assert f"nothing here runs {foreign}: install qemu's user-mode emulators" in text


# -- explain and emit ---------------------------------------------------------------------------


def test_explain_prints_the_plan(run: Run) -> None:
    text = run("explain", "64x48x64", "--target", "avx2", "--tile", "6x16").stdout
    assert "6x16" in text
    assert "of 16" in text


def test_explain_measures(run: Run) -> None:
    text = run("explain", "8x8x8", "mx8x8", "--measure").stdout
    assert text.count("the estimate is") == 2
    assert "Estimate of one call with m = 64" in text
    assert "GB/s" in run("explain", "transpose", "8x8", "--measure").stdout


def test_emit_prints_c(run: Run) -> None:
    text = run("emit", "16x6x64", "--order", "F", "--target", "neon", "--name", "chapter").stdout
    assert "void chapter(const float *a, const float *b, float *c);" in text
    assert "arm_neon.h" in text


def test_emit_writes_a_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new" / "kernels.c"
    said = run("emit", "8x8x8", "16x6x4", "--target", "scalar", "-o", str(file)).stdout
    text = file.read_text()
    names = said.partition(": ")[2].strip().split(", ")
    assert len(names) == 2
    for name in names:
        assert f"void {name}(" in text


def test_emit_fills_a_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    said = run("emit", "8x8x8", "16x6x4", "--target", "scalar", "-o", str(folder)).stdout
    files = sorted(folder.iterdir())
    assert sorted(said.split()) == [str(file) for file in files]
    assert len(files) == 2
    for file in files:
        assert f"void {file.stem}(" in file.read_text()


def test_what_emit_writes_computes(run: Run, tmp_path: Path) -> None:
    from tilewright.runtime.build.compilers import find_compiler
    from tilewright.runtime.build.toolchain import compile_library

    run("emit", "8x5x7", "--beta", "1", "--target", "scalar", "--name", "f",
        "-o", str(tmp_path / "f.c"))  # fmt: skip
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    text = (tmp_path / "f.c").read_text()
    library = ctypes.CDLL(str(compile_library(text, target, compiler, tmp_path, "g")))
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-4, 5, s).astype("f4") for s in ((8, 7), (7, 5), (8, 5)))
    expected = a @ b + c
    library.f(*(ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)))
    assert np.array_equal(c, expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["8x8x8", "--name", "9lives"], "the name of a kernel must be a C identifier"),
        (["8x8x8", "9x9x9", "--name", "f"], "one name for several kernels"),
    ],
)
def test_emit_refuses_a_name(run: Run, words: list[str], said: str) -> None:
    assert said in run("emit", *words, status=1).stderr


def test_emit_main_writes_a_program(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "check.c"
    run("emit", "8x6x16", "--type", "u8", "--b", "packed:s8", "--d", "u8", "--a-zero", "128",
        "--b-scale", "column", "--d-scale", "0.05", "--target", "scalar", "--name", "f",
        "--main", "--cases", "3", "--seed", "5", "-o", str(file))  # fmt: skip
    text = file.read_text()
    assert text.startswith("/* f with arguments, and what is right for them.\n")
    assert "-static check.c -o check " in text
    spec = tw.Gemm(8, 6, 16, a="u8", b=tw.Packed("s8"), d="u8", a_zero=128, b_scale="column",
                   d_scale=0.05)  # fmt: skip
    again = tw.harness(spec, target="scalar", cases=3, seed=5, name="f")
    assert text == again.replace("-static f.c -o f ", "-static check.c -o check ")
    assert run("emit", "4x4x4", "--main", "--name", "g").stdout.count("int main(void)") == 1


def test_emit_main_is_one_kernel(run: Run, tmp_path: Path) -> None:
    words = ["emit", "4x4x4", "5x5x5", "--main", "--target", "scalar"]
    stderr = run(*words, status=1).stderr
    assert "one program for several kernels" in stderr
    assert "try: -o folder" in stderr
    run(*words, "-o", str(tmp_path / "both"))
    files = sorted((tmp_path / "both").iterdir())
    assert len(files) == 2
    for file in files:
        assert f"-static {file.name} -o {file.stem} " in file.read_text()


def test_emit_writes_a_header_for_c_and_cpp(run: Run, tmp_path: Path) -> None:
    words = ("emit", "8x8x8", "mx300x300", "--type", "u8", "--b", "s8", "--target", "scalar")
    files = tmp_path / "kernels.c", tmp_path / "kernels.h"
    for file in files:
        run(*words, "-o", str(file))
    program = tmp_path / "program.cc"
    program.write_text('#include "kernels.h"\nint main() { return 0; }\n')
    compiler = find_compiler(load("scalar"), emulated=False).command
    for language, text in (("c", "kernels.c"), ("c++", "program.cc")):
        check = [*compiler, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", language]
        subprocess.run([*check, "-include", "kernels.h", text], cwd=tmp_path, check=True)
    assert "--main writes a program" in run(*words, "--main", "-o", "x.h", status=2).stderr


def test_emit_refuses_what_is_no_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("emit", "8x8x8", "-o", str(tmp_path / "file"), status=2)
    assert "neither a folder nor a C file" in result.stderr


# -- bench --------------------------------------------------------------------------------------


@pytest.mark.twice
def test_bench_times_what_it_checked(run: Run) -> None:
    text = run(
        "bench", "8x8x8", "mx12x16", "--order", "F", "--beta", "1", "--seconds", "0.01"
    ).stdout
    table = {row[0]: row for row in rows(text)}
    assert "GFLOPS" in table["8x8x8"]
    assert "mx12x16" in table


@pytest.mark.twice
def test_bench_of_a_transposition_is_in_bytes(run: Run) -> None:
    assert " GB/s" in run("bench", "transpose", "8x8", "--seconds", "0.01").stdout


def test_bench_does_not_time_an_emulator(run: Run) -> None:
    foreign = next(name for name in ("neon", "avx2") if not host.is_native(load(name)))
    if host.find_qemu(load(foreign)) is None:
        pytest.skip(f"nothing runs {foreign}")
    assert "bench needs a CPU with" in run("bench", "8x8x8", "--target", foreign, status=1).stderr


# -- cache --------------------------------------------------------------------------------------


def test_cache_lists_verifies_and_clears(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(root))
    assert f"{root}: 0 libraries, 0 B" in run("cache", "list").stdout
    tw.compile_many([tw.Gemm(4, 4, 4), tw.Gemm(5, 5, 5)])
    text = run("cache", "list").stdout
    assert host.resolve("host").name in text
    assert f"{root}: " in text and "2" in text
    assert "0 bad" in run("cache", "verify").stdout

    library = next(root.glob("entries/*/kernels.so"))
    library.chmod(0o600)
    with open(library, "ab") as file:
        file.write(b"x")
    result = run("cache", "verify", status=1)
    assert "bytes, not" in result.stderr
    assert " bad" in result.stdout and "0 bad" not in result.stdout

    assert "removed" in run("cache", "clear").stdout
    assert not any(root.glob("entries/*"))


def test_a_cache_that_others_can_write_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o777)
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(root))
    stderr = run("cache", "list", status=1).stderr
    assert "can be written by others" in stderr
    assert f"try: chmod go-w {root}" in stderr


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["64"], "is not MxNxK, such as 64x48x64"),
        (["64x48x"], "is not MxNxK"),
        (["64x48xk-1"], "the name of a dim must be a C identifier: k-1"),
        (["m%xx8x8"], "is not MxNxK"),
        (["m%bx8x8"], "what follows % is the number that divides the size: m%b"),
        (["8x8x8", "--tile", "16"], "'16' is no tile, rows by columns of C, such as 16x6"),
        (["8x8x8", "--tile", "16xb"], "'16xb' is no tile"),
        (["8x8x8", "--order", "CF"], "'CF' is neither C, F, nor three of them"),
        (["8x8x8", "--beta", "one"], "'one' is neither a number nor 'scalar'"),
        (["8x8x8", "--batch", "pointers:3"], "'pointers:3' is no batch, such as 16, strided:16"),
        (["8x8x8", "--batch", "offsets:"], "'offsets:' is no batch"),
        (["8x8x8", "--block", "m48"], "'m48' is no list of blocks, such as m=48,k=256"),
        (["8x8x8", "--type", "f17"], "'f17' is not one of"),
        (["8x8x8", "--b", "f17"], "unknown element type: f17"),
        (["8x8x8", "--b", "packed:s8:x"], "'packed:s8:x' is no operand, such as s8, packed:s8"),
        (["8x8x8", "--epilogue", "maximum"], "'maximum' is no function of one value, such as relu"),
        (["8x8x8", "--epilogue", "relus"], "'relus' is no function of one value, such as relu"),
        (["8x8x8", "--a-scale", "rows"], "'rows' is neither a number, scalar, row nor column"),
        (["8x8x8", "--k-unroll", "0"], "0 is not in the range x>=1"),
        (["8x8x8", "--tails", "cut"], "'cut' is not one of"),
        (["64x48"], "was k forgotten, as in 64x48x64"),
        (["64x48"], "is 'transpose 64x48'"),
        (["transpose 64x48x3"], "'64x48x3' is not ROWSxCOLS of a transposition"),
        (["8x8x8", "--b", "f8"], 'unknown element type: f8. Try "f64" is numpy'),
        (["64", "48", "64"], "sizes are joined by x: did you mean 64x48x64?"),
        (["8x8x8", "--type", "int9"], "'int9' is not one of"),
        (["transpose"], "stands before ROWSxCOLS"),
        (["transpose", "8x8x8"], "is not ROWSxCOLS of a transposition"),
        ([], "Missing argument 'SIZES...'"),
    ],
)
def test_a_word_that_means_nothing_is_a_usage_error(run: Run, words: list[str], said: str) -> None:
    text = " ".join(run("explain", *words, status=2).stderr.split())
    assert said in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["8x8x8", "--target", "avx3"],
            ["unknown target", "got: avx3", "expected: one of amx, avx10.2, avx512"],
        ),
        (["8x8x64", "--lda", "12"], ["lda is smaller than a contiguous line of A", "64 or more"]),
        (["8x8x8", "--loops", "kji"], ["loops must name the loops", "got: kji", 'try: "nmk"']),
        (["8x8x8", "--block", "m=8"], ["block['m'] is the step of the first of two loops over m"]),
        (["8x8x8", "--tile", "0x6"], ["tile must be (mr, nr)", "two positive ints"]),
        (["64x64x64", "--tile", "24x32", "--target", "avx2"], ["vector registers on avx2", "try:"]),
        (["transpose", "8x8", "--beta", "1"], ["a transposition has", "got: --beta"]),
        (["transpose", "8x8", "--order", "F", "--batch", "3"], ["got: --batch, --order"]),
        (["transpose", "8x8", "--lda", "4"], ["ldx is smaller than a row"]),
        (["transpose", "8x8", "--d", "u8", "--a-zero", "1"], ["got: --d, --a-zero"]),
    ],
)
def test_an_error_of_the_library_is_a_message(run: Run, words: list[str], said: list[str]) -> None:
    text = run("explain", *words, status=1).stderr
    assert text.startswith("Error: ")
    for part in said:
        assert part in text
    assert "\n  at: " not in text, "there is no place in the user's code"


def test_a_path_that_cannot_be_written_is_no_traceback(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words in (("emit", "-o"), ("explain", "--svg")):
        stderr = run(words[0], "8x8x8", words[1], str(tmp_path / "file" / "x.c"), status=1).stderr
        assert "the system refuses a file" in stderr and "try:" in stderr


def every_command() -> dict[str, click.Command]:
    """All commands by name, those of groups behind the group's."""
    context = click.Context(main)
    found: dict[str, click.Command] = {}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        inside = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{name} {each}": one for each, one in inside.items()} or {name: command}
    return found


def test_every_option_has_help() -> None:
    for name, command in every_command().items():
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, f"{name} {option.opts[0]}"


# -- for programs --------------------------------------------------------------------------------


def found(run: Run, *words: str, status: int = 0) -> Any:
    return json.loads(run(*words, "--json", status=status).stdout)


def test_every_command_prints_json() -> None:
    for name, command in every_command().items():
        assert any("--json" in option.opts for option in command.params), name


def test_off_a_terminal_no_table_is_cut(run: Run) -> None:
    words = ("bench", "3x4x5", "--type", "u8", "--b", "s8", "--batch", "2", "--seconds", "0.01")
    text = run(*words, "--tile", "3x4", "--a-zero", "3", "--k-unroll", "1").stdout
    assert "…" not in text and not any(line.endswith(" ") for line in text.splitlines())
    row = next(line for line in text.splitlines() if "3x4x5" in line)
    for part in ("a='u8'", "b='s8'", "a_zero=3", "batch=Strided(count=2", " GOPS"):
        assert part in row, "all that tells the product apart"


def test_targets_as_json(run: Run) -> None:
    said = found(run, "targets")
    assert said["host"] == host.resolve("host").name
    assert {one["name"] for one in said["targets"]} == set(NAMES)


def test_a_plan_as_json_is_what_the_words_say(run: Run) -> None:
    (said,) = found(run, "explain", "6x16x64", "--target", "avx2")
    assert said["operations"]["flops"] == 2 * 6 * 16 * 64
    (tile,) = said["tiles"]
    assert (tile["mr"], tile["nr"], tile["registers"]["accumulators"]) == ("6", "16", 12)
    assert said["estimate"]["in cache"]["cycles"] >= said["estimate"]["in cache"]["least"] > 0
    assert {each["what"] for each in said["decisions"]} >= {"vectorize", "loops", "product"}
    (of_call,) = found(run, "explain", "mx16x64", "--target", "avx2")
    assert of_call["sizes"] == {"m": 64} and "m" in of_call["operations"]["flops"]
    assert found(run, "explain", "transpose", "8x8")[0]["tiles"] == []


def test_emitted_files_as_json(run: Run, tmp_path: Path) -> None:
    words = ("emit", "8x8x8", "--target", "scalar", "--name", "f")
    assert found(run, *words)["names"] == ["f"] and "void f(" in found(run, *words)["text"]
    file = tmp_path / "f.c"
    assert found(run, *words, "-o", str(file)) == [{"file": str(file), "names": ["f"]}]


def test_times_as_json(run: Run) -> None:
    (said,) = found(run, "bench", "8x8x8", "--seconds", "0.01")
    assert said["gflops"] > 0 and tw.Schedule(**said["schedule"]).tile is not None


def test_the_cache_as_json(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    kernel = tw.compile(tw.Gemm(3, 4, 5), target="scalar")
    libraries = found(run, "cache", "list")["libraries"]
    assert kernel.name in [name for one in libraries for name in one["kernels"]]
    assert kernel.name in run("cache", "list").stdout
    assert found(run, "cache", "verify")["bad"] == {}
    assert found(run, "cache", "clear")["removed"] > 0


def test_a_sweep_as_json(run: Run) -> None:
    said = found(run, "sweep", "--cases", "2", "--target", "scalar", "--optimize", "0")
    assert said["passed"] == 2 and said["faults"] == []


def test_an_edited_kernel_as_json(run: Run, tmp_path: Path) -> None:
    words = ("run", "8x8x8", "--source", str(tmp_path / "f.c"))
    assert found(run, *words)["written"] == str(tmp_path / "f.c")
    said = found(run, *words)
    assert said["diff"] == "" and said["timing"]["ratio"] > 0


def test_text_follows_the_width_that_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (70, 120):
        monkeypatch.setattr("tilewright.cli.explain.columns", lambda width=width: width)
        longest = max(map(len, run("explain", "64x48x64").stdout.splitlines()))
        assert width - 20 < longest <= width


@pytest.mark.usefixtures("empty_cache")
def test_common_products_are_compiled_ahead(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.matmul.warm._LINES", (9, 64))
    monkeypatch.setattr("tilewright.runtime.matmul.warm._DEPTHS", (5,))
    said = found(run, "warm", "--type", "f32", "--type", "s8", "--target", "scalar")
    assert [one["type"] for one in said] == ["f32", "s8"] and said[0]["kernels"] >= 2
    before = len(list(cache.list_entries()))
    for dtype in (np.float32, np.int8):
        a, b = np.ones((9, 5), dtype), np.ones((5, 64), dtype)
        assert np.array_equal(tw.matmul(a, b, target="scalar"), np.full((9, 64), 5))
        assert np.array_equal(tw.matmul(b.T.copy(), a.T, target="scalar"), np.full((64, 9), 5))
    assert len(list(cache.list_entries())) == before, "nothing was compiled anew"
    again = run("warm", "--target", "scalar").stdout
    assert again.startswith(f"f32 on scalar: {said[0]['kernels']} kernels are in the cache, in ")


# -- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(2.5), "2.5 s"),
        (duration(0.0123), "12.3 ms"),
        (duration(4.5e-6), "4.5 us"),
        (duration(7.89e-8), "78.9 ns"),
        (size(1023), "1023 B"),
        (size(1536), "1.5 KiB"),
        (size(3 << 20), "3.0 MiB"),
        (size(5 << 30), "5.0 GiB"),
        (percent(0.974), "97 %"),
        (percent(None), "-"),
    ],
)
def test_figures_are_shown_in_natural_units(shown: str, expected: str) -> None:
    assert shown == expected


# -- the demo -----------------------------------------------------------------------------------


def test_the_demo_runs_with_zig_alone(tmp_path: Path) -> None:
    """No gcc, no clang, no PATH: the compiler is the ziglang package."""
    pytest.importorskip("ziglang")
    out = tmp_path / "out"
    words = ["demo", "--out", str(out), "--variants", "3", "--seconds", "0.01"]
    hidden = ("CC", "TILEWRIGHT_CC_AARCH64", "TILEWRIGHT_CACHE_DIR")
    environment = {
        **{name: value for name, value in {**os.environ}.items() if name not in hidden},
        "PATH": str(tmp_path / "empty"),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from tilewright.cli import main; main()", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "compiled by zig" in done.stdout
    machine, chapter = (done.stdout.index(part) for part in ("This machine", "chapter on Neon"))
    assert machine < chapter and "512x512x512" in done.stdout[machine:chapter]
    for part in ("loop over K", "transposition", "batch 16", "GFLOPS", "x numpy", "3 of "):
        assert part in done.stdout
    assert f"left in {out}" in done.stdout
    for name in ("gflops.png", "filter-responses.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    target = host.resolve("host").name
    for name in {target, "neon"}:
        assert len(list((out / "c" / name).glob("*.c"))) == 11


def test_the_demo_as_json(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.cli import demo
    from tilewright.cli.measured import Measured, beside

    kernel = tw.compile(tw.Gemm(8, 8, 8))
    timing = tw.Timing(median=1e-7, best=1e-7, spread=0.1, gflops=10.0, of_peak=0.5)
    one = Measured("a step", "8x8x8", kernel, timing, beside(int, int, 1e-3), 0.25)
    monkeypatch.setattr(demo, "show_machine", lambda *_: [one])
    monkeypatch.setattr(demo, "show_chapter", lambda *_: [one, one])
    monkeypatch.setattr(demo, "show_variants", lambda *_: [3.0, 2.0])
    for name in ("_plot", "write_c", "_needs_extras"):
        monkeypatch.setattr(demo, name, lambda *_: None)
    monkeypatch.setattr(
        "tilewright.examples.oriented_filters.main", lambda *_: sys.stdout.write("said") and 0
    )
    said = found(run, "demo", "--out", str(tmp_path))
    assert [len(said[name]) for name in ("products", "chapter", "variants")] == [1, 2, 2]
    assert said["products"][0]["gflops"] == 10.0 and said["chapter"][1]["title"] == "a step"
    assert said["filters"] == {"wrong": False} and len(said["files"]) == 3


def test_the_demo_says_which_packages_it_lacks(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    stderr = run("demo", "--out", str(tmp_path / "out"), status=1).stderr
    assert "the demo needs matplotlib, scipy, sklearn, threadpoolctl" in stderr
    assert "pip install 'matplotlib>=3.8' 'scikit-learn>=1.4' 'scipy>=" in stderr
    assert not (tmp_path / "out").exists()
