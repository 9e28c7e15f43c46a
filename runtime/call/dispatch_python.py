"""Run checked calls without a compiled dispatcher, by libffi calls from Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.arrays.memory import address

from .abi import DONE, backend, function_type, primitive

_WORDS = 5


def _words(frame: int) -> list[int]:
    """Return the fields of a struct tw_frame: the addresses of two functions and three arrays.

    They are invoke, scratch_bytes, pointers, sizes and scalars.
    """
    pointer = backend.new_pointer_type(primitive("int64_t"))
    words = backend.cast(pointer, frame)
    return [words[i] for i in range(_WORDS)]


def _function(location: int, arguments: int, result: str) -> Any:
    kind = function_type(("uintptr_t",) * arguments, result)
    return backend.cast(kind, location)


def scratch_bytes(frame: int) -> int:
    """Return the bytes of scratch memory that a call needs now."""
    _, size_of, _, slots, _ = _words(frame)
    return int(_function(size_of, 1, "int64_t")(slots))


def run(frame: int) -> int:
    """Run a kernel on checked arguments; ``frame`` is the address of a struct tw_frame."""
    invoke, _, pointers, slots, scalars = _words(frame)
    size = scratch_bytes(frame)
    scratch = np.empty(size + 64, np.uint8) if size > 0 else None
    place = 0 if scratch is None else -(-address(scratch) // 64) * 64
    backend.cast(
        backend.new_function_type((primitive("uintptr_t"),) * 4, backend.new_void_type()),
        invoke,
    )(pointers, slots, scalars, place)
    return DONE
