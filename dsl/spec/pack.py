"""Specs of kernels that pack B: for ordinary elements, and for low-bit elements with scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .operands import Matrix, Order, Packed, Strided, batch_words, check_order
from .quantized import Quantize, Quantized, check_quantized
from .sizes import Dim, Size, Spec, call_text, check_dims, check_extent, check_size, sizes_word
from .sums import check_sums, default_c
from .types import INPUTS, DTypeLike, TypeName, accumulator, type_name


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False)
class Pack(Spec):
    """A kernel that packs B (k x n) into the format of ``tw.Packed(type, nb)``.

    Parameters
    ----------
    k, n : int
        Sizes of B.
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

    k: int
    n: int
    type: TypeName
    a: TypeName
    nb: int | None
    source: TypeName
    order: Order
    ldb: Size | None
    batch: Strided | None
    sums: str

    def __init__(
        self,
        k: int,
        n: int,
        type: DTypeLike = "f32",
        *,
        a: DTypeLike | None = None,
        nb: int | None = None,
        source: DTypeLike | None = None,
        order: Order = "C",
        ldb: Size | None = None,
        batch: Strided | None = None,
        sums: DTypeLike | None = None,
    ) -> None:
        packed = Packed(type, nb)
        of_a = packed.type if a is None else type_name(a)
        fields: dict[str, object] = {
            "sums": _sums(sums, of_a, packed.type),
            "k": _fixed(k, "k"),
            "n": _fixed(n, "n"),
            "type": packed.type,
            "a": of_a,
            "nb": packed.nb,
            "source": packed.type if source is None else type_name(source),
            "order": order,
            "ldb": None if ldb is None else check_size(ldb, "ldb", least=1),
            "batch": batch,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        check_order(order)
        _check(self)

    @property
    def contiguous_size(self) -> int:
        """The number of elements in a contiguous row of B (in a column for order F)."""
        return self.n if self.order == "C" else self.k

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        slots: list[tuple[str, Size | None]] = [("ldb", self.ldb)]
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
        True for kernels with ``a_zero``: sums of B's blocks are packed too.

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
        return ["pack", self.type.type, f"for_{of_a}", sizes, self.order.lower()]


def weight_packing(shape: tuple[int, ...], ldb: Dim | None = None) -> Pack:
    """Return the packing of a weight (k, n) of f32 for the products of a network."""
    k, n = shape
    return Pack(k, n, "f32", ldb=ldb)


def _fixed(size: Size, name: str) -> int:
    size = check_size(size, name)
    if isinstance(size, Dim):
        raise SpecError("a packed B has fixed sizes", got=f"{name}={size!r}", hint="an int")
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
    if spec.ldb is not None and isinstance(spec.ldb, int) and spec.ldb < spec.contiguous_size:
        raise SpecError(
            "ldb is smaller than a contiguous line of B",
            got=spec.ldb,
            expected=f"{spec.contiguous_size} or more",
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
