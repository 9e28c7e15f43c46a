"""Time calls of ``tw.matmul`` with small matrices, in every form of the call.

Each call is compared with the code that users of numpy and of PyTorch write for the same result.
All run on one thread of one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from rich.progress import track
from rich.table import Table

import tilewright as tw
from benchmarks.matmul.products import Array, rounds_of, torch_of
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.options import Options

SIZES = (8, 32)
#: Sizes n of n x n x n products that are compared only with numpy, in calls as users write them.
CUBES = (4, 8, 16, 32)
#: Length of two vectors that are multiplied, and shapes of stacks of which both are broadcast.
VECTOR = 100
STACKS = (
    ((4, 1, 10, 10), (3, 10, 10)), ((1000, 1, 3, 3), (1000, 50, 3, 1)),
    ((1, 8, 4, 1, 1024), (1, 8, 1, 1024, 128)),
)  # fmt: skip
#: Number of products in a stack with one axis, and in each axis of a stack with two.
COUNT, GRID = 10, (2, 5)
OURS, NUMPY, TORCH = "tw.matmul", "numpy", "torch"
#: Maximum time of a call, divided by the time of the best peer.
MOST = 1.0
#: Maximum times divided by the time of numpy's call: of a call that returns a new array, and of one
#: with ``out=``.
NEW, WRITTEN = 1.0, 0.6


class Way(NamedTuple):
    """One form of a call: its name, its exact result, and the calls of tilewright and the peers."""

    name: str
    size: int
    exact: Array
    calls: dict[str, Callable[[], Any]]


class Row(NamedTuple):
    """Microseconds of a call of tilewright and of each peer: medians of the rounds."""

    name: str
    size: int
    micros: dict[str, float]

    @property
    def ratio(self) -> float:
        """The time of tilewright's call, divided by the time of the best peer's."""
        return self.micros[OURS] / min(t for who, t in self.micros.items() if who != OURS)


def run(options: Options) -> Section:
    """Time every form of a call at every size that ``--only`` selects."""
    from threadpoolctl import threadpool_limits

    torch = torch_of()
    torch.set_num_threads(1)
    sizes = [n for n in SIZES if options.wants(f"{n}x{n}x{n}")]
    with threadpool_limits(1), torch.no_grad():
        ways = [way for n in sizes for way in _ways(torch, n, options.seed)]
        rows = [
            _row(way, options)
            for way in track(ways, "small", console=options.console, transient=True)
        ]
        besides = [
            _row(way, options)
            for way in track(
                list(_beside_numpy(options)), "numpy", console=options.console, transient=True
            )
        ]
    options.console.print(_table(rows))
    options.console.print(_numpy_table(besides))
    records: list[dict[str, object]] = [row._asdict() for row in (*rows, *besides)]
    return Section("small", (*_figures(rows), *_numpy_figures(besides)), tuple(records))


def _beside_numpy(options: Options) -> Iterator[Way]:
    """Yield the calls that are compared only with numpy: cubes, two vectors, broadcast stacks."""
    rng = np.random.default_rng(options.seed)

    def whole(*shape: int) -> Array:
        return rng.integers(-2, 3, shape).astype(np.float32)

    for n in CUBES:
        if options.wants(f"{n}x{n}x{n}"):
            a, b = whole(n, n), whole(n, n)
            yield _against_numpy("new", n, a, b)
            yield _against_numpy("out=", n, a, b, np.empty((n, n), np.float32))
            yield _numbers(n, a, b)
    if options.wants("stacks"):
        yield _against_numpy("vectors", VECTOR, whole(VECTOR), whole(VECTOR))
        for x, y in STACKS:
            name = f"{'x'.join(map(str, x))} @ {'x'.join(map(str, y))}"
            yield _against_numpy(name, 0, whole(*x), whole(*y))


def _against_numpy(name: str, n: int, a: Array, b: Array, out: Array | None = None) -> Way:
    exact = np.asarray(a.astype(np.float64) @ b.astype(np.float64))
    if out is None:
        return Way(name, n, exact, {OURS: lambda: tw.matmul(a, b), NUMPY: lambda: a @ b})
    return Way(name, n, exact, {
        OURS: lambda: tw.matmul(a, b, out=out), NUMPY: lambda: np.matmul(a, b, out=out),
    })  # fmt: skip


def _numbers(n: int, a: Array, b: Array) -> Way:
    """Return a product times a number that is different in each call, for example a temperature."""
    steps = count(1)

    def ours() -> Array:
        tw.matmul(a, b, epilogue=tw.acc * (1 + next(steps) / 1024))
        return tw.matmul(a, b, epilogue=tw.acc * 0.5)

    def numpy() -> Array:
        np.multiply(a @ b, np.float32(1 + next(steps) / 1024))
        scaled: Array = np.multiply(a @ b, np.float32(0.5))
        return scaled

    exact = 0.5 * (a.astype(np.float64) @ b.astype(np.float64))
    return Way("two new numbers", n, exact, {OURS: ours, NUMPY: numpy})


def _numpy_table(rows: Sequence[Row]) -> Table:
    table = Table(title="One call beside numpy's, microseconds", title_justify="left")
    for heading in ("f32", "n", OURS, NUMPY, "to numpy"):
        table.add_column(heading, justify="left" if heading == "f32" else "right")
    for row in rows:
        said = (f"{row.micros[who]:.2f}" for who in (OURS, NUMPY))
        table.add_row(row.name, str(row.size or ""), *said, f"{row.ratio:.2f}")
    return table


def _numpy_figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for name, most in (("new", NEW), ("out=", WRITTEN)):
        ratios = [row.ratio for row in rows if row.name == name]
        if ratios:
            text = "a new result" if name == "new" else "with out="
            what = f"calls of {CUBES[0]} to {CUBES[-1]} {text}, the longest to numpy's"
            yield Figure(what, max(ratios), most, at_most=True)
    others = [row.ratio for row in rows if not row.size or row.name == "vectors"]
    if others:
        what = "vectors, and stacks that are broadcast, the longest to numpy's"
        yield Figure(what, max(others), MOST, at_most=True)


def _ways(torch: Any, n: int, seed: int) -> Iterator[Way]:
    rng = np.random.default_rng(seed)

    def whole(*shape: int) -> Array:
        return rng.integers(-2, 3, shape).astype(np.float32)

    a, b, v, stack, grid = (
        whole(n, n),
        whole(n, n),
        whole(n),
        whole(COUNT, n, n),
        whole(*GRID, n, n),
    )
    for name, x, y in (
        ("a @ b", a, b), ("a @ v", a, v), ("v @ b", v, b), ("stack @ b", stack, b),
        ("stack @ stack", stack, stack), ("stacks of stacks", grid, grid),
    ):  # fmt: skip
        yield _product(torch, name, n, x, y)
    yield _new(torch, n, a, b)
    yield from _scaled(torch, n, a, b, whole(n, n))
    yield from _fused(torch, n, a, b, v)


def _product(torch: Any, name: str, n: int, x: Array, y: Array) -> Way:
    """Return a product that is written to a given array."""
    exact = x.astype(np.float64) @ y.astype(np.float64)
    out = np.empty(exact.shape, np.float32)
    tx, ty, tout = map(torch.from_numpy, (x, y, out))
    return Way(name, n, exact, {
        OURS: lambda: tw.matmul(x, y, out), NUMPY: lambda: np.matmul(x, y, out=out),
        TORCH: lambda: torch.matmul(tx, ty, out=tout),
    })  # fmt: skip


def _new(torch: Any, n: int, a: Array, b: Array) -> Way:
    ta, tb = map(torch.from_numpy, (a, b))
    return Way("a @ b, new", n, a.astype(np.float64) @ b.astype(np.float64), {
        OURS: lambda: tw.matmul(a, b), NUMPY: lambda: a @ b, TORCH: lambda: ta @ tb,
    })  # fmt: skip


def _scaled(torch: Any, n: int, a: Array, b: Array, c: Array) -> Iterator[Way]:
    """Yield ``alpha a b`` and ``alpha a b + beta c``.

    An update of c would change the input of the next call, so tilewright's call copies c first.
    """
    out, ta, tb, tc = c.copy(), *map(torch.from_numpy, (a, b, c))
    tout = torch.from_numpy(out)
    product = a.astype(np.float64) @ b.astype(np.float64)

    def updated() -> Array:
        out[...] = c
        return tw.matmul(a, b, out, alpha=0.5, beta=2)

    yield Way("alpha a @ b", n, 0.5 * product, {
        OURS: lambda: tw.matmul(a, b, out, alpha=0.5),
        NUMPY: lambda: np.multiply(np.matmul(a, b, out=out), 0.5, out=out),
        TORCH: lambda: torch.mm(ta, tb, out=tout).mul_(0.5),
    })  # fmt: skip
    yield Way("alpha a @ b + beta c", n, 0.5 * product + 2 * c.astype(np.float64), {
        OURS: updated,
        NUMPY: lambda: 0.5 * (a @ b) + 2 * c,
        TORCH: lambda: torch.addmm(tc, ta, tb, alpha=0.5, beta=2, out=tout),
    })  # fmt: skip


def _fused(torch: Any, n: int, a: Array, b: Array, bias: Array) -> Iterator[Way]:
    """Yield ``relu(a b + bias)``, with b as an array, and packed for tilewright."""
    epilogue = tw.relu(tw.acc + tw.Operand("bias", per="column"))
    packed, out = tw.pack(b), np.empty((n, n), np.float32)
    ta, tb, tbias, tout = map(torch.from_numpy, (a, b, bias, out))
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    peers: dict[str, Callable[[], Any]] = {
        NUMPY: lambda: np.maximum(np.add(np.matmul(a, b, out=out), bias, out=out), 0, out=out),
        TORCH: lambda: torch.addmm(tbias, ta, tb, out=tout).relu_(),
    }
    for name, given in (("relu(a @ b + bias)", b), ("the same, packed b", packed)):
        ours = _bound(a, given, out, epilogue, bias)
        yield Way(name, n, exact, {OURS: ours, **peers})


def _bound(a: Array, b: Any, out: Array, epilogue: Any, bias: Array) -> Callable[[], Any]:
    return lambda: tw.matmul(a, b, out, epilogue=epilogue, bias=bias)


def _row(way: Way, options: Options) -> Row:
    for who, call in way.calls.items():
        if (np.asarray(call()) != way.exact).any():
            raise WrongResultError(f"{who}: {way.name} of {way.size} is wrong")
    seconds = rounds_of(way.calls, options.effort)
    micros = {who: float(np.median(taken)) * 1e6 for who, taken in seconds.items()}
    return Row(way.name, way.size, micros)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="One call, microseconds", title_justify="left")
    for heading in ("f32", "n", OURS, NUMPY, TORCH, "to the best peer"):
        table.add_column(heading, justify="left" if heading == "f32" else "right")
    for row in rows:
        said = (f"{row.micros[who]:.2f}" for who in (OURS, NUMPY, TORCH))
        table.add_row(row.name, str(row.size), *said, f"{row.ratio:.2f}")
    return table


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for n in SIZES:
        ratios = [row.ratio for row in rows if row.size == n]
        if ratios:
            yield Figure(
                f"small calls of {n}, the longest to a peer's", max(ratios), MOST, at_most=True
            )
