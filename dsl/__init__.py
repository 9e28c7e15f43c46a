"""A Python-embedded language for matrix micro-kernels.

What is computed is a spec (``Gemm``, ``Transpose``, ``Pack``), how a ``Schedule``, where a target;
``compile`` makes a ``Kernel`` of them, which is called on numpy arrays.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        ArgumentError,
        CacheError,
        PlanError,
        ScheduleError,
        SpecError,
        TargetError,
        TilewrightError,
        ToolchainError,
        VerificationError,
    )
    from .runtime.bench.peak import peak
    from .runtime.bench.timing import Timing
    from .runtime.call.packed_matrix import PackedMatrix
    from .runtime.driver import compile, compile_many
    from .runtime.harness import harness
    from .runtime.kernel import Kernel
    from .runtime.reference.verify import Verification
    from .spec.expression import Expression, Operand, acc, acc2, dst
    from .spec.gemm import Gemm
    from .spec.operands import Addresses, Matrix, Offsets, Packed, Strided
    from .spec.pack import Pack
    from .spec.postops import (
        abs,
        clip,
        elu,
        eq,
        erf,
        erfc,
        exp,
        ge,
        gelu_erf,
        gelu_tanh,
        gt,
        hardsigmoid,
        hardswish,
        le,
        linear,
        log,
        logistic,
        lt,
        maximum,
        minimum,
        mish,
        ne,
        pow,
        prelu,
        relu,
        round,
        silu,
        soft_relu,
        sqrt,
        square,
        swish,
        tanh,
        where,
    )
    from .spec.reductions import row_absmax, row_max, row_sum
    from .spec.schedule import Schedule
    from .spec.sizes import dim
    from .spec.transpose import Transpose
    from .targets import Targets
    from .tuning.variants import variants

    targets: Targets  # a package that can be called

__version__ = "0.1.0"
__all__ = [
    "Addresses",
    "ArgumentError",
    "CacheError",
    "Expression",
    "Gemm",
    "Kernel",
    "Matrix",
    "Offsets",
    "Operand",
    "Pack",
    "Packed",
    "PackedMatrix",
    "PlanError",
    "Schedule",
    "ScheduleError",
    "SpecError",
    "Strided",
    "TargetError",
    "TilewrightError",
    "Timing",
    "ToolchainError",
    "Transpose",
    "Verification",
    "VerificationError",
    "__version__",
    "abs",
    "acc",
    "acc2",
    "clip",
    "compile",
    "compile_many",
    "dim",
    "dst",
    "elu",
    "eq",
    "erf",
    "erfc",
    "exp",
    "ge",
    "gelu_erf",
    "gelu_tanh",
    "gt",
    "hardsigmoid",
    "hardswish",
    "harness",
    "le",
    "linear",
    "log",
    "logistic",
    "lt",
    "maximum",
    "minimum",
    "mish",
    "ne",
    "peak",
    "pow",
    "prelu",
    "relu",
    "round",
    "row_absmax",
    "row_max",
    "row_sum",
    "silu",
    "soft_relu",
    "sqrt",
    "square",
    "swish",
    "tanh",
    "targets",
    "variants",
    "where",
]

_POSTOPS = (
    "abs", "clip", "elu", "eq", "erf", "erfc", "exp", "ge", "gelu_erf", "gelu_tanh", "gt",
    "hardsigmoid", "hardswish", "le", "linear", "log", "logistic", "lt", "maximum", "minimum",
    "mish", "ne", "pow", "prelu", "relu", "round", "silu", "soft_relu", "sqrt", "square", "swish",
    "tanh", "where",
)  # fmt: skip
#: Where the public names live; a module is imported when one of its names is first used.
_HOMES = {
    "compile": "runtime.driver",
    "compile_many": "runtime.driver",
    "harness": "runtime.harness",
    "Kernel": "runtime.kernel",
    "Timing": "runtime.bench.timing",
    "peak": "runtime.bench.peak",
    "Verification": "runtime.reference.verify",
    "Schedule": "spec.schedule",
    "variants": "tuning.variants",
    "PackedMatrix": "runtime.call.packed_matrix",
    "Pack": "spec.pack",
    "dim": "spec.sizes",
    "Gemm": "spec.gemm",
    "Transpose": "spec.transpose",
    **dict.fromkeys(("Expression", "Operand", "acc", "acc2", "dst"), "spec.expression"),
    **dict.fromkeys(("row_absmax", "row_max", "row_sum"), "spec.reductions"),
    **dict.fromkeys(("Addresses", "Matrix", "Offsets", "Packed", "Strided"), "spec.operands"),
    **dict.fromkeys(_POSTOPS, "spec.postops"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "targets":  # the package itself, which can be called
        return import_module(".targets", __name__)
    found = getattr(import_module(f".{_HOMES.get(name, 'errors')}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
