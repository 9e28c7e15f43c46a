"""The peaks of one core: calls that are timed in every round beside the kernels."""

from __future__ import annotations

from functools import cache

from tilewright.plan.contraction import choose_product
from tilewright.runtime.bench.peak import peak_call
from tilewright.runtime.machine.host import resolve

from .native import Call

NAME = "FMA peak"


Types = tuple[str, str]


@cache
def peak(isa: str, types: Types = ("f32", "f32")) -> Call:
    """The chains of ``tw.peak`` for A and B of ``types`` on this ISA, the best number of them."""
    found = peak_call(isa, types)
    return Call(name(isa, types), found.address, found.operands, found.flops, found.keep)


def name(isa: str, types: Types) -> str:
    """What the peak is called: that of FMAs is f32's, others are those of their instruction."""
    found = instruction(isa, types)
    return NAME if found == instruction(isa, ("f32", "f32")) else f"{found} peak"


@cache
def instruction(isa: str, types: Types) -> str:
    """What sums the products of A and B of ``types``."""
    found = choose_product(resolve(isa), dict(zip("ab", types, strict=True)), "b")
    return found.mnemonic
