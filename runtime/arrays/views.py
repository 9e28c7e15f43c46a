"""Read arrays of other libraries as numpy views, or raise an error that says why that fails.

These are tensors of PyTorch, arrays with DLPack, and objects with Python's buffer protocol. Nothing
is copied, and a view keeps its source alive.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.errors import ArgumentTypeError

from . import dlpack
from .memory import Array, at, dtype_named

#: Text for error messages: the kinds of arrays that a call accepts.
OF_ANY = "a numpy array, a tensor of PyTorch on the CPU, or what has DLPack or a buffer"


def is_masked(value: Any) -> bool:
    """Return True if ``value`` is a masked array. numpy's module for them is slow to import."""
    return "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray)


def as_array(value: Any, name: str) -> Any:
    """Return ``value`` as a numpy array on the same memory, or ``value`` itself if it is no array.

    An array that cannot be written is read-only. ArgumentTypeError, naming the argument ``name``,
    if the array cannot be read: on another device, sparse, of a type that numpy and ml_dtypes lack,
    or recorded for gradients.
    """
    if isinstance(value, np.ndarray | np.generic | int | float | list | tuple):
        return value
    torch = torch_if_loaded()
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value, name)
    if hasattr(type(value), "__dlpack__"):
        _check_traced(value, name)
        return dlpack.view(value, name)
    try:
        buffer = memoryview(value)
    except TypeError:
        return value
    return _of_buffer(buffer, value, name)


def torch_if_loaded() -> ModuleType | None:
    """Return PyTorch if this process has imported it: only then can a value be a tensor."""
    return sys.modules.get("torch")


def what_to_do(value: Any, name: str) -> str | None:
    """Return advice on how to make an array from ``value``, None if there is none."""
    if is_masked(value):
        return f"{name}.filled(0): elements that are masked have no value"
    for method, meaning in (
        ("to_numpy", "the numbers of a table or a series as one array"),
        ("toarray", "a sparse matrix with its zeros"),
        ("todense", "a sparse array with its zeros"),
        ("dequantize", "its numbers as floats, or tw.pack, which takes it as it is"),
    ):
        if callable(getattr(value, method, None)):
            return f"{name}.{method}(): {meaning}"
    return None


def is_view_of_tensor(array: Array) -> bool:
    """Return True if ``as_array`` made the array from a tensor of PyTorch.

    Hints in error messages then name functions of PyTorch.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    torch = torch_if_loaded()
    return torch is not None and isinstance(getattr(base, "owner", None), torch.Tensor)


def _of_tensor(torch: ModuleType, tensor: Any, name: str) -> Array:
    """Return a numpy view of a tensor of PyTorch, which must be on the CPU and strided."""
    _check_tensor(torch, tensor, name)
    dtype = dtype_named(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise ArgumentTypeError(
            f"{name} is a tensor of a type that numpy and ml_dtypes lack", got=str(tensor.dtype)
        )
    try:
        # Tensors that torch.func.functionalize passes have address 0.
        pointer, said = tensor.data_ptr(), "no address"
    except RuntimeError as error:
        pointer, said = 0, str(error).splitlines()[0]
    if not pointer and tensor.numel():
        raise ArgumentTypeError(
            f"{name} is a tensor without memory of its own",
            got=f"{said:.100}",
            hint="tilewright.torch.operator(spec), inside of torch.compile and of torch.func",
        )
    strides = tuple(stride * dtype.itemsize for stride in tensor.stride())
    return at(pointer, tuple(tensor.shape), strides, dtype, tensor, writeable=True)


def _check_tensor(torch: ModuleType, tensor: Any, name: str) -> None:
    """Raise ArgumentTypeError unless a tensor's elements are in the CPU's memory, with strides."""
    if tensor.is_nested:
        raise ArgumentTypeError(
            f"{name} is a nested tensor, whose parts have shapes of their own",
            got=f"a nested {type(tensor).__name__} of {tensor.dtype}",
            hint=f"{name}.unbind(): its parts, one by one; or {name}.to_padded_tensor(0.0)",
        )
    said = f"a {type(tensor).__name__} of {tensor.dtype}, shape {tuple(tensor.shape)}"
    plain = torch._C._disabled_torch_dispatch_impl
    if getattr(type(tensor), "__torch_dispatch__", plain) is not plain:
        raise ArgumentTypeError(
            f"{name} is a tensor of a kind of its own, whose memory says nothing",
            got=said,
            hint="tilewright.torch.operator(spec), which torch.compile and torch.func see through",
        )
    if tensor.layout is not torch.strided:
        raise ArgumentTypeError(
            f"{name} is a sparse tensor", got=f"{said}, {tensor.layout}", hint=f"{name}.to_dense()"
        )
    if tensor.device.type != "cpu":
        raise ArgumentTypeError(
            f"{name} lies on another device",
            got=f"{said} on {tensor.device}",
            expected="memory that the CPU reads",
            hint="a tensor of the meta device has no elements: make it on the CPU"
            if tensor.device.type == "meta"
            else f"{name}.cpu()",
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ArgumentTypeError(
            f"{name} is a view that conjugates or negates what lies in memory",
            got=said,
            hint=f"{name}.resolve_conj().resolve_neg()",
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArgumentTypeError(
            f"{name} is a tensor that requires grad, and a kernel records no gradient",
            got=said,
            hint=f"{name}.detach(), or the call in `with torch.no_grad():`; "
            "tilewright.torch.operator(spec) has gradients",
        )


def _check_traced(value: Any, name: str) -> None:
    """Raise ArgumentTypeError for the placeholder that JAX passes while it traces a function."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise ArgumentTypeError(
            f"{name} is traced by JAX, and has no elements yet",
            got=f"a {type(value).__name__} of {value.dtype}, shape {value.shape}",
            expected="an array, outside of jax.jit, jax.grad and jax.vmap",
            hint="tilewright.jax.operator(spec): a function that they take",
        )


def _of_buffer(buffer: memoryview, value: Any, name: str) -> Any:
    try:
        return np.asarray(buffer)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ArgumentTypeError(
            f"{name} has a buffer that numpy cannot read",
            got=f"{type(value).__name__}: {error}",
            hint=what_to_do(value, name),
        ) from None
