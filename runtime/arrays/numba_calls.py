"""Make a kernel callable from code that numba compiles, parallel loops included.

A kernel goes in, an object comes out that compiled code calls as a function. Types are checked when
numba compiles the caller; sizes, strides and overlap at each call, without allocating memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.spec.dtypes import DTYPES
from tilewright.spec.signature import Signature

from .numba_source import shape_of, source_of

#: The dtype of packed matrices in code that numba compiles: a packed matrix is passed as its bytes.
_BYTES = np.dtype(np.uint8)


class NumbaFunction:
    """A kernel as a function that numba's compiled code and Python can call. It returns nothing.

    The function takes the arrays in the signature's order, then the numbers. It is pickled like its
    kernel, so that numba can distinguish kernels in closures of cached functions.
    """

    def __init__(self, kernel: Any, key: str, call: Callable[..., Any]) -> None:
        """Register the kernel with numba; SpecError if an operand is not a single array.

        ``key`` identifies the kernel's library. Calls from Python go to ``call``.
        """
        from numba.extending import overload

        from .numba_link import Linked

        self.__name__, self._call = kernel.name, call
        self.linked = Linked(kernel, key)
        typed = _typed(kernel.name, kernel.signature, self.linked)
        overload(self, jit_options={"forceinline": True}, strict=False)(typed)

    def __call__(self, *arguments: Any) -> None:
        """Call the kernel from Python."""
        self._call(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.linked.kernel, "numba")


def _typed(name: str, signature: Signature, linked: Any) -> Callable[..., Any]:
    """Return a function that numba calls with a call's argument types, to get code to compile.

    That code checks the arguments and calls the kernel.
    """
    from numba import njit
    from numba.core.errors import TypingError

    from .numba_link import address, invoke_of

    axes = [len(shape_of(name, p)) for p in signature.arrays]
    source, errors = source_of(name, signature)
    names: dict[str, Any] = {"__name__": __name__, "errors": errors, "address": address}
    names["invoke"] = invoke_of(linked)
    exec(compile(source, f"<checks of {name}>", "exec"), names)
    names["check"] = njit(forceinline=True)(names["check"])

    def typed(*arguments: Any) -> Any:
        wrong = _wrong_types(signature, axes, arguments)
        if wrong is not None:
            raise TypingError(f"{name}: {wrong}")
        return names[name]

    return typed


def _wrong_types(signature: Signature, axes: list[int], given: tuple[Any, ...]) -> str | None:
    """Return what is wrong with the numba types of a call's arguments; None if nothing is."""
    from numba.core import types

    names = [p.name for p in signature.arrays]
    names += [p.name for p in signature.scalars]
    if len(given) != len(names):
        return f"got {len(given)} arguments, expected {', '.join(names)}"
    for p, count, got in zip(signature.arrays, axes, given, strict=False):
        if not isinstance(got, types.Array) or got.ndim != count:
            return f"{p.name} must be a {count}-d array, got {got}"
        wanted = _BYTES if p.packed else DTYPES[p.type]
        if str(got.dtype) != wanted.name or not got.aligned:
            what = ", the data of a PackedMatrix" if p.packed else ""
            return f"{p.name} must be of {wanted}{what}, got {got}"
        if p.role != "in" and not got.mutable:
            return f"{p.name} is read-only and would be written"
    for name, got in zip(names[len(axes) :], given[len(axes) :], strict=True):
        if not isinstance(got, types.Integer | types.Float):
            return f"{name} must be a real number, got {got}"
    return None
