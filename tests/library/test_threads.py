"""A library's parallel loops: on its own threads, on OpenMP's, and in a pool of the program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.runtime.library.make import Library

PROGRAM = Path(__file__).parents[1] / "data" / "pool.c"
PARALLEL = tw.Schedule(loops="NMk")
#: A block of B, of 40000 bytes, in each trip of the loop over columns.
PACKED = tw.Schedule(loops="Nnmk", pack="b", block={"n": 50}, vectorize="n", threads=3)
#: Each of the 20 calls of two kernels in a pool of three threads is a loop, of 3 and 2 tasks.
SAID = "right 1 most 3 loops 40 tasks 100 wrong 0 ordered 2 one 1\n"


@pytest.fixture(scope="module")
def library() -> Library:
    big = tw.Gemm(200, 200, 200)
    kernels = {"big": (big, PARALLEL), "packed": (big, PACKED), "small": tw.Gemm(4, 4, 4)}
    return tw.library("lib", kernels, targets=["scalar"], jobs=1)


@pytest.fixture(scope="module")
def folder(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.write(tmp_path_factory.mktemp("library"))


def ran(*command: object, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | environment,
    )
    if re.search(r"cannot find.*san|unexpected memory mapping", done.stderr):
        pytest.skip(f"no sanitizers: {done.stderr[-200:]}")
    assert done.returncode == 0 and not done.stderr, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "options",
    [("-fsanitize=address,undefined",), ("-fsanitize=thread",), ("-fopenmp", "-DLIB_OPENMP")],
    ids=["memory", "races", "openmp"],
)
def test_a_program_may_bring_its_own_pool(
    options: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    sources = [PROGRAM, *sorted(folder.glob("src/**/*.c"))]
    strict = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
    include = f"-I{folder / 'include'}"
    program = tmp_path / "program"
    ran("gcc", *strict, *options, include, *sources, "-lm", "-pthread", "-o", program)
    assert ran(program) == SAID
    assert ran(program, OMP_NUM_THREADS="1") == SAID


CALLS = """
#include "lib.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static float a[200 * 200], b[200 * 200], c[200 * 200];
static int right(void)
{
    c[7] = 0;
    lib_big(a, b, c);
    return c[7] == 200 && c[200 * 200 - 1] == 200;
}
int main(void)
{
    int status;
    for (int i = 0; i < 200 * 200; i++)
        a[i] = b[i] = 1;
    printf("%d %d", right(), lib_threads() >= 1);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        alarm(20), _exit(right() ? 0 : 1);
    waitpid(child, &status, 0);
    printf(" %d %d\\n", status, right());
    return 0;
}
"""


@pytest.mark.parametrize("build", ["cmake", "meson"])
@pytest.mark.parametrize("threads", ["own", "openmp"])
def test_an_option_of_the_build_chooses(
    build: str, threads: str, folder: Path, tmp_path: Path
) -> None:
    """A child has no threads of OpenMP's, and does not wait for them."""
    for needed in (build, "gcc", "ldd"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed}")
    out = tmp_path / "build"
    if build == "cmake":
        ran("cmake", "-S", folder, "-B", out, f"-DLIB_THREADS={threads}", "-DLIB_SELFTEST=OFF",
            "-DLIB_WERROR=ON", "-DCMAKE_C_COMPILER=gcc")  # fmt: skip
        ran("cmake", "--build", out)
    else:
        ran("meson", "setup", out, folder, f"-Dthreads={threads}", CC="gcc")
        ran("meson", "compile", "-C", out)
    (shared,) = out.glob("liblib.so")
    assert ("libgomp" in ran("ldd", shared)) == (threads == "openmp")
    (tmp_path / "calls.c").write_text(CALLS)
    program = tmp_path / "calls"
    include = f"-I{folder / 'include'}"
    ran("gcc", include, tmp_path / "calls.c", shared, f"-Wl,-rpath,{out}", "-o", program)
    assert ran(program) == "1 1 0 1\n"


def test_cmake_refuses_another_choice(folder: Path, tmp_path: Path) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    done = subprocess.run(
        ["cmake", "-S", folder, "-B", tmp_path, "-DLIB_THREADS=gomp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and "gomp is neither own nor openmp" in " ".join(done.stderr.split())


def test_one_file_has_the_threads_of_all_kernels(library: Library) -> None:
    starts = [path for path, text in library.files.items() if "pthread_create" in text]
    assert starts == ["src/lib_threads.c"]
    assert "lib_use_threads;" in library.files["lib.map"]


def test_a_library_without_parallel_loops_has_no_threads() -> None:
    serial = tw.library("lib", {"small": tw.Gemm(4, 4, 4)}, targets=["scalar"], jobs=1)
    assert "src/lib_threads.c" not in serial.files and "meson_options.txt" not in serial.files
    assert "use_threads" not in serial.files["include/lib.h"]
    assert not any("pthread" in text for path, text in serial.files.items() if path[-2:] == ".c")


def test_kernels_do_not_take_the_names_of_threads() -> None:
    with pytest.raises(SpecError, match="lib_use_threads"):
        tw.library("lib", {"use_threads": tw.Gemm(4, 4, 4)}, targets=["scalar"], jobs=1)
