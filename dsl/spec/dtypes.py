"""numpy's dtypes of the element types: what memory holds, as bits where numpy lacks the type."""

from __future__ import annotations

from typing import Any

import numpy as np

from .types import ELEMENTS

DTYPES: dict[str, np.dtype[Any]] = {
    t.name: np.dtype(t.numpy if hasattr(np, t.numpy) else t.bits) for t in ELEMENTS.values()
}
