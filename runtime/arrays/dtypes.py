"""The dtypes that arrays of each element type may have at a call; ml_dtypes is optional.

Arrays of types that numpy lacks are ml_dtypes' arrays, or hold the bits as unsigned integers.
ml_dtypes is imported only to make a result of such a type. Arrays that are passed have loaded it
already.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import ELEMENTS

#: Element types that numpy lacks.
FOREIGN = frozenset(name for name, dtype in DTYPES.items() if dtype.name != ELEMENTS[name].numpy)


def loaded(type_: str) -> np.dtype[Any]:
    """Return the dtype of arrays of ``type_``: ml_dtypes' own only if it is already imported."""
    module = sys.modules.get("ml_dtypes") if type_ in FOREIGN else None
    return DTYPES[type_] if module is None else np.dtype(getattr(module, ELEMENTS[type_].numpy))


@cache
def preferred(type_: str) -> np.dtype[Any]:
    """Return the dtype of new arrays of ``type_``.

    For a type that numpy lacks, it is the dtype of ml_dtypes. Without ml_dtypes, it is an unsigned
    integer type of the same size.
    """
    if type_ in FOREIGN:
        with suppress(ImportError):
            import ml_dtypes  # noqa: F401 (``loaded`` finds the module)
    return loaded(type_)


def accepts(type_: str, dtype: np.dtype[Any]) -> bool:
    """Return True if arrays of ``dtype`` hold elements of ``type_``."""
    if dtype == DTYPES[type_]:
        return True
    return type_ in FOREIGN and dtype.isnative and dtype.name == ELEMENTS[type_].numpy


def title(type_: str) -> str:
    """Return the dtypes of ``type_`` as text, for example ``ml_dtypes.bfloat16, or its bits as
    uint16``.
    """
    if type_ not in FOREIGN:
        return DTYPES[type_].name
    return f"ml_dtypes.{ELEMENTS[type_].numpy}, or its bits as {DTYPES[type_]}"
