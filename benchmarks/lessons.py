"""What each measure in the generated C is worth: kernels as they are, and with one thing undone.

``python -m benchmarks.lessons`` prints tables in Markdown. ``CC`` chooses the compiler.
Both of a pair are timed in turns on one core; a figure is the median.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from typing import Any
from unittest import mock

import tilewright as tw
from benchmarks.measure.machine import native_isas, pin
from benchmarks.measure.shapes import TABLE, UKERNEL, Shape
from benchmarks.measure.spills import functions
from benchmarks.sections.kloops import disassembly, set_environment
from tilewright import generate
from tilewright.ir.ops import Op, Store
from tilewright.lower.tile import store
from tilewright.lower.tile import store as update
from tilewright.lower.tile.epilogue import Output
from tilewright.runtime.build import compilers, toolchain
from tilewright.runtime.machine import host

TURNS, SECONDS = 5, 0.1
#: K so short that it is unrolled whole.
SHORT = tuple(Shape(*map(int, text.split("x"))) for text in (
    "64x48x1", "64x48x2", "64x48x4", "32x32x8", "13x5x7", "24x64x3", "64x64x6", "96x4x15",
    "37x37x5", "40x40x3", "64x6x4",
))  # fmt: skip
SHAPES = tuple(dict.fromkeys((*TABLE, *UKERNEL, *SHORT)))
GCC = {"CC": "gcc", "TILEWRIGHT_CC_AARCH64": "aarch64-linux-gnu-gcc"}

Undo = Callable[[], AbstractContextManager[Any]]


@contextmanager
def _text(old: str, new: str) -> Iterator[None]:
    """The generated C with ``old`` replaced."""
    made = generate.generate

    def changed(requests: Any) -> Any:
        source = made(requests)
        return replace(source, text=source.text.replace(old, new))

    with mock.patch.object(generate, "generate", changed):
        yield


def row_by_row() -> AbstractContextManager[Any]:
    """C read and written register by register."""

    def write(tile: Any, outputs: Iterable[Output]) -> Iterator[Op]:
        for output in outputs:
            yield from update.updated(tile, output)
            yield Store(output.at(tile.written), output.acc, output.active)

    return mock.patch.object(store, "write", write)


def without_keep() -> AbstractContextManager[Any]:
    """The macros that hold registers, empty."""
    return _text("#ifdef TILEWRIGHT_INTRINSICS\n#define KEEP", "#if 1\n#define KEEP")


def without_barrier() -> AbstractContextManager[Any]:
    """The barriers of a tile, empty."""
    return _text('#define BARRIER __asm__ volatile("" ::: "memory")', "#define BARRIER ((void)0)")


def with_scheduling() -> AbstractContextManager[Any]:
    """The order of instructions that gcc chooses."""
    return mock.patch.object(toolchain, "_GCC_FLAGS", ())


@dataclass(frozen=True)
class Timed:
    """A kernel, and what it is compared with: another schedule, or a change made by ``undo``."""

    title: str
    spec: tw.Gemm
    target: str
    other: tw.Schedule = tw.Schedule()  # noqa: RUF009 frozen
    undo: Undo = nullcontext

    def row(self) -> str:
        """A line of the table: GFLOPS without and with."""
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            # What is undone is no part of a cache's keys.
            with set_environment({"TILEWRIGHT_CACHE_DIR": one}), self.undo():
                without = tw.compile(self.spec, self.other, target=self.target)
            with set_environment({"TILEWRIGHT_CACHE_DIR": two}):
                pair = without, tw.compile(self.spec, target=self.target)
            turns = [[one.bench(seconds=SECONDS).gflops for one in pair] for _ in range(TURNS)]
        kernel = f"{self.spec.m}x{self.spec.n}x{self.spec.k} {self.target}"
        slow, fast = (median(column) for column in zip(*turns, strict=True))
        return f"| {self.title} | {kernel} | {slow:.1f} | {fast:.1f} |"


@dataclass(frozen=True)
class Counted:
    """Accesses to the stack in the machine code of kernels, in K loops or in all."""

    title: str
    target: str
    undo: Undo
    in_loops: bool

    def row(self) -> str:
        """A line of the table: accesses without and with."""
        with self.undo():
            without = self._count()
        where = "in K loops" if self.in_loops else "in all"
        kernel = f"{len(SHAPES)} kernels, {self.target}, {where}"
        return f"| {self.title} | {kernel} | {without} | {self._count()} |"

    def _count(self) -> int:
        with set_environment(GCC):
            text = disassembly([(shape, None) for shape in SHAPES], self.target)
        if not self.in_loops:
            return len(re.findall(r"\[sp|\(%rsp", text))
        return sum(len(list(one.spills())) for one in functions(text))


def gemm(text: str, **more: Any) -> tw.Gemm:
    """The product that the benchmarks time: C += A B."""
    m, n, k = map(int, text.split("x"))
    return tw.Gemm(m, n, k, beta=1, **more)


TIMED = (
    Timed("C is read whole before it is written", gemm("13x5x7"), "avx512", undo=row_by_row),
    Timed("accumulators and factors are held (`KEEP`)", gemm("37x37x37"), "avx2",
          undo=without_keep),
    Timed("the last vector overlaps its neighbour; else `tails=\"mask\"`", gemm("6x15x64"), "avx2",
          tw.Schedule(tails="mask")),
    Timed("a constant number of lanes is stored in parts; else `tails=\"mask\"`", gemm("13x5x7"),
          "avx2", tw.Schedule(tails="mask")),
    Timed("few K steps per trip; else `k_unroll=16`", gemm("1x64x512"), "avx512",
          tw.Schedule(k_unroll=16)),
    Timed("A Bᵀ: B transposed by packing; else `vectorize=\"k\"`",
          gemm("64x64x64", b=tw.Matrix("f32", order="F")), "avx512", tw.Schedule(vectorize="k")),
)  # fmt: skip
COUNTED = (
    Counted("the order of loads is kept (`-fno-schedule-insns`)", "neon", with_scheduling, False),
    Counted("loads stay within their tile (`BARRIER`)", "avx2", without_barrier, True),
)


def tables() -> dict[str, str]:
    """Markdown by the name of its place, with what it was measured on."""
    compiler = compilers.find_compiler(host.resolve("host"), emulated=False)
    said = f"on {host.describe()}, {compiler.family} {compiler.version}"
    here = [lesson for lesson in TIMED if host.is_native(host.resolve(lesson.target))]
    widest = native_isas()[0].partition("+")[0]
    return {
        f"lessons on {widest}": _table(f"GFLOPS of `C += A B` {said}", here),
        "lessons on the stack": _table("Accesses to the stack, gcc", COUNTED),
    }


def _table(what: str, lessons: Iterable[Timed | Counted]) -> str:
    head = ["| measure | kernel | without | with |", "|---|---|--:|--:|"]
    return "\n".join([f"{what}:", "", *head, *(lesson.row() for lesson in lessons)]) + "\n"


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(prog="python -m benchmarks.lessons", description=__doc__).parse_args()
    pin(None)
    for text in tables().values():
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
