"""Prints the CPU seconds that compiling kernels takes, stage by stage, as JSON.

The stages are timed from outside: the functions that the driver calls are wrapped here. Arguments:
a target, how many kernels of each kind, and a K from which on they are new to the cache. Times are
of this process and of those it starts.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import Any


def cpu() -> float:
    """CPU seconds, user and system, of this process from its start and of its children."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in spent)


#: Where the driver finds the functions of a stage. None of them calls another one.
STAGES = (
    ("plan", "tilewright.generate", ("plan_for",)),
    ("program", "tilewright.generate", ("lowered",)),
    ("verify", "tilewright.generate", ("verify_program",)),
    ("render", "tilewright.generate", ("render",)),
    ("compiler", "tilewright.runtime.build.compilers", ("find_compiler",)),
    ("compiler", "tilewright.runtime.build.toolchain", ("compile_library",)),
)


class Stages:
    """CPU seconds by stage."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        for stage, name, functions in STAGES:
            module = sys.modules[name]
            for function in functions:
                setattr(module, function, self._timed(stage, getattr(module, function)))

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            begin = cpu()
            try:
                return function(*args, **named)
            finally:
                self.spent[stage] += cpu() - begin

        return timed

    def of(self, action: Callable[[], object], begin: float | None = None) -> dict[str, float]:
        """The seconds that ``action`` takes in each stage, beside them, and in all."""
        self.spent.clear()
        start = cpu() if begin is None else begin
        action()
        total = cpu() - start
        found = {stage: self.spent[stage] for stage, *_ in STAGES}
        return {**found, "rest": total - sum(found.values()), "total": total}


def main(target: str, times: int, k: int) -> None:
    """Compile the first kernel of this process, then further ones of each kind, then 20 at once."""
    import tilewright as tw
    import tilewright.generate
    import tilewright.runtime.build.toolchain

    m, bias = tw.dim("m"), tw.Operand("bias", "f32", per="column")
    kinds: dict[str, Callable[[int], Any]] = {
        "f32": lambda k: tw.Gemm(64, 48, k),
        "f32, m of the call": lambda k: tw.Gemm(m, 48, k),
        "f32, relu(acc + bias)": lambda k: tw.Gemm(64, 48, k, epilogue=tw.relu(tw.acc + bias)),
        "bf16": lambda k: tw.Gemm(64, 48, k, a="bf16", b=tw.Packed("bf16")),
        "u8 x s8": lambda k: tw.Gemm(64, 48, k, a="u8", b=tw.Packed("s8")),
    }
    stages = Stages()

    def compiled(make: Callable[[int], Any], k: int, begin: float | None = None) -> Any:
        return stages.of(lambda: tw.compile(make(k), target=target), begin)

    first = compiled(kinds["f32"], k, begin=0.0)
    steps = range(k + 4, k + 4 + 4 * times, 4)
    further = {kind: [compiled(make, k) for k in steps] for kind, make in kinds.items()}
    family = [(tw.Gemm(rows, 48, k, beta=1), None, target) for rows in range(1, 21)]
    many = stages.of(lambda: tw.compile_many(family))
    json.dump({"first": first, "further": further, "many": many}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
