"""One file per instruction set; ``load`` finds them by name."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tilewright.errors import TargetError
from tilewright.isa import Target

#: Best first: the first that the CPU has is "host".
NAMES = ("avx512", "avx2", "neon", "scalar")


@cache
def load(name: str) -> Target:
    """The target called ``name``."""
    if name not in NAMES:
        raise TargetError(
            "unknown target", got=name, expected=f"one of {', '.join(NAMES)}, or host"
        )
    target = import_module(f"{__name__}.{name}").TARGET
    assert isinstance(target, Target)
    return target
