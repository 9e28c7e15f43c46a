"""Make the fields of a ``Gemm`` from the user's arguments, and check each argument by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.errors import SpecError

from .operands import Batch, Matrix, Order, Packed
from .quantized import Quantize, check_block_scales, check_quantized
from .scalars import QUANTITIES, check_factor, check_quantity, of_sums
from .sizes import Size, check_size
from .sums import check_sums, computed_in, default_c
from .types import TypeName

# For type checkers only. At run time, only specs with an expression import these modules.
if TYPE_CHECKING:
    from .expression import Expression
    from .reductions import Outputs

#: Arguments whose result is stored in D, so that a spec with one of them has a D. D has C's type by
#: default.
MAKE_D = ("a_scale", "b_scale", "d_scale", "d_zero", "epilogue")
ZEROS = ("a_zero", "b_zero")
LEADING = ("lda", "ldb", "ldc", "ldd")


def fields_of(given: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a ``Gemm`` from its arguments ``given``, each checked by itself."""
    operands = _operands(given)
    factors = factors_of(operands["a"], operands["b"])
    sums = computed_in(*factors, operands["c"].type)
    expression, reduced = _expressions(given["epilogue"], given["outputs"])
    batch, algebra = given["batch"], given["algebra"]
    if batch is not None and not isinstance(batch, Batch):
        raise SpecError(
            "batch must be tw.Strided, tw.Offsets or tw.Addresses", got=batch, hint="Strided(16)"
        )
    if not isinstance(algebra, bool):
        raise SpecError("algebra must be True or False", got=algebra)
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
    }


def _operands(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the matrices A, B, C, D and B2; defaults follow from the arguments that are given."""
    order = given["order"]
    a = _operand(given["a"], order)
    b = _operand(a.type if given["b"] is None else given["b"], order)
    of_b = b.quantized if isinstance(b, Packed) else None
    check_quantized(a, of_b, given["k"], {name: given[name] for name in ZEROS})
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


def _leading(given: Size | None, name: str) -> Size | None:
    return None if given is None else check_size(given, name, least=1)


def _operand(given: Any, order: Order) -> Any:
    return given if isinstance(given, (Matrix, Packed, Quantize)) else Matrix(given, order)


def _expressions(epilogue: Any, outputs: Any) -> tuple[Expression | None, Outputs]:
    if epilogue is None and outputs is None:
        return None, ()
    from .expression import as_expression
    from .reductions import as_outputs

    return None if epilogue is None else as_expression(epilogue), as_outputs(outputs)
