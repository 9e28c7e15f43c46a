"""Make threadpoolctl know the threads of kernels, so that it can count and limit them."""

from __future__ import annotations

import ctypes
import os
import sys

#: Name of the C variable that limits the threads of a library of kernels, and the prefix of such
#: libraries' file names.
SYMBOL, PREFIX = "tilewright_most_threads", "kernels"
_registered = False


def register() -> None:
    """Register kernels with threadpoolctl once, if the program has imported it.

    From then on, ``threadpool_limits(1)`` limits the kernels that are loaded, as it limits BLAS.
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
            """Return the maximum number of threads of a kernel's parallel loops."""
            return self._limit().value or len(os.sched_getaffinity(0))

        def set_num_threads(self, num_threads: int) -> None:
            """Set the maximum number of threads of a kernel's parallel loops."""
            self._limit().value = num_threads

        def get_version(self) -> None:
            """Return None: a library of kernels has no version."""

        def _limit(self) -> ctypes.c_int64:
            return ctypes.c_int64.in_dll(self.dynlib, SYMBOL)

    threadpoolctl.register(Kernels)
