"""The libraries that tilewright is measured against, each behind the same call.

Every peer computes C += A B, row-major f32, on one thread. A loader raises MissingError with
the way to install what is absent; nothing is skipped silently.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

from benchmarks.measure.native import Call, MissingError, address, library
from benchmarks.measure.operands import Operands
from benchmarks.measure.shapes import Shape

_BRGEMM = "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb"
_BLIS = (
    "/usr/lib/x86_64-linux-gnu/blis-serial/libblis.so.4",
    "/usr/lib/aarch64-linux-gnu/blis-serial/libblis.so.4",
)
_ROW_MAJOR, _NO_TRANS, _MKL_SEQUENTIAL = 101, 111, 1


class _Product(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p),
        ("state", ctypes.c_void_p),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("count", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True)
class Peer:
    """A loaded library; ``call`` prepares one product."""

    name: str
    version: str
    call: Callable[[Shape, Operands], Call]


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A function that takes its sizes at each call, behind a function of ``adapters.c``."""

    peer: str
    adapter: str
    function: int

    def __call__(self, shape: Shape, operands: Operands, state: int | None = None) -> Call:
        product = _Product(self.function, state, shape.m, shape.n, shape.k, shape.count)
        a, b, c = _pointers(operands)
        entry = address(library("adapters")[self.adapter])
        fourth = ctypes.addressof(product)
        return Call(self.peer, entry, (a, b, c, fourth), shape.flops, (product, operands))


def load() -> tuple[list[Peer], list[str]]:
    """All peers that are here, and for each absent one what is missing."""
    for name in ("OPENBLAS", "MKL", "OMP", "BLIS"):
        os.environ[f"{name}_NUM_THREADS"] = "1"
    peers, missing = [], []
    for loader in (_openblas, _mkl, _mkl_jit, _onednn, _xsmm, _blis):
        try:
            peers.append(loader())
        except MissingError as error:
            missing.append(str(error))
    return peers, missing


def _openblas() -> Peer:
    path = _file_of("numpy", "libscipy_openblas64_-", "pip install numpy (a wheel from PyPI)")
    blas = ctypes.CDLL(str(path))
    blas.scipy_openblas_set_num_threads64_(1)
    blas.scipy_openblas_get_config64_.restype = ctypes.c_char_p
    config = blas.scipy_openblas_get_config64_().decode().split()
    blas.scipy_openblas_get_corename64_.restype = ctypes.c_char_p
    core = blas.scipy_openblas_get_corename64_().decode()
    gemm = address(blas.scipy_cblas_sgemm64_)
    said = f"{config[1]} ({core}), numpy {version('numpy')}"
    return Peer("OpenBLAS", said, _Adapter("OpenBLAS", "bench_cblas64", gemm))


def mkl_library() -> ctypes.CDLL:
    """MKL, on one thread."""
    path = _file_of("mkl", "libmkl_rt.so", "pip install mkl")
    mkl = ctypes.CDLL(str(path))
    mkl.MKL_Set_Threading_Layer(_MKL_SEQUENTIAL)
    return mkl


def _mkl() -> Peer:
    mkl = mkl_library()
    text = ctypes.create_string_buffer(200)
    mkl.MKL_Get_Version_String(text, len(text))
    said = f"{version('mkl')} ({text.value.decode().split(' for ')[-1].strip()})"
    return Peer("MKL", said, _Adapter("MKL", "bench_cblas32", address(mkl.cblas_sgemm)))


def _mkl_jit() -> Peer:
    """MKL's generated kernels; where it generates none they are its cblas_sgemm in disguise."""
    mkl = mkl_library()
    create = mkl.mkl_cblas_jit_create_sgemm
    get = mkl.mkl_jit_get_sgemm_ptr
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)

    def call(shape: Shape, operands: Operands) -> Call:
        jitter = ctypes.c_void_p()
        one = ctypes.c_float(1)
        m, n, k = shape.m, shape.n, shape.k
        order = (_ROW_MAJOR, _NO_TRANS, _NO_TRANS)
        if create(ctypes.byref(jitter), *order, m, n, k, one, k, n, one, n) > 1:
            raise MissingError(f"MKL's JIT fails for {shape}")
        function = get(jitter)
        if shape.count > 1:
            return _Adapter("MKL JIT", "bench_mkl_jit", function)(shape, operands, jitter.value)
        entries = (jitter.value or 0, *_pointers(operands))
        return Call("MKL JIT", function, entries, shape.flops, (operands,))

    return Peer("MKL JIT", version("mkl"), call)


def torch_library() -> ctypes.CDLL:
    """PyTorch's library for CPUs."""
    return ctypes.CDLL(str(_file_of("torch", "libtorch_cpu.so", "pip install torch==2.13.0")))


def _onednn() -> Peer:
    """The batch-reduce ukernel of oneDNN as PyTorch reaches it (its own look-up included)."""
    try:
        brgemm = address(torch_library()[_BRGEMM])
    except AttributeError:
        raise MissingError(
            f"torch {version('torch')} has no brgemm: pip install torch==2.13.0"
        ) from None
    return Peer(
        "oneDNN", f"in torch {version('torch')}", _Adapter("oneDNN", "bench_brgemm", brgemm)
    )


def xsmm_library() -> ctypes.CDLL:
    """``benchmarks/programs/xsmm.c`` with LIBXSMM."""
    if not Path("/usr/include/libxsmm.h").exists():
        raise MissingError("LIBXSMM: apt-get install libxsmm-dev")
    return library("xsmm", "-lxsmm", "-lxsmmnoblas", "-lpthread", "-lrt", "-ldl", "-lm")


def _xsmm() -> Peer:
    xsmm = xsmm_library()
    xsmm.bench_xsmm.restype = xsmm.bench_xsmm_batch.restype = ctypes.c_void_p
    xsmm.bench_xsmm_version.restype = ctypes.c_char_p

    def call(shape: Shape, operands: Operands) -> Call:
        make = xsmm.bench_xsmm_batch if shape.count > 1 else xsmm.bench_xsmm
        function = make(shape.m, shape.n, shape.k)
        if not function:
            raise MissingError(f"LIBXSMM generates no kernel for {shape}")
        a, b, c = _pointers(operands)
        count = ctypes.c_int64(shape.count)
        entries = (b, a, c, ctypes.addressof(count))
        return Call("LIBXSMM", function, entries, shape.flops, (operands, count))

    said = f"{xsmm.bench_xsmm_version().decode()}, ISA {xsmm.bench_xsmm_isa()}"
    return Peer("LIBXSMM", said, call)


def _blis() -> Peer:
    path = next((path for path in _BLIS if Path(path).exists()), None)
    if path is None:
        raise MissingError("BLIS: apt-get install libblis4-serial")
    blis = ctypes.CDLL(path, mode=os.RTLD_DEEPBIND)  # else it calls MKL's sgemm_
    blis.bli_info_get_version_str.restype = ctypes.c_char_p
    blis.bli_arch_string.restype = ctypes.c_char_p
    core = blis.bli_arch_string(blis.bli_arch_query_id()).decode()
    said = f"{blis.bli_info_get_version_str().decode()} ({core})"
    return Peer("BLIS", said, _Adapter("BLIS", "bench_cblas32", address(blis.cblas_sgemm)))


def _pointers(operands: Operands) -> tuple[int, int, int]:
    return operands.a.ctypes.data, operands.b.ctypes.data, operands.c.ctypes.data


def _file_of(package: str, start: str, install: str) -> Path:
    """The installed file of a package whose name starts so."""
    try:
        listed = files(package) or []
    except PackageNotFoundError:
        raise MissingError(f"{package}: {install}") from None
    for path in listed:
        if path.name.startswith(start):
            return Path(str(path.locate())).resolve()
    raise MissingError(f"{package} without {start}*: {install}")
