"""A Python-embedded language for matrix micro-kernels.

What is computed is a spec (``Gemm``, ``Transpose``), how a ``Schedule``, where a target;
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
    from .runtime.driver import compile, compile_many
    from .runtime.kernel import Kernel
    from .runtime.measure import Timing
    from .runtime.verification import Verification
    from .schedule import Schedule
    from .spec import Addresses, Gemm, Matrix, Offsets, Strided, Transpose, dim

#: The module that defines each public name; it is imported when the name is first used.
_HOMES = {
    **dict.fromkeys(("Addresses", "Gemm", "Matrix", "Offsets", "Strided", "Transpose"), "spec"),
    "dim": "spec",
    "Schedule": "schedule",
    **dict.fromkeys(
        (
            "ArgumentError", "CacheError", "PlanError", "ScheduleError", "SpecError",
            "TargetError", "TilewrightError", "ToolchainError", "VerificationError",
        ),
        "errors",
    ),
    **dict.fromkeys(("compile", "compile_many"), "runtime.driver"),
    "Kernel": "runtime.kernel",
    "Timing": "runtime.measure",
    "Verification": "runtime.verification",
}  # fmt: skip

__version__ = "0.1.0"
__all__ = [  # noqa: PLE0604
    "__version__",
    *sorted(_HOMES),
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__]
