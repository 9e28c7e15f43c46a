"""The kernels of a chapter on Neon: run on Neon, and on the machine at hand.

    python examples/neon_chapter.py [TARGET ...]            (by default: neon host)
    python examples/neon_chapter.py --target sve256

The chapter writes them in assembly, one after the other, each a step towards a fast small matrix
product: first a rank-1 update of 16x6 accumulators, then a loop over K around it, over M, over N,
then what to do when M is no multiple of 4, another shape of accumulator block, and batches. Here
each is one line of a table: what it computes, and how.

Matrices are stored by columns (``order="F"``) and added to (``beta=1``), and leading dimensions
are arguments of the C function, as in the chapter; then all once more with fixed ones, which the
C compiler can fold into addresses. Each kernel is checked against numpy in float64. Where the CPU
has the instructions it is timed; elsewhere it runs through an emulator, and a time would mean
nothing.

The chapter also asks what is attainable at all. The last table measures each form of multiply-add
that a target has: how many operations independent chains of it reach, and how many cycles one takes
in a chain of dependent ones, from a factor to the result (source) and from the sum (destination).
Some cores take the sum late, so that the second is shorter. The chapter's own chains were not
really dependent, and measured throughput again. The best form is the peak of all percentages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright as tw


@dataclass(frozen=True)
class Row:
    """A line of the chapter's table: m, n, k, the accumulator block, the loops outermost first.

    Loops left of the last ``m`` or ``n`` run over blocks of C; those right of it run while the
    block stays in registers. So ``bnmk`` has the batch outside, and ``nmbk`` has it inside.
    """

    title: str
    sizes: tuple[int, int, int]
    tile: tuple[int, int]
    loops: str
    batch: int | None = None

    def spec(self, *, fixed: bool) -> tw.Gemm:
        """``C += A B``, or the sum of a batch of products."""
        lda, ldb, ldc = (None if fixed else tw.dim(name) for name in ("lda", "ldb", "ldc"))
        batch = None if self.batch is None else tw.Strided(self.batch)
        return tw.Gemm(*self.sizes, order="F", beta=1, batch=batch, lda=lda, ldb=ldb, ldc=ldc)

    def schedule(self) -> tw.Schedule:
        """The chapter's register block and loops; the rest is left to the cost model."""
        return tw.Schedule(tile=self.tile, loops=self.loops)


ROWS = (
    Row("one rank-1 update", (16, 6, 1), (16, 6), "k"),
    Row("loop over K", (16, 6, 64), (16, 6), "k"),
    Row("loop over M", (64, 6, 64), (16, 6), "mk"),
    Row("loop over N", (64, 48, 64), (16, 6), "nmk"),
    Row("loop over N", (64, 48, 64), (16, 4), "nmk"),
    Row("M tail of 2", (14, 6, 64), (14, 6), "k"),
    Row("M tail of 3", (15, 6, 64), (15, 6), "k"),
    Row("another block", (64, 64, 64), (16, 4), "nmk"),
    Row("batch-reduce", (64, 48, 64), (16, 4), "bnmk", batch=16),
    Row("the same, batch inside", (64, 48, 64), (16, 4), "nmbk", batch=16),
)

#: The chapter's last kernel moves data only: 8x8 in four blocks of 4x4, all in registers.
TRANSPOSITION = "transposition"


def compile_all(target: str, *, fixed: bool) -> list[tw.Kernel]:
    """The table's kernels for a target, and the transposition: one library, built at once."""
    gemms = [(row.spec(fixed=fixed), row.schedule(), target) for row in ROWS]
    return tw.compile_many([*gemms, (transposition(fixed=fixed), None, target)])


def transposition(*, fixed: bool) -> tw.Transpose:
    """8x8 of f32."""
    return tw.Transpose(8, 8) if fixed else tw.Transpose(8, 8, ldx=tw.dim("x"), ldout=tw.dim("out"))


# --- checking ----------------------------------------------------------------------------------


def columns(
    rows: int, cols: int, padding: int, batch: int | None, seed: int
) -> NDArray[np.float32]:
    """A random matrix by columns, ``padding`` elements between them; or a batch of matrices."""
    rng = np.random.default_rng(seed)
    shape = (cols, rows + padding) if batch is None else (batch, cols, rows + padding)
    return rng.uniform(-1, 1, shape).astype(np.float32).swapaxes(-1, -2)[..., :rows, :]


def check(kernel: Callable[..., Any], row: Row, padding: int) -> float:
    """Call the kernel; the largest error as a fraction of what rounding alone can cause."""
    m, n, k = row.sizes
    a, b = columns(m, k, padding, row.batch, seed=1), columns(k, n, padding, row.batch, seed=2)
    c = columns(m, n, padding, None, seed=3)
    before = c.astype(np.float64)
    kernel(a, b, c)

    products = a.astype(np.float64) @ b.astype(np.float64)
    sizes = abs(a).astype(np.float64) @ abs(b)
    if row.batch is not None:
        products, sizes = products.sum(axis=0), sizes.sum(axis=0)
    bound = (k * (row.batch or 1) + 4) * np.finfo(np.float32).eps * (sizes + abs(before))
    return float((abs(c - (before + products)) / bound).max())


def check_transposition(kernel: Callable[..., Any], padding: int) -> float:
    """0 when every element is in its place, else 1."""
    x = columns(8, 8, padding, None, seed=4).T
    out = np.zeros((8, 8 + padding), np.float32)[:, :8]
    return float(not np.array_equal(kernel(x, out), x.T))


# --- the table ---------------------------------------------------------------------------------


def rate(kernel: tw.Kernel) -> str:
    """GFLOPS and the share of the measured peak, or GB/s, where the CPU has the instructions."""
    if kernel.emulated:
        return f"(through {kernel.emulated})"
    timing = kernel.bench(seconds=0.1)
    if timing.gb_per_s is not None:  # bytes read and written
        return f"{timing.gb_per_s:7.1f} GB/s"
    share = "" if timing.of_peak is None else f"{timing.of_peak:7.0%} of peak"
    return f"{timing.gflops:7.1f} GFLOPS{share}"


def show(target: str, *, fixed: bool) -> bool:
    """Compile the table's kernels into one library, check and time each; true if all are right."""
    padding = 0 if fixed else 3
    *kernels, transposer = compile_all(target, fixed=fixed)

    print(f"\n{transposer.target}, leading dimensions {'fixed' if fixed else 'at run time'}")
    print(f"{'':24}{'m x n x k':16}{'block':8}{'loops':8}{'error/bound':>12}")
    right = True
    for row, kernel in zip(ROWS, kernels, strict=True):
        sizes, block = "x".join(map(str, row.sizes)), "x".join(map(str, row.tile))
        if row.batch is not None:
            sizes += f", {row.batch}"
        error = check(kernel, row, padding)
        right &= error <= 1
        print(f"{row.title:24}{sizes:16}{block:8}{row.loops:8}{error:12.3f}  {rate(kernel)}")
    error = check_transposition(transposer, padding)
    print(f"{TRANSPOSITION:24}{'8x8':32}{error:12.3f}  {rate(transposer)}")
    return right and error == 0


def show_instructions(target: str, element: str) -> None:
    """The multiply-adds of a target that the CPU has: throughput, and latency both ways."""
    peak = tw.peak(target, element)
    print(f"\n{peak.target}, {element}: {peak.gflops:.1f} GFLOPS at about {peak.clock:.1f} GHz")
    print(f"{'':24}{'GFLOPS':>8}{'chains':>8}{'cycles: source':>16}{'destination':>14}")
    for form in peak.forms:
        name = f"{form.mnemonic} ({form.vector})"
        cycles = f"{form.source_cycles:16.1f}{form.destination_cycles:14.1f}"
        print(f"{name:24}{form.gflops:8.1f}{form.chains:8}{cycles}")


def main(targets: list[str]) -> int:
    """The table for each target; the exit status."""
    right = [show(target, fixed=fixed) for target in targets for fixed in (False, True)]
    for target in targets:
        try:
            for element in ("f32", "f64"):
                show_instructions(target, element)
        except tw.TargetError as error:  # the CPU lacks it
            print(f"\n{error.problem}")
    print("\nall within the bound" if all(right) else "\nWRONG RESULTS: see error/bound above 1")
    return 0 if all(right) else 1


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description="The chapter's kernels on targets.")
    asked.add_argument("targets", nargs="*")
    asked.add_argument("--target", action="append", default=[])
    said = asked.parse_args()
    sys.exit(main([*said.targets, *said.target] or ["neon", "host"]))
