"""Register types of tensors that the C dispatcher reads itself, through DLPack's exchange API.

A type with ``__dlpack_c_exchange_api__`` offers C functions that describe a tensor without a Python
object. The dispatcher learns the type when one of its objects is first passed.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from threading import Lock
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.runtime.arrays.dlpack import type_name
from tilewright.runtime.arrays.memory import address, dtype_named
from tilewright.runtime.arrays.views import torch_if_loaded
from tilewright.spec.dtypes import DTYPES

from .dispatch import dispatcher, learn_dtypes

#: Offsets in words in struct DLPackExchangeAPI: of ``managed_tensor_to_py_object_no_sync``, which
#: makes a tensor, and of ``dltensor_from_py_object_no_sync``, which describes one.
_MAKE, _READ = 4, 5
_CODES, _SIZES = 32, 4
#: CPython's flag of a method without arguments: METH_NOARGS.
_NO_ARGUMENTS = 4
_lock = Lock()
#: Types that were examined. Each has a struct tw_tensor_type, or None if C cannot read its tensors.
_known: dict[type, Any] = {}


def learn(value: Any) -> None:
    """Register the type of ``value`` with the dispatcher if it is a type of tensors."""
    kind = type(value)
    if kind in _known or not hasattr(kind, "__dlpack_c_exchange_api__"):
        return
    with _lock:
        if kind not in _known:
            words = _words(kind)
            if words is not None:
                _learn_dtypes()
                dispatcher().learn_tensors(address(words))
            _known[kind] = words


def _words(kind: type) -> np.ndarray[Any, Any] | None:
    """Return the fields of struct tw_tensor_type for ``kind``, None if C cannot read tensors."""
    functions = _functions(kind)
    if functions is None:
        return None
    torch = torch_if_loaded()
    if torch is None or not issubclass(kind, torch.Tensor):
        return np.array([id(kind), *functions, *[0] * 5], np.int64)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        return None
    flags = _flags(torch)
    return None if flags is None else np.array([id(kind), *functions, *flags], np.int64)


def _functions(kind: Any) -> tuple[int, int] | None:
    """Return the addresses of the C functions that describe and make a tensor.

    The second is 0 if the type cannot make one. None for another version of the API, or without the
    first function.
    """
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    api = pointer_of(kind.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(api).value
    read = _word(api, _READ)
    return (read, _word(api, _MAKE)) if read and major == 1 else None


def _word(address: int, at: int) -> int:
    return ctypes.c_size_t.from_address(address + 8 * at).value


# --- PyTorch's flags ---------------------------------------------------------------------------


def _flags(torch: ModuleType) -> list[int] | None:
    """Return addresses of C functions of PyTorch, with which the dispatcher checks a tensor.

    They tell whether a tensor requires grad, whether gradients are recorded, and whether a tensor
    is the negative of its memory. None if the functions are not where CPython's headers place them.
    """
    base = torch._C.TensorBase
    grad = _getter(base, "requires_grad")
    negative = _method(base.__dict__["is_neg"], "is_neg", _DESCRIPTOR)
    mode = _method(torch.is_grad_enabled, "is_grad_enabled", 0)
    if grad is None or negative is None or mode is None:
        return None
    # The module ``torch._C``, which the C function takes as its ``self``.
    module = _word(id(torch.is_grad_enabled) + object.__basicsize__, 1)
    return [*grad, mode, negative, module]


#: Number of 8-byte words in CPython's descriptor of an attribute before the address of the
#: attribute's definition: type, name and qualified name.
_DESCRIPTOR = 3


def _getter(owner: type, name: str) -> tuple[int, int] | None:
    """Return the C function that reads an attribute, and its closure, from a PyGetSetDef."""
    descriptor = owner.__dict__[name]
    definition = _definition(descriptor, name, _DESCRIPTOR)
    return None if definition is None else (_word(definition, 1), _word(definition, 4))


def _method(function: Any, name: str, words: int) -> int | None:
    """Return the C function of a method without arguments, from CPython's PyMethodDef."""
    definition = _definition(function, name, words)
    if definition is None or ctypes.c_int.from_address(definition + 16).value != _NO_ARGUMENTS:
        return None
    return _word(definition, 1)


def _definition(described: Any, name: str, words: int) -> int | None:
    """Return the address of an object's PyMethodDef or PyGetSetDef, None if it is not found.

    The definition counts as found if it begins with the object's name.
    """
    if sys.implementation.name != "cpython":
        return None
    found = _word(id(described) + object.__basicsize__, words)
    return found if ctypes.string_at(_word(found, 0)) == name.encode() else None


# --- types of elements -------------------------------------------------------------------------


@cache
def _learn_dtypes() -> None:
    learn_dtypes(_dtype_table())


def _dtype_table() -> list[int]:
    """Return the addresses of numpy's dtypes for DLPack's types, indexed by type code and size.

    Types that numpy lacks have unsigned integers of the same size.
    """
    table = [0] * (_CODES * _SIZES)
    bits = {dtype.itemsize: dtype for dtype in DTYPES.values() if dtype.kind == "u"}
    for code in (0, 1, 2, 4, 10, 12):
        for size in range(_SIZES):
            dtype = dtype_named(type_name(code, 8 << size))
            if dtype is None and code >= 4:
                dtype = bits.get(1 << size)
            if dtype is not None and dtype.itemsize == 1 << size:
                _kept.append(dtype)
                table[_SIZES * code + size] = id(dtype)
    return table


#: The dtypes in the table, kept alive since C holds their addresses.
_kept: list[np.dtype[Any]] = []
