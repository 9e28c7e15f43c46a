"""Facts about this machine that are slow to find out, kept in the cache directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tilewright.runtime.store.folders import UNREADABLE, cache_directory

T = TypeVar("T")


def remembered(
    name: str,
    here: str,
    find: Callable[[], Mapping[str, Any]],
    read: Callable[[Mapping[str, Any]], T],
) -> T:
    """Return ``read`` of the data that ``find`` returns; ``find`` runs once for the machine
    ``here``.

    The data is kept in the file ``name``. A file that is damaged, or of another machine, is written
    again. If no file can be written, ``find`` runs each time.
    """
    file = cache_directory() / name
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        if known["here"] == here:
            return read(known)
    except (OSError, *UNREADABLE):
        pass
    found = find()
    try:
        os.makedirs(file.parent, mode=0o700, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"here": here, **found}), encoding="utf-8")
        part.replace(file)
    except OSError:
        pass
    return read(found)
