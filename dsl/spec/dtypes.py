"""Map element types to numpy dtypes: unsigned integers of the same size if numpy lacks a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .types import ELEMENTS

DTYPES: dict[str, np.dtype[Any]] = {
    t.name: np.dtype(t.numpy if hasattr(np, t.numpy) else t.bits) for t in ELEMENTS.values()
}


def held(numbers: Sequence[float], element: str) -> np.ndarray[Any, Any]:
    """Return ``numbers`` as an array of f32, f16 or bf16, a type that holds them exactly."""
    wide = np.array(numbers, np.float32)
    made: np.ndarray[Any, Any] = wide
    if element == "bf16":
        made = (wide.view(np.uint32) >> 16).astype(np.uint16)
    return made.astype(DTYPES[element])
