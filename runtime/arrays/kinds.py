"""New arrays of the kind of one that is given: results that a call makes itself."""

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
    """A new array of ``type_`` in C order, its elements not set: a tensor for a tensor.

    For all others it is numpy's, which ``finished`` makes the library's of ``like``.
    """
    return maker(like, type_)(shape)


def maker(like: Any, type_: str) -> Callable[[tuple[int, ...]], Any]:
    """What makes new arrays of ``type_`` of the kind of ``like``, as ``empty`` does."""
    if is_tensor(_first(like)):
        torch: Any = torch_if_loaded()
        dtype = torch_type(torch, type_)
        if dtype is not None:
            return partial(torch.empty, dtype=dtype, device="cpu")
    return partial(new_array, dtype=preferred(type_))


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor of PyTorch; it is not imported for that."""
    torch = torch_if_loaded()
    return torch is not None and isinstance(value, torch.Tensor)


@cache
def torch_type(torch: Any, type_: str) -> Any:
    """PyTorch's dtype of an element type; None in a version that lacks it."""
    return getattr(torch, ELEMENTS[type_].numpy, None)


def finished(like: Any, made: Any) -> Any:
    """``made`` as an array of the library that ``like`` is of, if that has the standard's names.

    By ``from_dlpack`` of its ``__array_namespace__``; a result stays numpy's where there is none,
    or it cannot take the type.
    """
    like = _first(like)
    if not isinstance(made, np.ndarray) or isinstance(like, np.ndarray):
        return made
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is None:
        return made
    if made.dtype.isbuiltin == 1:
        return namespace().from_dlpack(made)
    return namespace().asarray(made)  # types that numpy's DLPack cannot name


def _first(like: Any) -> Any:
    """One of several matrices."""
    return like[0] if isinstance(like, list | tuple) and like else like
