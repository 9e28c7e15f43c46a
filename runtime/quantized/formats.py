"""Find a low-bit format by name. The names are those of GGUF's tensor types."""

from __future__ import annotations

from typing import Any

from tilewright.errors import ArgumentTypeError, ArgumentValueError
from tilewright.spec.quantized import Quantized

from .gguf import CONTAINERS


def as_format(given: Any) -> Quantized:
    """Return a format, given as a ``Quantized`` or as the name of a GGUF tensor type.

    Upper and lower case are treated alike. Raise ArgumentError, which lists the names, for anything
    else.
    """
    if isinstance(given, Quantized):
        return given
    text = given.casefold() if isinstance(given, str) else None
    for name, container in CONTAINERS.items():
        if name.casefold() == text:
            return container.form
    raise (ArgumentTypeError if text is None else ArgumentValueError)(
        "this is no low-bit format",
        got=f"{given!r:.80}",
        expected=f"a tw.Quantized, or one of {', '.join(CONTAINERS)}",
        hint='tw.Quantized("s4", block=32), or "q4_0"',
    )
