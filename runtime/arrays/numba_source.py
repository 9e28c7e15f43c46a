"""Write Python source that checks a kernel's arguments in code compiled by numba.

Each limit is a constant in the source, which has no loops.

A signature goes in, the source of a function comes out. numba compiles it into the caller.
Its variables have the position in the signature in their names: ``x0`` is an array, ``p0`` its
address, ``n0`` its shape, ``t0`` its strides, ``e0`` the address of its end, ``s0`` a number given
at the call, ``d0`` a dim (a size that is known only at the call). For example, the checks of a
4 x 5 matrix begin with ``if n0[0] != 4 or n0[1] != 5``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.errors import SpecError
from tilewright.plan.formats.layout import ALIGNMENT
from tilewright.plan.formats.named import format_named
from tilewright.spec.signature import ArrayParameter, Signature
from tilewright.spec.sizes import MAX_SIZE, Dim, Joined, Size

_INDENT = "    "


def shape_of(kernel: str, p: ArrayParameter) -> tuple[Size | None, ...]:
    """Return the sizes of an array's axes, None for any; SpecError if there are several arrays.

    A stack of matrices has its count first. Packed matrices are rows of bytes. An operand with
    offsets has one axis, or, if it is packed, one row for each matrix.
    """
    several, several_of = p.count is not None and p.batch_stride != 0, p.count
    sizes: tuple[Size | None, ...]
    if p.packed and p.kind != "sequence":
        form = format_named(p.format)
        assert form is not None
        if form.is_open:
            raise SpecError(
                f"{kernel} cannot be called from numba: {p.name} is packed, and of any size",
                got=p.format,
                expected="a packed matrix with fixed k and n: its bytes then tell its size",
                hint="kernel.address by ctypes, with kernel.c_declaration",
            )
        sizes = (form.nbytes,)
        several_of = None if p.kind == "flat" else p.count
    elif p.kind == "flat":
        return (None,)
    else:
        several, sizes = several and p.kind == "strided", p.shape
    if p.kind == "sequence" or len(sizes) > 2:
        raise SpecError(
            f"{kernel} cannot be called from numba: {p.name} is not one array",
            got="packed matrices anywhere" if p.packed else p.kind,
            expected="matrices, stacks of them, packed ones, and vectors",
            hint="kernel.address by ctypes, with kernel.c_declaration",
        )
    if any(isinstance(size, Joined) for size in sizes):
        raise SpecError(
            f"{kernel} cannot be called from numba: a size of {p.name} is no single dim",
            got=p.shape,
            expected="each dim as an axis of its own",
            hint="kernel.address by ctypes, with kernel.c_declaration",
        )
    return (several_of, *sizes) if several else sizes


def source_of(name: str, signature: Signature) -> tuple[str, tuple[str, ...]]:
    """Return the source of the functions ``check`` and ``name``, and a call's error messages.

    ``name`` takes the kernel's arguments, checks them and calls the kernel. ``check`` returns the
    number of an error, or 0, and then the sizes of the C function. It sees numbers alone: numba
    counts no references to them.

    The source uses three more names: ``address`` of an array, ``invoke`` with tuples of addresses,
    sizes and numbers, and ``errors``.
    """
    writer = _Writer(name, signature)
    lines = [*writer.check(), *writer.call()]
    return "\n".join(lines), tuple(writer.errors)


class _Writer:
    """Writes the source for one kernel, and tracks which run-time sizes have a value so far."""

    def __init__(self, name: str, signature: Signature) -> None:
        self.name, self.signature = name, signature
        self.shapes = [shape_of(name, p) for p in signature.arrays]
        #: Run-time sizes (dims), in the order in which the C function first uses them.
        self.dims = list(dict.fromkeys(size.dim for size in signature.sizes))
        #: Run-time sizes (dims) that always have a value here, because an array's axis gives it.
        self.certain: set[Dim] = set()
        #: Error messages. ``check`` returns indices into this list. Message 0 is for ``invoke``.
        self.errors = [f"{name}: no memory for the scratch of the call"]

    def check(self) -> Iterator[str]:
        """Write the function that compares addresses, shapes and strides with the signature."""
        arrays = range(len(self.shapes))
        given = [f"{what}{i}" for i in arrays for what in ("p", "n", "t")]
        yield f"def check({', '.join(given)}):"
        body = [line for i in arrays for line in self._sizes(i)]
        free = [i for i, dim in enumerate(self.dims) if dim not in self.certain]
        body = [*(f"d{i} = -1" for i in free), *body]
        for i in arrays:
            body += self._layout(i)
        body += [*self._defaults(), *self._limits(), *self._overlap()]
        sizes = [self._size(size.dim) for size in self.signature.sizes]
        body.append(f"return {_tuple('0', *sizes)}")
        yield from (_INDENT + line for line in body)

    def call(self) -> Iterator[str]:
        """Write the function that checks the arguments and calls the kernel."""
        arrays = [f"x{i}" for i in range(len(self.shapes))]
        numbers = [f"s{i}" for i in range(len(self.signature.scalars))]
        seen = ", ".join(f"address({x}), {x}.shape, {x}.strides" for x in arrays)
        pointers = _tuple(*(f"address({x})" for x in arrays))
        floats = _tuple(*(f"float({s})" for s in numbers))
        yield f"def {self.name}({', '.join([*arrays, *numbers])}):"
        yield f"{_INDENT}checked = check({seen})"
        yield f"{_INDENT}if checked[0] > 0:"
        yield f"{_INDENT * 2}raise ValueError(errors[checked[0]])"
        for i, p in enumerate(self.signature.arrays):
            if p.kind == "flat":
                yield from (_INDENT + line for line in self._offsets(i, p))
        yield f"{_INDENT}if invoke({pointers}, checked[1:], {floats}) > 0:"
        yield f"{_INDENT * 2}raise MemoryError(errors[0])"

    # --- one array -------------------------------------------------------------------------

    def _sizes(self, i: int) -> Iterator[str]:
        """Write the comparison of an array's shape with the signature.

        The first axis that has a run-time size gives the size its value.
        """
        wrong = []
        for axis, size in enumerate(self.shapes[i]):
            if size is None:
                continue
            if isinstance(size, Dim) and size not in self.certain:
                self.certain.add(size)
                yield f"{self._size(size)} = n{i}[{axis}]"
            else:
                wrong.append(f"n{i}[{axis}] != {self._size(size)}")
        if wrong:
            expected = " x ".join("any" if s is None else _text(s) for s in self.shapes[i])
            yield from self._refuse(wrong, i, f"has the wrong shape, expected {expected}")

    def _layout(self, i: int) -> Iterator[str]:
        """Write code that computes an array's end and, unless it is empty, compares its strides."""
        p, shape = self.signature.arrays[i], self.shapes[i]
        yield f"e{i} = 0"
        yield "if " + " and ".join(f"n{i}[{axis}] > 0" for axis in range(len(shape))) + ":"
        body = [f"e{i} = p{i} + {1 if p.packed else p.itemsize}"]
        body[0] += "".join(f" + (n{i}[{a}] - 1) * t{i}[{a}]" for a in range(len(shape)))
        body += self._strides(i)
        yield from (_INDENT + line for line in body)

    def _strides(self, i: int) -> Iterator[str]:
        """Write the comparison of an array's strides, which may also give run-time sizes."""
        p, axes = self.signature.arrays[i], len(self.shapes[i])
        leading: Size | None
        if p.packed:
            text = f"does not begin at a multiple of {ALIGNMENT} bytes"
            yield from self._refuse([f"p{i} % {ALIGNMENT} != 0"], i, text)
            inner, outer, itemsize, leading = axes - 1, axes - 2, 1, self.shapes[i][-1]
        else:
            rows = axes == 1 or p.order == "C"
            inner, outer = (axes - 1, axes - 2) if rows else (axes - 2, axes - 1)
            itemsize = p.itemsize
            leading = self.shapes[i][inner] if p.leading is None else p.leading
        wrong = f"n{i}[{inner}] > 1 and t{i}[{inner}] != {itemsize}"
        which = {"C": "has rows that are", "F": "has columns that are"}[p.order]
        which = "is" if axes == 1 else which
        yield from self._refuse([wrong], i, f"{which} not contiguous")
        if axes > 1:
            assert leading is not None
            yield from self._step(i, outer, 1, inner, itemsize, leading, "leading dimension")
        if axes == 3:
            assert leading is not None
            yield from self._matrices(i, outer, inner, leading)

    def _matrices(self, i: int, outer: int, inner: int, leading: Size) -> Iterator[str]:
        """Write the comparison of the distance between a stack's matrices with the signature."""
        p = self.signature.arrays[i]
        if p.batch_stride is None:
            # The next matrix begins after this number of rows, or of columns in order F.
            lines = f"n{i}[{outer}]"
            yield from self._step(i, 0, lines, inner, p.itemsize, leading, "batch stride")
        else:
            yield from self._step(i, 0, 1, None, p.itemsize, p.batch_stride, "batch stride")

    def _step(
        self, i: int, axis: int, lines: int | str, least: int | None, itemsize: int, size: Size,
        what: str,
    ) -> Iterator[str]:  # fmt: skip
        """Write the comparison of the stride of ``axis`` with ``size``.

        The stride is counted in elements, and divided by ``lines``. It must be a whole number. It
        must be at least the length of the axis ``least``, or at least 0 if that is None.
        """
        unit = f"{itemsize}" if lines == 1 else f"({itemsize} * {lines})"
        yield f"if n{i}[{axis}] > 1:"
        body = [f"step = t{i}[{axis}] // {unit}"]
        wrong = [f"step * {unit} != t{i}[{axis}]"]
        wrong += [f"step < {0 if least is None else f'n{i}[{least}]'}"]
        if isinstance(size, Dim) and size not in self.certain:
            body += [f"if {self._size(size)} < 0:", f"{_INDENT}{self._size(size)} = step"]
        wrong += [f"step != {self._size(size)}"]
        body += self._refuse(wrong, i, f"has the wrong {what}, expected {_text(size)}")
        yield from (_INDENT + line for line in body)

    def _offsets(self, i: int, p: ArrayParameter) -> Iterator[str]:
        """Compare the offsets of an operand, after all other checks, with its length."""
        if p.packed:
            most = f"x{i}.shape[0] - 1"
        else:
            lines, line = (self._checked(size) for size in _lines(p))
            leading = line if p.leading is None else self._checked(p.leading)
            extent = f"(({lines} - 1) * {leading} + {line} if {lines} > 0 and {line} > 0 else 0)"
            most = f"x{i}.shape[0] - {extent}"
        what = "counts to no packed matrix" if p.packed else "lies outside the array"
        refuse = f"raise ValueError(errors[{len(self.errors)}])"
        self.errors.append(f"{self.name}: an offset of {p.name} {what}")
        yield f"most = {most}"
        if p.static_offsets is not None:
            wrong = f"most < {max(p.static_offsets)}" if p.static_offsets else "False"
            yield from (f"if {wrong}:", _INDENT + refuse)
            return
        given = [array.name for array in self.signature.arrays].index(p.offsets)
        yield f"for offset in x{given}:"
        yield f"{_INDENT}if offset < 0 or offset > most:"
        yield f"{_INDENT * 2}{refuse}"

    # --- all of them -----------------------------------------------------------------------

    def _defaults(self) -> Iterator[str]:
        """Write code that sets defaults: the least leading dimension, and a batch stride of 0."""
        for i, p in enumerate(self.signature.arrays):
            if isinstance(p.leading, Dim) and p.leading not in self.certain:
                inner = len(self.shapes[i]) - (1 if p.order == "C" else 2)
                multiple = p.leading.multiple_of
                yield f"if {self._size(p.leading)} < 0:"
                least = f"max(n{i}[{inner}], 1)"
                tight = least if multiple == 1 else f"-(-{least} // {multiple}) * {multiple}"
                yield f"{_INDENT}{self._size(p.leading)} = {tight}"
            if isinstance(p.batch_stride, Dim) and p.batch_stride not in self.certain:
                yield f"{self._size(p.batch_stride)} = max({self._size(p.batch_stride)}, 0)"

    def _limits(self) -> Iterator[str]:
        for i, dim in enumerate(self.dims):
            wrong = [f"d{i} > {MAX_SIZE if dim.max is None else dim.max}", f"d{i} < 0"]
            wrong += [f"d{i} % {dim.multiple_of} != 0"] if dim.multiple_of > 1 else []
            text = f"{dim.name} is beyond the limits of its dim: at most {dim.max}"
            text = text if dim.max is not None else f"{dim.name} is beyond the limits of its dim"
            text += f", a multiple of {dim.multiple_of}" if dim.multiple_of > 1 else ""
            yield from self._refuse(wrong, None, text)

    def _overlap(self) -> Iterator[str]:
        """Write the check that no output shares memory with another array."""
        arrays = self.signature.arrays
        for i, p in enumerate(arrays):
            for j, other in enumerate(arrays):
                if p.role == "in" or i == j or (other.role != "in" and j < i):
                    continue
                meets = f"p{i} < e{j} and p{j} < e{i}"
                yield from self._refuse(
                    [meets], i, f"is written and shares memory with {other.name}"
                )

    # --- words -----------------------------------------------------------------------------

    def _checked(self, size: Size) -> str:
        """Return a size as an item of what ``check`` returned."""
        if not isinstance(size, Dim):
            return str(size)
        place = [given.dim for given in self.signature.sizes].index(size)
        return f"checked[{1 + place}]"

    def _size(self, size: Size) -> str:
        return f"d{self.dims.index(size)}" if isinstance(size, Dim) else str(size)

    def _refuse(self, wrong: Sequence[str], i: int | None, text: str) -> Iterator[str]:
        """Write code that returns the number of a new error if a condition in ``wrong`` holds."""
        which = "" if i is None else f"{self.signature.arrays[i].name} "
        zeros = ["0"] * len(self.signature.sizes)
        yield f"if {' or '.join(wrong)}:"
        yield f"{_INDENT}return {_tuple(str(len(self.errors)), *zeros)}"
        self.errors.append(f"{self.name}: {which}{text}")


def _lines(p: ArrayParameter) -> tuple[Size, Size]:
    """Return the number of rows (in order F, columns) of a matrix, and the length of each."""
    rows, columns = p.shape
    return (rows, columns) if p.order == "C" else (columns, rows)


def _text(size: Size) -> str:
    return size.name if isinstance(size, Dim) else str(size)


def _tuple(*items: str) -> str:
    return f"({', '.join(items)},)" if items else "()"
