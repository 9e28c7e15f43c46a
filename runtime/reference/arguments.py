"""Random arguments for a kernel, with which it is verified and timed.

In go the kernel's signature and a random generator. Out come arrays with padding around them,
scalars, and a value for each size that the spec leaves open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf, prod
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
#: A run-time size is also tested at its largest legal value, if that is at most this.
_FEW = 128


class Sampled(Protocol):
    """The part of a kernel that timing and verification use."""

    @property
    def name(self) -> str:
        """The kernel's name."""

    @property
    def spec(self) -> Spec:
        """The spec of the kernel."""

    @property
    def isa(self) -> Target:
        """The target of the kernel."""

    @property
    def signature(self) -> Signature:
        """The parameters of the C function."""

    def packed(self, name: str, matrix: Any) -> PackedMatrix:
        """Return a matrix packed for the operand ``name`` of this kernel."""

    def frame(self, *arrays: Any, **named: Any) -> Frame:
        """Check the arguments of one call and return them as a frame."""

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Call the kernel and return the output."""


#: Number of packed matrices if a call's offsets select them.
_SOME = 3


class Sample(NamedTuple):
    """Random arguments for one call of a kernel.

    ``arrays`` are in the signature's order, each inside the block of ``memory`` with the same
    index. ``sizes`` holds the values of run-time sizes. For a packed operand, ``arrays`` has the
    matrix before packing.
    """

    arrays: tuple[Any, ...]
    memory: tuple[Array, ...]
    scalars: dict[str, float]
    sizes: Mapping[str, int]

    def named(self, kernel: Sampled) -> dict[str, Any]:
        """Return the arguments by name, as a call passes them."""
        given: dict[str, Any] = {}
        for parameter, array in zip(kernel.signature.arrays, self.arrays, strict=True):
            if parameter.packed and parameter.kind == "sequence":
                array = [kernel.packed(parameter.name, matrix) for matrix in array]
            elif parameter.packed:
                array = kernel.packed(parameter.name, array)
            written = parameter.name == "d" and parameter.role != "in"
            given["out" if written else parameter.name] = array
        return {**given, **self.scalars}

    def size(self, size: Size) -> int:
        """Return the value of ``size`` in this sample."""
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
    """Return random arguments for one call of a kernel.

    If ``varied``, run-time sizes and paddings are random, else they have usual values. ``given``
    fixes run-time sizes by the names of their C parameters. ``Draws`` describes the elements.
    Arrays that are only written, and the memory around the elements of matrices, have all bits set,
    which is NaN in floating point.
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
    """Return a call's sizes in the order of the C function: ``given`` ones, else the least."""
    sizes = _sizes(signature, None, given)
    return [sizes[parameter.dim.name] for parameter in signature.sizes]


def samples(spec: Spec, signature: Signature, cases: int, seed: int) -> Iterator[Sample]:
    """Yield random arguments for each of ``cases``. Those of the first case make results exact.

    If beta is an argument of the call, every third case has beta 0 and a C with all bits set.
    """
    rng = np.random.default_rng(seed)
    for case in range(cases):
        held = sample(signature, rng, varied=True, whole=case == 0, gain=gain(spec))
        yield _without_c(signature, held) if case % 3 == 2 and "beta" in held.scalars else held


def edges(spec: Spec, signature: Signature, seed: int) -> Iterator[Sample]:
    """Yield random arguments with the least and largest run-time sizes; none if all sizes are
    fixed.

    One sample has a K of 0, and one an empty batch: the result is then beta C, or 0. In another
    sample all lengths have their least values. In the last one they have their largest values, if
    these are at most ``_FEW``. If beta is passed at the call, it is 0 in all samples. The empty
    batch is left out if only its matrices tell a size: no call can express it.
    """
    dims = {parameter.slot: parameter.dim for parameter in signature.sizes}
    lengths = {slot: dim for slot, dim in dims.items() if not slot.startswith(("ld", "stride"))}
    largest = _largest(signature)
    chosen: list[dict[str, int]] = [{"k": 0}] if "k" in lengths else []
    if "count" in lengths and not _told_by_matrices(signature, lengths.values()):
        chosen.append({"count": 0})
    least = {slot: _legal(dim, 1, largest[dim.name]) for slot, dim in lengths.items()}
    few = {slot: largest[dim.name] for slot, dim in lengths.items()}
    chosen += [least, {slot: int(most) for slot, most in few.items() if 0 < most <= _FEW}]
    rng = np.random.default_rng(seed)
    for given in filter(None, chosen):
        held = sample(signature, rng, varied=True, gain=gain(spec), given=given)
        yield _without_c(signature, held) if "beta" in held.scalars else held


def _told_by_matrices(signature: Signature, lengths: Iterable[Dim]) -> bool:
    """Return True if one of these sizes is only found in the shapes of a sequence's matrices."""
    others = {size for one in signature.arrays if one.kind != "sequence" for size in one.shape}
    counts = {one.count for one in signature.arrays}
    return any(dim not in others | counts for dim in lengths)


def _without_c(signature: Signature, held: Sample) -> Sample:
    """Return the sample with beta 0 and all bits of C set; the result must not depend on C."""
    c = held.arrays[signature.arrays.index(signature.array("c"))]
    c[...] = np.full(c.itemsize, 0xFF, np.uint8).view(c.dtype)
    return held._replace(scalars={**held.scalars, "beta": 0.0})


def gain(spec: Spec) -> float:
    """Return the factor by which the fixed scales of ``spec`` multiply the sums."""
    factor = 1.0
    for name, power in (("a_scale", 1), ("b_scale", 1), ("d_scale", -1)):
        scale = getattr(spec, name, None)
        factor *= scale**power if isinstance(scale, float) and scale != 0 else 1.0
    return abs(factor)


def extent(parameter: ArrayParameter, sizes: Mapping[str, int]) -> int:
    """Return how many elements a matrix's memory has, from its first element to its last."""
    line, lines, leading = _lines(parameter, sizes)
    return (lines - 1) * leading + line if line and lines else 0


def matrices(parameter: ArrayParameter, held: Sample, signature: Signature) -> Iterator[Array]:
    """Yield the operand's matrices as views, one for each step of the batch."""
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
    """Return length, number and distance in elements of a matrix's rows (columns in order F)."""
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
    """Return a view of contiguous ``memory``; asserts that the view is inside it."""
    last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    assert 0 in shape or last + memory.itemsize <= memory.nbytes, (shape, strides, memory.nbytes)
    return strided(memory, shape, strides)


# --- sizes -------------------------------------------------------------------------------------


def _sizes(
    signature: Signature, rng: np.random.Generator | None, given: Mapping[str, int]
) -> dict[str, int]:
    """Return a value for each run-time size. Leading dimensions are at least as long as rows."""
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
    # A size may be a length of one operand and a leading dimension of another, so repeat.
    for _ in range(4):
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
    """Return the largest legal value of each run-time size by name, infinity without a limit.

    A size is limited by its own maximum and by fixed leading dimensions.
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
    """Increase leading dimensions that are too small for a row; with ``rng``, by a few more.

    Returns True if there was one.
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
    """Return the length of a matrix's rows, or of its columns in order F."""
    return parameter.shape[1 if parameter.order == "C" else 0]


def _floor(dim: Dim, value: float) -> float:
    """Return the largest multiple of ``dim.multiple_of`` that is at most ``value``."""
    return value if value == inf else int(value) // dim.multiple_of * dim.multiple_of


def _within(drawn: int, largest: float) -> int:
    """Return ``drawn`` if it is at most ``largest``, else a number from 1 to ``largest``."""
    return drawn if drawn <= largest else 1 + int((drawn - 1) % max(largest, 1))


def _legal(dim: Dim, wanted: int, largest: float) -> int:
    """Return the least legal value of ``dim`` that is at least ``wanted``, or ``largest``."""
    step = dim.multiple_of
    return int(min(-(-wanted // step) * step, largest))


# --- arrays ------------------------------------------------------------------------------------


def _memory(elements: int, parameter: ArrayParameter) -> Array:
    """Return memory for elements, aligned to a cache line, with all bits set: NaN in floating
    point.
    """
    dtype = preferred(parameter.type)
    block = aligned(elements * dtype.itemsize)
    block[...] = 0xFF
    return block.view(dtype)


def _operand(
    parameter: ArrayParameter, sizes: Mapping[str, int], draws: Draws
) -> tuple[Any, Array]:
    """Return an operand and its memory; for a sequence of arrays, the memory of the last one."""
    # ``sample`` draws the offsets after it has made the flat array.
    if parameter.kind == "offsets":
        return (), np.empty(0)
    if parameter.kind == "vector":
        held = _memory(value_of(parameter.shape[0], sizes), parameter)
        return _filled(held, parameter, draws), held
    if parameter.kind == "tensor":
        shape = tuple(value_of(size, sizes) for size in parameter.shape)
        held = _memory(prod(shape), parameter)
        return _filled(held.reshape(shape), parameter, draws), held
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
    """Return a random low-bit matrix with its scales, or several in one array."""
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
    """Return how many matrices an operand has; ``_SOME`` if a call's offsets select packed ones."""
    if parameter.kind == "flat" and parameter.packed:
        static = parameter.static_offsets
        return _SOME if static is None else max(static, default=0) + 1
    return 1 if parameter.count is None else value_of(parameter.count, sizes)


def _flat(parameter: ArrayParameter, sizes: Mapping[str, int], draws: Draws) -> tuple[Array, Array]:
    """Return the flat array that offsets index. All of it is filled, since each element may be
    read.
    """
    _, lines, leading = _lines(parameter, sizes)
    static = parameter.static_offsets
    behind = max(static, default=0) if static is not None else 2 * lines * leading
    held = _memory(behind + extent(parameter, sizes), parameter)
    return _filled(held, parameter, draws), held


def _filled(array: Array, parameter: ArrayParameter, draws: Draws) -> Array:
    """Fill ``array`` with random elements unless the kernel only writes it."""
    if parameter.role != "out":
        array[...] = draws(parameter, array.shape)
    return array
