"""Calls of kernels that this CPU cannot run: their arrays travel to a runner process and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.isa import Target
from tilewright.signature import Signature

from .abi import address
from .emulator import Alias, Runner, shared_runner
from .layout import Checked

Array = np.ndarray[Any, Any]


def runner(executable: Path, target: Target) -> Runner:
    """The process that runs ``executable``'s kernels in place of a CPU with ``target``."""
    return shared_runner(executable, target, emulated=True)


def call(
    runner: Runner,
    name: str,
    signature: Signature,
    checked: Checked,
    scalars: tuple[float, ...],
) -> None:
    """Run kernel ``name`` on copies of the arrays, then write the elements of the output."""
    output = next(i for i, p in enumerate(signature.arrays) if p.role != "in")
    target = checked.arrays[output]
    sent: list[Any] = []
    for i, given in enumerate(checked.arrays):
        if isinstance(given, tuple):
            sent.append([(span(item), 0) for item in given])
        elif i == output and (same := _same(checked, output)) is not None:
            sent.append(Alias(same))
        else:
            sent.append(span(given))
    same = _same(checked, output)
    writable = [i in (output, same) for i in range(len(sent))]
    names = [parameter.name for parameter in signature.arrays]
    returned = runner.call(name, sent, checked.sizes, scalars, writable, names=names)
    if target.size:
        flat = np.frombuffer(returned[0], target.dtype)
        target[...] = as_strided(flat, target.shape, target.strides)


def _same(checked: Checked, output: int) -> int | None:
    """The index of the input that is the output itself: an operation in place."""
    place = address(checked.arrays[output])
    if checked.arrays[output].size == 0:
        return None
    return next(
        (
            i
            for i, given in enumerate(checked.arrays[:output])
            if isinstance(given, np.ndarray) and address(given) == place and given.size
        ),
        None,
    )


def span(array: Array) -> Array:
    """The memory from an array's first element to its last, as a contiguous array; a copy."""
    if array.size == 0:
        return np.empty(0, array.dtype)
    steps = zip(array.shape, array.strides, strict=True)
    elements = sum((n - 1) * stride for n, stride in steps) // array.itemsize + 1
    return as_strided(array, (elements,), (array.itemsize,)).copy()
