"""Run kernels in a separate process, between guard pages: natively, in qemu, or by a C header.

``build`` makes the program from the kernels' C and ``templates/runner/runner.c.j2``, which
describes the protocol. Each array is placed between pages that may not be touched.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tilewright.isa.target import Target
from tilewright.runtime.build.compilers import Compiler
from tilewright.runtime.build.toolchain import compile_program
from tilewright.runtime.machine.host import find_qemu, means
from tilewright.runtime.store.compiled import render

from .protocol import Alias, Placement, Process, ProcessEndedError, Request

__all__ = ["Alias", "Runner", "build", "command_prefix", "runner_for", "shared_runner"]

#: Maximum number of runner processes at the same time.
_ALIVE = 8


def build(
    sources: Sequence[str],
    names: Sequence[str],
    target: Target,
    compiler: Compiler,
    directory: Path,
    stem: str,
    extra_flags: Sequence[str] = (),
) -> Path:
    """Compile C texts that define the kernels ``names`` into a runner's program; return its
    path.
    """
    texts = [*sources, render("runner/runner.c.j2", names=list(names))]
    return compile_program(texts, target, compiler, directory, stem, extra_flags)


def command_prefix(target: Target, *, emulated: bool | None = None) -> tuple[str, ...]:
    """Return the words before a program for ``target`` on the command line, ``()`` if it runs
    natively.
    """
    if means(target, emulated=emulated) != "qemu":
        return ()
    return (str(find_qemu(target)), "-cpu", target.emulation.cpu)


class Runner:
    """A program from ``build`` that runs kernels. It starts at the first call and keeps running.

    Threads may share it: their calls take turns. It works in forked children too.
    """

    def __init__(
        self, executable: Path, command_prefix: Sequence[str] = (), overread: int = 0
    ) -> None:
        self._process: Process | None = None
        self._last: weakref.finalize[[], Runner] | None = None
        self.executable = Path(executable)
        self.command = (*command_prefix, str(executable))
        self.overread = overread
        self._lock = threading.Lock()
        _pool.runners.add(self)

    def call(
        self,
        name: str,
        arrays: Sequence[Any],
        sizes: Sequence[int] = (),
        scalars: Sequence[float] = (),
        writable: Sequence[bool] = (),
        *,
        names: Sequence[str] = (),
        flush: Literal["rear", "front"] = "rear",
        timeout: float = 120.0,
    ) -> list[bytearray]:
        """Call a kernel and return the new bytes of the writable arrays.

        Parameters
        ----------
        name : str
            The kernel.
        arrays : sequence
            Contiguous buffers, or an ``Alias``. Addresses are a list of ``(buffer, offset in
            bytes)``, which is never writable.
        sizes, scalars : sequence
            The call's integers and floating-point numbers, in the C function's order.
        writable : sequence of bool
            True for each array that the kernel writes.
        names : sequence of str
            Names of the arrays in messages.
        flush : {"rear", "front"}
            The end of each array that touches a guard page.
        timeout : float
            Seconds after which the process is killed.

        Raises
        ------
        TargetError
            The kernel touched memory that is not its own, crashed, or took longer than ``timeout``.
        """
        request = Request(arrays, writable, names)
        where = Placement(flush == "front", self.overread)
        with self._lock:
            found = self._process
            process = found if found is not None and found.usable() else self._start()
            try:
                return process.call(name, request, sizes, scalars, where, timeout)
            except ProcessEndedError:
                if process is not found:
                    raise
                # The process may have been killed while it was idle. The arguments are still here,
                # so try once more.
                process = self._start()
                return process.call(name, request, sizes, scalars, where, timeout)
            finally:
                if not process.usable():
                    self._drop()

    def _start(self) -> Process:
        self._drop()
        self._process = Process(self.command)
        # Not __del__: the collector of a cycle may have ended the process's files before it.
        self._last = weakref.finalize(self, self._process.end)
        _pool.started(self)
        return self._process

    def close(self) -> None:
        """End the process. A later call starts a new one."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._last is not None:
            self._last()
        self._process = self._last = None

    def _forget(self) -> None:
        """Give up the runner's process in a forked child, because it belongs to the parent."""
        self._lock = threading.Lock()
        if self._process is not None and self._last is not None:
            self._last.detach()
            self._process.disown()
        self._process = self._last = None


class _Pool:
    """All runners of this Python process. At most ``_ALIVE`` run at a time, and none outlives
    Python.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runners: weakref.WeakSet[Runner] = weakref.WeakSet()
        self.shared: dict[Path, Runner] = {}
        self._running: list[weakref.ref[Runner]] = []

    def started(self, runner: Runner) -> None:
        """End the oldest runners if too many run. A runner that is busy is left alone."""
        with self.lock:
            self._running = [ref for ref in self._running if ref() not in (None, runner)]
            self._running.append(weakref.ref(runner))
            excess, self._running = self._running[:-_ALIVE], self._running[-_ALIVE:]
            oldest = [found for ref in excess if (found := ref()) is not None]
        for one in oldest:
            if one._lock.acquire(blocking=False):
                try:
                    one._drop()
                finally:
                    one._lock.release()

    def end(self) -> None:
        for runner in list(self.runners):
            runner._drop()

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        self._running.clear()
        for runner in list(self.runners):
            runner._forget()


_pool = _Pool()
atexit.register(_pool.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.after_fork)


def runner_for(executable: Path, target: Target, *, emulated: bool | None = None) -> Runner:
    """Return a new runner of ``executable``, in qemu if ``host.means`` says so for ``target``."""
    prefix = command_prefix(target, emulated=emulated)
    return Runner(executable, prefix, target.emulation.overread if prefix else 0)


def shared_runner(executable: Path, target: Target, *, emulated: bool | None = None) -> Runner:
    """Return the runner of ``executable`` that all its kernels share in this process."""
    with _pool.lock:
        if executable not in _pool.shared:
            _pool.shared[executable] = runner_for(executable, target, emulated=emulated)
        return _pool.shared[executable]
