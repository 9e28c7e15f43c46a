"""Make threadpoolctl know the threads of kernels, so that it can count and limit them."""

from __future__ import annotations

import ctypes
import sys

from .host import usable_cpus

#: A C variable, the maximum number of threads, and the name of the library that contains it. That
#: library runs all parallel loops of the process.
SYMBOL, LIBRARY = "tilewright_most_threads", "tilewright_threads"
_registered = False


def register() -> None:
    """Register kernels with threadpoolctl once, if the program has imported it.

    From then on, ``threadpool_limits(1)`` limits the parallel loops of all kernels, as it limits
    BLAS.
    """
    global _registered
    if _registered or "threadpoolctl" not in sys.modules:
        return
    _registered = True
    import threadpoolctl

    class Kernels(threadpoolctl.LibController):  # type: ignore[misc]  # it has no stubs
        """The threads that run the parallel loops of all kernels, for threadpoolctl."""

        user_api = internal_api = "tilewright"
        filename_prefixes = (LIBRARY,)
        check_symbols = (SYMBOL,)

        def get_num_threads(self) -> int:
            """Return the maximum number of threads of a parallel loop."""
            return self._limit().value or usable_cpus()

        def set_num_threads(self, num_threads: int) -> None:
            """Set the maximum number of threads of a parallel loop; if it is all CPUs, no limit."""
            self._limit().value = 0 if num_threads >= usable_cpus() else num_threads

        def get_version(self) -> None:
            """Return None: a library of kernels has no version."""

        def _limit(self) -> ctypes.c_int64:
            return ctypes.c_int64.in_dll(self.dynlib, SYMBOL)

    threadpoolctl.register(Kernels)
