"""Kernels in a process of their own: under qemu, through a header, or natively between guards.

The process is made by ``build`` from the kernels' C and ``templates/runner.c.j2``, which
describes the protocol. Every array lies between pages that nobody may touch.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from tilewright.errors import TargetError
from tilewright.isa import Target
from tilewright.render import render

from .host import find_qemu, means
from .toolchain import Compiler, compile_program

_MAGIC = 0x54574B31
_OK, _CRASH, _WROTE_OUTSIDE, _NO_MEMORY, _BAD_REQUEST = range(5)
_ALIVE = 8  # runners kept running at the same time


@dataclass(frozen=True, slots=True)
class Alias:
    """An array that begins ``offset`` bytes into the argument of index ``of``."""

    of: int
    offset: int = 0


def build(
    sources: Sequence[str],
    names: Sequence[str],
    target: Target,
    compiler: Compiler,
    directory: Path,
    stem: str,
    extra_flags: Sequence[str] = (),
) -> Path:
    """Compile the C texts that define the kernels ``names`` into a runner's program."""
    texts = [*sources, render("runner.c.j2", names=list(names))]
    return compile_program(texts, target, compiler, directory, stem, extra_flags)


def command_prefix(target: Target, *, emulated: bool | None = None) -> tuple[str, ...]:
    """What stands before a program for ``target`` on the command line; () when it runs itself."""
    if means(target, emulated=emulated) != "qemu":
        return ()
    return (str(find_qemu(target)), "-cpu", target.emulation.cpu)


class Runner:
    """A program made by ``build``, started when first called, and kept alive.

    Safe to share between threads (calls take turns) and across ``fork``.
    """

    def __init__(self, executable: Path, command_prefix: Sequence[str] = ()) -> None:
        self.executable = Path(executable)
        self.command = (*command_prefix, str(executable))
        self._lock = threading.Lock()
        self._process: _Process | None = None
        _runners.add(self)

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
        """Call kernel ``name`` and return the new bytes of the writable arrays, in order.

        An array is a contiguous buffer, an ``Alias``, or for addresses a list of ``(buffer,
        offset in bytes)``, which is never writable. It ends, or with ``flush="front"`` begins, at
        a page that may not be touched. ``names`` are used in messages. Raises TargetError when
        the kernel touches what is not its own, crashes, or takes more than ``timeout`` seconds.
        """
        request = _Request(arrays, writable, names)
        with self._lock:
            process = self._process
            if process is None or not process.usable():
                process = self._process = _Process(self.command)
                _keep_few_alive(self)
            try:
                return process.call(name, request, sizes, scalars, flush == "front", timeout)
            finally:
                if not process.usable():
                    self._process = None

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _forget(self) -> None:
        """In a forked child: the process is the parent's."""
        self._lock = threading.Lock()
        if self._process is not None:
            self._process.disown()
            self._process = None


class _Request:
    """The arrays of one call as regions, pointers and uses: see ``templates/runner.c.j2``."""

    def __init__(
        self, arrays: Sequence[Any], writable: Sequence[bool], names: Sequence[str]
    ) -> None:
        self.regions: list[memoryview] = []
        self.writable: list[bool] = []
        self.owners: list[str] = []
        self.pointers: list[tuple[int, int]] = []
        self.uses: list[tuple[int, int]] = []
        self.names = [*names, *(f"argument {i}" for i in range(len(names), len(arrays)))]
        for index, array in enumerate(arrays):
            self._add(index, array, bool(writable[index]) if index < len(writable) else False)

    def _add(self, index: int, array: Any, writable: bool) -> None:
        if isinstance(array, Alias):
            region, offset = self.pointers[self.uses[array.of][0]]
            self._point(region, offset + array.offset)
        elif isinstance(array, (list, tuple)):
            self.uses.append((len(self.pointers), len(array)))
            for i, (data, offset) in enumerate(array):
                region = self._region(data, False, f"{self.names[index]}[{i}]")
                self.pointers.append((region, offset))
        else:
            self._point(self._region(array, writable, self.names[index]), 0)

    def _point(self, region: int, offset: int) -> None:
        self.uses.append((len(self.pointers), -1))
        self.pointers.append((region, offset))

    def _region(self, data: Any, writable: bool, owner: str) -> int:
        view = memoryview(data)
        self.regions.append(view.cast("B") if view.nbytes else memoryview(b""))
        self.writable.append(writable)
        self.owners.append(owner)
        return len(self.regions) - 1

    def owner(self, region: int) -> str:
        """What the runner's region ``region`` is, for a message."""
        if region < len(self.owners):
            return self.owners[region]
        index = region - len(self.owners)
        return f"the addresses of {self.names[index]}" if index < len(self.names) else "the scratch"

    def header(
        self, kernel: int, sizes: Sequence[int], scalars: Sequence[float], front: bool
    ) -> bytes:
        flat = [_MAGIC, kernel, int(front), len(self.regions), len(self.pointers), len(self.uses)]
        flat += [len(sizes), len(scalars)]
        for view, writable in zip(self.regions, self.writable, strict=True):
            flat += [view.nbytes, int(writable)]
        for pair in (*self.pointers, *self.uses):
            flat += pair
        flat += sizes
        return struct.pack(f"<{len(flat)}q{len(scalars)}d", *flat, *scalars)


class _Process:
    """A running program and the two pipes to it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()
        self._command = command
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                bufsize=0,
                start_new_session=True,  # the user's ^C is Python's to handle
            )
        except OSError as error:
            raise TargetError(
                f"the runner {command[0]} cannot be started", got=error.strerror or str(error)
            ) from error
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._in, self._out = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._out, selectors.EVENT_READ)
        self._usable = True
        self._deadline = time.monotonic() + 60.0
        try:
            magic, count = struct.unpack("<2q", self._take(16))
            if magic != _MAGIC:
                raise TargetError(f"{command[-1]} is no runner", got=f"magic {magic:#x}")
            lengths = (struct.unpack("<q", self._take(8))[0] for _ in range(count))
            self.kernels = [self._take(length).decode() for length in lengths]
        except BaseException:
            self.end()
            raise

    def usable(self) -> bool:
        return self._usable and self._popen.poll() is None

    def call(
        self,
        name: str,
        request: _Request,
        sizes: Sequence[int],
        scalars: Sequence[float],
        front: bool,
        timeout: float,
    ) -> list[bytearray]:
        if name not in self.kernels:
            raise TargetError(f"the runner has no kernel {name}", expected=", ".join(self.kernels))
        header = request.header(self.kernels.index(name), sizes, scalars, front)
        self._deadline = time.monotonic() + timeout
        try:
            self._give(header, request.regions)
            status, region, offset, number = struct.unpack("<4q", self._take(32))
            if status == _OK:
                sizes_out = zip(request.regions, request.writable, strict=True)
                return [self._take(view.nbytes) for view, writable in sizes_out if writable]
        except BaseException:
            self.end()  # a half-read answer must not be taken for the next one
            raise
        if status != _WROTE_OUTSIDE:
            self.end()
        raise _fault(name, request, status, region, offset, number)

    def _give(self, header: bytes, regions: Sequence[memoryview]) -> None:
        small = [header]
        try:
            for view in regions:
                if view.nbytes < 1 << 16:
                    small.append(bytes(view))
                    continue
                self._write(memoryview(b"".join(small)))
                self._write(view)
                small = []
            self._write(memoryview(b"".join(small)))
        except BrokenPipeError:
            raise self._died() from None

    def _write(self, view: memoryview) -> None:
        while view.nbytes:
            view = view[os.write(self._in, view) :]

    def _take(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        while view.nbytes:
            if not self._ready.select(max(0.0, self._deadline - time.monotonic())):
                raise TargetError(
                    "the kernel did not end in time", hint="pass a larger timeout, or fewer data"
                )
            done = os.readv(self._out, [view])
            if done == 0:
                raise self._died()
            view = view[done:]
        return data

    def _died(self) -> TargetError:
        status = self._popen.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return TargetError(
            "the runner's process ended",
            got=f"{how}; {said[-500:] or 'it said nothing'}",
            expected=f"an answer from: {' '.join(self._command)}",
        )

    def end(self) -> None:
        """Kill the process, at once: it has nothing to lose."""
        self._usable = False
        if self._popen.returncode is None:
            self._popen.kill()
            self._popen.wait()
        self._close()

    def disown(self) -> None:
        """Close this process's ends of the pipes and leave the program alone."""
        self._usable = False
        self._popen.returncode = 0  # not ours to wait for
        self._close()

    def _close(self) -> None:
        self._ready.close()
        for file in (self._popen.stdin, self._popen.stdout, self._said):
            if file is not None:
                file.close()


def _fault(
    name: str, request: _Request, status: int, region: int, offset: int, number: int
) -> TargetError:
    if status == _NO_MEMORY:
        return TargetError(f"the runner has no memory for the arrays of {name}")
    if status == _BAD_REQUEST:
        return TargetError("the runner did not understand its request")
    signal_name = signal.Signals(number).name if status == _CRASH else ""
    if region < 0:
        return TargetError(
            f"{name} crashed: {signal_name}",
            got=f"address {offset & 0xFFFFFFFFFFFFFFFF:#x}, near none of the arrays",
            hint="the CPU or emulator lacks an instruction of the target"
            if signal_name == "SIGILL"
            else None,
        )
    owner = request.owner(region)
    size = request.regions[region].nbytes if region < len(request.regions) else None
    verb = "wrote" if status == _WROTE_OUTSIDE else "touched"
    if offset < 0:
        where = f"{-offset} bytes before the first byte of {owner}"
    elif size is not None and offset < size:
        where, verb = f"byte {offset} of {owner}, which is only read", "wrote"
    elif size is not None:
        where = f"{offset - size + 1} bytes behind the last byte of {owner}"
    else:
        where = f"byte {offset} of {owner}"
    got = f"{signal_name or 'a changed byte'} at offset {offset}"
    extent = None if size is None else f"offsets 0 to {size - 1}"
    return TargetError(f"{name} {verb} {where}", got=got, expected=extent)


# --- all runners of this Python ----------------------------------------------------------------

_runners: weakref.WeakSet[Runner] = weakref.WeakSet()
_alive: list[weakref.ref[Runner]] = []
_shared: dict[tuple[str, ...], Runner] = {}
_guard = threading.Lock()


def shared_runner(executable: Path, prefix: Sequence[str] = ()) -> Runner:
    """The one Runner of this Python for ``executable``: kernels of one library share it."""
    with _guard:
        key = (*prefix, str(executable))
        if key not in _shared:
            _shared[key] = Runner(executable, prefix)
        return _shared[key]


def _keep_few_alive(started: Runner) -> None:
    """End the runner started first when there are too many; one that is busy is left alone."""
    with _guard:
        _alive[:] = [ref for ref in _alive if ref() not in (None, started)]
        _alive.append(weakref.ref(started))
        oldest = _alive.pop(0)() if len(_alive) > _ALIVE else None
    if oldest is not None and oldest._lock.acquire(blocking=False):
        try:
            oldest._drop()
        finally:
            oldest._lock.release()


def _end_all() -> None:
    for runner in list(_runners):
        runner._drop()


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()
    _alive.clear()
    for runner in list(_runners):
        runner._forget()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
