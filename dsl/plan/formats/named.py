"""Find the format of a text. Formats of quantized matrices are imported only if needed."""

from __future__ import annotations

from typing import Any

from .layout import packed_format_named


def format_named(text: str) -> Any:
    """Return the packed format of any kind whose ``text`` this is; None if there is none.

    The modules of quantized formats take long to import. They are imported only for their formats.
    """
    if (plain := packed_format_named(text)) is not None:
        return plain
    from .quantized_a import rows_format_named
    from .quantized_b import quantized_format_named

    return quantized_format_named(text) or rows_format_named(text)
