"""Libraries that multiply bf16, or u8 by s8, with a B that was packed ahead.

What a library refuses on this processor is found out in a process of its own: PyTorch answers with
an exception of C++, which would end this one.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure.native import Call, MissingError, address, library
from benchmarks.measure.operands import WrongResultError
from benchmarks.measure.shapes import Shape
from benchmarks.measure.typed import Operands, Product, put

from .f32 import mkl_library, torch_library

ONEDNN, PYTORCH, MKL = "oneDNN", "PyTorch", "MKL"
#: at::native::cpublas::brgemm for the types of A and B.
BRGEMM = {
    ("bf16", "bf16"): "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb",
    ("u8", "s8"): "_ZN2at6native7cpublas6brgemmEllllllbPKhPKaPib",
}
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"
#: Elements of K in a group, by the size of an element; columns of a block; their least multiple.
GROUP, COLUMNS, STEP = {2: 2, 1: 4}, 64, 16
_PROBE = Path(__file__).parents[1] / "programs" / "brgemm_probe.py"
_ROW_MAJOR, _NO_TRANS, _PACKED, _B_MATRIX, _FIX_OFFSET = 101, 111, 151, 162, 173
_GEMM = {("bf16", "bf16"): "cblas_gemm_bf16bf16f32", ("u8", "s8"): "cblas_gemm_s8u8s32"}


class _Product(ctypes.Structure):
    """struct typed of ``adapters.c``."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "count", "lda")),
        *((name, ctypes.c_int64) for name in ("a_bytes", "b_bytes", "item", "groups")),
    )


@dataclass(frozen=True, slots=True)
class TypedPeer:
    """A library; ``call`` prepares one product."""

    name: str
    call: Callable[[Operands], Call]


def load(kind: tuple[str, str]) -> tuple[list[TypedPeer], list[str]]:
    """The peers for types of A and B, and what others said that refuse them."""
    peers, refusals = [], []
    said = _refusal(kind)
    if said is None:
        peers.append(TypedPeer(ONEDNN, lambda operands: _brgemm(ONEDNN, operands)))
    else:
        refusals.append(
            f"{ONEDNN}, in torch {version('torch')}, refuses {' x '.join(kind)}: {said}"
        )
        if kind == ("bf16", "bf16"):
            peers.append(TypedPeer(PYTORCH, lambda operands: _brgemm(PYTORCH, operands)))
    peers.append(TypedPeer(MKL, _mkl))
    return peers, refusals


def _refusal(kind: tuple[str, str]) -> str | None:
    """Why oneDNN's ukernel cannot be had for these types here; None if it can."""
    done = subprocess.run(
        [sys.executable, str(_PROBE), *kind], capture_output=True, text=True, check=False
    )
    if not done.returncode:
        return None
    lines = [line for line in done.stderr.splitlines() if "what():" in line]
    return lines[0].partition("what():")[2].strip() if lines else f"status {done.returncode}"


# -- PyTorch ------------------------------------------------------------------------------------


def _brgemm(name: str, operands: Operands) -> Call:
    """The ukernel of oneDNN on whole groups of K, or PyTorch's own product by the same function."""
    product, grouped = operands.product, name == ONEDNN
    shape, item = product.shape, operands.a.itemsize
    k = -(-shape.k // GROUP[item]) * GROUP[item] if grouped else shape.k
    a = put(_wider(operands.a, k), 0) if k != shape.k else operands.a
    b = put(grouped_blocks(operands.b) if grouped else operands.b, 1)
    described = _Product(
        function=address(torch_library()[BRGEMM[product.a, product.b]]),
        m=shape.m, n=shape.n, k=k, count=shape.count, lda=k,
        a_bytes=shape.m * k * item, item=item, groups=GROUP[item] if grouped else 0,
    )  # fmt: skip
    entry = address(library("adapters").bench_typed_brgemm)
    pointers = (a.ctypes.data, b.ctypes.data, operands.c.ctypes.data, ctypes.addressof(described))
    begin = _begin() if grouped else 0
    return Call(name, entry, pointers, shape.flops, (described, a, b, operands), begin)


def _begin() -> int:
    """What lets oneDNN configure tiles anew, though it remembers that it did."""
    adapters = library("adapters")
    release = ctypes.c_void_p.in_dll(adapters, "bench_release")
    release.value = address(torch_library()[_RELEASE])
    return address(adapters.bench_begin_brgemm)


def _wider(a: Any, k: int) -> Any:
    return np.pad(a, ((0, 0), (0, 0), (0, k - a.shape[2])))


def grouped_blocks(b: Any) -> Any:
    """B (count x k x n) as ``[block][count][k / group][columns][group]``, padded with zeros."""
    group = GROUP[b.itemsize]
    count, k, n = b.shape
    blocks = []
    for first in range(0, n, COLUMNS):
        part = b[:, :, first : first + COLUMNS]
        columns = -(-part.shape[2] // STEP) * STEP
        part = np.pad(part, ((0, 0), (0, -k % group), (0, columns - part.shape[2])))
        blocks.append(part.reshape(count, -1, group, columns).swapaxes(2, 3).reshape(-1))
    return np.concatenate(blocks)


# -- MKL ----------------------------------------------------------------------------------------


def _mkl(operands: Operands) -> Call:
    """MKL's product with a B that it packed itself."""
    product = operands.product
    shape, item = product.shape, operands.a.itemsize
    mkl, name = mkl_library(), _GEMM[product.a, product.b]
    sizes = tuple(ctypes.c_int(size) for size in (shape.m, shape.n, shape.k))
    measure = mkl[f"{name}_pack_get_size"]
    measure.restype = ctypes.c_size_t
    size = -(-measure(_B_MATRIX, *sizes) // 64) * 64
    packed = put(np.zeros((shape.count, size), np.uint8), 1)
    for matrix, buffer in zip(operands.b, packed, strict=True):
        source, place = (ctypes.c_void_p(x.ctypes.data) for x in (matrix, buffer))
        mkl[f"{name}_pack"](_ROW_MAJOR, _B_MATRIX, _NO_TRANS, *sizes, source, shape.n, place)
    described = _Product(
        function=address(mkl[f"{name}_compute"]),
        m=shape.m, n=shape.n, k=shape.k, count=shape.count, lda=shape.k,
        a_bytes=shape.m * shape.k * item, b_bytes=size, item=item,
    )  # fmt: skip
    entry = address(library("adapters")["bench_mkl_bytes" if item == 1 else "bench_mkl_halves"])
    a, c = operands.a.ctypes.data, operands.c.ctypes.data
    pointers = (a, packed.ctypes.data, c, ctypes.addressof(described))
    return Call(MKL, entry, pointers, shape.flops, (described, packed, operands))


# -- the probe ----------------------------------------------------------------------------------


def probe(kind: tuple[str, str]) -> None:
    """Call oneDNN's ukernel once and check it; it raises, or ends the process, if refused."""
    operands = Operands.random(Product(Shape(16, 16, 64), *kind), np.random.default_rng(0))
    try:
        operands.check(_brgemm(ONEDNN, operands))
    except (MissingError, WrongResultError) as error:
        sys.exit(f"what(): {error}")
