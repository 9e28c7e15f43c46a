"""The fast call path: a small C dispatcher that checks arrays and calls kernels.

Built once per Python interpreter and kept in the cache. ``api``: an extension module made by
cffi, which needs Python.h to build; ``abi``: the same C as a plain library called through libffi;
``python``: no compiler was found when it was to be built, so every call is checked in Python, and
nothing can be timed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tilewright.errors import TargetError, TilewrightError, ToolchainError
from tilewright.runtime.store import cache as store

from .abi import (
    DONE,
    NO_MEMORY,
    UNDECIDED,
    address,
    function_type,
    interpreter,
    library,
    module_name,
    symbol,
)
from .packed_matrix import PackedMatrix

__all__ = [
    "DONE", "NO_MEMORY", "UNDECIDED", "Dispatcher", "address", "dispatcher", "has_headers",
    "mode", "symbol", "timer",
]  # fmt: skip

Mode = Literal["api", "abi", "python"]
Timer = Callable[[int, int, int], float]

_TYPES = {
    "tw_call": (("uintptr_t", "uintptr_t"), "int"),
    "tw_call_scalars": (("uintptr_t", "uintptr_t", "double", "double"), "int"),
    "tw_run": (("uintptr_t",), "int"),
    "tw_matmul": (("uintptr_t", "uintptr_t"), "int"),
    "tw_time": (("uintptr_t", "int64_t", "int64_t"), "double"),
    "tw_slot": (("uintptr_t", "uintptr_t"), "uintptr_t"),
    "tw_probe": (("uintptr_t", "uintptr_t", "int64_t"), "int64_t"),
}


class Dispatcher(NamedTuple):
    """The dispatcher's functions. All arguments are addresses or numbers.

    ``call(kernel, id(tuple of arrays))`` and ``call_scalars(kernel, id(tuple), first, second)``
    return DONE, UNDECIDED (nothing was run: decide in Python) or NO_MEMORY. ``run(frame)`` runs a
    decided call. ``matmul(routes, id(tuple of three arrays))`` looks in a table which kernel serves
    them, and returns as ``call`` does. ``time(frames, count, calls)`` gives the seconds that
    ``calls`` of them take, and is
    None in Python, whose own time is many times a kernel's.
    """

    mode: Mode
    call: Callable[[int, int], int]
    call_scalars: Callable[[int, int, float, float], int]
    run: Callable[[int], int]
    matmul: Callable[[int, int], int]
    time: Timer | None


@cache
def dispatcher() -> Dispatcher:
    """This interpreter's dispatcher; built on first use, then taken from the cache."""
    if sys.implementation.name != "cpython":
        return _python_dispatcher()
    try:
        return _built_dispatcher()
    except ToolchainError as error:
        warnings.warn(
            f"kernels are called through Python, several times slower: {error.problem}",
            stacklevel=2,
        )
        return _python_dispatcher()


def _built_dispatcher() -> Dispatcher:
    """Whichever was built before, else the extension module; a library if that cannot be built."""
    if store.lookup(_key("api")) is not None:
        return _api_dispatcher()
    if has_headers() and store.lookup(_key("abi")) is None:
        # Headers may be there and of no use: for another libc, or a part of them.
        with suppress(ToolchainError):
            return _api_dispatcher()
    return _abi_dispatcher()


def mode() -> Mode:
    """How kernels are called in this interpreter; see the module's first lines."""
    return dispatcher().mode


def timer(what: str) -> Timer:
    """The C loop that times decided calls; TargetError, for ``what``, where there is none."""
    found = dispatcher().time
    if found is None:
        raise TargetError(
            f"{what} needs a loop in C, and kernels are called through Python here",
            got="no dispatcher in C: none could be built",
            expected="times of the machine code alone",
            hint="install gcc or clang, or pip install ziglang, and start Python again",
        )
    return found


def has_headers() -> bool:
    """Whether Python.h is there to compile against."""
    import sysconfig

    return (Path(sysconfig.get_path("include")) / "Python.h").is_file()


def _key(kind: Mode) -> str:
    return store.key("dispatch", kind, *interpreter())


def _entry(kind: Mode, builder: str) -> Path:
    key = _key(kind)
    entry = store.lookup(key)
    if entry is None:
        from . import dispatch_build

        entry = store.publish(key, getattr(dispatch_build, builder))
    return entry.library


def _api_dispatcher() -> Dispatcher:
    path = _entry("api", "build_extension")
    name = module_name()
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return _checked("api", {name: getattr(module.lib, name) for name in _TYPES})


def _abi_dispatcher() -> Dispatcher:
    built = library(str(_entry("abi", "build_library")))
    return _checked("abi", {
        name: built.load_function(function_type(*signature), name)
        for name, signature in _TYPES.items()
    })  # fmt: skip


def _checked(kind: Mode, functions: dict[str, Any]) -> Dispatcher:
    """The dispatcher, once it was seen to read numpy's arrays as numpy does."""
    array = np.ones((3, 5), np.float32)[:, :4]
    pointer, flags = address(array), array.flags.num
    header = object.__basicsize__
    seen = [functions["tw_probe"](header, id(array), field) for field in range(9)]
    dtype = array.dtype
    known = [id(np.ndarray), pointer, 2, 3, 20, id(dtype), flags, id(dtype.type), ord("=")]
    packed = PackedMatrix.__new__(PackedMatrix)  # only where its first slot lies is asked
    object.__setattr__(packed, "_record", np.zeros(6, np.int64))
    seen.append(functions["tw_slot"](header, id(packed)))
    known.append(id(packed._record))
    if seen != known:
        raise TilewrightError(
            "this interpreter's arrays are laid out in an unknown way",
            got=f"numpy {np.__version__} on {sys.version}",
            hint="report this; a released CPython with numpy 1.26 or later is expected",
        )
    order = ("tw_call", "tw_call_scalars", "tw_run", "tw_matmul", "tw_time")
    return Dispatcher(kind, *(functions[name] for name in order))


def _python_dispatcher() -> Dispatcher:
    from . import dispatch_python

    undecided: Callable[..., int] = lambda *_: UNDECIDED  # noqa: E731
    return Dispatcher("python", undecided, undecided, dispatch_python.run, undecided, None)
