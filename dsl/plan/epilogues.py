"""Refuse specs whose expressions are too long for one kernel."""

from __future__ import annotations

from tilewright.elementwise.builder import Builder, Value
from tilewright.elementwise.functions import lower_expression
from tilewright.errors import PlanError
from tilewright.spec.expression import Call, Expression, walk
from tilewright.spec.gemm import Gemm
from tilewright.spec.types import is_integer

#: The epilogue and the outputs together have at most this number of elementary operations.
#: A kernel repeats them for each vector of each tile. For example, 3,900 operations make 0.9 MB of
#: C code, which gcc compiles in about 10 s.
MOST_OPERATIONS = 4096


def check_length(spec: Gemm) -> None:
    """Raise PlanError if the epilogue and the expressions of outputs are too long for a kernel."""
    whole = spec.type if is_integer(spec.type) else "s32"
    builder = Builder("f64" if spec.type == "f64" else "f32", whole)
    inputs: dict[tuple[Expression, str], Value] = {}
    functions = 0

    def check() -> None:
        if len(builder.steps) > MOST_OPERATIONS:
            raise _too_long(spec, functions, len(builder.steps))

    def entering(_call: Call) -> None:
        nonlocal functions
        check()
        functions += 1

    for expression in spec.expressions:
        integer = spec.stays_integer and expression is spec.epilogue
        element = builder.whole if integer else builder.real

        def leaf(node: Expression, element: str = element) -> Value:
            return inputs.setdefault((node, element), builder.input(element))

        lower_expression(expression, builder, leaf, element, entering)
        check()


def _too_long(spec: Gemm, functions: int, operations: int) -> PlanError:
    nodes = (node for expression in spec.expressions for node in walk(expression))
    every = sum(isinstance(node, Call) for node in nodes)
    return PlanError(
        "the expressions of a spec are too long for one kernel",
        got=f"{every} functions, of which the first {functions} take {operations} elementary "
        "operations for each element",
        expected=f"at most {MOST_OPERATIONS} operations",
        hint="a kernel with a part of the epilogue, and the rest on what it computes",
    )
