"""Multiply matrices on the CPU: generated C kernels, called on numpy arrays.

A spec (``Gemm``, ``Copy``, ``Pack``) says what is computed, a ``Schedule`` how, and a target
where. ``compile`` turns them into a ``Kernel``, which is called on numpy arrays.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import nn as nn
    from .errors import (
        ArgumentError,
        CacheError,
        EmulationWarning,
        PlanError,
        ScheduleError,
        SpecError,
        TargetError,
        TilewrightError,
        ToolchainError,
        TuningError,
        VerificationError,
    )
    from .runtime.bench.peak import peak
    from .runtime.bench.profile import Profile, StageTime
    from .runtime.bench.timing import Timing
    from .runtime.calibrate.run import Calibrated, calibrate
    from .runtime.call.packed_matrix import PackedMatrix
    from .runtime.call.packed_weights import PackedWeights
    from .runtime.driver import compile, compile_many
    from .runtime.harness import harness
    from .runtime.kernel import Kernel
    from .runtime.library.make import Library, library
    from .runtime.matmul.constant import PackedB, pack
    from .runtime.matmul.product import matmul
    from .runtime.quantized.gguf import from_gguf, to_gguf
    from .runtime.quantized.matrix import QuantizedMatrix
    from .runtime.quantized.quantize import quantize
    from .runtime.quantized.words import from_awq, from_compressed_tensors, from_gptq, unpack
    from .runtime.reference.verify import Verification
    from .spec.expression import Expression, Operand, acc, acc2, dst, postop
    from .spec.gemm import Gemm
    from .spec.network.stages import Stage, Stages
    from .spec.network.tensor import Tensor
    from .spec.network.trace import NetworkFunction, network
    from .spec.network.value import Network
    from .spec.operands import Addresses, Matrix, Offsets, Packed, Strided
    from .spec.pack import Copy, Pack, PackQuantized, QuantizeRows
    from .spec.postops import *  # noqa: F403
    from .spec.quantized import Quantize, Quantized, Table
    from .spec.reductions import row_absmax, row_max, row_sum
    from .spec.schedule import Schedule
    from .spec.sizes import dim
    from .spec.transpose import Transpose
    from .targets import Targets
    from .tuning.tune import tune
    from .tuning.variants import variants

    targets: Targets  # ``tw.targets`` is a package, which can be called like a function

__version__ = "0.1.0"
__all__ = [
    "Addresses",
    "ArgumentError",
    "CacheError",
    "Calibrated",
    "Copy",
    "EmulationWarning",
    "Expression",
    "Gemm",
    "Kernel",
    "Library",
    "Matrix",
    "Network",
    "NetworkFunction",
    "Offsets",
    "Operand",
    "Pack",
    "PackQuantized",
    "Packed",
    "PackedB",
    "PackedMatrix",
    "PackedWeights",
    "PlanError",
    "Profile",
    "Quantize",
    "QuantizeRows",
    "Quantized",
    "QuantizedMatrix",
    "Schedule",
    "ScheduleError",
    "SpecError",
    "Stage",
    "StageTime",
    "Stages",
    "Strided",
    "Table",
    "TargetError",
    "Tensor",
    "TilewrightError",
    "Timing",
    "ToolchainError",
    "Transpose",
    "TuningError",
    "Verification",
    "VerificationError",
    "__version__",
    "acc",
    "acc2",
    "calibrate",
    "compile",
    "compile_many",
    "dim",
    "dst",
    "from_awq",
    "from_compressed_tensors",
    "from_gguf",
    "from_gptq",
    "harness",
    "library",
    "matmul",
    "network",
    "pack",
    "peak",
    "postop",
    "quantize",
    "row_absmax",
    "row_max",
    "row_sum",
    "targets",
    "to_gguf",
    "tune",
    "unpack",
    "variants",
]
_NAMES = frozenset(__all__)
if TYPE_CHECKING:  # pyright needs these modules to understand the additions to __all__ below
    import tilewright.spec.expression.activations as activations  # noqa: PLR0402
    import tilewright.spec.expression.arithmetic as arithmetic  # noqa: PLR0402
    import tilewright.spec.expression.comparisons as comparisons  # noqa: PLR0402
    import tilewright.spec.expression.exponential as exponential  # noqa: PLR0402
    import tilewright.spec.expression.gaussian as gaussian  # noqa: PLR0402
    import tilewright.spec.expression.logarithm as logarithm  # noqa: PLR0402
    import tilewright.spec.expression.trigonometry as trigonometry  # noqa: PLR0402

    __all__ += activations.__all__
    __all__ += arithmetic.__all__
    __all__ += comparisons.__all__
    __all__ += exponential.__all__
    __all__ += gaussian.__all__
    __all__ += logarithm.__all__
    __all__ += trigonometry.__all__
else:
    del __all__  # so that __getattr__ makes __all__ on demand, with the names of the post-ops

#: The module that defines each public name; it is imported when the name is first used. Names that
#: are missing here are in ``errors``.
_HOMES = {
    "compile": "runtime.driver",
    "compile_many": "runtime.driver",
    "harness": "runtime.harness",
    "Kernel": "runtime.kernel",
    **dict.fromkeys(("Library", "library"), "runtime.library.make"),
    "matmul": "runtime.matmul.product",
    **dict.fromkeys(("PackedB", "pack"), "runtime.matmul.constant"),
    **dict.fromkeys(("Profile", "StageTime"), "runtime.bench.profile"),
    "Timing": "runtime.bench.timing",
    "peak": "runtime.bench.peak",
    **dict.fromkeys(("Calibrated", "calibrate"), "runtime.calibrate.run"),
    "Verification": "runtime.reference.verify",
    "Schedule": "spec.schedule",
    "tune": "tuning.tune",
    "variants": "tuning.variants",
    "PackedMatrix": "runtime.call.packed_matrix",
    "PackedWeights": "runtime.call.packed_weights",
    "QuantizedMatrix": "runtime.quantized.matrix",
    **dict.fromkeys(("from_gguf", "to_gguf"), "runtime.quantized.gguf"),
    **dict.fromkeys(
        ("from_awq", "from_compressed_tensors", "from_gptq", "unpack"), "runtime.quantized.words"
    ),
    "quantize": "runtime.quantized.quantize",
    **dict.fromkeys(("Pack", "PackQuantized", "QuantizeRows"), "spec.pack"),
    **dict.fromkeys(("Quantize", "Quantized", "Table"), "spec.quantized"),
    "dim": "spec.sizes",
    "Gemm": "spec.gemm",
    "Copy": "spec.pack",
    "Network": "spec.network.value",
    **dict.fromkeys(("NetworkFunction", "network"), "spec.network.trace"),
    **dict.fromkeys(("Stage", "Stages"), "spec.network.stages"),
    "Tensor": "spec.network.tensor",
    "Transpose": "spec.transpose",
    **dict.fromkeys(("Expression", "Operand", "acc", "acc2", "dst", "postop"), "spec.expression"),
    **dict.fromkeys(("row_absmax", "row_max", "row_sum"), "spec.reductions"),
    **dict.fromkeys(("Addresses", "Matrix", "Offsets", "Packed", "Strided"), "spec.operands"),
}

#: Names that users may know from other libraries, and what to use instead in tilewright.
_MEANT = {
    "sigmoid": "it is tw.logistic",
    "gelu": "there are tw.gelu_erf, which is exact, and tw.gelu_tanh",
    "softplus": "it is tw.soft_relu",
    "leaky_relu": "it is tw.relu(x, alpha)",
    **{name: f"tw.nn.{name} is of tensors" for name in ("softmax", "layer_norm", "mean")},
    "max": "tw.maximum is of elements, tw.row_max of rows, tw.nn.max of tensors",
    "min": "tw.minimum is of elements",
    "sum": "tw.row_sum is of rows, tw.nn.sum of tensors",
    "gemm": "tw.matmul multiplies arrays, tw.Gemm is the spec of a kernel",
    "bmm": "tw.matmul multiplies stacks too",
    "dot": "tw.matmul multiplies arrays",
    "jit": "tw.compile makes a kernel of a spec",
    "dequantize": "tw.QuantizedMatrix has it; tw.quantize makes one",
}


def __getattr__(name: str) -> Any:
    if name in ("targets", "nn"):  # modules; ``targets`` can be called like a function
        return import_module(f".{name}", __name__)
    if name == "__all__":
        return sorted(_NAMES.union(_postops()))
    if name in _NAMES:
        home = _HOMES.get(name, "errors")
    elif not name.startswith("_") and not _is_module(name) and name in _postops():
        home = "spec.postops"
    else:
        meant = f": {_MEANT[name]}" if name in _MEANT else ""
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{meant}",
            name=name,
            obj=sys.modules[__name__],
        )
    found = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = found
    return found


def _postops() -> list[str]:
    names: list[str] = import_module(".spec.postops", __name__).NAMES
    return names


def _is_module(name: str) -> bool:
    """Return True if ``name`` is a module of this package, and not a post-op.

    ``from tilewright import`` asks for modules as attributes.
    """
    from importlib.util import find_spec

    return find_spec(f".{name}", __name__) is not None


def __dir__() -> list[str]:
    return list(__getattr__("__all__"))
