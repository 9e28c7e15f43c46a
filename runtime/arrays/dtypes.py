"""The dtypes that arrays of each type may have at a call; ml_dtypes is optional.

Arrays of types that numpy lacks are ml_dtypes' or hold bits as unsigned integers. The module is
imported when a result of such a type is made; arrays that are passed have loaded it already.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np

from tilewright.spec.dtypes import DTYPES
from tilewright.spec.types import ELEMENTS

#: The types that numpy lacks.
FOREIGN = frozenset(name for name, dtype in DTYPES.items() if dtype.name != ELEMENTS[name].numpy)


def loaded(type_: str) -> np.dtype[Any]:
    """The dtype that most arrays of ``type_`` have, without an import."""
    module = sys.modules.get("ml_dtypes") if type_ in FOREIGN else None
    return DTYPES[type_] if module is None else np.dtype(getattr(module, ELEMENTS[type_].numpy))


@cache
def preferred(type_: str) -> np.dtype[Any]:
    """The dtype of results made here: bits only where ml_dtypes is not installed."""
    if type_ in FOREIGN:
        with suppress(ImportError):
            import ml_dtypes  # noqa: F401 (loaded finds it)
    return loaded(type_)


def accepts(type_: str, dtype: np.dtype[Any]) -> bool:
    """Whether arrays of ``dtype`` hold elements of ``type_``: equal, or of its name."""
    if dtype == DTYPES[type_]:
        return True
    return type_ in FOREIGN and dtype.isnative and dtype.name == ELEMENTS[type_].numpy


def title(type_: str) -> str:
    """What arrays of ``type_`` may be, for a message."""
    if type_ not in FOREIGN:
        return DTYPES[type_].name
    return f"ml_dtypes.{ELEMENTS[type_].numpy}, or its bits as {DTYPES[type_]}"
