"""A kernel as a function that numba's compiled code calls, in parallel loops too.

Types are checked when numba compiles the caller, sizes, strides and overlap at each call. The
kernel is called by the address of what takes all its arguments in arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import SpecError
from tilewright.plan.formats.lookup import format_named
from tilewright.plan.formats.packed_b import ALIGNMENT
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import MAX_SIZE, Dim, Size

from .numba_table import AXES, DIM, TIGHT

#: What packed matrices are in numba's code: their bytes.
_BYTES = np.dtype(np.uint8)
Table = np.ndarray[Any, np.dtype[np.int64]]


class _Tables(NamedTuple):
    """A signature as numbers: arrays row by row, the limits of dims, the dim of each slot."""

    arrays: Table
    axes: tuple[int, ...]
    dims: Table
    slots: Table


def function_of(
    call: Callable[..., Any], name: str, signature: Signature, functions: tuple[int, int]
) -> Callable[..., Any]:
    """The function: of the arrays in the signature's order, then the numbers; it returns nothing.

    Called from Python it is ``call``. ``functions`` are the addresses of the kernel's invoke and
    scratch_bytes. SpecError where an operand is no array.
    """
    from numba.core.errors import TypingError
    from numba.extending import overload

    tables = _tables(name, signature)
    invoke = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_void_p)(functions[0])
    scratch_bytes = CFUNCTYPE(c_int64, c_void_p)(functions[1])

    def in_python(*arguments: Any) -> None:
        call(*arguments)

    implementation = _implementation(tables, invoke, scratch_bytes, len(signature.scalars))

    def typed(*arguments: Any) -> Any:
        wrong = _wrong_types(signature, tables, arguments)
        if wrong is not None:
            raise TypingError(f"{name}: {wrong}")
        return implementation

    overload(in_python, strict=False)(typed)

    return in_python


def _wrong_types(signature: Signature, tables: _Tables, given: tuple[Any, ...]) -> str | None:
    """What is wrong with the types of a call, as numba knows them; None if nothing is."""
    from numba.core import types

    names = [p.name for p in signature.arrays]
    names += [p.name for p in signature.scalars]
    if len(given) != len(names):
        return f"got {len(given)} arguments, expected {', '.join(names)}"
    for p, axes, got in zip(signature.arrays, tables.axes, given, strict=False):
        if not isinstance(got, types.Array) or got.ndim != axes:
            return f"{p.name} must be a {axes}-d array, got {got}"
        wanted = _BYTES if p.packed else DTYPES[p.type]
        if str(got.dtype) != wanted.name or not got.aligned:
            what = ", the data of a PackedMatrix" if p.packed else ""
            return f"{p.name} must be of {wanted}{what}, got {got}"
        if p.role != "in" and not got.mutable:
            return f"{p.name} is read-only and would be written"
    for name, got in zip(names[len(tables.axes) :], given[len(tables.axes) :], strict=True):
        if not isinstance(got, types.Number):
            return f"{name} must be a number, got {got}"
    return None


# --- a signature as numbers --------------------------------------------------------------------


def _tables(name: str, signature: Signature) -> _Tables:
    dims: list[Dim] = []
    for size in signature.sizes:
        if size.dim not in dims:
            dims.append(size.dim)

    def number(size: Size) -> int:
        return DIM + dims.index(size) if isinstance(size, Dim) else size

    rows = [_row(name, p, number) for p in signature.arrays]
    limits = [(d.multiple_of, MAX_SIZE if d.max is None else d.max) for d in dims]
    slots = [dims.index(size.dim) for size in signature.sizes]
    return _Tables(
        np.array([row for row, _ in rows], np.int64),
        tuple(axes for _, axes in rows),
        np.array(limits or [(1, 0)], np.int64),
        np.array(slots, np.int64),
    )


def _row(name: str, p: ArrayParameter, number: Callable[[Size], int]) -> tuple[list[int], int]:
    """The row of an array, and how many axes it has."""
    if p.kind == "packed":
        return _packed_row(p, number)
    sizes: list[Size] = list(p.shape)
    stacked = p.kind == "strided" and p.batch_stride != 0
    if p.kind not in ("matrix", "strided", "vector") or len(sizes) > 2:
        raise SpecError(
            f"{name} cannot be called from numba: {p.name} is not one array",
            got="packed matrices anywhere" if p.packed else p.kind,
            expected="matrices, stacks of them, packed ones, and vectors",
            hint="kernel.address by ctypes, with kernel.c_declaration",
        )
    line = 0 if p.kind != "vector" and p.order == "F" else 1
    if stacked:
        assert p.count is not None
        sizes.insert(0, p.count)
    row = [0] * (AXES - len(sizes)) + [number(size) for size in sizes]
    leading = p.shape[-1 if line else 0] if p.leading is None else p.leading
    step = TIGHT if p.batch_stride is None else number(p.batch_stride)
    return [*row, number(leading), step, p.itemsize, line, int(p.role != "in"), 1], len(sizes)


def _packed_row(p: ArrayParameter, number: Callable[[Size], int]) -> tuple[list[int], int]:
    """The row of packed bytes: of one matrix, or a line for each of a batch."""
    form = format_named(p.format)
    assert form is not None
    several = p.count is not None and p.batch_stride != 0
    sizes = [p.count, form.nbytes] if several and p.count is not None else [form.nbytes]
    row = [0] * (AXES - len(sizes)) + [number(size) for size in sizes]
    return [*row, form.nbytes, TIGHT, 1, 1, 0, ALIGNMENT], len(sizes)


# --- what numba compiles -----------------------------------------------------------------------


def _implementation(tables: _Tables, invoke: Any, scratch_bytes: Any, scalars: int) -> Any:
    """What stands in place of a call in compiled code."""
    from numba import literal_unroll

    from .numba_checks import apart, check, ends, fill

    wanted, limits, slots = tables.arrays, tables.dims, tables.slots
    count, dims, size = len(tables.axes), len(limits), max(1, len(slots))
    last = max(1, scalars)

    def implementation(*arguments: Any) -> None:
        known = np.full(dims, -1, np.int64)
        pointers = np.empty(count, np.int64)
        bounds = np.zeros((count, 2), np.int64)
        numbers = np.zeros(last, np.float64)
        at = 0
        for given in literal_unroll(arguments):
            if at < count:
                check(given, wanted[at], known)
                pointers[at] = ends(given, bounds[at])
            else:
                numbers[at - count] = ends(given, numbers[:0])
            at += 1  # noqa: SIM113 (numba unrolls this loop, and no other)
        values = np.zeros(size, np.int64)
        fill(wanted, limits, known, slots, values)
        apart(wanted, bounds)
        nbytes = scratch_bytes(values.ctypes)
        scratch = np.empty(max(nbytes, 0) + 64, np.uint8)
        place = (scratch.ctypes.data + 63) // 64 * 64
        invoke(pointers.ctypes, values.ctypes, numbers.ctypes, place)

    return implementation
