"""What is written builds by CMake and by meson, and other projects find what they install."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.source_tree import ROOT

import tilewright as tw
from tilewright.runtime.library.make import Library
from tilewright.runtime.machine import host

EXAMPLE = ROOT / "examples" / "cmake_project"
SAID = """\
32 x 32 x 32: the last element is 62
7 x 19 x 300: the last element is 600
layer: 22 17 13 ...
batch: each element is 160
"""
#: One process builds what most tests use.
pytestmark = pytest.mark.xdist_group("projects")


def needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"no {program}")


def ran(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def cmake(source: Path, build: Path, *options: str) -> str:
    """Configure and build; what CMake said."""
    said = ran("cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *options)
    ran("cmake", "--build", build, "-j", "2")
    return said


@pytest.fixture(scope="module")
def library() -> Library:
    """The example's own."""
    found = runpy.run_path(str(EXAMPLE / "kernels.py"))["library"]
    assert isinstance(found, Library)
    return found


@pytest.fixture(scope="module")
def installed(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built and checked by CMake, and installed; then its sources are gone."""
    needed("cmake", "make", "gcc")
    folder = tmp_path_factory.mktemp("project")
    source, build = library.write(folder / "source"), folder / "build"
    # A project's own options, which change no result and stop no build.
    strange = "-ffast-math -Ofast -Wpedantic -Wcast-align=strict -Werror"
    options = [f"-DCMAKE_C_FLAGS={strange}", "-DCMAKE_UNITY_BUILD=ON"]
    options.append("-DCMAKE_SHARED_LINKER_FLAGS=-ffast-math")  # as LDFLAGS would set them
    cmake(source, build, *options, "-DSMALLMM_WERROR=ON", "-DCMAKE_INSTALL_LIBDIR=lib")
    assert "100% tests passed" in ran("ctest", "--test-dir", build)
    ran("cmake", "--install", build, "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    shutil.rmtree(source)
    return folder / "moved"


def test_a_project_finds_it_by_find_package(
    installed: Path, library: Library, tmp_path: Path
) -> None:
    cmake(
        EXAMPLE,
        tmp_path,
        f"-DCMAKE_PREFIX_PATH={installed}",
        "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror",
    )
    native = next(name for name in library.targets if host.is_native(host.resolve(name)))
    assert ran(tmp_path / "network") == f"smallmm 1.2.0 on {native}\n{SAID}"
    for target in ("scalar", native):
        told = ran(tmp_path / "network_static", SMALLMM_TARGET=target)
        assert told == f"smallmm 1.2.0 on {target}\n{SAID}"


def keeps_denormals(library: Path) -> bool:
    """True if a process that loads it does not flush them: start-up code of -ffast-math would."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(5e-324 * float(sys.argv[2]))"
    return float(ran(sys.executable, "-c", code, library, "2")) == 1e-323


def test_a_process_that_loads_it_keeps_its_denormals(installed: Path) -> None:
    assert keeps_denormals(installed / "lib" / "libsmallmm.so")


def test_another_major_version_is_not_found(installed: Path, tmp_path: Path) -> None:
    text = (EXAMPLE / "CMakeLists.txt").read_text().replace("smallmm 1.2", "smallmm 2.0")
    (tmp_path / "CMakeLists.txt").write_text(text)
    shutil.copy(EXAMPLE / "main.c", tmp_path)
    command = ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b")]
    command.append(f"-DCMAKE_PREFIX_PATH={installed}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "compatible with requested version" in done.stderr


@pytest.mark.parametrize("static", [False, True])
def test_pkg_config_finds_it_where_it_was_moved_to(
    installed: Path, tmp_path: Path, static: bool
) -> None:
    needed("pkg-config")
    path = {"PKG_CONFIG_PATH": str(installed / "lib" / "pkgconfig")}
    words = ["--static"] if static else []
    flags = ran("pkg-config", "--cflags", "--libs", *words, "smallmm", **path).split()
    assert ran("pkg-config", "--modversion", "smallmm", **path).strip() == "1.2.0"
    assert ("-lm" in flags) == static
    program = tmp_path / "program"
    ends = ["-static"] if static else [f"-Wl,-rpath,{installed / 'lib'}"]
    ran("gcc", EXAMPLE / "main.c", "-o", program, *flags, *ends)
    assert ran(program).endswith(SAID)


def test_cmake_leaves_out_what_it_is_told_to(library: Library, tmp_path: Path) -> None:
    needed("cmake", "make", "gcc")
    if host.machine() != "x86_64":
        pytest.skip("its targets are those of x86-64")
    source = library.write(tmp_path / "source")
    options = ["-DSMALLMM_LEAVE_OUT=amx;avx512_vnni", "-DSMALLMM_SHARED=OFF"]
    said = cmake(source, tmp_path / "build", *options, "-DSMALLMM_WERROR=ON")
    assert "smallmm: scalar;avx2, for x86_64" in said
    told = ran(tmp_path / "build" / "smallmm_selftest", "scalar")
    assert told == "pass: smallmm, scalar, 6 kernels, 18 calls\n"
    assert not list((tmp_path / "build").glob("*.so"))
    done = subprocess.run(
        [str(tmp_path / "build" / "smallmm_selftest"), "amx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "was not built with this target" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-DSMALLMM_LEAVE_OUT=neon9"], "neon9 is none of"),
        (["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=sparc"], "for sparc"),
    ],
)
def test_cmake_refuses_what_it_cannot_build(
    tmp_path: Path, options: list[str], message: str
) -> None:
    needed("cmake", "make", "gcc")
    kernels = {"small": tw.Gemm(4, 4, 4)}
    source = tw.library("smallmm", kernels, targets=["avx2", "neon"], jobs=1).write(tmp_path)
    command = ["cmake", "-S", str(source), "-B", str(tmp_path / "build"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and message in done.stderr


def test_cmake_builds_it_for_another_processor(tmp_path: Path) -> None:
    needed("cmake", "make", "aarch64-linux-gnu-gcc", "qemu-aarch64")
    kernels = {"small": tw.Gemm(4, 5, 6)}
    source = tw.library("lib", kernels, targets=["avx2", "neon"], jobs=1).write(tmp_path / "s")
    cross = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"]
    cross += ["-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
    cross += ["-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64", "-DLIB_WERROR=ON"]
    assert "lib: neon, for aarch64" in cmake(source, tmp_path / "build", *cross)
    assert "100% tests passed" in ran("ctest", "--test-dir", tmp_path / "build")


def test_meson_builds_it(tmp_path: Path) -> None:
    needed("meson", "ninja", "gcc")
    kernels = {"small": tw.Gemm(4, 5, 6), "turned": tw.Transpose(4, 4)}
    library = tw.library("lib", kernels, targets=["avx2", "neon", "scalar"], jobs=1)
    source, build = library.write(tmp_path / "source"), tmp_path / "build"
    fast = {"CFLAGS": "-ffast-math", "LDFLAGS": "-ffast-math"}
    setup = ("meson", "setup", build, source, "--prefix", tmp_path / "installed", "-Dwerror=true")
    ran(*setup, **fast)
    ran("meson", "test", "-C", build)
    ran("meson", "install", "-C", build)
    names = {path.name for path in (tmp_path / "installed").rglob("*") if path.is_file()}
    assert {"lib.h", "lib.pc", "liblib.a", "liblib.so.1.0.0"} <= names
    assert keeps_denormals(build / "liblib.so.1.0.0")


def test_the_project_of_the_page_builds(installed: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "ship-c.md").read_text()
    assert "../../examples/cmake_project" in page
    for fence, name in (("cmake", "CMakeLists.txt"), ("c", "main.c")):
        shown = page.partition(f"```{fence} {name}\n")[2].partition("```")[0]
        (tmp_path / name).write_text(shown)
    said = cmake(tmp_path, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={installed}")
    assert "warning" not in said.lower()
    line = "smallmm 1.2.0 on scalar: 600\n"
    assert ran(tmp_path / "build" / "network", SMALLMM_TARGET="scalar") == line
    assert f"prints: {line}" in page


def test_a_trained_network_is_served_by_a_short_program(tmp_path: Path) -> None:
    """Weights are compiled in, in the format of each target; the program reads images alone."""
    needed("cc")
    source = ROOT / "examples" / "digits_server"
    assert len((source / "main.c").read_text().splitlines()) <= 40
    made = runpy.run_path(str(source / "network.py"))
    library, network, weights = made["library"], made["network"], made["weights"]
    assert library.kernels == ("classes",)
    declared = "digits_classes(const float *pixels_, float *out, int64_t images_, void *scratch)"
    assert declared in library.files["include/digits.h"]
    (built,) = library.build(tmp_path / "digits", architectures=[host.machine()], jobs=1)
    assert built.passed and built.static is not None
    ran("cc", f"-I{tmp_path / 'digits' / 'include'}", source / "main.c", built.static, "-lm",
        "-o", tmp_path / "serve")  # fmt: skip
    images, labels = made["images"][:150], made["labels"][:150]
    text = "\n".join(" ".join(f"{pixel:g}" for pixel in image * 16) for image in images)
    done = subprocess.run(
        [tmp_path / "serve"], input=text, capture_output=True, text=True, check=True
    )
    said = [line.split() for line in done.stdout.splitlines()]
    net = tw.compile(network)
    share = net(images, net.pack(weights))
    assert [int(digit) for digit, _ in said] == share.argmax(axis=1).tolist()
    np.testing.assert_allclose([float(each) for _, each in said], share.max(axis=1), atol=2e-3)
    assert np.mean(share.argmax(axis=1) == labels) > 0.98
