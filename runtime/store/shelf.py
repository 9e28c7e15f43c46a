"""Keep files in the cache directory that are slow to make and the same for every process.

These files are not kernels. They are, for example, compiled templates. A file may be removed at any
time and is then made again. Its content may be executed, so directories and owners are checked as
they are for kernels.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from tilewright.errors import CacheError

from . import cache
from .folders import UnusableError, cache_directory, check_directory, check_owner

#: Folder of the compiled templates, in the cache directory.
TEMPLATES = "templates"

_DIGEST = hashlib.sha256().digest_size


class Shelf:
    """Bytes by name, kept for later processes in a folder of the cache directory.

    Each file begins with the SHA-256 of the rest. A file that others can write, that was altered,
    or that another version of tilewright made is ignored.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Return the path for ``name``, which need not exist."""
        return cache_directory() / self.folder / cache.key(self.folder, name)

    def read(self, name: str) -> bytes | None:
        """Return the bytes stored under ``name``, None if there are none that may be used."""
        path = self.path(name)
        try:
            for folder in (path.parent.parent, path.parent):
                check_directory(folder)
            with open(path, "rb", buffering=0) as file:
                check_owner(file.fileno(), str(path))
                held = file.readall()
        except (OSError, UnusableError, CacheError):
            return None
        data = held[_DIGEST:]
        return data if hashlib.sha256(data).digest() == held[:_DIGEST] else None

    def write(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name``. If the directory takes no files, nothing happens."""
        path = self.path(name)
        part = path.with_name(f"{path.name}-{os.getpid()}")
        with suppress(OSError, CacheError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (path.parent.parent, path.parent):
                check_directory(folder)
            try:
                part.write_bytes(hashlib.sha256(data).digest() + data)
                part.chmod(0o600)
                part.replace(path)
            except OSError:
                part.unlink(missing_ok=True)
                raise
