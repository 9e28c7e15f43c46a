"""Talk to a runner process: send it one call as bytes, and receive the results.

In go arrays, sizes and scalars of a call. Out come the bytes of the written arrays, or a
TargetError that says what the kernel touched. The other side is ``templates/runner/runner.c.j2``.
"""

from __future__ import annotations

import os
import selectors
import signal
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any

from tilewright.errors import TargetError

_MAGIC = 0x54574B31
_OK, _CRASH, _WROTE_OUTSIDE, _NO_MEMORY, _BAD_REQUEST = range(5)
_START_SECONDS = 60.0


class ProcessEndedError(TargetError):
    """The runner's process ended without an answer."""


@dataclass(frozen=True, slots=True)
class Alias:
    """An array that begins ``offset`` bytes into the argument of index ``of``."""

    of: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of an array between its guard pages.

    If ``front``, the array begins at the end of the guard page before it. Otherwise it ends where
    the guard page after it begins, and the kernel may read ``overread`` bytes further.
    """

    front: bool
    overread: int


class Request:
    """The arrays of one call in the runner's form: regions of memory, pointers, and uses.

    ``templates/runner/runner.c.j2`` defines these.
    """

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
        for index, array in enumerate(arrays):
            if isinstance(array, Alias):
                region, offset = self.pointers[self.uses[array.of][0]]
                self.pointers[self.uses[index][0]] = (region, offset + array.offset)

    def _add(self, index: int, array: Any, writable: bool) -> None:
        if isinstance(array, Alias):
            # An alias gets this placeholder until all regions are known.
            self._point(0, 0)
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
        """Return the name of the array in a region of the runner's memory, for an error message."""
        if region < len(self.owners):
            return self.owners[region]
        index = region - len(self.owners)
        return f"the addresses of {self.names[index]}" if index < len(self.names) else "the scratch"

    def extent(self, region: int) -> int | None:
        """Return the size in bytes of a region of the runner's memory, None if it is unknown."""
        if region < len(self.regions):
            return self.regions[region].nbytes
        index = region - len(self.regions)
        return 8 * self.uses[index][1] if index < len(self.uses) else None

    def header(
        self, kernel: int, sizes: Sequence[int], scalars: Sequence[float], where: Placement
    ) -> bytes:
        """Return the first bytes of a request, after which the contents of the regions follow."""
        flat = [_MAGIC, kernel, int(where.front), where.overread]
        counted: list[Sequence[Any]] = [self.regions, self.pointers, self.uses, sizes, scalars]
        flat += [len(sequence) for sequence in counted]
        for view, writable in zip(self.regions, self.writable, strict=True):
            flat += [view.nbytes, int(writable)]
        for pair in (*self.pointers, *self.uses):
            flat += pair
        flat += sizes
        return struct.pack(f"<{len(flat)}q{len(scalars)}d", *flat, *scalars)


class Process:
    """A running runner program, and the two pipes that connect to it."""

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
                # In a session of its own, the runner does not get the user's ^C.
                start_new_session=True,
            )
        except OSError as error:
            raise TargetError(
                f"the runner {command[0]} cannot be started", got=error.strerror or str(error)
            ) from error
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._in, self._out = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        self._ready = selectors.DefaultSelector()
        self._ready.register(self._out, selectors.EVENT_READ)
        self._usable = True
        self._deadline = time.monotonic() + _START_SECONDS
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
        """Return True if the runner's process can take a request."""
        return self._usable and self._popen.poll() is None

    def call(
        self,
        name: str,
        request: Request,
        sizes: Sequence[int],
        scalars: Sequence[float],
        where: Placement,
        timeout: float,
    ) -> list[bytearray]:
        """Send a request and wait. Return the new contents of the writable regions.

        Raises TargetError if the kernel failed.
        """
        if name not in self.kernels:
            raise TargetError(f"the runner has no kernel {name}", expected=", ".join(self.kernels))
        header = request.header(self.kernels.index(name), sizes, scalars, where)
        self._deadline = time.monotonic() + timeout
        try:
            self._give(header, request.regions)
            status, region, offset, number = struct.unpack("<4q", self._take(32))
            if status == _OK:
                sizes_out = zip(request.regions, request.writable, strict=True)
                return [self._take(view.nbytes) for view, writable in sizes_out if writable]
        except BaseException:
            # The process is ended, so that the rest of its answer is not read as the next one.
            self.end()
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
            # The runner has ended. It may have sent an answer that says why.
            pass

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

    def _died(self) -> ProcessEndedError:
        status = self._popen.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return ProcessEndedError(
            "the runner's process ended",
            got=f"{how}; {said[-500:] or 'it said nothing'}",
            expected=f"an answer from: {' '.join(self._command)}",
        )

    def end(self) -> None:
        """Kill the runner's process at once. It keeps no state that could be lost."""
        self._usable = False
        if self._popen.returncode is None:
            self._popen.kill()
            self._popen.wait()
        self._close()

    def disown(self) -> None:
        """Close this process's ends of the pipes, and leave the runner running."""
        self._usable = False
        # The runner is no child of this forked process, so Popen must not wait for it.
        self._popen.returncode = 0
        self._close()

    def _close(self) -> None:
        self._ready.close()
        for file in (self._popen.stdin, self._popen.stdout, self._said):
            if file is not None:
                file.close()


def _fault(
    name: str, request: Request, status: int, region: int, offset: int, number: int
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
    owner, size = request.owner(region), request.extent(region)
    verb = "wrote" if status == _WROTE_OUTSIDE else "touched"
    if offset < 0:
        where = f"{_bytes(-offset)} before the first byte of {owner}"
    elif size is not None and offset < size:
        where, verb = f"byte {offset} of {owner}, which is only read", "wrote"
    elif size is not None:
        where = f"{_bytes(offset - size + 1)} behind the last byte of {owner}"
    else:
        where = f"byte {offset} of {owner}"
    return TargetError(
        f"{name} {verb} {where}",
        got=f"{signal_name or 'a changed byte'} at offset {offset}",
        expected=None if size is None else f"offsets from 0 to {size - 1}",
    )


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
