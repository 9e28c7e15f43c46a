"""Which types a target multiplies by vectors along K that are read where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.runtime.machine.host import identify
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.folders import cache_directory

_FILE = "along_k.txt"


def reads_along_k(a: str, b: str, target: str) -> bool:
    """Whether vectors of rows of A meet those of columns of B, of types that are converted.

    The planner knows, and takes long to import: so the answer is kept as an entry of the cache.
    """
    return _answer(cache_directory(), a, b, identify(target).name)


@cache
def _answer(root: Path, a: str, b: str, target: str) -> bool:
    key = store.key("along k", target, a, b)

    def write(folder: Path) -> Mapping[str, Any]:
        (folder / _FILE).write_text(str(int(_planned(a, b, target))), encoding="utf-8")
        return {"library": _FILE, "source": _FILE}

    entry = store.lookup(key) or store.publish(key, write)
    return entry.library.read_text(encoding="utf-8") == "1"


def _planned(a: str, b: str, target: str) -> bool:
    from tilewright.plan.staging import reads_along_k as planned
    from tilewright.spec.gemm import Gemm
    from tilewright.spec.operands import Matrix
    from tilewright.spec.sizes import dim
    from tilewright.spec.types import type_name

    first, second = type_name(a), type_name(b)
    spec = Gemm(dim("m"), dim("n"), dim("k"), a=first, b=Matrix(second, "F"))
    return planned(spec, identify(target).description)
