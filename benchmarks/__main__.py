"""``python -m benchmarks``: all figures in one run; non-zero when one is missed."""

from __future__ import annotations

import argparse
import json
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import planning
from benchmarks.frameworks import in_torch
from benchmarks.matmul import beside, few, products, sizes, small
from benchmarks.measure import machine
from benchmarks.measure.figures import Section, show
from benchmarks.measure.native import Effort, MissingError
from benchmarks.measure.neighbour import neighbour, verdict
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.networks import section as networks
from benchmarks.peers.f32 import Peer, load
from benchmarks.rows import section as row_programs
from benchmarks.sections import (
    calls,
    compiling,
    epilogue,
    estimate,
    gemm,
    kloops,
    low,
    packing,
    peaks,
    startup,
    tails,
    threads,
    tuned,
    ukernel,
    variants,
)
from benchmarks.weights import section as quantized

Run = Callable[[Options], Section]
#: Sections that use every core. They run first. A section of both tables runs twice.
EVERY_CORE: dict[str, Run] = {
    "startup": startup.run, "compile": compiling.run, "planning": planning.run,
    "spills": kloops.run, "threads": threads.run, "beside": beside.run,
    "networks": partial(networks.run, threads=2),
}  # fmt: skip
#: Sections that run on one core.
ONE_CORE: dict[str, Run] = {
    "low": low.run, "ukernel": ukernel.run, "epilogue": epilogue.run, "variants": variants.run,
    "estimate": estimate.run, "tails": tails.run, "packing": packing.run, "calls": calls.run,
    "peaks": peaks.run, "products": products.run, "few": few.run, "small": small.run,
    "torch": in_torch.run, "quantized": quantized.run, "rows": row_programs.run,
    "networks": networks.run,
}  # fmt: skip
SECTIONS = tuple(dict.fromkeys(("gemm", "sizes", "tune", *ONE_CORE, *EVERY_CORE)))
QUICK = Effort(rounds=7, repeats=3, quantum=100e-6)
MISSED, INCOMPLETE = 1, 2


def main() -> int:
    """Run the chosen sections; 1 when a figure is missed, 2 when something is absent or wrong."""
    arguments = _parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    isas = machine.native_isas()
    if not isas:
        console.print("[red]no figure is defined for this processor: it lacks AVX2 and FMA")
        return INCOMPLETE
    options = Options(
        console,
        secrets.randbelow(2**32) if arguments.seed is None else arguments.seed,
        QUICK if arguments.quick else Effort(),
        isas[0],
        re.compile(arguments.only) if arguments.only else None,
        arguments.peers_only,
        arguments.variants,
    )
    try:
        with neighbour(arguments.neighbour):
            return _run(arguments, options)
    except (MissingError, WrongResultError) as error:
        console.print(f"[red]{type(error).__name__}:[/] {error}")
        return INCOMPLETE


def _run(arguments: argparse.Namespace, options: Options) -> int:
    console = options.console
    wanted = ("gemm",) if options.peers_only else tuple(arguments.sections) or SECTIONS
    cpu = machine.cpu()
    peers, missing = load()
    _introduce(options, arguments, cpu, peers, missing)
    sections = [run(options) for name, run in EVERY_CORE.items() if name in wanted]
    machine.pin(arguments.core)
    seconds = tuned.SECONDS / 4 if arguments.quick else tuned.SECONDS
    with_peers = {
        "gemm": partial(gemm.run, peers=peers), "sizes": partial(sizes.run, peers=peers),
        "tune": partial(tuned.run, peers=peers, seconds=seconds),
    }  # fmt: skip
    sections += [run(options) for name, run in (with_peers | ONE_CORE).items() if name in wanted]
    figures = [figure for section in sections for figure in section.figures]
    if figures:
        show(console, figures)
    for text in missing:
        console.print(f"[red]absent:[/] {text}")
    if arguments.json:
        _write(arguments.json, options, cpu, peers, sections)
    if said := verdict():
        console.print(said)
    missed = sum(not figure.met for figure in figures)
    console.print(f"{len(figures)} figures, {missed} missed; seed {options.seed}")
    return INCOMPLETE if missing else MISSED if missed else 0


def _introduce(
    options: Options,
    arguments: argparse.Namespace,
    cpu: str,
    peers: Sequence[Peer],
    missing: Sequence[str],
) -> None:
    table = Table(show_header=False, box=None)
    table.add_row("seed", str(options.seed))
    table.add_row("cpu", cpu)
    table.add_row("isa", ", ".join(machine.native_isas()))
    for name, version in machine.versions().items():
        table.add_row(name, version)
    for peer in peers:
        table.add_row(f"peer {peer.name}", peer.version)
    for text in missing:
        table.add_row("[red]absent", text)
    effort = options.effort
    table.add_row(
        "effort",
        f"{effort.rounds} rounds of {effort.repeats} x {1e6 * effort.quantum:.0f} us for each",
    )
    if arguments.neighbour is not None:
        table.add_row("neighbour", f"loads, and nothing else, on CPU {arguments.neighbour}")
    options.console.print(table)


def _write(
    path: Path, options: Options, cpu: str, peers: Sequence[Peer], sections: Sequence[Section]
) -> None:
    record = {
        "date": date.today().isoformat(),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "seed": options.seed,
        "cpu": cpu,
        "versions": machine.versions() | {peer.name: peer.version for peer in peers},
        "effort": asdict(options.effort),
        "sections": [asdict(section) for section in sections],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}; default: all")
    add("--seed", type=int, help="of operands and random sizes; default: a new one")
    add("--quick", action="store_true", help="fewer and shorter rounds")
    add("--only", metavar="REGEX", help="shapes to measure, such as '^64x' or '\\(16\\)'")
    add("--peers-only", action="store_true", help="measure the peers without tilewright")
    add("--variants", type=int, default=60, help="how many for each shape; 0 for all; default: 60")
    add("--core", type=int, help="the core to measure on; default: the last")
    add("--neighbour", type=int, metavar="CPU", help="keep this CPU busy with loads meanwhile")
    add("--json", type=Path, metavar="FILE", help="write what was found")
    return parser


if __name__ == "__main__":
    sys.exit(main())
