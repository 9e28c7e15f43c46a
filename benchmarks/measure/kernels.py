"""tilewright's kernels as calls: the generated function itself, without an adapter."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import machine
from .native import Call, address
from .operands import Operands
from .shapes import Shape

if TYPE_CHECKING:
    import tilewright as tw

NAME = "tilewright"
LINE = 64


def spec(shape: Shape) -> tw.Gemm:
    """C += A B, everything fixed: the C function is (const A *, const B *, C *)."""
    import tilewright as tw

    batch = tw.Strided(shape.count) if shape.count > 1 else None
    return tw.Gemm(shape.m, shape.n, shape.k, beta=1, batch=batch)


def compiled(shapes: Sequence[Shape], target: str) -> dict[Shape, tw.Kernel]:
    """A kernel of the default schedule for each shape, in one library."""
    import tilewright as tw

    with machine.every_core():
        kernels = tw.compile_many([(spec(shape), None, target) for shape in shapes])
    return dict(zip(shapes, kernels, strict=True))


def call(kernel: tw.Kernel, shape: Shape, operands: Operands, name: str = NAME) -> Call:
    """The kernel on these operands, and on memory for what it packs, if it needs any."""
    return called(name, kernel, (operands.a, operands.b, operands.c), shape.flops)


def called(name: str, kernel: tw.Kernel, arrays: Sequence[Any], flops: int) -> Call:
    """The kernel on these arrays, in the order of its C parameters, and on scratch memory."""
    asked = ctypes.CDLL(str(kernel.library))[f"{kernel.name}_scratch_bytes"]
    asked.restype = ctypes.c_int64
    scratch = np.empty(int(asked(None)) + LINE, np.uint8)
    place = -(-scratch.ctypes.data // LINE) * LINE
    pointers = (*(array.ctypes.data for array in arrays), place)
    return Call(name, kernel.address, pointers, flops, (kernel, *arrays, scratch))


def configured(call: Call, kernel: tw.Kernel, name: str) -> Call | None:
    """The same call between ``<kernel>_configure()`` and ``_release()``: tiles stay configured.

    None where there is no matrix unit, so that it would be the same function.
    """
    library = ctypes.CDLL(str(kernel.library))
    try:
        inner, begin = library[f"{kernel.name}_inner"], library[f"{kernel.name}_configure"]
    except AttributeError:
        return None
    return replace(call, name=name, function=address(inner), begin=address(begin))
