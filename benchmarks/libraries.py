"""``python -m benchmarks.libraries``: what a library in C costs to make, and to call.

Fifty kernels for five targets are generated, compiled for every architecture that has a compiler,
and checked; then a call by way of the dispatch is timed against one of the target's own function.
Non-zero when a figure is missed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

import tilewright as tw
from benchmarks.measure import machine
from benchmarks.measure.figures import Figure, show
from tilewright.runtime.library.build import Built
from tilewright.runtime.machine import host

TARGETS = ("avx2", "avx512+vnni", "amx", "neon", "scalar")
PROGRAM = Path(__file__).parent / "programs" / "dispatch.c"
#: Seconds for all of it on two cores, and nanoseconds that the dispatch adds to a call.
MADE_S, DISPATCH_NS = 60.0, 2.0


def main() -> int:
    """Measure both; 1 when a figure is missed."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"{machine.cpu()}, {host.usable_cpus()} CPUs")
    with TemporaryDirectory() as folder:
        made = _make(console, Path(folder))
    with TemporaryDirectory() as folder:
        direct, dispatched, apart = _calls(Path(folder))
    console.print(f"a call: {direct:.2f} ns, by way of the dispatch {dispatched:.2f} ns")
    figures = (
        Figure("50 kernels for 5 targets: generated, compiled, checked", made, MADE_S, True, " s"),
        Figure("the dispatch of a call", apart, DISPATCH_NS, True, " ns"),
    )
    show(console, figures)
    return int(not all(figure.met for figure in figures))


def specs() -> dict[str, object]:
    """Fifty kernels such as a program for small networks has: floats, integers, bf16."""
    found: dict[str, object] = {}
    for size in range(4, 40):
        found[f"f32_{size}"] = tw.Gemm(size, size, size, beta=1)
    for n in range(16, 80, 8):
        found[f"layer_{n}"] = tw.Gemm(
            16, n, 64, a="u8", b=tw.Packed("s8"), d="u8", a_zero=128, b_scale="column", d_scale=0.1
        )
    for k in range(16, 112, 16):
        found[f"bf16_{k}"] = tw.Gemm(16, 32, k, a="bf16", d="bf16", epilogue=tw.relu(tw.acc))
    return found


def _make(console: Console, folder: Path) -> float:
    """Seconds for the library, from its specs to a self-test that passed."""
    begun = time.perf_counter()
    library = tw.library("fifty", specs(), targets=TARGETS)
    built = library.build(folder)
    took = time.perf_counter() - begun
    console.print(
        f"{len(library.kernels)} functions, of which some pack a B: generated in "
        f"{library.seconds:.1f} s, {sum(map(len, library.files.values())):,} bytes of text"
    )
    for one in built:
        _say(console, one)
    return took


def _say(console: Console, built: Built) -> None:
    if built.missing or built.static is None or built.shared is None:
        console.print(f"{built.machine}: {built.missing}")
        return
    console.print(
        f"{built.machine}: {built.compiler}, {built.seconds:.1f} s; "
        f"{built.static.stat().st_size:,} bytes static, {built.shared.stat().st_size:,} shared"
    )
    for each in built.targets:
        console.print(
            f"  {each.target}: {each.seconds:.1f} s of compiling, {each.bytes:,} bytes of objects, "
            f"self-test: {each.checked}"
        )


def _calls(folder: Path) -> list[float]:
    """Nanoseconds of a direct call, of one by way of the dispatch, and between the two."""
    library = tw.library("timed", {"tiny": tw.Gemm(1, 1, 1)}, targets=["avx2", "scalar"])
    (built,) = library.build(folder, architectures=[host.machine()], selftest=False)
    command = ["gcc", "-O2", f"-I{folder / 'include'}", str(PROGRAM), str(built.static)]
    subprocess.run([*command, "-o", str(folder / "dispatch")], check=True)
    done = subprocess.run([folder / "dispatch"], capture_output=True, text=True, check=True)
    return [float(number) for number in done.stdout.split()]


if __name__ == "__main__":
    sys.exit(main())
