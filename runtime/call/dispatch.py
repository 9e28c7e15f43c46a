"""The fast call path: a small C dispatcher that checks arrays and calls kernels.

It is built once for each Python interpreter and kept in the cache, in one of three forms. ``api``
is an extension module made by cffi, which needs Python.h. ``abi`` is the same C as a plain library,
called through libffi. ``python`` means that no compiler was found: Python checks each call, and
nothing can be timed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tilewright.errors import TargetError, TilewrightError, ToolchainError
from tilewright.runtime.arrays.memory import address
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.damaged import kept, loading

from .abi import (
    DONE,
    NO_MEMORY,
    UNDECIDED,
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
Method = Callable[[np.ndarray[Any, Any]], Callable[..., int]]

_TYPES = {
    "tw_learn_python": (("uintptr_t",), "int"),
    "tw_learn_tensors": (("uintptr_t",), "int"),
    "tw_method": (("int64_t",), "uintptr_t"),
    "tw_run": (("uintptr_t",), "int"),
    "tw_time": (("uintptr_t", "int64_t", "int64_t"), "double"),
    "tw_slot": (("uintptr_t", "uintptr_t"), "uintptr_t"),
    "tw_probe": (("uintptr_t", "uintptr_t", "int64_t"), "int64_t"),
}


class Dispatcher(NamedTuple):
    """The dispatcher's functions. Addresses are ints.

    Each of these takes the words of a kernel's descriptor, and returns a function:

    - ``call``: the function takes a tuple of arrays.
    - ``call_scalars``: the function takes a tuple of arrays and two numbers.
    - ``call_new``: the function takes a tuple of input tensors, and returns a new output.

    Each of these takes the words of a table of routes, and returns a function:

    - ``matmul``: the function takes a tuple of a, b, out and the arrays of an epilogue.
    - ``matmul_scalars``: the function takes alpha and beta too.
    - ``matmul_new``: the function takes a and b, and returns a new array.

    The functions that return an output return None if nothing was run. The others return DONE,
    NO_MEMORY, or UNDECIDED: then nothing was run and Python must check the call.

    ``run(frame)`` runs a call whose arguments have been checked. ``learn_tensors(type)`` registers
    a type of tensors, so that C code can read them; it returns 0 if there are too many types.
    ``learn_python(words)`` must be called before. ``time(frames, count, calls)`` returns the
    seconds that ``calls`` calls take. ``time`` is None in the mode ``python``, where calling takes
    many times as long as a kernel.
    """

    mode: Mode
    call: Method
    call_scalars: Method
    call_new: Callable[[np.ndarray[Any, Any]], Callable[[tuple[Any, ...]], Any]]
    matmul: Method
    matmul_scalars: Method
    matmul_new: Callable[[np.ndarray[Any, Any]], Callable[[Any, Any], Any]]
    run: Callable[[int], int]
    learn_python: Callable[[int], int]
    learn_tensors: Callable[[int], int]
    time: Timer | None


@cache
def dispatcher() -> Dispatcher:
    """Return this interpreter's dispatcher, built on first use and then taken from the cache."""
    if sys.implementation.name != "cpython":
        return _python_dispatcher()
    try:
        return _built_dispatcher()
    except ToolchainError as error:
        warnings.warn(
            f"kernels are called through Python, several times slower: {error.brief}",
            stacklevel=2,
        )
        return _python_dispatcher()


def prepare() -> None:
    """Load this interpreter's dispatcher if it was built before, to save the first call that time.

    Otherwise the first call builds it or reports the error.
    """
    with suppress(TilewrightError):
        if sys.implementation.name == "cpython" and store.lookup(_key("api")) is not None:
            dispatcher()


def _built_dispatcher() -> Dispatcher:
    """Return the dispatcher as it was built before, else as an extension module or a library."""
    if store.lookup(_key("api")) is not None:
        return _api_dispatcher()
    if has_headers() and store.lookup(_key("abi")) is None:
        # The build fails if Python's headers are incomplete, or are for another libc.
        with suppress(ToolchainError):
            return _api_dispatcher()
    return _abi_dispatcher()


def mode() -> Mode:
    """Return how kernels are called in this interpreter; the module's docstring explains the
    modes.
    """
    return dispatcher().mode


def timer(what: str) -> Timer:
    """Return the C loop that times checked calls; TargetError about ``what`` if there is none."""
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
    """Return True if Python.h is installed."""
    import sysconfig

    return (Path(sysconfig.get_path("include")) / "Python.h").is_file()


def _key(kind: Mode) -> str:
    return store.key("dispatch", kind, *interpreter())


def _built(kind: Mode, builder: str, load: Callable[[Path], Dispatcher]) -> Dispatcher:
    """Return the dispatcher that ``load`` makes from a library, which is cached or built now."""

    def build(folder: Path) -> Mapping[str, Any]:
        from . import dispatch_build

        made: Mapping[str, Any] = getattr(dispatch_build, builder)(folder)
        return made

    return kept(_key(kind), build, lambda entry: load(entry.library))


def _api_dispatcher() -> Dispatcher:
    return _built("api", "build_extension", _of_extension)


def _of_extension(path: Path) -> Dispatcher:
    name = module_name()
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None
    with loading(str(path)):
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    return _checked("api", {name: getattr(module.lib, name) for name in _TYPES})


def _abi_dispatcher() -> Dispatcher:
    return _built("abi", "build_library", _of_library)


def _of_library(path: Path) -> Dispatcher:
    built = library(str(path))
    return _checked("abi", {
        name: built.load_function(function_type(*signature), name)
        for name, signature in _TYPES.items()
    })  # fmt: skip


def _checked(kind: Mode, functions: dict[str, Any]) -> Dispatcher:
    """Return the dispatcher, after a test that its C code reads numpy's arrays correctly."""
    array = np.ones((3, 5), np.float32)[:, :4]
    pointer, flags = address(array), array.flags.num
    header = object.__basicsize__
    seen = [functions["tw_probe"](header, id(array), field) for field in range(9)]
    dtype = array.dtype
    known = [id(np.ndarray), pointer, 2, 3, 20, id(dtype), flags, id(dtype.type), ord("=")]
    # The object is empty, because the test reads only its first attribute.
    packed = PackedMatrix.__new__(PackedMatrix)
    object.__setattr__(packed, "_record", np.zeros(7, np.int64))
    seen.append(functions["tw_slot"](header, id(packed)))
    known.append(id(packed._record))
    if seen != known:
        raise TilewrightError(
            "this interpreter's arrays are laid out in an unknown way",
            got=f"numpy {np.__version__} on {sys.version}",
            hint="report this; a released CPython with numpy 1.26 or later is expected",
        )
    # The variable keeps the words alive until C code has read them.
    words = _python_words()
    functions["tw_learn_python"](address(words))
    definitions = (functions["tw_method"](number) for number in range(6))
    call, call_scalars, matmul, call_new, matmul_scalars, matmul_new = map(_method, definitions)
    order = ("tw_run", "tw_learn_python", "tw_learn_tensors", "tw_time")
    return Dispatcher(
        kind,
        call,
        call_scalars,
        call_new,
        matmul,
        matmul_scalars,
        matmul_new,
        *(functions[name] for name in order),
    )


def _method(definition: int) -> Method:
    """Return a function that makes Python functions from a C method and a descriptor array.

    A Python function keeps its array alive.
    """
    import ctypes

    new = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )(("PyCFunction_NewEx", ctypes.pythonapi))  # fmt: skip
    return lambda words: new(definition, words, None)


_PYTHON = (
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLong", "PyFloat_AsDouble",
    "PyErr_Clear", "Py_IncRef", "Py_DecRef",
)  # fmt: skip
#: Number of words in the table of tensors' dtypes, which is filled when a tensor is first passed.
DTYPE_WORDS = 32 * 4


def _python_words(dtypes: Sequence[int] = (0,) * DTYPE_WORDS) -> np.ndarray[Any, Any]:
    """Return the fields of the C struct tw_python: addresses of Python's functions and objects."""
    import ctypes

    found = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name in _PYTHON]
    addresses = [*(function.value or 0 for function in found), _new_array()]
    words = [*addresses, id(True), id(None), id(np.ndarray), object.__basicsize__, *dtypes]
    return np.array(words, np.int64)


#: Index of PyArray_NewFromDescr in numpy's table of C functions. numpy's ABI fixes this index.
_NEW_FROM_DESCR = 94


def _new_array() -> int:
    """Return the address of numpy's C function PyArray_NewFromDescr, which makes an array."""
    import ctypes

    names = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")  # numpy 2, numpy 1
    module: Any = next(sys.modules[name] for name in names if name in sys.modules)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = pointer_of(module._ARRAY_API, None)
    return ctypes.c_size_t.from_address(table + 8 * _NEW_FROM_DESCR).value


def learn_dtypes(table: Sequence[int]) -> None:
    """Give the C dispatcher the table of numpy dtypes, indexed by DLPack's type code and size."""
    words = _python_words(table)
    dispatcher().learn_python(address(words))


def _python_dispatcher() -> Dispatcher:
    from . import dispatch_python

    def undecided(*_: Any) -> int:
        return UNDECIDED

    def method(_: np.ndarray[Any, Any]) -> Callable[..., int]:
        return undecided

    def nothing(_: np.ndarray[Any, Any]) -> Callable[..., None]:
        return lambda *_: None

    run = dispatch_python.run
    return Dispatcher(
        "python", method, method, nothing, method, method, nothing, run, undecided, undecided, None
    )
