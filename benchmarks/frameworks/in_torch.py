"""Kernels called with tensors, and models compiled with tilewright's backend and with Inductor."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.measure import machine
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import Effort, MissingError
from benchmarks.measure.options import Options
from tilewright.errors import install
from tilewright.runtime.machine.host import usable_cpus

SIZE, LOOPS = 8, 300
#: Of the time of the operator of PyTorch; microseconds beyond the kernel's own.
CALL, OVERHEAD = 0.6, 1.2
#: Time of a model with two threads, of its time with one.
TWO_THREADS = 0.56
#: Seconds that one measurement of a model takes.
MODEL = 0.1


def run(options: Options) -> Section:
    """Calls and models, each beside PyTorch's in interleaved rounds; a model on two threads."""
    try:
        import torch
    except ImportError:
        raise MissingError(f"PyTorch: {install('torch')}") from None
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    calls, rows = _calls(torch, options)
    models, more = _models(torch, options)
    with machine.every_core():
        scaled, most = _two_threads(torch, options) if usable_cpus() > 1 else ([], [])
    return Section("torch", (*calls, *models, *scaled), (*rows, *more, *most))


# --- calls -------------------------------------------------------------------------------------


def _calls(torch: Any, options: Options) -> tuple[list[Figure], list[dict[str, object]]]:
    import tilewright as tw
    import tilewright.torch as tt

    a, b, out = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)
    operator = tt.operator(tw.Gemm(SIZE, SIZE, SIZE))
    kernel = operator.kernel
    bound = kernel.bind(a, b, out)
    trained, empty = b.clone().requires_grad_(), _empty_function(torch)
    kernel(a, b)
    tw.matmul(a, b, out)
    loops: dict[str, Callable[[], object]] = {
        "torch.mm(a, b, out=c)": lambda: torch.mm(a, b, out=out),
        "torch.mm(a, b)": lambda: torch.mm(a, b),
        "kernel(a, b, c)": lambda: kernel(a, b, out),
        "kernel(a, b)": lambda: kernel(a, b),
        "tw.matmul(a, b, c)": lambda: tw.matmul(a, b, out),
        "operator(a, b)": lambda: operator(a, b),
        "torch.mm(a, b), recorded": lambda: torch.mm(a, trained),
        "an empty autograd.Function": lambda: empty.apply(a, trained),
        "operator(a, b), recorded": lambda: operator(a, trained),
        "the kernel itself": bound,
    }
    seconds = _rounds(list(loops.values()), options.effort)
    taken = dict(zip(loops, seconds.T, strict=True))
    _print_calls(options.console, taken)
    to_torch = float(np.median(taken["kernel(a, b, c)"] / taken["torch.mm(a, b, out=c)"]))
    beyond = float(np.median(taken["operator(a, b)"] - taken["the kernel itself"])) * 1e6
    figures = [
        Figure("kernel(a, b, c) of tensors to torch.mm(out=)", to_torch, CALL, at_most=True),
        Figure("operator beyond its kernel", beyond, OVERHEAD, at_most=True, unit=" us"),
    ]
    return figures, [{"call": name, "ns": 1e9 * float(np.median(x))} for name, x in taken.items()]


def _empty_function(torch: Any) -> Any:
    """A function of autograd that keeps its inputs, makes a tensor, and does no more."""

    class Empty(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return torch.empty(SIZE, SIZE)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return None, None

    return Empty


def _rounds(loops: list[Callable[[], object]], effort: Effort) -> Any:
    """Seconds for one call: rounds x loops, each the least of the repeats."""
    seconds = np.full((effort.rounds, len(loops)), np.inf)
    for row in seconds:
        for _ in range(effort.repeats):
            for i, loop in enumerate(loops):
                start = perf_counter()
                for _ in range(LOOPS):
                    loop()
                row[i] = min(row[i], (perf_counter() - start) / LOOPS)
    return seconds


def _print_calls(console: Console, taken: dict[str, Any]) -> None:
    table = Table(title=f"A call of {SIZE}x{SIZE}x{SIZE} with tensors", title_justify="left")
    table.add_column("")
    table.add_column("ns", justify="right")
    for name, seconds in taken.items():
        table.add_row(name, f"{1e9 * float(np.median(seconds)):.0f}")
    console.print(table)


# --- models ------------------------------------------------------------------------------------


def bert_layer(torch: Any, width: int = 768, heads: int = 12, between: int = 3072) -> Any:
    """A layer of BERT with random weights: attention, then two layers with GELU between."""
    linear = torch.nn.Linear

    class Layer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (linear(width, width) for _ in range(3))
            self.out = linear(width, width)
            self.up, self.down = linear(width, between), linear(between, width)
            self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

        def forward(self, x: Any) -> Any:
            count, length, _ = x.shape
            query, key, value = (
                part(x).view(count, length, heads, -1).transpose(1, 2)
                for part in (self.query, self.key, self.value)
            )
            weights = torch.softmax(query @ key.transpose(-1, -2) / (width // heads) ** 0.5, -1)
            mixed = (weights @ value).transpose(1, 2).reshape(x.shape)
            x = self.first(x + self.out(mixed))
            return self.second(x + self.down(torch.nn.functional.gelu(self.up(x))))

    return Layer()


def linear_stack(torch: Any, width: int = 512, layers: int = 4) -> Any:
    """Linear layers with relu."""
    parts = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
    return torch.nn.Sequential(*(part for pair in parts for part in pair))


def _models(torch: Any, options: Options) -> tuple[list[Figure], list[dict[str, object]]]:
    low = torch.bfloat16
    cases = [
        (
            "BERT layer in bf16, 1 x 128 tokens",
            bert_layer(torch).to(low),
            torch.randn(1, 128, 768).to(low),
        ),
        ("BERT layer, 1 x 128 tokens", bert_layer(torch), torch.randn(1, 128, 768)),
        ("BERT layer, 4 x 128 tokens", bert_layer(torch), torch.randn(4, 128, 768)),
        *(
            (f"linear stack, {rows} rows", linear_stack(torch), torch.randn(rows, 512))
            for rows in (1, 16, 128)
        ),
    ]
    table = Table(title="Models, in f32 if no type is said, one thread, in ms")
    for heading in ("", "eager", "Inductor", "products alone", "tilewright", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    figures, rows = [], []
    for name, model, x in cases:
        seconds = _model(torch, model.eval(), x, options.effort)
        ratio = float(np.median(seconds[:, 1] / seconds[:, 3]))
        taken = [1e3 * float(np.median(column)) for column in seconds.T]
        table.add_row(name, *(f"{each:.3f}" for each in taken), f"{ratio:.2f}")
        figures.append(Figure(f"{name} to Inductor", ratio, 1))
        said = ("eager_ms", "inductor_ms", "products_ms", "ms")
        rows.append({"model": name, **dict(zip(said, taken, strict=True))})
    options.console.print(table)
    return figures, rows


#: Arguments of ``torch.compile``: Inductor, tilewright without networks, and with them.
WAYS: dict[str, dict[str, Any]] = {
    "inductor": {"backend": "inductor"},
    "products alone": {"backend": "tilewright", "options": {"networks": False}},
    "tilewright": {"backend": "tilewright"},
}


def _model(torch: Any, model: Any, x: Any, effort: Effort) -> Any:
    """Seconds of one call: rounds x (eager, Inductor, products alone, tilewright)."""
    with torch.no_grad():
        torch._dynamo.reset()
        ways = [model, *(torch.compile(model, **given) for given in WAYS.values())]
        expected = model(x)
        near = 1e-3 if x.dtype == torch.float32 else 4e-2
        for way in ways:
            torch.testing.assert_close(way(x), expected, atol=near, rtol=near)
        seconds = np.empty((effort.rounds, len(ways)))
        for row in seconds:
            for i, way in enumerate(ways):
                row[i] = _least(way, x)
    return seconds


def _two_threads(torch: Any, options: Options) -> tuple[list[Figure], list[dict[str, object]]]:
    """A model through ``torch.compile`` with one thread and with two, in interleaved rounds."""
    x, table = torch.randn(1, 128, 768), Table(title="A BERT layer, 1 x 128, in ms")
    for heading in ("", "one thread", "two threads", "two of one"):
        table.add_column(heading, justify="right" if heading else "left")
    figures, rows = list[Figure](), list[dict[str, object]]()
    model = bert_layer(torch).eval()
    for backend, given in WAYS.items():
        torch._dynamo.reset()
        seconds = np.empty((options.effort.rounds, 2))
        with torch.no_grad():
            way = torch.compile(model, **given)
            for row in seconds:
                for i in range(2):
                    torch.set_num_threads(i + 1)
                    way(x)
                    row[i] = _least(way, x)
        torch.set_num_threads(1)
        one, two = (1e3 * float(np.median(column)) for column in seconds.T)
        table.add_row(backend, f"{one:.3f}", f"{two:.3f}", f"{two / one:.2f}")
        rows.append({"model": "BERT layer", "backend": backend, "ms": one, "two_threads_ms": two})
        if backend == "tilewright":
            figures.append(
                Figure("BERT layer, two threads of one", two / one, TWO_THREADS, at_most=True)
            )
    options.console.print(table)
    return figures, rows


def _least(way: Callable[[Any], Any], x: Any) -> float:
    """The least of the times that one call takes, in so many seconds."""
    least, end = float("inf"), perf_counter() + MODEL
    while perf_counter() < end:
        start = perf_counter()
        way(x)
        least = min(least, perf_counter() - start)
    return least
