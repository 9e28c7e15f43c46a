"""tilewright in PyTorch: operators, layers, and a backend of ``torch.compile``.

``operator`` makes an operator of a spec; ``Linear``, ``QuantizedLinear`` and
``BlockQuantizedLinear`` are layers; the backend is called ``"tilewright"``. Kernels themselves take
tensors without this package.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 (said here, and not where one of its parts is first used)
except ImportError as _error:
    raise ImportError(
        "tilewright.torch needs PyTorch, which is not installed: pip install 'tilewright[torch]'"
    ) from _error

from .backend import backend
from .layers import BlockQuantizedLinear, Linear, QuantizedLinear
from .operator import Operator, operator

__all__ = ["BlockQuantizedLinear", "Linear", "Operator", "QuantizedLinear", "backend", "operator"]
