"""The generated C reads as written by hand: its width, names, comments, constants and banner.

It has no warning under -Wconversion either, as C and as C++.
"""

from __future__ import annotations

import functools
import operator
import re
import shutil
import struct
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.compilers import FAMILIES, TARGETS, use
from support.source_tree import ROOT
from support.specimens import SPECIMENS, able

import tilewright as tw
from tilewright import targets
from tilewright.cli import main
from tilewright.emit.layout import WIDTH, folded, pasted
from tilewright.generate import Request, generate
from tilewright.runtime.build.toolchain import compiler_flags
from tilewright.runtime.machine.host import machine
from tilewright.spec.pack import Pack

COMMITTED = sorted((ROOT / "generated").rglob("*.c"))
every_file = pytest.mark.parametrize("path", COMMITTED, ids=lambda p: f"{p.parent.name}/{p.stem}")
#: A literal in C, and the exact value that stands beside it.
CONSTANT = re.compile(r"_const\d+ = \w+\((-?[\d.]+(?:e[+-]?\d+)?)(f?)\);(?: /\* (\S+) \*/)?")


def text_of(spec: tw.Gemm, target: str = "avx512", schedule: tw.Schedule | None = None) -> str:
    request = Request("kernel", spec, schedule or tw.Schedule(), targets.load(target))
    return generate([request]).text


# -- lines --------------------------------------------------------------------------------------


@every_file
def test_lines_are_short_and_say_nothing_twice(path: Path) -> None:
    text = path.read_text()
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    for pattern in (r"BARRIER;\s+BARRIER;", r"\(size_t\)\(?\d+\)? \*", r"\*\(\w+\)", r"\n\n\n"):
        assert not re.search(pattern, text), pattern
    assert "In straight code" not in text


@pytest.mark.parametrize(
    "spec",
    [
        tw.Gemm(4, 4, 4, batch=tw.Offsets(200, a=list(range(200)), b=[0] * 200)),
        tw.Gemm(*(tw.dim(f"a_very_long_name_of_a_size_{x}") for x in "mnk"), lda=tw.dim("lda")),
        tw.Gemm(8, 8, 8, d="s8", epilogue=tw.clip(tw.acc * tw.Operand("x" * 70), -3, 1e9)),
    ],
    ids=["offsets", "sizes", "operand"],
)
@pytest.mark.parametrize("target", TARGETS)
def test_long_texts_are_folded(spec: tw.Gemm, target: str) -> None:
    assert max(map(len, text_of(spec, target).splitlines())) <= WIDTH


def test_a_line_without_a_place_to_break_stays() -> None:
    word = "x" * (WIDTH + 1)
    assert folded(f"    {word};") == f"    {word};"
    assert folded("a {\n\n\n    b;") == "a {\n    b;"


def test_specimens_are_small_enough_to_be_read() -> None:
    """Without their first comment, which says the flags; the threads of one take 210 lines."""
    texts = {path: path.read_text().partition(" */\n")[2] for path in COMMITTED}
    lengths = {path: text.count("\n") for path, text in texts.items()}
    assert sum(lengths.values()) < 10_940
    threads = {path for path, text in texts.items() if "pool_run" in text}
    assert len(threads) == 1
    most = {path: 520 + 210 * (path in threads) for path in texts}
    assert [str(path) for path, length in lengths.items() if length > most[path]] == []


# -- names and comments ---------------------------------------------------------------------------


def test_values_carry_their_accumulator_and_stage() -> None:
    bias = tw.Operand("bias", "f32", per="column")
    spec = tw.Gemm(
        6, 20, 13, a="u8", b="s8", d="u8", a_zero=128, b_scale="column", d_scale=0.05, d_zero=3,
        epilogue=tw.relu(tw.acc + bias),
    )  # fmt: skip
    text = text_of(spec)
    stages = (
        "less_a_zero", "f32", "times_b_scale", "plus_bias", "relu", "over_d_scale", "plus_d_zero",
        "u8",
    )  # fmt: skip
    for row in range(6):
        for vector in range(2):
            acc = f"c{row}_{vector}"
            made = [re.search(rf"const \w+ {acc}_{stage} = ", text) for stage in stages]
            places = [found.start() for found in made if found]
            assert len(places) == len(stages) and places == sorted(places)
            assert re.search(rf"{acc}_relu = .*\b{acc}_plus_bias\b", text)
            assert row == vector == 0 or f"/* {acc}: row {row}, column" in text
    notes = re.findall(r"/\* (.*) \*/", text)
    for note in (
        "Load, multiply-add.",
        "Zero point of A, times the sums of B's columns over K: subtracted.",
        "Convert the sums to f32.",
        "Times b_scale.",
        "Epilogue: plus bias.",
        "Epilogue: relu.",
        "Divided by d_scale: times its reciprocal.",
        "Plus the zero point of D.",
        "Store, as u8.",
    ):
        assert note in notes


def test_sets_of_accumulators_are_said_to_be_added() -> None:
    text = text_of(tw.Gemm(4, 16, 64), schedule=tw.Schedule(tile=(4, 16), k_split=2))
    assert "/* Add the sets of accumulators that K was split over. */" in text
    assert "/* Store the sums. */" in text


@pytest.mark.parametrize("target", TARGETS)
def test_values_of_operands_have_names_of_their_own(target: str) -> None:
    """Scalars of the call are spread under another name than the parameter's."""
    spec = tw.Gemm(
        5, 9, 7, a="s8", b="s8", a_zero="scalar", b_zero="scalar", a_scale="row", d="s8",
        d_scale="scalar", alpha="scalar", beta="scalar", outputs={"amax": tw.row_absmax(tw.acc)},
    )  # fmt: skip
    text = text_of(spec, target)
    for function in text.split("static inline void ")[1:]:
        signature, _, body = function.partition("\n{")
        for name in re.findall(r"(\w+)[,)]", signature):
            assert not re.search(rf"\b(const )?__?\w+ {name} = ", body.partition("\n}")[0])


def test_functions_of_one_file_have_names_of_their_own() -> None:
    requests = [
        Request(name, tw.Gemm(8, 8, 8), tw.Schedule(), targets.load("avx2"))
        for name in ("one", "two")
    ]
    text = generate(requests).text
    functions = re.findall(r"^static inline \w+ (\w+)\(", text, re.MULTILINE)
    assert sorted(functions) == ["k0_tile0_8x8", "k1_tile0_8x8"]
    alone = generate(requests[:1]).text
    assert re.findall(r"^static inline \w+ (\w+)\(", alone, re.MULTILINE) == ["tile0_8x8"]


def test_a_kernel_called_as_its_tile_would_be() -> None:
    request = Request("tile0_8x8", tw.Gemm(8, 8, 8), tw.Schedule(), targets.load("avx2"))
    text = generate([request]).text
    assert re.findall(r"^static inline \w+ (\w+)\(", text, re.MULTILINE) == ["k0_tile0_8x8"]
    assert "\nvoid tile0_8x8(const float *a" in text


def test_a_multiply_add_and_what_holds_it_are_one_macro() -> None:
    text = text_of(tw.Gemm(64, 48, 64))
    assert text.count("#define MULADD_F32X16(") == 1
    assert len(re.findall(r"^ +MULADD_F32X16\(c\d+_\d", text, re.MULTILINE)) >= 16
    assert not re.search(r"^ +KEEP_\d\(c", text, re.MULTILINE)


@pytest.mark.parametrize(
    "spec",
    [
        tw.Gemm(8, 16, 8, b2="f32", epilogue=tw.acc * tw.acc2),
        tw.Gemm(tw.dim("m"), 4, tw.dim("k"), b="bf16", a="bf16"),
        tw.Gemm(
            tw.dim("s"),
            tw.dim("s"),
            tw.dim("s"),
            batch=tw.Strided(tw.dim("count")),
            beta="scalar",
        ),
        tw.Gemm(4, 8, 4, batch=tw.Offsets(2, a=[0, 16], b=[0, 0]), a_zero="scalar", a="u8", b="s8"),
        tw.Gemm(4, 0, 4, batch=tw.Addresses(3)),
    ],
    ids=["gated", "sizes", "one_size", "offsets", "empty"],
)
@pytest.mark.parametrize("target", ["avx2", "scalar"])
@pytest.mark.parametrize("threads", [None, 4])
def test_only_what_is_not_used_is_said_to_be(
    spec: tw.Gemm, target: str, threads: int | None
) -> None:
    text = code_of(text_of(spec, target, tw.Schedule(threads=threads)))
    for function in re.split(r"\n}\n", text):
        for name in re.findall(r"\(void\)(\w+)[,;]", function):
            body = function[function.rindex("\n{") :]
            assert len(re.findall(rf"\b{name}\b", body)) == 1, (name, body)


# -- constants ------------------------------------------------------------------------------------


def test_constants_are_decimal_at_the_top_and_exact() -> None:
    text = text_of(tw.Gemm(4, 16, 8, epilogue=tw.gelu_erf(tw.acc)))
    found = CONSTANT.findall(text)
    assert len(found) > 20
    for decimal, single, beside in found:
        assert single == "f"
        stored = struct.unpack("f", struct.pack("f", float(decimal)))[0]
        if beside:
            assert float.fromhex(beside) == stored
        else:
            assert float(decimal) == stored
    function = text[text.index("static inline void tile") :]
    assert function.index("gelu_erf_magnitude_const0 =") < function.index("BARRIER;")
    assert "set1_ps(0x" not in text


def test_the_parts_of_a_function_are_named() -> None:
    """A reader finds the numerator and changes its coefficients."""
    text = text_of(tw.Gemm(4, 16, 8, epilogue=tw.gelu_erf(tw.acc)))
    for part in ("magnitude", "power", "bell", "numerator", "denominator", "quotient"):
        assert re.search(rf" c0_0_gelu_erf_{part} = ", text), part
    assert not re.search(r"gelu_erf_(const)?\d+ = ", text)


def test_a_constant_is_declared_once() -> None:
    text = text_of(tw.Gemm(8, 8, 8, a="f8_e4m3", b="f8_e4m3", d="bf16"), "avx2")
    for function in text.split("static inline void ")[1:]:
        declared = re.findall(r"const \w+ (\w+_const\w*) = ", function.partition("\n}")[0])
        assert len(declared) == len(set(declared))


# -- the banner -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "restrict"), [(0, "restrict "), (1, "")])
def test_d_may_be_the_memory_of_c(beta: int, restrict: str) -> None:
    text = text_of(tw.Gemm(4, 16, 8, beta=beta, d=tw.Matrix("f32")))
    assert re.search(rf"tile0_4x16\(.*float \*{restrict}d\)", text)


def command_of(text: str) -> list[str]:
    """The words of the command in a file's banner, pasted into a shell as they stand there."""
    _, _, after = text.partition(" * Command:\n")
    command = after[: after.index("\n */")]
    shell = f'tilewright() {{ printf "%s\\0" tilewright "$@"; }}\n{command}\n'
    ran = subprocess.run(["sh", "-eu"], input=shell, capture_output=True, text=True, check=True)
    return ran.stdout.split("\0")[:-1]


@every_file
def test_the_command_in_the_banner_makes_the_file_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *words = command_of(path.read_text())
    assert program == "tilewright"
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert Path(path.name).read_text() == path.read_text()


def test_a_long_command_is_pasted_as_it_is() -> None:
    """Broken within its quotation marks too, where no word of it may change."""
    operands = [tw.Operand(f"operand_{i}" + "_" * 30, "f32", per="column") for i in range(8)]
    spec = tw.Gemm(
        3,
        4,
        5,
        epilogue=functools.reduce(operator.add, operands, tw.acc),
        lda=tw.dim("lda", multiple_of=8),
    )
    text = text_of(spec, "scalar", tw.Schedule(tile=(1, 1), loops="nmk"))
    assert max(map(len, text.splitlines())) <= WIDTH
    words = command_of(text)
    assert words[-1] == repr(spec) and len(repr(spec)) > 2 * WIDTH
    assert words[words.index("--schedule") + 1] == repr(tw.Schedule(tile=(1, 1), loops="nmk"))
    assert pasted([["a", "b c", 'd"$`\\'], ["e, f"]]) == 'a "b c" "d\\"\\$\\`\\\\" \\\n  "e, f"'


def test_the_banner_says_the_resolved_schedule() -> None:
    text = text_of(tw.Gemm(64, 48, 64))
    said = re.search(r"^ \* Resolved: (Schedule\(.*\))$", text, re.MULTILINE)
    assert said is not None
    for name in ("tile=", "loops=", "k_unroll=", "k_split=", "vectorize="):
        assert name in said[1]
    assert " * Schedule: Schedule()\n" in text


def code_of(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("target", ["avx2", "avx512", "neon", "scalar"])
@pytest.mark.parametrize("sizes", [(64, 48, 64), (6, 20, 13), (8, 8, 8), (37, 37, 37)])
def test_the_resolved_schedule_makes_the_same_code(
    sizes: tuple[int, int, int], target: str
) -> None:
    from tilewright.cli.code import schedule_of_code

    text = text_of(tw.Gemm(*sizes), target)
    said = re.search(r" \* Resolved: (.*?)\n \* Target", text, re.DOTALL)
    assert said is not None
    schedule = schedule_of_code(said[1].replace("\n *", " "))
    first = re.compile(r"static inline void tile0.*?\n}\n", re.DOTALL)
    again = text_of(tw.Gemm(*sizes), target, schedule)
    wanted, found = (first.search(code_of(each)) for each in (text, again))
    assert wanted is not None and found is not None
    assert found[0] == wanted[0]


# -- compilers ------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def text_of_all(target: str, *, parallel: bool) -> str:
    """Kernels of every kind in one text; each compiler is given the same."""
    found = targets.load(target)
    names = [name for name in able(target) if parallel or "parallel" not in name]
    requests = [Request(name, *SPECIMENS[name], found) for name in names]
    requests.append(Request("pack_s8", Pack(33, 9, "s8"), tw.Schedule(), found))
    return generate(requests).text


@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "target", [pytest.param(n, marks=pytest.mark.xdist_group(f"text-{n}")) for n in TARGETS]
)
def test_it_has_no_warning_as_c_and_as_cpp(
    target: str, family: str, language: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = targets.load(target)
    there = language == "c" or found.machine in ("", machine())  # C++'s headers for threads
    (tmp_path / "all.c").write_text(text_of_all(target, parallel=there))
    compiler = use(family, found, monkeypatch)
    command = list(compiler.command)
    flags = list(compiler_flags(found, compiler))
    if language == "c++":
        plus = ("gcc", "g++") if family == "gcc" else ("clang", "clang++")
        command[0] = command[0].replace(*plus)
        flags = [flag for flag in flags if not flag.startswith("-std=")] + ["-std=c++17"]
        if shutil.which(command[0]) is None:
            pytest.skip(f"no {command[0]}")
    strict = ["-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only", "-x", language]
    result = subprocess.run(
        [*command, *flags, *strict, "all.c"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[:3000]
