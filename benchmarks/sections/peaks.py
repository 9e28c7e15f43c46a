"""Whether ``tw.peak`` is the peak: its forms beside each other, and kernels below it."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from rich.table import Table

import tilewright as tw
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.options import Options
from tilewright.runtime.bench.peak import Peak

#: What the widest form reaches at least of the best one.
WIDEST = 0.9
#: Latency through the sum at most, of that through a factor.
THROUGH_SUM = 1.2
#: What one chain reaches at most of the best number of chains, and these of so many times one.
ALONE, TOGETHER = 1.05, 1.05
#: What kernels reach of the peak, at least and at most.
KERNELS = (0.3, 1.01)
_SPECS = {"64x48x64, f32": tw.Gemm(64, 48, 64), "48x48x48, f64": tw.Gemm(48, 48, 48, a="f64")}


def run(options: Options) -> Section:
    """Measure the forms of f32, and two kernels beside their peak."""
    found = tw.peak(options.target)
    shares = {
        name: tw.compile(spec, target=options.target).bench(seconds=0.1).of_peak
        for name, spec in _SPECS.items()
    }
    figures = [*form_figures(found)]
    for name, share in shares.items():
        assert share is not None
        least, most = KERNELS
        figures.append(Figure(f"{name} of tw.peak", share, least))
        figures.append(Figure(f"{name} of tw.peak", share, most, at_most=True))
    _print(options, found)
    return Section("peaks", tuple(figures))


def form_figures(found: Peak) -> Iterator[Figure]:
    """What must hold between the forms of a peak, and within each."""
    yield Figure("widest form to the best", found.forms[0].gflops / found.gflops, WIDEST)
    for form in found.forms:
        name = f"{form.mnemonic} ({form.vector})"
        alone = 2 * form.lanes / form.destination
        if not isnan(form.source_cycles):
            ratio = form.destination_cycles / form.source_cycles
            yield Figure(f"{name}: latency, sum to factor", ratio, THROUGH_SUM, at_most=True)
            alone = 2 * form.lanes / min(form.source, form.destination)
        yield Figure(f"{name}: one chain to the best", alone / form.gflops, ALONE, at_most=True)
        gain = form.gflops / (form.chains * alone)
        yield Figure(f"{name}: best to its chains alone", gain, TOGETHER, at_most=True)


def _print(options: Options, found: Peak) -> None:
    title = f"The peak of {found.target}, {found.clock:.2f} GHz"
    table = Table(title=title, title_justify="left")
    for heading in ("form", "GFLOP/s", "chains", "cycles, factor", "cycles, sum"):
        table.add_column(heading, justify="left" if heading == "form" else "right")
    for form in found.forms:
        table.add_row(
            f"{form.mnemonic} ({form.vector})",
            f"{form.gflops:.1f}",
            str(form.chains),
            f"{form.source_cycles:.1f}",
            f"{form.destination_cycles:.1f}",
        )
    options.console.print(table)
