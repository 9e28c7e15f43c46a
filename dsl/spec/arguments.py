"""Make the fields of a ``Gemm`` from the user's arguments, and check each argument by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.errors import SpecError

from .operands import Batch, Matrix, Order, Packed, Strided
from .quantized import FLOATS, SHIFTS, STORED, Quantize, Quantized, check_length
from .scalars import QUANTITIES, check_factor, check_quantity, of_sums
from .sizes import Dim, Size, check_size, real_number
from .sums import check_math, check_sums, computed_in, default_c
from .types import INPUTS, TypeName, is_integer, mixes

# For type checkers only. At run time, only specs with an expression import these modules.
if TYPE_CHECKING:
    from .expression import Expression
    from .reductions import Outputs

#: Arguments whose result is stored in D, so that a spec with one of them has a D. D has C's type by
#: default.
MAKE_D = ("a_scale", "b_scale", "d_scale", "d_zero", "epilogue")
ZEROS = ("a_zero", "b_zero")
LEADING = ("lda", "ldb", "ldc", "ldd")
#: How a packed A and a packed B are laid out, and the option of ``tw.Packed`` for that.
_PACKED = {"a": "A is packed in panels of rows", "b": "B is packed in blocks of columns"}
_UNITS = {"a": "mb=rows", "b": "nb=columns"}
#: Options of ``tw.Packed`` that a product decides itself, and whose options they are.
_OF_OTHERS = {
    "bits": ("the target decides the groups of a product's packed {}", "are for tw.Copy"),
    "b": ("the product decides by which type a packed {} is multiplied", "is for a packed D"),
}


def fields_of(given: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a ``Gemm`` from its arguments ``given``, each checked by itself."""
    operands = _operands(given)
    factors = factors_of(operands["a"], operands["b"])
    _check_zeros(given, operands["a"], operands["b"])
    sums = computed_in(*factors, operands["c"].type)
    expression, reduced = _expressions(given["epilogue"], given["outputs"])
    batch, algebra = given["batch"], given["algebra"]
    if batch is not None and not isinstance(batch, Batch):
        raise SpecError(
            "batch must be tw.Strided, tw.Offsets or tw.Addresses", got=batch, hint="Strided(16)"
        )
    if not isinstance(algebra, bool):
        raise SpecError("algebra must be True or False", got=algebra)
    _check_packed(given, operands["a"], operands["b"])
    if isinstance(operands["d"], Packed):
        _check_packed_d(operands["d"], given, expression)
    return {
        **{name: check_size(given[name], name) for name in "mnk"},
        **operands,
        **{name: check_quantity(given[name], name, sums) for name in QUANTITIES},
        **{name: check_factor(given[name], name, sums) for name in ("alpha", "beta")},
        **{name: _leading(given[name], name) for name in LEADING},
        "epilogue": expression,
        "batch": batch,
        "outputs": reduced,
        "algebra": algebra,
        "sums": check_sums(given["sums"], *factors, operands["c"].type),
        "math": check_math(
            given["math"], *factors, quantized=getattr(operands["b"], "quantized", None) is not None
        ),
    }


def _operands(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the matrices A, B, C, D and B2; defaults follow from the arguments that are given."""
    order = given["order"]
    a = _operand(given["a"], order)
    b = _operand(a.type if given["b"] is None else given["b"], order)
    of_b = b.quantized if isinstance(b, Packed) else None
    how = a.quantize if isinstance(a, Packed) else None
    check_quantized(how or a, of_b, given["k"], {name: given[name] for name in ZEROS})
    check_block_scales(given["a_scale"], a, of_b, given["batch"])
    held = default_c(given["sums"], *factors_of(a, b))
    c = _operand(held if given["c"] is None else given["c"], order)
    asked = any(of_sums(given[name]) for name in MAKE_D)
    d = _operand(given["d"], order) if given["d"] is not None else c if asked else None
    b2 = None if given["b2"] is None else _operand(given["b2"], order)
    return {"a": a, "b": b, "c": c, "d": d, "b2": b2}


def factors_of(a: Matrix | Packed | Quantize, b: Matrix | Packed) -> tuple[TypeName, TypeName]:
    """Return the types of A and B; f32 for both if B is quantized: block sums are added in f32."""
    scaled = isinstance(b, Packed) and b.quantized is not None
    return ("f32", "f32") if scaled else (a.type, b.type)


def _check_zeros(given: Mapping[str, Any], a: Any, b: Any) -> None:
    """Raise SpecError for a zero point of floating point, or one that needs sums not packed."""
    for name, operand in zip(ZEROS, (a, b), strict=True):
        if given[name] is not None and not is_integer(operand.type):
            raise SpecError(
                f"{name} needs integers in {name[0].upper()}", got=f"{name[0]}={operand.type}"
            )
    if not mixes(*factors_of(a, b)):
        return
    for name, other, what in (("a_zero", b, "B"), ("b_zero", a, "A")):
        if given[name] is not None and isinstance(other, Packed):
            raise SpecError(
                f"{name} multiplies sums of {what}, which a packed {what} of floating point does"
                " not have",
                got=f"a={a!r}, b={b!r}",
                hint=f"{'a B' if what == 'B' else 'an A'} that is not packed",
            )


def _check_packed(given: Mapping[str, Any], a: Any, b: Any) -> None:
    """Raise SpecError if A or B is packed in a way, or for a product, that has no such matrix."""
    batch = given["batch"]
    sizes, quantized = [given["k"], given["n"]], getattr(b, "quantized", None)
    if quantized is not None and any(isinstance(size, Dim) for size in sizes):
        raise SpecError(
            "a packed low-bit B has fixed sizes",
            got=f"k={sizes[0]!r}, n={sizes[1]!r}",
            hint="ints for k and n",
        )
    if isinstance(b, Packed) and isinstance(batch, Strided) and batch.b not in (None, 0):
        raise SpecError(
            "matrices of a packed B have the stride of their format",
            got=f"b={batch.b!r}",
            expected="b=None for one matrix each, or b=0 for one that serves all",
        )
    for name, operand, unit in (("a", a, "nb"), ("b", b, "mb")):
        if not isinstance(operand, Packed):
            continue
        for option, (what, whose) in _OF_OTHERS.items():
            if getattr(operand, option) is not None:
                raise SpecError(
                    what.format(name.upper()),
                    got=f"{name}={operand!r}",
                    expected=f"tw.Packed without {option}",
                    hint=f"{option} {whose}",
                )
        other = operand.quantized if name == "a" else operand.quantize
        if getattr(operand, unit) is not None or other is not None:
            raise SpecError(_PACKED[name], got=operand, expected=f"tw.Packed(type, {_UNITS[name]})")
    if isinstance(a, Packed) and (batch is not None or (quantized and a.quantize is None)):
        raise SpecError(
            "a packed A is that of one product, and quantized if B has block scales",
            got=f"a={a!r}, b={b!r}, batch={batch!r}",
            hint="tw.Packed(tw.Quantize(...)) with block scales, or an A that is not packed",
        )
    if isinstance(a, Packed) and a.quantize is not None and a.mb is not None:
        raise SpecError(
            "a quantized A is packed row by row, without panels",
            got=a,
            expected="tw.Packed(tw.Quantize(...)) without mb",
        )


def _check_packed_d(d: Packed, given: Mapping[str, Any], expression: Expression | None) -> None:
    """Raise SpecError if D cannot be packed as the A of another product."""
    if d.nb or d.bits or d.quantized or (d.format and d.mb is None):
        raise SpecError(
            "D is packed in panels of rows, as an A",
            got=d,
            expected="tw.Packed(type, mb=rows), or with the format of the A of the next kernel",
            hint='tw.Packed(type, format=kernel.formats["a"])',
        )
    b = d.b if isinstance(d.b, Quantized) else None
    if (d.quantize is None) != (b is None) or (d.quantize and d.mb):
        raise SpecError(
            "a D that is quantized is packed row by row, for a B with block scales",
            got=d,
            expected="tw.Packed(tw.Quantize(type), b=tw.Quantized(...)) without mb",
        )
    if d.quantize is not None:
        check_quantized(d.quantize, b, given["n"], {})
        if isinstance(given["n"], Dim):
            raise SpecError(
                "a D that is quantized has a fixed number of columns",
                got=f"n={given['n']!r}",
                hint="an int",
            )
    batch = given["batch"]
    if d.type not in INPUTS:
        raise SpecError(
            "a packed D is the A of another product, which cannot have this type",
            got=d,
            expected=f"one of {', '.join(INPUTS)}",
        )
    if isinstance(batch, Strided) and batch.c != 0:
        raise SpecError(
            "a packed D is that of one product",
            got=f"d={d!r}, batch={batch!r}",
            hint="without batch, and one call for each product",
        )
    if expression is not None:
        from .expression import dst, uses

        if uses(expression, dst):
            raise SpecError("tw.dst reads D, and a packed D is only written", got=d, hint="tw.acc")


def _leading(given: Size | None, name: str) -> Size | None:
    return None if given is None else check_size(given, name, least=1)


def _operand(given: Any, order: Order) -> Any:
    operand = given if isinstance(given, (Matrix, Packed, Quantize)) else Matrix(given, order)
    if isinstance(operand, Matrix) and operand.nibbles:
        raise SpecError(
            "an operand of a product cannot be a matrix of nibbles",
            got=operand.type,
            hint="tw.Copy reads nibbles; a low-bit B is tw.Packed(tw.Quantized(...))",
        )
    return operand


def _expressions(epilogue: Any, outputs: Any) -> tuple[Expression | None, Outputs]:
    if epilogue is None and outputs is None:
        return None, ()
    from .expression import as_expression
    from .reductions import as_outputs

    return None if epilogue is None else as_expression(epilogue), as_outputs(outputs)


def check_block_scales(a_scale: object, a: object, b: Quantized | None, batch: object) -> None:
    """Raise SpecError if A has scales for blocks of its rows that do not fit A, B or the batch."""
    if not isinstance(a_scale, tuple):
        return
    if b is None or getattr(a, "type", None) not in SHIFTS or isinstance(a, Quantize):
        raise SpecError(
            "scales of blocks belong to an A of s8 or u8 that meets a quantized B",
            got=f"a_scale={a_scale!r}, a={a!r}",
            expected='a="s8" or "u8", b=tw.Packed(tw.Quantized(...))',
        )
    if a_scale != b.per:
        raise SpecError(
            "A and B are quantized in blocks of other lengths",
            got=f"a_scale={a_scale!r}, b={b!r}",
            expected=f"a_scale={b.per!r}",
        )
    if batch is not None:
        raise SpecError(
            "scales of blocks are those of one A",
            got=batch,
            hint="without batch, and one call for each product",
        )


def check_quantized(a: object, b: Quantized | None, k: object, zeros: Mapping[str, object]) -> None:
    """Raise SpecError unless the quantized formats of A and B fit each other along K.

    ``zeros`` are the arguments ``a_zero`` and ``b_zero``. Beside a quantized B, only an A of
    integers may have a zero point.
    """
    if not isinstance(a, Quantize) and b is None:
        return
    if b is None:
        raise SpecError(
            "A is quantized by the kernel, and B is not",
            got=a,
            expected="a B of integers with scales",
            hint='b=tw.Packed(tw.Quantized("s8", block=32))',
        )
    _check_beside(a, zeros)
    type_: Any = getattr(a, "type", None)
    if not isinstance(a, Quantize):
        if type_ not in (*FLOATS, *SHIFTS):
            raise SpecError(
                "a B that is quantized in blocks does not meet an A of this type",
                got=f"a={type_}",
                expected=f"one of {', '.join(FLOATS)}, a tw.Quantize of one of them, s8 or u8",
                hint=f'a=tw.Quantize("f32", per={b.per!r})',
            )
        if type_ in SHIFTS and getattr(a, "order", "C") != "C":
            raise SpecError("integers that meet a quantized B lie in rows", got=a, expected="C")
    if type_ in FLOATS and not isinstance(a, Quantize):
        return
    if not is_integer(b.stored.unpacked) or (b.stored.values and not b.stored.factor):
        known = [n for n, one in STORED.items() if is_integer(one.unpacked) and not one.values]
        known += [name for name, one in STORED.items() if one.factor]
        raise SpecError(
            f"integers do not multiply the numbers of {b.type}",
            got=f"a={a!r}, b of {b.type}",
            expected=f"an A of floating point, or a B of {', '.join(known)}",
            hint='a="f32"',
        )
    if isinstance(a, Quantize) and a.block not in (None, b.along):
        raise SpecError(
            "A and B are quantized in blocks of other lengths",
            got=f"{a.block} elements of K in A, {b.along or 'all'} in B",
            hint=f"per={b.per!r}, or per='row'",
        )
    if isinstance(k, int):
        if isinstance(a, Quantize):
            wide = a.zero is not None
        else:
            wide = has_zero(type_, zeros.get("a_zero"))
        check_length(b, b.block_of(k), wide=wide)


def has_zero(type_: str, zero: object) -> bool:
    """Return True if an A of integers of this type, made s8, has a zero point other than 0."""
    return real_number(0 if zero is None else zero) != SHIFTS[type_]


def _check_beside(a: object, zeros: Mapping[str, object]) -> None:
    """Raise SpecError for a zero point that A and a quantized B do not allow."""
    hints = {
        "a_zero": 'a=tw.Quantize(..., zero="s8"), or an A of s8 or u8',
        "b_zero": "tw.Quantized(zero=...) for B's",
    }
    type_ = "" if isinstance(a, Quantize) else getattr(a, "type", "")
    for name, zero in zeros.items():
        if zero is None:
            continue
        if name != "a_zero" or type_ not in SHIFTS:
            raise SpecError(
                f"{name} is given, but what is quantized in blocks has no zero point beside them",
                got=zero,
                hint=hints[name],
            )
        held, number = STORED[type_], real_number(zero)
        if number is not None and not held.low <= number <= held.high:
            raise SpecError(
                "the zero point of an A that meets a quantized B must be a number of A's type",
                got=zero,
                expected=f"{held.low} to {held.high}",
            )
