"""Write files that take the place of others only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tilewright.errors import ArgumentTypeError, ArgumentValueError


def file_path(given: object) -> Path:
    """Return a file's path; raise ArgumentTypeError for any other object."""
    try:
        return Path(given)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentTypeError(
            "path must name a file", got=f"{given!r:.80}", expected="a str or a pathlib.Path"
        ) from None


@contextmanager
def replacing(given: object) -> Iterator[BinaryIO]:
    """Open a new file. It gets the path ``given`` at the end, if there was no error.

    An ``OSError`` names this path. ArgumentError is raised for a path of anything but a file, for
    example of a device, which must not be replaced.
    """
    target = Path(os.path.realpath(file_path(given)))
    if target.exists() and not target.is_file():
        what = "a folder" if target.is_dir() else "no regular file"
        raise ArgumentValueError(
            f"{target} cannot be replaced", got=f"it is {what}", expected="a file, or a new path"
        )
    building = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with building.open("wb") as file:
            yield file
        building.replace(target)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        building.unlink(missing_ok=True)
