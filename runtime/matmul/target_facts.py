"""Look up facts about a target that decide how a product is computed, and keep them in the cache.

The description and the planner take long to import. A call of an existing kernel needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tilewright.runtime.machine.host import identify
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.collector import uncollected
from tilewright.runtime.store.folders import cache_directory

if TYPE_CHECKING:
    from tilewright.spec.gemm import Gemm

_FILE = "fact.txt"
#: The number of steps of K in a panel is a multiple of this.
_EVENLY = 8


def few_along_k(a: str, b: str, target: str) -> int:
    """Return the largest number of rows of A, or columns of B, for which vectors run along K.

    This is for types that must be converted.
    """
    return _fact(cache_directory(), _few_along_k, identify(target).name, a, b)


def second_cache(target: str) -> int:
    """Return the size of the target's L2 cache in bytes."""
    return _fact(cache_directory(), _second_cache, identify(target).name)


def least_parallel(a: str, b: str, target: str) -> int:
    """Return the minimum number of multiply-adds of a product that two threads compute faster.

    At the target's peak, half of the time of one thread is then longer than starting a parallel
    region takes.
    """
    return _fact(cache_directory(), _least_parallel, identify(target).name, a, b)


def panel(type_: str, along: Literal["m", "n"], target: str) -> tuple[int, int]:
    """Return the size of the widest panel that a thread packs for itself.

    The size is the number of rows of A (``along`` is "m") or of columns of B ("n"), and the number
    of steps of K.
    """
    lines = _fact(cache_directory(), _panel_lines, identify(target).name, type_, along)
    return lines, _fact(cache_directory(), _panel_steps, identify(target).name, type_, along)


@cache
def _fact(root: Path, found: Callable[..., int], target: str, *types: str) -> int:
    """Return ``found(target, *types)``, remembered in this process and in the cache ``root``."""
    key = store.key(found.__name__, target, *types)

    def write(folder: Path) -> Mapping[str, Any]:
        with uncollected():
            fact = found(target, *types)
        (folder / _FILE).write_text(str(fact), encoding="utf-8")
        return {"library": _FILE, "source": _FILE}

    entry = store.lookup(key) or store.publish(key, write)
    return int(entry.library.read_text(encoding="utf-8"))


def in_matrices(a: str, b: str, target: str) -> bool:
    """Return True if the target has a matrix unit for products of these types."""
    return bool(_fact(cache_directory(), _in_matrices, identify(target).name, a, b))


def _in_matrices(target: str, a: str, b: str) -> int:
    from tilewright.plan.staging import product_of

    return int(product_of(_any_size(a, b), identify(target).description, "b").unit is not None)


def _few_along_k(target: str, a: str, b: str) -> int:
    from tilewright.plan.staging import few_along_k as planned

    return planned(_any_size(a, b), identify(target).description)


def _any_size(a: str, b: str) -> Gemm:
    """Return the spec of products of these types in which A and B are contiguous along K."""
    from tilewright.spec.gemm import Gemm
    from tilewright.spec.operands import Matrix
    from tilewright.spec.sizes import dim
    from tilewright.spec.types import type_name

    return Gemm(dim("m"), dim("n"), dim("k"), a=type_name(a), b=Matrix(type_name(b), "F"))


def _second_cache(target: str) -> int:
    return identify(target).description.core.second.size


def _least_parallel(target: str, a: str, b: str) -> int:
    from tilewright.plan.estimate.work import peak
    from tilewright.plan.planner import make_plan
    from tilewright.spec.schedule import Schedule

    found = identify(target).description
    spec = _any_size(a, b)
    return round(2 * found.core.region * peak(make_plan(spec, Schedule(), found)))


def _panel_lines(target: str, type_: str, along: Literal["m", "n"]) -> int:
    from tilewright.plan.planner import make_plan
    from tilewright.spec.gemm import Gemm
    from tilewright.spec.schedule import Schedule
    from tilewright.spec.sizes import dim
    from tilewright.spec.types import type_name

    across = "m" if along == "n" else "n"
    spec = Gemm(
        dim("m"), dim("n"), dim("k"), a=type_name(type_), order="C" if along == "n" else "F"
    )
    schedule = Schedule(loops=f"{along}k{across}{across}{along}k", pack="ab")
    tile = make_plan(spec, schedule, identify(target).description).nest.panel_tile
    assert tile is not None
    return tile["mn".index(along)]


def _panel_steps(target: str, type_: str, along: Literal["m", "n"]) -> int:
    from tilewright.ir.stages import STACK_BYTES
    from tilewright.spec.types import ITEMSIZE

    lines = _panel_lines(target, type_, along)
    return STACK_BYTES // (lines * ITEMSIZE[type_]) // _EVENLY * _EVENLY
