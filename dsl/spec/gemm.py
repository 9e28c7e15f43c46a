"""Define ``Gemm``, the spec of a matrix product: sizes, types, layouts, scales, epilogue, batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from .arguments import LEADING, MAKE_D, factors_of, fields_of, has_zero
from .operands import (
    SHAPES,
    Batch,
    Matrix,
    Offsets,
    Order,
    Packed,
    Strided,
    batch_words,
    check_order,
)
from .quantized import Quantize, Quantized
from .scalars import QUANTITIES, Factor, Quantity, of_sums, short
from .sizes import Dim, Size, Spec, call_text, check_dims, check_extent, sizes_word
from .sums import (
    SUM_OUTPUTS,
    Math,
    Sums,
    check_wide,
    computed_in,
    default_c,
    default_sums,
    rounded_type,
)
from .types import INPUTS, ITEMSIZE, TYPES, DTypeLike, TypeName, accumulator, is_integer

# For type checkers only. At run time, only specs with an expression import these modules.
if TYPE_CHECKING:
    from .expression import Expression, Operand
    from .reductions import Outputs, RowReduction

from .transpose import Transpose

__all__ = ["QUANTITIES", "SHAPES", "Factor", "Gemm", "Quantity", "Spec", "Transpose"]


def stride_slot(name: str) -> str:
    """Return the C parameter for a matrix's batch stride: B2 shares B's stride, D shares C's."""
    return f"stride_{'c' if name == 'd' else name[0]}"


@spelled(SpecTypeError)
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Gemm(Spec):
    """The spec of a matrix product, of a sum of products (batch-reduce), or of a product stack.

    ::

        acc = sum_i (A_i - a_zero)(B_i - b_zero)
        D   = convert(epilogue(a_scale * b_scale * (alpha * acc + beta * C)) / d_scale + d_zero)

    A is m x k, B is k x n, C and D are m x n. Without ``d``, scales, ``d_zero`` and ``epilogue``,
    the result is ``C = alpha * acc + beta * C``.

    Parameters
    ----------
    m, n, k : int or Dim
        Sizes. A ``tw.dim`` is read from the arrays at the call.
    a, b : type, Matrix, Packed, Quantize or Quantized
        Types of A and B, by default f32 and A's type. ``tw.Matrix`` gives an operand its own order.
        ``tw.Packed`` is a B that ``pack_b`` packed, or an A that ``pack_a`` packed.
        ``tw.Quantize`` is an A that the kernel quantizes, or ``pack_a`` inside ``tw.Packed``.
    c, d : type, Matrix or Packed
        Types of C and D. C has by default the type of the sums: f32, s32 for integers, or f64. A
        D of ``tw.Packed`` is stored packed, as the A of the next product.
    order : {"C", "F"}
        Default order of all operands: rows or columns contiguous.
    alpha, beta : float or "scalar"
        Factors. "scalar" passes them at the call. If beta is 0, C is not read.
    batch : Strided, Offsets or Addresses, optional
        Pairs of matrices whose products are summed; or a stack of products, with
        ``tw.Strided(count, c=None)`` or another stride of C.
    lda, ldb, ldc, ldd : int or Dim, optional
        Leading dimensions in elements; by default tight.
    a_scale, b_scale, d_scale : float, "scalar", "row" or "column", optional
        Scales: a literal, or passed by name at the call. "row" is for A, "column" for B and D.
        ``a_scale=("row", 32)``: one for each block of a row of s8 or u8, if B is block-quantized.
    a_zero, b_zero, d_zero : int, "scalar", "row" or "column", optional
        Zero points, given as scales are. If B is block-quantized, its zero points belong to
        ``tw.Quantized``, and ``a_zero`` must be a number of A's type.
    epilogue : Expression, optional
        An expression of ``tw.acc`` (the value before it), ``tw.dst`` (D's old value) and operands.
    b2 : type, Matrix or Packed, optional
        A second B of B's type and layout. ``tw.acc2`` is A times B2, scaled like ``tw.acc``.
    outputs : mapping, optional
        Further results of shape (m,) in f32: ``tw.row_max``, ``row_sum`` or ``row_absmax`` of an
        expression, by name.
    algebra : bool
        True to let sympy rewrite the epilogue, which may change floating-point results.
    sums : {"f16", "f32"} or ("f16", int), optional
        Type that holds the sums of an f16 product. ``("f16", 64)`` sums up to 64 elements of K in
        f16 and adds these sums in f32.
    math : "bf16" or ("bf16", "always"), optional
        "bf16" rounds operands of f32 to bf16 while they are packed. A target that multiplies bf16
        no faster than f32 refuses this. ``("bf16", "always")`` rounds on every target.

    Raises
    ------
    SpecError
        Types, layouts or sizes do not fit each other.

    Notes
    -----
    Products of integers are exact in s32 modulo 2**32, also with integer alpha and beta. With
    ``c="s64"`` they are exact in s64; C is then the only result. All other arithmetic is done in
    f32 after conversion, or in f64. Conversion to integers rounds half to even and saturates; NaN
    becomes 0. If one of A and B is an integer type and the other floating point, the integers are
    converted, and sums are f32. A zero point is then multiplied by sums of the other operand, so
    Inf there gives NaN.

    ``math="bf16"`` rounds each f32 to 8 bits, half to even: ``|error| <= (2**-7 + 2**-16 + (k *
    count + 4) * 2**-23) * (|A| |B|)``, or with 2**-8 in place of the first two numbers if only one
    operand is f32. Sums are f32.

    Sums are held in f16 only on request: by A, B and C of f16, or by ``sums``. Each product is
    rounded once, with its sum, to the 11 bits of f16: ``|error| <= (k * count + 4) * 2**-10 * (|A|
    |B|)``. With ``("f16", 64)``, 64 replaces ``k * count``, and the rounding of f32 is added. A sum
    beyond 65504 is infinite. A target whose f16 arithmetic is not faster sums in f32, which is
    within these bounds.

    Examples
    --------
    A quantized layer: u8 times s8, a scale for each column, a bias, relu, and u8 again.

    >>> bias = tw.Operand("bias", "f32", per="column")
    >>> spec = tw.Gemm(2, 3, 4, a="u8", b="s8", d="u8", b_scale="column", d_scale=0.5,
    ...                epilogue=tw.relu(tw.acc + bias))
    >>> a, b = np.full((2, 4), 10, np.uint8), np.full((4, 3), 2, np.int8)
    >>> layer = tw.compile(spec)
    >>> layer(a, b, b_scale=np.float32([0.1, 0.2, 0.3]), bias=np.float32([1, 0, -100]))
    array([[18, 32,  0], [18, 32,  0]], dtype=uint8)

    Sums in f16 are twice as fast as in f32 on a CPU with AVX-512-FP16 (target ``avx512+fp16``).

    >>> half = tw.Gemm(2, 3, 4, a="f16", c="f16")
    >>> half.sums, tw.Gemm(2, 3, 4, a="f16", d="f16").sums
    ('f16', 'f32')
    >>> tw.compile(half)(np.ones((2, 4), np.float16), np.ones((4, 3), np.float16)).dtype
    dtype('float16')
    """

    routine: ClassVar[str] = "tilewright.routines.product"

    m: Size
    n: Size
    k: Size
    a: Matrix | Packed | Quantize
    b: Matrix | Packed
    c: Matrix
    d: Matrix | Packed | None
    alpha: Factor
    beta: Factor
    batch: Batch | None
    lda: Size | None
    ldb: Size | None
    ldc: Size | None
    ldd: Size | None
    a_scale: Quantity
    b_scale: Quantity
    d_scale: Quantity
    a_zero: Quantity
    b_zero: Quantity
    d_zero: Quantity
    epilogue: Expression | None
    b2: Matrix | Packed | None
    outputs: Outputs
    algebra: bool
    sums: Sums
    math: Math
    order: Order

    def __init__(
        self,
        m: Size,
        n: Size,
        k: Size,
        *,
        a: DTypeLike | Matrix | Packed | Quantize = "f32",
        b: DTypeLike | Matrix | Packed | None = None,
        c: DTypeLike | Matrix | None = None,
        d: DTypeLike | Matrix | Packed | None = None,
        order: Order = "C",
        alpha: Factor = 1,
        beta: Factor = 0,
        batch: Batch | None = None,
        lda: Size | None = None,
        ldb: Size | None = None,
        ldc: Size | None = None,
        ldd: Size | None = None,
        a_scale: Quantity = None,
        b_scale: Quantity = None,
        d_scale: Quantity = None,
        a_zero: Quantity = None,
        b_zero: Quantity = None,
        d_zero: Quantity = None,
        epilogue: Expression | None = None,
        b2: DTypeLike | Matrix | Packed | None = None,
        outputs: Mapping[str, RowReduction] | None = None,
        algebra: bool = False,
        sums: Sums = None,
        math: Math = None,
    ) -> None:
        check_order(order)
        for name, value in fields_of(locals()).items():
            object.__setattr__(self, name, value)
        full = any(operand.per == "full" for operand in self.named)
        object.__setattr__(self, "order", order if full else self.c.order)
        _check_gemm(self)

    def __repr__(self) -> str:
        order, first = self.order, self.a.type
        usual = default_sums(*self.factors, self.c.type)
        defaults: dict[str, object] = {
            "a": Matrix("f32", order),
            "b": Matrix(first, order),
            "c": Matrix(default_c(None if usual == self.sums else self.sums, *self.factors), order),
            "d": self.c if any(of_sums(getattr(self, name)) for name in MAKE_D) else None,
            "b2": None,
        }
        options: dict[str, tuple[object, object]] = {}
        for name, default in defaults.items():
            operand = getattr(self, name)
            plain = operand == Matrix(operand.type, order) if operand else False
            shown = operand.type if plain and operand != default else operand
            options[name] = (shown, default)
        options |= {
            "order": (order, "C"),
            "alpha": (short(self.alpha), 1),
            "beta": (short(self.beta), 0),
            **{
                name: (getattr(self, name), None)
                for name in ("batch", *LEADING, *QUANTITIES, "epilogue")
            },
            "b2": options.pop("b2"),
            "outputs": (dict(self.outputs), {}),
            "algebra": (self.algebra, False),
            "sums": (self.sums, usual),
            "math": (self.math, None),
        }
        return call_text("Gemm", [self.m, self.n, self.k], options)

    def contiguous_size(self, name: str) -> Size:
        """Return the number of elements in a contiguous row of ``name`` (order F: in a column)."""
        rows, cols = SHAPES[name]
        size: Size = getattr(self, cols if getattr(self, name).order == "C" else rows)
        return size

    @property
    def packs_stack(self) -> bool:
        """True if a packed B is one array with a matrix for each product of the batch."""
        shared = isinstance(self.batch, Strided) and self.batch.b == 0
        return isinstance(self.batch, Strided | Offsets) and not shared

    @property
    def sizes_of_b(self) -> tuple[Size, Size]:
        """The sizes k and n for the kernel that packs B: a dim ``k`` or ``n`` if it is any dim."""
        k, n = self.k, self.n
        return Dim("k") if isinstance(k, Dim) else k, Dim("n") if isinstance(n, Dim) else n

    @property
    def stacked(self) -> bool:
        """True if each product of the batch has its own C or D; False if the products are added."""
        return isinstance(self.batch, Strided) and self.batch.c != 0

    def batched(self, name: str) -> bool:
        """Return True if each product of the batch may have its own matrix ``name``."""
        return self.batch is not None and (name in ("a", "b", "b2") or self.stacked)

    def alone(self) -> Gemm:
        """Return this spec without its batch, which is the spec of a single product."""
        return self._with(batch=None)

    def with_sizes(self, m: Size, n: Size, k: Size) -> Gemm:
        """Return this spec with ``m``, ``n`` and ``k`` as its sizes."""
        return self._with(m=m, n=n, k=k)

    def _with(self, **changes: Any) -> Gemm:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return Gemm(**{**given, "outputs": dict(self.outputs) or None, **changes})

    def stride(self, name: str) -> Size | None:
        """Return the number of elements from one matrix ``name`` of a strided batch to the next.

        None means that the matrices have no gaps, or that there is no such batch.
        """
        stride: Size | None = None
        if isinstance(self.batch, Strided) and self.batched(name):
            stride = getattr(self.batch, stride_slot(name).removeprefix("stride_"))
        return stride

    def leading(self, name: str) -> Size:
        """Return the leading dimension of matrix ``name``; by default, rows have no gaps."""
        ld: Size | None = getattr(self, f"ld{name[0]}")
        return self.contiguous_size(name) if ld is None else ld

    def runtime_sizes(self) -> tuple[tuple[str, Dim], ...]:
        """Return (C parameter, dim) for each size known only at the call, in parameter order."""
        named: list[tuple[str, Any]] = [
            (slot, getattr(self, slot)) for slot in ("m", "n", "k", *LEADING)
        ]
        if isinstance(self.batch, Strided):
            named += [(f"stride_{name}", getattr(self.batch, name)) for name in "abc"]
        if self.batch is not None:
            named.append(("count", self.batch.count))
        return tuple((slot, size) for slot, size in named if isinstance(size, Dim))

    def words(self) -> list[str]:
        """Return the words with which the names of such kernels begin."""
        orders = "".join(getattr(self, name).order for name in "abc").lower()
        sizes = sizes_word(("m", self.m), ("n", self.n), ("k", self.k))
        beta = [] if self.beta == 0 else ["beta1" if self.beta == 1 else "beta"]
        return ["gemm", self.type, sizes, orders, *batch_words(self.batch), *beta]

    @property
    def products(self) -> int:
        """The number of products for each A of the batch: 2 if there is a second B, else 1."""
        return 1 if self.b2 is None else 2

    def flops(self, sizes: Mapping[str, Any]) -> Any:
        """Return the number of additions and multiplications in one call.

        ``sizes`` has m, n and k, and the count of a batch, as numbers or as formulas.
        """
        count = 1 if self.batch is None else sizes["count"]
        return 2 * self.products * sizes["m"] * sizes["n"] * sizes["k"] * count

    @property
    def is_packed(self) -> bool:
        """True if A or B is packed ahead of the call."""
        return isinstance(self.a, Packed) or isinstance(self.b, Packed)

    @property
    def quantized(self) -> Quantized | None:
        """The block-quantized format of B; None if B is not quantized in blocks."""
        return self.b.quantized if isinstance(self.b, Packed) else None

    @property
    def sums_blocks(self) -> bool:
        """True if B is quantized in blocks of K, and the sum over each block is an integer sum."""
        return self.quantized is not None and (self.quantize is not None or is_integer(self.a.type))

    @property
    def quantize(self) -> Quantize | None:
        """How A is quantized, by the kernel or by ``pack_a``; None if it is not."""
        how = self.a.quantize if isinstance(self.a, Packed) else self.a
        return how if isinstance(how, Quantize) else None

    @property
    def scales_of_blocks(self) -> int | None:
        """Length of the blocks of A's rows if the call passes a scale for each block, else None."""
        return self.a_scale[1] if isinstance(self.a_scale, tuple) else None

    @property
    def offsets_blocks(self) -> bool:
        """True if A's integers have zero points, which multiply sums of blocks of a low-bit B."""
        if self.quantize is not None:
            return self.quantize.zero is not None
        return self.sums_blocks and has_zero(self.a.type, self.a_zero)

    @property
    def factors(self) -> tuple[TypeName, TypeName]:
        """The types of A and B that determine the type of the sums; both f32 for a quantized B."""
        return factors_of(self.a, self.b)

    @property
    def rounded(self) -> tuple[TypeName, TypeName]:
        """The types of A and B after ``math`` has rounded f32."""
        a, b = self.factors
        return rounded_type(self.math, a), rounded_type(self.math, b)

    @property
    def multiplied(self) -> tuple[TypeName, ...]:
        """The types on which a core's peak speed depends: A's, B's, and s64 for 64-bit sums."""
        both: tuple[TypeName, ...] = ("u8", "s8") if self.sums_blocks else self.rounded
        return (*both, "s64") if self.type == "s64" else both

    @property
    def type(self) -> TypeName:
        """The type of the arithmetic on the sums: f32, f64, s32 or s64. See also ``sum_type``."""
        return computed_in(*self.factors, self.c.type)

    @property
    def sum_type(self) -> TypeName:
        """The type that may hold the sums over K: f16 if the spec allows f16, else ``type``."""
        return "f16" if isinstance(self.sums, tuple) or self.sums is None else self.sums

    @property
    def sum_steps(self) -> int | None:
        """Number of elements of K that are summed in f16, before f32 is used; None for no limit."""
        return self.sums[1] if isinstance(self.sums, tuple) else None

    @property
    def real(self) -> Literal["f32", "f64"]:
        """The type in which expressions are computed."""
        return "f64" if self.type == "f64" else "f32"

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """The epilogue if there is one, then the expression of each reduction in ``outputs``."""
        first = () if self.epilogue is None else (self.epilogue,)
        return (*first, *(reduction.expression for _, reduction in self.outputs))

    @property
    def named(self) -> tuple[Operand, ...]:
        """The ``tw.Operand`` objects in the epilogue and the outputs, in alphabetical order."""
        if not self.expressions:
            return ()
        from .expression import operands_of

        return operands_of(*self.expressions)

    @property
    def reads_output(self) -> bool:
        """True if the epilogue or an output reads D's old value, ``tw.dst``."""
        if not self.expressions:
            return False
        from .expression import dst, uses

        return any(uses(expression, dst) for expression in self.expressions)

    @property
    def reads_sums(self) -> bool:
        """True if the result depends on the product of A and B, which an epilogue may ignore."""
        if self.epilogue is None:
            return True
        from .expression import acc, acc2, uses

        return any(
            uses(expression, leaf) for expression in self.expressions for leaf in (acc, acc2)
        )

    @property
    def factor_type(self) -> TypeName:
        """The type in which alpha and beta are multiplied: s32, s64, f32 or f64.

        Integer arithmetic needs integer sums, integer factors, and an integer C if C is read.
        """
        factors = (self.alpha, self.beta)
        whole = all(f == "scalar" or float(f).is_integer() for f in factors)
        reads_whole = self.beta == 0 or is_integer(self.c.type)
        if is_integer(self.type) and whole and reads_whole:
            return self.type
        return "f64" if self.type == "f64" else "f32"

    @property
    def output(self) -> str:
        """Name of the matrix that the kernel writes: "c" or "d"."""
        return "c" if self.d is None else "d"

    @property
    def stays_integer(self) -> bool:
        """True if no step from the sums to the result leaves the integer type of the sums."""
        scales = (self.a_scale, self.b_scale, self.d_scale)
        output = self.c if self.d is None else self.d
        adds = self.epilogue is None
        if self.epilogue is not None:
            from .expression import is_integer_additions

            adds = is_integer_additions(self.epilogue)
        unscaled = all(s is None for s in scales)
        return is_integer(self.factor_type) and unscaled and adds and is_integer(output.type)


def _check_gemm(spec: Gemm) -> None:
    """Raise SpecError if the types, layouts and sizes of ``spec`` do not fit each other."""
    _check_types(spec)
    if spec.expressions or spec.b2 is not None:
        _check_expressions(spec)
    for name in "abcd":
        ld = getattr(spec, f"ld{name}")
        operand = getattr(spec, name)
        if ld is None:
            continue
        if operand is None or isinstance(operand, Packed):
            what = "there is no D" if operand is None else f"{name} is packed"
            raise SpecError(f"ld{name} is given, but {what}", got=ld, hint=f"leave ld{name} out")
        if name == "c" and spec.d is not None and spec.beta == 0:
            raise SpecError(
                "ldc is given, but C is neither read nor written: beta is 0, and D is written",
                got=ld,
                hint=f"ldd={ld!r}, or leave ldc out",
            )
        least = spec.contiguous_size(name)
        if isinstance(ld, int) and isinstance(least, int) and ld < least:
            raise SpecError(
                f"ld{name} is smaller than a contiguous line of {name.upper()}",
                got=ld,
                expected=f"{least} or more",
            )
    if spec.stacked:
        _check_stack(spec)
    check_dims(spec.runtime_sizes())
    _check_extents(spec)


def _check_extents(spec: Gemm) -> None:
    """Raise SpecError if an operand needs more than 2**48 bytes, or if matrices of C overlap."""
    for name, (rows, cols) in SHAPES.items():
        operand = getattr(spec, name)
        if operand is None:
            continue
        lines = rows if operand.order == "C" else cols
        itemsize = max(ITEMSIZE[operand.type], ITEMSIZE[spec.type])
        extent = (getattr(spec, lines), spec.leading(name))
        check_extent(extent, itemsize, name.upper())
        if spec.batch is None or not spec.batched(name):
            continue
        check_extent((spec.batch.count, *extent), itemsize, f"the batch of {name.upper()}")
        stride = spec.stride(name)
        check_extent((spec.batch.count, stride), itemsize, f"the batch of {name.upper()}")
        line = spec.contiguous_size(name)
        known = isinstance(stride, int) and isinstance(line, int)
        if name in ("c", "d") and known and stride < line:  # type: ignore[operator]
            raise SpecError(
                f"matrices of {name.upper()} share elements",
                got=f"one every {stride} elements, and a contiguous line has {line}",
                hint="tw.Strided(count, c=None) for one tight matrix after the other",
            )


def _check_stack(spec: Gemm) -> None:
    """Raise SpecError for arguments that a stack of products cannot have."""
    whole = [operand.name for operand in spec.named if operand.per == "full"]
    if whole or spec.outputs:
        name = whole[0] if whole else dict(spec.outputs).popitem()[0]
        raise SpecError(
            "a stack of products has neither outputs nor operands of C's size",
            got=f"{name!r}, with batch={spec.batch!r}",
            expected="operands that all products share: per row, per column, or one number",
            hint="without batch, and one call for each product",
        )


def _check_types(spec: Gemm) -> None:
    for name in "ab":
        if getattr(spec, name).type not in INPUTS:
            raise SpecError(
                f"{name.upper()} cannot have this type",
                got=getattr(spec, name).type,
                expected=f"one of {', '.join(INPUTS)}",
            )
    for name in ("a", "b", "b2", "c", "d"):
        operand = getattr(spec, name)
        if isinstance(operand, Packed) and name == "c":
            raise SpecError("A, B and D can be packed, not C", hint="tw.Matrix")
        if isinstance(operand, Quantize) and name != "a":
            raise SpecError(
                f"only A is quantized by the kernel, not {name.upper()}",
                hint="tw.Packed(tw.Quantized(...)) for B, whose elements are given so",
            )
    held = accumulator(*spec.factors)
    allowed = SUM_OUTPUTS[held]
    if spec.d is not None and held != "f64":
        allowed = tuple(name for name in TYPES if name not in ("f64", "s64"))
        allowed += ("s64",) if held == "s32" else ()
    if spec.c.type not in allowed:
        raise SpecError(
            "C cannot have this type",
            got=f"c={spec.c.type} with a={spec.a.type}, b={spec.b.type}",
            expected=f"one of {', '.join(allowed)}",
            hint="integers in A and B for sums of 64 bits"
            if spec.c.type == "s64"
            else f"d={spec.c.type!r}: D may have any type",
        )
    given = {field.name: getattr(spec, field.name) for field in fields(spec)}
    check_wide(spec.type, given, {name: given[name].type for name in "abcd" if given[name]})
    if spec.d is not None and (spec.d.type == "f64") != (spec.type == "f64"):
        raise SpecError(
            "D is f64 exactly when A and B are", got=f"d={spec.d.type}, sums in {spec.type}"
        )


def _check_expressions(spec: Gemm) -> None:
    from .expression.checks import check_leaves, check_names, check_size, check_types

    for expression in spec.expressions:
        check_size(expression)
    check_leaves(spec.expressions, b2=spec.b2 is not None, d=spec.d is not None)
    for expression in spec.expressions:
        check_types(expression, spec.type)
    if spec.b2 not in (None, spec.b):
        raise SpecError(
            "b2 must be of B's type and layout", got=f"b={spec.b}, b2={spec.b2}", expected=spec.b
        )
    if spec.outputs and spec.type == "f64":
        raise SpecError("outputs are f32, and of sums in f64 there are none", got=spec.outputs[0])
    check_names([*(operand.name for operand in spec.named), *dict(spec.outputs)])
