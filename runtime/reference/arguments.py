"""Arguments made up for a kernel: to verify it and to time it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from tilewright.isa.target import Target
from tilewright.runtime.arrays.dtypes import preferred
from tilewright.runtime.arrays.memory import aligned
from tilewright.runtime.call.bound_sizes import Array, strided, value_of
from tilewright.runtime.call.frame import Frame
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.quantized.matrix import QuantizedMatrix
from tilewright.spec.gemm import Spec
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import Dim, Size

from .elements import Draws

_USUAL = 64
#: The largest size that is tried for being the largest that may be.
_FEW = 128


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

    def pack_b(self, b: Any) -> PackedMatrix:
        """B packed for it."""

    def frame(self, *arrays: Any, **named: Any) -> Frame:
        """The arguments of one call, checked."""

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """The output, written."""


#: The packed matrices that offsets count, where they are given at the call.
_SOME = 3


class Sample(NamedTuple):
    """Arrays in the signature's order, the memory each lies in, scalars, and the dims' values.

    In place of a packed operand is what is to be packed.
    """

    arrays: tuple[Any, ...]
    memory: tuple[Array, ...]
    scalars: dict[str, float]
    sizes: Mapping[str, int]

    def named(self, kernel: Sampled) -> dict[str, Any]:
        """The arguments as a call passes them, all by name."""
        given: dict[str, Any] = {}
        for parameter, array in zip(kernel.signature.arrays, self.arrays, strict=True):
            if parameter.packed and parameter.kind == "sequence":
                array = [kernel.pack_b(matrix) for matrix in array]
            elif parameter.packed:
                array = kernel.pack_b(array)
            given["out" if parameter.name == "d" else parameter.name] = array
        return {**given, **self.scalars}

    def size(self, size: Size) -> int:
        """The value of ``size`` in this sample."""
        return value_of(size, self.sizes)


def sample(
    signature: Signature,
    rng: np.random.Generator,
    *,
    varied: bool,
    whole: bool = False,
    gain: float = 1.0,
    given: Mapping[str, int] | None = None,
) -> Sample:
    """Random arguments; ``varied``: of random run-time sizes and paddings, else of usual ones.

    ``given`` are run-time sizes by their slots, in place of usual ones.
    For their elements see ``Draws``. What is only written has all bits set, which is NaN in
    floating point, and so has all memory around the elements of matrices.
    """
    sizes = _sizes(signature, rng if varied else None, given or {})
    draws = Draws(signature, sizes, rng, whole=whole, gain=gain)
    arrays: list[Any] = []
    memory: list[Array] = []
    for parameter in signature.arrays:
        array, held = _operand(parameter, sizes, draws)
        arrays.append(array)
        memory.append(held)
    for i, parameter in enumerate(signature.arrays):
        if parameter.kind == "offsets":
            flat = signature.array(parameter.name.removesuffix("_offsets"))
            count, at = value_of(parameter.shape[0], sizes), signature.arrays.index(flat)
            last = memory[at].size - extent(flat, sizes)
            if flat.packed:
                last = matrices_in(flat, sizes) - 1
            arrays[i] = rng.integers(0, last + 1, count, np.int64)
    scalars = {p.name: draws.factor(p.type) if varied else 1.0 for p in signature.scalars}
    return Sample(tuple(arrays), tuple(memory), scalars, sizes)


def call_sizes(signature: Signature, given: Mapping[str, int]) -> list[int]:
    """The sizes of a call in C's order: those ``given`` by slot, the others as small as may be."""
    sizes = _sizes(signature, None, given)
    return [sizes[parameter.dim.name] for parameter in signature.sizes]


def samples(spec: Spec, signature: Signature, cases: int, seed: int) -> Iterator[Sample]:
    """Random arguments for each of ``cases``; those of the first make results exact.

    Where beta is given at the call, it is 0 in every third case, and C has all bits set.
    """
    rng = np.random.default_rng(seed)
    for case in range(cases):
        held = sample(signature, rng, varied=True, whole=case == 0, gain=gain(spec))
        yield _without_c(signature, held) if case % 3 == 2 and "beta" in held.scalars else held


def edges(spec: Spec, signature: Signature, seed: int) -> Iterator[Sample]:
    """Random arguments at the ends of the run-time sizes; none where all sizes are fixed.

    K and the batch are empty in one each: C is beta C, or 0, then. All lengths are as small as may
    be in another, and in the last as large where that is a few. C is not read in any.
    """
    dims = {parameter.slot: parameter.dim for parameter in signature.sizes}
    lengths = {slot: dim for slot, dim in dims.items() if not slot.startswith(("ld", "stride"))}
    chosen: list[dict[str, int]] = [{slot: 0} for slot in ("k", "count") if slot in lengths]
    chosen.append({slot: dim.multiple_of for slot, dim in lengths.items()})
    few = {slot: _floor(dim, dim.max or 0) for slot, dim in lengths.items()}
    chosen.append({slot: int(most) for slot, most in few.items() if 0 < most <= _FEW})
    rng = np.random.default_rng(seed)
    for given in filter(None, chosen):
        held = sample(signature, rng, varied=True, gain=gain(spec), given=given)
        yield _without_c(signature, held) if "beta" in held.scalars else held


def _without_c(signature: Signature, held: Sample) -> Sample:
    """The same with a beta of 0, and a C of which nothing may be seen in the results."""
    c = held.arrays[signature.arrays.index(signature.array("c"))]
    c[...] = np.full(c.itemsize, 0xFF, np.uint8).view(c.dtype)
    return held._replace(scalars={**held.scalars, "beta": 0.0})


def gain(spec: Spec) -> float:
    """What the scales that ``spec`` fixes do to sums."""
    factor = 1.0
    for name, power in (("a_scale", 1), ("b_scale", 1), ("d_scale", -1)):
        scale = getattr(spec, name, None)
        factor *= scale**power if isinstance(scale, float) and scale != 0 else 1.0
    return abs(factor)


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
    elif parameter.kind in ("strided", "packed"):
        count = 1 if parameter.count is None else held.size(parameter.count)
        yield from array if array.ndim == 3 else [array] * count
    else:
        offsets = parameter.static_offsets
        if offsets is None:
            named = signature.array(parameter.offsets)
            offsets = tuple(map(int, held.arrays[signature.arrays.index(named)]))
        if parameter.packed:
            several = list(array)
            yield from (several[offset] for offset in offsets)
            return
        for offset in offsets:
            yield _matrix(parameter, held.sizes, array[offset:])


def _lines(parameter: ArrayParameter, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """The length of a line, the number of lines, and their distance."""
    rows, cols = (value_of(size, sizes) for size in parameter.shape)
    line, lines = (cols, rows) if parameter.order == "C" else (rows, cols)
    return line, lines, line if parameter.leading is None else value_of(parameter.leading, sizes)


def _matrix(parameter: ArrayParameter, sizes: Mapping[str, int], memory: Array) -> Array:
    line, lines, leading = _lines(parameter, sizes)
    step, item = leading * memory.itemsize, memory.itemsize
    shape, strides = ((lines, line), (step, item))
    whole = _view(memory, shape, strides)
    return whole if parameter.order == "C" else whole.T


def _view(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """A view of contiguous ``memory`` that must lie in it, whatever the sizes are."""
    last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    assert 0 in shape or last + memory.itemsize <= memory.nbytes, (shape, strides, memory.nbytes)
    return strided(memory, shape, strides)


# --- sizes -------------------------------------------------------------------------------------


def _sizes(
    signature: Signature, rng: np.random.Generator | None, given: Mapping[str, int]
) -> dict[str, int]:
    """A value for every dim: lengths first, then leading dimensions that hold them."""
    sizes: dict[str, int] = {}
    largest = _largest(signature)
    leadings = {p.leading for p in signature.arrays if isinstance(p.leading, Dim)}
    for parameter in signature.sizes:
        dim, is_count = parameter.dim, parameter.slot == "count"
        if parameter.slot in given:
            sizes[dim.name] = given[parameter.slot]
            continue
        if parameter.slot.startswith("ld") and dim in leadings:
            start = 1
        elif rng is None:
            start = 16 if is_count else _USUAL
        else:
            start = _within(int(rng.integers(1, 6 if is_count else 71)), largest[dim.name])
        sizes.setdefault(dim.name, _legal(dim, start, largest[dim.name]))
    for _ in range(4):  # a dim may be a length here and a leading dimension there
        _hold_lines(signature, sizes, largest, rng)
    while _hold_lines(signature, sizes, largest, None):
        pass
    for array in signature.arrays:
        if isinstance(array.batch_stride, Dim):
            _, lines, leading = _lines(array, sizes)
            at_least = max(sizes[array.batch_stride.name], lines * leading)
            stride = array.batch_stride
            sizes[stride.name] = _legal(stride, at_least, largest[stride.name])
    return sizes


def _largest(signature: Signature) -> dict[str, float]:
    """The largest legal value of each dim: its own maximum, and what its leading dimension holds.

    A dim of which no maximum follows has infinity.
    """
    dims = {parameter.dim for parameter in signature.sizes}
    largest = {dim.name: _floor(dim, inf if dim.max is None else dim.max) for dim in dims}
    lines = [
        (_length(array), array.leading) for array in signature.arrays if array.leading is not None
    ]
    changed = True
    while changed:
        changed = False
        for line, leading in lines:
            most = largest[leading.name] if isinstance(leading, Dim) else leading
            if isinstance(line, Dim) and most < largest[line.name]:
                largest[line.name] = _floor(line, most)
                changed = True
    return largest


def _hold_lines(
    signature: Signature,
    sizes: dict[str, int],
    largest: Mapping[str, float],
    rng: np.random.Generator | None,
) -> bool:
    """Raise leading dimensions that are shorter than a line, with ``rng`` by a bit more.

    Returns whether there were any.
    """
    changed = False
    for array in signature.arrays:
        if isinstance(array.leading, Dim):
            line, name = _lines(array, sizes)[0], array.leading.name
            extra = 0 if rng is None else int(rng.integers(0, 5))
            if sizes[name] < line:
                sizes[name] = _legal(array.leading, line + extra, largest[name])
                changed = True
    return changed


def _length(parameter: ArrayParameter) -> Size:
    """The length of a contiguous line."""
    return parameter.shape[1 if parameter.order == "C" else 0]


def _floor(dim: Dim, value: float) -> float:
    """The largest multiple that ``dim`` may be and ``value`` holds."""
    return value if value == inf else int(value) // dim.multiple_of * dim.multiple_of


def _within(drawn: int, largest: float) -> int:
    """A number from 1 to ``largest``: ``drawn`` where it is one."""
    return drawn if drawn <= largest else 1 + int((drawn - 1) % max(largest, 1))


def _legal(dim: Dim, wanted: int, largest: float) -> int:
    """The nearest legal value, ``wanted`` or above where there is one up to ``largest``."""
    step = dim.multiple_of
    return int(min(-(-wanted // step) * step, largest))


# --- arrays ------------------------------------------------------------------------------------


def _memory(elements: int, parameter: ArrayParameter) -> Array:
    """That many elements, the first at a cache line: all bits set, NaN in floating point."""
    dtype = preferred(parameter.type)
    block = aligned(elements * dtype.itemsize)
    block[...] = 0xFF
    return block.view(dtype)


def _operand(
    parameter: ArrayParameter, sizes: Mapping[str, int], draws: Draws
) -> tuple[Any, Array]:
    """An operand and the memory it lies in (of a sequence: of its last array)."""
    if parameter.kind == "offsets":  # filled in when the flat array is there
        return (), np.empty(0)
    if parameter.kind == "vector":
        held = _memory(value_of(parameter.shape[0], sizes), parameter)
        return _filled(held, parameter, draws), held
    if parameter.kind == "flat" and not parameter.packed:
        return _flat(parameter, sizes, draws)
    _, lines, leading = _lines(parameter, sizes)
    count = matrices_in(parameter, sizes)
    if parameter.kind == "sequence":
        if parameter.packed and parameter.quantized is not None:
            return [_quantized(parameter, sizes, draws) for _ in range(count)], np.empty(0)
        each = [
            _matrix(parameter, sizes, _memory(lines * leading, parameter)) for _ in range(count)
        ]
        return [_filled(one, parameter, draws) for one in each], np.empty(0)
    stride = lines * leading
    if parameter.batch_stride is not None:
        stride = value_of(parameter.batch_stride, sizes)
    held = _memory(max(count - 1, 0) * stride + lines * leading, parameter)
    matrix = _matrix(parameter, sizes, held)
    if parameter.packed and parameter.quantized is not None:
        return _quantized(parameter, sizes, draws), held
    if parameter.count is not None and parameter.batch_stride != 0:
        strides = (stride * held.itemsize, *matrix.strides)
        matrix = _view(held, (count, *matrix.shape), strides)
    return _filled(matrix, parameter, draws), held


def _quantized(parameter: ArrayParameter, sizes: Mapping[str, int], draws: Draws) -> Any:
    """Integers of few bits, with scales."""
    form = parameter.quantized
    assert form is not None
    k, n = (value_of(size, sizes) for size in parameter.shape)
    stacked = parameter.kind != "sequence" and parameter.batch_stride != 0
    several = parameter.count is not None and stacked
    counts = (matrices_in(parameter, sizes),) if several else ()
    blocks = (*counts, *form.blocks(k, n))
    scales = draws.scales(form, blocks)
    zeros = draws.zeros(form, blocks) if form.zeros else None
    return QuantizedMatrix(form, draws.stored(form, (*counts, k, n)), scales, zeros)


def matrices_in(parameter: ArrayParameter, sizes: Mapping[str, int]) -> int:
    """Return how many matrices an operand has; of packed ones that offsets count, a few."""
    if parameter.kind == "flat" and parameter.packed:
        static = parameter.static_offsets
        return _SOME if static is None else max(static, default=0) + 1
    return 1 if parameter.count is None else value_of(parameter.count, sizes)


def _flat(parameter: ArrayParameter, sizes: Mapping[str, int], draws: Draws) -> tuple[Array, Array]:
    """What offsets index: all of it, for any of it may be a matrix's."""
    _, lines, leading = _lines(parameter, sizes)
    static = parameter.static_offsets
    behind = max(static, default=0) if static is not None else 2 * lines * leading
    held = _memory(behind + extent(parameter, sizes), parameter)
    return _filled(held, parameter, draws), held


def _filled(array: Array, parameter: ArrayParameter, draws: Draws) -> Array:
    """``array`` with elements drawn, unless it is only written."""
    if parameter.role != "out":
        array[...] = draws(parameter, array.shape)
    return array
