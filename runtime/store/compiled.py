"""Keep compiled templates where Python keeps compiled modules: in ``__pycache__`` beside them.

If that folder takes no files, for example because the package was installed by root, they are kept
in the cache directory.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from .collector import uncollected
from .shelf import TEMPLATES, Shelf

_DIGEST = hashlib.sha256().digest_size


class CompiledTemplates:
    """The bytecode of templates by the path of the template, and by a name for its version.

    A file begins with the SHA-256 of its name and of the rest, so that another version, and a file
    that is not complete, are not read. Environment variables act on these files as on those of
    Python, for example PYTHONDONTWRITEBYTECODE and PYTHONPYCACHEPREFIX.
    """

    def __init__(self) -> None:
        self.shelf = Shelf(TEMPLATES)

    def read(self, template: str, name: str) -> bytes | None:
        """Return the bytecode of ``template``, None if there is none that may be used."""
        with suppress(OSError, NotImplementedError):
            held = Path(cache_from_source(template)).read_bytes()
            data = held[_DIGEST:]
            if held[:_DIGEST] == _digest(name, data):
                return data
        return self.shelf.read(name)

    def write(self, template: str, name: str, data: bytes) -> None:
        """Keep the bytecode of ``template``, replacing that of other versions."""
        try:
            if sys.dont_write_bytecode:
                raise PermissionError
            path = Path(cache_from_source(template))
            part = path.with_name(f"{path.name}.{os.getpid()}")
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(_digest(name, data) + data)
            part.replace(path)
        except (OSError, NotImplementedError):
            self.shelf.write(name, data)


def keep_templates() -> None:
    """Keep the bytecode of all templates that this process compiles from now on."""
    with uncollected():
        from tilewright.emit.render import keep_compiled

    keep_compiled(CompiledTemplates())


def render(template: str, **context: Any) -> str:
    """Return the text of ``templates/<template>``; the bytecode of the template is kept."""
    keep_templates()
    from tilewright.emit.render import render as rendered

    return rendered(template, **context)


def _digest(name: str, data: bytes) -> bytes:
    return hashlib.sha256(name.encode() + data).digest()
