"""Ask the system for use of the matrix unit, and keep the unit's configuration in sessions.

A kernel loads the configuration that it needs, and restores the old one at its end. In a session,
the kernel's configuration is loaded once and stays loaded.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from functools import cache
from types import TracebackType

from tilewright.errors import TargetError

from . import abi


@cache
def ask_consent(unit: str, consent: tuple[int, ...]) -> None:
    """Ask the operating system to let this process use the matrix unit's registers ``unit``.

    Raises TargetError if the system refuses. If the system allows it, the process does not ask
    again. After a refusal, each call asks again.
    """
    refused = _system_call(consent)
    if not refused:
        return
    small_stack = refused == errno.ENOSPC
    raise TargetError(
        f"the operating system does not let this process use the registers {unit}",
        got=f"error {refused} ({os.strerror(refused)}) of its system call {consent}",
        expected="signal stacks that have room for what the registers hold: some 12 KiB"
        if small_stack
        else "Linux 5.16 or later, and no filter of system calls in the way",
        hint="larger stacks where sigaltstack is called (a thread of this process has one that is "
        'too small), or another target, as target="avx512+vnni+bf16"'
        if small_stack
        else 'another target, as target="avx512+vnni+bf16"',
    )


def _system_call(words: tuple[int, ...]) -> int:
    """Make a system call and return 0, or the number of its error."""
    this_process = abi.backend.load_library(None, abi.backend.RTLD_NOW)
    takes_words = abi.function_type(("long",) * len(words), "long")
    call = this_process.load_function(takes_words, "syscall")
    return 0 if call(*words) == 0 else int(abi.backend.get_errno())


class _Stack(threading.local):
    """The sessions entered on this thread; the last one's configuration is loaded."""

    def __init__(self) -> None:
        self.entered: list[Session] = []


_stack = _Stack()


class Session:
    """A configuration of the matrix unit that stays loaded on this thread: see ``Kernel.session``.

    ``load`` and ``release`` are the kernel's C functions, None if the kernel configures nothing.
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
        """Release the configuration, and load that of the enclosing session again."""
        _stack.entered.remove(self)
        if self._release is None:
            return
        self._release()
        for outer in reversed(_stack.entered):
            if outer._load is not None:
                outer._load()
                return
