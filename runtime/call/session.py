"""The state of a matrix unit in Python: the system's consent to its use, and kernels that keep it.

A kernel loads the configuration that it needs and puts back what was loaded before. In a session
it finds its own loaded, and leaves it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType

from tilewright.errors import TargetError


@cache
def ask_consent(unit: str, consent: tuple[int, ...]) -> None:
    """Ask the system, once, to let this process use the registers ``unit``; TargetError if not."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*(ctypes.c_long(word) for word in consent)) != 0:
        raise TargetError(
            f"the operating system does not let this process use the registers {unit}",
            got=f"error {ctypes.get_errno()} of its system call {consent}",
            expected="Linux 5.16 or later, and no filter of system calls in the way",
            hint='another target, as target="avx512+vnni+bf16"',
        )


class _Stack(threading.local):
    """The sessions entered on this thread, the last one loaded."""

    def __init__(self) -> None:
        self.entered: list[Session] = []


_stack = _Stack()


class Session:
    """A configuration of the matrix unit that stays loaded on this thread: see Kernel.session.

    ``load`` and ``release`` are the kernel's C functions; None where it configures nothing.
    """

    def __init__(self, load: Callable[[], None] | None, release: Callable[[], None] | None) -> None:
        self._load, self._release = load, release

    def __enter__(self) -> Session:
        _stack.entered.append(self)
        if self._load is not None:
            self._load()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """What the session around it kept is loaded again."""
        _stack.entered.remove(self)
        if self._release is None:
            return
        self._release()
        for outer in reversed(_stack.entered):
            if outer._load is not None:
                outer._load()
                return
