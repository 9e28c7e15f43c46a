"""The header says how much stack a kernel needs, and no compiler takes more."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.generate import Request, header
from tilewright.runtime.build.toolchain import source_flags
from tilewright.targets import load

W8 = tw.Packed(tw.Quantized("s8", scale="f16", block=32))
SPECS: dict[str, Any] = {
    "plain": tw.Gemm(64, 48, 64),
    "bounced": (tw.Gemm(7, 9, 5, d="bf16"), tw.Schedule(tails="bounce")),
    "packed": tw.Gemm(64, 64, 64, a="bf16", b="bf16", order="F"),
    "w8a16": tw.Gemm(64, 512, 512, a="f16", b=W8, d="f16"),
}


def used(source: Path, target: str) -> int:
    """The bytes of stack of all functions of a file, as gcc counts them."""
    flags = [*source_flags(load(target), "gcc"), "-fstack-usage", "-c", "-o", "/dev/null"]
    report = source.with_suffix(".su")
    flags[-1] = str(source.with_suffix(".o"))
    subprocess.run(["gcc", *flags, str(source)], check=True)
    return sum(int(line.split("\t")[1]) for line in report.read_text().splitlines())


@pytest.mark.parametrize("target", ["scalar", "avx2"])
def test_no_kernel_needs_more_than_the_header_says(target: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None or load(target).machine not in ("", "x86_64"):
        pytest.skip("no gcc for it")
    made = tw.library("lib", SPECS, targets=[target], jobs=1)
    folder, text = made.write(tmp_path), made.files["include/lib.h"]
    most = 0
    for name in SPECS:
        about = text[text.index(f"/* lib_{name}\n") :]
        said = re.search(r"A call needs up to (\d+) KiB of stack\.", about)
        assert said is not None
        needs = used(folder / f"src/{target}/{name}_{target}.c", target)
        assert needs <= 1024 * int(said[1]), name
        assert int(said[1]) <= 16 or needs > 1024 * int(said[1]) // 4, name
        most = max(most, int(said[1]))
    assert most > 64


def test_so_does_the_header_of_a_single_file() -> None:
    text = header([Request("k", SPECS["w8a16"], tw.Schedule(), load("scalar"))], "k")
    assert re.search(r"A call needs up to \d+ KiB of stack\.", text)
