"""Loops of Cython that call kernels by their addresses: small products, and rows times few bits.

    python examples/cython_products.py [COUNT]      (by default: 10000)

``kernel.address`` is the C function that ``kernel.c_declaration`` declares. Cython casts it to a
pointer once, and calls it without Python, the interpreter's lock, or a check. The module is built
from ``cython_loop/products.pyx`` into a folder that is removed again: a project of its own builds
it once. It takes Cython, a C compiler and Python's headers.

A packed B goes in as its bytes, ``packed.data``: that they are of the kernel's format is then the
caller's word. Here it has four bits, and a scale for each block of 32.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw

SOURCE = Path(__file__).parent / "cython_loop" / "products.pyx"


def built(folder: str) -> Any:
    """The module of ``products.pyx``, compiled into ``folder``."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extensions = [Extension("products", [str(SOURCE)])]
    made = cythonize(extensions, build_dir=folder, quiet=True)
    command = Distribution({"ext_modules": made}).get_command_obj("build_ext")
    command.build_lib = command.build_temp = folder
    command.ensure_finalized()
    command.run()
    spec = spec_from_file_location("products", command.get_ext_fullpath("products"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(count: int) -> float:
    """How far ``count`` products of 8x8x8 are off what numpy finds, at most."""
    kernel = tw.compile(tw.Gemm(8, 8, 8))
    a, b = np.random.default_rng(0).standard_normal((2, count, 8, 8), np.float32)
    c = np.empty_like(a)
    with tempfile.TemporaryDirectory() as folder:
        built(folder).products(kernel.address, a, b, c)
    return float(np.abs(c - a.astype(np.float64) @ b.astype(np.float64)).max())


def check_few_bits(count: int) -> float:
    """How far ``count`` rows times a B of four bits are off what numpy finds, at most."""
    form = tw.Quantized("u4", scale="f16", zero=8, block=32)
    kernel = tw.compile(tw.Gemm(1, 48, 64, b=tw.Packed(form)))
    rng = np.random.default_rng(0)
    weights = tw.quantize(rng.standard_normal((64, 48), np.float32), form)
    a, c = rng.standard_normal((count, 64), np.float32), np.empty((count, 48), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        built(folder).layer(kernel.address, a, kernel.pack_b(weights).data, c)
    return float(np.abs(c - a.astype(np.float64) @ weights.dequantize()).max())


def main() -> int:
    """Run, and say how far off it was: not zero if too far."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    errors = check(count), check_few_bits(count)
    print(f"{count} products of 8x8x8: largest error {errors[0]:.1e}")
    print(f"{count} rows times 64x48 of four bits: largest error {errors[1]:.1e}")
    return int(max(errors) > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
