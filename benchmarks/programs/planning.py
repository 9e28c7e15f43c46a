"""Prints as JSON what Python does to make kernels: calls, and milliseconds of CPU time.

Arguments: a target, and "first" for the first ``tw.matmul`` of the process, else "further". The
times are those of this process: the compilers that it starts are left out. The cache must be empty.
"""

import gc
import json
import sys
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import numpy as np

import tilewright as tw

#: Kernels of which the median counts.
KERNELS = 9


def calls(action: Callable[[], object]) -> int:
    """Return how often ``action`` enters a Python function.

    The start of a generator and each of its resumptions count too; functions written in C do not.
    """
    entered = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return entered


def milliseconds(action: Callable[..., object], *arguments: object) -> float:
    """Return the CPU time that ``action`` takes in this process.

    Garbage of earlier work is collected first, because a collection takes longer than a plan.
    """
    gc.collect()
    start = process_time()
    action(*arguments)
    return 1e3 * (process_time() - start)


def first() -> dict[str, float]:
    """Measure the first product of the process on this CPU."""
    a, b = (np.ones((96, 96), np.float32) for _ in range(2))
    matmul = tw.matmul  # this look-up imports the modules of ``tw.matmul``
    return {"first": milliseconds(matmul, a, b)}


def further(name: str) -> dict[str, float]:
    """Measure plans and kernels after the first ones of the process."""
    from tilewright.generate import Request, generate, plan_for
    from tilewright.runtime.machine.host import resolve
    from tilewright.runtime.matmul.families import Family, Options, class_of, schedule_of, spec_of

    target, open_ = resolve(name), tw.Schedule()

    def product(k: int) -> Any:
        return tw.Gemm(64, 48, k)

    def of_call(type_: str, size: int) -> tuple[Any, ...]:
        options, types, axes = Options(target=name), (type_,) * 3, (1, 1, 1)
        made = Family(types, axes, class_of(size, size, size, types, options, axes), options)
        return spec_of(made), schedule_of(made), target

    generate([Request("kernel", product(60), open_, target)])
    plan_for(*of_call("f64", 64))
    tw.compile(product(62), target=name)
    found: dict[str, float] = {}
    found["calls"] = calls(lambda: generate([Request("kernel", product(64), open_, target)]))
    steps = range(64 + 4, 64 + 4 + 4 * KERNELS, 4)
    found["plan"] = median(milliseconds(plan_for, product(k), open_, target) for k in steps)
    compiled = (milliseconds(lambda k: tw.compile(product(k), target=name), k + 2) for k in steps)
    found["kernel"] = median(compiled)
    found["in place"] = milliseconds(plan_for, *of_call("f32", 64))
    found["in blocks"] = milliseconds(plan_for, *of_call("f32", 500))
    return found


if __name__ == "__main__":
    json.dump(first() if sys.argv[2] == "first" else further(sys.argv[1]), sys.stdout)
