"""Tell networks from other specs, without loading the modules of networks for those."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from ..gemm import Gemm
from ..pack import Pack, PackQuantized
from ..transpose import Transpose

if TYPE_CHECKING:
    from .value import Network


def is_network(spec: object) -> TypeGuard[Network]:
    """Return True if ``spec`` is a network."""
    if isinstance(spec, Gemm | Transpose | Pack | PackQuantized):
        return False
    from .value import Network

    return isinstance(spec, Network)
