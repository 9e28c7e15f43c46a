"""K loops on processors that are not here: what llvm-mca predicts of their machine code.

``python -m benchmarks.predict`` prints a table in Markdown. A K loop is predicted as it is, and
its multiply-adds alone; the ratio is what loads, addresses and the branch leave of the units. It
says nothing of caches, nor of what is around the K loop. ``LLVM_MCA`` names the program: LLVM 19
knows all of the processors.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tilewright as tw
from benchmarks.measure.native import MissingError
from benchmarks.measure.spills import Function, Instruction, functions
from benchmarks.sections.kloops import machine_code
from tilewright.generate import Request
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.machine.host import resolve

TRIPS = 500
X86 = ("sapphirerapids", "znver4")
ARM = ("neoverse-n1", "neoverse-v1", "apple-m1")


@dataclass(frozen=True)
class Wanted:
    """A product with its target, and the processors to predict it for."""

    title: str
    spec: tw.Gemm
    target: str
    processors: tuple[str, ...]

    def rows(self) -> Iterator[str]:
        """A line of the table for each processor."""
        function, loop = self._loop()
        chains = [one for one in loop if function.multiplies(one)]
        for processor in self.processors:
            cycles, bound = (predicted(each, self.target, processor) for each in (loop, chains))
            of_bound = f"{100 * bound / cycles:.0f}%"
            cells = self.title, self.target, processor, len(chains), f"{cycles:.1f}", of_bound
            yield f"| {' | '.join(map(str, cells))} |"

    def _loop(self) -> tuple[Function, Sequence[Instruction]]:
        """The K loop of the largest tile."""
        request = Request("kernel", self.spec, tw.Schedule(), resolve(self.target))
        code = machine_code([request], request.target)
        found = [
            (function, region.instructions)
            for function in functions(code)
            for region in function.regions()
            if region.looped
        ]
        return max(found, key=lambda pair: len(_sums(*pair)))


def _sums(function: Function, loop: Sequence[Instruction]) -> set[str]:
    """The registers that multiply-adds sum into."""
    return {one.operands.partition(",")[0] for one in loop if function.multiplies(one)}


def predicted(instructions: Sequence[Instruction], target: str, processor: str) -> float:
    """Cycles of one trip; MissingError where llvm-mca is not there or does not know them."""
    program = os.environ.get("LLVM_MCA", "llvm-mca")
    arm = resolve(target).machine == "aarch64"
    options = [f"-march={'aarch64' if arm else 'x86-64'}", f"-mcpu={processor}"]
    head = "" if arm else ".intel_syntax noprefix\n"
    body = "\n".join(_text(one) for one in instructions)
    try:
        done = subprocess.run(
            [program, *options, f"-iterations={TRIPS}"], input=f"{head}again:\n{body}\n",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        raise MissingError(f"{program} cannot be started; install llvm, or set LLVM_MCA") from error
    cycles = re.search(r"^Total Cycles:\s+(\d+)", done.stdout, re.MULTILINE)
    if done.returncode or cycles is None:
        raise MissingError(f"{program} for {processor}: {done.stderr.strip()[:300]}")
    return int(cycles[1]) / TRIPS


def _text(one: Instruction) -> str:
    if one.target is None:
        return f"{one.mnemonic} {one.operands}"
    return f"{one.mnemonic} {re.sub(r'[0-9a-f]+ <.*', 'again', one.operands)}"


def _packed(m: int, n: int, k: int, a: Any, b: Any) -> tw.Gemm:
    return tw.Gemm(m, n, k, a=a, b=tw.Packed(b))


WANTED = (
    Wanted("64x64x64 f32", tw.Gemm(64, 64, 64), "avx512", X86),
    Wanted("64x64x64 f32", tw.Gemm(64, 64, 64), "avx2", ("haswell", "skylake", "alderlake")),
    Wanted("64x64x64 bf16", _packed(64, 64, 64, "bf16", "bf16"), "avx512+bf16", X86),
    Wanted("64x48x64 bf16", _packed(64, 48, 64, "bf16", "bf16"), "avx512+bf16", X86),
    Wanted("64x64x64 u8 x s8", _packed(64, 64, 64, "u8", "s8"), "avx512+vnni", X86),
    Wanted("64x48x64 u8 x s8", _packed(64, 48, 64, "u8", "s8"), "avx512+vnni", X86),
    Wanted("64x64x64 s8 x s8", _packed(64, 64, 64, "s8", "s8"), "avx512+vnni", X86),
    Wanted("64x64x64 f32", tw.Gemm(64, 64, 64), "neon", ARM),
    Wanted("64x64x64 u8 x s8", _packed(64, 64, 64, "u8", "s8"), "neon+dotprod+i8mm", ARM[1:2]),
    Wanted("64x64x64 bf16", _packed(64, 64, 64, "bf16", "bf16"), "neon+bf16", ARM[1:2]),
)


def table() -> str:
    """Markdown, with the versions of what predicted."""
    program = os.environ.get("LLVM_MCA", "llvm-mca")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"LLVM version (\S+)", said.stdout)
    made = (find_compiler(resolve(wanted.target), emulated=False).family for wanted in WANTED)
    compilers = ", ".join(dict.fromkeys(made))
    head = [
        f"By llvm-mca {version[1] if version else ''}, for the machine code of {compilers}:",
        "",
        "| product | target | processor | multiply-adds a trip | cycles | of their bound |",
        "|---|---|---|--:|--:|--:|",
    ]
    return "\n".join([*head, *(row for wanted in WANTED for row in wanted.rows())]) + "\n"


def main() -> None:
    """Predict and print."""
    argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__).parse_args()
    sys.stdout.write(table())


if __name__ == "__main__":
    main()
