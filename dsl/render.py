"""jinja2 stands here and nowhere else: templates in, C text out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2


@dataclass(frozen=True, slots=True)
class Source:
    """C text and the names of the kernels it defines."""

    text: str
    names: tuple[str, ...]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("tilewright.templates", ""),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **context: Any) -> str:
    """The text of ``templates/<template>`` with ``context``; an undefined name is an error."""
    return _environment().get_template(template).render(**context)
