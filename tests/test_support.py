"""The tests' own machinery: what it counts, fails and lets pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.cases import REQUIRED, Cases
from support.golden import check_golden
from support.processes import is_compiler

FEATURES = "neon+dotprod+i8mm+bf16"
#: Those with vectors of several lengths, in the order of their names.
WIDE = ("rvv256", "sme+f64", "sve256+sve2+i8mm+bf16", "sve512+sve2+i8mm+bf16")
CONFTEST = Path(__file__).parent / "conftest.py"


#: What reads a clock: a test that does asserts what the machine happens to be busy with.
CLOCKS = re.compile(
    r"\b(?:perf_counter|monotonic|process_time|thread_time|clock_gettime|timeit|time\.time)(?:_ns)?\b"
)


def test_no_test_reads_a_clock() -> None:
    """What takes how long is a figure of ``python -m benchmarks``, with its limit."""
    here = Path(__file__)
    found = [
        f"{path.relative_to(here.parent)}:{number}: {line.strip()}"
        for path in here.parent.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if path != here and CLOCKS.search(line)
    ]
    assert not found, "\n".join(found)
    assert CLOCKS.search("begin = time.perf_counter_ns()")


def test_cases_add_up_over_processes() -> None:
    cases = Cases()
    cases.count("neon", "qemu", 3)
    cases.add({"neon": {"qemu": 4, "interpreted": 1}, "avx2": {"native": 2}})
    cases.count(FEATURES, "qemu", 9)
    cases.count("amx", "header", 9)
    for target in (*WIDE, "power10"):
        cases.count(target, "qemu", 9)
    assert cases.lines() == [
        "amx: interpreted 0, compiled 0, native 0, qemu 0, header 9",
        "avx2: interpreted 0, compiled 0, native 2, qemu 0, header 0",
        "neon: interpreted 1, compiled 0, native 0, qemu 7, header 0",
        f"{FEATURES}: interpreted 0, compiled 0, native 0, qemu 9, header 0",
        "power10: interpreted 0, compiled 0, native 0, qemu 9, header 0",
        *(f"{target}: interpreted 0, compiled 0, native 0, qemu 9, header 0" for target in WIDE),
    ]
    assert cases.lacking(7) == ["avx2: 2 cases ran, 7 are required"]
    assert cases.lacking(0) == []


def test_interpreted_cases_are_no_runs() -> None:
    cases = Cases()
    for target in REQUIRED:
        cases.count(target, "interpreted", 1000)
    assert cases.lacking(200) == [f"{target}: 0 cases ran, 200 are required" for target in REQUIRED]


def test_an_unknown_means_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown means 'guess'"):
        Cases().count("neon", "guess")


def test_golden_says_what_differs_and_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "generated" / "neon" / "x.c"
    with pytest.raises(pytest.fail.Exception, match=r"neon/x\.c is missing"):
        check_golden(path, "int x;\n", update=False)
    check_golden(path, "int x;\n", update=True)
    check_golden(path, "int x;\n", update=False)
    with pytest.raises(pytest.fail.Exception, match=r"(?s)differs.*-int x;\n\+int y;"):
        check_golden(path, "int y;\n", update=False)


@pytest.mark.parametrize(
    "command",
    ["gcc -v", "/usr/bin/x86_64-linux-gnu-gcc-12 a.c", "clang-14", "python3 -m ziglang cc", "cc"],
)
def test_compilers_are_recognised(command: str) -> None:
    assert is_compiler(command.split())


@pytest.mark.parametrize("command", ["qemu-aarch64 a.out", "objdump -d gcc", "python3 cc.py", ""])
def test_other_programs_are_not(command: str) -> None:
    assert not is_compiler(command.split())


INNER = """
import contextlib, subprocess, pytest
@pytest.mark.twice
def test_compiles():
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["gcc", "--version"], check=False)
@pytest.mark.parametrize("i", range(4))
def test_counts(cases, i):
    cases.count("neon", "qemu", 50)
    cases.count("avx2", "native", 25)
    cases.count("neon+dotprod+i8mm+bf16", "qemu", 25)
    cases.count("amx", "header", 25)
    wide = "sve256+sve2+i8mm+bf16", "sve512+sve2+i8mm+bf16"
    for target in ("power10", "rvv256", "sme+f64", *wide):
        cases.count(target, "qemu", 25)
"""


def _inner(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_inner.py").write_text(INNER)
    (folder / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {CONFTEST.parent}\nmarkers =\n    twice: x\n    golden: x\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return subprocess.run(
        command, cwd=folder, env=plain, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_too_few_cases_fail_a_run_in_which_all_passed(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    enough = _inner(tmp_path, *workers, "--require-cases=100")
    assert enough.returncode == 0, enough.stdout
    *lines, last = enough.stdout.splitlines()
    assert "neon: interpreted 0, compiled 0, native 0, qemu 200, header 0" in lines
    assert last.startswith("5 passed")
    too_few = _inner(tmp_path, *workers, "--require-cases=200")
    assert too_few.returncode == 1
    for target in ("avx2", FEATURES, "amx", "power10", "rvv256", "sme", "sve256"):
        assert f"{target}: 100 cases ran, 200 are required" in too_few.stdout


def test_a_compiler_started_with_a_warm_cache_fails_the_test(tmp_path: Path) -> None:
    result = _inner(tmp_path, "--warm", "-m", "twice")
    assert result.returncode == 1
    assert "the cache was warm, yet a compiler was started: gcc --version" in result.stdout
