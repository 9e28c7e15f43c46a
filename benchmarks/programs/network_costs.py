"""Prints what a layer of BERT costs, as JSON: CPU seconds of its compilation, and bytes of memory.

With "cold" the cache is empty, and the imports of the generator count. With "warm" the cache has
the layer, and a kernel was compiled before in the process.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  # traced() imports it for bf16
import numpy as np

from benchmarks.networks.transformers import transformer
from benchmarks.programs.compile_stages import Stages, cpu


def arena(spec: Any, net: Any) -> Mapping[str, int]:
    """Return the bytes of all tensors between stages that are needed at once, and those taken."""
    from tilewright.generate import plan_for
    from tilewright.plan.routine import routine_of
    from tilewright.symbolic import value

    plan = plan_for(spec, net.schedule, net.isa)
    stages = routine_of(plan).stages(plan)
    last = {name: number for number, stage in enumerate(stages) for name in stage.program.named}
    held = [0] * len(stages)
    for number, stage in enumerate(stages):
        held[number] += value(stage.program.scratch) or 0
        for buffer in stage.fills:
            for each in range(number, last[str(buffer.name)] + 1):
                held[each] += 0 if buffer.on_stack else value(buffer.nbytes) or 0
    return {"least": max(held), "taken": net.scratch_bytes()}


def main(type_: str, mode: str) -> None:
    """Compile the layer."""
    import tilewright as tw

    layer = transformer(1, 128, type_, np.random.default_rng(0))
    nets: list[Any] = []
    if mode == "cold":
        begin = cpu()
        import tilewright.generate
        import tilewright.runtime.build.toolchain

        found, stages = {"imports": cpu() - begin}, Stages()
        start = cpu()
        spec, weights = layer.traced()
        found["trace"] = cpu() - start
        found |= stages.of(lambda: nets.append(tw.compile(spec)), begin)
    else:
        tw.compile(tw.Gemm(4, 4, 4))
        gc.freeze()  # a collection of all objects so far takes longer than the start
        begin = cpu()
        spec, weights = layer.traced()
        nets.append(tw.compile(spec))
        found = {"total": cpu() - begin}
    (net,) = nets
    packed = net.pack(weights)
    nbytes = sum(array.nbytes for array in weights.values())
    memory = {"weights": nbytes, "packed": packed.nbytes, **arena(spec, net)}
    json.dump({**found, **memory}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
