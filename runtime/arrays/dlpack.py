"""Read arrays of other libraries through DLPack: through ``__dlpack__`` and its capsules.

The structs are those of dlpack.h, in version 1 and in the form before versions. A capsule that
nobody takes over frees its memory when it dies, so a view keeps its capsule alive.
"""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn

import numpy as np

from tilewright.errors import ArgumentTypeError

from .memory import Array, at, dtype_named

#: DLPack's codes of devices whose memory the CPU can read: the CPU itself (1), and host memory that
#: CUDA (3) or ROCm (11) pinned.
ON_CPU = (1, 3, 11)
_READ_ONLY = 1
#: Names of DLPack's types without their number of bits, by DLPack's type code.
_PREFIXES = {0: "int", 1: "uint", 2: "float", 5: "complex"}
#: Names of the types whose code alone determines their number of bits, by DLPack's type code.
_NAMES = {
    4: "bfloat16", 6: "bool", 7: "float8_e3m4", 8: "float8_e4m3", 9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
}  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


def type_name(code: int, bits: int) -> str:
    """Return the name that numpy or ml_dtypes gives to a type of DLPack."""
    return _NAMES.get(code) or f"{_PREFIXES.get(code, f'type {code} of ')}{bits}"


def code_of(name: str, bits: int) -> int | None:
    """Return DLPack's code of the type that numpy calls ``name``; None if DLPack lacks it."""
    codes = (*_PREFIXES, *_NAMES)
    return next((code for code in codes if type_name(code, bits) == name), None)


def view(value: Any, name: str) -> Array:
    """Return a numpy array on the memory that ``value`` exports.

    The view is read-only if the exporter says so, or is too old to say. Raise ArgumentTypeError if
    ``value`` cannot be read.
    """
    device = _device(value, name)
    if device[0] not in ON_CPU:
        raise ArgumentTypeError(
            f"{name} lies on another device",
            got=f"a {type(value).__name__} on device {tuple(map(int, device))} of DLPack",
            expected="memory that the CPU reads",
            hint="a copy of it on the CPU",
        )
    capsule = _exported(value, name)
    tensor, writeable = _read(capsule)
    dtype = dtype_named(type_name(tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1 or dtype.itemsize * 8 != tensor.bits:
        raise ArgumentTypeError(
            f"{name} has elements of a type that numpy and ml_dtypes lack",
            got=f"{type_name(tensor.code, tensor.bits)} from a {type(value).__name__}",
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = _strides(tensor, shape, dtype.itemsize)
    pointer = (tensor.data or 0) + tensor.byte_offset
    return at(pointer, shape, strides, dtype, capsule, writeable=writeable)


def _device(value: Any, name: str) -> tuple[Any, Any]:
    """Return the kind of device that holds the array ``value``, and the device's number."""
    try:
        kind, number = value.__dlpack_device__()
    except Exception as error:  # noqa: BLE001, the exporter is anybody's code
        _refuse(value, name, error)
    return kind, number


def _exported(value: Any, name: str) -> Any:
    """Return the DLPack capsule of ``value``; ArgumentTypeError if ``__dlpack__`` fails."""
    try:
        try:
            capsule = value.__dlpack__(max_version=(1, 0))
        except TypeError:
            # Exporters older than DLPack's versions do not take ``max_version``.
            capsule = value.__dlpack__()
    except Exception as error:  # noqa: BLE001, the exporter is anybody's code
        _refuse(value, name, error)
    if not (_is_capsule(capsule, _VERSIONED) or _is_capsule(capsule, _PLAIN)):
        _refuse(value, name, f"__dlpack__ returned a {type(capsule).__name__}, not its capsule")
    return capsule


def _refuse(value: Any, name: str, said: object) -> NoReturn:
    if isinstance(said, MemoryError):
        raise said
    words = said if isinstance(said, str) else f"{type(said).__name__}: {said}"
    raise ArgumentTypeError(
        f"{name} cannot be read where it lies",
        got=f"a {type(value).__name__}, which says: {words:.200}",
        hint=f"np.asarray({name}), a copy",
    ) from None


_VERSIONED, _PLAIN = b"dltensor_versioned", b"dltensor"


def _is_capsule(value: Any, name: bytes) -> bool:
    valid = ctypes.pythonapi.PyCapsule_IsValid
    valid.restype, valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
    return bool(valid(value, name))


def _read(capsule: Any) -> tuple[_Tensor, bool]:
    """Return the tensor in a capsule, and whether it may be written."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if _is_capsule(capsule, _VERSIONED):
        held = _Versioned.from_address(pointer_of(capsule, _VERSIONED))
        return held.tensor, not held.flags & _READ_ONLY
    return _Tensor.from_address(pointer_of(capsule, _PLAIN)), False


def _strides(tensor: _Tensor, shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Return a tensor's strides in bytes. A tensor without strides is contiguous."""
    if tensor.strides:
        return tuple(tensor.strides[i] * item for i in range(tensor.ndim))
    reach = np.cumprod([item, *shape[:0:-1]])[::-1]
    return tuple(int(step) for step in reach) if shape else ()
