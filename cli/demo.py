"""``tilewright demo``: show tilewright on this machine.

It times products and other kernels next to numpy, and writes a plot, the C and a picture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
from rich.console import Console

import tilewright as tw
from tilewright.errors import install
from tilewright.examples import neon_chapter, oriented_filters

from .measured import Measured, beside
from .screen import console, json_option, percent, progress, show_json, table, working
from .words import schedule_text

_NUMBERS = ("error/bound", "rate", "of peak", "x numpy")
#: Sizes m, n, k of the products that are timed: small, odd, with a single row, and large.
_SIZES = ((8, 8, 8), (23, 23, 23), (64, 64, 64), (1, 256, 256), (128, 128, 128), (512, 512, 512))
#: Sizes m, n, k of the product for which several schedules are timed.
_SHAPE = (64, 48, 64)
#: Number of rows of the filtered photograph that are compared with scipy's result.
_CHECKED = 30
#: Files that the demo writes to the output folder, with their descriptions.
_LEFT = {
    "gflops.png": "the figures above",
    "c": "the generated C",
    "filter-responses.png": "the filters and what they found",
}


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tilewright-demo"),
    show_default=True,
    help="Folder for the plot, the C code and the picture.",
)
@click.option(
    "--variants",
    "count",
    type=click.IntRange(2),
    default=32,
    show_default=True,
    help="Number of schedules that are timed.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Seconds of timing for each kernel.",
)
@json_option
def command(out: Path, count: int, seconds: float, as_json: bool) -> None:
    """Compile, check and time kernels on this machine next to numpy.

    They are products, the kernels of a book chapter on Neon, variants of one kernel, and a bank of
    filters. The first run takes about a minute, because it compiles. Later runs take the kernels
    from the cache.
    """
    _needs_extras()
    out.mkdir(parents=True, exist_ok=True)
    screen = Console(quiet=True) if as_json else console()
    _say_where_we_are(screen)
    with _one_core():
        products = show_machine(seconds, screen)
        chapter = show_chapter(seconds, screen)
        ranked = show_variants(count, seconds / 2, screen)
    write_c(out / "c", chapter)
    with working("drawing"):
        title = f"{len(ranked)} variants of {'x'.join(map(str, _SHAPE))}, rows contiguous"
        _plot(out / "gflops.png", products, chapter, ranked, title)
    screen.print("[bold]A bank of oriented filters over a photograph[/bold]")
    told = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with _one_core(), working("filtering"), told:
        wrong = oriented_filters.main(str(out / "filter-responses.png"), _CHECKED)
    screen.print(f"\nleft in {out.resolve()}:", soft_wrap=True, markup=False)
    for file, what in _LEFT.items():
        screen.print(f"  {file:22}{what}")
    if as_json:
        groups = {"products": products, "chapter": chapter}
        data = {name: list(map(_data, group)) for name, group in groups.items()}
        files = [str(out.resolve() / file) for file in _LEFT]
        show_json({**data, "variants": ranked, "filters": {"wrong": bool(wrong)}, "files": files})
    if wrong or any(one.error > 1 for one in (*products, *chapter)):
        raise click.ClickException("a result was outside its bound; see above")


def _data(one: Measured) -> dict[str, Any]:
    """Return a kernel's figures for ``--json``: times of a call in a C loop, and ratio to numpy."""
    return {
        "title": one.title,
        "sizes": one.sizes,
        "target": one.kernel.target,
        **asdict(one.timing),
        "times_numpy": one.called.ratio,
        "error_of_bound": one.error,
    }


def _needs_extras() -> None:
    from importlib.util import find_spec

    missing = [
        name
        for name in ("matplotlib", "scipy", "sklearn", "threadpoolctl")
        if find_spec(name) is None
    ]
    if missing:
        raise click.ClickException(f"the demo needs {', '.join(missing)}\n  try: {install('demo')}")


def _one_core() -> AbstractContextManager[Any]:
    """Limit numpy's products to one core, because the kernels use one core too."""
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def _say_where_we_are(screen: Console) -> None:
    from tilewright.runtime.build import compilers
    from tilewright.runtime.machine import host

    target = host.resolve("host")
    compiler = compilers.find_compiler(target, emulated=False)
    screen.print(
        f"{host.describe()}: target {target.name}, compiled by {compiler.family} {compiler.version}"
    )


# --- products on this machine ------------------------------------------------------------------


def show_machine(seconds: float, screen: Console) -> list[Measured]:
    """Time products next to numpy, and print a table. The cost model chooses the schedules."""
    with working(f"compiling {len(_SIZES)} products"):
        kernels = tw.compile_many([tw.Gemm(*sizes) for sizes in _SIZES])
    measured = [_product(kernel, seconds) for kernel in progress(kernels, "timing products")]
    shown = table(
        f"This machine, {kernels[0].target}: C = A B in f32, by the model's own schedules",
        *("m x n x k", "block", "loops", *_NUMBERS),
        numbers=_NUMBERS,
    )
    for one in measured:
        chosen = one.kernel.schedule
        block = "x".join(map(str, chosen.tile or ()))
        figures = one.rate, percent(one.timing.of_peak), f"{one.called.ratio:.1f}"
        shown.add_row(one.sizes, block, chosen.loops, f"{one.error:.3f}", *figures)
    screen.print(shown)
    screen.print(
        "rate: in a C loop, data in cache. x numpy: numpy's time for the same product on one core\n"
        "over the kernel's, both called from Python.\n"
    )
    return measured


def _product(kernel: tw.Kernel, seconds: float) -> Measured:
    """Check the results of a product's kernel, time it in a C loop, and time it next to numpy."""
    spec = kernel.spec
    assert isinstance(spec, tw.Gemm)
    m, n, k = (int(size) for size in (spec.m, spec.n, spec.k) if isinstance(size, int))
    rng = np.random.default_rng(1)
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    c, other = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
    found = kernel.verify(cases=2)
    return Measured(
        title="",
        sizes=f"{m}x{n}x{k}",
        kernel=kernel,
        timing=kernel.bench(seconds=seconds),
        called=beside(lambda: kernel(a, b, c), lambda: np.matmul(a, b, out=other), seconds),
        error=found.max_error / found.bound if found.bound else 0.0,
    )


# --- the chapter's kernels ---------------------------------------------------------------------


def show_chapter(seconds: float, screen: Console) -> list[Measured]:
    """Time the kernels of a book chapter on Neon on this machine, and print a table.

    Tiles and loops are those of the chapter.
    """
    rows = neon_chapter.ROWS
    with working(f"compiling the chapter's {len(rows) + 1} kernels"):
        kernels = neon_chapter.compile_all("host", fixed=True)
    measured = []
    for i in progress(range(len(kernels)), "timing the chapter's kernels"):
        kernel = kernels[i]
        row = rows[i] if i < len(rows) else None
        measured.append(_measured(kernel, row, seconds))
    shown = table(
        f"The steps of a chapter on Neon, in its fixed blocks and loops, on {kernels[0].target}: "
        "C += A B, columns contiguous",
        *("kernel", "m x n x k", "block", "loops", *_NUMBERS),
        numbers=_NUMBERS,
    )
    for i, one in enumerate(measured):
        row = rows[i] if i < len(rows) else None
        block, loops = ("", "") if row is None else ("x".join(map(str, row.tile)), row.loops)
        figures = one.rate, percent(one.timing.of_peak), f"{one.called.ratio:.1f}"
        shown.add_row(one.title, one.sizes, block, loops, f"{one.error:.3f}", *figures)
    screen.print(shown)
    screen.print(
        "Blocks and loops are the chapter's, for 32 registers of 4 lanes; the model would choose\n"
        "others here. x numpy: its time for c += a @ b.\n"
    )
    return measured


def _measured(kernel: tw.Kernel, row: neon_chapter.Row | None, seconds: float) -> Measured:
    """Check the results of a kernel, time it in a C loop, and time it next to numpy.

    ``row`` describes a product of the chapter. It is None for the transposition.
    """
    if row is None:
        title, sizes = neon_chapter.TRANSPOSITION, "8x8"
        error = neon_chapter.check_transposition(kernel, padding=0)
    else:
        title, sizes = row.title, "x".join(map(str, row.sizes))
        sizes += "" if row.batch is None else f", batch {row.batch}"
        error = neon_chapter.check(kernel, row, padding=0)
    ours, theirs = _transposing(kernel) if row is None else _multiplying(kernel, row)
    return Measured(
        title=title,
        sizes=sizes,
        kernel=kernel,
        timing=kernel.bench(seconds=seconds),
        called=beside(ours, theirs, seconds),
        error=error,
    )


def _multiplying(kernel: tw.Kernel, row: neon_chapter.Row) -> tuple[Callable[[], Any], ...]:
    """Return two functions that compute a product in place: with the kernel, and with numpy."""
    m, n, k = row.sizes
    a = neon_chapter.columns(m, k, 0, row.batch, seed=1)
    b = neon_chapter.columns(k, n, 0, row.batch, seed=2)
    c, other = (neon_chapter.columns(m, n, 0, None, seed=3) for _ in range(2))

    def theirs() -> None:
        product = np.matmul(b.mT, a.mT)  # transposed: row-major, so numpy copies nothing
        np.add(other.T, product if row.batch is None else product.sum(axis=0), out=other.T)

    return (lambda: kernel(a, b, c)), theirs


def _transposing(kernel: tw.Kernel) -> tuple[Callable[[], Any], ...]:
    x, out = neon_chapter.columns(8, 8, 0, None, seed=4).T, np.empty((8, 8), np.float32)
    return (lambda: kernel(x, out)), (lambda: np.copyto(out, x.T))


# --- variants ----------------------------------------------------------------------------------


def show_variants(count: int, seconds: float, screen: Console) -> list[float]:
    """Time ``count`` schedules of one product, print a table, and return their GFLOPS.

    The schedules are evenly spaced in the list of all variants, which the cost model sorts by its
    estimates, best first.
    """
    spec = tw.Gemm(*_SHAPE)
    every = list(tw.variants(spec))
    count = min(count, len(every))
    places = sorted({round(i * (len(every) - 1) / (count - 1)) for i in range(count)})
    schedules = [every[place] for place in places]
    with working(f"compiling {len(schedules)} of {len(every)} variants"):
        kernels = tw.compile_many([(spec, schedule, "host") for schedule in schedules])
    timings = [k.bench(seconds=seconds) for k in progress(kernels, "timing the variants")]
    ranked = [timing.gflops for timing in timings]
    fastest = sorted(range(len(ranked)), key=lambda i: -ranked[i])
    numbers = ("expected", "GFLOPS", "of peak")
    shown = table(
        f"{len(ranked)} of {len(every)} variants of {'x'.join(map(str, _SHAPE))}, fastest first",
        *("schedule", *numbers),
        numbers=numbers,
    )
    for i in dict.fromkeys([*fastest[:6], *fastest[-2:]]):
        place = f"{places[i] + 1} of {len(every)}"
        figures = f"{ranked[i]:.1f}", percent(timings[i].of_peak)
        shown.add_row(schedule_text(schedules[i]), place, *figures)
    screen.print(shown)
    return ranked


# --- the C -------------------------------------------------------------------------------------


def write_c(folder: Path, chapter: list[Measured]) -> None:
    """Write the C code of each kernel, for this CPU and for Neon, into a file of its own."""
    from tilewright.generate import Request, generate
    from tilewright.runtime.machine.host import resolve

    names = [f"{one.title.replace(' ', '_').replace(',', '')}_{i}" for i, one in enumerate(chapter)]
    for target in dict.fromkeys((chapter[0].kernel.target, "neon")):
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        for name, one in zip(names, chapter, strict=True):
            kernel = one.kernel
            request = Request(name, kernel.spec, kernel.requested, resolve(target))
            (place / f"{name}.c").write_text(generate([request]).text, encoding="utf-8")


# --- the plot ----------------------------------------------------------------------------------


def _plot(
    path: Path,
    products: Sequence[Measured],
    chapter: Sequence[Measured],
    ranked: Sequence[float],
    title: str,
) -> None:
    """Draw the plot, and save it to ``path``.

    ``ranked`` has the GFLOPS of the variants in the cost model's order, best estimate first.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(21, 6.5), layout="constrained")
    left, middle, right = panels
    computing = [one for one in chapter if not one.moves]
    target = products[0].kernel.target
    _bars(left, products, f"{target}\nthe model's schedules: C = A B by rows")
    _bars(middle, computing, "a chapter on Neon\nits fixed blocks and loops: C += A B by columns")
    right.plot(range(1, len(ranked) + 1), ranked, "o", markersize=4)
    right.set_xlabel("the cost model's order, best expected first")
    right.set_ylabel("GFLOPS in a C loop")
    right.set_ylim(bottom=0)
    right.set_title(title)
    measured = [*products, *computing]
    peaks = [one.timing.gflops / one.timing.of_peak for one in measured if one.timing.of_peak]
    if peaks:
        for axes in (left, middle):
            axes.axvline(median(peaks), color="k", linestyle="--", label="measured peak")
        right.axhline(median(peaks), color="k", linestyle="--", label="measured peak")
        right.legend()
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4)
    figure.savefig(path, dpi=100, pil_kwargs={"compress_level": 1})
    pyplot.close(figure)


def _bars(axes: Any, measured: Sequence[Measured], title: str) -> None:
    """Draw a group of bars for each kernel, with the kernel's ratio to numpy next to the bars."""
    places = range(len(measured))
    called = [one.work / one.called.ours for one in measured]
    bars = (
        ("in a C loop", "C0", [one.timing.gflops for one in measured]),
        ("called from Python", "C9", called),
        ("numpy", "0.7", [one.work / one.called.numpy for one in measured]),
    )
    for i, (label, color, gflops) in enumerate(bars):
        axes.barh([p + 0.27 * (i - 1) for p in places], gflops, 0.26, color=color, label=label)
    for place, one, end in zip(places, measured, called, strict=True):
        axes.annotate(
            f"{one.called.ratio:.1f} x numpy",
            (end, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0},
        )
    axes.set_yticks(list(places), [", ".join(filter(None, (o.title, o.sizes))) for o in measured])
    axes.invert_yaxis()
    axes.margins(x=0.2)  # room for the text next to the longest bar
    axes.set_xlabel("GFLOPS on one core")
    axes.set_title(title)
