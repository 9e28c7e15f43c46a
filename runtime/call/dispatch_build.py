"""Build the dispatcher; ``dispatch`` imports this module only if no built one is in the cache."""

from __future__ import annotations

import io
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.runtime.arrays.memory import LARGE
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.store.compiled import render
from tilewright.targets import load

from .abi import (
    ALIGNED,
    HALVED,
    HALVED_K,
    KINDS,
    LIMITS,
    OPERANDS,
    PART,
    RESULTS,
    WRITEABLE,
    module_name,
)

#: Flags that disable compiler warnings about cffi's wrappers around the dispatcher.
_FOREIGN = ("-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-unused-function")


def source(linkage: str = "") -> str:
    """Return the dispatcher's C text. ``linkage``, such as "static ", precedes each function."""
    return render(
        "dispatch/dispatch.c.j2",
        linkage=linkage,
        kinds=KINDS,
        limits=LIMITS,
        operands=OPERANDS,
        results=RESULTS,
        large=LARGE,
        halved=HALVED,
        halved_k=HALVED_K,
        part=PART,
        aligned=ALIGNED,
        writeable=WRITEABLE,
    )


def build_library(directory: Path) -> Mapping[str, Any]:
    """Compile the dispatcher as a plain library, without Python.h."""
    return _build(source(), directory, ())


def build_extension(directory: Path) -> Mapping[str, Any]:
    """Compile the dispatcher as an extension module that cffi wraps."""
    from cffi import FFI
    from cffi.recompiler import make_c_source

    ffi, text = FFI(), io.StringIO()
    ffi.cdef(render("dispatch/dispatch.h.j2"))
    make_c_source(ffi, module_name(), source("static "), text)
    include = Path(sysconfig.get_path("include"))
    # Debian keeps pyconfig.h in a folder that only Debian's compilers search.
    flags = (f"-I{include}", f"-idirafter{include.parent}", *_FOREIGN)
    if sys.platform == "darwin":
        flags = (*flags, "-undefined", "dynamic_lookup")
    return _build(text.getvalue(), directory, flags)


def _build(text: str, directory: Path, flags: tuple[str, ...]) -> Mapping[str, Any]:
    target = load("scalar")
    compiler = find_compiler(target, emulated=False)
    library = compile_library(text, target, compiler, directory, "dispatch", flags)
    return {"library": library.name, "source": "dispatch.c", "compiler": str(compiler)}
