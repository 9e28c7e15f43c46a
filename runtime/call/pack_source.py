"""Choose the kernel that packs a given matrix B, by the order and the type of B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.plan.formats.named import format_named
from tilewright.runtime.arrays.dtypes import accepts, title
from tilewright.runtime.arrays.views import as_array, is_masked, what_to_do
from tilewright.runtime.quantized.matrix import QuantizedMatrix, quantized_bytes
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Offsets, Order, Packed, Strided
from tilewright.spec.pack import Copy, Pack, PackQuantized, QuantizeRows
from tilewright.spec.sizes import Dim, Size, dim
from tilewright.spec.types import type_name

from .bound_sizes import Array, Known
from .packed_matrix import PackedMatrix, matrix_in, new_block


class Given(NamedTuple):
    """The arguments of ``Kernel.pack_b``."""

    b: Any
    scales: Any = None
    zeros: Any = None
    container: Any = None


def pack_for(spec: Gemm, given: Given) -> tuple[Pack, Array]:
    """Return the spec that packs ``b`` for a Gemm with a packed B, and ``b`` as that kernel takes
    it.

    ``b`` must have B's type, or float32 if it is to be converted. Its shape must be k x n, or count
    x k x n for a batch. Raise ArgumentError otherwise.
    """
    assert isinstance(spec.b, Packed)
    quantized = "b=tw.Packed(tw.Quantized(...)) in the spec"
    if given.scales is not None or given.zeros is not None:
        what = "zeros" if given.scales is None else "scales"
        raise ArgumentTypeError(
            f"{what} are given for a B that has none of its own",
            got=f"b={spec.b!r}",
            hint=f"b_{what[:-1]}= in the call, or {quantized}",
        )
    if given.container is not None:
        raise ArgumentTypeError(
            "a container is given for a B that is not quantized",
            got=f"container={given.container!r:.60}, b={spec.b!r}",
            hint=f"{quantized}, or tw.from_gguf(...).dequantize()",
        )
    b = as_array(given.b, "b")
    source = _source(b, spec.b.type, "b")
    batched = spec.packs_stack
    size = spec.batch.count if batched and spec.batch is not None else 1
    if batched and size == 1 and b.ndim == 2:
        b = b[np.newaxis]
    _check_shape(spec, b.shape)
    order = _order(b)
    if order is None:
        b, order = np.ascontiguousarray(b), "C"
    pack = Pack(
        *spec.sizes_of_b,
        spec.rounded[1],
        a=spec.rounded[0],
        nb=spec.b.nb,
        source=type_name(source),
        order=order,
        ldb=dim("ldb"),
        batch=Strided(dim("count"), b=dim("stride_b")) if batched else None,
        sums=spec.sum_type,
    )
    return pack, b


def a_packing(spec: Gemm, source: str = "", order: Order = "F") -> Pack | QuantizeRows:
    """Return the spec that packs the A of a Gemm with a packed A, for any leading dimension.

    ``source`` is the type of the given A, by default A's. ``order`` is that of A's transpose.
    """
    assert isinstance(spec.a, Packed)
    if spec.quantize is not None and spec.quantized is not None:
        m = Dim("m") if isinstance(spec.m, Dim) else spec.m
        assert isinstance(spec.k, int)
        return QuantizeRows(m, spec.k, spec.quantize, spec.quantized, lda=dim("lda"))
    given = type_name(source or spec.a.type)
    k, m = (size if isinstance(size, int) else Dim(slot) for size, slot in
            ((spec.k, "k"), (spec.m, "n")))  # fmt: skip
    return Pack(
        k, m, spec.rounded[0], a=spec.rounded[1], nb=spec.a.mb, source=given,
        order=order, ldb=dim("ldb"), sums=spec.sum_type, rows=True,
    )  # fmt: skip


def pack_a_for(spec: Gemm, given: Any) -> tuple[Pack | QuantizeRows, Any]:
    """Return the spec that packs A for a Gemm with a packed A, and the array that it takes.

    A must have A's type, or be float32 if it is to be converted, and be m x k. Raise ArgumentError
    otherwise. A quantized A has A's type. The array is A, or its transpose if it is not quantized.
    """
    assert isinstance(spec.a, Packed)
    a = as_array(given, "a")
    source = _source(a, spec.a.type, "a")
    if a.ndim != 2 or not _agree((spec.m, spec.k), a.shape):
        raise ArgumentValueError(
            "a has the wrong shape", got=a.shape, expected=f"({_shown(spec.m)}, {_shown(spec.k)})"
        )
    if spec.quantize is not None:
        return a_packing(spec), a if _order(a) == "C" else np.ascontiguousarray(a)
    order = _order(a.T)
    if order is None:
        a, order = np.ascontiguousarray(a), "F"
    return a_packing(spec, source, order), a.T


def pack_quantized(spec: Gemm, format: str, given: Given) -> PackedMatrix:
    """Return a quantized B of ``spec`` in a packed format; ArgumentError if it does not fit."""
    b = _quantized(spec, given)
    if b.format != spec.quantized:
        raise ArgumentValueError(
            "b is quantized in another format", got=b.format, expected=spec.quantized
        )
    _check_shape(spec, b.shape)
    form = format_named(format)
    count = b.shape[0] if b.ndim == 3 else 1
    block = new_block(count * form.nbytes)
    place = matrix_in(block).reshape(count, form.nbytes)
    for matrix, bytes_ in zip(b, place, strict=True):
        bytes_[:] = quantized_bytes(matrix, form)
    return PackedMatrix.owning(form.text, b.shape, block)


def unpack_for(spec: Gemm, format: str, packed: Any) -> tuple[Copy, Array]:
    """Return the spec that unpacks a B of ``spec``, and the rows of bytes of its matrices."""
    form = format_named(format)
    if form.is_open and isinstance(packed, PackedMatrix):
        form = form.of(*packed.shape[-2:])
    rows = _rows(packed, form.text)
    return Copy(form.k, form.n, form.text, spec.b.type), rows


def unpack_quantized(spec: Gemm, format: str, packed: Any) -> QuantizedMatrix:
    """Return the quantized B of ``spec`` that was packed; ArgumentError for another format."""
    from tilewright.runtime.quantized.packed import unpacked

    assert spec.quantized is not None
    form = format_named(format)
    each = [unpacked(row[0], form, spec.quantized) for row in _rows(packed, form.text)]
    if len(packed.shape) == 2:
        return each[0]
    q, scales = (np.stack([getattr(one, name) for one in each]) for name in ("q", "scales"))
    zeros = [one.zeros for one in each if one.zeros is not None]
    return QuantizedMatrix(spec.quantized, q, scales, np.stack(zeros) if zeros else None)


def _rows(packed: Any, format: str) -> Array:
    """Return the bytes of packed matrices, a row for each; ArgumentError for another format."""
    if not isinstance(packed, PackedMatrix) or packed.format != format:
        raise ArgumentTypeError(
            "what is unpacked must be a matrix in the kernel's packed format",
            got=packed.format if isinstance(packed, PackedMatrix) else type(packed).__name__,
            expected=format,
        )
    count = packed.shape[0] if len(packed.shape) == 3 else 1
    return packed.data.reshape(count, 1, -1)


def _quantized(spec: Gemm, given: Given) -> QuantizedMatrix:
    """Return the B in the arguments of ``pack_b`` as a QuantizedMatrix; ArgumentError otherwise."""
    b, scales, zeros, container = given
    assert spec.quantized is not None
    if isinstance(b, QuantizedMatrix):
        if any(x is not None for x in given[1:]):
            raise ArgumentTypeError("a QuantizedMatrix has its scales", got="others beside it")
        return b
    if container is not None:
        if scales is not None or zeros is not None:
            raise ArgumentTypeError("a container has its scales", got="others beside it")
        return _contained(spec, b, container)
    if scales is None:
        raise ArgumentTypeError(
            "a quantized B needs its scales",
            got=type(b).__name__,
            expected='integers with scales=, a tw.QuantizedMatrix, or bytes with container="q4_0"',
        )
    return QuantizedMatrix(spec.quantized, b, scales, zeros)


def _contained(spec: Gemm, data: Any, container: Any) -> QuantizedMatrix:
    """Return the B for ``spec``, one matrix or a stack, that the bytes of a GGUF tensor hold."""
    from tilewright.runtime.quantized.gguf import from_gguf, row_bytes

    assert isinstance(spec.k, int) and isinstance(spec.n, int)
    if not spec.packs_stack:
        return from_gguf(data, container, (spec.k, spec.n))
    matrix = spec.n * row_bytes(container, spec.k)
    given = as_array(data, "b")
    count = max(1, given.size // matrix) if isinstance(given, np.ndarray) else 1
    return from_gguf(data, container, (count, spec.k, spec.n))


def parts_of(spec: PackQuantized, b: Any) -> tuple[Array, ...]:
    """Return the arrays of ``b`` for packing: elements, scales, and zeros if it has any.

    Raise ArgumentError unless ``b`` is a QuantizedMatrix of the format, k x n.
    """
    if not isinstance(b, QuantizedMatrix) or b.format != spec.type:
        raise ArgumentTypeError(
            "the matrix to pack has another format",
            got=b.format if isinstance(b, QuantizedMatrix) else type(b).__name__,
            expected=f"a tw.QuantizedMatrix of {spec.type}",
        )
    if b.shape != (spec.k, spec.n):
        raise ArgumentValueError(
            "b has the wrong shape", got=b.shape, expected=f"({spec.k}, {spec.n})"
        )
    lie = np.ascontiguousarray if spec.order == "C" else np.asfortranarray
    return tuple(lie(part) for part in (b.q, b.scales, b.zeros) if part is not None)


def _check_shape(spec: Gemm, shape: tuple[int, ...]) -> None:
    """Raise ArgumentError unless B is k x n, or a stack of these if the spec has one."""
    batched = spec.packs_stack
    sizes = (spec.k, spec.n)
    if len(shape) != 2 + batched or not _agree(sizes, shape[-2:]):
        size = spec.batch.count if batched and spec.batch is not None else 1
        # With offsets, any number of matrices is allowed, because the offsets select them.
        free = isinstance(spec.batch, Offsets)
        count = "count" if free else size.name if isinstance(size, Dim) else str(size)
        count = f"{count}, " if batched else ""
        raise ArgumentValueError(
            "b has the wrong shape",
            got=shape,
            expected=f"({count}{', '.join(map(_shown, sizes))})",
            hint="b[np.newaxis] for a batch of one" if batched and len(shape) == 2 else None,
        )


def _agree(sizes: Sequence[Size], shape: Sequence[int]) -> bool:
    """Return True if a matrix of this shape has the sizes of a spec, one value for each dim."""
    known = Known()
    pairs = zip(sizes, shape, strict=True)
    return all(known.agrees(size, got, "") and _is_legal(size, got) for size, got in pairs)


def _shown(size: Size) -> str:
    return str(size) if isinstance(size, int) else repr(size) if _limited(size) else size.name


def _limited(size: Dim) -> bool:
    return size.multiple_of > 1 or size.max is not None


def _is_legal(size: Size, got: int) -> bool:
    if isinstance(size, int):
        return True
    return got % size.multiple_of == 0 and (size.max is None or got <= size.max)


def _source(given: Any, type_: str, name: str) -> str:
    """Return the element type of an array: the operand's or "f32", else ArgumentTypeError."""
    if isinstance(given, np.ndarray) and not is_masked(given):
        if accepts(type_, given.dtype):
            return type_
        if accepts("f32", given.dtype) and type_ != "f64":
            return "f32"
    raise ArgumentTypeError(
        f"pack_{name} takes an array of {name.upper()}'s type, or of float32",
        got=f"{given.dtype} array" if isinstance(given, np.ndarray) else type(given).__name__,
        expected=title(type_),
        hint=what_to_do(given, name),
    )


def _order(b: Array) -> Order | None:
    """Return the order in which ``b`` can be read in place, None if it must be copied."""
    item = b.itemsize
    if b.size == 0 or any(stride < 0 or stride % item for stride in b.strides):
        return None
    lines, line = b.shape[-2:]
    along, step = b.strides[-2:]
    if (step == item or line == 1) and (along >= line * item or lines == 1):
        return "C"
    if (along == item or lines == 1) and (step >= lines * item or line == 1):
        return "F"
    return None
