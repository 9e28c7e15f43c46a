"""Libraries compiled and run: by every compiler, on every target that runs here, with choice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.cases import Cases
from support.command_line import run

import tilewright as tw
from tilewright.errors import SpecError, ToolchainError
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.library import build as building
from tilewright.runtime.library.build import Built
from tilewright.runtime.library.make import Library
from tilewright.runtime.machine import host
from tilewright.targets import NAMES, load

__all__ = ["run"]

M, N, K, COUNT = tw.dim("m", multiple_of=2), tw.dim("n", max=40), tw.dim("k"), tw.dim("count")
BIAS = tw.Operand("bias", "f32", per="column")
LAYER: dict[str, Any] = {
    "a": "u8",
    "b": tw.Packed("s8"),
    "d": "u8",
    "a_zero": 128,
    "b_scale": "column",
    "d_scale": 0.05,
    "epilogue": tw.relu(tw.acc + BIAS),
}
KERNELS: dict[str, Any] = {
    "small": tw.Gemm(7, 18, 5, beta=1),
    "large": tw.Gemm(64, 48, 33, lda=40),
    "products": [
        tw.Gemm(4, 4, 4),
        tw.Gemm(4, 8, 4),
        (tw.Gemm(8, 8, 8), tw.Schedule(tile=(2, 4))),
        tw.Gemm(M, N, K),
    ],
    "layers": [
        tw.Gemm(3, 20, 16, **LAYER),
        tw.Gemm(tw.dim("m"), 20, 16, **LAYER),
    ],
    "scaled": tw.Gemm(5, 9, K, a="f64", order="F", alpha="scalar", beta="scalar",
                      lda=tw.dim("lda")),
    "batch": tw.Gemm(4, 16, 6, a="bf16", b=tw.Packed("bf16"), batch=tw.Strided(COUNT)),
    "pointers": tw.Gemm(4, 16, 6, a="s8", b=tw.Packed("s8"), batch=tw.Addresses(COUNT)),
    "offsets": tw.Gemm(3, 5, 4, batch=tw.Offsets(COUNT)),
    "arena": tw.Gemm(3, 18, 6, a="bf16", b=tw.Packed("bf16"), batch=tw.Offsets(COUNT)),
    "gated": tw.Gemm(5, 9, 8, b2="f32", epilogue=tw.silu(tw.acc) * tw.acc2,
                     outputs={"amax": tw.row_absmax(tw.acc)}),
    "few": tw.Gemm(tw.dim("m"), 20, 64, a=tw.Quantize("bf16", per=("row", 32)),
                   b=tw.Packed(tw.Quantized("u4", scale="f16", zero="u4", block=32))),
    "turned_kernel": tw.Transpose(8, 8, "f64"),
    "grouped": tw.Copy(tw.dim("rows"), 20, "f32", tw.Matrix("bf16", order="F")),
    "unpacked": tw.Copy(16, 40, tw.Packed("s8"), "s8"),
    "parallel": (tw.Gemm(32, 32, 8, a="f16"), tw.Schedule(loops="NMk", threads=2)),
}  # fmt: skip
TARGETS = ["avx2", "avx512+vnni+bf16", "amx", "neon+dotprod+bf16", "scalar"]
#: One process builds the library that most tests use.
pytestmark = pytest.mark.xdist_group("library")
SMALL = {"small": KERNELS["small"], "products": KERNELS["products"][:2]}
HERE = host.machine()
STRICT = ["-Wall", "-Wextra", "-Werror"]
#: A program that says what the library chooses.
CHOICE = """
#include <stdio.h>
#include <string.h>
#include "lib.h"
int main(int argc, char **argv)
{
    printf("status %d\\n", lib_status());
    printf("target %s\\n", lib_target() ? lib_target() : "none");
    for (int i = 0; lib_name(i); i++)
        printf("has %s %d\\n", lib_name(i), lib_has(lib_name(i)));
    for (int i = 1; i < argc; i++)
        printf("use %s %d ", argv[i], lib_use(argv[i])), printf("%s\\n", lib_target());
    float a[7 * 5] = {1}, b[5 * 18] = {2}, c[7 * 18] = {3};
    lib_small(a, b, c);
    printf("result %g\\n", c[0]);
    return strcmp(lib_version(), LIB_VERSION);
}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    return tw.library("lib", KERNELS, targets=TARGETS, version="2.1.3", jobs=1)


@pytest.fixture(scope="module")
def folder(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled by the compiler that is found first."""
    folder = tmp_path_factory.mktemp("library")
    (built,) = library.build(folder, architectures=[HERE])
    assert built.passed, built.output
    _check_targets(library, built)
    return folder


def _check_targets(library: Library, built: Built) -> None:
    """The self-test passes on every target that the CPU has, and on no other."""
    native = {name for name in library.targets if host.is_native(host.resolve(name))}
    for one in built.targets:
        if one.target in native:
            assert one.checked.startswith("pass, "), (one, built.output)
        else:
            assert one.checked == "not run: the CPU lacks what this target needs"
        assert one.bytes > 0 and one.seconds > 0


@pytest.fixture(scope="module")
def small() -> Library:
    return tw.library("lib", SMALL, targets=["scalar"], jobs=1)


def compiled(folder: Path, text: str, *options: str, name: str = "program") -> Path:
    """A program that uses the library of ``folder`` as its shared one."""
    libraries = folder / "build" / host.machine()
    suffix = "cpp" if any("++" in option for option in options) else "c"
    (folder / f"{name}.{suffix}").write_text(text)
    command = ["g++" if suffix == "cpp" else "gcc", *STRICT, f"-I{folder / 'include'}"]
    command += [str(folder / f"{name}.{suffix}"), "-o", str(folder / name), f"-L{libraries}"]
    subprocess.run([*command, "-llib", f"-Wl,-rpath,{libraries}", *options], check=True)
    return folder / name


def accepts(*flags: str) -> bool:
    """Whether the compiler knows options for a processor; older ones lack the newest."""
    command = [*find_compiler(load("scalar"), emulated=False).command, *flags]
    command += ["-x", "c", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def said(program: Path, *words: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [str(program), *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout.splitlines()


# -- every kernel, every compiler ---------------------------------------------------------------


def test_every_kernel_is_right_on_every_target(
    folder: Path, library: Library, cases: Cases
) -> None:
    assert (folder / "build" / HERE / "lib_selftest").exists()  # which passed
    for name in library.targets:
        if host.is_native(host.resolve(name)):
            cases.count(name.partition("+")[0], "native", len(library.kernels))


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("clang", ["small", "layers", "pointers", "few"]),
        (f"{sys.executable} -m ziglang cc", ["small"]),  # which takes long to start
    ],
    ids=["clang", "zig"],
)
def test_other_compilers_build_it(
    command: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [name for name in TARGETS if load(name.partition("+")[0]).machine in ("", HERE)]
    monkeypatch.setenv("CC", command)
    try:
        find_compiler(load("scalar"), emulated=False)
    except ToolchainError as error:
        pytest.skip(str(error))
    library = tw.library("lib", {name: KERNELS[name] for name in names}, targets=targets, jobs=1)
    (built,) = library.build(tmp_path)
    assert built.passed, built.output
    _check_targets(library, built)


def test_it_is_compiled_for_another_architecture_and_run_in_its_emulator(
    library: Library, tmp_path: Path, cases: Cases
) -> None:
    target = host.resolve("neon")
    try:
        find_compiler(target, emulated=False)
        host.means(target)
    except (ToolchainError, tw.TargetError) as error:
        pytest.skip(str(error))
    (arm,) = library.build(tmp_path, architectures=["aarch64"])
    assert [one.target for one in arm.targets] == ["neon+dotprod+bf16", "scalar"]
    assert all(one.checked.startswith("pass") for one in arm.targets), arm.output
    cases.count("neon", "qemu", len(library.kernels))


def test_without_a_compiler_for_an_architecture_it_is_said(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(target: Any, *, emulated: bool) -> Any:
        raise ToolchainError(f"there is no C compiler for {target.name}")

    monkeypatch.setattr(building, "find_compiler", find)
    monkeypatch.setattr(building, "machine", lambda: "riscv64")
    built = library.build(tmp_path)
    assert {one.missing for one in built} == {
        "there is no C compiler for neon+dotprod+bf16",
        "there is no C compiler for amx",
    }
    monkeypatch.setattr(building, "machine", lambda: "x86_64")
    with pytest.raises(ToolchainError, match="no C compiler for amx"):
        library.build(tmp_path)


def test_the_selftest_finds_a_wrong_kernel(small: Library, tmp_path: Path) -> None:
    path, at = "src/scalar/products_4x8x4_scalar.c", "void lib_products_4x8x4_scalar_invoke("
    text = small.files[path]
    begin = text.rindex("\n{\n", 0, text.rindex(at)) + 3
    wrong = replace(small, files={**small.files, path: text[:begin] + "    b++;\n" + text[begin:]})
    (built,) = wrong.build(tmp_path, architectures=None)
    assert not built.passed and [one.checked for one in built.targets] == ["fail"]
    assert "fail: lib_products_4x8x4 on scalar" in built.output
    assert "fail: lib_products_4x8x4, by lib_products on scalar" in built.output
    assert "of c are wrong" in built.output and "lib_small on" not in built.output


def test_a_selftest_that_dies_has_not_passed(small: Library, tmp_path: Path) -> None:
    at = "int lib_use(const char *target)\n{"
    text = small.files["src/lib.c"]
    assert at in text
    dying = {**small.files, "src/lib.c": text.replace(at, at + "\n    abort();")}
    (built,) = replace(small, files=dying).build(tmp_path)
    assert not built.passed and "ended with status -6" in built.output


def test_an_architecture_without_a_target_is_refused(small: Library, tmp_path: Path) -> None:
    with pytest.raises(tw.TargetError, match="lib has no target for this architecture"):
        small.build(tmp_path, architectures=["sparc"])


# -- the choice of the target -------------------------------------------------------------------


def test_the_cpu_has_what_the_library_says(tmp_path: Path) -> None:
    """Every target with each of its features alone, against what Linux says of the CPU."""
    here = [name for name in NAMES if load(name).machine in ("", host.machine())]
    names = [name for name in here if accepts(*load(name).compiler_flags)]
    every = [
        f"{name}+{feature}"
        for name in names
        for feature, one in load(name).features.items()
        if one.cpu_flags and accepts(*load(name).having([feature]).compiler_flags)
    ]
    library = tw.library("lib", {"small": KERNELS["small"]}, targets=[*names, *every], jobs=1)
    library.build(tmp_path, selftest=False)
    told = said(compiled(tmp_path, CHOICE))
    found = dict(line.split()[1:] for line in told if line.startswith("has "))
    native = {name for name in library.targets if host.is_native(host.resolve(name))}
    assert {name for name, status in found.items() if status == "0"} == native
    best = next(name for name in library.targets if name in native)
    assert told[:2] == ["status 0", f"target {best}"]


def test_a_call_and_the_environment_choose(folder: Path, library: Library) -> None:
    program = compiled(folder, CHOICE)
    assert said(program, LIB_TARGET="scalar")[:2] == ["status 0", "target scalar"]
    assert said(program, LIB_TARGET="")[0] == "status 0"
    native = [name for name in library.targets if host.is_native(host.resolve(name))]
    foreign = "neon" if host.machine() == "x86_64" else "avx2"
    told = said(program, "scalar", native[0], foreign, "amx2")
    assert "use scalar 0 scalar" in told
    assert f"use {native[0]} 0 {native[0]}" in told
    assert f"use {foreign} 1 {native[0]}" in told, "all stays as it was"
    assert f"use amx2 1 {native[0]}" in told
    assert told[-1] == "result 5"


def test_a_target_that_is_not_there_is_an_error_and_no_fallback(folder: Path) -> None:
    program = compiled(folder, CHOICE)
    done = subprocess.run(
        [str(program)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"LIB_TARGET": "avx2000"},
    )
    assert done.returncode < 0
    assert "lib: the library was not built with this target (LIB_TARGET is avx2000)" in done.stderr
    assert "  scalar: the CPU has it" in done.stderr
    assert "lib_status() says so before a call does." in done.stderr


def test_a_cpu_that_has_none_of_the_targets(tmp_path: Path) -> None:
    lacking = [n for n in ("amx", "avx512", "avx2+vnni") if not host.is_native(host.resolve(n))]
    if host.machine() != "x86_64" or not lacking:
        pytest.skip("this CPU has every target")
    library = tw.library("lib", {"small": KERNELS["small"]}, targets=lacking, jobs=1)
    library.build(tmp_path, selftest=False)
    done = subprocess.run(
        [str(compiled(tmp_path, CHOICE))], capture_output=True, text=True, check=False
    )
    assert (
        done.returncode == -6 and "lib: this CPU has none of the library's targets" in done.stderr
    )
    assert f"  {lacking[0]}: the CPU lacks " in done.stderr


FAKE_CPU = """
#define _GNU_SOURCE
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* A CPU that has all there is, and a system that may refuse the registers of a matrix unit. */
static int all(unsigned *a, unsigned *b, unsigned *c, unsigned *d)
{
    *a = *b = *c = *d = 0xffffffff;
    return 1;
}
static long refuses;
static long asked(long call, long what, long which)
{
    printf("asked %ld %ld %ld\\n", call, what, which);
    return refuses ? -1 : 0;
}
#define __get_cpuid(leaf, a, b, c, d) all(a, b, c, d)
#define __get_cpuid_count(leaf, inner, a, b, c, d) all(a, b, c, d)
#define __asm__
#define volatile(...) (void)(a = 0xffffffff, d = 0)
#define syscall asked
#include "lib.c"
int main(int argc, char **argv)
{
    (void)argv;
    refuses = argc > 1;
    printf("%s %d\\n", lib_target(), lib_has("amx"));
    return 0;
}
"""


def test_the_operating_system_may_refuse_a_matrix_units_registers(folder: Path) -> None:
    if host.machine() != "x86_64":
        pytest.skip("a matrix unit of x86-64")
    includes = [f"-I{folder / 'src'}", f"-I{folder / 'include'}"]
    static = str(folder / "build" / "x86_64" / "liblib.a")
    (folder / "fake.c").write_text(FAKE_CPU)
    command = ["gcc", "-std=c11", *includes, str(folder / "fake.c"), static, "-o"]
    subprocess.run([*command, str(folder / "fake"), "-lm", "-pthread"], check=True)
    assert said(folder / "fake") == ["asked 158 4131 18", "asked 158 4131 18", "amx 0"]
    refused = said(folder / "fake", "refuse")
    assert refused[-1] == "avx512+vnni+bf16 3"


RACE = """
#include <pthread.h>
#include <stdio.h>
#include "lib.h"
static void *call(void *unused)
{
    float a[7 * 5] = {1}, b[5 * 18] = {2}, c[7 * 18] = {3};
    lib_small(a, b, c);
    return c[0] == 5 && lib_target() ? NULL : &call;
}
int main(void)
{
    pthread_t threads[8];
    int wrong = 0;
    for (int i = 0; i < 8; i++)
        wrong += pthread_create(&threads[i], NULL, call, NULL) != 0;
    for (int i = 0; i < 8; i++) {
        void *found;
        pthread_join(threads[i], &found);
        wrong += found != NULL;
    }
    return wrong;
}
"""


def test_many_threads_may_make_the_first_call(folder: Path, library: Library) -> None:
    """Under a tool that reports every access without order between two threads."""
    sources = [str(folder / "src" / "lib.c"), str(folder / "race.c")]
    (folder / "race.c").write_text(RACE.replace("&call", "(void *)1"))
    static = str(folder / "build" / host.machine() / "liblib.a")
    command = ["gcc", "-std=c11", "-g", "-fsanitize=thread", f"-I{folder / 'include'}", *sources]
    done = subprocess.run(
        [*command, static, "-o", str(folder / "race"), "-lm", "-pthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no thread sanitizer: {done.stderr[-200:]}")
    ran = subprocess.run([str(folder / "race")], capture_output=True, text=True, check=False)
    if "unexpected memory mapping" in ran.stderr:
        pytest.skip("the thread sanitizer does not run on this system")
    assert ran.returncode == 0 and not ran.stderr, ran.stderr


# -- what the shared library is -----------------------------------------------------------------


def test_the_header_is_c_and_c_plus_plus(folder: Path, library: Library) -> None:
    program = CHOICE.replace("2}, c[", "2}, c[")
    assert said(compiled(folder, program, "-std=c++11", "-pedantic", name="plus"))[-1] == "result 5"
    header = str(folder / "include" / "lib.h")
    for language in ("c99", "c11"):
        command = ["gcc", *STRICT, "-pedantic", f"-std={language}", "-fsyntax-only", "-x", "c"]
        subprocess.run([*command, header], check=True)
    assert "restrict" not in library.files["include/lib.h"]


def test_the_shared_library_has_the_declared_names_under_their_version(
    folder: Path, library: Library
) -> None:
    path = folder / "build" / host.machine() / "liblib.so.2.1.3"
    done = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1] for line in done.stdout.splitlines() if " T " in line}
    assert all(name.endswith("@@LIB_2") for name in names)
    header = library.files["include/lib.h"]
    assert names and all(
        f" {name.partition('@')[0]}(" in header.replace("*", " ") for name in names
    )
    assert {f"{name.partition('@')[0]}" for name in names} >= {
        *(f"lib_{kernel}" for kernel in library.kernels),
        *("lib_products", "lib_layers_scratch_bytes", "lib_use", "lib_batch_pack_b_packed_bytes"),
    } - {"lib_layers_scratch_bytes"}
    links = {one.name: os.readlink(one) for one in path.parent.glob("*.so*") if one.is_symlink()}
    assert links == {"liblib.so": path.name, "liblib.so.2": path.name}


SIZES = """
#include <assert.h>
#include <stdio.h>
#include "lib.h"
int main(void)
{
    assert(lib_large_a_bytes() == (63 * 40 + 33) * 4);
    assert(lib_scaled_a_bytes(6, 5) == (5 * 5 + 5) * 8 && lib_scaled_b_bytes(6, 5) == 6 * 9 * 8);
    assert(lib_batch_a_bytes(3) == 3 * 4 * 6 * 2 && lib_batch_a_bytes(0) == 0);
    assert(lib_gated_amax_bytes() == 5 * 4 && lib_offsets_a_offsets_bytes(7) == 56);
    assert(lib_products(4, 4, 4) && lib_products(4, 8, 4) && lib_products(8, 8, 8));
    assert(lib_products(4, 4, 4) != lib_products(4, 8, 4));
    assert(lib_products(2, 40, 9) == lib_products(100, 1, 1) && lib_products(2, 40, 9));
    assert(!lib_products(3, 4, 4) && !lib_products(2, 41, 4) && !lib_products(-2, 4, 4));
    assert(lib_layers(3, 20, 16) && lib_layers(99, 20, 16) && !lib_layers(3, 21, 16));
    assert(lib_few_pack_b_q_bytes() == 64 * 20 && lib_few_pack_b_zeros_bytes() == 2 * 20);
    assert(lib_few_pack_b_scales_bytes() == 2 * 20 * 2);
    puts(lib_batch_pack_b_format());
    return 0;
}
"""


def test_sizes_are_functions_and_a_family_finds_its_kernels(folder: Path) -> None:
    (told,) = said(compiled(folder, SIZES, "-UNDEBUG", name="sizes"), LIB_TARGET="scalar")
    assert "bf16" in told


# -- the command --------------------------------------------------------------------------------

SPECS = """
import tilewright as tw
from neighbour import SIZE
one = tw.library("one", {"small": tw.Gemm(SIZE, 4, 4)}, targets=["scalar"])
"""


def test_the_command_builds_what_a_file_describes(run: Any, tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SPECS)
    (tmp_path / "neighbour.py").write_text("SIZE = 4\n")
    out = run("build", str(tmp_path / "specs.py"), "-o", str(tmp_path / "out")).output
    assert "one 1.0.0: 1 kernels for 1 targets, generated in" in out
    assert f"{host.machine()}: " in out and "pass, 2 calls" in out
    assert "libone.a: " in out and " KiB, in " in out
    assert (tmp_path / "out" / "build" / host.machine() / "libone.so").exists()
    words = ["build", str(tmp_path / "specs.py"), "-o", str(tmp_path / "c")]
    (said,) = json.loads(run(*words, "--json", "--architecture", HERE, "--no-test").stdout)
    (built,) = said["built"]
    assert built["targets"][0]["checked"] == "not run" and len(built["libraries"]) == 2
    shutil.rmtree(tmp_path / "c" / "build")
    run(*words, "--no-compile")
    assert not (tmp_path / "c" / "build").exists()


def test_the_command_gives_each_of_several_a_folder(run: Any, tmp_path: Path) -> None:
    two = SPECS + SPECS.replace("one", "two").replace("SIZE", "8")
    (tmp_path / "specs.py").write_text(two.replace("from neighbour import 8", "SIZE = 4"))
    (tmp_path / "neighbour.py").write_text("SIZE = 4\n")
    run("build", str(tmp_path / "specs.py"), "-o", str(tmp_path / "out"), "--no-compile")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"one", "two"}


def test_the_command_says_what_a_file_lacks(run: Any, tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text("x = 3\n")
    out = run("build", str(tmp_path / "specs.py"), "-o", str(tmp_path / "out"), status=1).output
    assert "the file makes no library" in out
    twice = SPECS + SPECS.replace("one =", "two =").replace("small", "other")
    (tmp_path / "specs.py").write_text(twice.replace("from neighbour import", "SIZE = 4 #"))
    out = run("build", str(tmp_path / "specs.py"), "-o", str(tmp_path / "out"), status=1).output
    assert "two libraries of the file have one name" in out
    assert issubclass(SpecError, tw.TilewrightError)
