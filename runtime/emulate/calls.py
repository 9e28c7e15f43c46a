"""Call kernels that this CPU cannot run: the arrays are sent to a runner process and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tilewright.isa.target import Target
from tilewright.runtime.arrays.memory import address
from tilewright.runtime.call.argument_checks import Checked
from tilewright.runtime.call.bound_sizes import Array, strided
from tilewright.runtime.call.packed_matrix import memory
from tilewright.runtime.machine import host
from tilewright.spec.signature import Signature

from .notice import notice
from .runner import Alias, Runner, shared_runner


def runner(executable: Path, target: Target) -> Runner:
    """Return the process that runs the kernels of ``executable``, emulating a CPU with
    ``target``.
    """
    notice(target.name, host.means(target, emulated=True))
    return shared_runner(executable, target, emulated=True)


def call(
    runner: Runner,
    name: str,
    signature: Signature,
    checked: Checked,
    scalars: tuple[float, ...],
) -> None:
    """Run kernel ``name`` on copies of the arrays, then write the results into the outputs."""
    outputs = [i for i, p in enumerate(signature.arrays) if p.role != "in"]
    same = _same(signature, checked)
    sent: list[Any] = []
    for i, given in enumerate(checked.arrays):
        if isinstance(given, tuple):
            sent.append([(span(memory(item)), 0) for item in given])
        elif i in same:
            sent.append(Alias(same[i]))
        else:
            sent.append(span(memory(given)))
    # The runner returns an output that is an input in the memory of the input.
    written = {same.get(i, i): i for i in outputs}
    writable = [i in written for i in range(len(sent))]
    names = [parameter.name for parameter in signature.arrays]
    returned = runner.call(name, sent, checked.sizes, scalars, writable, names=names)
    for i, data in zip(sorted(written), returned, strict=True):
        target = checked.arrays[written[i]]
        if target.size:
            flat = np.frombuffer(data, target.dtype)
            target[...] = strided(flat, target.shape, target.strides)


def _same(signature: Signature, checked: Checked) -> dict[int, int]:
    """Return the indices of outputs that are an input, and of these inputs."""
    found: dict[int, int] = {}
    for output, inputs in signature.shared().items():
        for index in inputs:
            out, given = checked.arrays[output], checked.arrays[index]
            if out.size and address(given) == address(out):
                found.setdefault(output, index)
    return found


def span(array: Array) -> Array:
    """Return a copy of an array's memory, from its first element to its last, as bytes."""
    if array.size == 0:
        return np.empty(0, np.uint8)
    steps = zip(array.shape, array.strides, strict=True)
    elements = sum((n - 1) * stride for n, stride in steps) // array.itemsize + 1
    return strided(array, (elements,), (array.itemsize,)).copy().view(np.uint8)
