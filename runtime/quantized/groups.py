"""Convert groups of rows with a common scale, as in GPTQ and AWQ, to blocks.

In go arrays of elements, scales and zero points. Out comes a QuantizedMatrix, in which a group is
one or several blocks. The last group may be shorter than the others, so the number of groups does
not always determine their length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.runtime.arrays.memory import Array
from tilewright.runtime.arrays.views import is_masked, what_to_do
from tilewright.spec.quantized import STORED, WHOLE_UNIT, Quantized, StoredName, longest_block
from tilewright.spec.sizes import whole_number

from .matrix import QuantizedMatrix

#: Types of scales by the names of their dtypes.
_SCALES: Any = {"float16": "f16", "float32": "f32", "bfloat16": "bf16"}
#: Group lengths, in rows, that are accepted if neither ``group_size`` nor ``g_idx`` is given.
_USUAL = (32, 64, 128)
#: Group lengths, in rows, that an error message proposes.
_PROPOSED = (16, 32, 64, 128, 256, 512, 1024)


class Names(NamedTuple):
    """Names of a model's arrays, for error messages.

    ``transposed`` is True if the arrays have a column for each group. ``hint`` names a likely cause
    of a wrong shape.
    """

    scales: str
    zeros: str
    g_idx: str
    transposed: bool = False
    hint: str | None = None


@dataclass(frozen=True)
class Groups:
    """Scales and zero points, groups x n, and the arguments that tell how long groups are.

    ``zeros`` is None if all zero points are equal. ``size`` is the caller's ``group_size``.
    ``g_idx`` has the group of each row.
    """

    names: Names
    scales: Any
    zeros: Array | None
    size: int | None = None
    g_idx: Any = None


def grouped(type_: StoredName, q: Array, groups: Groups, zero: int | None) -> QuantizedMatrix:
    """Return a QuantizedMatrix of the elements ``q``, k x n.

    Each of its blocks is a group, or an equal part of a group.
    """
    k = len(q)
    _check_shapes(q, groups)
    zero = _zero(zero, type_)
    group = _length(k, groups)
    parts = 1
    longest = longest_block(STORED[type_].bits, own=True)
    while group // parts > longest and group % (16 * parts) == 0:
        parts *= 2
    block = None if group == k and parts == 1 and k % WHOLE_UNIT else group // parts
    own = type_ if zero is None else zero
    form = Quantized(type_, scale=_SCALES[groups.scales.dtype.name], zero=own, block=block)
    count, _ = form.blocks(*q.shape)

    def of_blocks(each: Array) -> Array:
        return np.repeat(each, parts, axis=0)[:count]

    zeros = groups.zeros
    if zero is None and zeros is not None:
        return QuantizedMatrix(form, q, of_blocks(groups.scales), of_blocks(zeros))
    if zeros is not None and (zeros != zero).any():
        at = tuple(map(int, np.argwhere(zeros != zero)[0]))
        raise ArgumentValueError(
            f"{groups.names.zeros} has another zero point than zero= says of all",
            got=f"{zeros[at]} of group {at[0]}, column {at[1]}",
            expected=zero,
            hint="without zero=: each block then has its own",
        )
    return QuantizedMatrix(form, q, of_blocks(groups.scales))


def _zero(given: object, type_: StoredName) -> int | None:
    """Return the zero point of all elements, or None.

    Raises ArgumentError if no element can have this value.
    """
    zero, most = whole_number(given), STORED[type_].high
    if given is None or (zero is not None and 0 <= zero <= most):
        return zero
    raise (ArgumentTypeError if zero is None else ArgumentValueError)(
        "zero must be one of the stored numbers",
        got=f"{given!r:.60}",
        expected=f"0 to {most}, or None: each group has its own",
    )


def _check_shapes(q: Array, groups: Groups) -> None:
    """Raise ArgumentError unless there are n scales and n zero points for each group."""
    names, scales, zeros = groups.names, groups.scales, groups.zeros
    plain = isinstance(scales, np.ndarray) and not is_masked(scales)
    if not plain or scales.dtype.name not in _SCALES:
        raise ArgumentTypeError(
            f"{names.scales} must be floating point",
            got=f"{scales.dtype} array" if plain else type(scales).__name__,
            expected=f"an array of one of {', '.join(_SCALES)}",
            hint=what_to_do(scales, names.scales),
        )
    if scales.ndim != 2 or scales.shape[1] != q.shape[1] or not scales.size:
        _refuse_shape(names.scales, scales, "groups", q, names)
    if zeros is not None and zeros.shape != scales.shape:
        _refuse_shape(names.zeros, zeros, len(scales), q, names)


def _refuse_shape(name: str, given: Array, count: object, q: Array, names: Names) -> None:
    """Raise ArgumentError: an array lacks the shape for ``count`` groups of ``q``."""
    k, n = q.shape
    raise ArgumentValueError(
        f"{name} has the wrong shape",
        got=given.shape[::-1] if names.transposed else given.shape,
        expected=(f"({n}, {count})" if names.transposed else f"({count}, {n})")
        + f": one for each group of rows and each column of B, {k} x {n}",
        hint=names.hint,
    )


# --- how long groups are -----------------------------------------------------------------------


def _length(k: int, groups: Groups) -> int:
    """Return the number of rows of a group.

    Raises ArgumentError if it is unknown, or groups are not in order.
    """
    count = len(groups.scales)
    if groups.g_idx is not None:
        return _in_order(k, count, groups)
    if groups.size is not None:
        return _of_size(k, count, groups.size)
    if count == 1 or (k % count == 0 and k // count in _USUAL):
        return k // count
    proposed = [size for size in _PROPOSED if -(-k // size) == count]
    usual = ", ".join(map(str, _USUAL))
    raise ArgumentValueError(
        "the arrays do not say how long a group is",
        got=f"{count} groups for K = {k}",
        expected=f"equal groups of {usual} or K rows, or group_size=",
        hint=f"group_size={proposed[0]}, if the model's configuration says so"
        if proposed
        else "group_size= from the model's configuration",
    )


def _of_size(k: int, count: int, given: object) -> int:
    """Return the number of rows of a group for this ``group_size``.

    Raises ArgumentError if it does not fit.
    """
    size = whole_number(given)
    if size is None or (size < 1 and size != -1):
        kind = ArgumentTypeError if size is None else ArgumentValueError
        raise kind(
            "group_size must be the rows of a group",
            got=f"{given!r:.60}",
            expected="a positive int, or -1 for all of K",
        )
    group = k if size == -1 else min(size, k)
    if count != -(-k // group):
        raise ArgumentValueError(
            "the arrays have another number of groups than group_size says",
            got=f"{count} groups for K = {k}, group_size={size}",
            expected=f"{-(-k // group)} groups",
        )
    return group


def _in_order(k: int, count: int, groups: Groups) -> int:
    """Return the number of rows in each group, if the rows are sorted by group.

    Raises ArgumentError if the rows are not sorted by group, or groups differ in length.
    """
    g_idx, name = groups.g_idx, groups.names.g_idx
    if not isinstance(g_idx, np.ndarray) or g_idx.shape != (k,) or g_idx.dtype.kind not in "iu":
        raise ArgumentTypeError(
            f"{name} must be the group of each row",
            got=f"{g_idx.dtype} array of shape {g_idx.shape}"
            if isinstance(g_idx, np.ndarray)
            else type(g_idx).__name__,
            expected=f"{k} integers",
        )
    if not ((g_idx >= 0) & (g_idx < count)).all():
        row = int(np.flatnonzero((g_idx < 0) | (g_idx >= count))[0])
        raise ArgumentValueError(
            f"{name} has a group that the scales lack",
            got=f"group {g_idx[row]} for row {row}",
            expected=f"0 to {count - 1}",
        )
    rows = np.bincount(g_idx.astype(np.int64), minlength=count)
    group = int(rows.max()) if groups.size is None else _of_size(k, count, groups.size)
    right = np.arange(k) // group
    if (np.sort(g_idx) != right).any():
        raise ArgumentValueError(
            f"{name} has groups of several lengths",
            got=f"groups of {', '.join(map(str, sorted(set(rows.tolist()))))} rows",
            expected=f"groups of {group} rows; the last may be shorter",
        )
    wrong = np.flatnonzero(g_idx != right)
    if wrong.size:
        raise ArgumentValueError(
            "rows are not in the order of their groups: the model was made with desc_act",
            got=f"group {g_idx[wrong[0]]} for row {wrong[0]}",
            expected=f"group {right[wrong[0]]}",
            hint=f'order = np.argsort({name}, kind="stable"); b without {name} and with '
            f"group_size={group}, then tw.QuantizedMatrix(b.format, b.q[order], b.scales, b.zeros),"
            " and A[:, order]",
        )
    return group
