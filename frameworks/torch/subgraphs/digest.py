"""Digests of tensors: whether any byte of a weight changed since it was packed.

PyTorch does not count all writes to a tensor (``weight.data``, fused optimizers, numpy, DLPack), so
the bytes themselves are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import torch
from tilewright.emit.render import render
from tilewright.runtime.arrays.memory import address
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.call.abi import function_type, library
from tilewright.runtime.machine.host import identify
from tilewright.runtime.store import cache as store
from tilewright.runtime.store.damaged import kept
from tilewright.runtime.threads import process as threads

#: Size in bytes of a chunk, which one thread reads, and the number of chunks below which threads do
#: not help.
CHUNK, FEW = 1 << 18, 8


def digest(tensors: Sequence[torch.Tensor], target: str = "host") -> int:
    """Return a number of 64 bits that depends on all bytes of the tensors, and on their order.

    It is the same for each ``target``, for which the C function is compiled.
    """
    parts, chunks = [], 0
    whole = [each if each.is_contiguous() else each.contiguous() for each in tensors]
    for each in whole:
        size = each.numel() * each.element_size()
        parts.append((each.data_ptr(), size, chunks))
        chunks += max(1, -(-size // CHUNK))
    words, digests = np.array(parts, np.int64), np.empty(chunks, np.uint64)
    return function(target)(address(words), len(parts), chunks, CHUNK, address(digests))


@cache
def function(target: str = "host") -> Callable[[int, int, int, int, int], int]:
    """Return the C function, compiled for a target; it is built once and kept in the cache."""
    known = identify(target)

    def build(directory: Path) -> Mapping[str, Any]:
        compiler = find_compiler(known.description, emulated=False)
        text = render("digest/digest.c.j2", few=FEW)
        made = compile_library(text, known.description, compiler, directory, "digest")
        return {"library": made.name, "source": "digest.c", "compiler": str(compiler)}

    def load(entry: store.Entry) -> Any:
        types = ("uintptr_t", "int64_t", "int64_t", "int64_t", "uintptr_t")
        threads.attach(entry.library)
        return library(str(entry.library)).load_function(
            function_type(types, "uint64_t"), "tw_digest"
        )

    found: Callable[[int, int, int, int, int], int]
    found = kept(store.key("digest", known.name), build, load)
    return found
