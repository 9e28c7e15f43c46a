"""The C function that XLA calls for all kernels, compiled with the header that jaxlib ships."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import CDLL, c_size_t
from functools import cache
from pathlib import Path
from typing import Any

import jaxlib
import numpy as np

import jax
from tilewright.emit.render import render
from tilewright.runtime.arrays.memory import address
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.call.abi import LIMITS
from tilewright.runtime.kernel import Kernel
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.damaged import kept, loading
from tilewright.targets import load

#: Name under which the C function is registered with XLA.
TARGET = "tilewright_kernel"
#: For each kernel's name: the arrays and the kernel to which the C library has pointers. They are
#: kept until the process ends.
_records: dict[str, tuple[Any, ...]] = {}


def make_known(kernel: Kernel) -> None:
    """Register the kernel in the C library under ``kernel.name``, once."""
    if kernel.name in _records:
        return
    name = np.frombuffer(kernel.name.encode(), np.uint8)
    record = np.array([address(name), name.size, *kernel.functions, 0], np.int64)
    _records[kernel.name] = record, name, kernel
    _library().tw_jax_register(c_size_t(address(record)))


@cache
def _library() -> CDLL:
    """Load the C library, register its function with XLA, and return the library."""
    library = kept(store.key("jax", jaxlib.__version__), _build, _load)
    library.tw_jax_register.restype = None
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(library.tw_jax_call), platform="cpu")
    return library


def _load(entry: store.Entry) -> CDLL:
    with loading(str(entry.library)):
        return CDLL(str(entry.library))


def _build(directory: Path) -> Mapping[str, Any]:
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    text = render("jax/handler.c.j2", arrays=LIMITS["arrays"])
    flags = ("-isystem", jax.ffi.include_dir())
    library = compile_library(text, target, compiler, directory, "handler", flags)
    return {"library": library.name, "source": "handler.c", "compiler": str(compiler)}
