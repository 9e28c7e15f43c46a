"""Check the arrays of a call in Python, and raise errors that say exactly what is wrong.

The C dispatcher accepts the usual calls. A call that the dispatcher does not accept is checked
again here; only this check raises errors. Nothing is written before the last check has passed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, described
from tilewright.runtime.arrays.dtypes import FOREIGN, accepts, title
from tilewright.runtime.arrays.elements import INTEGERS
from tilewright.runtime.arrays.memory import address
from tilewright.runtime.arrays.views import (
    OF_ANY,
    as_array,
    is_masked,
    is_view_of_tensor,
    what_to_do,
)
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import Dim, Size
from tilewright.spec.types import ELEMENTS

from .bound_sizes import Array, Known
from .overlap import check_overlaps
from .packed_matrix import PackedMatrix, family_of


class Checked(NamedTuple):
    """Checked arguments: the arrays, and the run-time sizes in the signature's order."""

    arrays: tuple[Any, ...]
    sizes: tuple[int, ...]


def check(signature: Signature, arrays: Sequence[Any]) -> Checked:
    """Check ``arrays``, in the signature's order; raise ArgumentError if one does not fit."""
    known, held = Known(), seen(signature.arrays, arrays)
    learn(signature.arrays, held, known)
    _fill_free(signature, known)
    _limits(signature, known)
    check_leading(signature.arrays, known)
    check_scales(signature.arrays, held)
    check_zeros(signature.arrays, held)
    check_overlaps(signature, held, known)
    return Checked(held, tuple(known.value(size.dim) for size in signature.sizes))


def seen(parameters: Sequence[ArrayParameter], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return ``arrays`` as numpy arrays: tensors and buffers become views of the same memory.

    An object that is no array is returned unchanged; ``learn`` then refuses it. Raise
    ArgumentTypeError for arrays that cannot be read.
    """
    return tuple(
        tuple(_seen(parameter, item, f"{parameter.name}[{i}]") for i, item in enumerate(items))
        if (items := _items(parameter, given)) is not None
        else _seen(parameter, given, parameter.name)
        for parameter, given in zip(parameters, arrays, strict=True)
    )


def _seen(parameter: ArrayParameter, given: Any, name: str) -> Any:
    if type(given) is np.ndarray or parameter.packed:
        return given
    array = as_array(given, name)
    is_one = parameter.kind == "vector" and parameter.shape == (1,)
    return (
        array.reshape(1) if is_one and isinstance(array, np.ndarray) and not array.ndim else array
    )


def learn(parameters: Sequence[ArrayParameter], arrays: Sequence[Any], known: Known) -> None:
    """Check types, shapes and strides of arrays, and learn the run-time sizes from them."""
    pairs = list(zip(parameters, arrays, strict=True))
    for parameter, given in pairs:
        for array, name in _each(parameter, given):
            check_kind(parameter, array, name)
            _shape(parameter, array, name, known)
        if parameter.kind == "sequence":
            assert parameter.count is not None
            if not known.agrees(parameter.count, len(given), f"len({parameter.name})"):
                raise ArgumentValueError(
                    f"{parameter.name} has the wrong number of arrays",
                    got=len(given),
                    expected=known.say(parameter.count),
                )
    for parameter, given in pairs:
        if not parameter.packed:
            for array, name in _each(parameter, given):
                _strides(parameter, array, name, known)


def _items(parameter: ArrayParameter, given: Any) -> tuple[Any, ...] | None:
    """Return the matrices of an operand that is a sequence, None if the operand is one array."""
    if parameter.kind != "sequence":
        return None
    if isinstance(given, (list, tuple)):
        return tuple(given)
    raise ArgumentTypeError(
        f"{parameter.name} must be a list or tuple of arrays, one per matrix of the batch",
        got=describe(given),
        hint="a 3-d array is for batch=tw.Strided",
    )


def _each(parameter: ArrayParameter, given: Any) -> Iterator[tuple[Any, str]]:
    if parameter.kind == "sequence":
        return ((array, f"{parameter.name}[{i}]") for i, array in enumerate(given))
    return iter(((given, parameter.name),))


def _shape(parameter: ArrayParameter, array: Array | PackedMatrix, name: str, known: Known) -> None:
    sizes, slots = _axes(parameter, array.shape, name)
    for axis, (size, slot) in enumerate(zip(sizes, slots, strict=True)):
        if size is None or known.agrees(size, array.shape[axis], f"{name}.shape[{axis}]"):
            continue
        wanted = ", ".join("?" if s is None else _plain(s, known) for s in sizes)
        turned = array.shape[-2:] == tuple(
            known.value(s) if s is not None and known.has(s) else -1 for s in sizes[-2:][::-1]
        )
        raise ArgumentValueError(
            f"{name} has the wrong shape",
            got=array.shape,
            expected=f"({wanted}{',' * (len(sizes) == 1)}){_because(slot, size, known)}",
            hint=f"{name}.T has this shape"
            if turned and len(sizes) == 2 and not parameter.packed
            else None,
        )


def _because(slot: str, size: Size, known: Known) -> str:
    """Return a size's required value and its source, for example ``: n is 8, from b.shape[1]``.

    The result is "" for a size that has no name.
    """
    slot = slot.removesuffix("_")  # in C, names of a network's dims end so
    if slot == known.say(size):
        return ""
    if isinstance(size, Dim) and size.name == slot and slot in known.values:
        return f": {slot} is {known.values[slot]}, from {known.source[slot]}"
    return f": {slot} is {known.say(size)}"


def _plain(size: Size, known: Known) -> str:
    return str(known.value(size)) if known.has(size) else str(getattr(size, "name", size))


def _axes(
    parameter: ArrayParameter, shape: tuple[int, ...], name: str
) -> tuple[tuple[Size | None, ...], tuple[str, ...]]:
    """Return the required size of each axis, None for any length, and the axes' names."""
    sizes: tuple[Size | None, ...] = parameter.shape
    slots = parameter.slots or ("length",)
    batch = (parameter.count, *sizes), ("count", *slots)
    kind, either, hint = parameter.kind, "", None
    if kind == "flat" and parameter.packed:
        matrices: tuple[None, ...] = (None,) if len(shape) == 3 else ()
        sizes, slots = (*matrices, *sizes), ("matrices", *slots)[1 - len(matrices) :]
    elif kind == "flat":
        sizes, slots = (None,), ("length",)
        hint = f"{name}.reshape(-1): offsets count from its first element"
    elif kind == "strided" and (parameter.batch_stride != 0 or len(shape) == 3):
        sizes, slots = batch
    elif kind == "strided":
        either = " or 3-d"
    elif kind == "packed" and parameter.count is not None and parameter.batch_stride != 0:
        sizes, slots = batch
    elif kind == "vector":
        hint = f"{name}.reshape(-1)"
    elif kind == "matrix" and len(shape) > 2 and name in ("a", "b", "c", "d"):
        hint = (
            "tw.matmul(a, b) multiplies stacks of matrices; tw.Gemm(..., batch=tw.Strided(count, "
            "c=None)) is the spec of a kernel that does"
        )
    if len(shape) != len(sizes):
        raise ArgumentValueError(
            f"{name} must be a {len(sizes)}-d{either} array",
            got=f"{len(shape)}-d, of shape {shape}",
            expected=f"axes {', '.join(slot.removesuffix('_') for slot in slots)}",
            hint=hint,
        )
    return sizes, slots


def _strides(parameter: ArrayParameter, array: Array, name: str, known: Known) -> None:
    itemsize = parameter.itemsize
    if parameter.kind in ("flat", "offsets", "vector"):
        if array.shape[0] > 1 and array.strides[0] != itemsize:
            raise ArgumentValueError(
                f"{name} must be contiguous",
                got=f"a stride of {array.strides[0]} bytes",
                expected=f"{itemsize} bytes",
                hint=f"np.ascontiguousarray({name})",
            )
        return
    if array.size == 0:
        return
    if parameter.kind == "tensor":
        if not array.flags.c_contiguous:
            raise ArgumentValueError(
                f"{name} must be without gaps",
                got=f"shape {array.shape}, strides {array.strides} bytes",
                expected="the strides of a new array of this shape",
                hint=f"np.ascontiguousarray({name})",
            )
        return
    contiguous = array.ndim - (1 if parameter.order == "C" else 2)
    other = 2 * array.ndim - 3 - contiguous
    _contiguous(parameter, array, name, contiguous)
    line, lines = array.shape[contiguous], array.shape[other]
    if lines > 1:
        _leading(parameter, name, known, array.strides[other], line)
    if array.ndim == 3 and array.shape[0] > 1:
        _batch_stride(parameter, array, name, known, line, lines)


def _contiguous(parameter: ArrayParameter, array: Array, name: str, axis: int) -> None:
    if array.shape[axis] < 2 or array.strides[axis] == parameter.itemsize:
        return
    what = "rows" if parameter.order == "C" else "columns"
    other = "F" if parameter.order == "C" else "C"
    turned = 2 * array.ndim - 3 - axis
    is_other = array.strides[turned] == parameter.itemsize
    raise ArgumentValueError(
        f"{name} must have contiguous {what} (order {parameter.order!r})",
        got=f"shape {array.shape}, strides {array.strides} bytes",
        expected=f"{parameter.itemsize} bytes from one element of a {what[:-1]} to the next",
        hint=f"{parameter.name}=tw.Matrix({parameter.type!r}, order={other!r}) in the spec, or "
        f"np.as{'contiguous' if parameter.order == 'C' else 'fortran'}array({name})"
        if is_other and not parameter.leading_slot.endswith(".strides")
        else f"np.as{'contiguous' if parameter.order == 'C' else 'fortran'}array({name})",
    )


def _leading(parameter: ArrayParameter, name: str, known: Known, stride: int, line: int) -> None:
    """Check the distance from one row to the next, or from one column to the next in order F.

    If the kernel allows no gaps between rows, the error's hint names ``tw.dim``.
    """
    leading, remainder = divmod(stride, parameter.itemsize)
    slot = parameter.leading_slot
    whole = "row" if parameter.order == "C" else "column"
    if remainder or leading < line:
        shared = f", which gives each {whole} elements of its own" if 0 <= leading < line else ""
        raise ArgumentValueError(
            f"{name}'s {whole}s must follow each other at whole elements, and not overlap, "
            "also where they are only read",
            got=f"a {whole} every {stride} bytes",
            expected=f"{slot} of at least {line} elements of {parameter.itemsize} bytes",
            hint=f"{name}.copy(){shared}",
        )
    want = line if parameter.leading is None else parameter.leading
    source = f"{name}'s strides"
    if known.agrees(want, leading, source):
        return
    if parameter.leading is None:
        raise ArgumentValueError(
            f"{name} is a strided view, with gaps between its {whole}s; this kernel takes arrays "
            "without gaps",
            got=f"a {whole} every {leading} elements",
            expected=f"every {line}, the length of a {whole}",
            hint=f"{parameter.any_leading}, or {name}.copy()",
        )
    raise ArgumentValueError(
        f"{name} has the wrong leading dimension",
        got=f"{slot} == {leading}",
        expected=known.say(want),
        hint=None if isinstance(want, Dim) else f"{parameter.any_leading} takes any",
    )


def _batch_stride(
    parameter: ArrayParameter, array: Array, name: str, known: Known, line: int, lines: int
) -> None:
    stride, remainder = divmod(array.strides[0], parameter.itemsize)
    slot, want, got = parameter.stride_slot, parameter.batch_stride, f"{stride} elements"
    if want is None:
        # The next matrix must begin where the last line of this one ends.
        leading, rest = divmod(stride, lines)
        size = line if parameter.leading is None else parameter.leading
        fits = not (remainder or rest) and leading >= line
        if fits and known.agrees(size, leading, f"{name}'s strides"):
            return
        expected = "one tight matrix after the other"
    else:
        fits = remainder == 0 and stride >= 0
        if fits and known.agrees(want, stride, f"{name}.strides[0]"):
            return
        expected = known.say(want)
    raise ArgumentValueError(
        f"{name} has the wrong batch stride",
        got=got if not remainder else f"{array.strides[0]} bytes",
        expected=expected,
        hint=f"tw.Strided(count, {slot[-1]}=tw.dim('{slot}')) takes any",
    )


def _fill_free(signature: Signature, known: Known) -> None:
    """Choose valid values for leading dimensions and batch strides that no array determines.

    An array determines no leading dimension if it has a single row, and no batch stride if it has a
    single matrix.
    """
    longest: dict[Dim, int] = {}
    for parameter in signature.arrays:
        stride, leading = parameter.batch_stride, parameter.leading
        if stride is not None and not known.has(stride):
            known.agrees(stride, 0, "")
        if leading is None or known.has(leading):
            continue
        assert isinstance(leading, Dim)
        line, lines = known.lines(parameter)
        if parameter.kind == "flat" and lines > 1:
            raise ArgumentValueError(
                f"{parameter.leading_slot} of the flat {parameter.name} is not known",
                got="no array of this call with two lines or more tells it",
                hint=f"give {parameter.leading_slot} as an int in the spec",
            )
        longest[leading] = max(longest.get(leading, 0), line)
    for dim, line in longest.items():
        step = dim.multiple_of
        up = max(step, -(-line // step) * step)
        known.agrees(dim, up if dim.max is None else min(up, dim.max // step * step), "")


def _limits(signature: Signature, known: Known) -> None:
    for parameter in signature.sizes:
        dim = parameter.dim
        if dim.name not in known.values:
            raise ArgumentValueError(
                f"{dim.name} is not known",
                got="no array of this call tells it",
                hint="pass one of the operands with its batch axis"
                if parameter.slot == "count"
                else None,
            )
        value, source = known.values[dim.name], known.source[dim.name]
        if value % dim.multiple_of:
            _out_of_limits(dim, value, source, f"a multiple of {dim.multiple_of}")
        if value < parameter.least:
            _too_small(dim, value, source)
        if dim.max is not None and value > dim.max:
            _out_of_limits(dim, value, source, f"at most {dim.max}")


def check_leading(parameters: Sequence[ArrayParameter], known: Known) -> None:
    """Raise ArgumentError if a row is longer than the spec's largest leading dimension.

    In order F, columns are compared. Strides show the fault if there are two rows. Matrices of one
    row and flat operands have no such stride.
    """
    for parameter in parameters:
        leading = parameter.leading
        if leading is None:
            continue
        most = leading.max if isinstance(leading, Dim) else leading
        line = known.lines(parameter)[0]
        if most is not None and line > most:
            slot = parameter.slots[parameter.order == "C"]
            raise ArgumentValueError(
                f"{parameter.name}'s leading dimension is too small for its lines",
                got=f"{slot} == {line}",
                expected=f"{slot} of at most {most}, as the spec gives {parameter.leading_slot}",
                hint=f"{parameter.any_leading} takes any",
            )


def check_scales(parameters: Sequence[ArrayParameter], arrays: Sequence[Any]) -> None:
    """Raise ArgumentError for scales that a spec could not contain: NaN, Inf, divisors near 0.

    Arrays of several scales that multiply are not checked. A NaN or Inf in them reaches D, as a NaN
    in A or B does.
    """
    for parameter, array in zip(parameters, arrays, strict=True):
        name, least = parameter.name, parameter.least
        if least is None:
            continue
        wrong = np.flatnonzero(~(np.isfinite(array) & (np.abs(array) >= least)))
        if wrong.size:
            where = f"{name}[{wrong[0]}]" if array.size > 1 else name
            raise ArgumentValueError(
                f"{name} divides, and its reciprocal must be finite"
                if least
                else f"{name} must be a finite number of {parameter.type}",
                got=f"{where} == {array[wrong[0]]}",
                expected=f"finite, and at least {least:.8g} in magnitude" if least else "finite",
            )


def check_zeros(parameters: Sequence[ArrayParameter], arrays: Sequence[Any]) -> None:
    """Raise ArgumentError for zero points that are no number of the operand's type.

    Sums over blocks of a low-bit B are exact only for zero points in the range of A's type.
    """
    for parameter, array in zip(parameters, arrays, strict=True):
        if not parameter.within:
            continue
        low, high = INTEGERS[parameter.within]
        wrong = np.flatnonzero((array < low) | (array > high))
        if wrong.size:
            where = f"{parameter.name}[{wrong[0]}]" if array.size > 1 else parameter.name
            raise ArgumentValueError(
                f"{parameter.name} must be a number of {parameter.within}",
                got=f"{where} == {array[wrong[0]]}",
                expected=f"{low} to {high}: B is quantized in blocks",
            )


def _out_of_limits(dim: Dim, value: int, source: str, expected: str) -> NoReturn:
    raise ArgumentValueError(
        f"{dim.name} is not {expected}",
        got=f"{value}, from {source}" if source else str(value),
        expected=f"{expected}: {dim}",
        hint="another tw.dim in the spec, or arrays of another size",
    )


def _too_small(dim: Dim, value: int, source: str) -> NoReturn:
    raise ArgumentValueError(
        f"a maximum or minimum of no elements has no value: {dim.name} is {value}",
        got=f"{value}, from {source}",
        expected="1 or more",
    )


def check_kind(parameter: ArrayParameter, given: Any, name: str) -> None:
    """Raise ArgumentError unless ``given`` is of the kind and type that ``parameter`` takes."""
    if parameter.packed:
        _packed(given, name, parameter.format)
    else:
        _array(parameter, given, name)


def describe(value: Any) -> str:
    """Describe an argument in a message, for example ``float64 array of shape (3, 4), strides (32,
    8) bytes``.
    """
    if isinstance(value, np.ndarray):
        masked = "masked " if is_masked(value) else ""
        return f"{masked}{value.dtype} array of shape {value.shape}, strides {value.strides} bytes"
    return described(value)


def _array(parameter: ArrayParameter, array: Any, name: str) -> None:
    want = DTYPES[parameter.type]
    if not isinstance(array, np.ndarray) or is_masked(array):
        number = " or a number" if parameter.kind == "vector" and parameter.shape == (1,) else ""
        raise ArgumentTypeError(
            f"{name} must be a numpy array{number}",
            got=describe(array),
            expected=f"array of {title(parameter.type)}: {OF_ANY}",
            hint=f"{parameter.name}=tw.Packed(...) in the spec"
            if isinstance(array, PackedMatrix)
            else what_to_do(array, name) or f"np.asarray({name}, {_astype(parameter.type)})",
        )
    if not accepts(parameter.type, array.dtype):
        swapped = accepts(parameter.type, array.dtype.newbyteorder())
        raise ArgumentTypeError(
            f"{name} has the wrong {'byte order' if swapped else 'dtype'}",
            got=f"{array.dtype.str if swapped else array.dtype}",
            expected=want.str if swapped else title(parameter.type),
            hint=f"{name}.{_converted(array, parameter.type)}, or another type in the spec",
        )
    if not array.flags.aligned:
        raise ArgumentValueError(
            f"{name} is not aligned to its elements of {want.itemsize} bytes",
            got=f"data at {address(array):#x}, strides {array.strides} bytes",
            hint=f"{name}.copy()",
        )
    if parameter.role != "in" and not array.flags.writeable:
        raise ArgumentValueError(
            f"{name} is read-only and would be written",
            got=describe(array),
            hint="a writable array, which then holds the result",
        )


def _converted(array: Array, type_: str) -> str:
    if is_view_of_tensor(array):
        return f"to(torch.{ELEMENTS[type_].numpy})"
    return f"astype({_astype(type_)})"


def _astype(type_: str) -> str:
    module = "ml_dtypes" if type_ in FOREIGN else "np"
    return f"{module}.{ELEMENTS[type_].numpy}"


def _packed(given: Any, name: str, expected: str) -> None:
    if not isinstance(given, PackedMatrix):
        raise ArgumentTypeError(
            f"{name} must be a PackedMatrix",
            got=describe(given),
            expected=f"a matrix packed as {expected}",
            hint=f"kernel.{_packer(name)}({name})",
        )
    if not given.is_whole:
        raise ArgumentTypeError(
            f"{name} is a PackedMatrix without its data",
            got=describe(given),
            expected=f"an unchanged result of kernel.{_packer(name)} or PackedMatrix.load",
        )
    if expected not in (given.format, family_of(given.format)):
        raise ArgumentValueError(
            f"{name} is packed in another format",
            got=given.format,
            expected=expected,
            hint=f"kernel.{_packer(name)} of this kernel, or of another one with the same target, "
            f"types, k, {'format of B' if name == 'a' else 'n and nb'}",
        )


def _packer(name: str) -> str:
    """Return the method that packs the operand ``name``."""
    return "pack_a" if name == "a" else "pack_b"
