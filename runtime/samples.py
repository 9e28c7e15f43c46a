"""Arguments made up for a kernel: to verify it and to time it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tilewright.isa import Target
from tilewright.signature import ArrayParameter, Signature
from tilewright.sizes import Dim, Size
from tilewright.spec import Spec

from .abi import address
from .frame import Frame
from .known import DTYPES, Array

_ALIGNMENT = 64
_USUAL = 64


class Sampled(Protocol):
    """What timing and verifying need of a kernel."""

    @property
    def name(self) -> str:
        """The kernel's name."""

    @property
    def spec(self) -> Spec:
        """What it computes."""

    @property
    def isa(self) -> Target:
        """What it runs on."""

    @property
    def signature(self) -> Signature:
        """Its parameters."""

    def frame(self, *arrays: Any, **named: Any) -> Frame:
        """The arguments of one call, checked."""

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The output, written."""


class Sample(NamedTuple):
    """Arrays in the signature's order, the memory each lies in, scalars, and the dims' values."""

    arrays: tuple[Any, ...]
    memory: tuple[Array, ...]
    scalars: dict[str, float]
    sizes: Mapping[str, int]

    def named(self, signature: Signature) -> dict[str, Any]:
        """The arguments as a call passes them, all by name."""
        names = [parameter.name for parameter in signature.arrays]
        return {**dict(zip(names, self.arrays, strict=True)), **self.scalars}

    def size(self, size: Size) -> int:
        """The value of ``size`` in this sample."""
        return _value(size, self.sizes)


def _value(size: Size, sizes: Mapping[str, int]) -> int:
    return sizes[size.name] if isinstance(size, Dim) else size


def sample(
    signature: Signature, rng: np.random.Generator, *, varied: bool, whole: bool = False
) -> Sample:
    """Random arguments; ``varied``: of random run-time sizes and paddings, else of usual ones.

    Elements lie between -1 and 1, or are ``whole`` numbers between -4 and 4. What is written
    only is NaN, and so is all memory around the output's elements.
    """
    sizes = _sizes(signature, rng if varied else None)
    arrays: list[Any] = []
    memory: list[Array] = []
    for parameter in signature.arrays:
        array, held = _operand(parameter, sizes, rng, whole)
        arrays.append(array)
        memory.append(held)
    for i, parameter in enumerate(signature.arrays):
        if parameter.kind == "offsets":
            flat = signature.array(parameter.name.removesuffix("_offsets"))
            count = _value(parameter.shape[0], sizes)
            last = memory[signature.arrays.index(flat)].size - extent(flat, sizes)
            arrays[i] = rng.integers(0, last + 1, count, np.int64)
    scalars = {
        p.name: float(rng.integers(-3, 4) if whole else rng.uniform(-2, 2)) if varied else 1.0
        for p in signature.scalars
    }
    return Sample(tuple(arrays), tuple(memory), scalars, sizes)


def extent(parameter: ArrayParameter, sizes: Mapping[str, int]) -> int:
    """Elements from a matrix's first to behind its last."""
    line, lines, leading = _lines(parameter, sizes)
    return (lines - 1) * leading + line if line and lines else 0


def matrices(parameter: ArrayParameter, held: Sample, signature: Signature) -> Iterator[Array]:
    """The operand's matrices, one per step of the batch, as views."""
    array = held.arrays[signature.arrays.index(parameter)]
    if parameter.kind == "sequence":
        yield from array
    elif parameter.kind == "matrix":
        yield array
    elif parameter.kind == "strided":
        assert parameter.count is not None
        yield from array if array.ndim == 3 else [array] * held.size(parameter.count)
    else:
        offsets = parameter.static_offsets
        if offsets is None:
            named = signature.array(f"{parameter.name}_offsets")
            offsets = tuple(map(int, held.arrays[signature.arrays.index(named)]))
        for offset in offsets:
            yield _matrix(parameter, held.sizes, array[offset:])


def _lines(parameter: ArrayParameter, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """The length of a line, the number of lines, and their distance."""
    rows, cols = (_value(size, sizes) for size in parameter.shape)
    line, lines = (cols, rows) if parameter.order == "C" else (rows, cols)
    return line, lines, line if parameter.leading is None else _value(parameter.leading, sizes)


def _matrix(parameter: ArrayParameter, sizes: Mapping[str, int], memory: Array) -> Array:
    line, lines, leading = _lines(parameter, sizes)
    step, item = leading * memory.itemsize, memory.itemsize
    shape, strides = ((lines, line), (step, item))
    whole = as_strided(memory, shape, strides)
    return whole if parameter.order == "C" else whole.T


# --- sizes -------------------------------------------------------------------------------------


def _sizes(signature: Signature, rng: np.random.Generator | None) -> dict[str, int]:
    """A value for every dim: lengths first, then leading dimensions that hold them."""
    sizes: dict[str, int] = {}
    leadings = {p.leading for p in signature.arrays if isinstance(p.leading, Dim)}
    for parameter in signature.sizes:
        dim, is_count = parameter.dim, parameter.slot == "count"
        if parameter.slot.startswith("ld") and dim in leadings:
            start = 1
        elif rng is None:
            start = 16 if is_count else _USUAL
        else:
            start = int(rng.integers(1, 6 if is_count else 71))
        sizes.setdefault(dim.name, _legal(dim, start))
    for _ in range(4):  # a dim may be a length here and a leading dimension there
        for array in signature.arrays:
            if isinstance(array.leading, Dim):
                line = _lines(array, sizes)[0]
                extra = 0 if rng is None else int(rng.integers(0, 5))
                if sizes[array.leading.name] < line:
                    sizes[array.leading.name] = _legal(array.leading, line + extra)
    for array in signature.arrays:
        if isinstance(array.batch_stride, Dim):
            _, lines, leading = _lines(array, sizes)
            at_least = max(sizes[array.batch_stride.name], lines * leading)
            sizes[array.batch_stride.name] = _legal(array.batch_stride, at_least)
    return sizes


def _legal(dim: Dim, wanted: int) -> int:
    """The nearest legal value, ``wanted`` or above where there is one."""
    step = dim.multiple_of
    up = -(-wanted // step) * step
    return up if dim.max is None else min(up, dim.max // step * step)


# --- arrays ------------------------------------------------------------------------------------


def _memory(
    elements: int, parameter: ArrayParameter, rng: np.random.Generator, whole: bool
) -> Array:
    """That many elements, the first at a cache line."""
    dtype = DTYPES[parameter.type]
    block = np.empty(elements * dtype.itemsize + _ALIGNMENT, np.uint8)
    start = -address(block) % _ALIGNMENT
    memory = block[start : start + elements * dtype.itemsize].view(dtype)
    if parameter.role != "in":
        memory[...] = np.nan
    elif whole:
        memory[...] = rng.integers(-4, 5, elements)
    else:
        memory[...] = rng.uniform(-1, 1, elements)
    return memory


def _operand(
    parameter: ArrayParameter, sizes: Mapping[str, int], rng: np.random.Generator, whole: bool
) -> tuple[Any, Array]:
    """An operand and the memory it lies in (of a sequence: of its last array)."""
    if parameter.kind == "offsets":  # filled in when the flat array is there
        return (), np.empty(0)
    _, lines, leading = _lines(parameter, sizes)
    count = 1 if parameter.count is None else _value(parameter.count, sizes)
    if parameter.kind == "flat":
        static = parameter.static_offsets
        behind = max(static, default=0) if static is not None else 2 * lines * leading
        memory = _memory(behind + extent(parameter, sizes), parameter, rng, whole)
        return memory, memory
    if parameter.kind == "sequence":
        held = [_memory(lines * leading, parameter, rng, whole) for _ in range(count)]
        return [_matrix(parameter, sizes, one) for one in held], np.empty(0)
    stride = lines * leading
    if parameter.kind == "strided" and parameter.batch_stride is not None:
        stride = _value(parameter.batch_stride, sizes)
    memory = _memory(max(count - 1, 0) * stride + lines * leading, parameter, rng, whole)
    matrix = _matrix(parameter, sizes, memory)
    if parameter.role == "inout":
        matrix[...] = (
            rng.integers(-4, 5, matrix.shape) if whole else rng.uniform(-1, 1, matrix.shape)
        )
    if parameter.kind == "strided" and parameter.batch_stride != 0:
        strides = (stride * memory.itemsize, *matrix.strides)
        matrix = as_strided(matrix, (count, *matrix.shape), strides)
    return matrix, memory
