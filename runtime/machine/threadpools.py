"""What threadpoolctl knows of the threads of kernels: how many there are, and how to limit them."""

from __future__ import annotations

import ctypes
import os
import sys

#: The variable of every library whose loops run in parallel, and what such libraries are called.
SYMBOL, PREFIX = "tilewright_most_threads", "kernels"
_registered = False


def register() -> None:
    """Tell threadpoolctl of kernels, once, if the program has imported it.

    ``threadpool_limits(1)`` then holds for kernels that were loaded before, as it does for BLAS.
    """
    global _registered
    if _registered or "threadpoolctl" not in sys.modules:
        return
    _registered = True
    import threadpoolctl

    class Kernels(threadpoolctl.LibController):  # type: ignore[misc]  # it has no stubs
        """The threads of the kernels in one library."""

        user_api = internal_api = "tilewright"
        filename_prefixes = (PREFIX,)
        check_symbols = (SYMBOL,)

        def get_num_threads(self) -> int:
            """The most threads that a loop takes."""
            return self._limit().value or len(os.sched_getaffinity(0))

        def set_num_threads(self, num_threads: int) -> None:
            """Limit the threads of a loop."""
            self._limit().value = num_threads

        def get_version(self) -> None:
            """A library of kernels has none."""

        def _limit(self) -> ctypes.c_int64:
            return ctypes.c_int64.in_dll(self.dynlib, SYMBOL)

    threadpoolctl.register(Kernels)
