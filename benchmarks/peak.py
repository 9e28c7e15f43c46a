"""The FMA peak of one core: a call that is timed in every round beside the kernels."""

from __future__ import annotations

from functools import cache

from tilewright.runtime.peak import peak_call

from .native import Call

NAME = "FMA peak"


@cache
def peak(isa: str) -> Call:
    """The chains of ``tw.peak``: f32 FMAs of this ISA, the best number of them."""
    found = peak_call(isa, "f32")
    return Call(NAME, found.address, (*found.operands, 0), found.flops, found.keep)
