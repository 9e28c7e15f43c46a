"""What an epilogue costs: a product of f32 with bias and gelu_erf, or relu, and without.

All compute D = epilogue(A B) of the same operands, 64x64x512, and take turns. Sums have a variance
of 1, as before activations; where results are subnormal, a division takes many processors longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.measure import kernels, machine, peak
from benchmarks.measure.figures import Figure, Section
from benchmarks.measure.native import Call, Timed, measure
from benchmarks.measure.operands import OFFSETS, WrongResultError, placed
from benchmarks.measure.options import Options
from benchmarks.measure.shapes import Shape

SHAPE = Shape(64, 64, 512)
PLAIN, BIAS, RELU, GELU = "none", "bias", "relu", "bias + gelu_erf"
#: How much longer a product may take; of relu, what rounds of the same kernel differ by.
MOST = {RELU: 1.02, GELU: 1.12}


def run(options: Options) -> Section:
    """Measure on each ISA of this processor."""
    figures: list[Figure] = []
    rows: list[dict[str, object]] = []
    for target in machine.native_isas():
        if not options.wants(SHAPE):
            continue
        timed = measure([peak.peak(target), *_calls(target, options.seed)], options.effort)
        taken = {name: 1 / timed.ratio(name, PLAIN) for name in (PLAIN, BIAS, RELU, GELU)}
        for name, most in MOST.items():
            figures.append(
                Figure(f"time with {name}, {SHAPE}, {target}", taken[name], most, at_most=True)
            )
        rows.append({"shape": str(SHAPE), "target": target, "time": taken})
        _print(options, target, timed, taken)
    return Section("epilogue", tuple(figures), tuple(rows))


def _calls(target: str, seed: int) -> list[Call]:
    """The kernels on the same A, B and bias, each checked against numpy."""
    import tilewright as tw

    bias = tw.Operand("bias", "f32", per="column")
    epilogues: dict[str, Any] = {
        PLAIN: None,
        BIAS: tw.acc + bias,
        RELU: tw.relu(tw.acc),
        GELU: tw.gelu_erf(tw.acc + bias),
    }
    sizes = SHAPE.m, SHAPE.n, SHAPE.k
    specs = [tw.Gemm(*sizes, epilogue=epilogue) for epilogue in epilogues.values()]
    with machine.every_core():
        made = tw.compile_many([(spec, None, target) for spec in specs])
    rng = np.random.default_rng(seed)
    shapes = ((SHAPE.m, SHAPE.k), (SHAPE.k, SHAPE.n), (SHAPE.m, SHAPE.n))
    a, b, d = (placed(shape, at) for shape, at in zip(shapes, OFFSETS, strict=True))
    vector = placed((SHAPE.n,), 63 * 64)
    for array in (a, b, vector):
        array[...] = rng.uniform(-1, 1, array.shape)
    b *= 3 / SHAPE.k**0.5  # sums of variance 1
    calls = []
    for (name, epilogue), kernel in zip(epilogues.items(), made, strict=True):
        biased = epilogue is not None and name != RELU
        arrays = (a, b, d, vector) if biased else (a, b, d)
        calls.append(kernels.called(name, kernel, arrays, SHAPE.flops))
        _check(calls[-1], a, b, d, vector)
    return calls


def _check(call: Call, a: Any, b: Any, d: Any, bias: Any) -> None:
    a, b, bias = (array.astype(np.float64) for array in (a, b, bias))
    sums = a @ b + (bias if call.name in (BIAS, GELU) else 0)
    wanted = sums
    if call.name == RELU:
        wanted = np.maximum(sums, 0)
    elif call.name == GELU:
        wanted = 0.5 * sums * _erfc(-sums / np.sqrt(2))
    call.once()
    bound = (SHAPE.k + 8) * np.finfo(np.float32).eps * (abs(a) @ abs(b) + abs(bias))
    error = np.abs(d - wanted)
    if not (error <= bound).all():
        raise WrongResultError(f"{call.name}: an element is off by {np.max(error):.3g}")


def _erfc(x: Any) -> Any:
    from math import erfc

    return np.vectorize(erfc)(x)


def _print(options: Options, target: str, timed: Timed, taken: dict[str, float]) -> None:
    title = f"D = epilogue(A B), f32, {SHAPE}, {target}"
    table = Table(title=title, title_justify="left")
    for heading in ("epilogue", "GFLOPS", "of peak", "time", "±"):
        table.add_column(heading, justify="left" if heading == "epilogue" else "right")
    for name, time in taken.items():
        table.add_row(
            name,
            f"{timed.gflops(name):.1f}",
            f"{100 * timed.ratio(name, peak.NAME):.1f}%",
            f"{time:.3f}",
            f"{timed.spread(name, PLAIN):.3f}",
        )
    options.console.print(table)
