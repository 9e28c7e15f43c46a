"""Every compiler compiles for every target it can, and says what is wrong when it cannot."""

from __future__ import annotations

import ctypes
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import compilers as supported

import tilewright as tw
from tilewright.errors import TilewrightError, ToolchainError
from tilewright.generate import Request, generate
from tilewright.isa.target import Target
from tilewright.runtime.build import compilers, toolchain
from tilewright.runtime.build.compilers import Compiler, find_compiler
from tilewright.runtime.build.toolchain import compile_library, compile_program, compiler_flags, disassemble
from tilewright.runtime.machine import host
from tilewright.settings import settings
from tilewright.targets import load

DATA = Path(__file__).parent.parent / "data"
KERNEL = (DATA / "kernel.c").read_text()
MULADD = "float f(float, float, float);\nfloat f(float x, float y, float z) { return x * y + z; }\n"
ZIG = f"{sys.executable} -m ziglang cc"
SCALAR = load("scalar")

here = pytest.mark.skipif(host.machine() != "x86_64", reason="looks at x86 instructions")


def command_of(family: str) -> str:
    """A CC for the family; skips where it is not installed."""
    found = find_spec("ziglang") if family == "zig" else shutil.which(family)
    if found is None:
        pytest.skip(f"{family} is not installed")
    return ZIG if family == "zig" else family


def use(monkeypatch: pytest.MonkeyPatch, command: str | None) -> None:
    for name in ("CC", "TILEWRIGHT_CC_AARCH64"):
        monkeypatch.delenv(name, raising=False)
    if command is not None:
        monkeypatch.setenv("CC", command)


def computes(library: Path) -> bool:
    axpy = ctypes.CDLL(str(library)).axpy
    array = ctypes.c_float * 3
    out = array()
    axpy(array(1, 2, 3), array(1, 1, 1), out, ctypes.c_int64(3), ctypes.c_float(2))
    return list(out) == [3, 4, 5]


families = pytest.mark.parametrize("family", ["gcc", "clang", "zig"])


# -- compiling ----------------------------------------------------------------------------------


@families
def test_a_library(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, command_of(family))
    compiler = find_compiler(SCALAR, emulated=False)
    assert compiler.family == family
    assert compiler.version[0].isdigit()
    assert compiler.triple.startswith(host.machine())
    library = compile_library(KERNEL, SCALAR, compiler, tmp_path, "kernel")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernel.c", "kernel.so"]
    assert library == tmp_path / "kernel.so"
    assert computes(library)


@families
def test_a_library_of_several_texts(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, command_of(family))
    compiler = find_compiler(SCALAR, emulated=False)
    library = compile_library([KERNEL, MULADD], SCALAR, compiler, tmp_path, "kernel")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "kernel.so", "kernel_0.c", "kernel_1.c",
    ]  # fmt: skip
    assert computes(library)
    assert hasattr(ctypes.CDLL(str(library)), "f")


@here
@families
def test_nothing_is_contracted_or_native(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, command_of(family))
    for name in ("avx2", "avx512", "scalar"):
        target = load(name)
        compiler = find_compiler(target, emulated=False)
        text = disassemble(compile_library(MULADD, target, compiler, tmp_path, name), compiler, "f")
        assert "fmadd" not in text
        assert ("vmulss" in text) == (name != "scalar")
        assert "-march=native" not in compiler_flags(target, compiler)


@families
def test_warnings_are_errors(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, command_of(family))
    compiler = find_compiler(SCALAR, emulated=False)
    text = "int f(void);\nint f(void)\n{\n    int unused;\n    return 0;\n}\n"
    with pytest.raises(ToolchainError, match="unused") as caught:
        compile_library(text, SCALAR, compiler, tmp_path, "kernel")
    assert "kernel.c:4" in str(caught.value)
    assert "-Wextra" in str(caught.value)
    compile_library(text, SCALAR, compiler, tmp_path, "kernel", ["-Wno-unused-variable"])


@pytest.mark.parametrize("command", [None, ZIG, "aarch64-linux-gnu-gcc"])
def test_the_other_architecture(
    command: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if host.machine() == "aarch64":
        pytest.skip("this is the other architecture")
    if command == ZIG:
        command_of("zig")
    elif command is not None and shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    use(monkeypatch, "a compiler for this machine only")
    if command is not None:
        monkeypatch.setenv("TILEWRIGHT_CC_AARCH64", command)
    neon = load("neon")
    compiler = find_compiler(neon, emulated=True)
    assert compiler.triple.startswith("aarch64")
    library = compile_library(KERNEL, neon, compiler, tmp_path, "kernel")
    assert library.read_bytes()[18] == 183, "the ELF header does not say AArch64"
    assert "<axpy>" in disassemble(library, compiler, "axpy")


# -- finding ------------------------------------------------------------------------------------


def test_cc_may_hold_options_and_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = shutil.which(command_of("gcc"))
    assert gcc is not None
    use(monkeypatch, "gcc -DEXTRA -fno-strict-aliasing")
    assert find_compiler(SCALAR, emulated=False).command == (
        "gcc",
        "-DEXTRA",
        "-fno-strict-aliasing",
    )
    (tmp_path / "my tools").mkdir()
    spaced = tmp_path / "my tools" / "gcc"
    spaced.symlink_to(gcc)
    for command in (str(spaced), f"'{spaced}' -DEXTRA"):
        use(monkeypatch, command)
        compiler = find_compiler(SCALAR, emulated=False)
        assert compiler.command[0] == str(spaced)
        out = tmp_path / "out of space"
        out.mkdir(exist_ok=True)
        assert computes(compile_library(KERNEL, SCALAR, compiler, out, "kernel"))


def only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *programs: str) -> None:
    """Leave nothing on PATH but these."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in programs:
        path = shutil.which(program)
        if path is None:
            pytest.skip(f"{program} is not installed")
        (folder / program).symlink_to(path)
    monkeypatch.setenv("PATH", str(folder))


def test_without_gcc_clang_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    only(monkeypatch, tmp_path, "clang")
    assert find_compiler(SCALAR, emulated=False).family == "clang"


def test_without_either_zig_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command_of("zig")
    use(monkeypatch, None)
    only(monkeypatch, tmp_path)
    compiler = find_compiler(SCALAR, emulated=False)
    assert compiler.command == (sys.executable, "-m", "ziglang", "cc")
    flags = compiler_flags(SCALAR, compiler)
    assert flags[flags.index("-target") + 1].startswith(f"{host.machine()}-")
    assert "-mcpu=baseline" in flags
    assert computes(compile_library(KERNEL, SCALAR, compiler, tmp_path, "kernel"))


@pytest.mark.parametrize(
    ("name", "advice"),
    [("scalar", "apt-get install gcc"), ("neon", "apt-get install gcc-aarch64-linux-gnu")],
)
def test_without_any_it_says_what_to_install(
    name: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, None)
    only(monkeypatch, tmp_path)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    monkeypatch.setattr(toolchain, "machine", lambda: "x86_64")
    with pytest.raises(ToolchainError, match=advice) as caught:
        find_compiler(load(name), emulated=False)
    assert "pip install ziglang" in str(caught.value)


@pytest.mark.parametrize("command", ["no-such-compiler", "/no/such/cc -O3", "' '"])
def test_a_cc_that_is_not_there(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, command)
    with pytest.raises(ToolchainError, match="is not there"):
        find_compiler(SCALAR, emulated=False)


@pytest.mark.parametrize("command", ["true", "false", "aarch64-linux-gnu-gcc"])
def test_a_cc_that_is_no_compiler_for_this_machine(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(command) is None or host.machine() == "aarch64":
        pytest.skip(f"no {command} that is foreign here")
    use(monkeypatch, command)
    with pytest.raises(ToolchainError, match=r"of no use here|failed with status 1"):
        find_compiler(SCALAR, emulated=False)


@pytest.mark.parametrize("command", ["gcc 'x", 'clang "', "gcc \\"])
def test_a_cc_that_is_no_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", command)
    expected = r"(?s)cannot be read as a command.*unset CC"
    with pytest.raises(ToolchainError, match=expected) as caught:
        find_compiler(load("scalar"), emulated=False)
    assert command in str(caught.value)


def test_a_compiler_is_asked_for_its_version_once(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    first = find_compiler(SCALAR, emulated=False)
    monkeypatch.setattr(compilers, "run_tool", lambda *args: pytest.fail("asked again"))
    assert find_compiler(SCALAR, emulated=False) == first


def test_a_compiler_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    compiler = find_compiler(SCALAR, emulated=False)
    gone: Compiler = replace(compiler, command=("/no/such/gcc",))
    with pytest.raises(ToolchainError, match="cannot be started"):
        compile_program([KERNEL], SCALAR, gone, tmp_path, "program")


#: A compiler that starts another process, says which, and neither of the two ever ends.
ENDLESS = """#!/bin/sh
sleep 1000 &
echo $! >started
wait
"""


def test_a_compiler_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = tmp_path / "endless"
    endless.write_text(ENDLESS)
    endless.chmod(0o700)
    compiler = Compiler((str(endless),), "gcc", "12", "x86_64-linux-gnu")
    monkeypatch.setenv("TILEWRIGHT_COMPILE_SECONDS", "0.5")
    expected = r"(?s)endless did not end within 0.5 s.*-c program.c.*TILEWRIGHT_COMPILE_SECONDS"
    with pytest.raises(ToolchainError, match=expected):
        compile_program([KERNEL], SCALAR, compiler, tmp_path, "program")
    state = Path("/proc") / (tmp_path / "started").read_text().strip() / "stat"
    assert not state.exists() or " Z " in state.read_text()


@pytest.mark.parametrize("seconds", ["soon", "0", "-3", "inf", "nan"])
def test_what_is_no_time_is_refused(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_COMPILE_SECONDS", seconds)
    with pytest.raises(TilewrightError, match=f"(?s)is not a time.*{seconds}.*positive number"):
        _ = settings().compile_seconds


def test_clang_does_not_follow_a_row_of_scalars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sum is twice in the greatest so far: were these const, clang 14 and 19 tried 2^30 ways."""
    target = load("avx512")
    schedule = tw.Schedule(tile=(1, 30), vectorize="m")
    spec = tw.Gemm(
        1, 30, 4, b=tw.Matrix("f32", "F"), outputs={"greatest": tw.row_max(tw.acc)}
    )
    compiler = supported.use("clang", target, monkeypatch)
    monkeypatch.setenv("TILEWRIGHT_COMPILE_SECONDS", "60")
    text = generate([Request("kernel", spec, schedule, target)]).text
    assert "greatest_so_far" in text
    compile_library(text, target, compiler, tmp_path, "kernel")


def test_disassembling_needs_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    compiler = find_compiler(SCALAR, emulated=False)
    library = compile_library(KERNEL, SCALAR, compiler, tmp_path, "kernel")
    assert "<axpy>" in disassemble(library, compiler)
    assert "<total>" not in disassemble(library, compiler, "axpy")
    only(monkeypatch, tmp_path)
    with pytest.raises(ToolchainError, match="apt-get install binutils"):
        disassemble(library, compiler)


@pytest.mark.parametrize("tool", ["objdump", "llvm-objdump"])
def test_either_disassembler_will_do(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, None)
    target: Target = SCALAR
    compiler = find_compiler(target, emulated=False)
    library = compile_library(KERNEL, target, compiler, tmp_path, "kernel")
    only(monkeypatch, tmp_path, tool)
    text = disassemble(library, compiler, "axpy")
    assert "<axpy>:" in text
    assert "<total>:" not in text
