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
    from .expression import Expression, Operand, acc, acc2, dst
    from .operands import Addresses, Matrix, Offsets, Packed, Strided
    from .pack import Pack
    from .postops import (
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
    from .reductions import row_absmax, row_max, row_sum
    from .runtime.driver import compile, compile_many
    from .runtime.harness import harness
    from .runtime.kernel import Kernel
    from .runtime.measure import Timing
    from .runtime.packed import PackedMatrix
    from .runtime.peak import peak
    from .runtime.verification import Verification
    from .schedule import Schedule
    from .sizes import dim
    from .spec import Gemm, Transpose
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
    "Timing": "runtime.measure",
    "peak": "runtime.peak",
    "Verification": "runtime.verification",
    "Schedule": "schedule",
    "variants": "tuning.variants",
    "PackedMatrix": "runtime.packed",
    "Pack": "pack",
    "dim": "sizes",
    **dict.fromkeys(("Gemm", "Transpose"), "spec"),
    **dict.fromkeys(("Expression", "Operand", "acc", "acc2", "dst"), "expression"),
    **dict.fromkeys(("row_absmax", "row_max", "row_sum"), "reductions"),
    **dict.fromkeys(("Addresses", "Matrix", "Offsets", "Packed", "Strided"), "operands"),
    **dict.fromkeys(_POSTOPS, "postops"),
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
