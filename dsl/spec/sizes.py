"""Sizes: ints and dims, and the small words that specs are written with."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import SpecError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
MAX_SIZE = 2**62


def check_identifier(name: object, what: str) -> str:
    """``name`` if it can stand in C and Python as it is."""
    if not isinstance(name, str) or not _IDENTIFIER.match(name) or keyword.iskeyword(name):
        raise SpecError(
            f"the name of {what} must be a C identifier",
            got=name,
            expected="letters, digits and underscores, no digit first",
        )
    return name


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_count(value: object, what: str) -> None:
    """SpecError unless ``value`` is an int above 0."""
    if not _whole(value) or not isinstance(value, int) or value < 1:
        raise SpecError(f"{what} must be a positive int", got=value)


def call_text(
    name: str, given: Sequence[object], options: Mapping[str, tuple[object, object]]
) -> str:
    """The Python call that makes a value; ``options`` maps keywords to (value, default)."""
    said = [repr(value) for value in given]
    said += [f"{key}={value!r}" for key, (value, default) in options.items() if value != default]
    return f"{name}({', '.join(said)})"


@dataclass(frozen=True, slots=True, repr=False)
class Dim:
    """A size known only at the call, read from the arrays' shapes and strides."""

    name: str
    multiple_of: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        check_identifier(self.name, "a dim")
        if not _whole(self.multiple_of) or self.multiple_of < 1:
            raise SpecError(
                f"dim {self.name!r}: multiple_of must be a positive int", got=self.multiple_of
            )
        if self.max is not None and (not _whole(self.max) or self.max < 0):
            raise SpecError(f"dim {self.name!r}: max must be an int, 0 or more", got=self.max)
        if self.max is not None and self.max < self.multiple_of:
            raise SpecError(
                f"dim {self.name!r}: no positive size is both a multiple of {self.multiple_of} "
                f"and at most {self.max}",
                hint="raise max or lower multiple_of",
            )

    def __repr__(self) -> str:
        options = {"multiple_of": (self.multiple_of, 1), "max": (self.max, None)}
        return call_text("dim", [self.name], options)


def dim(name: str, multiple_of: int = 1, max: int | None = None) -> Dim:
    """A size known only when the kernel is called; ``max`` is inclusive."""
    return Dim(name, multiple_of, max)


Size = int | Dim


def check_size(value: object, what: str, *, least: int = 0) -> Size:
    """``value`` if it is a dim or an int of at least ``least``; numpy integers become ints."""
    if isinstance(value, Dim):
        return value
    if not _whole(value) and hasattr(value, "__index__") and not isinstance(value, bool):
        value = value.__index__()
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{what} must be an int or tw.dim(...)", got=value)
    if not least <= value <= MAX_SIZE:
        raise SpecError(f"{what} is out of range", got=value, expected=f"{least} to 2**62")
    return value


def check_dims(sizes: Iterable[tuple[str, Dim]]) -> None:
    """SpecError if two dims have one name and differ."""
    known: dict[str, Dim] = {}
    for _, size in sizes:
        if known.setdefault(size.name, size) != size:
            raise SpecError(
                f"dim {size.name!r} is declared twice with different properties",
                got=f"{known[size.name]} and {size}",
                hint="make one tw.dim and use it in both places",
            )


def canonical(value: Any) -> str:
    """A text that is equal exactly when specs, schedules or their parts are equal."""
    names = getattr(value, "__dataclass_fields__", None)
    if names is not None:
        inner = ",".join([f"{name}={canonical(getattr(value, name))}" for name in names])
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple):
        return f"({','.join(map(canonical, value))})"
    return value.hex() if isinstance(value, float) else repr(value)
