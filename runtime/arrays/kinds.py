"""Make the arrays that a call returns: of the same library as the call's first array."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from tilewright.spec.types import ELEMENTS

from .dtypes import preferred
from .memory import new_array
from .views import torch_if_loaded


def empty(like: Any, shape: tuple[int, ...], type_: str) -> Any:
    """Return a new array of ``type_`` in C order, with unset elements.

    It is a tensor if ``like`` is one. Otherwise it is a numpy array, and ``finished`` converts it
    to the library of ``like``.
    """
    return maker(like, type_)(shape)


def maker(like: Any, type_: str) -> Callable[[tuple[int, ...]], Any]:
    """Return a function that makes new arrays of ``type_``: tensors if ``like`` is a tensor."""
    if is_tensor(_first(like)):
        torch: Any = torch_if_loaded()
        dtype = torch_type(torch, type_)
        if dtype is not None:
            return partial(torch.empty, dtype=dtype, device="cpu")
    return partial(new_array, dtype=preferred(type_))


def is_tensor(value: Any) -> bool:
    """Return True if ``value`` is a tensor of PyTorch. PyTorch is not imported for the test."""
    torch = torch_if_loaded()
    return torch is not None and isinstance(value, torch.Tensor)


@cache
def torch_type(torch: Any, type_: str) -> Any:
    """Return PyTorch's dtype of an element type; None if this version of PyTorch lacks it."""
    return getattr(torch, ELEMENTS[type_].numpy, None)


def finished(like: Any, made: Any) -> Any:
    """Return ``made`` as an array of the library of ``like``, if it follows the array API standard.

    The conversion is ``from_dlpack`` of ``__array_namespace__``. The result stays a numpy array if
    the library has no such function, or lacks the type.
    """
    like = _first(like)
    if not isinstance(made, np.ndarray) or isinstance(like, np.ndarray):
        return made
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is None:
        return made
    if made.dtype.isbuiltin == 1:
        return namespace().from_dlpack(made)
    # numpy cannot export types such as bfloat16 through DLPack.
    return namespace().asarray(made)


def _first(like: Any) -> Any:
    """Return the first matrix if ``like`` is a list or tuple of matrices, else ``like``."""
    return like[0] if isinstance(like, list | tuple) and like else like
