"""New processes of Python, and seeing which compilers this one starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence

_COMPILER = re.compile(r"(^|-)(cc|gcc|clang|g\+\+|c\+\+|ld|zig)(-[0-9.]+)?$")


def is_compiler(command: Sequence[str]) -> bool:
    """Whether a command line starts a compiler, directly or as Python's ziglang module."""
    name = os.path.basename(command[0]) if command else ""
    return bool(_COMPILER.search(name)) or "ziglang" in command[1:3]


def python(code: str) -> str:
    """What ``code`` prints in a new process, which may keep compiled modules."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


class CompilerWatch:
    """An audit hook that collects the command lines of compilers in ``started``."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        """See ``sys.addaudithook``; a hook cannot be removed, so it must be cheap."""
        if event != "subprocess.Popen":
            return
        given = args[1]
        command = [given] if isinstance(given, (str, bytes, os.PathLike)) else list(given)  # type: ignore[call-overload]
        words = [os.fsdecode(word) for word in command]
        if is_compiler(words):
            self.started.append(" ".join(words))
