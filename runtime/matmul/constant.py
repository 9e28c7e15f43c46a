"""``tw.pack``: pack a matrix B once, for products with many matrices A of one type."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError, described
from tilewright.keywords import spelled
from tilewright.runtime.arrays.dtypes import loaded
from tilewright.runtime.arrays.elements import decode, encode
from tilewright.runtime.arrays.views import as_array
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.driver import compile
from tilewright.spec.dtypes import DTYPES
from tilewright.spec.gemm import Gemm
from tilewright.spec.operands import Matrix, Packed
from tilewright.spec.quantized import Quantize, Quantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.sizes import dim
from tilewright.spec.sums import Math
from tilewright.spec.types import INPUTS, accumulator, is_integer, type_name

from .arrays import ORDERS, contiguous_axis, factors, type_of
from .asked import check_math, check_target
from .families import (
    FIXED_STEPS,
    UNBOUNDED,
    Class,
    Family,
    Options,
    call_product,
    class_of,
    output_of,
)
from .target_facts import in_matrices, least_parallel

if TYPE_CHECKING:
    from tilewright.runtime.kernel import Kernel
    from tilewright.runtime.matmul.routes import Routes
    from tilewright.runtime.quantized.matrix import QuantizedMatrix

Array = np.ndarray[Any, Any]


class PackedB(NamedTuple):
    """A matrix packed by ``tw.pack``, for each ``a`` of one type on one target.

    Attributes
    ----------
    matrix : PackedMatrix
        The packed bytes that kernels take.
    type, a : str
        Types of its elements and of A.
    target : str
        The target's name.
    quantized : Quantized or None
        Format of a low-bit matrix.
    quantize : Quantize or None
        How kernels quantize A, if they do.
    math : "bf16", ("bf16", "always") or None
        How float32 was rounded, which ``tw.matmul`` must be asked for too.

    Examples
    --------
    >>> packed = tw.pack(np.ones((4, 3), np.int8), a="u8")
    >>> packed.type, packed.a, packed.shape
    ('s8', 'u8', (4, 3))
    """

    matrix: PackedMatrix
    type: str
    a: str
    target: str
    quantized: Quantized | None = None
    quantize: Quantize | None = None
    math: Math = None

    def __matmul__(self, other: Any) -> NoReturn:
        """Raise ArgumentTypeError: only ``tw.matmul`` multiplies a packed matrix."""
        self.__rmatmul__(other)

    def __rmatmul__(self, other: Any) -> NoReturn:
        """Raise ArgumentTypeError: only ``tw.matmul`` multiplies a packed matrix."""
        raise ArgumentTypeError(
            "@ does not multiply a matrix that tw.pack packed", hint="tw.matmul(a, packed)"
        )

    def where_it_is_passed(self) -> str:
        """Return a hint for a call that does not take a packed matrix."""
        return "tw.matmul(a, packed): a matrix that tw.pack packed can only be b of tw.matmul"

    @property
    def factor(self) -> str:
        """The type in which B is multiplied: a low-bit B is multiplied in A's type."""
        return self.type if self.quantized is None else self.a

    def check(self, a: str, options: Options) -> None:
        """Raise ArgumentError unless B was packed for arrays of type ``a`` and these options."""
        target = options.target
        if options.math != self.math:
            raise ArgumentValueError(
                "b was packed for another math",
                got=f"math={options.math!r}",
                expected=repr(self.math),
                hint=f"tw.pack(b, math={options.math!r})",
            )
        if a != self.a:
            raise ArgumentTypeError(
                "b was packed for another type of a",
                got=f"a of {a}",
                expected=self.a,
                hint=f"tw.pack(b, a={a!r})",
            )
        if target != self.target:
            raise ArgumentValueError(
                "b was packed for another target",
                got=f"target={target!r}",
                expected=repr(self.target),
                hint=f"tw.pack(b, target={target!r})",
            )

    def unpacked_column(self) -> Array | None:
        """Return B as an array if it is one column that a deterministic product cannot take packed.

        A packed column is multiplied by vectors along K. An unpacked one is computed like the first
        of several columns, in another order of sums. The sums of converted types would then differ.
        """
        if self.shape[1] != 1 or self.quantized is not None or is_integer(self.type):
            return None
        if self.type == accumulator(self.a, self.type) and self.math is None:
            return None
        from tilewright.plan.formats.layout import packed_format_named

        form = packed_format_named(self.matrix.format)
        assert form is not None
        places = [form.offset(k, 0) for k in range(form.k or 0)]
        elements = self.matrix.data[: form.sums_at].view(DTYPES[form.stored])[places]
        return encode(decode(elements, form.stored), form.type)[:, np.newaxis]

    @property
    def shape(self) -> tuple[int, int]:
        """The sizes (k, n), for example (256, 128)."""
        k, n = self.matrix.shape
        return k, n

    @property
    def ndim(self) -> int:
        """The number of dimensions, always 2."""
        return len(self.shape)


# With this, numpy calls ``__rmatmul__`` for ``a @ packed``, and does not make the tuple an array.
PackedB.__array_ufunc__ = None  # type: ignore[attr-defined]


@spelled(ArgumentTypeError)
def pack(b: Any, *, a: Any = None, target: str = "host", math: Math = None) -> PackedB:
    """Pack a matrix B once, for many calls of ``tw.matmul(a, packed)``.

    Parameters
    ----------
    b : array or QuantizedMatrix
        k x n, in any order.
    a : str, numpy type or Quantize, optional
        Type of the arrays A that ``b`` will be multiplied with; by default the type of ``b``, or
        f32 for a low-bit matrix. With ``tw.Quantize``, kernels quantize A.
    target : str
        The target's name.
    math : "bf16" or ("bf16", "always"), optional
        As for ``tw.matmul``, which must be given the same: float32 is rounded while it is packed.

    Returns
    -------
    PackedB
        The packed matrix. Its kernels are compiled for its k and n, and take an A with any number
        of rows.

    Raises
    ------
    ArgumentError
        ``b`` is no matrix of a supported type.
    SpecError
        The two types cannot be multiplied.

    Examples
    --------
    >>> packed = tw.pack(np.ones((4, 3), np.float32))
    >>> tw.matmul(np.ones((2, 4), np.float32), packed)
    array([[4., 4., 4.], [4., 4., 4.]], dtype=float32)
    """
    from tilewright.runtime.quantized.matrix import QuantizedMatrix

    check_target(target)
    if isinstance(b, QuantizedMatrix):
        _check_no_math(b, math)
        return _pack_quantized(b, "f32" if a is None else a, target)
    b = as_array(b, "b")
    type_: str = type_of(b, "b")
    if b.ndim != 2:
        raise ArgumentValueError(
            "tw.pack packs one matrix", got=f"shape {b.shape}", expected="(k, n)"
        )
    kind, type_ = factors(type_ if a is None else _named(a), type_)
    b = b.astype(loaded(type_), copy=False)
    types = kind, type_, accumulator(kind, type_)
    options = Options(target=target, math=check_math(math))
    kernel = _kernel(_Kind(types, b.shape, 1, 1, options), False)
    return PackedB(kernel.pack_b(b), type_, kind, target, math=options.math)


def _check_no_math(b: Any, math: Any) -> None:
    if math is not None:
        raise ArgumentValueError(
            "math rounds float32, and a low-bit matrix has none", got=b.format, hint="no math"
        )


def _named(a: Any) -> str:
    """Return the name of the type of A for which b is packed; ArgumentTypeError if unknown."""
    name: str | None = None
    with suppress(SpecError):
        name = type_name(a)
    if name not in INPUTS:
        raise ArgumentTypeError(
            "a must be the type of the arrays that b will be multiplied with",
            got=described(a),
            expected=f"one of {', '.join(INPUTS)}, or numpy's",
        )
    return name


def _pack_quantized(b: QuantizedMatrix, a: Any, target: str) -> PackedB:
    if b.ndim != 2:
        raise ArgumentValueError(
            "tw.pack packs one matrix", got=f"shape {b.shape}", expected="(k, n)"
        )
    how = a if isinstance(a, Quantize) else None
    kind = a.type if isinstance(a, Quantize) else _named(a)
    if is_integer(kind):
        raise ArgumentValueError(
            "matmul takes an A of floating point where B has scales",
            got=f"a={kind!r}",
            hint='a=tw.Quantize("f32"): kernels make it integers, where tw.compile takes them',
        )
    options = Options(target=target)
    kernel = _kernel(_Kind((kind, kind, "f32"), b.shape, 1, 1, options, b.format, how), False)
    return PackedB(kernel.pack_b(b), b.format.stored_name, kind, target, b.format, how)


class _Kind(NamedTuple):
    """Products with a packed B that one kernel computes.

    ``a_axis`` and ``out_axis`` are the contiguous axes of A and of the output.
    """

    types: tuple[str, str, str]
    shape: tuple[int, ...]
    a_axis: int
    out_axis: int
    options: Options
    quantized: Quantized | None = None
    quantize: Quantize | None = None


@lru_cache(maxsize=256)
def _kernel(kind: _Kind, parallel: bool) -> Kernel:
    return compile(_spec(kind), _schedule(kind, parallel), kind.options.target)


def _spec(kind: _Kind) -> Gemm:
    (a, b, written), (k, n) = kind.types, kind.shape
    given: dict[str, Any] = output_of(
        a, b, Matrix(type_name(written), ORDERS[kind.out_axis]), kind.options
    )
    return Gemm(
        dim("m"),
        n,
        k,
        a=kind.quantize or Matrix(type_name(a), ORDERS[kind.a_axis]),
        b=Packed(kind.quantized or type_name(b)),
        lda=dim("lda"),
        **given,
    )


def _schedule(kind: _Kind, parallel: bool) -> Schedule:
    """Return the schedule of a kernel for products with a packed B.

    A deterministic product adds in the same order as with an unpacked B.
    """
    (k, n), options = kind.shape, kind.options
    threads = options.threads if parallel else None
    loops = "MNk" if parallel and options.threads is None else None
    if not options.deterministic or kind.quantized is not None:
        split: Literal[1] | None = 1 if options.deterministic else None
        return Schedule(loops=loops, threads=threads, k_split=split)
    in_blocks = k > FIXED_STEPS and class_of(1, n, k, kind.types, options).shape == "blocks"
    if not in_blocks or in_matrices(*kind.types[:2], options.target):
        # The K of products on a matrix unit is not cut into blocks.
        loops = "MNk" if parallel else "nmk"
        return Schedule(loops=loops, threads=threads, k_split=1, vectorize="n")
    equal = {"k": -(-k // -(-k // FIXED_STEPS))}
    loops = "kMNk" if parallel else "knmk"
    return Schedule(loops=loops, block=equal, threads=threads, k_split=1, vectorize="n")


def _family(kind: _Kind, parallel: bool) -> Family:
    """Return the family of products that one kernel computes: with one n and k, and any m."""
    (k, n), most = kind.shape, UNBOUNDED
    least = _least_parallel(kind) if parallel else 0
    if not parallel and kind.options.threads != 1:
        most = _least_parallel(kind) - 1
    sizes = Class("matrix", parallel, (0, n, k, least), (UNBOUNDED, n, k, most))
    return Family(kind.types, (kind.a_axis, 1, kind.out_axis), sizes, kind.options)


def _least_parallel(kind: _Kind) -> int:
    return least_parallel(*kind.types[:2], kind.options.target)


def product_with(
    b: PackedB,
    types: tuple[str, str, str],
    options: Options,
    named: dict[str, Any],
    routes: Routes,
) -> Callable[[Array, Array, Array], None]:
    """Return a function that multiplies one matrix A with ``b``.

    A and ``out`` must have contiguous rows or columns.

    After the first call, C code finds such products in ``routes``, except those that quantize A.
    """

    def run(a: Array, _: Array, out: Array) -> None:
        if b.quantize is not None and contiguous_axis(a) == 0:
            # Kernels quantize A row by row, so the rows must be contiguous.
            a = np.ascontiguousarray(a)
        axes = contiguous_axis(a), contiguous_axis(out)
        assert axes[0] is not None
        assert axes[1] is not None
        kind = _Kind(types, b.shape, axes[0], axes[1], options, b.quantized, b.quantize)
        work = len(a) * b.shape[0] * b.shape[1]
        parallel = options.threads != 1 and work >= _least_parallel(kind)
        kernel = _kernel(kind, parallel)
        call_product(kernel, a, b.matrix, out, named)
        if b.quantize is None:
            routes.add(_family(kind, parallel), kernel)

    return run
