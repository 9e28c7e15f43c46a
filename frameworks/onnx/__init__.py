"""Networks from ONNX files: ``load`` returns a spec and the arrays of its weights.

Neither ONNX Runtime nor the package ``onnx`` is needed after that.
"""

from __future__ import annotations

try:
    import onnx as _onnx  # noqa: F401 (fails here, with a message of tilewright)
except ImportError as _error:
    from tilewright.errors import install as _install

    raise ImportError(
        f"tilewright.onnx needs the package onnx, which is not installed: {_install('onnx')}"
    ) from _error

from .load import load

__all__ = ["load"]


def __dir__() -> list[str]:
    return [*__all__]
