"""Extensions of SVE."""

from __future__ import annotations

from tilewright.isa.target import Feature


def features(nbytes: int) -> dict[str, Feature]:
    """By name, in the order in which a target's name has them."""
    return {}
