"""Compare ``tw.matmul`` with numpy's matmul, and with PyTorch's for types that numpy lacks.

The products are those of image, speech and language networks, square ones, thin ones, and a matrix
times a vector. Further groups are calls so small that the call itself takes most of the time, and
stacks of small products. All run on one thread of one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
from rich.progress import track
from rich.table import Table

from benchmarks.measure.figures import Figure, Section, geometric_mean
from benchmarks.measure.native import Effort, MissingError
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options
from benchmarks.peers.stacks import xsmm_stack

Array = np.ndarray[Any, Any]
OURS = "tw.matmul"
#: Name of calls of a kernel for a stack with fixed m, n and k, which ``tw.compile`` made.
FIXED = "tw.compile"
#: Name of calls of ``tw.matmul`` with ``deterministic=True``.
SAME_BITS = "same bits"
_OWN = (OURS, FIXED, SAME_BITS)
XSMM = "LIBXSMM"
#: Sizes (m, n, k) of layers in XNNPACK's benchmarks.
LAYERS = (
    (1, 1000, 1280), (49, 160, 576), (49, 320, 960), (49, 1280, 320), (196, 96, 576),
    (196, 576, 96), (784, 32, 192), (784, 192, 32), (3136, 24, 144), (3136, 144, 24),
    (12544, 32, 27), (12544, 16, 32), (12544, 96, 16), (3136, 64, 576), (784, 128, 1152),
    (196, 256, 2304), (49, 512, 4608), (128, 16, 1024), (128, 128, 1024), (128, 4096, 1024),
    (240, 240, 240),
)  # fmt: skip
SQUARES = tuple((n, n, n) for n in (512, 1024, 2048))
THIN = ((2048, 2048, 64), (64, 2048, 2048), (2048, 64, 2048), (2048, 1, 2048), (1, 2048, 2048))
#: Sizes of products of a matrix and its own transpose.
OWN = ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 512))
SMALL = tuple((n, n, n) for n in (4, 8, 16, 32))
STACKS = tuple((n, n, n) for n in (3, 4, 9, 16))
COUNT = 10_000
#: Goals for the speed divided by the best peer's: for the geometric mean, and for each product.
MEAN, LEAST = 1.15, 0.97
#: Goals compared with numpy: the maximum time of a small call, divided by numpy's; and the minimum
#: speeds of ``STACKS``, divided by numpy's.
CALL, TIMES = 0.6, (10, 5, 5, 3)
_LAYERS = "networks and squares"
#: Names of the two groups of ``OWN``: the expressions that users write.
_OWN_TRANSPOSE = ("g @ g.T", "g.T @ g")
#: Maximum number of multiply-adds of a product whose result is checked. Larger products take long
#: in float64.
CHECKED = 1 << 28


@dataclass(frozen=True, slots=True)
class Row:
    """One product: seconds of a call in each round, for tilewright and each peer."""

    group: str
    types: str
    shape: tuple[int, int, int]
    count: int
    seconds: dict[str, Array]

    @property
    def ratio(self) -> float:
        """The speed of ``tw.matmul`` divided by the best peer's: the median of the rounds."""
        return min(self.ahead(OURS, name) for name in self.seconds if name not in _OWN)

    def ahead(self, ours: str, peer: str) -> float:
        """Return the speed of one of tilewright's calls divided by a peer's."""
        return float(np.median(self.seconds[peer] / self.seconds[ours]))

    @property
    def price(self) -> float:
        """The time with ``deterministic=True`` divided by that without: median of the rounds."""
        return float(np.median(self.seconds[SAME_BITS] / self.seconds[OURS]))

    def gflops(self, name: str) -> float:
        """Return the speed of a call in GFLOPS, from the median of the rounds."""
        m, n, k = self.shape
        return float(2 * self.count * m * n * k / np.median(self.seconds[name]) / 1e9)

    def record(self) -> dict[str, object]:
        """Return the row for ``--json``."""
        speeds = {name: self.gflops(name) for name in self.seconds}
        shape = "x".join(map(str, self.shape))
        return {"group": self.group, "types": self.types, "shape": shape, "count": self.count,
                "gflops": speeds, "ratio": self.ratio}  # fmt: skip


def run(options: Options) -> Section:
    """Time every product that ``--only`` selects."""
    from threadpoolctl import threadpool_limits

    torch = torch_of()
    torch.set_num_threads(1)
    cases = [case for case in _cases() if options.wants("x".join(map(str, case[2])))]
    rows = []
    with threadpool_limits(1):
        for case in track(cases, OURS, console=options.console, transient=True):
            rows.append(_row(torch, options, *case))
    _print(options, rows)
    if priced := [row.price for row in rows if SAME_BITS in row.seconds]:
        mean, most = geometric_mean(priced), max(priced)
        said = f"deterministic=True takes {mean:.2f} times as long, at most {most:.2f} times"
        options.console.print(f"{said}, over {len(priced)} products of f32")
    return Section("products", tuple(_figures(rows)), tuple(row.record() for row in rows))


def torch_of() -> Any:
    """Return PyTorch; MissingError if it is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        raise MissingError("PyTorch is not installed: pip install torch") from None


def _cases() -> Iterator[tuple[str, str, tuple[int, int, int], int]]:
    """Yield a group, the types of a and b, the sizes (m, n, k), and the number of products."""
    for types in ("f32 f32", "f64 f64", "bf16 bf16", "f16 f16", "s8 s8"):
        for shape in (*LAYERS, *SQUARES):
            yield _LAYERS, types, shape, 1
    for types in ("f32 f32", "f64 f64"):
        for shape in THIN:
            yield "thin", types, shape, 1
        for group in _OWN_TRANSPOSE:
            for shape in OWN:
                yield group, types, shape, 1
        for shape in SMALL:
            yield "small", types, shape, 1
        for shape in STACKS:
            yield "stacks", types, shape, COUNT


#: Calls that take longer than this, in seconds, are timed in fewer rounds.
LONG = 5e-3
#: Calls that take longer than this, in seconds, are timed only once.
VERY_LONG = 0.25
DTYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "s8": np.int8,
}  # fmt: skip


def _row(
    torch: Any, options: Options, group: Any, types: Any, shape: tuple[int, int, int], count: int
) -> Row:
    import tilewright as tw

    m, n, k = shape
    stack = () if count == 1 else (count,)
    rng = np.random.default_rng(options.seed)
    a_type, b_type = types.split()
    a = rng.integers(-2, 3, (*stack, m, k)).astype(DTYPES[a_type])
    b = rng.integers(-2, 3, (*stack, k, n)).astype(DTYPES[b_type])
    if group in _OWN_TRANSPOSE:
        a = a if group == _OWN_TRANSPOSE[0] else a.T.copy().T
        b = a.T
    out = tw.matmul(a, b, threads=1)
    if count * m * n * k <= CHECKED and (out != a.astype("f8") @ b.astype("f8")).any():
        raise WrongResultError(f"tw.matmul of {types} {shape} is wrong")
    calls = {OURS: _ours(a, b, out), **peers_of(torch, a, b, out, a_type)}
    if group == _LAYERS and a_type == "f32":
        calls[SAME_BITS] = lambda: tw.matmul(a, b, out, deterministic=True)
    if stack:
        spec = tw.Gemm(m, n, k, a=a_type, batch=tw.Strided(tw.dim("count"), c=None))
        kernel = tw.compile(spec)
        calls[FIXED] = lambda: kernel(a, b, out)
        with suppress(MissingError):
            calls[XSMM] = xsmm_stack(a, b, out)
    return Row(group, types, shape, count, rounds_of(calls, options.effort))


def _ours(a: Array, b: Array, out: Array) -> Callable[[], object]:
    import tilewright as tw

    matmul = tw.matmul
    return lambda: matmul(a, b, out)


def peers_of(
    torch: Any, a: Array, b: Array, out: Array, type_: str
) -> dict[str, Callable[[], object]]:
    """Return numpy's call if it uses BLAS for the type, and PyTorch's if it has such products."""
    if type_ in ("f32", "f64"):
        x, y, z = map(torch.from_numpy, (a, b, out))
        numpy, mm = np.matmul, torch.matmul
        return {"numpy": lambda: numpy(a, b, out=out), "torch": lambda: mm(x, y, out=z)}
    if type_ == "s8":
        x, y, z = map(torch.from_numpy, (a, b, out))
        return {"torch": lambda: torch._int_mm(x, y, out=z)}
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[type_]
    x, y = (torch.from_numpy(each.view(np.int16)).view(kind) for each in (a, b))
    z = torch.empty(out.shape, dtype=kind)
    mm = torch.matmul
    return {"torch": lambda: mm(x, y, out=z)}


def rounds_of(calls: dict[str, Callable[[], object]], effort: Effort) -> dict[str, Array]:
    """Return the seconds of a call in each round, for all ``calls`` in turn.

    The time in a round is the smallest of a few repeats. If a call takes long, there are fewer
    rounds and repeats; otherwise about six are needed until its data are in the last cache. A call
    that takes very long is timed only before the rounds. An example is PyTorch's product of f16 on
    a core without instructions for it.
    """
    counted = {name: _count(call, effort.quantum) for name, call in calls.items()}
    seconds = {name: np.full(effort.rounds, np.inf) for name in calls}
    long = max(taken for _, taken in counted.values()) > LONG
    rounds, repeats = (3, 2) if long else (effort.rounds, effort.repeats)
    for i in range(rounds):
        for _ in range(repeats):
            for name, call in calls.items():
                count, before = counted[name]
                taken = before if before > VERY_LONG else _taken(call, count)
                seconds[name][i] = min(seconds[name][i], taken)
    return {name: taken[:rounds] for name, taken in seconds.items()}


def _count(call: Callable[[], object], quantum: float) -> tuple[int, float]:
    """Return the number of calls that take ``quantum`` seconds, and the seconds of one call."""
    call()
    count = 1
    while (taken := _taken(call, count)) * count < quantum / 2:
        count *= 2
    return max(1, round(quantum / taken)), taken


def _taken(call: Callable[[], object], count: int) -> float:
    start = perf_counter()
    for _ in range(count):
        call()
    return (perf_counter() - start) / count


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    groups = {(row.group, row.types): None for row in rows}
    for group, types in groups:
        mine = [row for row in rows if (row.group, row.types) == (group, types)]
        ratios = [row.ratio for row in mine]
        if group == "small":
            worst = 1 / min(ratios)
            yield Figure(f"{types}, small calls, to numpy's", worst, CALL, at_most=True)
        elif group == "stacks":
            for row, least in zip(mine, TIMES, strict=False):
                what = f"{types}, stack of {row.shape[0]}x{row.shape[0]}"
                for ours, said in ((OURS, what), (FIXED, f"{what}, compiled for its size")):
                    yield Figure(said, row.ahead(ours, "numpy"), least)
                    if XSMM in row.seconds:
                        yield Figure(f"{said}, to LIBXSMM", row.ahead(ours, XSMM), 1.0)
        else:
            lowest = LEAST if group == _LAYERS else 1.0
            if group == _LAYERS:
                yield Figure(f"{types}, {group}, geometric mean", geometric_mean(ratios), MEAN)
            yield Figure(f"{types}, {group}, the least", min(ratios), lowest)


def _print(options: Options, rows: Sequence[Row]) -> None:
    table = Table(title="tw.matmul, GFLOPS", title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row.seconds))
    for heading in ("types", "m x n x k", "products", *names, "to the best peer"):
        table.add_column(heading, justify="left" if heading == "types" else "right")
    for row in rows:
        speeds = [f"{row.gflops(n):.1f}" if n in row.seconds else "" for n in names]
        shape = "x".join(map(str, row.shape))
        table.add_row(row.types, shape, str(row.count), *speeds, f"{row.ratio:.2f}")
    options.console.print(table)
