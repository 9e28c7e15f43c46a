"""jinja2 stands here and nowhere else: templates in, C text out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2

from .symbolic import c_text, slots

#: Element types as C names them. Types are data of the language, not of a target.
C_TYPES = {"f32": "float", "f64": "double", "i64": "int64_t"}


@dataclass(frozen=True, slots=True)
class Source:
    """C text and the names of the kernels it defines."""

    text: str
    names: tuple[str, ...]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "c": c_text,
        "ctype": C_TYPES.__getitem__,
        "spell": lambda spelling, **operands: spelling.format_map(operands),
        "number": _number,
        "slots": slots,
    }
    return environment


def _number(source: float | str, element: str) -> str:
    """A literal of ``element``'s type, exact to the bit; a parameter's name stays as it is."""
    if isinstance(source, str):
        return source
    return float(source).hex() + ("f" if element == "f32" else "")


def render(template: str, **context: Any) -> str:
    """The text of ``templates/<template>`` with ``context``; an undefined name is an error."""
    return _environment().get_template(template).render(**context)
