"""How few rows of which types a target multiplies by vectors along K, where B lies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.runtime.machine.host import identify
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.folders import cache_directory

_FILE = "along_k.txt"


def few_along_k(a: str, b: str, target: str) -> int:
    """Up to how many rows of A, or columns of B, vectors along K are taken of types it converts.

    The planner knows, and takes long to import: so the answer is kept as an entry of the cache.
    """
    return _answer(cache_directory(), a, b, identify(target).name)


@cache
def _answer(root: Path, a: str, b: str, target: str) -> int:
    key = store.key("few along k", target, a, b)

    def write(folder: Path) -> Mapping[str, Any]:
        (folder / _FILE).write_text(str(_planned(a, b, target)), encoding="utf-8")
        return {"library": _FILE, "source": _FILE}

    entry = store.lookup(key) or store.publish(key, write)
    return int(entry.library.read_text(encoding="utf-8"))


def _planned(a: str, b: str, target: str) -> int:
    from tilewright.plan.staging import few_along_k as planned
    from tilewright.spec.gemm import Gemm
    from tilewright.spec.operands import Matrix
    from tilewright.spec.sizes import dim
    from tilewright.spec.types import type_name

    first, second = type_name(a), type_name(b)
    spec = Gemm(dim("m"), dim("n"), dim("k"), a=first, b=Matrix(second, "F"))
    return planned(spec, identify(target).description)
