"""Find the format of a text. The module of quantized formats is imported only if needed."""

from __future__ import annotations

from typing import Any

from .layout import packed_format_named


def format_named(text: str) -> Any:
    """Return the packed format of any kind whose ``text`` this is; None if there is none."""
    if (plain := packed_format_named(text)) is not None:
        return plain
    from .low_bit import quantized_format_named, rows_format_named

    return quantized_format_named(text) or rows_format_named(text)
