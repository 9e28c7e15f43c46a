"""tilewright in PyTorch: operators, layers, and a backend of ``torch.compile``.

``operator`` turns a spec into an operator of PyTorch. ``Linear``, ``QuantizedLinear`` and
``BlockQuantizedLinear`` are layers; ``quantize_`` puts quantized layers into a model. The backend
is called ``"tilewright"``; ``history`` and ``summary`` show which products the backend served.
``network_of`` turns a module into a network, a kernel without PyTorch.
Kernels and ``tw.matmul`` take tensors without this package.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401 (fails here, with a message of tilewright)
except ImportError as _error:
    from tilewright.errors import install as _install

    raise ImportError(
        f"tilewright.torch needs PyTorch, which is not installed: {_install('torch')}"
    ) from _error

from .backend import backend
from .convert import Conversion, quantize_
from .frozen import Freezable
from .layers import BlockQuantizedLinear, Linear, QuantizedLinear
from .network import network_of
from .operator import Operator, operator
from .served import Joined, Left, Served, history, summary

__all__ = [
    "BlockQuantizedLinear",
    "Conversion",
    "Freezable",
    "Joined",
    "Left",
    "Linear",
    "Operator",
    "QuantizedLinear",
    "Served",
    "backend",
    "history",
    "network_of",
    "operator",
    "quantize_",
    "summary",
]


def __dir__() -> list[str]:
    return [*__all__]
