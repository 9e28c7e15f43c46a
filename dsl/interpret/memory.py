"""Memory of the interpreter: the elements of every operand, and a check of every access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import ArgumentTypeError, ArgumentValueError, PlanError
from tilewright.plan.formats.lookup import AnyFormat
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.signature import ArrayParameter, PackedBytes, Signature
from tilewright.spec.sizes import Size
from tilewright.spec.types import ELEMENTS, ITEMSIZE


class Buffer(NamedTuple):
    """A buffer with an operand: 1-d ``values``, and the index ``base`` of the first element.

    Elements around the operand may exist; a program must not touch them.
    """

    values: NDArray[Any]
    base: int = 0


def buffer_of(array: NDArray[Any]) -> Buffer:
    """Return the memory of an array, from its first element to its last, padding included."""
    if array.ndim == 0 or any(s < 0 or s % array.itemsize for s in array.strides):
        raise ArgumentValueError("strides must be positive whole elements", got=array.strides)
    extent = 0
    if array.size:
        steps = (s // array.itemsize for s in array.strides)
        extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, steps, strict=True))
    return Buffer(np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,)))


class Segment:
    """The memory of a matrix, or of a batch of matrices in one buffer, which checks each access.

    ``run[i]`` is the number of consecutive elements of the operand from index ``i`` on. ``written``
    marks the bytes that hold a value; None means all do. A read requires values in all its
    elements, or with ``loose`` in its first one.
    """

    def __init__(
        self, name: str, element: str, buffer: Buffer, starts: Sequence[int], lines: int, line: int,
        leading: int, *, role: str,
    ) -> None:  # fmt: skip
        self.name, self.element, self.leading, self.role = name, element, leading, role
        self.values, self.base, self.loose = buffer.values, buffer.base, False
        belongs = self._belongs(starts, lines, line)
        self.run = _runs(belongs)
        self.size = ITEMSIZE[element]
        self.written = bytearray(len(belongs) * self.size) if role == "out" else None
        self.casts: dict[str, Segment] = {}

    @property
    def place(self) -> int:
        """The memory address of the first element."""
        start: int = self.values.__array_interface__["data"][0]
        return start + self.base * self.values.itemsize

    def read(self, at: int, count: int, type_: str, who: str) -> NDArray[Any]:
        """Return a view of ``count`` elements from index ``at`` on, read as type ``type_``."""
        self.check_read(at, count, who)
        return self._seen(at, count, type_, who)

    def write(self, at: int, values: NDArray[Any], type_: str, who: str) -> None:
        """Set the elements from index ``at`` on to ``values``, which are of ``type_``."""
        self.check_write(at, len(values), who)
        self._seen(at, len(values), type_, who)[:] = values

    def _seen(self, at: int, count: int, type_: str, who: str) -> NDArray[Any]:
        found = self.values[at : at + count]
        if type_ == self.element:
            return found
        if ITEMSIZE[type_] != self.size:
            raise PlanError(
                f"{who} takes elements of {self.name} for {type_}", expected=self.element
            )
        return found.view(DTYPES[type_])

    def cast(self, at: int, type_: str) -> tuple[Segment, int]:
        """Return this buffer as elements of ``type_``, and the index there that replaces ``at``."""
        start, size = at * self.size, ITEMSIZE[type_]
        if start % size or self.values.nbytes % size:
            raise PlanError(
                f"{self.name} is no buffer of {type_}", got=f"byte {start} of {self.values.nbytes}"
            )
        if type_ not in self.casts:
            values = self.values.view(DTYPES[type_])
            self.casts[type_] = flat(self.name, type_, values, len(values), role=self.role)
            self.casts[type_].written, self.casts[type_].loose = self.written, self.loose
        return self.casts[type_], start // size

    def _belongs(self, starts: Sequence[int], lines: int, line: int) -> NDArray[np.bool_]:
        belongs = np.zeros(len(self.values), dtype=np.bool_)
        if not (lines and line and starts):
            return belongs
        last = (lines - 1) * self.leading + line
        if self.base + min(starts) < 0 or self.base + max(starts) + last > len(belongs):
            raise ArgumentValueError(
                f"the buffer of {self.name} is too small",
                got=f"{len(belongs)} elements, the first at {self.base}",
                expected=f"{self.base + max(starts) + last} elements or more",
            )
        for start in starts:
            first = self.base + start
            for at in range(first, first + lines * self.leading, self.leading):
                belongs[at : at + line] = True
        return belongs

    def check_read(self, at: int, count: int, who: str) -> None:
        """Raise PlanError unless ``count`` elements from index ``at`` on may be read."""
        run = self.run
        if not (0 <= at < len(run) and run[at] >= count):
            raise self._outside("reads", at, count, who)
        if self.written is None:
            return
        start, stop = at * self.size, (at + (1 if self.loose else count)) * self.size
        if (first := self.written.find(0, start, stop)) >= 0:
            place = self._place(first // self.size)
            raise PlanError(f"{who} reads {self.name} before it was written", got=place)

    def check_write(self, at: int, count: int, who: str) -> None:
        """Raise PlanError unless ``count`` elements from index ``at`` on may be written."""
        run = self.run
        if self.role == "in" or not (0 <= at < len(run) and run[at] >= count):
            raise self._outside("writes", at, count, who)
        if self.written is not None:
            marks = b"\1" * (count * self.size)
            self.written[at * self.size : (at + count) * self.size] = marks

    def _outside(self, verb: str, at: int, count: int, who: str) -> PlanError:
        if verb == "writes" and self.role == "in":
            return PlanError(f"{who} writes {self.name}, an input", got=self._place(at))
        inside = self.run[at] if 0 <= at < len(self.run) else 0
        return PlanError(
            f"{who} {verb} {count} elements of {self.name}, {count - inside} of them outside",
            got=self._place(at),
            expected=f"at most {inside} elements from there on",
        )

    def _place(self, at: int) -> str:
        line, position = divmod(at - self.base, self.leading)
        return f"{self.name}[{at - self.base}] (line {line}, element {position})"


def _runs(belongs: NDArray[np.bool_]) -> list[int]:
    """Return, for every index, the number of consecutive True values from it on."""
    size = len(belongs)
    ends = np.where(belongs, size, np.arange(size))
    ends = np.minimum.accumulate(ends[::-1])[::-1]
    return [int(run) for run in ends - np.arange(size)]


def fresh_buffer(name: str, element: str, count: int, *, zeros: bool = False) -> Segment:
    """Return a new buffer, filled with 0 if ``zeros``, else with bits that are all 1.

    A vector may be read if its first lane was written. Other lanes may belong to rows or columns
    that do not exist; they reach no result.
    """
    bits = np.full(count * ITEMSIZE[element], 0 if zeros else 0xFF, np.uint8)
    values = bits.view(DTYPES[element])
    segment = flat(name, element, values, count, role="out")
    segment.loose = True
    if zeros:
        segment.written = None  # all elements of the new buffer may be read
    return segment


def flat(name: str, element: str, values: NDArray[Any], count: int, *, role: str) -> Segment:
    """Return a segment that holds the first ``count`` elements of ``values`` as one row."""
    return Segment(name, element, Buffer(values), [0], 1, count, max(count, 1), role=role)


#: An operand as it is passed: flat values with an index, a numpy array, or a sequence of these.
Given = tuple[NDArray[Any], int] | NDArray[Any] | Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The memory of all operands by C name. A sequence of matrices is a list of segments."""

    segments: Mapping[str, Segment | list[Segment]]
    offsets: Mapping[str, Sequence[int]]

    def same(self, one: str, other: str) -> bool:
        """Return True if two operands begin at the same element."""
        first, second = self.segments[one], self.segments[other]
        assert isinstance(first, Segment) and isinstance(second, Segment)
        return first.place == second.place


def lay_out(
    signature: Signature,
    arrays: Sequence[Given],
    sizes: Mapping[str, int],
    formats: Mapping[str, AnyFormat],
) -> Memory:
    """Return the memory of the operands in ``arrays``, in the order of ``signature.arrays``.

    An operand is a ``Buffer`` (or such a tuple), or a numpy array with positive strides. A sequence
    operand is a list of these. ``sizes`` are those of the call by the names of their dims. Offsets
    are int64 arrays. Operands in ``formats`` are packed: flat
    arrays of bytes. Raises ArgumentError if one is too small or of another type.
    """
    given = dict(zip((a.name for a in signature.arrays), arrays, strict=True))
    offsets: dict[str, Sequence[int]] = {}
    for parameter in signature.arrays:
        if parameter.kind == "offsets":
            offsets[parameter.name] = [int(i) for i in np.asarray(given[parameter.name])]
        elif parameter.static_offsets is not None:
            offsets[parameter.offsets] = parameter.static_offsets
    segments: dict[str, Segment | list[Segment]] = {}
    for parameter in signature.arrays:
        name, array = parameter.name, given[parameter.name]
        if parameter.kind == "offsets":
            continue
        view = _View(parameter, sizes, offsets, formats.get(name))
        if parameter.kind == "sequence" or isinstance(array, list):
            held = [view.segment(one, f"{name}{i}") for i, one in enumerate(array)]
            segments[parameter.symbol] = held
        else:
            segments[parameter.symbol] = view.segment(array, name)
    memory = Memory(segments, offsets)
    output = segments[signature.output.name]
    if isinstance(output, Segment) and any(
        isinstance(s, Segment) and s is not output and s.place == output.place
        for s in segments.values()
    ):
        output.written = None  # all of the output may be read, because it is also an input
    return memory


@dataclass(frozen=True, slots=True)
class _View:
    """The layout of an operand in a call: where its elements are in the buffer that is passed."""

    parameter: ArrayParameter
    sizes: Mapping[str, int]
    offsets: Mapping[str, Sequence[int]]
    format: AnyFormat | None

    def _value(self, size: Size) -> int:
        return size if isinstance(size, int) else size.at(self.sizes)

    def segment(self, given: Any, name: str) -> Segment:
        p = self.parameter
        if self.format is not None:
            return self._packed(self.format, _buffer(given, "u8", name), name)
        shape = [self._value(size) for size in p.shape]
        *stack, rows, cols = 1, 1, *shape
        rows *= prod(stack)
        lines, line = (rows, cols) if p.order == "C" else (cols, rows)
        leading = max(line, 1)
        if p.leading is not None:
            leading = self._value(p.leading)
        starts = list(self._starts(lines * leading))
        buffer = _buffer(given, p.type, name)
        return Segment(name, p.type, buffer, starts, lines, line, leading, role=p.role)

    def _packed(self, format_: AnyFormat, buffer: Buffer, name: str) -> Segment:
        """Return the segment for a buffer with one packed matrix, or with all those of a batch."""
        p, size = self.parameter, format_.itemsize
        many = self._value(p.shape[0]) if p.role == "out" else 1
        if p.count is not None and name == p.name and p.batch_stride != 0:
            many = self._value(p.count)
        values = buffer.values[buffer.base :]
        values = values[: len(values) // size * size].view(DTYPES[format_.stored])
        elements = many * self._bytes(format_) // size
        if p.kind == "flat":
            elements = len(values)  # use the whole buffer: offsets may select any matrix in it
        return flat(name, format_.stored, values, elements, role=p.role)

    def _bytes(self, format_: AnyFormat) -> int:
        """Return the bytes of one packed matrix: k x n elements, or those of an output."""
        if not format_.is_open:
            return int(format_.nbytes)
        p, last = self.parameter, self.parameter.shape[-1]
        if isinstance(last, PackedBytes):
            k, n = self._value(last.k), self._value(last.n)
        else:
            sizes = (self._value(size) for size in p.shape)
            n, k = sizes if p.name == "a" else tuple(sizes)[::-1]
        return int(format_.of(k, n).nbytes)

    def _starts(self, tight: int) -> Iterator[int]:
        p = self.parameter
        if p.kind == "flat":
            yield from self.offsets[p.offsets]
        elif p.kind == "strided":
            assert p.count is not None
            stride = tight
            if p.batch_stride is not None:
                stride = self._value(p.batch_stride)
            yield from (i * stride for i in range(self._value(p.count)))
        else:
            yield 0


def _buffer(given: Any, type_: str, name: str) -> Buffer:
    """Return the memory of an operand as ``type_``; its array may have an integer dtype instead."""
    values = np.asarray(given[0] if isinstance(given, tuple) else given)
    wanted = ELEMENTS[type_]
    flat = not isinstance(given, tuple) or values.ndim == 1
    if not flat or values.dtype.name not in (wanted.numpy, wanted.bits):
        raise ArgumentTypeError(
            f"{name} must be a flat buffer of {type_}", got=f"{values.ndim}-d {values.dtype}"
        )
    values = values.view(DTYPES[type_])
    return Buffer(values, *given[1:]) if isinstance(given, tuple) else buffer_of(values)
