"""Particular x86 processors: what the cost model knows of them, measured, as features of a target.

They add no instruction: a kernel for one runs wherever its target does.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.machine import Core
from tilewright.isa.target import Feature


def zen5(core: Core, beside: float) -> Feature:
    """Zen 5 issues eight operations a cycle, of them two multiply-adds and two permutations.

    The first 12 vectors of a tile's results cost nothing; 8 chains of multiply-adds, which just
    hide the latency, take 8 % longer than 12. Conversions ``beside`` tiles are hidden but for a
    share: stores of 512 bits take the multiply-adds' time. Models as Linux has them.
    """
    models = (*range(0x30), *range(0x40, 0x50), *range(0x60, 0x80))
    return Feature(
        title="scheduled for Zen 5",
        processors=("zen5", *(f"AuthenticAMD 26 {model}" for model in models)),
        core=replace(
            core,
            issue=8,
            shuffles=2,
            overlap=1 / 48,
            idle=0.25,
            strain=1 / 12,
            hidden=12,
            beside=beside,
        ),
    )


def zen3(core: Core) -> Feature:
    """Zen 3 hides loads, issue and latency behind its multiply-adds nearly whole.

    A store of a vector takes a cycle of both units when its data comes from the register file,
    none while the multiply-add that made it has just ended: so with the first 8 stores of a tile,
    not with more.
    """
    models = (*range(0x10), *range(0x20, 0x60))
    return Feature(
        title="scheduled for Zen 3",
        processors=("zen3", *(f"AuthenticAMD 25 {model}" for model in models)),
        core=replace(core, overlap=1 / 48, idle=2, hidden=8, late=3),
    )
