"""The layouts that a spec's matrices may have in memory: row order, packed, or in a batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Literal

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .quantized import Quantize, Quantized
from .sizes import MAX_SIZE, Dim, Size, call_text, check_count, check_size
from .types import ITEMSIZE, NIBBLES, DTypeLike, NibbleName, TypeName, type_name

Order = Literal["C", "F"]
#: The text of a packed format, without sizes and groups, which the target decides.
_FORMAT = re.compile(
    r"(?P<type>\w+) as \w+, [\w ]+ in groups of \d+ along k(?: in steps of \d+)?, "
    r"(?:a column|blocks of (?P<nb>\d+) columns|panels of (?P<mb>\d+) rows)(?: and their sums)?"
)
#: Shape of each matrix of a product, by the names of its sizes.
SHAPES = {
    "a": ("m", "k"),
    "b": ("k", "n"),
    "b2": ("k", "n"),
    "c": ("m", "n"),
    "d": ("m", "n"),
}


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True)
class Matrix:
    """Element type and order of one operand of a product, if its order differs from the others'.

    Parameters
    ----------
    type : str or numpy type
        Element type. "u4" or "s4", only for the input of ``tw.Copy``: nibbles, two elements in each
        byte of a row (of a column for order F). The first element is in the low 4 bits.
    order : {"C", "F"}
        Rows or columns contiguous.

    Raises
    ------
    SpecError
        The type or order is unknown.

    Examples
    --------
    >>> spec = tw.Gemm(2, 2, 3, b=tw.Matrix("f32", order="F"))
    >>> b = np.asfortranarray(np.ones((3, 2), np.float32))
    >>> tw.compile(spec)(np.ones((2, 3), np.float32), b)
    array([[3., 3.], [3., 3.]], dtype=float32)
    """

    type: TypeName
    order: Order = "C"

    if TYPE_CHECKING:

        def __init__(self, type: DTypeLike | NibbleName, order: Order = "C") -> None: ...

    def __post_init__(self) -> None:
        if not self.nibbles:
            object.__setattr__(self, "type", type_name(self.type))
        check_order(self.order)

    @property
    def nibbles(self) -> bool:
        """True if two elements share a byte."""
        given: object = self.type
        return isinstance(given, str) and given in NIBBLES


#: Bytes of a group of elements, by its bits.
_GROUPS = {32: 4, 64: 8}


def check_order(order: object) -> None:
    """Raise SpecError unless ``order`` is "C" or "F"."""
    if not isinstance(order, str) or order not in ("C", "F"):
        raise SpecError("order must be 'C' (rows contiguous) or 'F' (columns)", got=order)


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, repr=False)
class Packed:
    """A B that ``pack_b`` has packed, an A that ``pack_a`` has packed, or a D packed as an A.

    B is in groups along K, in blocks of columns, padded with zeros; A in groups along K, in panels
    of rows. Where A is packed, pack a large B as well: a kernel packs B itself, in each call, only
    if both are f32, or both f64, all sizes are ints, and it runs in one thread. Otherwise it reads
    or converts B as a whole, which may take several times as long.

    The format depends only on target, types, k, n and ``nb``. The same packed matrix can therefore
    be used by kernels with any m, batch, epilogue or tile. If k or n is a dim, one format serves
    matrices of all sizes: one kernel computes all layers of a model. A call then checks that the
    packed B has the sizes of the call. A low-bit B (``tw.Quantized``) has fixed k and n. A packed A
    is that of one product: a batch has none.

    Parameters
    ----------
    type : str, numpy type, Quantized or Quantize
        Element type; or the format of a low-bit B, whose elements and scales are packed; or
        ``tw.Quantize(...)`` for an A that ``pack_a`` quantizes: integers, scales and zero points
        are packed row by row, and ``mb`` is not possible.
    nb : int, optional
        Columns of a block. By default one block if a cache holds B, else, and if k or n is a dim,
        blocks of a few tiles' columns. ``PackedMatrix.format`` tells the choice.
    mb : int, optional
        Rows of a panel of a packed A or D, whose format depends on target, types, m, k and ``mb``.
        By default the rows of the target's tallest tiles.
    bits : {32, 64}, optional
        Only for ``tw.Copy``: bits of a group of elements along K, on every target. For example,
        32 bits are pairs of bf16 or four s8. ``nb`` is then all columns by default, and no sums of
        columns follow the elements. By default the target decides.
    b : str, numpy type or Quantized, optional
        Only for a packed D: type or format of the B of the product that reads D as its A. By
        default D's type. A D that is quantized needs it.
    format : str, optional
        The packed format, a text of ``kernel.formats`` or ``PackedMatrix.format``, which has nb or
        mb. If it is not the kernel's, ``tw.compile`` raises a SpecError that names both formats.

    Raises
    ------
    SpecError
        The type or an option is not possible.

    Examples
    --------
    >>> layer = tw.compile(tw.Gemm(tw.dim("m"), 4, 4, b=tw.Packed("f32")))
    >>> weights = layer.pack_b(2 * np.eye(4, dtype=np.float32))
    >>> layer(np.ones((1, 4), np.float32), weights)
    array([[2., 2., 2., 2.]], dtype=float32)
    """

    type: TypeName
    nb: int | None
    mb: int | None
    quantized: Quantized | None
    bits: int | None
    quantize: Quantize | None
    b: TypeName | Quantized | None
    format: str | None

    def __init__(
        self,
        type: DTypeLike | Quantized | Quantize,
        nb: int | None = None,
        *,
        mb: int | None = None,
        bits: int | None = None,
        b: DTypeLike | Quantized | None = None,
        format: str | None = None,
    ) -> None:
        quantized = type if isinstance(type, Quantized) else None
        quantize = type if isinstance(type, Quantize) else None
        held = (
            type.stored.unpacked
            if isinstance(type, Quantized)
            else (type.type if isinstance(type, Quantize) else type_name(type))
        )
        if format is not None:
            nb, mb = _parsed(format, held, {"nb": nb, "mb": mb, "bits": bits})
        columns = None if nb is None else check_count(nb, "nb, the columns of a block,")
        rows = None if mb is None else check_count(mb, "mb, the rows of a panel,")
        object.__setattr__(self, "type", held)
        object.__setattr__(self, "nb", columns)
        object.__setattr__(self, "mb", rows)
        object.__setattr__(self, "quantized", quantized)
        object.__setattr__(self, "quantize", quantize)
        object.__setattr__(self, "format", format)
        of_b = b if b is None or isinstance(b, Quantized) else type_name(b)
        object.__setattr__(self, "b", of_b)
        bits = None if bits is None else check_count(bits, "bits, those of a group,")
        object.__setattr__(self, "bits", bits)
        legal = not (quantized or quantize) and bits in _GROUPS and _GROUPS[bits] >= ITEMSIZE[held]
        if bits is not None and not legal:
            raise SpecError(
                "a group of elements cannot have these bits",
                got=f"bits={bits}, {quantized or quantize or held}",
                expected="32 or 64, at least those of an element",
            )

    @property
    def order(self) -> Order:
        """Always "C". It has no meaning: ``pack_b`` packs a B of either order."""
        return "C"

    def __repr__(self) -> str:
        sizes = {} if self.format else {"nb": (self.nb, None), "mb": (self.mb, None)}
        options: dict[str, tuple[object, object]] = {
            **sizes,
            "bits": (self.bits, None),
            "b": (self.b, None),
            "format": (self.format, None),
        }
        return call_text("Packed", [self.quantized or self.quantize or self.type], options)


def _parsed(
    format: object, type_: TypeName, others: dict[str, object]
) -> tuple[int | None, int | None]:
    """Return the columns of a block and the rows of a panel of a packed format's text."""
    found = _FORMAT.fullmatch(format) if isinstance(format, str) else None
    if found is None:
        scaled = isinstance(format, str) and " scales" in format
        raise SpecError(
            "this is no packed format without scales",
            got=format,
            expected=f"a text of kernel.formats, or PackedMatrix.format, for {type_}",
            hint="tw.Packed(tw.Quantized(...)) or tw.Packed(tw.Quantize(...)) with scales"
            if scaled
            else None,
        )
    if found["type"] != type_:
        raise SpecError(
            f"tw.Packed is of {type_}, but its format holds elements of {found['type']}",
            got=format,
            expected=f'"{type_} as {type_}, ...", a text of kernel.formats for {type_}',
            hint=f'tw.Packed("{found["type"]}", format=...), if the product has this type',
        )
    if given := [f"{name}={value!r}" for name, value in others.items() if value is not None]:
        raise SpecError("a packed format says all of its sizes", got=given[0], expected="no option")
    nb, mb = (None if found[name] is None else int(found[name]) for name in ("nb", "mb"))
    return nb, mb


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, repr=False)
class Strided:
    """A batch of matrices at equal distances in memory.

    In numpy the batch is the first axis of an array.

    Parameters
    ----------
    count : int or Dim
        Number of matrices.
    a, b : int or Dim, optional
        Elements from one matrix to the next. 0: one matrix is used for all. None: matrices without
        gaps.
    c : int or Dim, optional
        The same for C and D. With 0, the default, all products are summed into one C. With None or
        another stride there is a stack of products, each with its own C.

    Raises
    ------
    SpecError
        A count or stride is no size.

    Examples
    --------
    >>> a, b = np.ones((5, 2, 3), np.float32), np.ones((5, 3, 2), np.float32)
    >>> tw.compile(tw.Gemm(2, 2, 3, batch=tw.Strided(5)))(a, b)
    array([[15., 15.], [15., 15.]], dtype=float32)
    >>> tw.compile(tw.Gemm(2, 2, 3, batch=tw.Strided(5, c=None)))(a, b).shape
    (5, 2, 2)
    """

    count: Size
    a: Size | None = None
    b: Size | None = None
    c: Size | None = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check_size(self.count, "batch count"))
        for name in "abc":
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_size(value, f"batch stride of {name}"))

    def __repr__(self) -> str:
        stack = "" if self.c == 0 else f", c={self.c!r}"
        return f"Strided(count={self.count!r}, a={self.a!r}, b={self.b!r}{stack})"


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False)
class Offsets:
    """A batch of matrices that begin at given offsets in the 1-d arrays a and b.

    Parameters
    ----------
    count : int or Dim
        Number of matrices.
    a, b : sequence of int, optional
        Offsets of A and B in elements. A sequence is fixed in the kernel. None is passed at the
        call as ``a_offsets=`` or ``b_offsets=`` (int64). Offsets of a packed B count whole matrices
        of the stack that ``pack_b`` packed (count x k x n, with any count).

    Raises
    ------
    SpecError
        ``count`` is no size, or the number of fixed offsets is not ``count``.

    Examples
    --------
    Differences of neighbours: A's two matrices are the same memory, one element apart.

    >>> spec = tw.Gemm(4, 1, 1, batch=tw.Offsets(2, a=(0, 1), b=(0, 1)))
    >>> signal, taps = np.float32([1, 4, 9, 16, 25]), np.float32([-1, 1])
    >>> tw.compile(spec)(signal, taps)[:, 0]
    array([3., 5., 7., 9.], dtype=float32)
    """

    count: Size
    a: tuple[int, ...] | None
    b: tuple[int, ...] | None

    def __init__(
        self, count: Size, a: Sequence[int] | None = None, b: Sequence[int] | None = None
    ) -> None:
        object.__setattr__(self, "count", check_size(count, "batch count"))
        for name, offsets in (("a", a), ("b", b)):
            static = None if offsets is None else self._static(offsets, name)
            object.__setattr__(self, name, static)

    def _static(self, offsets: Sequence[int], name: str) -> tuple[int, ...]:
        static = _integers(offsets, f"offsets of {name}")
        if not isinstance(self.count, int) or len(static) != self.count:
            raise SpecError(
                f"static offsets of {name} need a fixed count equal to their number",
                got=f"{len(static)} offsets, count {self.count!r}",
                hint="give count=len(offsets), or pass the offsets at the call",
            )
        if any(offset < 0 for offset in static):
            raise SpecError(f"offsets of {name} must be 0 or more", got=min(static))
        if any(offset > MAX_SIZE for offset in static):
            raise SpecError(
                f"offsets of {name} are out of range", got=max(static), expected="0 to 2**62"
            )
        return static


def _integers(given: object, what: str) -> tuple[int, ...]:
    """Return the sequence ``given`` as a tuple of ints; SpecError if it holds anything else."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SpecError(
            f"{what} must be a sequence of ints",
            got=given,
            expected="one offset in elements for each matrix of the batch",
        )
    values = tuple(given)
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise SpecError(
                f"{what} must be ints: they count elements", got=f"{value!r}, of {given!r:.60}"
            )
    try:
        return tuple(map(index, values))
    except TypeError as error:  # ``index`` fails for an array with more than one number
        raise SpecError(f"{what} must be ints: they count elements", got=given) from error


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True)
class Addresses:
    """A batch of matrices at any addresses: a call passes a and b as sequences of arrays.

    In C these parameters are ``const A *const *a`` and ``const B *const *b``.

    Parameters
    ----------
    count : int or Dim
        Number of matrices.

    Raises
    ------
    SpecError
        ``count`` is no size.

    Examples
    --------
    >>> kernel = tw.compile(tw.Gemm(2, 2, 2, batch=tw.Addresses(tw.dim("count"))))
    >>> one = np.eye(2, dtype=np.float32)
    >>> kernel([one, 2 * one, 3 * one], [one, one, one])
    array([[6., 0.], [0., 6.]], dtype=float32)
    """

    count: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", check_size(self.count, "batch count"))


Batch = Strided | Offsets | Addresses


def batch_words(batch: Batch | None) -> list[str]:
    """Return a batch as a word of a kernel's name: kind and count, such as ``s16`` or ``oN``."""
    if batch is None:
        return []
    letter = {Strided: "s", Offsets: "o", Addresses: "p"}[type(batch)]
    return [f"{letter}N" if isinstance(batch.count, Dim) else f"{letter}{batch.count}"]
