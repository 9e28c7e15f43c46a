"""Functions of tensors as modules of PyTorch, for tests that have imported PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Function(nn.Module):  # type: ignore[misc]
    """A function of tensors, and layers, as a module."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *tensors: Any) -> Any:
        return self.function(self, *tensors)
