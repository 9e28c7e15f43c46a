"""What costs time to make and is the same for every process: files in the cache directory.

Such a file is no kernel: it may go at any time, and is then made again. What lies in one may be
executed, so it is taken only from directories, and of owners, that kernels are taken from.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from tilewright.errors import CacheError

from . import cache
from .folders import UnusableError, cache_directory, check_directory, check_owner

#: The compiled templates, in the cache directory.
TEMPLATES = "templates"

_DIGEST = hashlib.sha256().digest_size


class Shelf:
    """Bytes by name, kept for later processes in a folder of the cache directory.

    Each file begins with the SHA-256 of what follows. A file that others may have written, that
    was altered, or that another version of tilewright made is not taken.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where ``name`` lies, or would."""
        return cache_directory() / self.folder / cache.key(self.folder, name)

    def read(self, name: str) -> bytes | None:
        """What was written under ``name``; None where nothing is there that may be used."""
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
        """Keep ``data`` under ``name``; a directory that takes no files is left as it is."""
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
