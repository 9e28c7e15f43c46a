"""A kernel as a static program: it passes on every target, and finds what is wrong."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compilers import FAMILIES, TARGETS, VECTORS, use

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError, SpecError, TargetError, ToolchainError
from tilewright.isa.target import Target
from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.build.compilers import Compiler, find_compiler
from tilewright.runtime.build.toolchain import (
    compile_library,
    compile_program,
    compiler_flags,
    program_commands,
)
from tilewright.runtime.emulate.runner import command_prefix
from tilewright.runtime.harness import harness, output_of
from tilewright.runtime.machine import host
from tilewright.runtime.reference.gemm import Expected
from tilewright.runtime.reference.interval import Interval
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import Spec
from tilewright.spec.signature import signature
from tilewright.targets import load

M, LDA, LDC = tw.dim("m", multiple_of=2), tw.dim("lda"), tw.dim("ldc")
BIAS, GATE = tw.Operand("bias", per="column"), tw.Operand("gate", "bf16", per="full")
LAYER: dict[str, Any] = {
    "a": "u8",
    "b": tw.Packed("s8"),
    "d": "u8",
    "a_zero": 128,
    "b_scale": "column",
}

SPECS: dict[str, tuple[Spec, tw.Schedule | None]] = {
    "f32": (tw.Gemm(7, 18, 5, beta=1), None),
    "f64_of_the_call": (
        tw.Gemm(M, 9, 5, a="f64", order="F", lda=LDA, ldc=LDC, alpha="scalar", beta="scalar"),
        None,
    ),
    "in_blocks_of_k": (
        tw.Gemm(6, 16, 40, a="bf16", d="bf16"),
        tw.Schedule(loops="knmk", block={"k": 16}),
    ),
    "threads": (tw.Gemm(32, 32, 8, a="f16"), tw.Schedule(loops="NMk", threads=2)),
    "quantised": (
        tw.Gemm(6, 20, 13, **LAYER, d_scale=0.05, d_zero=3, epilogue=tw.relu(tw.acc + BIAS)),
        None,
    ),
    "zero_points": (
        tw.Gemm(5, 9, 11, a="s8", b="u8", a_zero="row", b_zero="column", batch=tw.Strided(3, b=0)),
        None,
    ),
    "packed_batch": (
        tw.Gemm(4, 16, 6, a="bf16", b=tw.Packed("bf16", nb=8), batch=tw.Strided(2)),
        None,
    ),
    "packed_a": (tw.Gemm(5, 7, 6, a=tw.Packed("f32")), None),
    "quantized_rows_ahead": (
        tw.Gemm(M, 8, 32, a=tw.Packed(tw.Quantize("f32")), b=tw.Packed(tw.Quantized("s8"))),
        None,
    ),
    "packed_addresses": (
        tw.Gemm(4, 16, 6, a="s8", b=tw.Packed("s8"), batch=tw.Addresses(tw.dim("count"))),
        None,
    ),
    "packed_offsets": (
        tw.Gemm(3, 18, 6, a="bf16", b=tw.Packed("bf16"), batch=tw.Offsets(2, b=[2, 0])),
        None,
    ),
    "static_offsets": (tw.Gemm(3, 5, 4, batch=tw.Offsets(2, [0, 7], [3, 0])), None),
    "offsets": (tw.Gemm(3, 5, tw.dim("k"), batch=tw.Offsets(tw.dim("count"))), None),
    "operands_and_outputs": (
        tw.Gemm(5, 9, 8, a="f8_e5m2", b="f8_e4m3", c="f16", d="f8_e4m3", beta=2,
                b2="f8_e4m3", epilogue=tw.exp(tw.acc) * tw.acc2 + GATE + tw.dst,
                outputs={"amax": tw.row_absmax(tw.acc)}),
        None,
    ),
    "not_a_number": (
        tw.Gemm(4, 9, 3, d="s8", epilogue=tw.sqrt(tw.acc),
                outputs={"most": tw.row_max(tw.log(tw.acc))}),
        None,
    ),
    "nothing": (tw.Gemm(3, 4, 0), None),
    "transpose": (tw.Transpose(8, 9, "f64", ldx=12), None),
    "pack": (tw.Pack(7, 9, "s8", a="u8", source="f32"), None),
}  # fmt: skip


def attention(ids: Any, w: Any) -> Any:
    """Tensors of one axis to four, several results, and a number of rows."""
    q, k, v = tw.nn.heads(tw.nn.take(w.table, ids) @ w.qkv, 2, parts=3)
    place = tw.nn.arange(M)
    mixed = tw.nn.attention(q, k, v, mask=tw.where(place[None] <= place[:, None], 0, -np.inf))
    return mixed, tw.nn.merge(mixed), mixed.sum()


NETWORK = tw.network(attention).of(
    ids=tw.Tensor("s32", (2, M)),
    w={"table": tw.Tensor("f32", (9, 8)), "qkv": tw.Tensor("f32", (8, 24))},
)


def runs(name: str) -> bool:
    """Whether anything here runs that target."""
    try:
        host.means(host.resolve(name))
    except TargetError:
        return False
    return True


def extended(name: str) -> str:
    """The target with all its features, but for those that are alone in not running here."""
    every = load(name).features
    return "+".join((name, *(f for f in every if runs(f"{name}+{f}") or not runs(name))))


#: Every target with its features runs every spec, without them two.
FULL = [extended(name) for name in TARGETS]
PAIRS = [(name, target) for target in FULL for name in SPECS]
PAIRS += [
    (name, target) for target in TARGETS if target not in FULL for name in ("f32", "quantised")
]


@dataclass(frozen=True)
class Program:
    """A static program and what stands before it on the command line."""

    path: Path
    prefix: tuple[str, ...]

    def run(self) -> subprocess.CompletedProcess[str]:
        command = [*self.prefix, str(self.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def build(text: str, target: Target, compiler: Compiler, folder: Path) -> Program:
    path = compile_program([text], target, compiler, folder, "harness", ["-static", "-O0"])
    return Program(path, command_prefix(target))


def tools(name: str) -> tuple[Target, Compiler]:
    """A target and what compiles for it here; the test is skipped where nothing runs it."""
    target = host.resolve(name)
    try:
        return target, find_compiler(target, emulated=host.means(target) != "native")
    except (TargetError, ToolchainError) as error:
        pytest.skip(str(error))


# -- it passes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "target"), PAIRS)
def test_a_harness_passes(name: str, target: str, tmp_path: Path) -> None:
    found, compiler = tools(target)
    text = harness(*SPECS[name], target, name="kernel")
    ran = build(text, found, compiler, tmp_path).run()
    assert (ran.returncode, ran.stdout) == (0, "pass: kernel, 2 cases\n")


@pytest.mark.parametrize("target", ["scalar", "neon"])
def test_a_harness_of_a_network_passes(target: str, tmp_path: Path) -> None:
    found, compiler = tools(target)
    text = harness(NETWORK, None, target, name="kernel")
    ran = build(text, found, compiler, tmp_path).run()
    assert (ran.returncode, ran.stdout) == (0, "pass: kernel, 2 cases\n")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", VECTORS)
def test_compilers_take_it_without_a_warning(
    target: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the instruction set's own intrinsics, whether they run here or not."""
    compiler = use(family, load(target), monkeypatch)
    text = harness(*SPECS["operands_and_outputs"], target, name="kernel")
    assert "-Werror" in compiler_flags(load(target), compiler)
    build(text, load(target), compiler, tmp_path)


@pytest.mark.parametrize("target", ["scalar", "avx512+vnni+bf16", "power10", "rvv256", "sme"])
def test_the_commands_in_the_file_build_it(target: str, tmp_path: Path) -> None:
    """Each stands below the version that it asks for, where the target asks for one."""
    text = harness(*SPECS["quantised"], target, name="kernel")
    written = re.findall(r"^ \*  +(\S+ .* -static .*)$", text, re.MULTILINE)
    commands = program_commands(host.resolve(target), "kernel.c", "kernel")
    assert [line.split() for line in written] == [list(words) for words in commands.values()]
    least = host.resolve(target).compilers
    said = dict(re.findall(r"^ \* (?:With|or with) (\w+) (\S+) or later$", text, re.MULTILINE))
    assert said == {family: least[family] for family in commands if least}
    (tmp_path / "kernel.c").write_text(text)
    for family, (compiler, *options) in commands.items():
        found = new_enough(compiler, least.get(family, "0"))
        if found is None:
            continue
        command = [found, *options, "-Werror"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        if host.is_native(host.resolve(target)):
            assert Program(tmp_path / "kernel", ()).run().returncode == 0


def new_enough(compiler: str, least: str) -> str | None:
    """The compiler, by its name or one with a number, if it is here in that version."""
    for name in filter(shutil.which, (compiler, f"{compiler}-19")):
        said = subprocess.run([name, "--version"], capture_output=True, text=True, check=True)
        version = re.search(r"(?:version |\) )(\d+(?:\.\d+)*)", said.stdout)
        assert version is not None, said.stdout
        if host.numbers_of(version[1]) >= host.numbers_of(least):
            return name
    return None


# -- it fails -----------------------------------------------------------------------------------


def spoiled(text: str, statement: str) -> str:
    """The harness of a kernel that does something else at its end."""
    found = re.search(r"void kernel_invoke\([^;]*?\n\{.*?(?=\n\}\n)", text, re.DOTALL)
    assert found is not None
    return text[: found.end()] + f"\n    {statement}" + text[found.end() :]


def expecting(text: str, block: str, index: int, value: str) -> str:
    """The harness with another number in an array."""
    head, _, rest = text.partition(f" {block}[] = {{\n")
    numbers, end, tail = rest.partition("\n};")
    listed = numbers.split(",")
    listed[index] = f" {value}"
    assert end
    return f"{head} {block}[] = {{\n{','.join(listed)}{end}{tail}"


def outcome(text: str, folder: Path, target: str = "scalar") -> tuple[int, str]:
    found, compiler = tools(target)
    ran = build(text, found, compiler, folder).run()
    return ran.returncode, ran.stdout


@pytest.mark.parametrize("target", ["scalar", "avx2", "avx512", "neon"])
def test_an_expected_value_that_is_wrong_fails(target: str, tmp_path: Path) -> None:
    text = harness(*SPECS["f32"], target, name="kernel")
    text = expecting(expecting(text, "run1_c_low", 18 + 3, "77"), "run1_c_high", 18 + 3, "77")
    status, said = outcome(text, tmp_path, target)
    assert status == 1
    assert re.match(r"fail: case 1: c\[1, 3\] is -?\d\S*, expected 77\n", said), said
    assert "\n1 of 126 elements of c are wrong\n" in said


@pytest.mark.parametrize("target", ["scalar", "avx2", "avx512", "neon"])
def test_a_kernel_that_is_wrong_fails(target: str, tmp_path: Path) -> None:
    text = harness(*SPECS["quantised"], target, name="kernel")
    status, said = outcome(spoiled(text, "((uint8_t *)arrays[2])[3] ^= 128;"), tmp_path, target)
    assert status == 1
    assert re.match(r"fail: case 0: d\[0, 3\] is \d+, expected \d+", said), said


@pytest.mark.parametrize(
    ("spec", "statement", "said"),
    [
        (tw.Gemm(4, 5, 3, order="F"), "((float *)arrays[2])[9] += 1;", r"c\[1, 2\] is -?\d+, exp"),
        (tw.Gemm(4, 5, 3), "((float *)arrays[2])[7] = NAN;", r"c\[1, 2\] is nan, expected -?\d+\n"),
        (tw.Gemm(4, 5, 3, ldc=8), "((float *)arrays[2])[13] = 1;", "byte 52 of c changed, which"),
        (tw.Gemm(4, 5, 3), "((float *)arrays[2])[-1] = 1;", "byte -4 of c changed, which"),
        (tw.Gemm(4, 5, 3), "((char *)arrays[2])[80 + 63] = 1;", "byte 143 of c changed, which"),
        (
            tw.Gemm(4, 5, 3, outputs={"most": tw.row_max(tw.acc)}),
            "((float *)arrays[3])[2] = 99;",
            r"most\[2\] is 99, expected -?\d+\n",
        ),
        (
            tw.Gemm(4, 5, 3, d="bf16", epilogue=tw.sqrt(-tw.square(tw.acc) - 1)),
            "((uint16_t *)arrays[2])[6] = 0x3f80;",
            r"d\[1, 1\] is 1, expected nan\n1 of 20 elements",
        ),
    ],
)
def test_it_says_what_is_wrong(spec: Spec, statement: str, said: str, tmp_path: Path) -> None:
    text = harness(spec, None, "scalar", name="kernel").replace(
        "#include <string.h>", "#include <string.h>\n#include <math.h>", 1
    )
    assert outcome(text, tmp_path)[0] == 0
    status, found = outcome(spoiled(text, statement), tmp_path)
    assert status == 1
    assert re.match(f"fail: case 0: {said}", found), found


def test_inputs_cannot_be_written(tmp_path: Path) -> None:
    text = spoiled(
        harness(tw.Gemm(4, 5, 3), None, "scalar", name="kernel"), "*(float *)arrays[0] = 1;"
    )
    assert outcome(text, tmp_path)[0] != 0


def test_what_is_written_may_be_read_first(tmp_path: Path) -> None:
    """C comes in as it was given, once for each case."""
    text = harness(tw.Gemm(2, 3, 0, beta=1, ldc=4), None, "scalar", name="kernel")
    assert outcome(text, tmp_path)[0] == 0
    assert outcome(expecting(text, "run1_c_held", 5, "3.5f"), tmp_path)[0] == 1


def test_no_memory_is_said(tmp_path: Path) -> None:
    text = harness(tw.Gemm(tw.dim("m"), 8, 9, a="s8", b_zero=3), None, "scalar", name="kernel")
    assert outcome(text, tmp_path)[0] == 0
    call = "aligned_alloc(64, (size_t)bytes)"
    assert call in text
    status, said = outcome(text.replace(call, 'getenv("NO_SUCH_NAME")'), tmp_path)
    assert status == 1
    assert re.fullmatch(r"fail: case 0: no memory for \d+ bytes of scratch\n", said), said


# -- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["f16", "bf16", "f8_e4m3", "f8_e5m2"])
def test_every_element_has_its_value(type_: Any, tmp_path: Path) -> None:
    text = harness(tw.Gemm(1, 1, 1, a=type_, d=type_), None, "scalar", name="kernel")
    found = re.search(rf"static (double tw_value_{type_}.*?\n\}}\n)", text, re.DOTALL)
    assert found is not None
    heads = "".join(f"#include <{name}.h>\n" for name in ("math", "stdint", "string"))
    declared = f"double tw_value_{type_}(const unsigned char *);\n"
    target, compiler = tools("scalar")
    path = compile_library(heads + declared + found[1], target, compiler, tmp_path, "value")
    function = getattr(ctypes.CDLL(str(path)), f"tw_value_{type_}")
    function.restype = ctypes.c_double
    size = DTYPES[type_].itemsize
    bits = np.arange(2 ** (8 * size)).astype(f"u{size}")
    first = bits.ctypes.data
    values = [function(ctypes.c_void_p(at)) for at in range(first, first + bits.nbytes, size)]
    np.testing.assert_array_equal(values, decode(bits.view(DTYPES[type_]), type_))


@pytest.mark.parametrize("type_", ["f32", "bf16", "f8_e4m3", "s8"])
def test_limits_say_what_is_wrong(type_: str) -> None:
    """A number, a range, NaN alone, anything, and what overflows surely or perhaps."""
    value = np.array([1, 2, np.nan, 0, np.inf, 400])
    low = np.array([1, 1.5, np.nan, np.nan, np.inf, 300])
    high = np.array([1, 3, np.nan, np.nan, np.inf, np.inf])
    right = Expected(Interval(value, low, high, "f32"), type_)
    good = encode([1, 2.5, np.nan, -100, np.inf, 350], type_)
    bad = encode([1.5, 3.5, 5, 0, 3, 100], type_)
    assert not right.wrong(good).any()
    assert list(right.wrong(bad)) == [True, True, True, False, True, True]
    assert right.wrong(encode(np.full(6, np.nan), type_))[0]
    least, greatest, nan = right.limits()
    assert list(nan) == {
        "f8_e4m3": [False, False, True, True, True, True],
        "s8": [False, False, False, True, False, False],
    }.get(type_, [False, False, True, True, False, False])
    assert np.array_equal(least > greatest, np.isnan(value) & (type_ != "s8"))


def test_limits_between_which_no_element_lies_are_kept() -> None:
    """What is summed in more than f64 has for limits the f64 within."""
    third = np.ones((1, 1), np.longdouble) / 3
    right = Expected(Interval(third, third * (1 - 2.0**-60), third * (1 + 2.0**-60), "f64"), "f64")
    block = output_of("x", signature(tw.Gemm(1, 1, 1, a="f64")).output, np.ones((1, 1)), right)
    low, high = block.low.numbers[0], block.high.numbers[0]
    assert low > high
    assert np.nextafter(high, 1) == low


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "numbers"),
    [
        (tw.Gemm(1000, 1000, 1000), "about 8,000,000 numbers in 2 cases"),
        (tw.Gemm(tw.dim("m", multiple_of=10**6), 3, 4), "about 20,000,024 numbers in 2 cases"),
        (tw.Gemm(tw.dim("m", multiple_of=4), 3, 100_000, lda=tw.dim("lda")), r"about \d+,\d+,\d+"),
        (tw.Gemm(4, 4, 4, batch=tw.Offsets(2, [0, 10**12], [0, 0])), "about 2,000,000,000,"),
        (tw.Gemm(4, 4, 4, batch=tw.Strided(2, a=10**12)), "about 2,000,000,000,"),
        (tw.Gemm(4, 4, 4, lda=10**12), "about 6,000,000,000,"),
        (tw.Gemm(64, 64, 64, batch=tw.Strided(10**6)), "in 2 cases"),
    ],
)
def test_too_much_is_refused(spec: Spec, numbers: str) -> None:
    with pytest.raises(ArgumentError, match="too long to be written into C") as caught:
        harness(spec, None, "scalar")
    assert re.search(numbers, str(caught.value))
    assert "smaller sizes" in str(caught.value)


def test_what_makes_no_sense_is_refused() -> None:
    spec: Any = tw.Gemm(2, 2, 2)
    with pytest.raises(ArgumentError, match="a harness needs a case"):
        harness(spec, cases=0)
    with pytest.raises(SpecError, match="cannot be called main"):
        harness(spec, name="main")
    with pytest.raises(SpecError, match="must be a C identifier"):
        harness(spec, name="a kernel")
    with pytest.raises(SpecError, match="a spec is"):
        harness("spec")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="a schedule is"):
        harness(spec, "nmk")  # type: ignore[arg-type]


def test_a_seed_says_all() -> None:
    spec = SPECS["f64_of_the_call"][0]
    one, two, other = (harness(spec, target="scalar", seed=seed) for seed in (3, 3, 4))
    assert one == two
    assert one != other
    assert "kernel.verify(cases=2, seed=3)" in one
    assert re.search(
        r"^ \* Case 1: m = \d+, lda = \d+, ldc = \d+, alpha = \S+, beta = ", one, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [("int", "a word of C"), ("restrict", "a word of C"), ("bool", "a word of C"),
     ("printf", "declared by the headers"), ("uint8_t", "declared by the headers"),
     ("_Bool", "reserved"), ("__kernel", "reserved"), ("tw_fill", "reserved"),
     ("main", "cannot be called main")],
)  # fmt: skip
def test_a_name_that_c_gives_another_meaning_is_refused(name: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        harness(tw.Gemm(4, 4, 4), target="scalar", name=name)
    assert f"got: {name}" in str(caught.value)
