"""Digests of tensors: whether any byte of a weight changed since it was packed.

PyTorch does not count all writes to a tensor (``weight.data``, fused optimizers, numpy, DLPack), so
the bytes themselves are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tilewright.emit.render import render
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.call.abi import function_type, library
from tilewright.runtime.machine.host import identify
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.damaged import kept


def digest(tensors: Sequence[torch.Tensor]) -> int:
    """Return a number of 64 bits that depends on all bytes of the tensors, and on their order."""
    function, found = _function(), 0
    for each in tensors:
        whole = each.detach()
        whole = whole if whole.is_contiguous() else whole.contiguous()
        found = function(whole.data_ptr(), whole.numel() * whole.element_size(), found)
    return found


@cache
def _function() -> Callable[[int, int, int], int]:
    """Return the C function, which is built at its first use and kept in the cache."""

    def load(entry: store.Entry) -> Any:
        signature = function_type(("uintptr_t", "int64_t", "uint64_t"), "uint64_t")
        return library(str(entry.library)).load_function(signature, "tw_digest")

    found: Callable[[int, int, int], int] = kept(
        store.key("digest", identify("host").name), _build, load
    )
    return found


def _build(directory: Path) -> Mapping[str, Any]:
    target = identify("host").description
    compiler = find_compiler(target, emulated=False)
    made = compile_library(render("digest/digest.c.j2"), target, compiler, directory, "digest")
    return {"library": made.name, "source": "digest.c", "compiler": str(compiler)}
