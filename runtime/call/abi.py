"""Constants that Python and the C dispatcher share, and access to functions in C libraries."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import _cffi_backend

from tilewright.runtime.store.cache import Entry
from tilewright.runtime.store.damaged import DamagedError, check_whole
from tilewright.spec.network.tensor import MOST_AXES

DONE, UNDECIDED, NO_MEMORY = range(3)
#: Lengths of the tables in templates/dispatch/dispatch_descriptor.h.j2.
#: ``arrays`` is the maximum number of arrays of a kernel; their views are on the caller's stack.
#: ``kept`` is the maximum size in bytes of scratch memory that is kept for later calls.
LIMITS = {"arrays": 1024, "dims": 16, "slots": 16, "axes": MOST_AXES, "kept": 64 << 20}
#: Kinds of arrays. In the dispatcher's C, a kind is its index here.
KINDS = ("matrix", "strided", "flat", "sequence", "offsets", "packed", "vector", "tensor")
#: Maximum number of vectors and numbers of an epilogue of ``tw.matmul`` in calls handled by C code.
OPERANDS = 12
#: Maximum number of pairs of types of a and b for which C code allocates results.
RESULTS = 16
#: For a matrix times its own transpose with at least so many rows, and so many columns, half of the
#: result is computed and copied. Copying an element takes about as long as 20 multiply-adds.
HALVED, HALVED_K = 128, 128
#: With several threads, a product is halved like this only if a half has at least this number of
#: multiply-adds for each thread.
PART = 1 << 23
#: Bits of a numpy array's flags in C: NPY_ARRAY_ALIGNED and NPY_ARRAY_WRITEABLE.
ALIGNED, WRITEABLE = 0x100, 0x400

#: The compiled module of cffi, as ``Any``: its type stubs lack default arguments and casts.
backend: Any = _cffi_backend


@cache
def primitive(name: str) -> Any:
    """Return cffi's object for the primitive C type ``name``, for example "int64_t"."""
    return backend.new_primitive_type(name)


@cache
def function_type(arguments: tuple[str, ...], result: str) -> Any:
    """Return cffi's object for the type of a C function, given the names of primitive types."""
    return backend.new_function_type(tuple(map(primitive, arguments)), primitive(result))


@cache
def library(path: str) -> Any:
    """Return the library at ``path``, loaded once per process; DamagedError if loading fails."""
    check_whole(path)
    mode = backend.RTLD_NOW | backend.RTLD_LOCAL
    try:
        return backend.load_library(path, mode)
    except UnicodeEncodeError:
        # cffi cannot encode characters of a path that the locale lacks, but ctypes can.
        return backend.load_library(_opened(path), mode)
    except OSError as error:
        raise DamagedError(str(error)) from None


def _opened(path: str) -> Any:
    """Load a library whose path the locale cannot encode, and return the system's handle."""
    from ctypes import CDLL

    pointer = backend.new_pointer_type(backend.new_void_type())
    try:
        return backend.cast(pointer, CDLL(path)._handle)
    except OSError as error:
        raise DamagedError(str(error)) from None


def loaded(entry: Entry) -> Path:
    """Load the library of a cache entry, and return the library's path."""
    library(str(entry.library))
    return entry.library


def symbol(path: Path, name: str) -> int:
    """Return the address of function ``name`` in the library at ``path``, which stays loaded."""
    try:
        function = library(str(path)).load_function(function_type((), "int"), name)
    except AttributeError as error:
        raise DamagedError(str(error)) from None
    return int(backend.cast(primitive("uintptr_t"), function))


def interpreter() -> tuple[str, ...]:
    """Return the facts about this Python on which a built extension module depends."""
    return EXTENSION_SUFFIXES[0], sys.version, str(backend.__version__)


def module_name() -> str:
    """Return a module name for this Python, for example ``_tilewright_dispatch_`` and 12 digits."""
    digest = hashlib.sha256("\n".join(interpreter()).encode()).hexdigest()
    return f"_tilewright_dispatch_{digest[:12]}"
