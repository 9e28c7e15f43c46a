"""Store facts about this machine in the cache directory if finding them out is slow."""

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
    """Return facts about the machine ``here``. They are found once and then read from a file.

    ``find`` returns the facts as JSON data, which is kept in the file ``name``. ``read`` turns the
    data into the result. A file that is damaged, or of another machine, is written
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
