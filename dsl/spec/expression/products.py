"""Define the nodes of networks with products: weights, and products of two tensors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewright.errors import SpecError, SpecTypeError
from tilewright.keywords import spelled

from ..quantized import Quantized
from ..types import DTypeLike, TypeName, accumulator, is_integer, type_name
from .nodes import ARRAY_FUNCTIONS, Call, Composed, Expression, Number
from .shapes import Shaped, multiplied, said
from .tensors import cast

#: Types of the elements that integer products multiply.
_BYTES = ("u8", "s8")


@dataclass(frozen=True, slots=True, repr=False)
class Weight(Expression):
    """An array that ``pack`` takes once: its namespace, its name in it, its type and shape.

    ``quantized`` is the format of a low-bit weight, whose elements are computed with in f32.
    """

    space: str
    key: str
    type: TypeName
    shape: tuple[int, ...]
    quantized: Quantized | None = None

    @property
    def name(self) -> str:
        """The name of the weight's array in C and in a call, for example ``w_up``."""
        return f"{self.space}_{self.key}"

    @property
    def declared(self) -> TypeName | Quantized:
        """The type as ``tw.Tensor`` takes it."""
        return self.quantized or self.type

    @property
    def tensor(self) -> Shaped:
        """Type and shape."""
        return Shaped(self.type, self.shape)

    def __repr__(self) -> str:
        return f"{self.space}.{self.key}"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Product(Composed):
    """The product of tensors (..., m, k) and (..., k, n); leading axes broadcast.

    The sums are f32, f64 or s32, and are rounded to ``type``. The integers ``a_zero`` and
    ``b_zero`` are subtracted from the elements of both before they are multiplied.
    """

    type: TypeName
    a_zero: int
    b_zero: int
    args: tuple[Expression, ...]
    tensor: Shaped = field(init=False)
    _hash: int = field(init=False)

    def __post_init__(self) -> None:
        x, w = self.args
        if x.tensor is None or w.tensor is None:
            raise SpecError(
                "a product is of two tensors",
                got=f"{x!r} @ {w!r}",
                expected='x @ w.up, with of(x=tw.Tensor(...), w={"up": array})',
            )
        shape = multiplied(x.tensor, w.tensor, self.args)
        if isinstance(w, Weight) and w.quantized is not None and is_integer(x.tensor.type):
            raise SpecError(
                "a low-bit weight is multiplied by floating point",
                got=f"{x.tensor} @ {w!r}",
                expected="x of type f32, bf16 or f16",
            )
        sums = _sums(x.tensor.type, w)
        if self.type != sums and (is_integer(sums) or sums == "f64" or is_integer(self.type)):
            raise SpecError(
                f"the sums of this product are {sums}, which are not rounded to another type",
                got=self.type,
                expected=sums,
                hint=f"(x @ w).astype({self.type!r})",
            )
        object.__setattr__(self, "tensor", Shaped(self.type, shape))
        object.__setattr__(self, "_hash", hash(("product", self.shell, self.args)))

    @property
    def sums(self) -> TypeName:
        """The type of the sums."""
        assert self.args[0].tensor is not None
        return _sums(self.args[0].tensor.type, self.args[1])

    @property
    def infix(self) -> str:  # type: ignore[override]
        """The operator ``@`` for a product as that makes it."""
        assert self.args[0].tensor is not None
        plain = (_result(self.args[0].tensor.type, self.args[1]), 0, 0)
        return "@" if self.shell == plain else ""

    @property
    def weight(self) -> Weight | None:
        """The second operand if it is a weight, which is packed once; else None."""
        weight = self.args[1]
        return weight if isinstance(weight, Weight) and len(weight.shape) == 2 else None

    @property
    def shell(self) -> tuple[Hashable, ...]:
        """The type and the zero points."""
        return self.type, self.a_zero, self.b_zero

    @classmethod
    def of(cls, shell: tuple[Any, ...], args: tuple[Expression, ...]) -> Product:
        """Return the product with these fields and arguments."""
        type_, a_zero, b_zero = shell
        return Product(type_, a_zero, b_zero, args)

    def printed(self, args: list[str]) -> str:
        """Return the Python code that makes the product."""
        zeros = (("a_zero", self.a_zero), ("b_zero", self.b_zero))
        more = [f", {name}={zero}" for name, zero in zeros if zero]
        kept = "" if is_integer(self.type) else f", type={self.type!r}"
        return f"nn.product({args[0]}, {args[1]}{kept}{''.join(more)})"


def _sums(x: TypeName, w: Expression) -> TypeName:
    assert w.tensor is not None
    low = isinstance(w, Weight) and w.quantized is not None
    return accumulator(x, "f32" if low else w.tensor.type)


def _result(x: TypeName, w: Expression) -> TypeName:
    """Return the type of ``x @ w``: that of x, but integers have sums of s32."""
    sums = _sums(x, w)
    return sums if is_integer(sums) or is_integer(x) else x


class Dequantized(NamedTuple):
    """An integer tensor with its zero point, and the scale by which it is multiplied."""

    tensor: Expression
    zero: int = 0
    scale: Expression | None = None


def dequantized(x: Expression) -> Dequantized | None:
    """Return the parts of ``(x - zero) * scale``, where x has 8-bit integers; None for others."""
    scale: Expression | None = None
    if isinstance(x, Call) and x.fn == "mul":
        x, scale = x.args
    less = x.args[1] if isinstance(x, Call) and x.fn == "sub" else None
    zero = 0
    if isinstance(x, Call) and isinstance(less, Number):
        if not float(less.value).is_integer():
            return None
        x, zero = x.args[0], int(less.value)
    if x.tensor is None or x.tensor.type not in _BYTES:
        return None
    return Dequantized(x, zero, scale)


@spelled(SpecTypeError)
def product(
    x: Any, w: Any, *, type: DTypeLike | None = None, a_zero: int = 0, b_zero: int = 0
) -> Expression:
    """Return the product of two tensors, as ``x @ w`` does, rounded to ``type``.

    If both are dequantized integers, their integers are multiplied, and the sums are scaled.

    Parameters
    ----------
    x : Expression
        A tensor (..., m, k), or (k,) for a row.
    w : Expression
        A weight (k, n), which is packed once, or a tensor (..., k, n). Leading axes broadcast.
    type : str or numpy type, optional
        Type of the result: "f32" keeps the sums of bf16 and f16. By default the type of ``x``, and
        s32 for integers.
    a_zero, b_zero : int
        Zero points of integers, which are subtracted from ``x`` and from ``w``.

    Returns
    -------
    Expression
        A tensor (..., m, n).

    Examples
    --------
    >>> layer = tw.network(lambda x, w: tw.nn.product(x, w.up, a_zero=1))
    >>> spec = layer.of(x=tw.Tensor("u8", (1, 2)), w={"up": tw.Tensor("s8", (2, 2))})
    >>> net = tw.compile(spec)
    >>> net(np.uint8([[2, 4]]), net.pack({"up": np.int8([[1, 0], [0, 1]])}))
    array([[1, 3]], dtype=int32)
    """
    for each in (x, w):
        if not isinstance(each, Expression) or each.tensor is None:
            raise SpecError(
                "a product is of two tensors",
                got=each.__class__.__name__,
                expected='x @ w.up, with of(x=tw.Tensor(...), w={"up": array})',
            )
    if 1 in (x.ndim, w.ndim):
        return _of_vectors(x, w, type=type, a_zero=a_zero, b_zero=b_zero)
    wanted = None if type is None else type_name(type)
    a, b = dequantized(x), dequantized(w)
    if a is None and b is not None and b.scale is not None:
        raise SpecError(
            "the weight is dequantized, and x is not",
            got=f"{x!r} @ {w!r}",
            expected="x that nn.dequantize returns, of an integer tensor",
            hint="nn.dequantize(nn.quantize(x, scale), scale) @ ..., or a tw.Quantized weight",
        )
    if a is None or b is None:
        kept = wanted or _result(x.tensor.type, w)
        return Product(kept, a_zero, b_zero, (x, w))
    _check_scale("x", a.scale, x, -1)
    _check_scale("the weight", b.scale, w, -2)
    found: Expression = Product("s32", a.zero + a_zero, b.zero + b_zero, (a.tensor, b.tensor))
    for scale in (a.scale, b.scale):
        found = found if scale is None else found * scale
    return found if wanted is None else cast(found, wanted)


def _of_vectors(x: Expression, w: Expression, **how: Any) -> Expression:
    """Return a product of which an operand has one axis: ``x`` is a row, ``w`` a column."""
    reshape = ARRAY_FUNCTIONS["reshape"]
    row, column = x.ndim == 1, w.ndim == 1
    left = x[None] if row else x
    right = w[:, None] if column else w
    found = product(left, right, **how)
    assert found.tensor is not None
    shape = found.tensor.shape
    return reshape(found, (*shape[:-2], *shape[-2 + row : len(shape) - column]))


def _check_scale(what: str, scale: Expression | None, of: Expression, axis: int) -> None:
    """Raise SpecError if a scale varies along K, the axis -1 of x or -2 of the weight."""
    shape = () if scale is None or scale.tensor is None else scale.tensor.shape
    if len(shape) >= -axis and shape[axis] != 1:
        raise SpecError(
            f"the scale of {what} varies along K, which the product sums over",
            got=f"{said(shape)} in {of!r}",
            expected="a number, " + ("(rows, 1)" if axis == -1 else "(n,) or (1, n)"),
            hint='tw.Quantized(type, scale="f32", block=...) has a scale for each block of K',
        )


ARRAY_FUNCTIONS["matmul"] = product
