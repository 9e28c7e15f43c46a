"""What the interpreter may touch: the elements of every operand, and not one beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .dtypes import DTYPES
from .errors import ArgumentTypeError, ArgumentValueError, PlanError
from .signature import ArrayParameter, Signature
from .sizes import Size


class Buffer(NamedTuple):
    """Flat ``values``, and the index ``base`` of an operand's first element in them.

    The operand may lie anywhere inside: what surrounds it is refused to the program.
    """

    values: NDArray[Any]
    base: int = 0


def buffer_of(array: NDArray[Any]) -> Buffer:
    """The memory of an array, from its first element to its last, padding included."""
    if array.ndim == 0 or any(s < 0 or s % array.itemsize for s in array.strides):
        raise ArgumentValueError("strides must be positive whole elements", got=array.strides)
    extent = 0
    if array.size:
        steps = (s // array.itemsize for s in array.strides)
        extent = 1 + sum((n - 1) * s for n, s in zip(array.shape, steps, strict=True))
    return Buffer(np.lib.stride_tricks.as_strided(array, (extent,), (array.itemsize,)))


class Segment:
    """One matrix, or the matrices of a batch in one buffer.

    ``run[i]`` is how many elements of the operand follow each other from index ``i`` on.
    """

    def __init__(
        self, name: str, buffer: Buffer, starts: Sequence[int], lines: int, line: int, leading: int,
        *, role: str,
    ) -> None:  # fmt: skip
        self.name, self.base, self.leading, self.role = name, buffer.base, leading, role
        self.values = buffer.values
        belongs = self._belongs(starts, lines, line)
        self.run = _runs(belongs)
        self.written = bytearray(len(belongs)) if role == "out" else None

    @property
    def place(self) -> int:
        """The address of the first element."""
        start: int = self.values.__array_interface__["data"][0]
        return start + self.base * self.values.itemsize

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
        """PlanError unless ``count`` elements from index ``at`` on are the operand's to read."""
        run = self.run
        if not (0 <= at < len(run) and run[at] >= count):
            raise self._outside("reads", at, count, who)
        if self.written is not None and not all(self.written[at : at + count]):
            raise PlanError(
                f"{who} reads {self.name} before it was written, and beta is 0",
                got=self._place(at),
            )

    def check_write(self, at: int, count: int, who: str) -> None:
        """PlanError unless ``count`` elements from index ``at`` on are the operand's to write."""
        run = self.run
        if self.role == "in" or not (0 <= at < len(run) and run[at] >= count):
            raise self._outside("writes", at, count, who)
        if self.written is not None:
            self.written[at : at + count] = b"\1" * count

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
    """For every index, how many True follow each other from it on."""
    size = len(belongs)
    ends = np.where(belongs, size, np.arange(size))
    ends = np.minimum.accumulate(ends[::-1])[::-1]
    return [int(run) for run in ends - np.arange(size)]


#: An operand as it is passed: with a tuple's index, a numpy array, or a sequence of either.
Given = tuple[NDArray[Any], int] | NDArray[Any] | Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Every operand by name; a sequence of matrices is a list of segments."""

    segments: Mapping[str, Segment | list[Segment]]
    offsets: Mapping[str, Sequence[int]]

    def same(self, one: str, other: str) -> bool:
        """Whether two operands begin at one element."""
        first, second = self.segments[one], self.segments[other]
        assert isinstance(first, Segment) and isinstance(second, Segment)
        return first.place == second.place


def lay_out(signature: Signature, arrays: Sequence[Given], sizes: Mapping[str, int]) -> Memory:
    """The operands in ``arrays``, in the order of ``signature.arrays``.

    An operand is a ``Buffer``, or a numpy array whose memory is taken as it is; a sequence operand
    a list of them; offsets are int64 arrays. ArgumentError if one is too small or of another type.
    """
    given = dict(zip((a.name for a in signature.arrays), arrays, strict=True))
    offsets: dict[str, Sequence[int]] = {}
    for parameter in signature.arrays:
        if parameter.kind == "offsets":
            offsets[parameter.name] = [int(i) for i in np.asarray(given[parameter.name])]
        elif parameter.static_offsets is not None:
            offsets[f"{parameter.name}_offsets"] = parameter.static_offsets
    segments: dict[str, Segment | list[Segment]] = {}
    for parameter in signature.arrays:
        if parameter.kind == "offsets":
            continue
        view = _View(parameter, sizes, offsets)
        array = given[parameter.name]
        if parameter.kind == "sequence":
            segments[parameter.name] = [
                view.segment(element, f"{parameter.name}{i}") for i, element in enumerate(array)
            ]
        else:
            segments[parameter.name] = view.segment(array, parameter.name)
    memory = Memory(segments, offsets)
    output = segments[signature.output.name]
    if isinstance(output, Segment) and any(
        isinstance(s, Segment) and s is not output and s.place == output.place
        for s in segments.values()
    ):
        output.written = None  # in place: what is read is the input
    return memory


@dataclass(frozen=True, slots=True)
class _View:
    """An operand's geometry for given run-time sizes."""

    parameter: ArrayParameter
    sizes: Mapping[str, int]
    offsets: Mapping[str, Sequence[int]]

    def _value(self, slot: str, size: Size) -> int:
        return size if isinstance(size, int) else self.sizes[slot]

    def segment(self, given: Any, name: str) -> Segment:
        buffer = Buffer(*given) if isinstance(given, tuple) else buffer_of(np.asarray(given))
        p = self.parameter
        if buffer.values.dtype != DTYPES[p.type] or buffer.values.ndim != 1:
            raise ArgumentTypeError(
                f"{name} must be a flat buffer of {p.type}",
                got=f"{buffer.values.ndim}-d {buffer.values.dtype}",
            )
        rows, cols = (self._value(s, size) for s, size in zip(p.slots, p.shape, strict=True))
        lines, line = (rows, cols) if p.order == "C" else (cols, rows)
        leading = max(line, 1)
        if p.leading is not None:
            leading = self._value(p.leading_slot, p.leading)
        starts = list(self._starts(lines * leading))
        return Segment(name, buffer, starts, lines, line, leading, role=p.role)

    def _starts(self, tight: int) -> Iterator[int]:
        p = self.parameter
        if p.kind == "flat":
            yield from self.offsets[f"{p.name}_offsets"]
        elif p.kind == "strided":
            assert p.count is not None
            stride = tight
            if p.batch_stride is not None:
                stride = self._value(f"stride_{p.name}", p.batch_stride)
            yield from (i * stride for i in range(self._value("count", p.count)))
        else:
            yield 0
