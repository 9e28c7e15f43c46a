"""What other instructions cost beside multiply-adds: chains of these with others in between.

``python -m benchmarks.beside`` prints a table in Markdown: how much longer 12 chains of
multiply-adds take with some instructions behind every fourth of them, or every second. Nothing
waits for what these compute, and they access one place in the first cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.measure.machine import pin
from benchmarks.measure.native import Call, Effort, address, built, measure
from tilewright.runtime.machine import host

CHAINS, REPEATED, TRIPS = 12, 4, 500
EFFORT = Effort(rounds=31)
EVERY = (4, 2)
#: The letters of registers of 256 and 512 bits, and of those of half the size.
WIDTHS = {"avx2": ("y", "x"), "avx512": ("z", "y")}
PLAIN = "multiply-adds alone"
#: Instructions by what they are: {w} is a register's letter, {h} that of half of it. Those behind
#: "each" come every time, those before it every fourth time.
BESIDE = {
    "a store": ["vmovups {w}mm14, 64({p})"],
    "`vcvtph2ps`": ["vcvtph2ps {h}mm15, {w}mm13"],
    "`vcvtph2ps`, a store": ["vcvtph2ps ({p}), {w}mm13", "vmovups {w}mm13, 64({p})"],
    "`vbroadcastss` from memory": ["vbroadcastss ({p}), {w}mm13"],
    "`vbroadcastss` from a register": ["vbroadcastss %%xmm15, {w}mm13"],
    "`vpermilps`": ["vpermilps $0, {w}mm15, {w}mm13"],
    "bf16: `vpbroadcastw`, `vpslld`": [
        "vpbroadcastw ({p}), {w}mm13",
        "vpslld $16, {w}mm13, {w}mm13",
    ],
    "f16: `vpbroadcastw`, `vcvtph2ps`": [
        "vpbroadcastw ({p}), {h}mm13",
        "vcvtph2ps {h}mm13, {w}mm13",
    ],
    "f16 in fours: `vpbroadcastq`, `vcvtph2ps`, then 4 `vpermilps`": [
        "vpbroadcastq ({p}), {h}mm13",
        "vcvtph2ps {h}mm13, {w}mm13",
        "each",
        "vpermilps $0x55, {w}mm13, {w}mm12",
    ],
}


@dataclass(frozen=True)
class Loop:
    """Multiply-adds with other instructions behind each of so many ``every``."""

    isa: str
    beside: str = PLAIN
    every: int = CHAINS * REPEATED + 1

    def instructions(self) -> Iterator[str]:
        """Those of a trip."""
        wide, half = (f"%%{letter}" for letter in WIDTHS[self.isa])
        for number in range(1, CHAINS * REPEATED + 1):
            yield f"vfmadd231ps {wide}mm14, {wide}mm15, {wide}mm{number % CHAINS}"
            turn, left = divmod(number, self.every)
            for other in () if left else self._others(turn):
                yield other.format(w=wide, h=half, p="%[p]")

    def _others(self, turn: int) -> list[str]:
        given = BESIDE[self.beside]
        if "each" not in given:
            return given
        once = given.index("each")
        return given[once + 1 :] if turn % 4 != 1 else [*given[:once], *given[once + 1 :]]

    def function(self, name: str) -> str:
        """It in C, reading and writing what ``p`` points to."""
        lines = "\n".join(f'        "{line}\\n"' for line in self.instructions())
        used = ", ".join(f'"xmm{number}"' for number in range(16))
        return (
            f"void {name}(void *p)\n{{\n    long trips = {TRIPS};\n"
            f'    __asm__ volatile(".p2align 6\\n"\n        "1:\\n"\n{lines}'
            f'        "dec %[trips]\\n"\n        "jnz 1b"\n'
            f'        : [trips] "+r"(trips) : [p] "r"(p) : "memory", "cc", {used});\n}}\n'
        )


def table(isas: list[str]) -> str:
    """Markdown: per cent that the multiply-adds take longer."""
    others = [(title, every) for title in BESIDE for every in EVERY]
    columns = {isa: _longer(isa, others) for isa in isas}
    head = [f"{isa}, one in {every}" for isa in isas for every in EVERY]
    lines = [f"| beside them | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    for title in BESIDE:
        cells = [f"{100 * columns[isa][title, e]:.1f}%" for isa in isas for e in EVERY]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return f"On {host.describe()}:\n\n" + "\n".join(lines) + "\n"


def _longer(isa: str, others: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
    loops = {"alone": Loop(isa)} | {f"{i}": Loop(isa, *one) for i, one in enumerate(others)}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"beside_{isa}.c"
        source.write_text("".join(loop.function(f"f_{n}") for n, loop in loops.items()))
        found = built(source, *host.resolve(isa).compiler_flags)
    memory = np.zeros(4096, np.uint8)
    place = (memory.ctypes.data + 63) // 64 * 64
    flops = CHAINS * REPEATED * TRIPS
    calls = [
        Call(name, address(getattr(found, f"f_{name}")), (place,), flops, (found, memory))
        for name in loops
    ]
    timed = measure(calls, EFFORT)
    return {one: 1 / timed.ratio(f"{i}", "alone") - 1 for i, one in enumerate(others)}


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__)
    parser.parse_args(arguments)
    isas = [isa for isa in WIDTHS if host.is_native(host.resolve(isa))]
    if not isas:
        print("no x86 processor with AVX2 here")
        return 2
    pin(None)
    print(table(isas))
    return 0


if __name__ == "__main__":
    sys.exit(main())
