"""Specs of kernels that move a matrix: copies, packing of B, and packing of a low-bit B."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar, TypeAlias

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .arguments import check_quantized
from .operands import Matrix, Order, Packed, Strided, batch_words, check_order
from .quantized import STORED, Quantize, Quantized
from .sizes import Dim, Size, Spec, call_text, check_dims, check_extent, check_size, sizes_word
from .sums import check_sums, default_c
from .types import INPUTS, DTypeLike, NibbleName, TypeName, accumulator, type_name, unconverted

#: A layout: rows or columns contiguous, packed, or the text of a packed format.
Layout: TypeAlias = Matrix | Packed | str
#: A format's text begins with the types of its elements, and has the sizes of its matrix.
_FORMAT = re.compile(r"(\w+) as (\w+), (\d{1,19})x(\d{1,19}) ")


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False)
class Pack(Spec):
    """A kernel that packs B (k x n) into the format of ``tw.Packed(type, nb)``.

    Parameters
    ----------
    k, n : int or Dim
        Sizes of B. With a dim, one kernel packs matrices of all sizes, for kernels whose k or n is
        a dim.
    type : str or numpy type
        Element type of the packed B.
    a : str or numpy type, optional
        Type of the A that will be multiplied, by default B's. It decides the instruction, and so
        the format.
    nb : int, optional
        Columns of a block, as in ``tw.Packed``.
    source : str or numpy type, optional
        Type of the given B: B's own, or f32. f32 is rounded half to even, and saturates if B's type
        holds integers.
    order : {"C", "F"}
        Order of the given B.
    ldb : int or Dim, optional
        Leading dimension of the given B in elements; by default tight.
    batch : Strided, optional
        Several B, which are packed side by side.
    sums : {"f16"}, optional
        For kernels that sum in f16, which changes the format.
    rows : bool
        If True, the matrix is the transpose of an A (n x k), which is packed for ``tw.Packed(type,
        mb=nb)``; ``a`` is the type of the B that it will be multiplied with. ``kernel.pack_a`` uses
        this.

    Raises
    ------
    SpecError
        Types or sizes do not fit each other.

    Examples
    --------
    >>> layer = tw.Gemm(8, 4, 4, b=tw.Packed("bf16"), a="bf16")
    >>> pack = tw.compile(tw.Pack(4, 4, "bf16", source="f32"))
    >>> packed = pack(np.eye(4, dtype=np.float32))
    >>> packed.shape
    (4, 4)
    >>> bool((tw.compile(layer)(np.ones((8, 4), ml_dtypes.bfloat16), packed) == 1).all())
    True
    """

    routine: ClassVar[str] = "tilewright.routines.pack"

    k: Size
    n: Size
    type: TypeName
    a: TypeName
    nb: int | None
    source: TypeName
    order: Order
    ldb: Size | None
    batch: Strided | None
    sums: str
    rows: bool

    def __init__(
        self,
        k: Size,
        n: Size,
        type: DTypeLike = "f32",
        *,
        a: DTypeLike | None = None,
        nb: int | None = None,
        source: DTypeLike | None = None,
        order: Order = "C",
        ldb: Size | None = None,
        batch: Strided | None = None,
        sums: DTypeLike | None = None,
        rows: bool = False,
    ) -> None:
        if not isinstance(rows, bool):
            raise SpecError("rows must be True or False", got=rows)
        packed = Packed(type, nb)
        of_a = packed.type if a is None else type_name(a)
        given: dict[str, object] = {
            "sums": _sums(sums, of_a, packed.type),
            "k": check_size(k, "k"),
            "n": check_size(n, "n"),
            "type": packed.type,
            "a": of_a,
            "nb": packed.nb,
            "source": packed.type if source is None else type_name(source),
            "order": order,
            "ldb": None if ldb is None else check_size(ldb, "ldb", least=1),
            "batch": batch,
            "rows": rows,
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)
        check_order(order)
        _check(self)

    def __repr__(self) -> str:
        names = [each.name for each in fields(self) if each.name != "rows" or self.rows]
        return f"Pack({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def contiguous_size(self) -> Size:
        """The number of elements in a contiguous row of B (in a column for order F)."""
        return self.n if self.order == "C" else self.k

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        slots: list[tuple[str, Size | None]] = [("n", self.n), ("k", self.k), ("ldb", self.ldb)]
        if self.batch is not None:
            slots += [("stride_b", self.batch.b), ("count", self.batch.count)]
        return tuple((slot, size) for slot, size in slots if isinstance(size, Dim))

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        kinds = dict.fromkeys((self.source, self.type, f"for_{self.a}"))
        sizes = sizes_word(("k", self.k), ("n", self.n))
        return ["pack", *kinds, sizes, self.order.lower(), *batch_words(self.batch)]


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False, repr=False)
class PackQuantized(Spec):
    """A kernel that packs a low-bit B (k x n) into the format of ``tw.Packed(type, nb)``.

    Its arguments are the arrays of a ``tw.QuantizedMatrix``: elements in a byte each, scales, and
    zero points or minima if ``type`` has them for each block. ``kernel.pack_b`` does the same from
    Python. This spec is for C: ``tw.library`` adds such a kernel for each kernel with a low-bit B,
    and ``tilewright emit`` writes it.

    Parameters
    ----------
    k, n : int
        Sizes of B.
    type : Quantized
        The format of B.
    a : str, numpy type or Quantize
        A of the kernels. It decides the instruction, and so the packed format.
    nb : int, optional
        Columns of a block, as in ``tw.Packed``.
    order : {"C", "F"}
        Order of the given arrays, which are tight.
    a_zero : bool
        True for kernels with ``a_zero``: sums of B's blocks are packed too. They always are if
        ``a`` is "u8". If ``a_zero`` of a u8 A is 128, the kernel takes a B for "s8" without sums.

    Raises
    ------
    SpecError
        Types or sizes do not fit each other.

    Examples
    --------
    >>> q8 = tw.Quantized("s8", scale="f32", block=8)
    >>> pack = tw.compile(tw.PackQuantized(8, 4, q8, a="f32"))
    >>> packed = pack(tw.quantize(np.eye(8, 4, dtype=np.float32), q8))
    >>> kernel = tw.compile(tw.Gemm(1, 4, 8, b=tw.Packed(q8)))
    >>> kernel(np.ones((1, 8), np.float32), packed)
    array([[1., 1., 1., 1.]], dtype=float32)
    """

    routine: ClassVar[str] = "tilewright.routines.pack"

    k: int
    n: int
    type: Quantized
    a: TypeName | Quantize
    nb: int | None
    order: Order
    a_zero: bool

    def __init__(
        self,
        k: int,
        n: int,
        type: Quantized,
        *,
        a: DTypeLike | Quantize,
        nb: int | None = None,
        order: Order = "C",
        a_zero: bool = False,
    ) -> None:
        if not isinstance(type, Quantized):
            raise SpecError(
                "only elements of few bits are packed with scales",
                got=type,
                expected='tw.Quantized("u4", block=32) and its kin',
                hint="tw.Pack for elements of another type",
            )
        fields: dict[str, object] = {
            "k": _fixed(k, "k"),
            "n": _fixed(n, "n"),
            "type": type,
            "a": a if isinstance(a, Quantize) else type_name(a),
            "nb": Packed(type, nb).nb,
            "order": order,
            "a_zero": bool(a_zero),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        check_order(order)
        of_a = self.a if isinstance(self.a, Quantize) else Matrix(self.a)
        check_quantized(of_a, type, self.k, {"a_zero": 1 if self.a_zero else None})
        check_extent((self.k, self.n), 8, "B")

    def __repr__(self) -> str:
        options: dict[str, tuple[object, object]] = {
            name: (getattr(self, name), ...) for name in ("k", "n", "type", "a", "nb", "order")
        }
        return call_text("PackQuantized", [], {**options, "a_zero": (self.a_zero, False)})

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (): a packed matrix has fixed sizes, so no size is known only at the call."""
        return ()

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        of_a = self.a.to if isinstance(self.a, Quantize) else self.a
        sizes = sizes_word(("k", self.k), ("n", self.n))
        return ["pack", self.type.word, f"for_{of_a}", sizes, self.order.lower()]


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False)
class QuantizeRows(Spec):
    """A kernel that quantizes A (m x k) into the format of ``tw.Packed(tw.Quantize(...))``.

    ``kernel.pack_a`` uses it. In a C library it is the function ``name_pack_a``.

    Parameters
    ----------
    m : int or Dim
        Rows of A.
    k : int
        Columns of A.
    a : Quantize
        How A is quantized, and its type.
    b : Quantized
        The format of the low-bit B that will be multiplied.
    lda : int or Dim, optional
        Leading dimension of A in elements; by default tight. Rows of A are contiguous.

    Raises
    ------
    SpecError
        The formats or sizes do not fit each other.

    Examples
    --------
    >>> rows, w8 = tw.Quantize("f32"), tw.Quantized("s8")
    >>> pack = tw.compile(tw.QuantizeRows(tw.dim("m"), 4, rows, w8))
    >>> packed = pack(np.eye(2, 4, dtype=np.float32))
    >>> packed.shape, packed.format.partition(" scales")[2][:13]
    ((2, 4), ' for each row')
    """

    routine: ClassVar[str] = "tilewright.routines.pack"

    m: Size
    k: int
    a: Quantize
    b: Quantized
    lda: Size | None

    def __init__(
        self, m: Size, k: int, a: Quantize, b: Quantized, *, lda: Size | None = None
    ) -> None:
        for name, given, kind in (("a", a, Quantize), ("b", b, Quantized)):
            if not isinstance(given, kind):
                raise SpecError(f"{name} must be a tw.{kind.__name__}", got=given)
        values = {
            "m": check_size(m, "m"),
            "k": _fixed(k, "k"),
            "a": a,
            "b": b,
            "lda": None if lda is None else check_size(lda, "lda", least=1),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_quantized(a, b, self.k, {})
        least = self.k
        if isinstance(self.lda, int) and self.lda < least:
            raise SpecError("lda is smaller than a row of A", got=lda, expected=f"{least} or more")
        check_dims(self.runtime_sizes())
        check_extent((self.m, self.k if self.lda is None else self.lda), 8, "A")

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        slots = (("m", self.m), ("lda", self.lda))
        return tuple((slot, size) for slot, size in slots if isinstance(size, Dim))

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        sizes = sizes_word(("m", self.m), ("k", self.k))
        return ["quantize", self.a.type, f"for_{self.b.word}", sizes]


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False)
class Copy(Spec):
    """A copy: ``d[i, j] = a[i, j]`` for matrices of any two layouts and element types.

    Elements are converted as products convert them: to nearest even; integers saturate, and NaN
    becomes the integer 0. f64 becomes f32 or an integer type, and every type but s64 becomes f64.
    s64 becomes s32 or a narrower integer type, or is made of one. Each of these conversions rounds
    once. Two copies, of which the first makes f32, round f64 to f16, bf16 and f8, and round twice.

    The input may be a matrix of nibbles, ``tw.Matrix("u4")`` or ``tw.Matrix("s4")``: each row (for
    order F each column) is a sequence of bytes with two elements each, the first in the low 4 bits.
    Then ``a`` is an array of uint8, of shape (rows, ceil(cols / 2)), or (ceil(rows / 2), cols) for
    order F. The size that is halved is an int. If it is odd, the high bits of the last byte are
    ignored.

    Parameters
    ----------
    rows, cols : int or Dim
        Sizes of both matrices. A packed matrix has fixed sizes.
    a : str, numpy type, Matrix or Packed, optional
        Type and layout of the input. A type alone means order C. The types "u4" and "s4" are
        matrices of nibbles. ``Packed`` is the format of
        ``tw.Pack(rows, cols, type, nb=nb)``, or has groups of ``bits``. The format of a
        ``PackedMatrix`` also describes a packed matrix.
    d : str, numpy type, Matrix or Packed, optional
        The same for the output, except nibbles; by default the type of ``a`` in order C, s8 for s4
        and u8 for u4.
    lda, ldd : int or Dim, optional
        Leading dimensions in elements; by default tight. That of nibbles is an even int.

    Raises
    ------
    SpecError
        A type, a size or a layout is not possible.

    Examples
    --------
    >>> nibbles = np.array([[0x21, 0xF3]], np.uint8)
    >>> tw.compile(tw.Copy(1, 4, "s4", "f32"))(nibbles)
    array([[ 1.,  2.,  3., -1.]], dtype=float32)
    >>> pairs = tw.compile(tw.Copy(4, 4, "bf16", tw.Packed("bf16", bits=32)))
    >>> packed = pairs(np.eye(4, dtype=ml_dtypes.bfloat16))
    >>> back = tw.compile(tw.Copy(4, 4, packed.format, tw.Matrix("f32", order="F")))
    >>> back(packed)[1]
    array([0., 1., 0., 0.], dtype=float32)
    """

    routine: ClassVar[str] = "tilewright.routines.copy"

    rows: Size
    cols: Size
    a: Layout
    d: Layout
    lda: Size | None
    ldd: Size | None

    def __init__(
        self,
        rows: Size,
        cols: Size,
        a: DTypeLike | NibbleName | Layout = "f32",
        d: DTypeLike | Layout | None = None,
        *,
        lda: Size | None = None,
        ldd: Size | None = None,
    ) -> None:
        given = _layout(a, "a")
        fields: dict[str, object] = {
            "rows": check_size(rows, "rows"),
            "cols": check_size(cols, "cols"),
            "a": given,
            "d": Matrix(_whole_bytes(given)) if d is None else _layout(d, "d"),
            "lda": None if lda is None else check_size(lda, "lda", least=1),
            "ldd": None if ldd is None else check_size(ldd, "ldd", least=1),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        _check_copied(self)
        for name in "ad":
            _check_layout(self, name)
        check_dims(self.runtime_sizes())

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        kinds = dict.fromkeys(map(str, (self.type_of("a"), self.type_of("d"))))
        sizes = sizes_word(("rows", self.rows), ("cols", self.cols))
        sides = (self.a, self.d)
        orders = [each.order.lower() if isinstance(each, Matrix) else "p" for each in sides]
        return ["copy", *kinds, sizes, "".join(orders)]

    def type_of(self, name: str) -> TypeName:
        """Return the element type of ``a`` or ``d``."""
        return layout_type(getattr(self, name))

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        slots = ("rows", "cols", "lda", "ldd")
        return tuple((s, getattr(self, s)) for s in slots if isinstance(getattr(self, s), Dim))


def _whole_bytes(layout: Layout) -> TypeName:
    """Return the element type of a layout; for nibbles, that of a byte for each element."""
    if isinstance(layout, Matrix) and layout.nibbles:
        return STORED[layout.type].unpacked
    return layout_type(layout)


def layout_type(layout: Layout) -> TypeName:
    """Return the element type of a layout."""
    return type_name(layout.partition(" ")[0]) if isinstance(layout, str) else layout.type


def _layout(given: object, name: str) -> Layout:
    """Return a layout; SpecError if ``given`` is none."""
    if isinstance(given, str) and " " in given:
        if _FORMAT.match(given) is None:
            raise SpecError(
                f"{name} is no packed format", got=given, expected="PackedMatrix.format"
            )
        if " rows" in given:
            raise SpecError(
                f"{name} is an A in panels of rows, which is not copied",
                got=given,
                expected="the format of a packed B",
            )
        return given
    if isinstance(given, Packed) and (given.mb is not None or given.b is not None):
        raise SpecError(
            f"{name} is an A in panels of rows, which is not copied",
            got=given,
            expected="tw.Packed(type, nb=columns)",
            hint="kernel.pack_a packs an A",
        )
    if isinstance(given, Packed) and given.quantized is not None:
        raise SpecError(
            f"{name} cannot be a low-bit matrix",
            got=given,
            expected="elements of 8 bits or more",
            hint="kernel.pack_b and kernel.unpack_b",
        )
    return given if isinstance(given, (Matrix, Packed)) else Matrix(given)  # type: ignore[arg-type]


def _check_copied(spec: Copy) -> None:
    source, made = spec.type_of("a"), spec.type_of("d")
    if hint := unconverted(source, made):
        raise SpecError(
            "this conversion of elements of 64 bits does not exist",
            got=f"{source} to {made}",
            expected="f64 and f32, s32 or less; or s64 and s32 or less",
            hint=hint,
        )
    if isinstance(spec.d, Matrix) and spec.d.nibbles:
        raise SpecError(
            "only the input of a copy is a matrix of nibbles",
            got=f"d={made!r}",
            expected="a type of 8 bits or more",
            hint="kernel.pack_b packs low-bit elements",
        )


def _check_nibbles(line: Size, leading: Size | None, slot: str) -> None:
    """Raise SpecError unless each line of nibbles has a known number of bytes."""
    if not isinstance(line, int):
        raise SpecError(
            "lines of nibbles have a fixed length",
            got=line,
            hint="an int; the other size may be a dim",
        )
    if leading is not None and not (isinstance(leading, int) and leading % 2 == 0):
        raise SpecError(
            "lines of nibbles begin at whole bytes",
            got=f"{slot}={leading!r}",
            expected="an even int",
        )


def _check_layout(spec: Copy, name: str) -> None:
    """Raise SpecError if sizes and leading dimension do not fit the layout of ``a`` or ``d``."""
    layout, leading, slot = getattr(spec, name), getattr(spec, f"ld{name}"), f"ld{name}"
    sizes = spec.rows, spec.cols
    if not isinstance(layout, Matrix):
        if leading is not None:
            raise SpecError(f"{slot} is given, but {name} is packed", got=f"{slot}={leading!r}")
        if not all(isinstance(size, int) for size in sizes):
            raise SpecError(
                "a packed matrix has fixed sizes", got=f"{spec.rows!r} x {spec.cols!r}", hint="ints"
            )
        found = _FORMAT.match(layout) if isinstance(layout, str) else None
        if found is not None and (int(found[3]), int(found[4])) != sizes:
            raise SpecError(
                f"the format of {name} is that of another size",
                got=layout,
                expected=f"{spec.rows}x{spec.cols}",
            )
    lines, line = sizes if not isinstance(layout, Matrix) or layout.order == "C" else sizes[::-1]
    if isinstance(layout, Matrix) and layout.nibbles:
        _check_nibbles(line, leading, slot)
    if isinstance(leading, int) and isinstance(line, int) and leading < line:
        raise SpecError(
            f"{slot} is smaller than a contiguous line of {name}",
            got=leading,
            expected=f"{line} or more",
        )
    check_extent((lines, line if leading is None else leading), 8, name)


def _fixed(size: Size, name: str) -> int:
    size = check_size(size, name)
    if isinstance(size, Dim):
        raise SpecError("a packed low-bit B has fixed sizes", got=f"{name}={size!r}", hint="an int")
    return size


def _sums(given: DTypeLike | None, a: str, b: str) -> str:
    """Return the type that holds sums of products of A and B; "" if they cannot be multiplied."""
    if not {a, b} <= set(INPUTS):
        return ""
    held = accumulator(a, b)
    name = held if given is None else type_name(given)
    found = check_sums(name, a, b, default_c(name, a, b))
    assert isinstance(found, str)
    return found


def _check(spec: Pack) -> None:
    for name, type_ in (("B", spec.type), ("A", spec.a)):
        if type_ not in INPUTS:
            raise SpecError(
                f"{name} cannot have this type", got=type_, expected=f"one of {', '.join(INPUTS)}"
            )
    accumulator(spec.a, spec.type)
    if spec.source not in (spec.type, "f32") or (spec.source, spec.type) == ("f32", "f64"):
        raise SpecError(
            "this is not converted while it is packed",
            got=f"{spec.source} to {spec.type}",
            expected=f"{spec.type}" + (" or f32" if spec.type not in ("f32", "f64") else ""),
        )
    least = spec.contiguous_size
    if isinstance(spec.ldb, int) and isinstance(least, int) and spec.ldb < least:
        raise SpecError(
            "ldb is smaller than a contiguous line of B",
            got=spec.ldb,
            expected=f"{least} or more",
        )
    strided = isinstance(spec.batch, Strided) and spec.batch.a is None and spec.batch.b != 0
    if spec.batch is not None and not strided:
        raise SpecError(
            "a batch to pack is tw.Strided(count), or with a stride b=",
            got=spec.batch,
            hint="pack matrices that lie anywhere, or serve all of a batch, one by one",
        )
    check_dims(spec.runtime_sizes())
    lines = spec.k if spec.order == "C" else spec.n
    extent = (lines, spec.contiguous_size if spec.ldb is None else spec.ldb)
    check_extent(extent, 8, "B")
    if spec.batch is not None:
        check_extent((spec.batch.count, *extent), 8, "the batch of B")
        check_extent((spec.batch.count, spec.batch.b), 8, "the batch of B")
